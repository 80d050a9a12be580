"""What was appended for a certain offset is at that offset or nowhere, whoever takes over.

An unknown outcome does not change that, nor does a segment that was begun again.
"""

from tests.simulation.logs.oracle import LogHistory

_NAME = "expected_offsets_are_met"


def broken(history: LogHistory) -> str | None:
    for seen in history.new(_NAME, history.seen):
        append = history.appends.get(seen.payload)
        if append is not None and append.expected not in {None, seen.offset}:
            return f"{seen.payload!r} was meant for {append.expected}, and is at {seen.offset}"
    return None
