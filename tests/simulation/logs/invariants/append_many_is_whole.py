"""What is appended by one call stays together, and is in the log wholly or not at all.

As long as it fits into one entry, which it does here.
"""

from tests.simulation.logs.oracle import LogHistory

_NAME = "append_many_is_whole"


def broken(history: LogHistory) -> str | None:
    for seen in history.new(_NAME, history.seen):
        append = history.appends.get(seen.payload)
        if append is not None and append.group is not None:
            story = _torn(history, append.group, seen.offset - append.group.index(seen.payload))
            if story is not None:
                return story
        before = history.records.get(seen.offset - 1)
        other = None if before is None else history.appends.get(before.payload)
        if other is not None and other.group is not None:
            first = seen.offset - 1 - other.group.index(other.payload)
            story = _torn(history, other.group, first)
            if story is not None:
                return story
    return None


def _torn(history: LogHistory, group: tuple[bytes, ...], first: int) -> str | None:
    for offset, payload in enumerate(group, first):
        there = history.records.get(offset)
        if there is not None and there.payload != payload:
            return f"{group} was appended at once; {there.payload!r} is at {offset}, among them"
    return None
