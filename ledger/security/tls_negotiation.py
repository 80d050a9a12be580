"""Whether a connection to a bookie is to be secured: by what it says that it takes. Pure."""

from enum import IntEnum

from ledger.errors import TransportMismatch
from ledger.security.settings import TlsMode


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
