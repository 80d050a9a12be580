"""Moves what is in memory to the disk, and forgets what was deleted.

Invariants:
    the marks move forward only, and only after all before them was synced (65, 66)
    what a checkpoint has begun is finished before the next one begins, however often it is tried
    nothing that was deleted is written again (#1757)
One call at a time; `troubles` and `generation` may be read at any time.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from bookie.directories import Directories
from bookie.disk import DiskFull
from bookie.errors import FileDamaged, StorageFailed
from bookie.flush import Flush, header_of
from bookie.journal.format import Mark
from bookie.journal.journals import Journals
from bookie.ledger_directory import LedgerDirectory
from bookie.ledgers import LedgerTable
from bookie.memory import Memory


@dataclass(slots=True)
class _Checkpoint:
    """One that is under way, or is to be tried again when there is space."""

    marks: tuple[Mark, ...]
    flush: Flush


class Keeper:
    """See the module's docstring. Shares *ledgers* and *memory* under *lock*."""

    def __init__(
        self,
        directories: Directories,
        ledger_directories: Sequence[LedgerDirectory],
        journals: Journals,
        ledgers: LedgerTable,
        memory: Memory,
        lock: threading.Lock,
    ) -> None:
        self._directories = directories
        self._ledger_directories = ledger_directories
        self._journals = journals
        self._ledgers = ledgers
        self._memory = memory
        self._lock = lock
        self._one = threading.Lock()
        self._begun: _Checkpoint | None = None
        self._marks = journals.positions()
        self._no_space = ""
        self._frozen: StorageFailed | None = None
        self.generation = 0
        """Counts checkpoints and deletions: what was read from disk before may be out of date."""
        self.failure: StorageFailed | None = None
        """Set once the disk is not to be trusted any more."""

    @property
    def marks(self) -> tuple[Mark, ...]:
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
            self._check()
            if self._frozen is not None:
                return
            try:
                self._checkpoint()
            except DiskFull as error:
                self._no_space = f"a checkpoint found no space: {error}"
            except (OSError, FileDamaged) as error:
                self._fail("a checkpoint", error)
            else:
                self._no_space = ""

    def delete(self, ledger_ids: Sequence[int]) -> None:
        """Forget ledgers that were deleted from the cluster, for good: whatever is asked of them
        from now on is answered with "no such ledger" (70). Those that are not here are left out.

        Raises `DiskFull`, if a disk is too full to remember it, and `StorageFailed`."""
        with self._one:
            self._check()
            with self._lock:
                here = [one for one in ledger_ids if self._ledgers.is_known(one)]
            if self._frozen is not None or not here:
                return
            try:
                self._delete(here)
            except DiskFull:
                raise
            except (OSError, FileDamaged) as error:
                self._fail("the deletion of ledgers", error)

    def _checkpoint(self) -> None:
        begun = self._begun or self._begin()
        if begun is None:
            return
        begun.flush.run()
        with self._lock:
            self._ledgers.end_flush(begun.flush.stored)
            self._memory.end_flush()
            self.generation += 1
            self._begun = None
        assert all(map(Mark.__ge__, begun.marks, self._marks)), "marks move forward only"
        self._journals.advance(begun.marks)
        self._marks = begun.marks

    def _begin(self) -> _Checkpoint | None:
        """Take what is in memory; None if there is nothing to do."""
        # Everything in a journal before this place was put into the memtable before it was
        # queued, so into the one that is taken now or an earlier one.
        marks = self._journals.positions()
        rolled = [mark.journal_id for mark in marks] != [mark.journal_id for mark in self._marks]
        with self._lock:
            if not self._ledgers.is_dirty and not rolled:
                return None
            headers = [header_of(record) for record in self._ledgers.begin_flush()]
            memtable = self._memory.begin_flush(headers)
            flush = Flush(memtable, headers, self._directories, self._ledger_directories)
            self._begun = _Checkpoint(marks, flush)
        return self._begun

    def _delete(self, ledger_ids: Sequence[int]) -> None:
        by_directory = [
            (directory, own)
            for at, directory in enumerate(self._ledger_directories)
            if (own := [i for i in ledger_ids if self._directories.ledger_directory_of(i) == at])
        ]
        for directory, own in by_directory:
            directory.bury(own)
        with self._lock:
            for ledger_id in ledger_ids:
                self._ledgers.remove(ledger_id)
                self._memory.remove(ledger_id)
            if self._begun is not None:
                self._begun.flush.forget(ledger_ids)
            self.generation += 1
        for directory, own in by_directory:
            directory.remove(own)

    def _fail(self, what: str, error: OSError | FileDamaged) -> None:
        """Take note that the disk failed. Raises `StorageFailed`, unless there are ledger
        directories left that did not."""
        failure = StorageFailed(what, str(error))
        failed = [directory.failure is not None for directory in self._ledger_directories]
        if not any(failed) or all(failed):
            self.failure = failure
            raise failure from error
        self._frozen = failure

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
