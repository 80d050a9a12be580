"""The length of a CLOSED ledger is that of the entries in it (rule 49).

Each entry carries the cumulative length up to and with itself, as its writer counted.
"""

from ledger.entry import parse_header
from tests.simulation.oracle import LedgerHistory

_NAME = "closed_length_is_that_of_its_entries"


def broken(history: LedgerHistory) -> str | None:
    metadata = history.recorded
    end = metadata.last_entry
    if end is None or _NAME in history.checked or end >= len(history.sent):
        return None
    history.checked[_NAME] = 1
    length = parse_header(history.sent[end]).length if end >= 0 else 0
    if metadata.length == length:
        return None
    return f"closed at {end} with length {metadata.length}, its entries have {length} bytes"
