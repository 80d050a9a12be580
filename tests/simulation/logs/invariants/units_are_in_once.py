"""Of all attempts at a unit a log has no more than one, whole, and the units of an origin in order.

What a sink said about a unit is so: it is where it says, and no other attempt is.
"""

from tests.simulation.logs.oracle import Attempt, LogHistory

_NAME = "units_are_in_once"


def broken(history: LogHistory) -> str | None:
    for seen in history.new(_NAME, history.seen):
        attempt = history.attempt_of.get(seen.payload)
        if attempt is None:
            continue
        index = attempt.payloads.index(seen.payload)
        story = _taken(history, attempt) or _placed(attempt, seen.offset - index)
        if story is not None:
            return story
        attempt.first_offset = seen.offset - index
        story = _in_order(history, attempt)
        if story is not None:
            return story
    for attempt in history.new(f"{_NAME} committed", history.committed):
        taken = history.taken.get(attempt.unit)
        if taken is not None and taken is not attempt:
            return f"{attempt} was said to be committed, the log has {taken}"
    return None


def _taken(history: LogHistory, attempt: Attempt) -> str | None:
    taken = history.taken.setdefault(attempt.unit, attempt)
    return None if taken is attempt else f"the log has {taken}, and {attempt} too"


def _placed(attempt: Attempt, first: int) -> str | None:
    for known in (attempt.first_offset, attempt.said_offset):
        if known not in {None, first}:
            return f"{attempt} begins at {first} and at {known}"
    return None


def _in_order(history: LogHistory, attempt: Attempt) -> str | None:
    origin, number = attempt.unit
    for other in history.taken.values():
        if other.unit[0] != origin or other.first_offset is None or other is attempt:
            continue
        assert attempt.first_offset is not None
        if (other.unit[1] < number) != (other.first_offset < attempt.first_offset):
            return f"{other} is at {other.first_offset}, {attempt} at {attempt.first_offset}"
    return None


def lost(history: LogHistory) -> str | None:
    """Return what was said to be committed and is not there, once somebody has read it all."""
    trimmed = history.manifest.trim_offset
    for attempt in history.committed:
        first = attempt.said_offset
        assert first is not None
        for offset, payload in enumerate(attempt.payloads, first):
            if offset >= trimmed and history.places.get(payload) != offset:
                return f"{attempt} was committed at {first}, and {payload!r} is not there"
    for unit in history.said_already:
        taken = history.taken.get(unit)
        if taken is None and not trimmed:
            return f"unit {unit} was said to be in the log already, and is not"
    return None
