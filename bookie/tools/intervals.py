"""Sets of entries per ledger, small where entries follow each other, as they mostly do."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable


class EntrySets:
    """Entries of many ledgers."""

    def __init__(self) -> None:
        self._runs: dict[int, list[list[int]]] = {}

    def add(self, ledger_id: int, entries: "array[int] | Iterable[int]") -> None:
        runs = self._runs.setdefault(ledger_id, [])
        for entry_id in entries:
            at = bisect_right(runs, [entry_id, entry_id]) - 1
            if at >= 0 and entry_id <= runs[at][1] + 1:
                runs[at][1] = max(runs[at][1], entry_id)
            elif not (at + 1 < len(runs) and runs[at + 1][0] == entry_id):
                runs.insert(at + 1, [entry_id, entry_id])

    def has(self, ledger_id: int, entry_id: int) -> bool:
        runs = self._runs.get(ledger_id, [])
        at = bisect_right(runs, [entry_id, 1 << 62]) - 1
        return at >= 0 and entry_id <= runs[at][1]

    def ledgers(self) -> list[int]:
        return sorted(self._runs)
