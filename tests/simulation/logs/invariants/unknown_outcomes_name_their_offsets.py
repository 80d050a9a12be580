"""A record whose outcome is unknown is at the offset that its error names, or nowhere."""

from tests.simulation.logs.oracle import LogHistory

_NAME = "unknown_outcomes_name_their_offsets"


def broken(history: LogHistory) -> str | None:
    seen = len(history.seen) > history.checked.get(f"{_NAME} seen", 0)
    history.checked[f"{_NAME} seen"] = len(history.seen)
    new = history.new(_NAME, history.unknown)
    for append in history.unknown if seen else new:
        offset = history.places.get(append.payload, append.offset)
        if offset != append.offset:
            return (
                f"{append.who} got the error that {append.payload!r} may be at {append.offset}, "
                f"it is at {offset}"
            )
    return None
