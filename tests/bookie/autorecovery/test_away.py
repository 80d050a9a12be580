"""What a worker does for a ledger that its writer wrote without a bookie: marks of who is away."""

import pytest

from bookie.autorecovery.protocol.repair import UNSETTLED_MS, RepairOutcome
from ledger.ids import EntryId
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metadata import LedgerState
from tests.bookie.autorecovery.repair_world import World, ledger, names, repair

A, B, C, D = names("abcd")


def away(world: World, fragment: int, *, since_ms: int = 0) -> World:
    """Mark *world*'s ledger as written without bookie a, up to the fragment at *fragment*."""
    world.mark = UnderreplicatedLedger(
        (MissingReplica(A, Reason.AWAY, since_ms, EntryId(fragment)),)
    )
    return world


def open_ledger(*firsts: int) -> World:
    """Return an OPEN ledger with entries 0..9 on a, b and c, in fragments that begin at *firsts*; a
    has none of the first."""
    end = 9
    metadata = ledger(*((first, "abc") for first in firsts), last=None, state=LedgerState.OPEN)
    world = World(metadata, "bc", end=end)
    behind = firsts[1] if len(firsts) > 1 else end + 1
    world.of(A).difference_update(range(behind))
    return world


def test_as_long_as_the_writer_adds_to_what_lacks_copies_the_mark_stays() -> None:
    world = away(open_ledger(0), 0)
    world.there = "abc"
    finish = repair(world)
    assert finish.outcome is RepairOutcome.DEFERRED
    assert world.mark is not None
    assert world.mark.not_before_ms == world.now_ms + UNSETTLED_MS
    assert (world.copied, world.fenced) == (0, False)


def test_what_a_bookie_missed_is_copied_to_it_when_the_writer_has_begun_another_fragment() -> None:
    """The last fragment names it too, and is none of the mark's business."""
    world = away(open_ledger(0, 6), 0)
    world.there = "abc"
    assert repair(world).outcome is RepairOutcome.DONE
    assert world.of(A) == set(range(10))
    assert (world.mark, world.copied) == (None, 6)


def test_a_writer_that_went_on_without_it_once_more_keeps_the_mark() -> None:
    world = away(open_ledger(0, 6), 6)
    world.there = "abc"
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert world.of(A) == set(range(10))
    assert world.mark is not None


def test_another_bookie_gets_the_copies_of_one_that_stays_away() -> None:
    world = away(open_ledger(0, 6), 0)
    world.there = "bcd"
    repair(world)
    fragments = world._metadata.fragments
    assert fragments[0].bookies == (D, B, C)
    assert fragments[1].bookies == (A, B, C)
    assert world.of(D) == set(range(6))


def test_nobody_is_fenced_for_a_bookie_that_is_only_away() -> None:
    """However long ago it was marked, and though there is another."""
    world = away(open_ledger(0), 0)
    world.there = "bcd"
    repair(world)
    assert not world.fenced
    assert world.mark is not None


def test_fragments_behind_the_one_that_was_written_without_it_stay_where_they_are() -> None:
    """Of an open ledger: the writer knows which they are."""
    world = away(open_ledger(0, 3, 6), 0)
    world.there = "bcd"
    repair(world)
    assert [f.bookies[0] for f in world._metadata.fragments] == [D, A, A]


@pytest.mark.parametrize("there", ["abc", "bcd"])
def test_of_a_closed_ledger_all_fragments_are_looked_at(there: str) -> None:
    """A recovery may have written the last entries without it."""
    metadata = ledger((0, "abc"), (6, "abc"), last=9)
    world = away(World(metadata, there), 0)
    world.of(A).clear()
    assert repair(world).outcome is RepairOutcome.DONE
    assert world.is_whole()


def test_a_ledger_in_recovery_is_recovered_at_once() -> None:
    """Its writer is fenced already."""
    metadata = ledger((0, "abc"), last=None, state=LedgerState.IN_RECOVERY)
    world = away(World(metadata, "abc", end=9), 0)
    world.of(A).clear()
    assert repair(world).outcome is RepairOutcome.DONE
    assert world.is_whole()


def test_a_writer_has_its_grace_again_when_a_bookie_comes_that_was_wanted() -> None:
    """It takes that one by itself; else who registers would cost each log a segment."""
    world = open_ledger(0).lacks("a", since_ms=0)
    repair(world, grace_ms=30_000)
    assert world.mark is not None
    assert world.mark.wants_bookie
    world.there = "bcd"
    repair(world, eager=True, grace_ms=30_000)
    assert (world.fenced, world.mark.not_before_ms) == (False, world.now_ms + 30_000)
    world.now_ms += 30_000
    repair(world, grace_ms=30_000)
    assert world.fenced


def test_who_is_marked_as_away_and_then_as_lost_is_lost_and_the_fragment_stays_known() -> None:
    mark = UnderreplicatedLedger((MissingReplica(A, Reason.AWAY, 1, EntryId(6)),))
    merged = mark.merged((MissingReplica(A, Reason.LOST, 9),))
    assert merged.missing == (MissingReplica(A, Reason.LOST, 1, EntryId(6)),)
    assert merged.merged((MissingReplica(A, Reason.AWAY, 9, EntryId(0)),)) is merged
    newer = merged.merged((MissingReplica(A, Reason.AWAY, 9, EntryId(8)),))
    assert newer.missing == (MissingReplica(A, Reason.LOST, 1, EntryId(8)),)
    assert UnderreplicatedLedger.decode(newer.encode(), path="x") == newer
