"""The storage engine of a bookie: journals, memtable, entry logs and index, held together.

Who may call what: `add`, `fence`, `set_lac`, `read_recent` and `lac` take short turns under
one lock and are meant for the event loop; `commit` is the journal threads' (one per journal),
`checkpoint` the sync thread's, `read`, `load` and `prepare` any thread's. Nothing here starts a
thread. Two things need the disk before an add or a fence: a ledger that was not used for long
has its header read again, and an add of an id below the ledger's highest is compared with what
is stored under it. `needs_load` and `needs_disk` say when, `load` and `prepare` do it; without
them the call does it itself, and blocks.

A full disk is no failure: a commit or a checkpoint that finds no space leaves everything as it
was, to be done again, and the storage refuses normal adds until there is space (`read_only`).
When one of several ledger directories fails, nothing is flushed any more and the marks stay:
what is in memory and on the other disks is served, and normal adds are refused for good.

Invariants:
    an add checks the fence and enters the memtable in one step under the lock (rules 30, 31)
    whatever was answered is in a journal from the mark on, or in synced entry logs and index
    the mark moves forward only, and only after all before it was synced (rules 65, 66)
    an entry is in memory until the index that names it is published; a reader looks at both
        in the state of one moment, so it misses nothing in between (rule 58)
    every call raises once a write or sync of a journal or the only ledger directory has failed
        (rule 60)
    an add to an ordinary ledger (`bookie.storage.ledger_table`) is answered as if everything had
        been looked at: `check_ordinary`
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hmac import compare_digest
from os import urandom
from typing import Final, Self

from bookie.disk.port import Directories, Disk
from bookie.errors import EntryLogDamaged, FileDamaged, StorageFailed
from bookie.index.format import ENTRY_ID_MAX, KEY_BYTES_MAX, LedgerHeader
from bookie.journal.format import JournalMark, Record, RecordKind
from bookie.journal.journals import Journals
from bookie.journal.writer import JournalWriter
from bookie.loss.census import Accounts, Census
from bookie.loss.limbo import Limbo, LimboPhase
from bookie.storage import entry_list, reads
from bookie.storage.add_lookup import Prepared, Vetted
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.config import StorageConfig
from bookie.storage.entry_trace import Traced, trace
from bookie.storage.holdings import ReadCache, StorageState
from bookie.storage.ledger_directory import LedgerDirectory, open_ledger_directories
from bookie.storage.ledger_table import LedgerRecord
from bookie.storage.memtable import Memory
from bookie.storage.replay import Replay
from bookie.storage.status import StorageStatus, status_of
from ledger.entry import ENTRIES_AHEAD_MAX, LAC_ENTRY, Bad, Checked, check_frames
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    ReadAnswer,
    ReadQuery,
    Status,
)

ADD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Frames of one add. No message brings more; a caller in the same process must not either, as a
replay takes a journal record that is far too large for damage."""
_ATTEMPTS_MAX: Final = 1000
"""Each is undone only by a checkpoint that ends meanwhile."""


@dataclass(frozen=True, slots=True)
class _Unvetted:
    """Some entries of an add may be on disk already: compare first, with *stored*."""

    stored: LedgerHeader
    generation: int


class BookieStorage:
    """See the module's docstring; made by `open`."""

    def __init__(
        self,
        config: StorageConfig,
        holdings: StorageState,
        journals: Journals,
        accounts: Accounts,
        marks: tuple[JournalMark, ...],
    ) -> None:
        self._config = config
        self._accounts = accounts
        self._holdings = holdings
        self._ledgers = holdings.ledgers
        self._memory = holdings.memory
        self._lock = holdings.lock
        self._journals = journals
        self._keeper = Checkpointer(holdings, journals, accounts, marks)
        for writer in journals.writers:
            writer.on_full = holdings.nothing_is_ordinary
        self._told_read_only = self._told_no_recovery = False

    @classmethod
    def open(
        cls,
        directories: Directories | Disk,
        config: StorageConfig,
        *,
        doubt: str = "",
        restored: str = "",
        entropy: Callable[[int], bytes] = urandom,
    ) -> Self:
        """Replay wholly, flush, and return a storage that may serve (rule 64).

        A lone disk is all directories. A caller that knows of something missing gives the
        reason as *doubt*; what is missing by the census is found here. *restored*: why the metadata
        store is older than it was. Each begins a limbo, which
        is durable before anything is served (`bookie.loss.limbo`). Raises `DirectoryInUse`, or a
        `FileDamaged` where a file is not as it was written; then nothing that matters has changed.
        On a full disk it starts read-only, with what is in the journals in memory.
        """
        if not isinstance(directories, Directories):
            directories = Directories.single(directories)
        directories.lock()
        try:
            ledger_directories = open_ledger_directories(directories, config, entropy=entropy)
            accounts = Accounts(directories.main)
            accounts.lost([doubt] if doubt else [])
            if restored:
                accounts.restored(restored)
            replay = Replay(
                directories=directories,
                ledger_directories=ledger_directories,
                accounts=accounts,
                memtable_bytes_max=config.memtable_bytes_max,
                ledgers_in_memory_max=config.ledgers_in_memory_max,
                entropy=entropy,
            )
            replayed = replay.run()
            journals = Journals(
                directories,
                replayed.headers,
                file_bytes_max=config.journal_file_bytes_max,
                preallocate_bytes=config.journal_preallocate_bytes,
                block_bytes=config.journal_block_bytes,
                spares_max=config.journal_spares_max,
                entropy=entropy,
            )
            marks = journals.positions() if replayed.is_flushed else replayed.marks
            if replayed.is_flushed:
                journals.advance(marks)
            journals.take_space()
            rolls = [directory.rolls for directory in ledger_directories]
            accounts.count(rolls, journals.positions(), journals.sizes())
        except OSError as error:
            directories.unlock()
            raise StorageFailed("the start of the storage", str(error)) from error
        except FileDamaged:
            directories.unlock()
            raise
        holdings = StorageState(
            directories,
            ledger_directories,
            replayed.ledgers,
            Memory(replayed.memtable, recent_bytes_max=config.recent_bytes_max),
            ReadCache(bytes_max=config.read_cache_bytes, ahead_bytes=config.read_ahead_bytes),
        )
        return cls(config, holdings, journals, accounts, marks)

    # Adding and fencing.

    def is_new(self, ledger_id: int) -> bool:
        """Whether nothing is known of the ledger here, not even that it was deleted."""
        return not (self._ledgers.is_known(ledger_id) or self._holdings.is_deleted(ledger_id))

    def is_ordinary(self, run: AddRun) -> bool:
        """Whether *run* needs nothing but `add` or `set_lac`, as its ledger is ordinary and its ids
        are new."""
        record = self._ledgers.ordinary.get(run.ledger_id)
        if record is None or not run.entries:
            return False
        return run.explicit_lac or run.entries[0] > record.last_entry

    def needs_load(self, ledger_id: int) -> bool:
        """Whether the ledger's header is not in memory; a ledger that is not here needs none."""
        with self._lock:
            return self._ledgers.get(ledger_id) is None and self._ledgers.is_known(ledger_id)

    def load(self, ledger_id: int) -> None:
        """Bring the ledger's header into memory, if it can be read; may block."""
        self._holdings.with_record(ledger_id, lambda _record: None, None)

    def needs_disk(self, run: AddRun) -> bool:
        """Whether `add` would have to look at the disk, so that `prepare` should do so before."""
        with self._lock:
            record = self._ledgers.get(run.ledger_id)
            if record is None:
                return self._ledgers.is_known(run.ledger_id)
            if run.explicit_lac or not run.entries:
                return False
            floor = self._memory.floor(record.stored)
            return run.entries[0] <= floor and any(
                self._memory.frame(run.ledger_id, entry_id) is None
                for entry_id in run.entries
                if entry_id <= floor
            )

    def prepare(self, run: AddRun) -> Prepared:
        """Look up on disk what `add` will need; may block."""
        checked = check_frames(run.ledger_id, run.entries, run.lengths, run.frames)
        if isinstance(checked, Bad):
            return None

        def unvetted(record: LedgerRecord | None) -> _Unvetted | None:
            return None if record is None else _Unvetted(record.stored, self._holdings.generation)

        outcome = self._holdings.with_record(run.ledger_id, unvetted, None)
        return None if outcome is None else self._vet(outcome, checked, repairs=run.recovery)

    def add(self, run: AddRun, prepared: Prepared = None) -> tuple[Status, int]:
        """Take *run*; it may be acknowledged once the ticket returned is durable.

        Ids that no writer can have made are a `BAD_REQUEST`: below the LAC of their own header, or
        farther beyond it than a writer has entries in flight; or in more stretches than there can
        be fragments (`STRETCHES_MAX`). What a ledger costs is bounded by what is stored of it."""
        if len(run.frames) > ADD_BYTES_MAX or len(run.key) > KEY_BYTES_MAX:
            return Status.BAD_REQUEST, 0
        checked = check_frames(run.ledger_id, run.entries, run.lengths, run.frames)
        if isinstance(checked, Bad):
            return (Status.BAD_REQUEST if checked.index < 0 else Status.DAMAGED), 0
        first, last, lac = checked.entries[0], checked.entries[-1], checked.last_add_confirmed
        if first < 0 or last > ENTRY_ID_MAX or run.ledger_id < 0:
            return Status.BAD_REQUEST, 0
        if checked.entries[checked.lac_at] <= lac or last - lac > ENTRIES_AHEAD_MAX:
            return Status.BAD_REQUEST, 0
        with self._lock:
            record = self._ledgers.ordinary.get(run.ledger_id)
            room_bytes = self._config.memtable_bytes_max - self._memory.active.size_bytes
            if (
                record is not None
                and first > record.last_entry
                and not run.recovery
                and len(checked.data) <= room_bytes
                and compare_digest(record.stored.key, run.key)
                and record.reach(checked)
            ):
                return Status.OK, self._take(run, checked, record, None)
        vetted = prepared
        for _ in range(_ATTEMPTS_MAX):
            action = partial(self._add, run, checked, vetted)
            outcome = self._holdings.with_record(run.ledger_id, action, (Status.IO_ERROR, 0))
            if not isinstance(outcome, _Unvetted):
                return outcome
            result = self._vet(outcome, checked, repairs=run.recovery)
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
        return self._holdings.with_record(ledger_id, action, (Status.IO_ERROR, 0))

    def check_ordinary(self) -> None:
        """Assert that nothing is against a writer's add to an ordinary ledger."""
        holdings = self._holdings
        with self._lock:
            self._ledgers.check_ordinary()
            if self._ledgers.ordinary:
                holdings.check()
                assert not self._is_read_only, "a ledger is ordinary in a read-only bookie"
            for ledger_id in self._ledgers.ordinary:
                assert not holdings.is_offered(ledger_id), "an ordinary ledger may be evicted"
                assert not self.may_have_lost(ledger_id), "an ordinary ledger is in limbo"

    def set_lac(self, run: AddRun) -> Status:
        """Take note of an explicit LAC; kept in memory, and on disk from a checkpoint on."""
        if len(run.key) > KEY_BYTES_MAX or run.ledger_id < 0:
            return Status.BAD_REQUEST
        frame = bytes(run.frames)
        checked = check_frames(run.ledger_id, (LAC_ENTRY,), (len(frame),), frame)
        if isinstance(checked, Bad):
            return Status.DAMAGED
        with self._lock:
            record = self._ledgers.ordinary.get(run.ledger_id)
            if record is not None and compare_digest(record.stored.key, run.key):
                record.learn_lac(checked)
                return Status.OK
        action = partial(self._set_lac, run, checked)
        return self._holdings.with_record(run.ledger_id, action, Status.IO_ERROR)

    @property
    def journals(self) -> int:
        """How many journals there are; they are numbered from 0."""
        return len(self._journals)

    @property
    def last_ticket(self) -> int:
        """When this one is durable, all that was taken by now is."""
        return self._journals.last_ticket

    def has_pending(self, journal: int = 0) -> bool:
        """Whether something is queued in *journal*. If its disk is full, a commit may not
        change that."""
        return self._journals.has_pending(journal)

    def commit(self, journal: int = 0) -> int:
        """Make durable what queued in *journal*; return the highest ticket that is durable
        together with all before it.

        If the disk is full, what does not fit stays queued. Raises `JournalFailed`; then the
        process has to end."""
        if self._holdings.failure is not None or self._holdings.closed:
            self._holdings.check()
        try:
            return self._journals.commit(journal)
        except StorageFailed as failure:
            self._holdings.fail(failure)
            raise

    # Refusing.

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why normal adds are refused, apart from what `set_read_only` was given."""
        journals = self._holdings.directories.journals
        full = [
            f"{journals[at].describe('')} has no room for its journal" for at in self._journals.full
        ]
        doubts = (self.doubts,) if self._in_new_limbo else ()
        return (*doubts, *full, *self._keeper.troubles)

    @property
    def read_only(self) -> bool:
        """Whether normal adds are refused; fences and reads never are."""
        return not self._ledgers.ordinary and self._is_read_only

    @property
    def _is_read_only(self) -> bool:
        return bool(
            self._told_read_only
            or self._journals.full
            or self._keeper.troubles
            or self._in_new_limbo
        )

    @property
    def _in_new_limbo(self) -> bool:
        return self.limbo is not None and self.limbo.phase is LimboPhase.BEGUN

    def set_read_only(self, *, read_only: bool, recovery_too: bool = False) -> None:
        """Refuse normal adds from now on, or do so only for reasons of its own; *recovery_too*
        refuses recovery adds as well, as long as nothing else is said."""
        self._told_read_only = read_only
        self._told_no_recovery = recovery_too
        if read_only:
            self._holdings.nothing_is_ordinary()

    # Reading.

    def read(self, query: ReadQuery) -> ReadAnswer:
        """Answer from memory and disk. Ignores `fence` and `wait_ms`."""
        answer = reads.read(self._holdings, query)
        limbo = self.limbo
        return answer if limbo is None else limbo.read(query, answer)

    def read_recent(self, query: ReadQuery) -> ReadAnswer | None:
        """Answer from memory alone; None if that is not the whole truth."""
        answer = reads.read_recent(self._holdings, query)
        limbo = self.limbo
        return answer if limbo is None or answer is None else limbo.read(query, answer)

    def held(self, query: HeldQuery) -> HeldAnswer:
        """Say which entries are here, from memory and index pages; may block."""
        answer = entry_list.held(self._holdings, query)
        limbo = self.limbo
        if limbo is None:
            return answer
        let_go = self._holdings.was_let_go(query.ledger_id)
        return limbo.held(query, answer, let_go=let_go)

    def lac(self, ledger_id: int, key: bytes) -> LacAnswer:
        """Say what is known of the ledger's LAC, its fence and its last entry."""
        answer = reads.lac(self._holdings, ledger_id, key)
        limbo = self.limbo
        return answer if limbo is None else limbo.lac(ledger_id, answer)

    def ledger_ids(self) -> list[int]:
        """Return all ledgers that are here, ascending."""
        with self._lock:
            return self._ledgers.ids()

    @property
    def holdings(self) -> StorageState:
        """For whoever looks at its sizes and counts; nobody else."""
        return self._holdings

    @property
    def keeper(self) -> Checkpointer:
        """As `holdings`."""
        return self._keeper

    @property
    def journal_writers(self) -> Sequence[JournalWriter]:
        """As `holdings`."""
        return self._journals.writers

    def status(self) -> StorageStatus:
        """Say what is where, for operators; asks the disk for the sizes of files."""
        self._holdings.check()
        return status_of(self._holdings, self._journals, self._keeper.marks, self._config)

    def trace(self, ledger_id: int, entry_id: int) -> Traced:
        """Say where one entry is, for operators; may block, and reads files."""
        found = trace(self._holdings, self._keeper.marks, ledger_id, entry_id)
        limbo = self.limbo
        in_doubt = limbo is not None and limbo.doubts(ledger_id)
        return replace(found, doubts=self.doubts) if in_doubt else found

    # What may be lost.

    @property
    def limbo(self) -> Limbo | None:
        """What it may say although it may have lost something; None: it is whole."""
        return self._accounts.limbo

    @property
    def doubts(self) -> str:
        """What may be lost and is not settled yet, for operators; "" for nothing."""
        return "" if self.limbo is None else self.limbo.warning

    def may_have_lost(self, ledger_id: int) -> bool:
        """Whether the ledger was there before this bookie knew of a loss."""
        limbo = self.limbo
        return limbo is not None and not limbo.takes_adds_to(ledger_id)

    def is_orphan(self, ledger_id: int) -> bool:
        """Whether the metadata store forgot the ledger, if it does not know it: it was restored."""
        limbo = self.limbo
        return limbo is not None and limbo.is_orphan(ledger_id)

    @property
    def highest_id(self) -> int:
        """Of all ledgers that are, or were, here; -1 if there never was one."""
        deleted = (directory.tombstones.highest for directory in self.ledger_directories)
        return max((*deleted, *self.ledger_ids()[-1:]), default=-1)

    def judged(self, change: Callable[[Limbo], Limbo]) -> None:
        """Let `limbo` become what *change* makes of it, durably; blocks. Raises `StorageFailed`,
        and then it is as it was."""
        try:
            self._accounts.judged(change)
        except OSError as error:
            raise StorageFailed("keeping what may be lost", str(error)) from error
        finally:
            self._holdings.nothing_is_ordinary()

    @property
    def census(self) -> Census:
        """Of the last checkpoint; the start makes one."""
        census = self._accounts.census
        assert census is not None, "a start counts before it serves"
        return census

    def on_census(self, report: Callable[[Census], None]) -> None:
        """Call *report* with each later census, on the thread that makes it."""
        self._accounts.on_census = report

    # Keeping.

    def checkpoint(self) -> None:
        """See `Checkpointer.checkpoint`."""
        self._keeper.checkpoint()

    def hurry(self) -> None:
        """Leave to the next start, from now on, what a checkpoint can leave to it."""
        for directory in self._holdings.ledger_directories:
            directory.is_hurried = True

    @property
    def ledger_directories(self) -> Sequence[LedgerDirectory]:
        """For the collector, which works on them beside everything else."""
        return self._holdings.ledger_directories

    def delete(self, ledger_ids: Sequence[int]) -> None:
        """See `Checkpointer.delete`."""
        self._keeper.delete(ledger_ids)

    def offer(self, ledger_ids: Sequence[int]) -> int:
        """See `Checkpointer.offer`."""
        return self._keeper.offer(ledger_ids)

    def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        """See `Checkpointer.evict`."""
        self._keeper.evict(ledger_ids, offer)

    def close(self) -> None:
        """Close all files and free the directories. Requires that no other call is under way.

        What is not in entry logs is in the journals, and replayed at the next start."""
        holdings = self._holdings
        if holdings.closed:
            return
        holdings.closed = True
        holdings.nothing_is_ordinary()
        self._journals.close()
        for directory in holdings.ledger_directories:
            directory.close()
        holdings.directories.unlock()

    def _add(
        self,
        run: AddRun,
        checked: Checked,
        vetted: Prepared,
        record: LedgerRecord | None,
    ) -> tuple[Status, int] | _Unvetted:
        self._holdings.promise(run.ledger_id)
        if record is not None:
            if not compare_digest(record.key, run.key):
                return Status.WRONG_KEY, 0
            if record.fenced and not run.recovery:
                return Status.FENCED, 0
        elif not run.recovery and self._holdings.is_fenced(run.ledger_id):
            return Status.FENCED, 0
        refused = self._refuses(run, len(checked.data))
        if refused is not None:
            return refused, 0
        new: list[int] | None = None
        if record is None:
            if self._holdings.is_deleted(run.ledger_id):
                return Status.NO_SUCH_LEDGER, 0
            record = self._holdings.create(run.ledger_id, run.key)
        elif checked.entries[0] <= record.last_entry:
            outcome = self._new_entries(record, checked, vetted)
            if not isinstance(outcome, list):
                return outcome
            if not outcome:
                return Status.OK, self._journals.last_ticket  # it may still be on its way
            new = outcome
        if not record.reach(checked):
            return Status.BAD_REQUEST, 0  # of a new ledger this leaves an empty one behind
        self._ledgers.touch(record)
        if not run.recovery:
            self._ledgers.ordinary[run.ledger_id] = record
        return Status.OK, self._take(run, checked, record, new)

    def _take(
        self, run: AddRun, checked: Checked, record: LedgerRecord, new: Sequence[int] | None
    ) -> int:
        """Keep what is *new* of a run, and queue it for the journal; return its ticket."""
        self._memory.active.add(run.ledger_id, checked, new)
        record.learn(checked)
        lengths = array("I", run.lengths)
        return self._journals.add(
            Record(RecordKind.ADD, run.ledger_id, run.key, checked.entries, lengths, checked.data)
        )

    def _refuses(self, run: AddRun, size_bytes: int) -> Status | None:
        """Return why nothing like *run* is taken now, None if it may be."""
        bytes_max = self._config.memtable_bytes_max
        if run.recovery:
            bytes_max += self._config.recovery_reserve_bytes
        if self._told_no_recovery if run.recovery else self.read_only:
            return Status.READ_ONLY
        if not run.recovery and self.may_have_lost(run.ledger_id):
            return Status.READ_ONLY
        if not self._journals.has_room(run.ledger_id, size_bytes):
            return Status.TOO_MANY_REQUESTS
        active = self._memory.active
        if len(active) and active.size_bytes + size_bytes > bytes_max:
            return Status.TOO_MANY_REQUESTS
        return None

    def _new_entries(
        self, record: LedgerRecord, checked: Checked, vetted: Prepared
    ) -> list[int] | tuple[Status, int] | _Unvetted:
        """Return the indexes of entries that are not here yet; others must be the same bytes."""
        new = []
        floor = self._memory.floor(record.stored)
        for index, entry_id in enumerate(checked.entries):
            frame = self._memory.frame(record.ledger_id, entry_id)
            if frame is not None:
                if frame != checked.frame(index):
                    return Status.CONFLICT, 0
            elif entry_id > floor:
                new.append(index)
            elif isinstance(vetted, Status):
                return vetted, 0
            elif vetted is None or vetted.generation != self._holdings.generation:
                return _Unvetted(record.stored, self._holdings.generation)
            elif entry_id not in vetted.present:
                new.append(index)
        return new

    def _vet(self, unvetted: _Unvetted, checked: Checked, *, repairs: bool) -> Vetted | Status:
        """Compare an add with what is on disk; takes no lock.

        What is damaged there counts as absent if the add *repairs*: recovery read these bytes
        from another replica. A writer's are refused, as nobody can say that they are the same."""
        present: dict[int, None] = {}
        for index, entry_id in enumerate(checked.entries):
            stored = self._holdings.find(unvetted.stored, entry_id, entry_id, 1)
            if isinstance(stored.damage, EntryLogDamaged) and repairs:
                continue
            if stored.damage is not None:
                return Status.IO_ERROR
            for piece in stored.found.pieces:
                if piece.view() != checked.frame(index):
                    return Status.CONFLICT
                present[entry_id] = None
        return Vetted(present, unvetted.generation)

    def _fence(self, ledger_id: int, key: bytes, record: LedgerRecord | None) -> tuple[Status, int]:
        self._holdings.promise(ledger_id)
        if record is None:
            if self._holdings.is_deleted(ledger_id):
                return Status.NO_SUCH_LEDGER, 0
            record = self._holdings.create(ledger_id, key)
        elif not compare_digest(record.key, key):
            return Status.WRONG_KEY, 0
        if not record.fenced:
            ticket = self._journals.add(Record(RecordKind.FENCE, ledger_id, key))
            self._ledgers.fence(record, ticket)
        return Status.OK, record.fence_ticket  # a second fence waits for the first (rule 34)

    def _set_lac(self, run: AddRun, checked: Checked, record: LedgerRecord | None) -> Status:
        if record is None:
            if self._holdings.is_deleted(run.ledger_id):
                return Status.NO_SUCH_LEDGER
            if not run.recovery and self._holdings.is_fenced(run.ledger_id):
                return Status.FENCED
            record = self._holdings.create(run.ledger_id, run.key)
        elif not compare_digest(record.key, run.key):
            return Status.WRONG_KEY
        elif record.fenced and not run.recovery:
            return Status.FENCED
        if record.learn_lac(checked):
            self._ledgers.touch(record)
        return Status.OK
