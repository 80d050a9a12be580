"""A record whose append was refused is certainly not in the log; nobody is given it."""

from tests.simulation.logs.oracle import Fate, LogHistory

_NAME = "refused_records_never_appear"


def broken(history: LogHistory) -> str | None:
    for seen in history.new(_NAME, history.seen):
        append = history.appends.get(seen.payload)
        if append is not None and append.fate is Fate.REFUSED:
            return f"{seen.who} was given {seen.payload!r}, which was refused"
    read = {seen.payload for seen in history.seen} if history.refused else set()
    for append in history.new(f"{_NAME} refused", history.refused):
        if append.payload in read:
            return f"{append.payload!r} was refused, and had been given to a reader"
    return None
