"""The holdings of a bookie of its ledgers, in memory and on disk, under one lock.

Invariants:
    an add checks the fence and enters the memtable in one turn under the lock (rules 30, 31)
    an entry is in memory until the index that names it is published; who looks at both
        sees the state of one moment, so misses nothing in between (rule 58)
    after `failure` is set every call raises it (rule 60)

Entries are read ahead of those who read a ledger from the disk one range after the other: a read
that begins where the last one of its ledger ended is made larger, and what it finds beyond what was
asked for is kept in the `ReadCache` for the reads that follow. A stretch is worth something only as
long as the ledger's header is the very same object: every flush of the ledger makes a new one, so
an entry that was repaired meanwhile is never denied (rule 58). Not more than *bytes_max* are kept,
the longest unused go first.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from bookie.disk.port import Directories
from bookie.entrylog.reader import Stored
from bookie.errors import IndexDamaged, StorageFailed
from bookie.index.format import LedgerHeader
from bookie.pieces import FoundPieces, limit
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledger_table import LedgerRecord, LedgerTable
from bookie.storage.memtable import Memory
from ledger.errors import HandleClosed

_FOLLOWED_MAX: Final = 4096
"""Ledgers for which the end of the last read is remembered."""
_ATTEMPTS_MAX: Final = 1000
"""Each is undone only by a checkpoint that ends meanwhile."""
_Outcome = TypeVar("_Outcome")
_Damaged = TypeVar("_Damaged")


@dataclass(frozen=True, slots=True)
class _Stretch:
    header: LedgerHeader
    first: int
    found: FoundPieces
    size_bytes: int


class ReadCache:
    """Safe to be used from any thread."""

    def __init__(self, *, bytes_max: int, ahead_bytes: int) -> None:
        self._bytes_max = bytes_max
        self._ahead_bytes = ahead_bytes
        self._lock = threading.Lock()
        self._stretches: OrderedDict[int, _Stretch] = OrderedDict()
        self._ends: OrderedDict[int, int] = OrderedDict()
        self.size_bytes = 0
        self.hits = self.misses = 0
        """Reads that were answered without the disk, and those that were not."""

    def wanted_bytes(self, ledger_id: int, first: int, bytes_max: int) -> int:
        """Return how much to read from disk for a read that asks for *bytes_max*."""
        with self._lock:
            follows = self._ends.get(ledger_id) == first - 1
        return max(bytes_max, self._ahead_bytes) if follows and self._bytes_max else bytes_max

    def find(
        self, header: LedgerHeader, first: int, last: int, bytes_max: int
    ) -> FoundPieces | None:
        """Return what the disk has of first..last, as `EntryLogReader.find` would, if *first* is
        in what is kept; its `considered` may end before *last*."""
        with self._lock:
            stretch = self._stretches.get(header.ledger_id)
            if (
                stretch is None
                or stretch.header is not header
                or not stretch.first <= first <= stretch.found.considered
            ):
                return None
            self._stretches.move_to_end(header.ledger_id)
            self.hits += 1
        pieces = [
            part
            for piece in stretch.found.pieces
            if (part := piece.between(first, last)) is not None
        ]
        found = limit(pieces, min(last, stretch.found.considered), bytes_max)
        self._follow(header.ledger_id, found.considered)
        return found

    def put(
        self, header: LedgerHeader, first: int, found: FoundPieces, bytes_max: int
    ) -> FoundPieces:
        """Keep what was read from *first* on; return the part that was asked for."""
        self.misses += 1
        asked = limit(found.pieces, found.considered, bytes_max)
        self._follow(header.ledger_id, asked.considered)
        if asked.considered < found.considered:
            size_bytes = sum(piece.size_bytes for piece in found.pieces)
            with self._lock:
                self._drop(header.ledger_id)
                self._stretches[header.ledger_id] = _Stretch(header, first, found, size_bytes)
                self.size_bytes += size_bytes
                while self.size_bytes > self._bytes_max:
                    self._drop(next(iter(self._stretches)))
        return asked

    def _drop(self, ledger_id: int) -> None:
        stretch = self._stretches.pop(ledger_id, None)
        if stretch is not None:
            self.size_bytes -= stretch.size_bytes

    def _follow(self, ledger_id: int, end: int) -> None:
        with self._lock:
            self._ends[ledger_id] = end
            self._ends.move_to_end(ledger_id)
            if len(self._ends) > _FOLLOWED_MAX:
                self._ends.popitem(last=False)


class StorageState:
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
        """Counts checkpoints, deletions and evictions: what was read from disk before may be out
        of date."""
        self._offers = 0
        self._offered: dict[int, int] = {}
        """Ledgers that may be evicted, by the number of the offer."""
        self.damaged_reads = 0
        """Reads that met an entry which the disk did not give whole."""
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
                with self.lock:
                    if generation == self.generation:
                        return damaged
                continue  # it may be that it was evicted just now
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

    def is_fenced(self, ledger_id: int) -> bool:
        """Whether a ledger that is not here was, and was evicted: no writer adds to it any more."""
        return ledger_id in self.directory_of(ledger_id).fences

    def was_let_go(self, ledger_id: int) -> bool:
        """Whether what was here of the ledger was deleted or evicted once, as far as is known."""
        return self.is_deleted(ledger_id) or self.is_fenced(ledger_id)

    def create(self, ledger_id: int, key: bytes) -> LedgerRecord:
        """Return the record of a ledger that is not here, made under the lock. One that was
        evicted is fenced, and the fence is durable."""
        return self.ledgers.create(ledger_id, key, fenced=self.is_fenced(ledger_id))

    def is_gone(self, ledger_id: int) -> bool:
        """Whether the ledger was deleted, or evicted and not brought back."""
        with self.lock:
            return self.is_deleted(ledger_id) or not self.ledgers.is_known(ledger_id)

    # Evictions; all of it under the lock.

    def offer(self, ledger_ids: Iterable[int]) -> int:
        """Let these ledgers be evicted, unless something is promised of them before that happens;
        return the number of the offer. An earlier one is over."""
        self._offers += 1
        self._offered = dict.fromkeys(ledger_ids, self._offers)
        for ledger_id in self._offered:
            self.ledgers.ordinary.pop(ledger_id, None)
        return self._offers

    def promise(self, ledger_id: int) -> None:
        """Take note that something is promised of the ledger: it is not to be evicted."""
        self._offered.pop(ledger_id, None)

    def is_offered(self, ledger_id: int) -> bool:
        """Whether the ledger may be evicted as soon as it is on disk."""
        return ledger_id in self._offered

    def may_be_evicted(self, ledger_id: int, offer: int) -> bool:
        """Whether nothing was promised of the ledger since the *offer*, and nothing of what was
        before it is on its way to the disk."""
        return self._offered.get(ledger_id) == offer and self.ledgers.is_on_disk(ledger_id)

    def fail(self, failure: StorageFailed) -> None:
        """Let every call raise *failure* from now on."""
        self.failure = failure
        self.nothing_is_ordinary()

    def nothing_is_ordinary(self) -> None:
        """Look again at everything that may be against an add: some of it has changed. Call it
        after the change, without the lock."""
        with self.lock:
            self.ledgers.ordinary.clear()

    def check(self) -> None:
        """Raises `StorageFailed`, `HandleClosed`."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise HandleClosed("the storage")
