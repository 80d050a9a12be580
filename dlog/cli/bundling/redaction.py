"""Takes secrets out of text that programs wrote. Pure.

Nobody knows all forms of secrets: what looks like one is taken out, so that too much goes rather
than too little. What is known to be a secret is taken out wherever it stands. Repetitions in the
patterns are bounded where they could begin anywhere, or a strange log would take hours.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

REDACTED: Final = "[redacted]"
KNOWN_CHARACTERS_MIN: Final = 6
"""A shorter secret is not looked for: it would be found in words."""

_NAMES: Final = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|auth|authorization|credential|cookie|session"
    r"|(?<![a-z])mac"
    r"|signature|(?:api|private|access|data|wrapping|encryption|tls|account|shared)[-_. ]?key"
    r"|key[-_.]?(?:file|command)"
)
_NAME: Final = rf"(?:{_NAMES})s?"
_SECRET_NAME: Final = re.compile(rf"[\w. -]*{_NAME}|(?:.*[-_.])?key", re.IGNORECASE)
_VALUE: Final = (
    r'"(?:[^"\\\n]|\\.)*(?:"|$)' r"|'(?:[^'\\\n]|\\.)*(?:'|$)" r"|b?[^\s,;&\"'\]})]+[^\s,;&\]})]*"
)
_ASSIGNED: Final = re.compile(
    rf"(?P<name>{_NAME}[\"']?\s*(?:=>|[=:])\s*)(?:(?:bearer|basic|digest)[ :]\s*)?"
    rf"(?:{_VALUE})",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION: Final = re.compile(
    rf"(?P<name>(?<![\w-])--?[\w.-]{{0,64}}?{_NAME}[= ]+)(?:{_VALUE})", re.IGNORECASE | re.MULTILINE
)
_HEADER: Final = re.compile(
    r"(?P<name>\b(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,64}(?:key|token))[\"']?\s*[:=]).*",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"(?P<name>\b(?:bearer|basic|digest)[ :]+)[^\s,;\"']+", re.IGNORECASE)
_URI: Final = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,20}://)(?P<rest>[^\s\"'<>]*)", re.IGNORECASE
)
_PEM: Final = re.compile(
    r"(?P<begin>-----BEGIN [A-Z0-9 ]*-----)(?:.*?)(?P<end>-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL
)
_PEM_END: Final = re.compile(r"\A(?:(?!-----BEGIN).)*?(?=-----END [A-Z0-9 ]*-----)", re.DOTALL)
_OPAQUE: Final = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{24,}={0,2}")


class Redactor:
    """Knows the secrets of this process, and the looks of others'."""

    def __init__(self, known: Iterable[str]) -> None:
        found = sorted(
            {each for each in known if len(each) >= KNOWN_CHARACTERS_MIN}, key=len, reverse=True
        )
        self._known = re.compile("|".join(map(re.escape, found))) if found else None

    def text(self, text: str, *, opaque: bool = False) -> str:
        """Return *text* without what is, or looks like, a secret; with *opaque* also without long
        strings that say nothing to a person: keys, digests, ids."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        text = _PEM_END.sub(f"{REDACTED}\n", text, count=1) if "-----END " in text else text
        text = _PEM.sub(rf"\g<begin>{REDACTED}\g<end>", text)
        text = _HEADER.sub(rf"\g<name> {REDACTED}", text)
        text = _URI.sub(_without_secrets, text)
        for pattern in (_ASSIGNED, _OPTION, _BEARER):
            text = pattern.sub(rf"\g<name>{REDACTED}", text)
        return _OPAQUE.sub(_unless_plain, text) if opaque else text

    def value(self, value: object) -> object:
        """Return the JSON *value* with `text` for its strings, and nothing of what is named as a
        secret is."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {
                    self.text(str(name)): REDACTED
                    if isinstance(each, str) and each and _SECRET_NAME.fullmatch(str(name))
                    else self.value(each)
                    for name, each in value.items()
                }
            case list() | tuple():
                return [self.value(each) for each in value]
            case _:
                return value


def _without_secrets(found: "re.Match[str]") -> str:
    """Return a URI without its options and without what stands before its host. A password may
    hold slashes that should have been written otherwise."""
    place = re.split("[?#]", found["rest"], maxsplit=1)
    _, at, host = place[0].rpartition("@")
    shown = f"{REDACTED}@{host}" if at else host
    return f"{found['scheme']}{shown}{f'?{REDACTED}' if len(place) > 1 else ''}"


def _unless_plain(found: "re.Match[str]") -> str:
    """Return what was found if it is words or a number; else it is taken out."""
    text = found[0]
    words = re.split("[/_-]", text)
    if all(word.isdigit() or (word.isalpha() and len(word) < 24) for word in words if word):
        return text
    if "/" in text and all(len(word) < 24 for word in words):  # most likely a path
        digits = sum(character.isdigit() for character in text)
        if digits * 4 < len(text):
            return text
    return REDACTED
