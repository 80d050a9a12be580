"""No client ever believes a last-add-confirmed above what the writer acknowledged (rule 16)."""

from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    if history.seen_lac > history.acknowledged:
        return (
            f"{history.seen_lac_by} saw last-add-confirmed {history.seen_lac}, "
            f"acknowledged are entries up to {history.acknowledged}"
        )
    return None
