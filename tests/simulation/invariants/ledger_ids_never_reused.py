"""A ledger id is given out once, for ever: also after a deletion (rule 6)."""

from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    if len(history.owners) > 1:
        return f"{' and '.join(history.owners)} were answered that they had created it"
    if history.revived:
        return "it was stored again after it had been deleted"
    return None
