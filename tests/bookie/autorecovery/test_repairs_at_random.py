"""Workers, a writer, an auditor and bad luck, one step at a time in any order.

Bookies go and come back, or are wiped for good, and evict what nobody names; entries rot; adds
arrive late; sessions end while their owners sleep; replies are lost. At every moment each
acknowledged entry has a copy where the metadata say, what is swapped in is whole, and nothing
unsettled is copied (`repair_world`). After the faults every copy is made again, no mark is left.
"""

import os
from random import Random
from typing import Final

import pytest

from bookie.autorecovery.protocol.repair import RepairOutcome
from ledger.ids import BookieId, EntryId
from ledger.mark import Reason
from ledger.metadata import LedgerState
from ledger.quorum import Quorum, holds, write_set
from tests.bookie.autorecovery.repair_world import Running, World, ledger, repair

SEEDS: Final = int(os.environ.get("DLOG_TEST_REPAIR_SEEDS", "150"))
STEPS: Final = 250
GRACE_MS: Final = 30_000
HOUR_MS: Final = 3_600_000
QUORUMS: Final = (Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(3, 2, 2), Quorum(5, 3, 2))
WORKERS: Final = 3


class Luck:
    """One run of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = iter("abcdefghijklmnopqrstuvwxyz")
        quorum = self.random.choice(QUORUMS)
        self.there = [next(self.names) for _ in range(quorum.ensemble + self.random.choice((1, 3)))]
        self.away: list[str] = []
        first = "".join(self.there[: quorum.ensemble])
        metadata = ledger((0, first), last=None, quorum=quorum, state=LedgerState.OPEN)
        self.world = World(metadata, "".join(self.there))
        self.workers: list[Running | None] = [None] * WORKERS
        self.in_flight: list[tuple[BookieId, int]] = []

    def run(self) -> None:
        acts = (
            (self.work, 12), (self.append, 5), (self.lose, 2), (self.bring_back, 2),
            (self.wipe, 1), (self.rot, 1), (self.mark, 2), (self.arrive, 2), (self.close, 0.1),
            (self.end_session, 0.5), (self.let_time_pass, 1), (self.evict, 3),
        )  # fmt: skip
        for _ in range(STEPS):
            [act] = self.random.choices([act for act, _ in acts], [weight for _, weight in acts])
            act()
            self.world.there = "".join(self.there)
            self.check()
        self.heal()

    # The cluster.

    def append(self) -> None:
        """The writer adds an entry, or replaces bookies that are away."""
        world = self.world
        metadata = world.metadata
        assert metadata is not None
        if metadata.state is not LedgerState.OPEN:
            return
        fragment, quorum = metadata.last_fragment, metadata.quorum
        gone = [bookie for bookie in fragment.bookies if bookie not in self.there]
        if gone:
            spare = [bookie for bookie in self.there if bookie not in fragment.bookies]
            new = dict(zip(gone, spare, strict=False))
            bookies = tuple(BookieId(new.get(bookie, bookie)) for bookie in fragment.bookies)
            if new:
                world.metadata = metadata.with_ensemble(EntryId(world.end + 1), bookies)
                world.version += 1
            return
        entry_id = world.end + 1
        holders = [fragment.bookies[index] for index in write_set(entry_id, quorum)]
        late = self.random.sample(holders, self.random.randint(0, quorum.write - quorum.ack))
        self.in_flight += [(bookie, entry_id) for bookie in late]
        for bookie in holders:
            if bookie not in late:
                world.of(bookie).add(entry_id)
        world.end = entry_id

    def arrive(self) -> None:
        if self.in_flight:
            at = self.random.randrange(len(self.in_flight))
            bookie, entry_id = self.in_flight.pop(at)
            if bookie in self.there and self.random.random() < 0.5:
                self.world.offered.pop(bookie, None)
                self.world.of(bookie).add(entry_id)

    def close(self) -> None:
        metadata = self.world.metadata
        assert metadata is not None
        if metadata.state is LedgerState.OPEN:
            self.world.metadata = metadata.closed(EntryId(self.world.end), 0)
            self.world.version += 1

    # Bad luck.

    def lose(self) -> None:
        if len(self.there) > 2:
            bookie = self.random.choice(self.there)
            self.there.remove(bookie)
            self.away.append(bookie)

    def bring_back(self) -> None:
        if self.away:
            bookie = self.random.choice(self.away)
            self.away.remove(bookie)
            self.there.append(bookie)

    def wipe(self) -> None:
        """A disk is lost, if that loses nothing for good; a new bookie of another name comes."""
        bookie = BookieId(self.random.choice(self.there + self.away))
        if any(bookie not in self.holders(each) for each in self.world.believed(bookie)):
            return  # it may be about to take a place for which it has just got copies
        held = self.world.held.pop(bookie, set())
        name = next(self.names, "") if self.each_entry_has_a_copy() else ""
        if not name:
            self.world.held[bookie] = held
            return
        for names in (self.there, self.away):
            if bookie in names:
                names.remove(bookie)
        self.world.rotten.pop(bookie, None)
        self.in_flight = [each for each in self.in_flight if each[0] != bookie]
        self.there.append(name)

    def rot(self) -> None:
        bookie = BookieId(self.random.choice(self.there))
        held = [each for each in sorted(self.world.of(bookie)) if bookie in self.holders(each)]
        if held:
            entry_id = self.random.choice(held)
            self.world.of(bookie).discard(entry_id)
            if self.each_entry_has_a_copy():
                self.world.rot(bookie, entry_id)
            else:
                self.world.of(bookie).add(entry_id)

    def evict(self) -> None:
        """The next step of an eviction by a bookie of which nobody names anything."""
        surplus = [BookieId(name) for name in self.there if not self.world.is_named(BookieId(name))]
        if not surplus:
            return
        bookie = self.random.choice(surplus)
        if bookie not in self.world.offered:
            self.world.offer(bookie)
        elif not self.world.offered[bookie]:
            self.world.supersede(bookie)
        else:
            self.world.evict(bookie)

    def end_session(self) -> None:
        self.world.lose_lock()
        if self.random.random() < 0.5:
            self.workers[self.random.randrange(WORKERS)] = None

    def let_time_pass(self) -> None:
        self.world.now_ms += self.random.choice((1000, GRACE_MS, HOUR_MS))

    # Repair.

    def mark(self) -> None:
        metadata = self.world.metadata
        assert metadata is not None
        fragment = self.random.choice(metadata.fragments)
        bookie = self.random.choice(fragment.bookies)
        reason = Reason.DAMAGED if bookie in self.there else Reason.LOST
        self.world.lacks(bookie, reason, since_ms=self.world.now_ms)

    def work(self) -> None:
        number = self.random.randrange(WORKERS)
        running = self.workers[number]
        if running is None or running.finish is not None:
            if self.world.mark is None:
                return
            eager = self.random.random() < 0.3
            running = Running(self.world, eager=eager, grace_ms=GRACE_MS, worker=number)
            self.workers[number] = running
        running.step(self.random.choices(("", "reply", "effect"), (20, 1, 1))[0])

    # What holds.

    def each_entry_has_a_copy(self) -> bool:
        return all(
            any(entry_id in self.world.of(bookie) for bookie in self.holders(entry_id))
            for entry_id in range(self.world.end + 1)
        )

    def holders(self, entry_id: int) -> tuple[BookieId, ...]:
        """Return who should have the entry by the metadata."""
        metadata = self.world.metadata
        assert metadata is not None
        return tuple(
            bookie
            for index, bookie in enumerate(metadata.fragment_of(entry_id).bookies)
            if holds(index, entry_id, metadata.quorum)
        )

    def check(self) -> None:
        assert self.each_entry_has_a_copy(), "an acknowledged entry is nowhere where it should be"

    def heal(self) -> None:
        """Faults stop, and there is room: everything is made good in bounded time."""
        world = self.world
        self.there += self.away
        self.there += [f"{number}" for number in range(5)]
        world.there = "".join(self.there)
        self.close()
        metadata = world.metadata
        assert metadata is not None
        for fragment in metadata.fragments:
            for bookie in fragment.bookies:
                reason = Reason.DAMAGED if bookie in self.there else Reason.LOST
                world.lacks(bookie, reason)
        world.lose_lock()
        for running in self.workers:
            if running is not None and running.finish is None:
                running.end()  # sleepers wake up
        for _ in range(10):
            if world.mark is None:
                break
            world.now_ms += HOUR_MS
            world.lose_lock()
            assert repair(world).outcome in {RepairOutcome.DONE, RepairOutcome.DEFERRED}
        assert world.mark is None, world.mark
        assert world.is_whole()


@pytest.mark.parametrize("part", range(10))
def test_whatever_happens_every_acknowledged_entry_gets_its_copies_back(part: int) -> None:
    for seed in range(part, SEEDS, 10):
        try:
            Luck(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
