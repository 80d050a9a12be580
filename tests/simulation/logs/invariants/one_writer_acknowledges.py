"""After an open, no writer that opened before acknowledges what it is given from then on.

What it had been given earlier it may still acknowledge: recovery kept it. The same holds from
the moment it was confirmed that the log is deleted, or sealed for good.
"""

from tests.simulation.logs.oracle import LogHistory

_NAME = "one_writer_acknowledges"


def broken(history: LogHistory) -> str | None:
    for append in history.new(_NAME, history.acknowledged):
        for other in history.opens:
            if other.epoch > append.epoch and other.step < append.submitted:
                return (
                    f"{append.who} of epoch {append.epoch} acknowledged {append.payload!r}, "
                    f"appended after {other.who} had opened as epoch {other.epoch}"
                )
        if history.sealed is not None and history.sealed < append.submitted:
            return f"{append.who} acknowledged {append.payload!r} after the log was sealed"
        if history.dropped is not None and history.dropped < append.submitted:
            return f"{append.who} acknowledged {append.payload!r} after the log was deleted"
    return None
