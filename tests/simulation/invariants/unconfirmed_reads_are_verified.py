"""An unconfirmed read promises one thing only: the bytes are those that the writer sent.

The entry may turn out not to be part of the ledger; what a read under the last-add-confirmed
gave is another matter (`read_value_never_changes`).
"""

from tests.simulation.oracle import LedgerHistory

_NAME = "unconfirmed_reads_are_verified"


def broken(history: LedgerHistory) -> str | None:
    checked = history.checked.get(_NAME, 0)
    history.checked[_NAME] = len(history.peeks)
    for who, entry_id, frame in history.peeks[checked:]:
        if entry_id >= len(history.sent):
            return f"{who} was given entry {entry_id}, which nobody ever sent"
        if frame != history.sent[entry_id]:
            return f"{who} was given other bytes of entry {entry_id} than the writer sent"
    return None
