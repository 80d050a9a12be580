"""What goes wrong where somebody repairs: bookies away for long, disks lost, processes stopped."""

from collections.abc import Callable
from functools import partial
from typing import Final

from ledger.entry import LAC_ENTRY, encode_frame, encode_lac
from ledger.ids import BookieId
from ledger.quorum import write_set
from ledger.requests import AddRun
from tests.simulation.bookie import SimBookie
from tests.simulation.disks_elsewhere import retire_name
from tests.simulation.faults import Faults
from tests.simulation.repair.process import REPAIR, RepairProcess
from tests.simulation.repair.profile import RepairProfile
from tests.simulation.repair.world import RepairWorld

SESSION_S: Final = 8.0
"""Until it is seen that a bookie is not there."""
PAUSE_S_MAX: Final = 15.0
PAUSE_AGAIN_CALLS: Final = 40


class RepairFaults(Faults):
    def __init__(self, world: RepairWorld, profile: RepairProfile) -> None:
        super().__init__(world, profile.floor)
        self._world, self._repair = world, profile

    def begin(self) -> None:
        super().begin()
        repair, faults_s = self._repair, self._repair.floor.faults_s
        faults = (
            (repair.aways, self._go_away),
            (repair.disks, self._lose_some_disk),
            (repair.forgeries, self._forge),
        )
        for count, fault in faults:
            for _ in range(count):
                at_s = self._random.uniform(0.0, faults_s)
                self._plan(at_s, fault)

    def _forge(self) -> None:
        """Somebody with the certificate of a bookie sends a record, or a last add confirmed, of a
        ledger that others write and repair."""
        known = [one for one, each in self._world.oracle.ledgers.items() if each.is_there]
        if not known:
            return
        ledger_id, random = self._random.choice(known), self._random
        metadata = self._world.oracle.ledgers[ledger_id].recorded
        end = metadata.last_fragment.first_entry + random.randrange(0, 12)
        entry_id = random.randrange(0, end + 1)
        is_lac = random.random() < 0.3
        frame = (
            encode_lac(ledger_id=ledger_id, last_add_confirmed=end + 1000, length=1)
            if is_lac
            else encode_frame(
                ledger_id=ledger_id,
                entry_id=entry_id,
                last_add_confirmed=entry_id - 1,
                length=1,
                payload=b"forged",
            )
        )
        entries = [LAC_ENTRY if is_lac else entry_id]
        run = AddRun(
            ledger_id,
            metadata.access_key,
            entries,
            [len(frame)],
            frame,
            recovery=True,
            explicit_lac=is_lac,
        )
        self._world.forge(random.choice(self._bookies()), run)

    def _go_away(self) -> None:
        """A bookie is away for so long that its ledgers are marked, and comes back."""
        bookie = self._random.choice(self._bookies())
        if bookie.host.up:
            bookie.crash()
            self._scheduler.mark("bookie_away")
            seen_s = SESSION_S + self._repair.delay_s
            away_s = seen_s + self._random.uniform(0.0, 2 * self._repair.grace_s + 5.0)
            self._scheduler.after(away_s, partial(self._strike, partial(self._restart, bookie)))

    def _lose_some_disk(self) -> None:
        """A disk is lost, if what is acknowledged survives that; a bookie of another name comes."""
        can = [each for each in self._bookies() if self._may_lose(each.name)]
        if not can:
            return
        bookie = self._random.choice(can)
        bookie.lose_disk()
        if self._scheduler.chance(0.5):
            retire_name(self._cluster, bookie.name, partial(self._restart_soon, bookie))
        else:
            self._restart_soon(bookie)

    def _may_lose(self, bookie: BookieId) -> bool:
        """Whether no more disks than Qa - 1 of any write set are lost then: of its members, and of
        bookies that may be about to become members."""
        world = self._world
        lost = {**world.oracle.lost_disks, bookie: None}
        for ledger_id, history in world.oracle.ledgers.items():
            if not history.is_there:
                continue
            quorum = history.recorded.quorum
            joining = {
                target
                for process in world.workers
                if process.host.up
                for target in process.targets.get(ledger_id, ())
            }
            for fragment in history.recorded.fragments:
                others = sum(each in lost for each in sorted(joining - set(fragment.bookies)))
                for residue in range(quorum.ensemble):
                    members = [fragment.bookies[index] for index in write_set(residue, quorum)]
                    if sum(each in lost for each in members) + others >= quorum.ack:
                        return False
        return True

    def _reset_connection(self) -> None:
        streams = [s for process in self._world.processes for s in process.busy_streams()]
        if streams and self._scheduler.chance(0.5):
            self._random.choice(streams).reset()
            self._scheduler.mark("connection_reset")
        else:
            super()._reset_connection()

    def _restart(self, bookie: SimBookie) -> None:
        if not bookie.gone:
            super()._restart(bookie)


class Sleep:
    """A reader falls asleep, for hours, before or after a call within a question: of its calls to
    *port* the one with that number."""

    def __init__(
        self,
        process: RepairProcess,
        port: str,
        at_call: int,
        *,
        before: bool,
        healed: Callable[[], bool],
    ) -> None:
        self._process, self._port, self._left = process, port, at_call
        self._before, self._healed = before, healed

    def __call__(self, port: str, what: str) -> None:
        process = self._process
        if port != self._port or process.asks_of is None or self._healed():
            return
        self._left -= 1
        if self._left == 0:
            process.note(f"sleeps {'before' if self._before else 'after'} its call: {what}")
            process.mark("asker_sleeps")
            if self._before:
                self._strike()
            else:
                process.world.scheduler.after(0.0, self._strike)

    def _strike(self) -> None:
        host = self._process.host
        if host.up and not host.paused:
            host.pause()
            host.asleep = True


class Stop:
    """What happens to one process of repair, before or after one of its calls while something is
    marked: between any two of its effects."""

    def __init__(
        self,
        process: RepairProcess,
        fate: str,
        at_call: int,
        *,
        healed: Callable[[], bool],
        on_crash: Callable[[RepairProcess], None],
    ) -> None:
        self._process, self._at_call = process, at_call
        self._fate = fate if process.world.scheduler.faults.happens() else "lives"
        self._healed, self._on_crash = healed, on_crash

    def __call__(self, port: str, what: str) -> None:
        process = self._process
        if port != REPAIR or self._fate == "lives" or self._healed():
            return
        if process.calls[REPAIR] != self._at_call:
            return
        scheduler = process.world.scheduler
        before = scheduler.chance(0.5)
        role, at = process.name.partition(".")[0], process.loop.step
        process.note(f"{self._fate} {'before' if before else 'after'} its call: {what} {at}")
        scheduler.mark(f"{role}_{self._fate}")
        if at:
            scheduler.mark(f"{role}_stopped_at_{at}")
        strike = partial(self._strike, process.host.life)
        if before:
            strike()
        else:
            scheduler.after(0.0, strike)

    def _strike(self, life: int) -> None:
        process, host = self._process, self._process.host
        if not host.up or host.life != life or host.paused:
            return
        match self._fate:
            case "crashes":
                process.crash()
                self._on_crash(process)
            case "sleeps":
                host.pause()
                host.asleep = True
            case _:
                host.pause()
                scheduler = process.world.scheduler
                self._at_call += 1 + scheduler.random.randrange(PAUSE_AGAIN_CALLS)
                scheduler.after(scheduler.random.uniform(0.1, PAUSE_S_MAX), self._wake)

    def _wake(self) -> None:
        host = self._process.host
        if host.up and host.paused and not host.asleep:
            host.resume()
