"""Offsets are dense: each writer's acknowledgements ascend by one from where its open ended.

And the manifest's offset of a writer's first record is the one that the writer took.
"""

from tests.simulation.logs.oracle import LogHistory

_NAME = "offsets_are_dense"


def broken(history: LogHistory) -> str | None:
    for append in history.new(_NAME, history.acknowledged):
        opened = next(each for each in reversed(history.opens) if each.epoch == append.epoch)
        key = f"{_NAME} of epoch {append.epoch}"
        expected = history.checked.get(key, opened.next_offset)
        if append.offset != expected:
            return f"{append.who} acknowledges offset {append.offset} after {expected - 1}"
        history.checked[key] = expected + 1
    return None
