"""One ledger directory: the entry logs and the index of the ledgers that belong to it.

Invariants:
    `lock` is held by what writes entry logs' places into the index: a flush, a deletion or
        a compaction, one at a time
    an index never points to bytes that are not synced (rule 67), nor into a file whose name is not
    after each flush the roll says what of the redo file is needed, and how far the entry logs are,
        before a mark moves
    an entry log is not in the roll any more before it is removed
    after a write or a sync failed, the directory is never written again, only read (rule 60)
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import urandom
from typing import Final

from bookie.disk.port import Directories, Disk, DiskFull
from bookie.entrylog import format as entrylog_format
from bookie.entrylog.ledger_map import read_map
from bookie.entrylog.reader import EntryLogReader
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import FileDamaged, IndexDamaged
from bookie.index import format as index_format
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import LedgerIndex
from bookie.index.tombstones import FENCES_PATH, Tombstones
from bookie.index.tombstones import PATH as TOMBSTONES_PATH
from bookie.loss.census import LOGS_PATH, Needed, Roll, Rolls
from bookie.storage.config import ENTRY_LOG_BYTES_MAX, StorageConfig
from bookie.storage.memtable import Memtable

DIRECTORIES: Final = (entrylog_format.DIRECTORY, index_format.DIRECTORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDirectoryConfig:
    entry_log_bytes_max: int
    index_cache_bytes: int
    files_open_max: int
    in_place_ledgers: int
    redo_bytes_max: int
    redo_blocks_max: int


@dataclass(frozen=True, slots=True)
class RecoveredLogs:
    """What a start found in one ledger directory."""

    here: list[int]
    """Ledgers with an index file."""
    missing: list[int]
    """Ledgers that had one."""
    problem: str
    """Why *missing* may not be all; "" for no reason."""


class LedgerDirectory:
    """See the module's docstring."""

    def __init__(
        self,
        disk: Disk,
        config: LedgerDirectoryConfig,
        *,
        owns: Callable[[int], bool] = lambda _ledger_id: True,
        entropy: Callable[[int], bytes] = urandom,
    ) -> None:
        """*owns* says of any ledger whether it belongs here."""
        for directory in DIRECTORIES:
            disk.make_directory(directory)
        disk.sync_directory("")
        for directory in DIRECTORIES:  # a killed process may have renamed without syncing
            disk.sync_directory(directory)
        self.disk = disk
        self.owns = owns
        self._config = config
        self._entropy = entropy
        self.is_hurried = False
        """Whether what can be left to the next start is left to it; set by any thread."""
        self.lock = threading.Lock()
        self.failure: OSError | FileDamaged | None = None
        """Why it is only read from, if so."""
        self.roll = Roll(disk)
        self.index = LedgerIndex(
            disk,
            cache_bytes=config.index_cache_bytes,
            files_max=config.files_open_max,
            counted=lambda ledger_id: self.roll.editions.get(ledger_id, 0),
        )
        self.tombstones = Tombstones.load(disk)
        self._problem = ""
        """Why fences of evicted ledgers may be forgotten, or entry logs be gone, if so."""
        self.fences = self._load_fences()
        self.log_roll = Roll(disk, LOGS_PATH)
        self.evicted: dict[int, None] = {}
        """Ledgers that were evicted since a collection listed the logs; under `lock`."""
        self.logs = EntryLogWriter(disk, log_bytes_max=config.entry_log_bytes_max)
        self.reader = EntryLogReader(disk, self.index, files_max=config.files_open_max)

    @property
    def rolls(self) -> Rolls:
        """How far its rolls have come, durably."""
        return Rolls(self.roll.place, self.log_roll.place)

    def recover(self, counted: Rolls) -> RecoveredLogs:
        """Finish what a crash may have interrupted; return the ledgers that are here, and what
        should be here. *counted*: how far the rolls had come at the last census. They stay as they
        were, until `begin`."""
        problem = self.roll.load(counted.index)
        if not problem:
            self._check_counted()
        log_problem = self.log_roll.load(counted.logs)
        self._problem = self._problem or log_problem
        found = self.index.recover(self.roll.needed.redo)
        deleted = [ledger_id for ledger_id in found if ledger_id in self.tombstones]
        if deleted:
            self.index.remove(deleted)
        here = [ledger_id for ledger_id in found if ledger_id not in self.tombstones]
        missing = [
            ledger_id
            for ledger_id in self.roll.editions.keys() - dict.fromkeys(here).keys()
            if ledger_id not in self.tombstones
        ]
        return RecoveredLogs(here, sorted(missing), problem or self._problem)

    def begin(self, recovered: RecoveredLogs) -> None:
        """Let the roll say what is here, before anything is added to it.

        Rewritten in any case: what was read of it may be in the system's memory only."""
        for stones in (self.tombstones, self.fences):
            if stones and not stones.edition.number:  # of a version that did not count them
                stones.write()
        if self._problem:
            self.fences.write()
        if recovered.problem or not self.log_roll.place.batch:
            self.log_roll.logs |= self._logs_here()
        if self.log_roll.logs or self.log_roll.place.batch:
            self.log_roll.write()
        if recovered.here or self.roll.place.batch:
            counted = self.roll.editions
            editions = dict.fromkeys(recovered.here, 0)
            for ledger_id in recovered.here:
                if ledger_id in counted:
                    editions[ledger_id] = counted[ledger_id]
                elif not recovered.problem:
                    editions[ledger_id] = self._edition_of(ledger_id)
            self.roll.write(editions, self._needed())
            self._count_stones()

    def flush(self, headers: Iterable[LedgerHeader], memtable: Memtable) -> list[LedgerHeader]:
        """Write all *headers* and what *memtable* has of their ledgers; all is durable then.

        Entry logs first, synced, then the index (rules 65, 67). Returns the headers as they are
        on disk. Raises `DiskFull`, after which it may be done again, and `OSError` and
        `FileDamaged`, now and ever after."""
        with self.lock:
            try:
                with self._writing():
                    return self._flush(headers, memtable)
            except DiskFull:
                self.logs.abandon()
                raise

    def put_in_place(self) -> None:
        """Go on with what flushes have left for later. Raises as `flush` does, but for
        `DiskFull`."""
        if self.index.redo:
            with self.lock, self._writing(), suppress(DiskFull):
                self._put_in_place()

    def bury(self, ledger_ids: Sequence[int]) -> None:
        """Remember, durably, that these ledgers were deleted. Raises as `flush` does."""
        with self.lock, self._writing():
            self.tombstones.add(ledger_ids)
            with suppress(DiskFull):  # the next start finds them among the tombstones
                self._count(removed=ledger_ids)

    def remove(self, ledger_ids: Sequence[int]) -> None:
        """Remove the index of ledgers that are buried; the entries stay in the entry logs until
        those are collected. Raises as `flush` does."""
        with self.lock, self._writing():
            self.index.remove(ledger_ids)

    def evict(
        self, ledger_ids: Sequence[int], forget: Callable[[Sequence[int]], Sequence[int]]
    ) -> None:
        """Let go of these ledgers: fence them for ever, strike them off the roll, and remove the
        index of those that *forget* takes out of memory then, and returns.

        Each step is durable before the next, so a start finds no less than the roll says. The
        removal is, too, before anything of them is collected: no tombstone keeps an index away that
        a crash brings back. Raises as `flush` does; `DiskFull` comes before *forget* is called."""
        with self.lock, self._writing():
            self.fences.add(ledger_ids)
            self.index.settle(ledger_ids)
            editions = self.roll.editions
            counted = {one: editions[one] for one in ledger_ids if one in editions}
            self._count(removed=ledger_ids)
            gone = dict.fromkeys(forget(ledger_ids))
            for ledger_id, edition in counted.items():
                if ledger_id not in gone:  # the next flush counts it again
                    self.index.written.setdefault(ledger_id, edition)
            self.index.remove(gone)
            self.index.sync_names(gone)
            self.evicted.update(dict.fromkeys(gone))

    def count_logs(self, logs: Mapping[int, int]) -> None:
        """Let the roll say, durably, how far these entry logs are; 0: not there any more.

        Requires `lock`. Raises `OSError`."""
        self.log_roll.append(logs=logs)

    def close(self) -> None:
        self.logs.close(finish=self.failure is None)
        self.reader.close()
        self.index.close()

    def _load_fences(self) -> Tombstones:
        """A damaged file is a loss, and no reason to refuse: in limbo no ledger that was there
        before takes a writer's add."""
        try:
            return Tombstones.load(self.disk, path=FENCES_PATH)
        except IndexDamaged as damage:
            self._problem = f"{damage.path} is damaged: {damage.reason}"
            return Tombstones.none(self.disk, path=FENCES_PATH)

    def _check_counted(self) -> None:
        """Compare tombstones and fences with what the roll says of them. Raises `IndexDamaged`."""
        needed = self.roll.needed
        difference = self.tombstones.difference(needed.tombstones)
        if difference:
            raise IndexDamaged(self.disk.describe(TOMBSTONES_PATH), 0, difference)
        self.tombstones.count(needed.tombstones)
        self._problem = self._problem or self.fences.difference(needed.fences)
        self.fences.count(needed.fences)

    def _needed(self) -> Needed:
        return Needed(self.index.redo.place, self.tombstones.edition, self.fences.edition)

    def _count(
        self, written: Mapping[int, int] | None = None, *, removed: Iterable[int] = ()
    ) -> None:
        self.roll.append(written, self._needed(), removed=removed)
        self._count_stones()

    def _edition_of(self, ledger_id: int) -> int:
        """Return the edition of an index that is not in the roll, as a crash kept it from there or
        interrupted an eviction."""
        try:
            return self.index.load(ledger_id).edition
        except IndexDamaged:
            return 0

    def _count_stones(self) -> None:
        self.tombstones.count(self.tombstones.edition)
        self.fences.count(self.fences.edition)

    def _logs_here(self) -> dict[int, int]:
        """Return the entry logs that are there, and where the frames of each end; of one without a
        map, which a crash may have torn, only that it is there."""
        ends: dict[int, int] = {}
        for log_id in entrylog_format.logs_of(self.disk.list(entrylog_format.DIRECTORY)):
            file = self.disk.open(entrylog_format.path_of(log_id))
            try:
                ledger_map = read_map(file, log_id)
            finally:
                file.close()
            no_map = entrylog_format.HEADER_BYTES
            ends[log_id] = no_map if ledger_map is None else ledger_map.frames_end
        return ends

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self.failure is not None:
            raise self.failure
        try:
            yield
        except DiskFull:
            raise
        except (OSError, FileDamaged) as error:
            self.failure = error
            raise

    def _flush(self, headers: Iterable[LedgerHeader], memtable: Memtable) -> list[LedgerHeader]:
        self.index.edition = index_format.new_edition(self._entropy)
        placed = []
        for header in headers:
            entries = memtable.ledger(header.ledger_id)
            pieces = entries.pieces() if entries else []
            placed.append((header, pieces, self.logs.write(pieces)))
        self.logs.sync()
        stored = [self.index.put(header, pieces, places) for header, pieces, places in placed]
        self.index.flush()
        self._put_in_place()
        if stored:
            if self.logs.ends:
                self.log_roll.append(logs=self.logs.ends)
            self._count(self.index.written)
            self.index.written.clear()
        return stored

    def _put_in_place(self) -> None:
        """Write some of what the redo file has to index files; all, when that is too much. Raises
        `DiskFull` only then."""
        redo, config = self.index.redo, self._config
        is_much = redo.size_bytes > config.redo_bytes_max or redo.blocks > config.redo_blocks_max
        if is_much and not self.is_hurried:
            self.index.put_in_place(is_over=lambda: self.is_hurried)
        else:
            with suppress(DiskFull):
                self.index.put_in_place(config.in_place_ledgers)


def open_ledger_directories(
    directories: Directories,
    config: StorageConfig,
    *,
    entropy: Callable[[int], bytes] = urandom,
) -> list[LedgerDirectory]:
    """Share caches and files out among all of them."""
    count = len(directories.ledgers)
    each = LedgerDirectoryConfig(
        entry_log_bytes_max=config.entry_log_bytes_max or ENTRY_LOG_BYTES_MAX,
        index_cache_bytes=config.index_cache_bytes // count,
        files_open_max=max(1, config.files_open_max // count),
        in_place_ledgers=config.index_in_place_ledgers,
        redo_bytes_max=config.index_redo_bytes_max // count,
        redo_blocks_max=config.index_redo_blocks_max // count,
    )

    def owner(at: int) -> Callable[[int], bool]:
        return lambda ledger_id: directories.ledger_directory_of(ledger_id) == at

    return [
        LedgerDirectory(disk, each, owns=owner(at), entropy=entropy)
        for at, disk in enumerate(directories.ledgers)
    ]
