"""The cluster scenario: append, crash, recover, tail; then faults stop and all must finish.

Some ledgers, one writer each, on the same bookies; bookies crash and restart, or lose their
disk and are replaced, the network misbehaves, the metadata store is slow or away; a writer
crashes, or sleeps and wakes as a zombie; recoverers race with it and with each other, and some
die half way; readers tail all the while without recovery; somebody deletes a ledger in use.
Safety is checked after every step, liveness once nothing is wrong any more.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from ledger.ids import LedgerId
from ledger.metadata import LedgerState
from ledger.requests import ReadQuery
from tests.simulation.away import GONE_S, send_away
from tests.simulation.bookie import SimBookie
from tests.simulation.cluster import Cluster
from tests.simulation.coverage import REQUIRED
from tests.simulation.faults import Faults
from tests.simulation.invariants import MODULES, check
from tests.simulation.kernel.ambient import surroundings
from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.kernel.invariants import meaning
from tests.simulation.kernel.network import Aim
from tests.simulation.kernel.simulation import LEDGERS, SLEEP_S, Simulation
from tests.simulation.profile import Profile, draw
from tests.simulation.promises import READ_ALL_BYTES
from tests.simulation.recovering import RecoveringClient
from tests.simulation.writing import WritingClient

EVICTS: Final = 0.4
"""Of the seeds: bookies evict."""
STRANGERS: Final = 0.25
"""Of the seeds: other bookies of the same name listen at addresses of ours."""
RECOVERIES_AFTER_HEALING_MAX: Final = 12
"""One a second: a bookie may have to find out that its session was lost, and begin another."""


class LedgerSimulation(Simulation):
    name = LEDGERS
    required = REQUIRED
    invariants: ClassVar = {name: meaning(module) for name, module in MODULES.items()}
    steps_max = 400_000  # large entries and a tiny memory: each checkpoint takes one of them
    healed_s_max = 180.0

    def __init__(
        self,
        seed: int,
        *,
        profile: Profile | None = None,
        changes: Changes = UNCHANGED,
        keep_trace: bool = False,
    ) -> None:
        super().__init__(seed, changes=changes, keep_trace=keep_trace)
        self.profile = self._draw() if profile is None else self.simpler(profile)
        self.cluster = self._make_cluster()
        self.cluster.on_change = self._delete_perhaps
        # Apart from the others' lot, as strangers: what is drawn after it stays as it is.
        self.cluster.evicts = Random(f"evicts {seed}").random() < EVICTS
        self._faults = self._make_faults()
        self._healed = False
        self._faults_until = self.profile.faults_s
        self._recovering: dict[LedgerId, None] = {}
        self._recoveries_after_healing: Counter[LedgerId] = Counter()

    def _draw(self) -> Profile:
        apart = Random(f"strangers {self.scheduler.seed}")
        strangers = apart.randrange(1, 6) if apart.random() < STRANGERS else 0
        return self.simpler(replace(draw(self._random), strangers=strangers))

    def _make_cluster(self) -> Cluster:
        return Cluster(
            self.scheduler,
            bookies=self.profile.bookies,
            quorum=self.profile.quorum,
            storage=self.profile.storage,
            fsync_s=self.profile.fsync_s,
            checkpoint_s=self.profile.checkpoint_s,
            choices=self.profile.choices,
        )

    def _make_faults(self) -> Faults:
        return Faults(self.cluster, self.profile)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        with surroundings(self.scheduler):
            try:
                yield
            finally:
                for loop in self.cluster.loops:
                    loop.cleanup()

    def _run(self) -> None:
        self.scheduler.note("world", f"{self.profile}")
        if self.profile.away_first:
            back_s = 1.5 * self.profile.faults_s
            send_away(self.cluster, self._random, self.profile.away_first, back_s=back_s)
            self._step_until(GONE_S)
        if not self.profile.begins_calm:
            self._faults.begin()
        writers = [self.cluster.writer() for _ in range(self.profile.ledgers)]
        for writer in writers:
            writer.begin(self._created)
        if self.profile.begins_calm:
            self._step_while(lambda: not all(writer.is_created for writer in writers))
            self._faults.begin()
        for writer in writers:
            self._meet_fate(writer)
        self._faults_until = self.scheduler.now + self.profile.faults_s
        self._step_until(self._faults_until)
        self._faults.heal()
        self._healed = True
        for writer in writers:
            self._supervise(writer)
        self._step_until_idle("not finished after healing")
        self._wake_sleepers()
        self._check_list()
        self._check_disks()

    # The scenario.

    def _created(self, writer: WritingClient) -> None:
        profile, after = self.profile, self.scheduler.after
        self._tick(writer)
        left_s = max(0.0, self._faults_until - self.scheduler.now)
        for _ in range(profile.readers):
            after(self._random.uniform(0.0, left_s), partial(self.cluster.reader, writer.ledger_id))
        if self.scheduler.chance(profile.deletes):
            after(self._random.uniform(0.0, left_s), partial(self._delete, writer.ledger_id))

    def _meet_fate(self, writer: WritingClient) -> None:
        profile, after = self.profile, self.scheduler.after
        fate_s = self._random.uniform(0.0, 3.0)
        if profile.writer_fate == "crashes":
            after(fate_s, partial(self._crash_writer, writer))
        elif profile.writer_fate == "sleeps":
            after(fate_s, partial(self._fall_asleep, writer))
        elif profile.writer_fate == "is paused":
            after(fate_s, writer.host.pause)
            self.scheduler.mark("writer_paused")
            after(fate_s + self._random.uniform(0.1, profile.faults_s), partial(_wake, writer))

    def _fall_asleep(self, client: WritingClient | RecoveringClient) -> None:
        """Pause *client* until everything else is over, and some hours more."""
        if self._healed or client.done or client.host.paused or not client.host.up:
            return
        client.host.pause()
        client.host.asleep = True

    def _tick(self, writer: WritingClient) -> None:
        """Append some entries, then again a little later; at the end close or leave it open."""
        if writer.done or writer.close_requested:
            return
        left = self.profile.entries - writer.added
        if left == 0:
            if self.profile.writer_closes:
                writer.close()
            return
        if writer.can_append:
            count = min(left, self._random.choice((1, 1, 1, 2, 3, 8)))
            first = writer.added
            size = self._random.choice((0, 10, 10, 100, 1000))
            writer.append([f"{first + i}:".encode().ljust(size, b".") for i in range(count)])
        if (
            writer.ledger_id not in self._recovering
            and writer.added > self.profile.recovery_begins_at
        ):
            self._begin_recoveries(writer.ledger_id)
        pause_s = self._random.choice(self.profile.pauses_s)
        writer.loop.call_later(pause_s, self._tick, writer)

    def _begin_recoveries(self, ledger_id: LedgerId) -> None:
        self._recovering[ledger_id] = None
        at_s = 0.0
        for _ in range(self.profile.recoverers):
            at_s += self._random.choice((0.0, 0.001, 0.01, 0.1, 1.0)) * self._random.random()
            self.scheduler.after(at_s, partial(self._recover, ledger_id))

    def _crash_writer(self, writer: WritingClient) -> None:
        if not writer.done:
            writer.host.crash()
            writer.done = True
            self.scheduler.mark("writer_crashed")

    def _delete(self, ledger_id: LedgerId) -> None:
        self.scheduler.note("somebody", f"deletes ledger {ledger_id}")
        self.cluster.delete(ledger_id)

    def _delete_perhaps(self, ledger_id: LedgerId) -> None:
        """Delete the ledger just when somebody is about to find out."""
        if self._healed or not self.scheduler.chance(self.profile.deletes_at_change):
            return
        at_s = self._random.choice((0.0, 0.01, 0.1)) * self._random.random()
        self.scheduler.after(at_s, partial(self._delete, ledger_id))

    def _recover(self, ledger_id: LedgerId) -> None:
        if any(not r.done and r.ledger_id == ledger_id for r in self.cluster.recoverers):
            self.scheduler.mark("recoveries_raced")
        recoverer = self.cluster.recoverer(ledger_id)
        self._delete_perhaps(ledger_id)
        if self.profile.aimed_s and not self._healed:
            self._aim(recoverer)
        if self._healed:
            return
        self._faults.spoil(ledger_id)
        if self.scheduler.chance(self.profile.choices.unconfirmed):
            for at_s in (0.0, self._random.uniform(0.0, 0.1)):
                self.scheduler.after(at_s, partial(self.cluster.reader, ledger_id))
        at_s = self._random.uniform(0.0, 0.5)
        if self.scheduler.chance(0.3):
            self.scheduler.after(at_s, partial(self._crash_recoverer, recoverer))
        elif self.scheduler.chance(self.profile.recoverers_sleep):
            self.scheduler.after(at_s * at_s, partial(self._fall_asleep, recoverer))

    def _aim(self, recoverer: RecoveringClient) -> None:
        """Let adds, fences and reads of this recovery overtake each other."""
        metadata = self.cluster.oracle.ledgers[recoverer.ledger_id].recorded
        writers = [w.name for w in self.cluster.writers if w.ledger_id == recoverer.ledger_id]
        bookies = [str(bookie) for bookie in metadata.last_fragment.bookies]
        self._random.shuffle(bookies)
        last, other, *rest = bookies
        slow_s, aim = self.profile.aimed_s, self.cluster.network.aim
        aim(recoverer.name, last, Aim(slow_s, slow_s, first=0, last=0))  # its fence
        for bookie in rest:
            aim(bookie, recoverer.name, Aim(0.0, slow_s, first=1))  # all but that it is fenced
        for writer in writers:
            aim(writer, last, Aim(0.0, slow_s))
            aim(writer, other, Aim(slow_s / 2, slow_s))

    def _crash_recoverer(self, recoverer: RecoveringClient) -> None:
        if not recoverer.done:
            recoverer.host.crash()
            recoverer.done = True
            self.scheduler.mark("recoverer_crashed")

    # The end.

    def _supervise(self, writer: WritingClient) -> None:
        """From healing on: recover the ledger if nobody does and its writer is over."""
        if not writer.is_created:
            if not writer.done and not writer.host.asleep:  # else somebody does when it wakes up
                self.scheduler.after(1.0, partial(self._supervise, writer))
            return
        if self._is_closed(writer.ledger_id):
            return
        asleep = writer.host.asleep
        over = (
            writer.done
            or asleep
            or (
                not self.profile.writer_closes
                and writer.added == self.profile.entries
                and writer.pending == 0
            )
        )
        ledger_id = writer.ledger_id
        recoverers = [r for r in self.cluster.recoverers if r.ledger_id == ledger_id]
        if over and all(recoverer.done or recoverer.host.asleep for recoverer in recoverers):
            self._recoveries_after_healing[ledger_id] += 1
            if self._recoveries_after_healing[ledger_id] > RECOVERIES_AFTER_HEALING_MAX:
                raise self._error("recovery fails although nothing is wrong any more")
            self._recover(ledger_id)
        self.scheduler.after(1.0, partial(self._supervise, writer))

    def _is_closed(self, ledger_id: LedgerId) -> bool:
        """Whether nothing happens to the ledger any more."""
        history = self.cluster.oracle.ledgers[ledger_id]
        return history.deleted or history.recorded.state is LedgerState.CLOSED

    def _busy(self) -> list[str]:
        cluster = self.cluster
        writers = [client for client in cluster.writers if not client.host.asleep]
        busy = [c.name for c in cluster.recoverers if not c.done and not c.host.asleep]
        busy += [client.name for client in cluster.readers if not client.done]
        busy += [
            client.name
            for client in writers
            if not client.done and (not client.is_created or client.pending > 0)
        ]
        busy += [
            f"ledger {client.ledger_id}"
            for client in cluster.writers
            if client.is_created and not self._is_closed(client.ledger_id)
        ]
        return busy

    def _wake_sleepers(self) -> None:
        """Hours pass, a bookie restarts now and then; then who slept goes on where it was."""
        cluster = self.cluster
        clients: list[WritingClient | RecoveringClient] = [*cluster.writers, *cluster.recoverers]
        sleepers = [client for client in clients if client.host.asleep]
        if not sleepers:
            return
        cluster.calm()
        pause_s = self._random.uniform(*SLEEP_S)
        for _ in sleepers:
            bookie = self._random.choice(list(cluster.bookies.values()))
            self.scheduler.after(pause_s * self._random.random(), partial(_bounce, bookie))
        self.scheduler.after(pause_s, cluster.hurry)
        for client in sleepers:
            at_s = pause_s + self._random.choice((0.0, 0.01, 1.0)) * self._random.random()
            self.scheduler.after(at_s, partial(self._wake_after_hours, client))
        self._step_while(lambda: any(client.host.asleep for client in sleepers))
        self._step_until_idle("not finished after hours of sleep")

    def _wake_after_hours(self, client: WritingClient | RecoveringClient) -> None:
        client.host.resume()
        if isinstance(client, WritingClient):
            self.scheduler.mark("writer_woke_after_hours")
            self._supervise(client)
        else:
            self.scheduler.mark("recoverer_woke_after_hours")

    def _check_list(self) -> None:
        """An operator lists the ledgers: every one that is there, and no other. A deletion that was
        asked for may still come meanwhile."""
        lists: list[list[LedgerId]] = []
        before = self._there()
        self.cluster.list_ledgers(lists.append)
        self._step_while(lambda: not lists)
        there, listed = self._there(), lists[0]
        if listed != sorted(listed) or not set(there) <= set(listed) <= set(before):
            raise self._error(f"there are ledgers {there}, listed are {listed}")

    def _there(self) -> list[LedgerId]:
        return sorted(i for i, history in self.cluster.oracle.ledgers.items() if history.is_there)

    def _check_disks(self) -> None:
        """The power fails once more; then every disk is asked for what it must hold."""
        for bookie in self.cluster.bookies.values():
            if bookie.host.up:
                bookie.crash()
        for bookie in self.cluster.bookies.values():
            if not bookie.gone:
                bookie.inspect()
        check(self.cluster.oracle)
        for ledger_id, history in self.cluster.oracle.ledgers.items():
            if history.deleted or not history.owners:
                continue  # or nobody knows that it was created
            metadata = history.recorded
            end = metadata.last_entry
            assert end is not None
            query = ReadQuery(ledger_id, metadata.access_key, 0, max(end, 0), READ_ALL_BYTES)
            held = {
                name: {entry: bytes(frame) for entry, frame in bookie.storage.read(query).each()}
                for name, bookie in self.cluster.bookies.items()
                if bookie.host.up
            }
            for entry in range(end + 1):
                bookies = metadata.fragment_of(entry).bookies
                copies = sum(
                    name in history.lost_disks or held[name].get(entry) == history.sent[entry]
                    for name in bookies
                )
                if copies < metadata.quorum.ack:
                    raise self._error(
                        f"at the end entry {entry} of ledger {ledger_id} is on {copies} disks "
                        f"of {', '.join(bookies)}"
                    )

    def _check(self) -> None:
        check(self.cluster.oracle)


def _wake(writer: WritingClient) -> None:
    if writer.host.paused:
        writer.host.resume()


def _bounce(bookie: SimBookie) -> None:
    """Restart *bookie* if it is up."""
    if bookie.host.up:
        bookie.crash()
        bookie.restart()
