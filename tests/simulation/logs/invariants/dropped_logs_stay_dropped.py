"""The manifest of one incarnation is never replaced by another's, nor comes back once deleted."""

from tests.simulation.logs.oracle import LogHistory


def broken(history: LogHistory) -> str | None:
    return history.strangers[0] if history.strangers else None
