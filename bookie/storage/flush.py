"""Moves a memtable to the disk, each ledger to the directory that it belongs to."""

from collections.abc import Sequence
from dataclasses import replace

from bookie.disk.directories import Directories
from bookie.index.format import LedgerHeader
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledger_table import LedgerRecord
from bookie.storage.memtable import Memtable


def header_of(record: LedgerRecord) -> LedgerHeader:
    """Return what the index file of a ledger is to say now, its entries apart."""
    return replace(record.stored, fenced=record.fenced, lac_proof=record.lac_proof)


class Flush:
    """Everything that was in memory at one moment, on its way to the disk.

    `run` may be repeated after `DiskFull`; directories that are done are not written again."""

    def __init__(
        self,
        memtable: Memtable,
        headers: Sequence[LedgerHeader],
        directories: Directories,
        ledger_directories: Sequence[LedgerDirectory],
    ) -> None:
        """*headers* name at least the ledgers of *memtable*, in order of their ids."""
        self._memtable = memtable
        self.size_bytes = memtable.size_bytes
        self._left: list[tuple[LedgerDirectory, list[LedgerHeader]]] = []
        for at, directory in enumerate(ledger_directories):
            own = [h for h in headers if directories.ledger_directory_of(h.ledger_id) == at]
            if own:
                self._left.append((directory, own))
        self.stored: list[LedgerHeader] = []
        """The headers as they are on disk."""

    def run(self) -> None:
        """Raises `DiskFull`; `OSError` and `FileDamaged` if a directory failed."""
        while self._left:
            directory, headers = self._left[0]
            self.stored += directory.flush(headers, self._memtable)
            del self._left[0]

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Leave out ledgers that were deleted meanwhile (#1757)."""
        gone = dict.fromkeys(ledger_ids)
        for at, (directory, headers) in enumerate(self._left):
            self._left[at] = directory, [h for h in headers if h.ledger_id not in gone]
        self.stored = [h for h in self.stored if h.ledger_id not in gone]
