"""What ``dlog log append`` reads, as records: messages between delimiters, or lines of JSON."""

import base64
import binascii
import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dlog.headers import HeadersGiven
from dlog.settings import RECORD_BYTES_LIMIT
from ledger.errors import InvalidValue

_FIELDS: Final = ("value", "key", "txid", "timestamp_ms", "headers")
_PLACES: Final = ("offset", "dlsn", "log")
"""What ``tail --json`` prints of where a record was; a copy has places of its own."""

_HEADERS_FORM: Final = "headers are an object of names and values, or a list of [name, value]"


class Row(NamedTuple):
    """A record as it is to be appended."""

    value: bytes
    key: bytes | None = None
    txid: int | None = None
    timestamp_ms: int | None = None
    headers: HeadersGiven | None = None


@dataclass(frozen=True, slots=True)
class Messages:
    """Each message is the value of a record; or its key, *key_delimiter*, and its value."""

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    bytes_max: int = 2 * RECORD_BYTES_LIMIT
    """Without a delimiter so far, no more is taken."""
    headers: Sequence[tuple[str, bytes | None]] = ()

    def row(self, message: bytes) -> Row:
        """Return the record; without the delimiter in it, it has no key."""
        headers = self.headers or None
        if self.key_delimiter is None:
            return Row(message, headers=headers)
        key, found, value = message.partition(self.key_delimiter)
        return Row(value, key, headers=headers) if found else Row(message, headers=headers)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Each line is a record as ``tail --json`` prints it."""

    headers: Sequence[tuple[str, bytes | None]] = ()
    """For each record, before its own; where names are the same, its own alone."""
    delimiter: bytes = b"\n"
    bytes_max: int = 8 * RECORD_BYTES_LIMIT
    """Of one line: a character may take six in JSON."""

    def row(self, message: bytes) -> Row:
        """Return the record. Raises `InvalidValue`."""
        try:
            found = json.loads(message)
        except ValueError as error:
            raise _refused(message, f"no JSON ({error}); use what 'tail --json' prints") from None
        if not isinstance(found, dict) or "value" not in found:
            raise _refused(message, "use an object with \"value\", as 'tail --json' prints")
        for name in found:
            if name not in _FIELDS and name not in _PLACES:
                known = ", ".join(_FIELDS)
                raise _refused(message, f"{name!r} is unknown; a record has {known}")
        own = _headers(found.get("headers"), message)
        names = {name for name, _ in own}
        given = [pair for pair in self.headers if pair[0] not in names]
        value = _bytes(found["value"], message)
        key = None if found.get("key") is None else _bytes(found["key"], message)
        return Row(
            value,
            key,
            _number(found, "txid", message),
            _number(found, "timestamp_ms", message),
            [*given, *own] or None,
        )


def parse_delimiter(text: str, option: str) -> bytes:
    r"""Return the bytes that *text* names, in which \n, \t, \0 and \x1e stand for one each.

    Raises `InvalidValue`."""
    try:
        found = codecs.escape_decode(text.encode())[0]
    except ValueError as error:
        raise InvalidValue(option, text, str(error)) from None
    if not found:
        raise InvalidValue(option, text, r"use one character or more, as \n, \t, : or \x1e")
    return found


def _bytes(value: object, message: bytes) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            pass
    raise _refused(message, f'{value!r} is neither text nor {{"base64": "..."}}')


def _headers(headers: object, message: bytes) -> list[tuple[str, bytes | None]]:
    """Return headers as ``tail --json`` prints them: an object of names and values, or pairs of
    them in a list."""
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    if not isinstance(pairs, Iterable) or isinstance(pairs, str):
        raise _refused(message, _HEADERS_FORM)
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise _refused(message, _HEADERS_FORM)
        name, value = pair
        found.append((name, None if value is None else _bytes(value, message)))
    return found


def _number(found: Mapping[str, object], name: str, message: bytes) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(message, f"{name} is a whole number")
    return value


def _refused(message: bytes, reason: str) -> InvalidValue:
    return InvalidValue("record", message[:200].decode(errors="replace"), reason)
