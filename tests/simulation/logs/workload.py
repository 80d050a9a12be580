"""The scenario of logs: lead, append, roll, truncate, read, delete; then all must finish.

A few logs, each with some candidates who open it again and again and write it, each in a
process of its own that may crash, pause, or sleep for hours at any of its calls to the
metadata store; readers that tail from anywhere; administrators who truncate, delete and sweep;
below them the bookies, network and metadata store of the ledger scenario, with its faults.
Every floor above the two ports is production code, drivers included. Safety is checked after
every step; once nothing is wrong any more every log must be opened, written and read to its
end, and no ledger be left that no log needs.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

from tests.simulation.away import GONE_S, send_away
from tests.simulation.invariants import check as check_ledgers
from tests.simulation.kernel.ambient import surroundings, wall_clock_ms
from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.kernel.invariants import meaning
from tests.simulation.kernel.simulation import SLEEP_S, Simulation
from tests.simulation.logs import administration, changing
from tests.simulation.logs.committing import Driver, Query, new_query
from tests.simulation.logs.consuming import ConsumingClient
from tests.simulation.logs.coverage import REQUIRED_OF_LOGS
from tests.simulation.logs.faults import Doom, LogFaults
from tests.simulation.logs.invariants import (
    MODULES,
    check,
    no_ledger_leaks_for_ever,
    retention_takes_what_it_may,
    units_are_in_once,
)
from tests.simulation.logs.objects import simulated_storage
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile, draw, with_archive
from tests.simulation.logs.reading import Tailer
from tests.simulation.logs.restore import StoreRestore
from tests.simulation.logs.standing import StandbyLeader
from tests.simulation.logs.steps import watched_takeovers
from tests.simulation.logs.world import Bookies, World
from tests.simulation.logs.writing import Leader
from tests.simulation.process import BOOKIES, STORE
from tests.simulation.workload import LedgerSimulation

RESTORED: Final = "restored_store_loses_nothing"
OF_LEDGERS_ONLY: Final = frozenset(f"floor.{name}" for name in (
    "aimed_s", "deletes", "deletes_at_change", "entries", "forgeries", "ledgers", "pauses_s",
    "readers", "recoverers", "recoverers_sleep", "recovery_begins_at", "strangers", "writer_closes",
    "writer_fate",
))  # fmt: skip
"""What nobody looks at here: see `Profile`."""
EXTENSIONS: Final = 6
EXTENDED_S: Final = 5.0
TRIES_MAX: Final = 15
RETRY_S: Final = 1.0
CONSUMERS: Final = ("shop", "shop", "audit")
"""Names of a log's consumers, at random; each is of another speed."""
HASTY: Final = ("lives", "lives", "crashes", "pauses")
"""What happens to administrators, at random."""
WEARY: Final = ("lives", "pauses", "pauses", "crashes")
"""What happens to janitors: between what they read and what they do upon it logs change."""
AT_BOOKIES: Final = 0.3
"""How probably a process is stopped at a call to a bookie, not to the metadata store."""
DRIVERS_MAX: Final = 20
LEADERS_MAX: Final = 12
"""Processes that lead a log one after the other, as others crash."""


class LogSimulation(Simulation):
    name = "logs"
    required = REQUIRED_OF_LOGS
    invariants: ClassVar = {
        **LedgerSimulation.invariants,
        **{name: meaning(module) for name, module in MODULES.items()},
        RESTORED: "a store that is put back to an older moment loses nothing that was acknowledged",
    }
    of_no_effect = OF_LEDGERS_ONLY
    steps_max = 400_000
    healed_s_max = 300.0
    steps_per_look = 20

    def __init__(
        self,
        seed: int,
        *,
        profile: LogProfile | None = None,
        changes: Changes = UNCHANGED,
        keep_trace: bool = False,
    ) -> None:
        super().__init__(seed, changes=changes, keep_trace=keep_trace)
        drawn = profile or with_archive(draw(self._random), Random(f"{seed} archive"))
        self.profile = self.simpler(drawn)
        floor = self.profile.floor
        self.world = World(
            self.scheduler,
            bookies=Bookies(
                count=floor.bookies,
                storage=floor.storage,
                fsync_s=floor.fsync_s,
                checkpoint_s=floor.checkpoint_s,
            ),
            quorum=floor.quorum,
            choices=floor.choices,
            lags_s=self.profile.lags_s,
            lifelines=self.profile.lifelines,
            late_replies=self.profile.late_replies,
            lies=self.profile.lies,
            skew_s=self.profile.skew_s,
            collects=self.profile.collects,
            storage_faults=self.profile.storage_faults,
        )
        self._faults = LogFaults(self.world, floor)
        self._names = [f"log{number}" for number in range(1, self.profile.logs + 1)]
        self._leaders: list[Leader] = []
        self._queries: list[Query] = []
        self._drivers = 0
        self._tailers: list[Tailer | ConsumingClient] = []
        self._healed = False
        self._restore: StoreRestore | None = None
        """Set while the store is put back to an older moment."""

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        with (
            surroundings(self.scheduler),
            watched_takeovers(),
            simulated_storage(self.world.objects),
        ):
            try:
                yield
            finally:
                for loop in self.world.loops:
                    loop.cleanup()

    def _run(self) -> None:
        profile = self.profile
        self.scheduler.note("world", f"{profile}")
        if profile.floor.away_first:
            back_s = 1.5 * profile.floor.faults_s
            send_away(self.world, self._random, profile.floor.away_first, back_s=back_s)
            self._step_until(GONE_S)
        restore = StoreRestore(self.world, profile.floor.faults_s, archives=bool(profile.archives))
        if not profile.floor.begins_calm:
            self._faults.begin()
        for name in self._names:
            for _ in range(profile.candidates):
                self._candidate(name)
            self._begin_queries(name)
        if profile.floor.begins_calm:
            self._step_until(self.scheduler.now + 0.3)
            self._faults.begin()
        until_s = self.scheduler.now + profile.floor.faults_s
        self._plan(until_s)
        self._step_until(until_s)
        self._faults.heal()
        self._healed = True
        if self.scheduler.chance(profile.elects_itself):
            self._elect_itself()
        for leader in self._leaders:
            leader.stopping = True
        for query in self._queries:
            query.stopping = True
        self._settle()
        self._wake_sleepers()
        if restore.is_due:
            self._put_store_back(restore)

    def _put_store_back(self, restore: StoreRestore) -> None:
        """See `restore`; what the oracle knows is of the store that is gone."""
        self._restore = restore
        self._step_until_idle("bookies do not start before the restore", restore.starting_before)
        restore.stop_everything()
        self._must("run a copy of the store", restore.act_elsewhere)
        story = restore.end_elsewhere()
        if story is not None:
            raise self._error(f"segments_have_their_bytes: {story}")
        self._must("accept the restore", restore.accept)
        restore.start_bookies()
        self._step_until_idle("bookies do not start after the restore", restore.starting)
        if self.scheduler.chance(0.5):
            self._must("open too early", restore.open_too_early)
        self._must("reconcile", restore.reconcile)
        if restore.was_disturbed():
            self._step_until_idle("bookies do not start again", restore.starting)
            self._must("reconcile again", restore.reconcile)
        self._must("write after the restore", restore.write)
        story = restore.broken()
        if story is not None:
            raise self._error(f"{RESTORED}: {story}")

    # The scenario.

    def _candidate(self, name: str) -> None:
        process = self.world.process(f"leader-{name}")
        standby = self.scheduler.chance(self.profile.standbys)
        leader = (StandbyLeader if standby else Leader)(process, name, self.profile)
        self._leaders.append(leader)
        fate = self._random.choice(self.profile.fates)
        at_call = 1 + self._random.randrange(self._random.choice(self.profile.fate_calls))
        process.on_call = Doom(
            process,
            fate,
            at_call,
            self._port(),
            opening=lambda: leader.opening,
            between=lambda: leader.closing or leader.rolling,
            on_crash=partial(self._replace, name),
        )
        process.run(leader.run())

    def _begin_queries(self, name: str) -> None:
        """Let drivers commit to *name*: of one query, as zombies of each other, or of two."""
        if not self.profile.queries:
            return
        queries = [
            new_query(name, len(self._queries) + number)
            for number in range(self._random.choice((1, 1, 2)))
        ]
        self._queries += queries
        for _ in range(self.profile.queries):
            self._drive(self._random.choice(queries))

    def _drive(self, query: Query) -> None:
        process = self.world.process(f"driver-{query.log}")
        self._drivers += 1
        driver = Driver(process, query, self.profile)
        process.on_call = Doom(
            process,
            self._random.choice(self.profile.fates),
            1 + self._random.randrange(self._random.choice(self.profile.fate_calls)),
            self._port(),
            opening=lambda: driver.opening,
            between=lambda: driver.committing,
            on_crash=lambda _: self._drive_again(query),
        )
        process.run(driver.run())

    def _drive_again(self, query: Query) -> None:
        if self._drivers < DRIVERS_MAX:
            self.scheduler.mark("driver_replaced")
            self._while_faulty(self._random.uniform(0.1, 2.0), partial(self._drive, query))

    def _replace(self, name: str, _process: Process) -> None:
        """Let another process take the place of one that crashed."""
        if len([leader for leader in self._leaders if leader.name == name]) < LEADERS_MAX:
            self._while_faulty(self._random.uniform(0.1, 2.0), partial(self._candidate, name))

    def _while_faulty(self, delay_s: float, action: Callable[[], None]) -> None:
        self.scheduler.after(delay_s, lambda: None if self._healed else action())

    def _plan(self, until_s: float) -> None:
        profile = self.profile
        left_s = until_s - self.scheduler.now

        def some_time(count: int, action: Callable[[], None]) -> None:
            for _ in range(count):
                self._while_faulty(self._random.uniform(0.0, left_s), action)

        for name in self._names:
            some_time(profile.readers, partial(self._begin_tail, name))
            some_time(profile.consumers, partial(self._consume, name))
            some_time(profile.updates, partial(self._change, name))
            some_time(profile.consumer_resets, partial(self._reset, name))
            some_time(profile.consumer_deletes, partial(self._forget, name))
            some_time(profile.admin_truncates, partial(self._administer, "admin", name))
            some_time(profile.archives, partial(self._archive, name))
            some_time(profile.restores, partial(self._bring_back, name))
        some_time(profile.rots, self.world.objects.rot)
        some_time(profile.seals, self._seal_some_log)
        some_time(profile.renames, self._rename_some_log)
        some_time(profile.deletes, self._delete_some_log)
        some_time(profile.sweeps, self._sweep)

    def _begin_tail(self, name: str) -> None:
        self._tail(name)

    def _tail(self, name: str) -> Tailer:
        process = self.world.process(f"reader-{name}")
        if self.profile.readers_away_s and not self._healed:
            away_s = self.profile.readers_away_s
            self.world.network.put_far_away(process.host.name, (away_s / 2, away_s))
        tailer = Tailer(process, name, self.profile)
        self._tailers.append(tailer)
        process.run(tailer.run())
        return tailer

    def _consume(self, name: str) -> None:
        """Begin a process of the log's consumer; some crash, and another one takes over."""
        process = self.world.process(f"consumer-{name}")
        exclusive = self.profile.exclusive
        consumer = self._random.choice(CONSUMERS)
        client = ConsumingClient(process, name, consumer, self.profile, exclusive=exclusive)
        self._tailers.append(client)
        self._doom(process, ("lives", "lives", "pauses"), calls_max=60)
        process.run(client.run())
        if self.scheduler.chance(0.3):
            self._while_faulty(self._random.uniform(0.0, 3.0), partial(self._crash, process, name))

    def _crash(self, process: Process, name: str) -> None:
        process.crash()
        self.scheduler.mark("consumer_crashed")
        self._consume(name)

    def _administer(self, who: str, name: str) -> None:
        process = self.world.process(who)
        self._doom(process, HASTY, calls_max=12)
        process.run(administration.truncate(process, name))

    def _archive(self, name: str) -> None:
        """Archive the log, by several processes at once at times: none knows of the others."""
        for _ in range(self._random.choice((1, 1, 3))):
            process = self.world.process("archiver")
            self._doom(process, WEARY, calls_max=60)
            process.run(_ignoring(administration.archive(process, name)))

    def _bring_back(self, name: str) -> None:
        """Bring archived segments back, by two processes at once at times."""
        for _ in range(self._random.choice((1, 1, 2))):
            process = self.world.process("restorer")
            self._doom(process, WEARY, calls_max=60)
            process.run(_ignoring(administration.restore(process, name)))

    def _extend_tables(self, names: list[str]) -> None:
        """Let tables be begun again and extended by several processes at once, which crash, while
        the storage alone fails: by now there is much to add."""
        if not self.profile.settings.archive_table:
            return
        self.world.objects.faults = self.profile.storage_faults
        for _ in range(EXTENSIONS):
            for name in (*names, *names):
                process = self.world.process("extender")
                self._doom(process, WEARY, calls_max=100)
                process.run(administration.extend(process, name))
            self._step_until(self.scheduler.now + self._random.uniform(0.0, 1.0))
        self._step_until(self.scheduler.now + EXTENDED_S)
        self.world.objects.faults = 0.0

    def _change(self, name: str) -> None:
        process = self.world.process("changer")
        self._doom(process, HASTY, calls_max=12)
        process.run(changing.update(process, name))

    def _reset(self, name: str) -> None:
        process = self.world.process("resetter")
        self._doom(process, HASTY, calls_max=12)
        process.run(changing.reset(process, name, self._random.choice(CONSUMERS)))

    def _forget(self, name: str) -> None:
        process = self.world.process("forgetter")
        self._doom(process, HASTY, calls_max=3)
        process.run(changing.forget(process, name, self._random.choice(CONSUMERS)))

    def _delete_some_log(self) -> None:
        process = self.world.process("deleter")
        self._doom(process, HASTY, calls_max=12)
        name = self._random.choice(self._names)
        process.run(_ignoring(administration.delete(process, name)))

    def _doom(self, process: Process, fates: tuple[str, ...], calls_max: int) -> None:
        """Let something happen to a process that does not lead, at one of its calls."""
        process.on_call = Doom(
            process,
            self._random.choice(fates),
            1 + self._random.randrange(calls_max),
            self._port(),
            opening=lambda: False,
            between=lambda: False,
            on_crash=lambda _: None,
        )

    def _port(self) -> str:
        """Draw at calls of which kind a process is stopped."""
        return BOOKIES if self.scheduler.chance(AT_BOOKIES) else STORE

    def _rename_some_log(self) -> None:
        """Give a log one of a few names, so that it may come back to one that it had."""
        process = self.world.process("renamer")
        self._doom(process, HASTY, calls_max=16)
        names = [*self._names, *(f"{name}-moved" for name in self._names)]
        name, new = self._random.sample(names, 2)
        if name not in self.world.logs.current:
            name, new = new, name
        process.run(administration.rename(process, name, new))

    def _seal_some_log(self) -> None:
        process = self.world.process("sealer")
        self._doom(process, HASTY, calls_max=12)
        process.run(_ignoring(administration.seal(process, self._random.choice(self._names))))

    def _sweep(self) -> None:
        process = self.world.process("janitor")
        self._doom(process, WEARY, calls_max=30)
        process.run(_ignoring(administration.sweep(process)))

    # The end.

    def _elect_itself(self) -> None:
        """See that the candidates of each log elect one of them, who opens it, without help."""
        since_s = self.scheduler.now

        def without_leader() -> list[str]:
            stand: dict[str, bool] = {}
            for leader in self._leaders:
                history = self.world.logs.current.get(leader.name)
                sealed = history is not None and history.manifest.sealed
                if leader.process.busy and not leader.process.host.asleep and not sealed:
                    elected = max(leader.elected_at, leader.acknowledged_at) > since_s
                    stand[leader.name] = elected or stand.get(leader.name, False)
            return [name for name, elected in stand.items() if not elected]

        self._step_until_idle("no candidate is elected and opens", without_leader)
        self.scheduler.mark("elected_after_healing")

    def _settle(self) -> None:
        """Let what is under way finish, open and close every log, read it, sweep."""
        self._step_until_idle("not finished after healing")
        names = sorted({*self._names, *self.world.logs.current})
        elected = self.profile.elections > 0 or self.profile.standbys > 0
        for name in names:
            self._must(f"open {name}", partial(self._lead, name, 3, elected=elected))
        for leader in self._leaders:
            leader.dismissed = not leader.process.host.asleep
        for query in self._queries:
            self._must(f"commit to {query.log}", partial(self._commit, query))
        for name in names:  # recovers what was abandoned, and reports orphans of a roll
            self._must(f"open {name} again", partial(self._lead, name, 0))
        self._archive_all(names)
        self._extend_tables(names)
        self._restore_all(names)
        for tailer in self._tailers:
            tailer.finishing = True
        for name in names:
            tailer = self._tail(name)
            tailer.fixed_start = "start"
            tailer.finishing = True
        self._step_until_idle("readers do not come to the end", self._reading)
        for history in self.world.logs.current.values():
            lost = units_are_in_once.lost(history)
            if lost is not None:
                raise self._error(f"units_are_in_once: {lost}")
        self._tailers.clear()
        swept_ms = wall_clock_ms(self.scheduler) - round(self.profile.skew_s * 1000)
        self._must("sweep", administration.sweep)
        self._archive_all(names)  # what arrived late is deleted
        orphan = administration.orphan_object(self.world)
        if orphan is not None and not self._sleepers():
            raise self._error(f"segments_have_their_bytes: {orphan}")
        wrong = administration.wrong_table(self.world)
        if wrong is not None and not self._sleepers():
            raise self._error(f"tables_have_each_record_once: {wrong}")
        leaked = no_ledger_leaks_for_ever.broken(self.world.logs)
        if leaked is not None and not self._sleepers():
            raise self._error(f"no_ledger_leaks_for_ever: {leaked}")
        for history in self.world.logs.current.values():
            left = retention_takes_what_it_may.not_taken(history, now_ms=swept_ms)
            if left is not None:
                raise self._error(f"retention_takes_what_it_may: {left}")

    def _archive_all(self, names: list[str]) -> None:
        if self.profile.archives:
            for name in names:
                has_table = bool(self.profile.settings.archive_table)
                archive = partial(administration.archive, name=name, at_once=has_table)
                self._must(f"archive {name}", archive)

    def _restore_all(self, names: list[str]) -> None:
        """Let copies of before go, and read all through new ones."""
        if self.profile.restores:
            for name in names:
                go = partial(administration.let_copies_go, name=name)
                self._must(f"let copies of {name} go", go)
            self._archive_all(names)
            for name in names:
                for share in (0.5, 1.0):  # in two rounds
                    restore = partial(administration.restore, name=name, share=share)
                    self._must(f"restore {name}", restore)

    def _must(self, what: str, work: Callable[[Process], Coroutine[Any, Any, bool]]) -> None:
        """Let a new process do *work* until it says that it did it."""
        process = self.world.process("operator")
        failures = [0]

        async def repeat() -> None:
            while not await work(process):
                failures[0] += 1
                await _pause()

        process.run(repeat())
        self._step_until_idle(
            f"cannot {what}",
            lambda: [process.name] if process.busy and failures[0] < TRIES_MAX else [],
        )
        if process.busy:
            raise self._error(f"failed {TRIES_MAX} times {what} although nothing is wrong")

    async def _lead(
        self, name: str, bursts: int, process: Process, *, elected: bool = False
    ) -> bool:
        """Lead the log for a moment; a log whose deletion has begun is deleted wholly.

        Who is *elected* stands beside those that led before: what they left must not stop it."""
        history = self.world.logs.current.get(name)
        if history is not None and history.manifest.dropped:
            return await administration.delete(process, name)
        if history is not None and history.manifest.sealed:
            return True
        leader = Leader(process, name, self.profile)
        if elected:
            return await leader.lead_elected(bursts, timeout_s=None)
        return await leader.lead(bursts)

    async def _commit(self, query: Query, process: Process) -> bool:
        """Go on with the query for a unit, if anybody may write its log."""
        history = self.world.logs.current.get(query.log)
        if history is not None and (history.manifest.dropped or history.manifest.sealed):
            return True
        return await Driver(process, query, self.profile).live(1)

    def _sleepers(self) -> list[Process]:
        return [p for p in self.world.processes if p.host.up and p.host.asleep]

    def _wake_sleepers(self) -> None:
        """Hours pass; then who slept goes on where it was."""
        sleepers = self._sleepers()
        if not sleepers:
            return
        self.world.calm()
        pause_s = self._random.uniform(*SLEEP_S)
        self.scheduler.after(pause_s, self.world.hurry)
        for process in sleepers:
            at_s = pause_s + self._random.choice((0.0, 0.01, 1.0)) * self._random.random()
            self.scheduler.after(at_s, process.host.resume)
            self.scheduler.mark("leader_woke_after_hours")
            if process.loop.step:
                self.scheduler.mark("opener_woke_after_hours")
        self._step_while(lambda: bool(self._sleepers()))
        self._settle()

    def _busy(self) -> list[str]:
        """See `Simulation`; readers go on, and keep nobody waiting either."""
        reading = {tailer.process.name for tailer in self._tailers}
        reading |= {leader.process.name for leader in self._leaders if leader.idle}
        busy = [
            process.name
            for process in self.world.processes
            if process.busy and not process.host.asleep and process.name not in reading
        ]
        return busy + [
            f"{append.payload!r}"
            for leader in self._leaders
            if leader.process.host.up and not leader.process.host.asleep
            for append in leader.unresolved
        ]

    def _reading(self) -> list[str]:
        return [tailer.wanted for tailer in self._tailers if tailer.process.busy]

    def _check(self) -> None:
        if self._restore is not None:
            return
        check(self.world.logs)
        check_ledgers(self.world.oracle)


async def _ignoring(work: Coroutine[Any, Any, bool]) -> None:
    await work


async def _pause() -> None:
    await asyncio.sleep(RETRY_S)
