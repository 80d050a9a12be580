"""The scenario of repair: bookies are lost, emptied and come back while ledgers are written.

Writers, recoverers and readers of the ledger scenario, its bookies, network, metadata store and
faults; beside them auditors, workers and operators that empty bookies, each a process on production
drivers, which crash, pause, or sleep for hours at any of their calls. Bookies are away for longer
than the auditor waits, disks are lost and bookies of other names take their place, collectors run.
Safety is checked after every step. Once nothing is wrong any more every entry must get all of its
copies back, and no mark and no lock be left; once more when who slept has woken up.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import ClassVar, Final

from bookie.autorecovery.auditor import Auditor
from bookie.autorecovery.move_job import LedgerMove, MoveJob, decommission
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.protocol.move_job import MoveOutcome as Left
from bookie.autorecovery.protocol.repair import RepairConfig
from bookie.autorecovery.repair_io import CopyPace
from bookie.autorecovery.worker import Worker, WorkerConfig
from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, Reason
from ledger.reader import LedgerReader
from tests.simulation.away import GONE_S, send_away
from tests.simulation.bookie import SimBookie
from tests.simulation.client import PASSWORD
from tests.simulation.cluster import Cluster
from tests.simulation.disks_elsewhere import start_anew
from tests.simulation.faults import Faults
from tests.simulation.kernel.invariants import meaning
from tests.simulation.kernel.simulation import SLEEP_S
from tests.simulation.logs.world import Bookies
from tests.simulation.process import BOOKIES, STORE
from tests.simulation.profile import Profile
from tests.simulation.recovering import RecoveringClient
from tests.simulation.repair.coverage import REQUIRED_OF_REPAIR
from tests.simulation.repair.faults import RepairFaults, Sleep, Stop
from tests.simulation.repair.invariants import MODULES, rest_is_fully_replicated
from tests.simulation.repair.invariants import check as check_repairs
from tests.simulation.repair.oracle import Bounded
from tests.simulation.repair.process import RepairProcess
from tests.simulation.repair.profile import RepairProfile, draw
from tests.simulation.repair.watching import watched_marks, watched_repairs
from tests.simulation.repair.world import RepairWorld
from tests.simulation.workload import LedgerSimulation
from tests.simulation.writing import WritingClient

SPARES: Final = 2
"""So many bookies more than an ensemble has are there at the end."""
LEAVE_AGAIN_S: Final = 1.0
SEEN_S: Final = 10.0
"""Until an operator sees that a bookie is empty, at most."""
SYNCED_S: Final = 5.0
"""Within it what came last is durable."""
ASKERS: Final = 2
"""Readers that ask what was acknowledged."""
ASKERS_SLEEP: Final = 0.7
ASKER_CALLS: Final = 30
"""One of so many of their first calls within a question is where they sleep."""
ASKS_OF_A_READER: Final = 5
FOUND_FIRST_S: Final = 2.0
"""Within it all writers have begun, or at least tried."""


class RepairSimulation(LedgerSimulation):
    name = "repair"
    required = REQUIRED_OF_REPAIR
    invariants: ClassVar = {
        **LedgerSimulation.invariants,
        **{name: meaning(module) for name, module in MODULES.items()},
    }
    steps_max = 1_500_000
    healed_s_max = 2 * 3600.0
    steps_per_look = 200
    repair: RepairProfile
    cluster: RepairWorld

    def _draw(self) -> Profile:
        self.repair = self.simpler(draw(self._random))
        return self.repair.floor

    def _make_cluster(self) -> Cluster:
        floor = self.repair.floor
        return RepairWorld(
            self.scheduler,
            bookies=Bookies(
                count=floor.bookies,
                storage=floor.storage,
                fsync_s=floor.fsync_s,
                checkpoint_s=floor.checkpoint_s,
            ),
            quorum=floor.quorum,
            choices=floor.choices,
            lags_s=self.repair.lags_s,
            collects=self.repair.collects,
            grace_ms=round(self.repair.grace_s * 1000),
            disks_fail=floor.disk_errors or floor.weather.corrupt > 0,
        )

    def _make_faults(self) -> Faults:
        return RepairFaults(self.cluster, self.repair)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        marked = watched_marks(self.cluster.repairs)
        with super()._surroundings(), watched_repairs(), marked:
            yield

    def _run(self) -> None:
        self.scheduler.note("world", f"{self.repair}")
        self._asks = Random(f"asks {self.scheduler.seed}")
        """Apart from the others' lot: what they draw stays as it is."""
        self._leaving: dict[BookieId, RepairProcess] = {}
        """Bookies that are to be emptied, and who does it now."""
        self._given_up: dict[LedgerId, None] = {}
        self._nobody_repairs = False
        for _ in range(self.repair.auditors):
            self._audit()
        for _ in range(self.repair.workers):
            self._work()
        for _ in range(ASKERS):
            self._ask()
        self._step_until(FOUND_FIRST_S)
        if self.profile.away_first:
            back_s = 1.5 * self.profile.faults_s
            send_away(self.cluster, self._random, self.profile.away_first, back_s=back_s)
            self._step_until(self.scheduler.now + GONE_S)
        self._faults.begin()
        self._faults_until = self.scheduler.now + self.profile.faults_s
        writers = [self.cluster.writer() for _ in range(self.profile.ledgers)]
        for writer in writers:
            at_s = self._random.choice((0.0, 0.0, 0.5)) * self._random.random()
            self.scheduler.after(at_s * self.profile.faults_s, partial(self._write, writer))
        for _ in range(self.repair.leaving):
            at_s = self._random.uniform(0.0, self.profile.faults_s)
            self.scheduler.after(at_s, self._leave)
        self._step_until(self._faults_until)
        self._faults.heal()
        self._healed = True
        self.cluster.heal()
        self._make_room()
        self._audit()
        self._work()
        for writer in writers:
            self._supervise(writer)
        self._step_until_idle("not repaired after healing")
        self._wake_sleepers()
        self._check_list()
        self._check_disks()

    def _write(self, writer: WritingClient) -> None:
        writer.begin(self._begun)

    def _begun(self, writer: WritingClient) -> None:
        self._created(writer)
        self._meet_fate(writer)

    # Repair.

    def _audit(self) -> None:
        process = self.cluster.repairer("auditor")
        self._stop(process, self._audit)
        process.run(self._auditing(process))

    async def _auditing(self, process: RepairProcess) -> None:
        await process.begin()
        config = AuditConfig(
            delay_s=self.repair.delay_s,
            check_s=10.0,
            retry_s=1.0,
            check_all_s=self.repair.check_all_s,
            replicas_s=self.repair.check_all_s,
            check_again_s=3.0,
        )
        await Auditor(process.ledgers, config).run()

    def _work(self) -> None:
        process = self.cluster.repairer("worker")
        self._stop(process, self._work)
        process.run(self._working(process))

    async def _working(self, process: RepairProcess) -> None:
        await process.begin()
        config = WorkerConfig(
            look_s=self.repair.look_s,
            ledgers_max=self._random.choice((1, 4)),
            bytes_per_s=self._random.choice((0.0, 5000.0)),
            repair=RepairConfig(open_fragment_grace_ms=round(self.repair.grace_s * 1000)),
        )
        await Worker(process.ledgers, config).run()

    def _ask(self) -> None:
        """Let a reader ask again and again what was acknowledged, and sleep somewhere within it."""
        process = self.cluster.repairer("asker")
        if self._asks.random() < ASKERS_SLEEP:
            process.on_call = Sleep(
                process,
                self._asks.choice((STORE, BOOKIES, BOOKIES)),
                1 + self._asks.randrange(ASKER_CALLS),
                before=self._asks.random() < 0.7,
                healed=lambda: self._healed,
            )
        process.run(self._asking(process, Random(self._asks.getrandbits(32))))

    async def _asking(self, process: RepairProcess, random: Random) -> None:
        await process.begin()
        oracle = self.cluster.oracle
        while True:
            await asyncio.sleep(random.choice((0.01, 0.3, 3.0)))
            there = [each for each, history in oracle.ledgers.items() if history.is_there]
            if not there:
                continue
            with suppress(LogError):
                ledger_id = random.choice(there)
                reader = await process.ledgers.open_no_recovery(ledger_id, password=PASSWORD)
                try:
                    for _ in range(ASKS_OF_A_READER):
                        await self._bounded(process, reader)
                        await asyncio.sleep(random.choice((0.0, 0.1, 1.0)))
                finally:
                    await reader.close()

    async def _bounded(self, process: RepairProcess, reader: LedgerReader) -> None:
        ledger_id, was_closed = reader.ledger_id, reader.closed
        acknowledged = self.cluster.oracle.ledgers[ledger_id].acknowledged
        slept_s, process.asks_of = process.world.scheduler.now, ledger_id
        bound = await reader.read_last_stored()
        process.asks_of = None
        if not was_closed and process.world.scheduler.now - slept_s > SLEEP_S[0]:
            process.mark("asker_slept_within_a_question")
        process.mark("asker_answered")
        bounded = Bounded(ledger_id, process.name, acknowledged, bound)
        self.cluster.repairs.happened.append(bounded)

    def _stop(self, process: RepairProcess, again: Callable[[], None]) -> None:
        """Let something happen to *process*; if it crashes, another one takes its place."""

        def crashed(_process: RepairProcess) -> None:
            self.scheduler.after(self._random.uniform(0.1, 3.0), restart)

        def restart() -> None:
            if not self._nobody_repairs:
                again()

        fates = self.repair.fates if self.scheduler.chance(self.repair.stopped) else ("lives",)
        process.on_call = Stop(
            process,
            self._random.choice(fates),
            1 + self._random.randrange(self.repair.fate_calls),
            healed=lambda: self._healed,
            on_crash=crashed,
        )

    def _leave(self) -> None:
        """An operator empties a bookie, whatever that takes."""
        bookies = [
            each
            for each in self.cluster.bookies.values()
            if not each.gone and each.name not in self._leaving
        ]
        if len(bookies) <= self.cluster.quorum.ensemble or self._healed:
            return
        bookie = self._random.choice(bookies).name
        self.scheduler.mark("bookie_leaving")
        self._leave_again(bookie)

    def _leave_again(self, bookie: BookieId) -> None:
        process = self._leaving[bookie] = self.cluster.repairer("leaving")
        self._stop(process, partial(self._leave_again, bookie))
        process.run(self._emptying(process, bookie))

    async def _emptying(self, process: RepairProcess, bookie: BookieId) -> None:
        await process.begin()
        finish = await decommission(
            process.ledgers, bookie, pause_s=LEAVE_AGAIN_S, ask_read_only=process.ask_read_only
        )
        process.note(f"has emptied {bookie}: {finish.outcome.value} {finish.why}")
        process.mark(f"left_{finish.outcome.name.lower()}")
        if finish.outcome is Left.EMPTY:
            at_s = self._random.uniform(0.0, SEEN_S)
            self.scheduler.after(at_s, partial(self._switch_off, bookie))
        else:
            self._leaving.pop(bookie, None)
        if finish.outcome is Left.RETIRED:
            self._use_again(bookie)

    def _switch_off(self, name: BookieId) -> None:
        """The bookie is empty: it is stopped for good, and its name can be retired. Or somebody
        believes that it has stopped, and it stands still."""
        bookie = self.cluster.bookies[name]
        if bookie.host.up and not bookie.host.paused:
            if not self._healed and self._random.random() < 0.5:
                bookie.host.pause()
                bookie.host.asleep = True  # until its name is retired, whatever heals
                self.scheduler.mark("emptied_bookie_stands_still")
            else:
                bookie.crash()
        bookie.gone = True
        self._leave_again(name)

    def _use_again(self, name: BookieId) -> None:
        """Somebody takes the name for a new bookie, before or after the one of before wakes up."""
        bookie = self.cluster.bookies[name]
        self.scheduler.after(
            self._random.uniform(0.0, 5.0), partial(start_anew, self.cluster, name)
        )
        if bookie.host.up and bookie.host.paused:
            self.scheduler.after(self._random.uniform(0.0, 5.0), partial(self._wake, bookie))

    def _wake(self, bookie: SimBookie) -> None:
        if bookie.host.up and bookie.host.paused:
            bookie.host.resume()
            self.scheduler.mark("emptied_bookie_woke")
            bookie.host.after(self._random.uniform(0.0, 3.0), bookie.look_again)

    def _make_room(self) -> None:
        """Let there be bookies to repair to."""
        there = [
            each
            for each in self.cluster.bookies.values()
            if not each.gone and not each.read_only and each.name not in self._leaving
        ]
        for _ in range(self.cluster.quorum.ensemble + SPARES - len(there)):
            self.cluster.new_bookie()

    # The end.

    def _supervise(self, writer: WritingClient) -> None:
        """See `Simulation`; what counts on a bookie that is gone for good is left to repair."""
        history = self.cluster.oracle.ledgers.get(writer.ledger_id)
        if history is not None and history.is_there and not self._is_closed(writer.ledger_id):
            bookies = history.recorded.last_fragment.bookies
            if any(self.cluster.bookies[bookie].gone for bookie in bookies):
                self.scheduler.after(1.0, partial(self._supervise, writer))
                return
        super()._supervise(writer)

    def _hopeless(self) -> dict[LedgerId, None]:
        """Return the ledgers that are given up: for good, though who slept may bring one back."""
        self._given_up |= rest_is_fully_replicated.hopeless(self.cluster)
        return self._given_up

    def _busy(self) -> list[str]:
        hopeless = self._hopeless()
        waiting = [each.name for each in self.cluster.readers if each.ledger_id in hopeless]
        busy = [each for each in super()._busy() if each not in waiting]
        busy += [
            f"emptying {bookie}"
            for bookie, process in self._leaving.items()
            if not (process.host.up and process.host.asleep)
            and not any(self._is_named(bookie, ledger_id) for ledger_id in hopeless)
        ]
        if not busy:
            lacking = rest_is_fully_replicated.broken(self.cluster, hopeless)
            busy += [lacking] if lacking else []
        return busy

    def _is_closed(self, ledger_id: LedgerId) -> bool:
        return super()._is_closed(ledger_id) or ledger_id in self._hopeless()

    def _is_named(self, bookie: BookieId, ledger_id: LedgerId) -> bool:
        fragments = self.cluster.oracle.ledgers[ledger_id].recorded.fragments
        return any(bookie in fragment.bookies for fragment in fragments)

    def _wake_sleepers(self) -> None:
        """Hours pass in which nobody repairs; then who slept goes on where it was."""
        cluster = self.cluster
        sleepers = [each for each in cluster.workers if each.host.up and each.host.asleep]
        clients: list[WritingClient | RecoveringClient] = [*cluster.writers, *cluster.recoverers]
        clients = [each for each in clients if each.host.asleep]
        if not sleepers and not clients:
            return
        self._move_what_sleepers_ask_of(sleepers)
        for process in cluster.workers:
            if process.host.up and not process.host.asleep:
                process.crash()
        cluster.calm()
        self._nobody_repairs = True
        pause_s = self._random.uniform(*SLEEP_S)
        for process in sleepers:
            at_s = pause_s + self._random.choice((0.0, 0.01, 1.0)) * self._random.random()
            self.scheduler.after(at_s, process.host.resume)
            self.scheduler.mark(f"{process.name.partition('.')[0]}_woke_after_hours")
        for client in clients:
            at_s = pause_s + self._random.choice((0.0, 0.01, 1.0)) * self._random.random()
            self.scheduler.after(at_s, partial(self._wake_after_hours, client))
        for reader in cluster.readers:  # of what is given up: they would ask for hours
            if not reader.done and reader.host.up and not reader.host.paused:
                reader.host.pause()
                self.scheduler.after(pause_s, reader.host.resume)
        hosts = [*(each.host for each in sleepers), *(each.host for each in clients)]
        self.scheduler.after(pause_s, cluster.hurry)
        self.scheduler.after(pause_s, self._audit)
        self.scheduler.after(pause_s, self._work)
        for bookie, process in self._leaving.items():
            if not process.host.up:
                self.scheduler.after(pause_s, partial(self._leave_again, bookie))
        self._step_while(lambda: any(host.asleep for host in hosts))
        self._step_until_idle("not repaired after hours of sleep")

    def _move_what_sleepers_ask_of(self, sleepers: list[RepairProcess]) -> None:
        """Move it away from bookies that live on, as an operator does who spreads copies anew: they
        evict it in the hours that pass."""
        asked = {each.asks_of: None for each in sleepers if each.asks_of is not None}
        moved = [each for each in asked if self._is_closed(each) and each not in self._hopeless()]
        if moved:
            process = self.cluster.repairer("mover")
            process.run(self._moving(process, moved))
            self._step_while(lambda: process.busy)

    async def _moving(self, process: RepairProcess, ledger_ids: list[LedgerId]) -> None:
        await process.begin()
        job = MoveJob(process.ledgers, CopyPace(0.0))
        for ledger_id in ledger_ids:
            with suppress(LogError):
                metadata = await process.ledgers.describe(ledger_id)
                members = metadata.last_fragment.bookies
                writable = frozenset(map(BookieId, process.ledgers.environment.writable()))
                quorum = metadata.quorum
                leaves = members[: quorum.coverage]
                missing = tuple(
                    MissingReplica(each, Reason.MISPLACED, 0) for each in sorted(leaves)
                )
                moved = await job.move(ledger_id, LedgerMove(missing, writable - set(members)))
                process.note(f"moved ledger {ledger_id}: {moved.end}")
                process.mark("moved_under_a_sleeper")

    def _check_disks(self) -> None:
        """The power fails once more; then every copy must be there."""
        self._step_until(self.scheduler.now + SYNCED_S)
        for bookie in self.cluster.bookies.values():
            if bookie.host.up:
                bookie.crash()
        for bookie in self.cluster.bookies.values():
            if not bookie.gone:
                bookie.inspect()
        lacking = rest_is_fully_replicated.not_held(self.cluster, self._hopeless())
        if lacking:
            raise self._error(f"rest_is_fully_replicated: at the end {lacking}")

    def _check(self) -> None:
        super()._check()
        check_repairs(self.cluster.repairs)
