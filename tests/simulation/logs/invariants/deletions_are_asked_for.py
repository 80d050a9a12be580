"""A log is deleted by whom somebody asked, and each time one: not what has its name by then."""

from tests.simulation.logs.oracle import LogHistory


def broken(history: LogHistory) -> str | None:
    return history.not_asked_for
