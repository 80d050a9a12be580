"""A bookie that answered a fencing request takes no normal add afterwards (rules 29, 33).

Seen from outside: no normal add that reaches it after the answer is answered OK, and after
each restart it still says that it is fenced.
"""

from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    return history.broken_fences[0] if history.broken_fences else None
