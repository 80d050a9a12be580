"""A ledger is never closed below a last-add-confirmed that any client believed (rule 53)."""

from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    end = history.recorded.last_entry
    if end is not None and history.seen_lac > end:
        return (
            f"closed at {end}, but {history.seen_lac_by} saw last-add-confirmed {history.seen_lac}"
        )
    return None
