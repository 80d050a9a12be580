"""A simulated bookie: the production request handling on the production storage engine.

`bookie.server.core` and `bookie.storage.engine` are driven as `bookie.server.service` drives them,
one step at a time: a commit of the journal and a checkpoint are steps of their own, some time after
what caused them, and a crash may come between any two. Here the bookie is also watched: each
promise that leaves it is reported to the oracle, and after each restart it is asked whether it kept
them.
"""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar, assert_never

from bookie.disk.directories import Directories
from bookie.errors import (
    BookieRetired,
    DataCopied,
    DataMissing,
    DataOutdated,
    FileDamaged,
    StorageFailed,
    WrongDirectory,
)
from bookie.identity.lives import Claim
from bookie.identity.stamp import Identity, accept_loss, identify, settle_doubt
from bookie.index.format import SUFFIX as INDEX_SUFFIX
from bookie.journal.format import DIRECTORY as JOURNAL
from bookie.journal.format import FILE_HEADER_BYTES, FILE_SUFFIX, Mark, path_of
from bookie.journal.recovery import read_mark
from bookie.loss.limbo import Limbo, Phase
from bookie.server.core import (
    AddSession,
    BookieCore,
    FromDisk,
    Loaded,
    Need,
    Resume,
    UntilChanged,
    UntilDurable,
)
from bookie.server.settling import doubtful_of, look
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.errors import MetadataError, MetadataUnavailable, StorageError
from ledger.ids import BookieId
from ledger.manager import LedgerStore
from ledger.requests import AddRun, LacAnswer, LacQuery, ReadAnswer, ReadQuery, Status
from tests.simulation.disk import PowerLost, SimDisk
from tests.simulation.disks_elsewhere import in_window, stop_cleanly, told
from tests.simulation.host import Host
from tests.simulation.oracle import LedgerHistory
from tests.simulation.scheduler import Action, Timer
from tests.simulation.store import SimStore, drive

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Answer = TypeVar("Answer", ReadAnswer, LacAnswer)

LOOK_S: Final = 0.5
"""Until the next look at what is in doubt; then twice as long, up to `LOOK_S_MAX`."""
LOOK_S_MAX: Final = 120.0
DISK_READ_S: Final = (0.0001, 0.002)
NO_SPACE_RETRY_S: Final = 0.2
READ_ALL_BYTES: Final = 1 << 30
RECENT_BYTES: Final = 1000
"""Of the journal; damage to them costs what no checkpoint has moved on."""
NEW_BYTES: Final = 200
"""Of commits in a journal that are worth to be lost."""
NEWEST_JOURNAL: Final = "newest journal file"
JOURNAL_END: Final = "end of the journal"
INSTANCE: Final = "simulated"
"""Of the namespace, in every cookie."""


class SimBookie:
    def __init__(self, cluster: "Cluster", name: BookieId, config: StorageConfig) -> None:
        self.name = name
        self.host = Host(cluster.scheduler, name)
        self.host.guard = self._guard
        self.on_promise: Callable[[SimBookie], None] | None = None
        """Told of each durable add or fence that is promised; the faults listen."""
        self.on_down: Callable[[SimBookie], None] | None = None
        """Told when it went down by itself, and must be restarted by somebody."""
        self.gone = False
        """Whether it never comes back: what it had promised is not on its disk any more."""
        self.crash_at_start: tuple[str, str] | None = None
        """Of the disk: operation and path at which the power fails in the next start."""
        self.disk = SimDisk(cluster.scheduler.random)
        self._disk_was_replaced = False
        self.has_lost_files = False
        self.has_rotted = False
        """Whether it is in limbo for what it lost, or was."""
        self.claim: Claim
        """What this life knows of itself in the store."""
        self._telling = False
        self._proven = Mark(0, 0)
        """Up to here a later record of the journal says that it was synced."""
        self.storage: BookieStorage
        self.core: BookieCore
        self._sessions: dict[int, _Session] = {}
        self._next_checkpoint: Timer | None = None
        self._committing = self._retrying = False
        self._until_durable: deque[tuple[int, Action]] = deque()
        self._until_changed: dict[int, list[Action]] = {}
        self.serves = False
        """Until it knows who it is and has replayed its journal it answers nobody."""
        self._cluster = cluster
        self._config = config
        self._begin()

    def crash(self) -> None:
        """Lose power: memory is gone, of the disk what was not synced may be."""
        self.host.crash()
        self.serves = False
        self.disk.crash()
        self._cluster.scheduler.mark("bookie_crashed")

    def kill(self) -> None:
        """End the process: memory is gone, what was written without a sync can still be read."""
        self.host.crash()
        self.serves = False
        self.disk.kill()
        self._cluster.scheduler.mark("bookie_killed")

    def lose_disk(self) -> None:
        """Crash, and find an empty disk."""
        if self.host.up:
            self.crash()
        self.disk = SimDisk(self._cluster.scheduler.random)
        self._disk_was_replaced = True
        self._cluster.oracle.lost_disk(self.name, wholly=True)
        self._cluster.scheduler.note(self.name, "loses its disk")
        self._cluster.scheduler.mark("disk_lost")

    def restore(self, backup: SimDisk) -> None:
        """Crash, and find an older disk: what was promised since is not on it."""
        if self.host.up:
            self.crash()
        by_files = in_window(self._cluster, self.name, backup)
        self.disk = backup.copy(by_files=by_files or self._cluster.scheduler.chance(0.3))
        self._cluster.oracle.lost_disk(self.name, wholly=False)
        self._cluster.scheduler.note(self.name, "finds an older disk")
        self._cluster.scheduler.mark("disk_copied_back" if by_files else "disk_restored")

    def move(self, on_done: Action) -> None:
        """Stop cleanly, and have the files copied to another disk; there is no loss in it."""
        stop_cleanly(self, self._cluster, partial(self._moved, on_done, self.host.life + 1))

    def _moved(self, on_done: Action, life: int, clean: bool) -> None:
        """Unless it was started meanwhile, and crashed again: then it is not clean any more."""
        if clean and not self.host.up and self.host.life == life:
            self.disk = self.disk.copy(by_files=True)
            self._cluster.scheduler.note(self.name, "moves to another disk")
            self._cluster.scheduler.mark("bookie_moved")
        on_done()

    @property
    def journal(self) -> str:
        """The path of the journal file whose commits were seen to be durable last."""
        return path_of(self._proven.journal_id)

    def rot(self, path: str) -> None:
        """Let one byte of a file change on the disk.

        Not of the journal's last commit: nothing tells that from a torn write (rule 61)."""
        first, size_bytes = 0, len(self.disk.content(path))
        if path == self.journal:
            size_bytes = self._proven.offset
            first = max(0, size_bytes - RECENT_BYTES)  # most before it is behind the mark
        elif path.startswith(JOURNAL) and path > path_of(self._proven.journal_id):
            return
        offset = self._cluster.scheduler.random.randrange(first, size_bytes)
        before = self.disk.content(path)[offset]
        self.disk.damage(path, offset, bytes([before ^ 0x55]))
        self.has_rotted = True
        self._cluster.oracle.lost_disk(self.name, wholly=False)
        self._cluster.scheduler.note(self.name, f"byte {offset} of {path} rots")
        self._cluster.scheduler.mark("disk_rotted")

    def can_read(self, ledger_id: int, key: bytes, entry_id: int) -> bool:
        """Whether the entry is here and undamaged."""
        try:
            answer = self.storage.read(ReadQuery(ledger_id, key, entry_id, entry_id))
        except (StorageError, OSError):
            return False
        return entry_id in answer.entries

    @property
    def knows_its_loss(self) -> bool:
        """Whether it lost files, or their ends, and nothing else: a start sees what is gone."""
        return self.has_lost_files and not self.has_rotted

    def would_miss(self, way: str) -> bool:
        """Whether there are commits behind the mark that it would lose in this *way*."""
        mark = read_mark(self.disk.copy())  # that one reads well, whatever else was ordered
        assert mark is not None, "it serves"
        end = self.storage._journals.positions()[0]
        if way == NEWEST_JOURNAL:
            return mark.journal_id < end.journal_id and end.offset > NEW_BYTES
        is_counted = self.storage.census.journals[0].journal_id == end.journal_id
        is_marked = mark.journal_id == end.journal_id
        return is_counted and is_marked and end.offset > mark.offset + NEW_BYTES

    def lose_files(self, wanted: str = "") -> None:
        """Crash, and find that some files are not there any more, or are shorter; in the *wanted*
        way, if that can go unseen."""
        census, end = self.storage.census, self.storage._journals.positions()[0]
        self.crash()
        random, scheduler = self._cluster.scheduler.random, self._cluster.scheduler
        files = self.disk.files()
        journals = [path for path in files if path.endswith(FILE_SUFFIX)]
        indexes = [path for path in files if path.endswith(INDEX_SUFFIX)]
        ways = ["index files"] if indexes else []
        mark = read_mark(self.disk.copy())
        assert mark is not None, "it has served"
        is_marked = path_of(mark.journal_id) == journals[-1]
        if not is_marked:
            ways.append(NEWEST_JOURNAL)
        is_counted = path_of(census.journals[0].journal_id) == journals[-1]
        first = mark.offset if is_marked else FILE_HEADER_BYTES  # before it: refused as damage
        if is_counted and census.sizes[0] > first:
            ways.append(JOURNAL_END)
        if not ways:
            return
        way = wanted if wanted in ways else random.choice(ways)
        lost = journals[-1:]
        if way == "index files":
            lost = random.choice((indexes, random.sample(indexes, 1)))
        for path in lost:
            if way == JOURNAL_END:
                kept = min(census.sizes[0], end.offset) if wanted else census.sizes[0]
                self.disk.cut(path, random.randrange(first, max(first + 1, kept)))
            else:
                self.disk.lose(path)
        self.has_lost_files = True
        self._cluster.oracle.lost_disk(self.name, wholly=False)
        scheduler.note(self.name, f"loses {way}: {', '.join(lost)}")
        scheduler.mark(f"lost_{way.replace(' ', '_')}")

    def restart(self) -> None:
        """Start again on the same disk; whatever was promised must be there."""
        if not self.gone:
            if self.crash_at_start is not None:
                self.disk.crash_before(*self.crash_at_start)
                self.crash_at_start = None
            self.host.start()
            self._begin()

    def inspect(self) -> None:
        """Open the disk once more, for a look at it that asks nobody."""
        self.host.start()
        self._open()
        self._check_promises()

    def _begin(self) -> None:
        """Start as `bookie.process` does: who am I, replay, register, serve."""
        self.serves = False
        self.host.after(0.0, self._identify)

    def _identify(self) -> None:
        """Let the production check decide whether this is the disk of this bookie (rule 74)."""
        steps = identify(
            SimStore(self._cluster.metadata, self.host),
            Directories.single(self.disk),
            bookie=self.name,
            instance=INSTANCE,
            address=f"{self.name}:3181",
            entropy=self._cluster.scheduler.random.randbytes,
        )
        drive(steps, self._identified)

    def _identified(self, identity: Identity) -> None:
        self.claim = identity.claim
        self._open(identity.doubt or "")
        if identity.doubt is not None:
            settle_doubt(Directories.single(self.disk))
        self._settle()
        self._telling = False
        self._tell()
        self._cluster.serve(self)
        self.plan_checkpoint()
        if self.host.life > 0:
            self._check_promises()
            self._cluster.scheduler.mark("bookie_restarted")
        self._disk_was_replaced = False  # it had promised nothing: this is its disk from now on
        if any(path.endswith(FILE_SUFFIX) for path in self.disk.torn):
            self._cluster.scheduler.mark("torn_journal_replayed")

    def retire(self) -> None:
        """Go for good: the operator found the damage."""
        if self.host.up:
            self.crash()
        self._refuses_to_start("it is damaged")

    def _refuses_to_start(self, why: str) -> None:
        """Stay down; an operator lets another incarnation take its place, with a new name."""
        self._cluster.scheduler.note(self.name, f"refuses to start: {why}")
        self._cluster.scheduler.mark("bookie_refused_to_start")
        self.gone = True
        self._cluster.new_incarnation(self)

    def _loss_accepted(self) -> None:
        """An operator says that this disk is all that is left: it comes back, in limbo."""
        accept_loss(Directories.single(self.disk), "accepted")
        self.has_lost_files = True
        self._cluster.scheduler.note(self.name, "its loss is accepted")
        self._cluster.scheduler.mark("loss_accepted")
        if self.on_down is not None:
            self.on_down(self)

    def _guard(self, action: Action) -> None:
        """Run *action*; a lost power or a failed disk is the end of this life."""
        try:
            action()
        except PowerLost:
            where = "at work" if self.serves else "at start"
            self._cluster.scheduler.mark(f"bookie_crashed_{where.replace(' ', '_')}")
            if self.crash_at_start is None and self._cluster.scheduler.chance(0.7):
                self._went_down(f"loses power {where}", self.crash)
            else:
                self._went_down(f"is killed {where}", self.kill)
        except (OSError, StorageFailed, MetadataUnavailable) as error:
            self._failed(error)
        except (FileDamaged, WrongDirectory) as error:
            if self.serves or self.name not in self._cluster.oracle.lost_disks:
                raise  # its disk is as it left it
            if isinstance(error, DataMissing):
                self._cluster.scheduler.mark("cookie_check_refused")
            if isinstance(error, BookieRetired):
                self._cluster.scheduler.mark("retired_name_refused")
            if isinstance(error, DataOutdated):
                self._cluster.scheduler.mark("older_disk_refused")
            if isinstance(error, DataCopied):
                self._cluster.scheduler.mark("copied_disk_refused")
            self.crash()
            if isinstance(error, DataOutdated | DataCopied) and self._cluster.scheduler.chance(0.5):
                self._loss_accepted()
            else:
                self._refuses_to_start(type(error).__name__)

    def _failed(self, error: Exception) -> None:
        scheduler = self._cluster.scheduler
        if not self.serves:
            without_store = isinstance(error, MetadataUnavailable)
            scheduler.mark("bookie_could_not_ask" if without_store else "bookie_could_not_start")
            self._went_down(f"cannot start: {type(error).__name__}", self.kill)
        elif isinstance(error, StorageFailed):
            scheduler.mark("bookie_stopped_by_its_disk")
            self._went_down(f"stops: {type(error).__name__}", self.kill)
        else:
            raise error

    def _went_down(self, what: str, end: Action) -> None:
        self._cluster.scheduler.note(self.name, what)
        end()
        if self.on_down is not None:
            self.on_down(self)

    def _settle(self, again_s: float = LOOK_S) -> None:
        """Look at what is in doubt, now and again, as `bookie.server.settling` does."""
        limbo = self.storage.limbo
        if limbo is None or limbo.phase is Phase.OVER:
            return
        store = SimStore(self._cluster.metadata, self.host)
        ledgers = LedgerStore(store, self._cluster.choices.layout.name)

        async def looked() -> Callable[[Limbo], Limbo] | None:
            try:
                return await look(limbo, ledgers, partial(doubtful_of, ledgers, self.name))
            except MetadataError:
                return None

        drive(looked(), partial(self._looked, again_s))

    def _looked(self, again_s: float, change: Callable[[Limbo], Limbo] | None) -> None:
        if change is not None:
            self.storage.judged(change)
            limbo = self.storage.limbo
            phase = Phase.OVER if limbo is None else limbo.phase
            self._cluster.scheduler.mark(f"limbo_{phase.name.lower()}")
        self.host.after(again_s, partial(self._settle, min(2 * again_s, LOOK_S_MAX)))

    def _open(self, doubt: str = "") -> None:
        entropy = self._cluster.scheduler.random.randbytes
        self.storage = BookieStorage.open(self.disk, self._config, doubt=doubt, entropy=entropy)
        self.core = BookieCore(self.storage)
        self._proven = Mark(0, 0)
        self._sessions.clear()
        self._committing = self._retrying = False
        self._until_durable.clear()
        self._until_changed.clear()
        self.serves = True

    # Requests, as they arrive.

    def add(self, run: AddRun, connection: int, reply: Callable[[Status], None]) -> None:
        """Take *run* as the next batch of *connection*."""
        if not self.serves:
            return
        session = self._sessions.get(connection)
        if session is None:
            session = self._sessions[connection] = _Session(self.core.session())
        fenced = self.name in self._cluster.oracle.ledger(run.ledger_id).fenced
        session.batches += 1
        session.replies.append(partial(self._answer_add, run, fenced, reply))
        session.state.offer(session.batches, (run,))
        self.after_work()

    def read(self, query: ReadQuery, reply: Callable[[ReadAnswer], None]) -> None:
        if not self.serves:
            return
        answer = partial(self._answer_read, query.ledger_id, query.fence, reply)
        failed = ReadAnswer(Status.IO_ERROR)
        _Request(self, self.core.read(query), answer, failed, query.wait_ms / 1000).resume(None)

    def read_lac(self, query: LacQuery, reply: Callable[[LacAnswer], None]) -> None:
        if not self.serves:
            return
        answer = partial(self._answer_read, query.ledger_id, query.fence, reply)
        failed = LacAnswer(Status.IO_ERROR)
        _Request(self, self.core.read_lac(query), answer, failed, 0.0).resume(None)

    # Promises, as they leave.

    def _answer_add(
        self, run: AddRun, fenced: bool, reply: Callable[[Status], None], status: Status
    ) -> None:
        scheduler, oracle = self._cluster.scheduler, self._cluster.oracle
        if status is Status.OK and not run.explicit_lac:
            self._check_bytes(run)
            oracle.stored(self.name, run.ledger_id, run.entries, by_writer=not run.recovery)
            self._promised()
            lost_it = self.has_lost_files and oracle.ledger(run.ledger_id).deleted
            if fenced and not run.recovery and not lost_it:
                oracle.ledger(run.ledger_id).broken_fences.append(
                    f"{self.name} took a normal add of {list(run.entries)} after it "
                    "answered that it is fenced"
                )
        if not run.explicit_lac:
            scheduler.note(
                self.name,
                f"answers {status.name} to {'recovery ' if run.recovery else ''}add "
                f"{run.entries[0]}..{run.entries[-1]} of {run.ledger_id}",
            )
        scheduler.mark(f"add_{status.name.lower()}")
        reply(status)

    def _check_bytes(self, run: AddRun) -> None:
        """See that what is promised to be stored is what the writer sent."""
        history = self._cluster.oracle.ledger(run.ledger_id)
        start = 0
        for entry, length in zip(run.entries, run.lengths, strict=True):
            if bytes(run.frames[start : start + length]) != history.sent[entry]:
                history.broken_promises.append(
                    f"{self.name} accepted other bytes of entry {entry} than the writer sent"
                )
            start += length

    def _answer_read(
        self, ledger_id: int, fence: bool, reply: Callable[[Answer], None], answer: Answer
    ) -> None:
        self._cluster.scheduler.mark(f"read_{answer.status.name.lower()}")
        if fence and answer.fenced:
            history = self._cluster.oracle.ledger(ledger_id)
            if self.name not in history.fenced:
                self._cluster.scheduler.note(self.name, f"promises that {ledger_id} is fenced")
                self._cluster.scheduler.mark("fenced")
                history.fenced[self.name] = None
                self._promised()
        reply(answer)

    def _promised(self) -> None:
        if self.on_promise is not None:
            self.on_promise(self)

    def _check_promises(self) -> None:
        """Compare what the storage has now with what this bookie has ever promised."""
        for ledger_id, history in self._cluster.oracle.ledgers.items():
            key = history.recorded.access_key if history.metadata else b""
            self._cluster.oracle.changed[ledger_id] = None
            if history.deleted and self._cluster.collects:
                continue  # it may be gone from here
            rotten = self.name in history.lost_disks
            lac = self.storage.lac(ledger_id, key)
            limbo = self.storage.limbo
            knows = lac.fenced or (rotten and lac.status is Status.IO_ERROR)
            knows |= limbo is not None and not limbo.takes_adds_to(ledger_id)
            knows |= self.has_lost_files and history.deleted  # nobody is misled any more
            if self.name in history.fenced and not knows:
                history.broken_fences.append(f"{self.name} forgot its fence in a restart")
            promised = [entry for entry, held in history.copies.items() if self.name in held]
            if not promised:
                continue
            if self._disk_was_replaced:
                history.broken_promises.append(f"{self.name} serves again, on an empty disk")
                continue
            query = ReadQuery(ledger_id, key, min(promised), max(promised), READ_ALL_BYTES)
            answer = self.storage.read(query)
            found = {entry: bytes(frame) for entry, frame in answer.each()}
            for entry in promised:
                if entry not in found and rotten:
                    answer = self.storage.read(ReadQuery(ledger_id, key, entry, entry))
                    if answer.status in {Status.IO_ERROR, Status.UNKNOWN}:
                        continue  # lost, and it knows: not a broken promise
                    if self.has_lost_files and not self._is_evidence(history):
                        continue
                    found |= {entry: bytes(frame) for entry, frame in answer.each()}
                if found.get(entry) != history.sent[entry]:
                    fate = "other bytes of" if entry in found else "lost"
                    history.broken_promises.append(
                        f"{self.name} had promised entry {entry}, after a restart it has "
                        f"{fate} it ({answer.status.name})"
                    )

    def _is_evidence(self, history: LedgerHistory) -> bool:
        """Whether somebody may conclude from a "no" of this bookie where the ledger ends."""
        if not history.is_there or history.recorded.last_entry is not None:
            return False
        return self.name in history.recorded.last_fragment.bookies

    # Work between requests.

    def until_durable(self, ticket: int, resume: Action) -> None:
        if ticket <= self.core.durable:
            resume()
        else:
            self._until_durable.append((ticket, resume))

    def until_changed(self, ledger_id: int, resume: Action) -> None:
        self._until_changed.setdefault(ledger_id, []).append(resume)

    def from_disk(self, read: Action) -> None:
        self._later(DISK_READ_S, read)

    def after_work(self) -> None:
        """Do what a request or a step of one has made possible."""
        if self.storage.has_pending() and not self._committing:
            self._committing = True
            self._later(self._cluster.fsync_s, self._commit)
        elif self.storage.read_only and not self._retrying:
            self._retrying = True
            self.host.after(NO_SPACE_RETRY_S, self._retry)
        for session in self._sessions.values():
            session.answer()
        for ledger_id in self.core.take_changed():
            for resume in self._until_changed.pop(ledger_id, ()):
                self.host.after(0.0, resume)

    def _retry(self) -> None:
        """See whether there is space again, also with nothing to write, as
        `bookie.server.service`."""
        self._retrying = False
        if self.storage.read_only and not self._committing:
            self._commit()

    def _commit(self) -> None:
        self._committing = False
        before = self.storage._journals.positions()[0]
        self.core.committed(self.storage.commit())
        if self.storage._journals.positions()[0] != before:  # else it only looked for space
            self._proven = before
        self._cluster.scheduler.mark("journal_committed")
        durable = self.core.durable
        waiting, self._until_durable = self._until_durable, deque()
        for ticket, resume in waiting:
            self.until_durable(ticket, resume)
        assert all(ticket > durable for ticket, _ in self._until_durable)
        self.after_work()

    def _tell(self) -> None:
        """Let the store know of the last checkpoint, one at a time."""
        if not self._telling:
            self._telling = True
            store = SimStore(self._cluster.metadata, self.host)
            drive(told(store, self.claim, self.storage.census), self._told)

    def _told(self, claim: Claim) -> None:
        self.claim = claim
        self._telling = False

    def _checkpoint(self) -> None:
        self.storage.checkpoint()
        self._tell()
        self._cluster.scheduler.mark("checkpoint")
        self.plan_checkpoint()

    def plan_checkpoint(self, after_s: float | None = None) -> None:
        """Let the next checkpoint begin *after_s* from now; draw that if it is not given."""
        if self._next_checkpoint is not None:
            self._next_checkpoint.cancel()
        if after_s is None:
            after_s = self._cluster.scheduler.random.uniform(*self._cluster.checkpoint_s)
        if self.serves:
            self._next_checkpoint = self.host.after(after_s, self._checkpoint)

    def _later(self, range_s: tuple[float, float], action: Action) -> None:
        self.host.after(self._cluster.scheduler.random.uniform(*range_s), action)


class _Session:
    """One client's connection: what `bookie.server.service` keeps per stream of adds."""

    def __init__(self, state: AddSession) -> None:
        self.state = state
        self.batches = 0
        self.replies: deque[Callable[[Status], None]] = deque()

    def answer(self) -> None:
        for ack in self.state.acks():
            for _ in range(ack.first, ack.last + 1):
                self.replies.popleft()(ack.statuses[0] if ack.statuses else Status.OK)


class _Request(Generic[Answer]):
    """One read under way: its steps, resumed when what they wait for has happened."""

    def __init__(
        self,
        bookie: SimBookie,
        steps: Generator[Need, Resume, Answer],
        answer: Callable[[Answer], None],
        failed: Answer,
        wait_s: float,
    ) -> None:
        self._bookie: SimBookie = bookie
        self._steps: Generator[Need, Resume, Answer] = steps
        self._answer: Callable[[Answer], None] = answer
        self._failed: Answer = failed
        self._wait_until = bookie.host.scheduler.now + wait_s
        self._waits = 0

    def resume(self, outcome: Resume) -> None:
        """Take the next step; a disk that cannot read is an error, as in
        `bookie.server.service`."""
        self._waits += 1
        try:
            need = self._steps.send(outcome)
        except StopIteration as stop:
            self._answer(stop.value)
        except (StorageError, OSError):
            self._answer(self._failed)
        else:
            self._wait_for(need)
        self._bookie.after_work()

    def _wait_for(self, need: Need) -> None:
        match need:
            case UntilDurable(ticket):
                self._bookie.until_durable(ticket, partial(self.resume, None))
            case UntilChanged(ledger_id):
                wait = self._waits
                left_s = max(0.0, self._wait_until - self._bookie.host.scheduler.now)
                self._bookie.until_changed(ledger_id, partial(self._wake, wait, outcome=True))
                self._bookie.host.after(left_s, partial(self._wake, wait, outcome=False))
            case Loaded(ledger_id):
                self._bookie.from_disk(partial(self._load, ledger_id))
            case FromDisk(query):
                self._bookie.from_disk(partial(self._read_disk, query))
            case _:
                assert_never(need)

    def _load(self, ledger_id: int) -> None:
        try:
            self._bookie.storage.load(ledger_id)
        except (StorageError, OSError):
            self._answer(self._failed)
        else:
            self.resume(None)

    def _read_disk(self, query: ReadQuery) -> None:
        try:
            answer = self._bookie.storage.read(query)
        except (StorageError, OSError):
            answer = ReadAnswer(Status.IO_ERROR)
        self.resume(answer)

    def _wake(self, wait: int, *, outcome: bool) -> None:
        """Resume the wait number *wait*, unless it is over."""
        if wait == self._waits:
            self.resume(outcome)
