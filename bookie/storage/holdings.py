"""What a bookie holds of its ledgers, in memory and on disk, under one lock.

Invariants:
    an add checks the fence and enters the memtable in one turn under the lock (rules 30, 31)
    an entry is in memory until the index that names it is published; who looks at both
        sees the state of one moment, so misses nothing in between (rule 58)
    after `failure` is set every call raises it (rule 60)
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from bookie.disk.directories import Directories
from bookie.entrylog.reader import Stored
from bookie.errors import IndexDamaged, StorageFailed
from bookie.index.format import LedgerHeader
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledger_table import LedgerRecord, LedgerTable
from bookie.storage.memtables import Memory
from bookie.storage.read_cache import ReadCache
from ledger.errors import HandleClosed

_ATTEMPTS_MAX: Final = 1000
"""Each is undone only by a checkpoint that ends meanwhile."""

_Outcome = TypeVar("_Outcome")
_Damaged = TypeVar("_Damaged")


class Holdings:
    """See the module's docstring. `ledgers`, `memory` and `generation` are changed and looked at
    under `lock` only."""

    def __init__(
        self,
        directories: Directories,
        ledger_directories: Sequence[LedgerDirectory],
        ledgers: LedgerTable,
        memory: Memory,
        read_cache: ReadCache,
    ) -> None:
        self.directories = directories
        self.ledger_directories = ledger_directories
        self.ledgers = ledgers
        self.memory = memory
        self.read_cache = read_cache
        self.lock = threading.Lock()
        self.generation = 0
        """Counts checkpoints and deletions: what was read from disk before may be out of date."""
        self.failure: StorageFailed | None = None
        """Why a journal or all ledger directories are not to be trusted any more."""
        self.closed = False

    def with_record(
        self,
        ledger_id: int,
        action: Callable[[LedgerRecord | None], _Outcome],
        damaged: _Damaged,
    ) -> _Outcome | _Damaged:
        """Return what *action* returns for the ledger's record, or for None if there is no such
        ledger; it runs under the lock. Return *damaged* if the record cannot be read.

        A record is read without the lock. It is taken only if no checkpoint has ended
        meanwhile: it could have written, and forgotten, a newer one."""
        for _ in range(_ATTEMPTS_MAX):
            with self.lock:
                self.check()
                record = self.ledgers.get(ledger_id)
                if record is not None or not self.ledgers.is_known(ledger_id):
                    return action(record)
                generation = self.generation
            try:
                stored = self.directory_of(ledger_id).index.load(ledger_id)
            except IndexDamaged:
                return damaged
            with self.lock:
                if generation == self.generation:
                    self.ledgers.adopt(stored)
        return damaged

    def directory_of(self, ledger_id: int) -> LedgerDirectory:
        return self.ledger_directories[self.directories.ledger_directory_of(ledger_id)]

    def find(self, stored: LedgerHeader, first: int, last: int, bytes_max: int) -> Stored:
        """Return what the disk has of the entries in first..last; takes no lock."""
        return self.directory_of(stored.ledger_id).reader.find(stored, first, last, bytes_max)

    def is_deleted(self, ledger_id: int) -> bool:
        """Whether the ledger was deleted from the cluster, as far as this bookie knows."""
        return ledger_id in self.directory_of(ledger_id).tombstones

    def check(self) -> None:
        """Raises `StorageFailed`, `HandleClosed`."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise HandleClosed("the storage")
