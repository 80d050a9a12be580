"""Moves what is in memory to the disk, and forgets what was deleted or evicted.

`Flush` moves one memtable, each ledger to the directory that it belongs to. Invariants of the rest:
    the marks move forward only, after all before them was synced and counted (rules 65, 66)
    what a checkpoint has begun is finished before the next one begins, however often it is tried
    nothing that was deleted is written again (#1757)
    what is evicted is gone for good, and a start misses nothing, before its entries are collected;
        a crash before leaves all of it or nothing
Calls wait for each other; `troubles` may be read at any time.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie.disk.port import Directories, DiskFull
from bookie.errors import FileDamaged, StorageFailed
from bookie.index.format import LedgerHeader
from bookie.journal.format import JournalMark
from bookie.journal.journals import Journals
from bookie.loss.census import Accounts
from bookie.storage.holdings import StorageState
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledger_table import LedgerRecord
from bookie.storage.memtable import Memtable
from ledger.metering.declaration import SECONDS, Buckets

_PUBLISHED_MAX: Final = 100
"""Ledgers in one turn under the lock."""


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


@dataclass(slots=True)
class _Checkpoint:
    """One that is under way, or is to be tried again when there is space."""

    marks: tuple[JournalMark, ...]
    flush: Flush


class Checkpointer:
    """See the module's docstring."""

    def __init__(
        self,
        holdings: StorageState,
        journals: Journals,
        accounts: Accounts,
        marks: tuple[JournalMark, ...],
    ) -> None:
        """*marks*: where the next start would begin to replay each journal."""
        self._holdings = holdings
        self._accounts = accounts
        self._journals = journals
        self._one = threading.Lock()
        self._begun: _Checkpoint | None = None
        self._marks = marks
        is_flushed = not holdings.ledgers.is_dirty
        self._no_space = "" if is_flushed else "the start found no space for what is in the journal"
        self._frozen: StorageFailed | None = None
        self.seconds = Buckets(SECONDS)
        """How long each checkpoint took that had something to do."""
        self.written_bytes = 0
        """That checkpoints moved to entry logs, as they were counted in memory."""

    @property
    def marks(self) -> tuple[JournalMark, ...]:
        """Where the next start would begin to replay each journal."""
        return self._marks

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why not much more can be taken into memory."""
        frozen = "" if self._frozen is None else str(self._frozen)
        return tuple(trouble for trouble in (self._no_space, frozen) if trouble)

    def checkpoint(self) -> None:
        """Move what is in memory to entry logs and index, and the marks behind it (rule 65).

        If a disk is full, it is done again by the next call. Once one of several ledger
        directories has failed, nothing is done any more. Raises `StorageFailed`; then the
        process has to end."""
        with self._one:
            self._holdings.check()
            if self._frozen is not None:
                return
            try:
                self._checkpoint_with_space()
            except DiskFull as error:
                self._no_space = f"a checkpoint found no space: {error}"
                self._holdings.nothing_is_ordinary()
            except (OSError, FileDamaged) as error:
                self._fail("a checkpoint", error)
            else:
                self._no_space = ""

    def delete(self, ledger_ids: Sequence[int]) -> None:
        """Forget ledgers that were deleted from the cluster, for good: whatever is asked of them
        from now on is answered with "no such ledger" (rule 70). Those not here are left out.
        Once one of several ledger directories has failed, nothing is done any more.

        Raises `DiskFull`, if a disk is too full to remember it, and `StorageFailed`."""
        with self._one:
            self._holdings.check()
            with self._holdings.lock:
                here = [one for one in ledger_ids if self._holdings.ledgers.is_known(one)]
            if self._frozen is not None or not here:
                return
            try:
                self._delete(here)
            except DiskFull:
                raise
            except (OSError, FileDamaged) as error:
                self._fail("the deletion of ledgers", error)

    def offer(self, ledger_ids: Sequence[int]) -> int:
        """Let ledgers be evicted unless something is promised of them from now on; return the
        number of the offer."""
        with self._holdings.lock:
            self._holdings.check()
            return self._holdings.offer(ledger_ids)

    def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        """Forget ledgers of an *offer* that are not this bookie's to hold any more, but may be
        again: nothing is remembered of them, and the next add makes them as if for the first time
        (#4668). Left out is what something was promised of since the offer. Once one of several
        ledger directories has failed, nothing is done any more.

        Raises `DiskFull`, and `StorageFailed`; it may be that some are gone."""
        with self._one:
            self._holdings.check()
            if self._frozen is not None:
                return
            try:
                for directory, own in self._by_directory(ledger_ids):
                    self._evict(directory, own, offer)
            except DiskFull:
                raise
            except (OSError, FileDamaged) as error:
                self._fail("the eviction of ledgers", error)

    def _checkpoint_with_space(self) -> None:
        self._journals.trim_spares()
        try:
            self._checkpoint()
        except DiskFull:
            if not self._journals.give_up_spares():
                raise
            self._checkpoint()

    def _checkpoint(self) -> None:
        began = time.perf_counter()
        begun = self._begun or self._begin()
        if begun is None:
            for directory in self._holdings.ledger_directories:
                directory.put_in_place()
            return
        begun.flush.run()
        rolls = [directory.rolls for directory in self._holdings.ledger_directories]
        self._accounts.count(rolls, self._journals.positions(), self._journals.sizes())
        self._publish(begun.flush.stored)
        assert all(map(JournalMark.__ge__, begun.marks, self._marks)), "marks move forward only"
        self._journals.advance(begun.marks)
        self._marks = begun.marks
        self.written_bytes += begun.flush.size_bytes
        self.seconds.observe(time.perf_counter() - began)

    def _begin(self) -> _Checkpoint | None:
        """Take what is in memory; None if there is nothing to do."""
        # Everything in a journal before this place was put into the memtable before it was
        # queued, so into the one that is taken now or an earlier one.
        marks = self._journals.positions()
        rolled = [mark.journal_id for mark in marks] != [mark.journal_id for mark in self._marks]
        holdings = self._holdings
        recent = holdings.memory.recent  # freeing it takes long, and is not done under the lock
        with holdings.lock:
            if not holdings.ledgers.is_dirty and not rolled:
                return None
            holdings.ledgers.begin_flush()
            memtable = holdings.memory.begin_flush()
        del recent
        # A header may be newer than the memtable by now: a fence or a LAC more is true as well,
        # and its record is dirty again.
        headers = [header_of(record) for record in holdings.ledgers.flushing()]
        memtable.set_floors(headers)
        flush = Flush(memtable, headers, holdings.directories, holdings.ledger_directories)
        self._begun = _Checkpoint(marks, flush)
        return self._begun

    def _publish(self, stored: Sequence[LedgerHeader]) -> None:
        """Let everybody see what is on disk now, some ledgers at a time: adds wait for the lock.

        Until the end all entries are in memory, too. What was looked up on disk before, or
        between, is out of date."""
        holdings = self._holdings
        for first in range(0, len(stored), _PUBLISHED_MAX):
            with holdings.lock:
                holdings.generation += 1
                holdings.ledgers.written(stored[first : first + _PUBLISHED_MAX])
        with holdings.lock:
            holdings.ledgers.end_flush()
            holdings.memory.end_flush()
            holdings.generation += 1
            self._begun = None

    def _delete(self, ledger_ids: Sequence[int]) -> None:
        holdings = self._holdings
        by_directory = self._by_directory(ledger_ids)
        for directory, own in by_directory:
            directory.bury(own)
        with holdings.lock:
            for ledger_id in ledger_ids:
                holdings.ledgers.remove(ledger_id)
                holdings.memory.remove(ledger_id)
            if self._begun is not None:
                self._begun.flush.forget(ledger_ids)
            holdings.generation += 1
        for directory, own in by_directory:
            directory.remove(own)

    def _evict(self, directory: LedgerDirectory, ledger_ids: Sequence[int], offer: int) -> None:
        """A flush of what is brought back comes after the removal, as both hold `_one`."""
        holdings = self._holdings

        def forget(chosen: Sequence[int]) -> list[int]:
            with holdings.lock:
                gone = [one for one in chosen if holdings.may_be_evicted(one, offer)]
                for ledger_id in gone:
                    holdings.ledgers.remove(ledger_id)
                    holdings.memory.remove(ledger_id)
                holdings.generation += 1
                return gone

        with holdings.lock:
            chosen = [one for one in ledger_ids if holdings.may_be_evicted(one, offer)]
        if chosen:
            directory.evict(chosen, forget)

    def _by_directory(self, ledger_ids: Sequence[int]) -> list[tuple[LedgerDirectory, list[int]]]:
        holdings = self._holdings
        return [
            (directory, own)
            for directory in holdings.ledger_directories
            if (own := [one for one in ledger_ids if holdings.directory_of(one) is directory])
        ]

    def _fail(self, what: str, error: OSError | FileDamaged) -> None:
        """Take note that the disk failed. Raises `StorageFailed`, unless there are ledger
        directories left that did not."""
        failure = StorageFailed(what, str(error))
        failed = [directory.failure is not None for directory in self._holdings.ledger_directories]
        if not any(failed) or all(failed):
            self._holdings.fail(failure)
            raise failure from error
        self._frozen = failure
        self._holdings.nothing_is_ordinary()
