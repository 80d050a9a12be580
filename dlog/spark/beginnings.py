"""From where users say that reading begins and ends to positions, by looking at the logs once."""

import json
from collections.abc import Mapping

from dlog.position import Timestamp, Txid
from dlog.spark.access import Access
from dlog.spark.bounds import Bounds, Place
from dlog.spark.errors import InvalidOption
from dlog.spark.offsets import Position
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogTail, OnLoss, continued


def starts_of(
    options: SourceOptions, tails: Mapping[str, LogTail], access: Access, *, on_loss: OnLoss
) -> dict[str, Position]:
    """Return where each log starts; *on_loss* is told of a start that was trimmed.

    Raises InvalidOption for a log that is not there, and beyond the end: a stream would skip what
    is appended up to there."""
    _check_found(options.starting, tails)
    starts: dict[str, Position] = {}
    for log, tail in tails.items():
        place = options.starting.of(log)
        offset = _offset(place, log, tail, access)
        _check_end(options.starting, log, place, tail)
        position = Position(tail.incarnation, offset)
        starts[log] = continued(log, position, tail, on_loss=on_loss)
    return starts


def stops_of(
    options: SourceOptions, tails: Mapping[str, LogTail], access: Access
) -> dict[str, Position]:
    """Return where each log ends (exclusive). Raises InvalidOption beyond the end."""
    _check_found(options.ending, tails)
    stops: dict[str, Position] = {}
    for log, tail in tails.items():
        place = options.ending.of(log)
        offset = _offset(place, log, tail, access)
        _check_end(options.ending, log, place, tail)
        stops[log] = Position(tail.incarnation, min(offset, tail.next_offset))
    return stops


def _offset(place: Place, log: str, tail: LogTail, access: Access) -> int:
    match place:
        case "start":
            return tail.first_offset
        case "end":
            return tail.next_offset
        case int():
            return place
        case Timestamp() | Txid():
            return access.seek(log, tail.incarnation, place)


def _check_end(bounds: Bounds, log: str, place: Place, tail: LogTail) -> None:
    if isinstance(place, int) and place > tail.next_offset:
        reason = f"log {log!r} ends at offset {tail.next_offset} now"
        raise InvalidOption(bounds.option, json.dumps({log: place}), reason)


def _check_found(bounds: Bounds, tails: Mapping[str, LogTail]) -> None:
    """Refuse a place in a log that matches the pattern and is not there."""
    for log in bounds.logs:
        if log not in tails:
            raise InvalidOption(bounds.option, log, f"there is no log {log!r}")
