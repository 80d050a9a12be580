"""Positions of a stream in its logs, and their one JSON form in Spark's checkpoints.

Spark compares offsets as strings and stores them as they come, so equal positions must give
equal text: `encode` is the only place where the form is made, and it sorts the logs by name.
A position carries the incarnation of its log, so that a log that was deleted and re-created
is not taken for the one the checkpoint was written for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dlog.spark.errors import InvalidOption

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """The offset of the next record to read, in one incarnation of a log."""

    incarnation: str
    next_offset: int


def encode(positions: Mapping[str, Position]) -> dict[str, object]:
    """Return the offset that Spark stores; equal positions give equal text."""
    logs = {
        log: [positions[log].incarnation, positions[log].next_offset] for log in sorted(positions)
    }
    return {"logs": logs, "v": VERSION}


def decode(offset: Mapping[str, object]) -> dict[str, Position]:
    """Inverse of `encode`; raises InvalidOption for anything else."""
    text = json.dumps(offset)
    if offset.get("v") != VERSION:
        raise InvalidOption("offset", text, f"its version is not {VERSION}")
    logs = offset.get("logs")
    if not isinstance(logs, dict):
        raise InvalidOption("offset", text, "it has no 'logs'")
    positions: dict[str, Position] = {}
    for log in sorted(logs):
        match logs[log]:
            case [str(incarnation), int(next_offset)] if next_offset >= 0:
                positions[log] = Position(incarnation, next_offset)
            case other:
                raise InvalidOption("offset", text, f"{log!r} is {other!r}, not [incarnation, n]")
    return positions
