"""TLA+ NoDirtyReads: what one reader was given, every reader is given, and it stays.

So it is inside the ledger when that closes, and its bytes are those that the writer sent.
"""

from tests.simulation.oracle import LedgerHistory

_NAME = "read_value_never_changes"


def broken(history: LedgerHistory) -> str | None:
    checked = history.checked.get(_NAME, 0)
    for who, entry_id, frame in history.reads[checked:]:
        if entry_id >= len(history.sent):
            return f"{who} read entry {entry_id}, which nobody ever sent"
        if frame != history.sent[entry_id]:
            return f"{who} read other bytes of entry {entry_id} than the writer sent"
        history.checked["highest read"] = max(history.checked.get("highest read", -1), entry_id)
    history.checked[_NAME] = len(history.reads)
    end = history.recorded.last_entry
    highest = history.checked.get("highest read", -1)
    if end is not None and highest > end:
        return f"entry {highest} was read, then the ledger was closed at {end}"
    return None
