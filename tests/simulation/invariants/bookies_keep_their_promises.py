"""What a bookie answered OK to is there, byte for byte, after every crash and restart of it."""

from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    return history.broken_promises[0] if history.broken_promises else None
