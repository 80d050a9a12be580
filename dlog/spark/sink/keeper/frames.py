"""Frames between a worker and the keeper: a JSON header and bytes.

    u32 bytes of the header, u64 bytes of the body, little endian; header; body

A request names its `op`. Its answer is any number of frames with `working`, then one with
`result` or `error`. Nothing is unpickled: neither side runs what the other one sends.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import dlog.errors
import dlog.spark.errors
import ledger.errors
from dlog.aio.write.sink import Assignment, Staged
from dlog.manifest import Sealed
from dlog.settings import parse_settings, settings_facts
from ledger.errors import LogError, RemoteError

Header = Mapping[str, Any]

SIZES: Final = struct.Struct("<IQ")
HEADER_BYTES_MAX: Final = 16 << 20
BODY_BYTES_MAX: Final = 1 << 30
"""What travels of one batch to one log; more is refused before it is sent."""

_SEALED: Final = tuple(field.name for field in fields(Sealed) if field.name != "receipt")
_MODULES: Final = (dlog.errors, dlog.spark.errors, ledger.errors)


class KeeperFailed(RemoteError):
    """The keeper met what no one expects; its log says more."""


def encode(header: Header, body: Sequence[bytes] = ()) -> list[bytes]:
    """Return the frame in pieces."""
    text = json.dumps(header).encode()
    size = sum(map(len, body))
    assert len(text) <= HEADER_BYTES_MAX, "a header says little"
    return [SIZES.pack(len(text), size) + text, *body]


def sizes(prefix: bytes) -> tuple[int, int]:
    """Return the bytes of header and body. Raises ValueError if they are not possible."""
    header, body = SIZES.unpack(prefix)
    if header > HEADER_BYTES_MAX or body > BODY_BYTES_MAX:
        raise ValueError(f"a frame of {header} and {body} bytes")
    return header, body


def decode(text: bytes) -> dict[str, Any]:
    """Return the header. Raises ValueError."""
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("the header of a frame is no object")  # noqa: TRY004 - of its text
    return header


def cut(body: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Return the pieces of *body*. Raises ValueError if it has others."""
    pieces: list[bytes] = []
    begin = 0
    for length in lengths:
        pieces.append(body[begin : begin + length])
        begin += length
    if begin != len(body) or any(length < 0 for length in lengths):
        raise ValueError(f"{len(body)} bytes are not {begin}")
    return pieces


def assignment_facts(assignment: Assignment) -> dict[str, Any]:
    return {
        "log": assignment.log,
        "incarnation": assignment.incarnation,
        "epoch": assignment.epoch,
        "settings": settings_facts(assignment.settings),
        "previous_txid": assignment.previous_txid,
    }


def assignment_of(facts: Header) -> Assignment:
    return Assignment(
        facts["log"],
        facts["incarnation"],
        facts["epoch"],
        parse_settings(facts["settings"]),
        facts["previous_txid"],
    )


def staged_facts(staged: Staged) -> dict[str, Any]:
    sealed = asdict(staged.sealed)
    return {
        "ledger_id": staged.ledger_id,
        "epoch": staged.epoch,
        "sealed": {name: sealed[name] for name in _SEALED},
    }


def staged_of(facts: Header) -> Staged:
    return Staged(facts["ledger_id"], facts["epoch"], Sealed(**facts["sealed"]))


def error_facts(error: Exception) -> dict[str, Any]:
    """Return what `error_of` makes the same error of: its class, its message, its plain fields."""
    if not isinstance(error, LogError):
        error = KeeperFailed(f"the keeper of this application failed: {error!r}")
    plain = {k: v for k, v in vars(error).items() if isinstance(v, str | int | float | bool | None)}
    return {
        "name": type(error).__name__,
        "message": str(error),
        "retryable": error.retryable,
        "outcome_unknown": error.outcome_unknown,
        "fields": plain,
    }


def error_of(facts: Header) -> LogError:
    """Return the error; one of a class that is not known here is a `KeeperFailed`."""
    found = (getattr(module, facts["name"], None) for module in _MODULES)
    kind = next((k for k in found if isinstance(k, type) and issubclass(k, LogError)), KeeperFailed)
    error = kind.__new__(kind, facts["message"])
    error.__dict__.update(facts["fields"])
    error.retryable, error.outcome_unknown = facts["retryable"], facts["outcome_unknown"]
    return error
