"""Positions of a stream in its logs, and their one JSON form in Spark's checkpoints.

Spark compares offsets as strings and stores them as they come, so equal positions must give
equal text: `encode` is the only place where the form is made, and it sorts the logs by name.
A position carries the incarnation of its log, so that a log that was deleted and re-created
is not taken for the one the checkpoint was written for.

Positions stand under *keys*: the name that a log had when it was found. A log that takes the name
of one that was renamed, and is read on under its first name, has a key with its incarnation, which
no name looks like; an offset with such a key is of version 2, which older programs refuse.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlog.spark.errors import InvalidOption

VERSION: Final = 1
VERSION_WITH_NAMESAKES: Final = 2
_NAMESAKE: Final = "//"
"""No name of a log has an empty part."""


def namesake(name: str, incarnation: str = "") -> str:
    """Return the key of the log *incarnation*, which has the *name* that another one had before;
    without it, of whichever log has the name now."""
    return f"{name}{_NAMESAKE}{incarnation}"


def is_namesake(key: str) -> bool:
    """Return whether *key* is what `namesake` returns."""
    return _NAMESAKE in key


def name_of(key: str) -> str:
    """Return the name under which the log with *key* was found: its rows have that name."""
    return key.partition(_NAMESAKE)[0]


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The offset of the next record to read, in one incarnation of a log."""

    incarnation: str
    next_offset: int


def encode(positions: Mapping[str, StreamPosition]) -> dict[str, object]:
    """Return the offset that Spark stores; equal positions give equal text."""
    logs = {
        log: [positions[log].incarnation, positions[log].next_offset] for log in sorted(positions)
    }
    version = VERSION_WITH_NAMESAKES if any(map(is_namesake, logs)) else VERSION
    return {"logs": logs, "v": version}


def decode(offset: Mapping[str, object]) -> dict[str, StreamPosition]:
    """Inverse of `encode`; raises InvalidOption for anything else."""
    text = json.dumps(offset)
    if offset.get("v") not in {VERSION, VERSION_WITH_NAMESAKES}:
        reason = "a newer dlog wrote it: update dlog where this query runs"
        raise InvalidOption("offset", text, reason)
    logs = offset.get("logs")
    if not isinstance(logs, dict):
        raise InvalidOption("offset", text, "it has no 'logs'")
    positions: dict[str, StreamPosition] = {}
    for log in sorted(logs):
        match logs[log]:
            case [str(incarnation), int(next_offset)] if next_offset >= 0:
                positions[log] = StreamPosition(incarnation, next_offset)
            case other:
                raise InvalidOption("offset", text, f"{log!r} is {other!r}, not [incarnation, n]")
    return positions
