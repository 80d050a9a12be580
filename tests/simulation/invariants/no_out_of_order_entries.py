"""TLA+ NoOutOfOrderEntries: acknowledged strictly in entry order, each once, read in order.

A reader that was given entry e is given e + 1 next.
"""

from tests.simulation.oracle import LedgerHistory

_NAME = "no_out_of_order_entries"


def broken(history: LedgerHistory) -> str | None:
    return _acknowledged(history) or _read(history)


def _acknowledged(history: LedgerHistory) -> str | None:
    checked = history.checked.get(_NAME, 0)
    for first, last in history.acknowledgements[checked:]:
        if last < first:
            return f"entry {last} was acknowledged after {first - 1}"
        if last >= len(history.sent):
            return f"entry {last} was acknowledged, only {len(history.sent)} were sent"
    history.checked[_NAME] = len(history.acknowledgements)
    return None


def _read(history: LedgerHistory) -> str | None:
    checked = history.checked.get("reads in order", 0)
    for who, entry_id, _ in history.reads[checked:]:
        key = f"next entry of {who}"
        expected = history.checked.get(key, entry_id)
        if entry_id != expected:
            return f"{who} was given entry {entry_id} where {expected} comes next"
        history.checked[key] = entry_id + 1
    history.checked["reads in order"] = len(history.reads)
    return None
