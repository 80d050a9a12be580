"""A log is deleted by whom somebody asked, and each time one: that which had the name when it was
looked at first, not what has it by then."""

from tests.simulation.logs.oracle import LogHistory


def broken(history: LogHistory) -> str | None:
    return history.not_asked_for
