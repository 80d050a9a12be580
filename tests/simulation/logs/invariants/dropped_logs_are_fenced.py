"""No ledger of a log is deleted while it is OPEN: whoever still writes it would go on in it.

Nobody writes one that its maker gives back unused. Its bookies may be gone when the log is deleted,
so it need not be CLOSED; but it was tried.
"""

from tests.simulation.logs.oracle import LogHistory


def broken(history: LogHistory) -> str | None:
    if history.unfenced:
        return f"ledger {history.unfenced[0]} was deleted and nobody had begun to fence it"
    return None
