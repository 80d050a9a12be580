"""A simulated bookie: the lives of a process on production storage, and what befalls its disk.

Its starts, its limbo and its checkpoints are production code as `bookie.process` calls it; a crash
may come between any two steps. What it does with requests is in `service`, what it promises by the
answers in `promises`: after each restart it is asked whether it kept that.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from bookie.disk.port import Directories, DiskFull
from bookie.errors import (
    BookieRetired,
    BookieSuperseded,
    DataCopied,
    DataMissing,
    DataOutdated,
    FileDamaged,
    StorageFailed,
    WrongDirectory,
)
from bookie.identity import lives
from bookie.identity.lives import Claim
from bookie.identity.restore import honour
from bookie.identity.stamp import Identity, accept_loss, identify, settle_doubt
from bookie.index.format import SUFFIX as INDEX_SUFFIX
from bookie.index.tombstones import FENCES_PATH
from bookie.journal.format import DIRECTORY as JOURNAL
from bookie.journal.format import FILE_HEADER_BYTES, FILE_SUFFIX, JournalMark, path_of
from bookie.journal.recovery import read_mark
from bookie.loss.census import LOGS_PATH, ROLL_PATH
from bookie.loss.limbo import Limbo, LimboPhase
from bookie.server.loss_resolver import doubtful_of, look
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.errors import BookieForgotten, MetadataError, MetadataUnavailable, StorageError
from ledger.ids import BookieId, BookieIdentity
from ledger.manager import LedgerStore
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from tests.simulation.disk import PowerLost, SimDisk
from tests.simulation.disks_elsewhere import TwoOfOneIdentity, in_window, stop_cleanly, told
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.scheduler import Action, Timer
from tests.simulation.promises import Promises
from tests.simulation.service import SimService
from tests.simulation.store import SimStore, drive

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Answer = TypeVar("Answer", ReadAnswer, LacAnswer)
Result = TypeVar("Result")

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
COUNTED: Final = "counted files"
"""Fences and rolls: what is in them is nowhere else, and what they are is counted."""
JOURNAL_END: Final = "end of the journal"
INSTANCE: Final = "simulated"
"""Of the namespace, in every cookie."""


async def at_once(call: Callable[[], Result]) -> Result:
    """Call what blocks: simulated disks take no time of their own."""
    return call()


class SimBookie:
    def __init__(self, cluster: "Cluster", name: BookieId, config: StorageConfig) -> None:
        self.name = name
        self.host = Host(cluster.scheduler, name)
        self.host.guard = self._guard
        self.on_promise: Callable[[SimBookie], None] | None = None
        """Called with each durable add or fence that is promised; the faults listen."""
        self.on_down: Callable[[SimBookie], None] | None = None
        """Called when it went down by itself, and must be restarted by somebody."""
        self.gone = False
        """Whether it never comes back: what it had promised is not on its disk any more."""
        self.crash_at_start: tuple[str, str] | None = None
        """Of the disk: operation and path at which the power fails in the next start."""
        self.disk = SimDisk(cluster.scheduler.random)
        self.disk_was_replaced = False
        self.has_lost_files = False
        self.has_rotted = False
        """Whether it is in limbo for what it lost, or was."""
        self.is_forgotten = False
        """Whether an operator had its name forgotten, as nothing names it any more."""
        self.read_only = False
        """Whether an operator said so; it is kept, whatever crashes."""
        self.claim: Claim
        """What this life knows of itself in the store."""
        self._telling = False
        self.storage: BookieStorage
        self._service: SimService | None = None
        """Of this life, or of the last one that came so far."""
        self._next_checkpoint: Timer | None = None
        self.serves = False
        """Until it knows who it is and has replayed its journal it answers nobody."""
        self._cluster = cluster
        self._config = config
        self._promises = Promises(cluster, self)
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
        self.disk_was_replaced = True
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
    def identity(self) -> BookieIdentity:
        """What it says in a handshake, once it serves."""
        cookie = self.claim.cookie
        return BookieIdentity(cookie.instance, cookie.cookie, cookie.life)

    @property
    def service(self) -> SimService:
        """What handles the requests of this life."""
        assert self._service is not None, "it has never served"
        return self._service

    @property
    def _synced(self) -> JournalMark:
        """Up to here the journal says of itself that it was synced."""
        return JournalMark(0, 0) if self._service is None else self._service.synced

    @property
    def journal(self) -> str:
        """The path of the journal file whose commits were seen to be durable last."""
        return path_of(self._synced.journal_id)

    def rot(self, path: str) -> None:
        """Let one byte of a file change on the disk.

        Not of the journal's last commit: nothing distinguishes that from a torn write (rule 61)."""
        first, size_bytes = 0, len(self.disk.content(path))
        if path == self.journal:
            size_bytes = self._synced.offset
            first = max(0, size_bytes - RECENT_BYTES)  # most before it is behind the mark
        elif path.startswith(JOURNAL) and path > path_of(self._synced.journal_id):
            return
        offset = self._cluster.scheduler.random.randrange(first, size_bytes)
        before = self.disk.content(path)[offset]
        self.disk.damage(path, offset, bytes([before ^ 0x55]))
        self.has_rotted = True
        self._cluster.oracle.lost_disk(self.name, wholly=False)
        self._cluster.scheduler.note(self.name, f"byte {offset} of {path} rots")
        self._cluster.scheduler.mark("disk_rotted")

    def indexes_unlike(self, backup: SimDisk) -> list[str]:
        """Return the index files that are here, and others in *backup*."""
        both = set(self.disk.files()).intersection(backup.files())
        return [
            path
            for path in sorted(both)
            if path.endswith(INDEX_SUFFIX) and self.disk.content(path) != backup.content(path)
        ]

    def put_back(self, path: str, backup: SimDisk) -> None:
        """Crash, and find that somebody put one file back from *backup*: it is whole, and older."""
        if self.host.up:
            self.crash()
        self.disk.cut(path, 0)
        self.disk.damage(path, 0, backup.content(path))
        self.has_rotted = True
        self._cluster.oracle.lost_disk(self.name, wholly=False)
        self._cluster.scheduler.note(self.name, f"has {path} back from a backup")
        self._cluster.scheduler.mark("index_put_back")

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
        counted = [path for path in (FENCES_PATH, ROLL_PATH, LOGS_PATH) if path in files]
        if counted:
            ways.append(COUNTED)
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
        elif way == COUNTED:
            lost = random.sample(counted, 1)
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
        self._promises.check()

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
        restored = identity.restored
        self._open(identity.doubt or "", "" if restored is None else restored.reason)
        if identity.doubt is not None:
            settle_doubt(Directories.single(self.disk))
        if restored is None:
            self._serve(is_restored=False)
            return
        self.serves = False
        ledgers = LedgerStore(
            SimStore(self._cluster.metadata, self.host), self._cluster.choices.layout.name
        )
        steps = honour(
            ledgers, self.storage, Directories.single(self.disk), restored, blocking=at_once
        )
        drive(steps, lambda _none: self._serve(is_restored=True))

    def _serve(self, *, is_restored: bool) -> None:
        self.serves = True
        self._settle()
        self._telling = False
        self._tell()
        self._cluster.serve(self)
        self.plan_checkpoint()
        if self.host.life > 0 and not is_restored:
            self._promises.check()
            self._cluster.scheduler.mark("bookie_restarted")
        self.disk_was_replaced = False  # it had promised nothing: this is its disk from now on
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
        """An operator says that this disk is all that is left: it comes back, in limbo. Where the
        command meets an error of the disk, the operator gives the bookie up."""
        try:
            accept_loss(Directories.single(self.disk), "accepted")
        except OSError as error:
            self._refuses_to_start(f"its disk fails: {error.strerror}")
            return
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
        except (OSError, StorageFailed, MetadataUnavailable, BookieForgotten) as error:
            self._failed(error)
        except BookieSuperseded:
            if not self.is_forgotten:
                raise
            self._cluster.scheduler.mark("emptied_bookie_ended")
            self.crash()
            self.gone = True
        except (FileDamaged, WrongDirectory) as error:
            known = self.name in self._cluster.oracle.lost_disks or self.is_forgotten
            if self.serves or not known:
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
        """Look at what is in doubt, now and again, as `bookie.server.loss_resolver` does."""
        limbo = self.storage.limbo
        if limbo is None or limbo.phase is LimboPhase.OVER:
            return
        store = SimStore(self._cluster.metadata, self.host)
        ledgers = LedgerStore(store, self._cluster.choices.layout.name)

        async def looked() -> Callable[[Limbo], Limbo] | None:
            try:
                doubtful = partial(doubtful_of, ledgers, self.name, floor=limbo.floor)
                return await look(limbo, ledgers, doubtful)
            except MetadataError:
                return None

        drive(looked(), partial(self._looked, again_s))

    def _looked(self, again_s: float, change: Callable[[Limbo], Limbo] | None) -> None:
        if change is not None:
            self.storage.judged(change)
            limbo = self.storage.limbo
            phase = LimboPhase.OVER if limbo is None else limbo.phase
            self._cluster.scheduler.mark(f"limbo_{phase.name.lower()}")
        self.host.after(again_s, partial(self._settle, min(2 * again_s, LOOK_S_MAX)))

    def _open(self, doubt: str = "", restored: str = "") -> None:
        entropy = self._cluster.scheduler.random.randbytes
        self.storage = BookieStorage.open(
            self.disk, self._config, doubt=doubt, restored=restored, entropy=entropy
        )
        self._service = SimService(self._cluster, self.host, self.storage)
        self.serves = True

    # Requests, as they arrive.

    def add(self, run: AddRun, connection: int, reply: Callable[[Status], None]) -> None:
        """Take *run* as the next batch of *connection*."""
        if self.serves:
            self.service.add(run, connection, self._promises.of_add(run, reply))

    def read(self, query: ReadQuery, reply: Callable[[ReadAnswer], None]) -> None:
        if self.serves:
            self.service.read(query, self._promises.of_read(query, reply))

    def read_lac(self, query: LacQuery, reply: Callable[[LacAnswer], None]) -> None:
        if self.serves:
            self.service.read_lac(query, self._promises.of_read(query, reply))

    def read_held(self, query: HeldQuery, reply: Callable[[HeldAnswer], None]) -> None:
        if self.serves:
            self.service.read_held(query, self._promises.of_held(query, reply))

    def turn_read_only(self, reply: Callable[[bool], None]) -> None:
        """Obey an operator, as `bookie.server.read_only` does."""
        if self.serves:
            self.read_only = True
            self.storage.set_read_only(read_only=True)
            self._cluster.announce_read_only(self)
            reply(True)

    # Evictions.

    def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        """Evict what may be of an *offer*; the power may fail in the middle of it."""
        storage, oracle = self.storage, self._cluster.oracle
        for ledger_id in ledger_ids:
            if storage._holdings.may_be_evicted(ledger_id, offer):
                oracle.ledger(ledger_id).evicting[self.name] = None
        with suppress(DiskFull):
            storage.evict(ledger_ids, offer)
        here = storage.ledger_ids()
        for ledger_id in ledger_ids:
            evicting = oracle.ledger(ledger_id).evicting
            if self.name in evicting and ledger_id not in here:
                oracle.evicted(self.name, ledger_id)
                self._cluster.scheduler.note(self.name, f"evicts ledger {ledger_id}")
                self._cluster.scheduler.mark("ledger_evicted")
            evicting.pop(self.name, None)
        self.service.deleted(ledger_ids)

    # Checkpoints.

    def _tell(self) -> None:
        """Let the store know of the last checkpoint, one at a time."""
        if not self._telling:
            self._telling = True
            store = SimStore(self._cluster.metadata, self.host)
            drive(told(store, self.claim, self.storage.census), self._told)

    def look_again(self) -> None:
        """Read whose name it has, as a bookie does whose session was gone."""

        async def looked() -> Claim:
            try:
                claim = await lives.look(SimStore(self._cluster.metadata, self.host), self.claim)
            except MetadataError:
                self.host.after(LOOK_S, self.look_again)
                return self.claim
            if self.is_forgotten:
                raise TwoOfOneIdentity(self.name)  # it has read that its name is retired
            return claim

        drive(looked(), self._told)

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
