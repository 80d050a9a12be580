"""No consumer vanishes that nobody deleted, with its log or alone."""

from tests.simulation.logs.oracle import LogHistory

_NAME = "consumers_vanish_with_a_reason"


def broken(history: LogHistory) -> str | None:
    for log, consumer in history.new(_NAME, history.consumers_gone):
        dropped = history.gone or history.manifest.dropped
        if not dropped and (log, consumer) not in history.requests.forgotten:
            return f"{consumer} of {log} is gone, and nobody deleted it"
    return None
