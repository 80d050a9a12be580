"""One simulated world with repair: bookies that may be emptied, and processes that repair."""

from collections.abc import Callable
from functools import partial
from typing import Final

from bookie.server.authorizer import CopyEvidence
from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.manager.layout import LEDGERS
from ledger.mark import Reason, UnderreplicatedLedger
from ledger.quorum import Quorum
from ledger.registry import AVAILABLE, COOKIES
from ledger.repair_marks import LOCKS, MARKS, RepairLock, path_of_lock
from ledger.requests import AddRun, Status
from ledger.wire import metadata_pb2 as pb
from tests.simulation.addresses import Listener
from tests.simulation.bookie import SimBookie
from tests.simulation.client import describe
from tests.simulation.cluster import Choices
from tests.simulation.kernel.scheduler import Scheduler
from tests.simulation.kernel.sockets import Machine
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import NO_LIFELINES
from tests.simulation.logs.serving import Serving
from tests.simulation.logs.world import Bookies, World
from tests.simulation.process import SimProcess
from tests.simulation.repair.oracle import (
    Copied,
    Forgotten,
    MarkedLost,
    Repairs,
    Revived,
    Unmarked,
    Written,
)
from tests.simulation.repair.process import RepairProcess
from tests.simulation.store import SimStore
from tests.simulation.transport import Adding

HEALED_CHECKPOINT_S: Final = 2.0, 20.0
FORGER: Final = "uri:dlog:bookie:evil"
FORGERS_CONNECTION: Final = -1
_PREFIX: Final = "urL"


class RepairWorld(World):
    def __init__(
        self,
        scheduler: Scheduler,
        *,
        bookies: Bookies,
        quorum: Quorum,
        choices: Choices,
        lags_s: tuple[float, ...],
        collects: bool,
        grace_ms: int,
        disks_fail: bool,
    ) -> None:
        super().__init__(
            scheduler,
            bookies=bookies,
            quorum=quorum,
            choices=choices,
            lags_s=lags_s,
            lifelines=NO_LIFELINES,
            late_replies=0.0,
            lies=0.0,
            skew_s=0.0,
            collects=collects,
        )
        self.ledgers = LedgerStore(SimStore(self.metadata, self.operator), choices.layout.name)
        self.oracle.may_move = True
        self.repairs = Repairs(self.oracle, grace_ms, disks_fail)
        self.metadata.on_report = self._reported
        self.workers: list[RepairProcess] = []
        """All processes of repair."""
        self._registered: dict[BookieId, float] = {}
        """Since when bookies are registered."""
        self._servings: dict[BookieId, Serving] = {}

    def new_bookie(self) -> SimBookie:
        """Let another bookie come, with a name of its own."""
        name = BookieId(f"b{len(self.bookies) + 1}")
        assert name not in self.bookies, "names of incarnations are others"
        self.racks[name] = self.racks[BookieId("b1")]
        bookie = self.bookies[name] = SimBookie(self, name, self._storage)
        if self.on_new_bookie is not None:
            self.on_new_bookie(bookie)
        return bookie

    def heal(self) -> None:
        """Let there be fewer checkpoints: nothing is left that they could meet."""
        self._set_checkpoints(HEALED_CHECKPOINT_S)

    def repairer(self, role: str) -> RepairProcess:
        """Return a new process: an "auditor", a "worker", or one that does "leaving"."""
        process = self.process(role)
        assert isinstance(process, RepairProcess)
        self.workers.append(process)
        return process

    def _make_process(self, name: str, machine: Machine, address: str) -> Process:
        return RepairProcess(self, name, machine, address)

    def serve(self, bookie: SimBookie) -> None:
        if bookie.read_only:
            bookie.storage.set_read_only(read_only=True)
        serving = self._servings[bookie.name] = Serving(self, bookie, read_only=bookie.read_only)
        self.loops.append(serving.loop)

    def announce_read_only(self, bookie: SimBookie) -> None:
        self._servings[bookie.name].set_read_only()

    # What is seen of repair.

    def copied(self, by: Process, bookie: BookieId, run: AddRun) -> None:
        assert isinstance(by, RepairProcess)
        ledger_id = LedgerId(run.ledger_id)
        recovering = ledger_id in by.recovering
        if not recovering:
            by.targets.setdefault(ledger_id, {})[bookie] = None
            self.scheduler.mark("entry_copied")
        by.note(f"copies {run.entries[0]}..{run.entries[-1]} of {ledger_id} to {bookie}")
        self.repairs.happened.append(
            Copied(
                ledger_id,
                by.name,
                bookie,
                tuple(run.entries),
                bytes(run.frames),
                tuple(run.lengths),
                recovering,
                by.had.get((ledger_id, bookie), frozenset()),
            )
        )

    # Who may copy what: the bookies ask the production rule, by what the store has just then.

    def adding(self, by: SimProcess, target: Listener, run: AddRun) -> Adding:
        assert isinstance(by, RepairProcess)
        assert isinstance(target, SimBookie)
        if not run.recovery or LedgerId(run.ledger_id) in by.recovering:
            return super().adding(by, target, run)  # with the role of a writer
        return partial(self._add_copy, by, target, run)

    def _add_copy(
        self,
        by: RepairProcess,
        target: SimBookie,
        run: AddRun,
        connection: int,
        reply: Callable[[Status], None],
    ) -> None:
        if reason := self._why_not_copied(target, run, by.identity):
            self.scheduler.mark("copy_refused")
            by.note(f"is refused a copy to {target.name}: {reason}")
            reply(Status.ACCESS_DENIED)
        else:
            target.add(run, connection, reply)

    def forge(self, target: SimBookie, run: AddRun) -> None:
        """Send *run* with the certificate of a bookie that repairs nothing."""
        if self._why_not_copied(target, run, FORGER):
            self.scheduler.mark("forgery_refused")
        elif target.host.up:
            self.scheduler.mark("forgery_taken")
            target.add(run, FORGERS_CONNECTION, _unheard)

    def _why_not_copied(self, target: SimBookie, run: AddRun, who: str) -> str:
        ledger_id = LedgerId(run.ledger_id)
        history = self.oracle.ledgers.get(ledger_id)
        if history is None or not history.is_there:
            return "there is no such ledger"
        path = path_of_lock(ledger_id)
        is_locked = self.metadata.tree.exists(path) is not None
        lock = RepairLock.decode(self.metadata.tree.get(path).value, path) if is_locked else None
        return CopyEvidence(history.recorded, lock).why_not(run, target.name, who)

    def _reported(self, path: str, by: str) -> None:
        """A node has changed."""
        if path.startswith(f"{LEDGERS}/"):
            self._ledger_written(path, by)
        elif path.startswith(f"{MARKS}/") and (ledger_id := _ledger_of(path)) is not None:
            self._mark_changed(path, ledger_id, by)
        elif path.startswith(f"{LOCKS}/") and (ledger_id := _ledger_of(path)) is not None:
            if self.metadata.tree.exists(path) is None:
                self.repairs.locks.pop(ledger_id, None)
            else:
                self.repairs.locks[ledger_id] = None
        elif path.startswith(f"{AVAILABLE}/"):
            self._registration_changed(path)
        elif path.startswith(f"{COOKIES}/"):
            self._cookie_written(path, BookieId(path.rpartition("/")[2]), by)

    def _cookie_written(self, path: str, bookie: BookieId, by: str) -> None:
        """A name is left once its cookie says that it was emptied, or is deleted."""
        tree = self.metadata.tree
        is_there = tree.exists(path) is not None
        if is_there and not pb.CookieNode.FromString(tree.get(path).value).emptied_ms:
            if bookie in self.repairs.forgotten:
                self.repairs.happened.append(Revived(bookie, by))
            return
        if bookie in self.repairs.forgotten:
            return
        self.scheduler.mark("bookie_forgotten")
        self.bookies[bookie].is_forgotten = True
        self.repairs.forgotten.add(bookie)
        self.repairs.happened.append(Forgotten(bookie, by))

    def _ledger_written(self, path: str, by: str) -> None:
        names = tuple(path.split("/")[2:])
        if len(names) != self.choices.layout.depth or self.metadata.tree.exists(path) is None:
            return
        ledger_id = self.choices.layout.ledger_id(names)
        written = self.oracle.ledgers[ledger_id].metadata
        if len(written) < 2:
            return
        change = Written(ledger_id, by, written[-2][1], written[-1][1])
        self.repairs.happened.append(change)
        if change.by_a_worker:
            self.scheduler.note(by, f"made ledger {ledger_id} {describe(change.after)}")

    def _mark_changed(self, path: str, ledger_id: LedgerId, by: str) -> None:
        tree, repairs = self.metadata.tree, self.repairs
        process = next((each for each in self.workers if each.name == by), None)
        if tree.exists(path) is not None:
            mark = UnderreplicatedLedger.decode(tree.get(path).value, path=path)
            self.scheduler.note(by, f"marks {ledger_id}: {_said(mark)}")
            before = repairs.marks.get(ledger_id, UnderreplicatedLedger(()))
            if not before.missing:
                self.scheduler.mark("ledger_marked")
            repairs.marked(ledger_id, mark)
            if process is not None and by.startswith("auditor"):
                self._marked_lost(ledger_id, process, before, mark)
            return
        seen = None if process is None else process.saw.seen.get(path)
        self.scheduler.note(by, f"unmarks {ledger_id}")
        self.scheduler.mark("ledger_unmarked")
        mark = repairs.marks.pop(ledger_id)
        seen_at = 0 if process is None else process.saw.seen_at.get(path, 0)
        was_confirmed = repairs.confirmed.get(ledger_id, 0) > seen_at
        repairs.happened.append(Unmarked(ledger_id, by, mark, seen, was_confirmed))

    def _marked_lost(
        self,
        ledger_id: LedgerId,
        by: RepairProcess,
        before: UnderreplicatedLedger,
        after: UnderreplicatedLedger,
    ) -> None:
        known = {replica.bookie for replica in before.missing if replica.reason is Reason.LOST}
        for replica in after.missing:
            if replica.reason is Reason.LOST and replica.bookie not in known:
                since_s = self._registered.get(replica.bookie)
                read_s = by.saw.ledgers_read_s
                self.repairs.happened.append(
                    MarkedLost(ledger_id, by.name, replica.bookie, since_s, read_s)
                )

    def _registration_changed(self, path: str) -> None:
        bookie, tree = BookieId(path.rpartition("/")[2]), self.metadata.tree
        if tree.exists(path) is None:
            self._registered.pop(bookie, None)
        elif bookie not in self._registered:
            self._registered[bookie] = self.scheduler.now


def _ledger_of(path: str) -> LedgerId | None:
    name = path.rpartition("/")[2]
    return LedgerId(int(name.removeprefix(_PREFIX))) if name.startswith(_PREFIX) else None


def _said(mark: UnderreplicatedLedger) -> str:
    missing = " ".join(f"{each.bookie}={each.reason.name}" for each in mark.missing)
    return f"{missing} attempts {mark.attempts} {mark.deferred_why}"


def _unheard(_status: Status) -> None:
    """A forger needs no answer."""
