"""The storage engine of a bookie: journal, memtable, entry logs and index, held together.

Who may call what: `add`, `fence`, `set_lac`, `read_recent` and `lac` take short turns under
one lock and are meant for the event loop; `commit` is the journal thread's, `checkpoint` the
sync thread's, `read` any thread's. Nothing here starts a thread. The event loop meets the disk
in two rare cases: a ledger that was not used for long has its header read again, and an add
of an id below the ledger's highest is compared with what is stored under it.

Invariants:
    an add checks the fence and enters the memtable in one step under the lock (30, 31)
    whatever was answered is in a journal from the mark on, or in synced entry logs and index
    the mark moves forward only, and only after all before it was synced (65, 66)
    an entry is in memory until the index that names it is published; a reader looks at both
        in the state of one moment, so it misses nothing in between (58)
    after a failed write or sync every call raises (60)
"""

import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from os import urandom
from typing import Final, Self, TypeVar

from bookie.disk import Disk
from bookie.entrylog.reader import EntryLogReader, Stored
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import FileDamaged, IndexDamaged, StorageFailed
from bookie.flush import flush, header_of
from bookie.frames import Bad, Checked, check_frames
from bookie.index.format import ENTRY_ID_MAX, KEY_BYTES_MAX, LedgerHeader
from bookie.index.ledger_index import LedgerIndex
from bookie.journal.format import Kind, Record
from bookie.journal.writer import JournalWriter, write_mark
from bookie.ledgers import LedgerRecord, LedgerTable
from bookie.memtable import Memtable
from bookie.pieces import Found, limit, merge
from bookie.recovery import Recovery, make_directories
from ledger.entry import LAC_ENTRY
from ledger.errors import HandleClosed
from ledger.requests import AddRun, LacAnswer, ReadAnswer, ReadQuery, Status

RUN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Frames of one add; the largest journal record is little more."""
_ATTEMPTS_MAX: Final = 1000
"""Each is undone only by a checkpoint that ends meanwhile."""

_Outcome = TypeVar("_Outcome")
_Damaged = TypeVar("_Damaged")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    memtable_bytes_max: int = 128 * 1024 * 1024
    """Adds are refused while so much waits for a checkpoint; as much again during one."""
    recovery_reserve_bytes: int = 32 * 1024 * 1024
    """So much more is taken from recovery adds."""
    journal_file_bytes_max: int = 256 * 1024 * 1024
    journal_preallocate_bytes: int = 16 * 1024 * 1024
    entry_log_bytes_max: int = 1024 * 1024 * 1024
    index_cache_bytes: int = 32 * 1024 * 1024
    ledgers_in_memory_max: int = 20_000
    """Ledgers whose key and fence stay in memory after they were flushed."""
    files_open_max: int = 400
    """Of index files, and of entry logs."""

    def __post_init__(self) -> None:
        assert self.memtable_bytes_max > 0, "without a memtable no add can be taken"
        assert self.files_open_max > 0, "without open files nothing can be read"
        assert self.ledgers_in_memory_max > 0, "a ledger in use has to be in memory"


@dataclass(frozen=True, slots=True)
class _View:
    """What memory says about a ledger, at one moment."""

    found: Found
    stored: LedgerHeader
    lac_proof: bytes
    fenced: bool


@dataclass(frozen=True, slots=True)
class _Unvetted:
    """Some entries of an add may be on disk already: compare first, with *stored*."""

    stored: LedgerHeader
    generation: int


@dataclass(frozen=True, slots=True)
class _Vetted:
    """These entries of an add are on disk, byte for byte, as of *generation*."""

    present: dict[int, None]
    generation: int


class BookieStorage:
    """See the module's docstring; made by `open`."""

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        *,
        ledgers: LedgerTable,
        journal: JournalWriter,
        logs: EntryLogWriter,
        index: LedgerIndex,
    ) -> None:
        self._disk = disk
        self._config = config
        self._ledgers = ledgers
        self._journal = journal
        self._logs = logs
        self._index = index
        self._reader = EntryLogReader(disk, index, files_max=config.files_open_max)
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._active = Memtable()
        self._flushing: Memtable | None = None
        self._mark = journal.position
        self._generation = 0
        self._failure: StorageFailed | None = None
        self._closed = False

    @classmethod
    def open(
        cls, disk: Disk, config: StorageConfig, *, entropy: Callable[[int], bytes] = urandom
    ) -> Self:
        """Replay wholly, flush, and return a storage that may serve (rule 64).

        Raises `DirectoryInUse`, or a `FileDamaged` where something that was promised may be
        missing; then nothing was changed that matters."""
        disk.lock()
        try:
            make_directories(disk)
            index = LedgerIndex(
                disk, cache_bytes=config.index_cache_bytes, files_max=config.files_open_max
            )
            logs = EntryLogWriter(disk, log_bytes_max=config.entry_log_bytes_max)
            recovery = Recovery(
                disk=disk,
                index=index,
                logs=logs,
                memtable_bytes_max=config.memtable_bytes_max,
                ledgers_in_memory_max=config.ledgers_in_memory_max,
                preallocate_bytes=config.journal_preallocate_bytes,
                entropy=entropy,
            )
            ledgers, header = recovery.run()
            journal = JournalWriter(
                disk,
                header,
                file_bytes_max=config.journal_file_bytes_max,
                preallocate_bytes=config.journal_preallocate_bytes,
                entropy=entropy,
            )
            journal.remove_before(header.journal_id)
        except OSError as error:
            disk.unlock()
            raise StorageFailed("the start of the storage", str(error)) from error
        except FileDamaged:
            disk.unlock()
            raise
        return cls(disk, config, ledgers=ledgers, journal=journal, logs=logs, index=index)

    # Adding and fencing.

    def add(self, run: AddRun) -> tuple[Status, int]:
        """Take *run*; it may be acknowledged once the ticket returned is durable."""
        if len(run.frames) > RUN_BYTES_MAX or len(run.key) > KEY_BYTES_MAX:
            return Status.BAD_REQUEST, 0
        checked = check_frames(run.ledger_id, run.entries, run.lengths, run.frames)
        if isinstance(checked, Bad):
            return (Status.BAD_REQUEST if checked.index < 0 else Status.DAMAGED), 0
        if checked.entries[0] < 0 or checked.entries[-1] > ENTRY_ID_MAX or run.ledger_id < 0:
            return Status.BAD_REQUEST, 0
        vetted: _Vetted | None = None
        for _ in range(_ATTEMPTS_MAX):
            action = partial(self._add, run, checked, vetted)
            outcome = self._with_record(run.ledger_id, action, (Status.IO_ERROR, 0))
            if not isinstance(outcome, _Unvetted):
                return outcome
            result = self._vet(outcome, checked)
            if isinstance(result, Status):
                return result, 0
            vetted = result
        return Status.TOO_MANY_REQUESTS, 0

    def fence(self, ledger_id: int, key: bytes) -> tuple[Status, int]:
        """Refuse normal adds to the ledger from now on, for ever; the answer may be given
        once the ticket returned is durable. A ledger never seen is made (rule 29)."""
        if len(key) > KEY_BYTES_MAX or ledger_id < 0:
            return Status.BAD_REQUEST, 0
        action = partial(self._fence, ledger_id, key)
        return self._with_record(ledger_id, action, (Status.IO_ERROR, 0))

    def set_lac(self, run: AddRun) -> Status:
        """Take note of an explicit LAC; kept in memory, and on disk from a checkpoint on."""
        if len(run.key) > KEY_BYTES_MAX or run.ledger_id < 0:
            return Status.BAD_REQUEST
        frame = bytes(run.frames)
        checked = check_frames(run.ledger_id, (LAC_ENTRY,), (len(frame),), frame)
        if isinstance(checked, Bad):
            return Status.DAMAGED
        action = partial(self._set_lac, run, checked)
        return self._with_record(run.ledger_id, action, Status.IO_ERROR)

    def has_pending(self) -> bool:
        """Whether a commit would make a further ticket durable."""
        return self._journal.has_pending()

    def commit(self) -> int:
        """Make all that was queued durable; return the highest durable ticket.

        Raises `JournalFailed`; then the process has to end."""
        self._check()
        try:
            return self._journal.commit()
        except StorageFailed as failure:
            self._failure = failure
            raise

    # Reading.

    def read(self, query: ReadQuery) -> ReadAnswer:
        """Answer from memory and disk. Ignores `fence` and `wait_ms`."""
        if query.first < 0 or query.last < query.first:
            return ReadAnswer(Status.BAD_REQUEST)
        action = partial(self._view, query)
        view = self._with_record(query.ledger_id, action, Status.IO_ERROR)
        if isinstance(view, Status):
            return ReadAnswer(view)
        stored = Stored(Found((), query.last))
        if view.stored.last_entry >= query.first:
            stored = self._reader.find(view.stored, query.first, query.last, query.bytes_max)
        return _answer(query, view, stored)

    def read_recent(self, query: ReadQuery) -> ReadAnswer | None:
        """Answer from memory alone; None if that is not the whole truth."""
        if query.first < 0 or query.last < query.first:
            return ReadAnswer(Status.BAD_REQUEST)
        with self._lock:
            self._check()
            record = self._ledgers.get(query.ledger_id)
            if record is None and self._ledgers.is_known(query.ledger_id):
                return None
            view = self._view(query, record)
        if isinstance(view, Status):
            return ReadAnswer(view)
        if view.stored.last_entry >= query.first:
            return None
        return _answer(query, view, Stored(Found((), query.last)))

    def lac(self, ledger_id: int, key: bytes) -> LacAnswer:
        action = partial(_lac, key)
        return self._with_record(ledger_id, action, LacAnswer(Status.IO_ERROR))

    def ledger_ids(self) -> list[int]:
        """Return all ledgers that are here, ascending."""
        with self._lock:
            return self._ledgers.ids()

    # Keeping.

    def checkpoint(self) -> None:
        """Move what is in memory to entry logs and index, and the mark behind it (rule 65).

        Raises `StorageFailed`; then the process has to end."""
        with self._checkpoint_lock:
            self._check()
            try:
                self._checkpoint()
            except (OSError, FileDamaged) as error:
                self._failure = StorageFailed("a checkpoint", str(error))
                raise self._failure from error

    def close(self) -> None:
        """Close all files and free the directory. Requires that no other call is under way.

        Nothing is written: what is in the journal is replayed at the next start."""
        if self._closed:
            return
        self._closed = True
        self._journal.close()
        self._logs.close()
        self._reader.close()
        self._index.close()
        self._disk.unlock()

    def _with_record(
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
            with self._lock:
                self._check()
                record = self._ledgers.get(ledger_id)
                if record is not None or not self._ledgers.is_known(ledger_id):
                    return action(record)
                generation = self._generation
            try:
                stored = self._index.load(ledger_id)
            except IndexDamaged:
                return damaged
            with self._lock:
                if generation == self._generation:
                    self._ledgers.adopt(stored)
        return damaged

    def _add(
        self,
        run: AddRun,
        checked: Checked,
        vetted: _Vetted | None,
        record: LedgerRecord | None,
    ) -> tuple[Status, int] | _Unvetted:
        if record is not None:
            if not compare_digest(record.key, run.key):
                return Status.WRONG_KEY, 0
            if record.fenced and not run.recovery:
                return Status.FENCED, 0
        bytes_max = self._config.memtable_bytes_max
        if run.recovery:
            bytes_max += self._config.recovery_reserve_bytes
        if len(self._active) and self._active.size_bytes + len(checked.data) > bytes_max:
            return Status.TOO_MANY_REQUESTS, 0
        new: list[int] | None = None
        if record is None:
            record = self._ledgers.create(run.ledger_id, run.key)
        elif checked.entries[0] <= record.last_entry:
            outcome = self._new_entries(record, checked, vetted)
            if not isinstance(outcome, list):
                return outcome
            if not outcome:
                return Status.OK, self._journal.last_ticket  # it may still be on its way
            new = outcome
        self._active.add(run.ledger_id, checked, new)
        self._ledgers.touch(record)
        record.learn(checked)
        lengths = array("I", run.lengths)
        journaled = Record(Kind.ADD, run.ledger_id, run.key, checked.entries, lengths, checked.data)
        return Status.OK, self._journal.add(journaled)

    def _new_entries(
        self, record: LedgerRecord, checked: Checked, vetted: _Vetted | None
    ) -> list[int] | tuple[Status, int] | _Unvetted:
        """Return the indexes of entries that are not here yet; others must be the same bytes."""
        new = []
        for index, entry_id in enumerate(checked.entries):
            frame = self._frame_in_memory(record.ledger_id, entry_id)
            if frame is not None:
                if frame != checked.frame(index):
                    return Status.CONFLICT, 0
            elif entry_id > record.stored.last_entry:
                new.append(index)
            elif vetted is None or vetted.generation != self._generation:
                return _Unvetted(record.stored, self._generation)
            elif entry_id not in vetted.present:
                new.append(index)
        return new

    def _vet(self, unvetted: _Unvetted, checked: Checked) -> _Vetted | Status:
        """Compare an add with what is on disk; takes no lock."""
        present: dict[int, None] = {}
        for index, entry_id in enumerate(checked.entries):
            stored = self._reader.find(unvetted.stored, entry_id, entry_id, 1)
            if stored.damage is not None:
                return Status.IO_ERROR
            for piece in stored.found.pieces:
                if piece.view() != checked.frame(index):
                    return Status.CONFLICT
                present[entry_id] = None
        return _Vetted(present, unvetted.generation)

    def _frame_in_memory(self, ledger_id: int, entry_id: int) -> bytes | None:
        for memtable in (self._active, self._flushing):
            entries = memtable.ledger(ledger_id) if memtable else None
            frame = entries.frame(entry_id) if entries else None
            if frame is not None:
                return frame
        return None

    def _fence(self, ledger_id: int, key: bytes, record: LedgerRecord | None) -> tuple[Status, int]:
        if record is None:
            record = self._ledgers.create(ledger_id, key)
        elif not compare_digest(record.key, key):
            return Status.WRONG_KEY, 0
        if not record.fenced:
            record.fenced = True
            record.fence_ticket = self._journal.add(Record(Kind.FENCE, ledger_id, key))
            self._ledgers.touch(record)
        return Status.OK, record.fence_ticket  # a second fence waits for the first (34)

    def _set_lac(self, run: AddRun, checked: Checked, record: LedgerRecord | None) -> Status:
        if record is None:
            record = self._ledgers.create(run.ledger_id, run.key)
        elif not compare_digest(record.key, run.key):
            return Status.WRONG_KEY
        elif record.fenced and not run.recovery:
            return Status.FENCED
        if record.learn_lac(checked):
            self._ledgers.touch(record)
        return Status.OK

    def _view(self, query: ReadQuery, record: LedgerRecord | None) -> _View | Status:
        if record is None:
            return Status.NO_SUCH_LEDGER
        if not compare_digest(record.key, query.key):
            return Status.WRONG_KEY
        parts = [
            entries.find(query.first, query.last, query.bytes_max)
            for memtable in (self._active, self._flushing)
            if memtable is not None and (entries := memtable.ledger(query.ledger_id))
        ]
        found = Found(
            merge([piece for part in parts for piece in part.pieces]),
            min((part.considered for part in parts), default=query.last),
        )
        return _View(found, record.stored, record.lac_proof, record.fenced)

    def _checkpoint(self) -> None:
        # Everything in the journal before this place was put into the memtable before it
        # was queued, so into the one that is taken next or an earlier one.
        mark = self._journal.position
        with self._lock:
            if not self._ledgers.is_dirty and mark.journal_id == self._mark.journal_id:
                return
            headers = [header_of(record) for record in self._ledgers.begin_flush()]
            memtable, self._active = self._active, Memtable()
            self._flushing = memtable
        stored = flush(memtable, headers, self._logs, self._index)
        with self._lock:
            self._ledgers.end_flush(stored)
            self._flushing = None
            self._generation += 1
        assert mark >= self._mark, "the mark moves forward only"
        write_mark(self._disk, mark)
        self._mark = mark
        self._journal.remove_before(mark.journal_id)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise HandleClosed("the storage")


def _lac(key: bytes, record: LedgerRecord | None) -> LacAnswer:
    if record is None:
        return LacAnswer(Status.NO_SUCH_LEDGER)
    if not compare_digest(record.key, key):
        return LacAnswer(Status.WRONG_KEY)
    return LacAnswer(Status.OK, record.lac_proof, record.fenced, record.last_entry)


def _answer(query: ReadQuery, view: _View, stored: Stored) -> ReadAnswer:
    """Put together what memory and disk have said."""
    considered = min(view.found.considered, stored.found.considered)
    pieces = merge([*view.found.pieces, *stored.found.pieces])
    found = limit(pieces, considered, query.bytes_max)
    if stored.damage is not None and found.considered < query.first:
        return ReadAnswer(Status.IO_ERROR, lac_proof=view.lac_proof, fenced=view.fenced)
    entries, lengths = array("q"), array("I")
    for piece in found.pieces:
        entries += piece.entries
        lengths += piece.lengths
    return ReadAnswer(
        Status.OK,
        entries,
        lengths,
        b"".join(piece.view() for piece in found.pieces),
        considered=found.considered,
        lac_proof=view.lac_proof,
        fenced=view.fenced,
    )
