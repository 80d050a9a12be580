"""How a process secures its connections, as it was told. Pure.

off         nothing is secured: for one machine, or a network that nobody else is on
optional    servers take both, clients use TLS with whoever has it: while a cluster changes over
required    TLS with certificates of both ends, or no connection

Which of them a connection to a bookie is secured by follows from what the bookie says that it
takes; `why_failed` puts into words why a connection came to nothing.
"""

import ssl
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from ledger.errors import InvalidTls, TransportMismatch

VARIABLE: Final = "DLOG_TLS"
"""Of the environment; those of the files have this prefix, too."""
_OURS: Final = {
    "CERTIFICATE_REQUIRED": "it wants a certificate, and got none",
    "UNKNOWN_CA": "it does not know the authority of our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "our certificate is not one for clients",
    "CERTIFICATE_REVOKED": "our certificate was revoked",
    "ACCESS_DENIED": "it does not accept our certificate",
}
"""Alerts of the other end, by the end of their name."""
_PLAIN: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class TlsMode(StrEnum):
    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"


class NameKind(StrEnum):
    """Where in a certificate a name stands."""

    URI = "uri"
    """An alternative name that is a URI, as SPIFFE has them."""
    DNS = "dns"
    CN = "cn"
    """The common name of its subject."""


MODES: Final = ", ".join(TlsMode)
NAME_KINDS: Final = tuple(NameKind)


def holds_pem(text: str) -> bool:
    """Return whether *text* is what should be in a file, and not the path of one: it may be secret,
    so it must not be shown."""
    return "-----BEGIN" in text or "\n" in text


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Raises `InvalidTls` if the name of a file is missing that the mode needs, or is none."""

    mode: TlsMode = TlsMode.OFF
    ca: str = ""
    """File with the certificates of all authorities that are believed, PEM."""
    cert: str = ""
    """File with this process's certificate, and those between it and its authority, PEM."""
    key: str = ""
    """File with the private key of that certificate, PEM, not encrypted."""
    identity: tuple[NameKind, ...] = NAME_KINDS
    """Which names of a peer's certificate say who it is: the first kind that it has."""

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            if holds_pem(getattr(self, name)):
                raise InvalidTls(
                    f"{VARIABLE}_{name.upper()} is a key or a certificate, and should be the path "
                    "of the file that holds it"
                )
        if self.mode is TlsMode.OFF:
            return
        for name in ("ca", "cert", "key"):
            if not getattr(self, name):
                raise InvalidTls(
                    f"{VARIABLE}={self.mode} needs {VARIABLE}_{name.upper()}, the path of a file"
                )


OFF: Final = TlsSettings()


def tls_settings(
    mode: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    identity: str | None = None,
) -> TlsSettings:
    """Return what texts from outside say; None and "" were not given.

    Raises `InvalidTls`, also for files without a mode: who names them does not mean "off"."""
    if not mode:
        if ca or cert or key:
            raise InvalidTls(f"files of TLS are named, and {VARIABLE} is not; say one of {MODES}")
        return OFF
    try:
        found = TlsMode(mode.lower())
    except ValueError:
        raise InvalidTls(f"{VARIABLE}={mode!r} means nothing; say one of {MODES}") from None
    return TlsSettings(
        mode=found,
        ca=ca or "",
        cert=cert or "",
        key=key or "",
        identity=_kinds(identity) if identity else NAME_KINDS,
    )


def _kinds(text: str) -> tuple[NameKind, ...]:
    names = [name.strip().lower() for name in text.split(",")]
    known = ", ".join(NameKind)
    for name in names:
        if name not in NameKind._value2member_map_:
            raise InvalidTls(f"{VARIABLE}_IDENTITY has {name!r}; name some of {known}, by commas")
    return tuple(dict.fromkeys(map(NameKind, names)))


class Takes(IntEnum):
    """What the addresses of a bookie take. Numbers are those of its registration."""

    PLAIN = 0
    """All take plain connections only; so do bookies from before there was TLS."""
    BOTH = 1
    """All take both."""
    TLS = 2
    """All take TLS only."""


def takes_of(mode: TlsMode) -> Takes:
    """Return what a server of *mode* takes."""
    match mode:
        case TlsMode.OFF:
            return Takes.PLAIN
        case TlsMode.OPTIONAL:
            return Takes.BOTH
        case TlsMode.REQUIRED:
            return Takes.TLS


def is_secured(mode: TlsMode, takes: Takes | None, *, name: str) -> bool:
    """Return whether a client of *mode* uses TLS with *name*, of which is known that it takes
    *takes*.

    Raises `TransportMismatch` if the two have nothing in common."""
    if mode is TlsMode.REQUIRED and takes is Takes.PLAIN:
        raise TransportMismatch(
            name, "takes plain connections only, and here TLS is required", "start it with TLS"
        )
    if mode is TlsMode.OFF:
        if takes is Takes.TLS:
            reason = "takes TLS only, and here it is off"
            raise TransportMismatch(name, reason, TransportMismatch.HOW)
        return False
    return takes in (Takes.BOTH, Takes.TLS) or (takes is None and mode is TlsMode.REQUIRED)


def why_failed(error: BaseException) -> str:
    """Return why a connection, or the handshake of TLS on it, ended with *error*."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        for alert, reason in _OURS.items():
            if name.endswith(alert):
                return reason
        if name.endswith(_PLAIN):
            return "it does not speak TLS; is DLOG_TLS set there?"
        return f"TLS failed: {name.lower().replace('_', ' ') or type(error).__name__}"
    return str(error) or type(error).__name__
