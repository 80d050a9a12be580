"""What an operator asks for: copies go to given bookies, and from bookies that have them all."""

from typing import Any

from bookie.autorecovery.protocol import repair as protocol
from bookie.autorecovery.protocol.repair import RepairEnd, RepairOutcome
from ledger.mark import Reason
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.procedure import Action
from ledger.quorum import Quorum
from tests.bookie.autorecovery.repair_world import World, ledger, names, repair


class Late(World):
    """Bookie d comes just before somebody is chosen."""

    def do(self, action: Action[Any]) -> object:
        if isinstance(action, protocol.ChooseReplacements):
            self.there += "d"
        return super().do(action)


def metadata_of(world: World) -> LedgerMetadata:
    assert world.metadata is not None
    return world.metadata


def members(world: World) -> list[str]:
    return ["".join(fragment.bookies) for fragment in metadata_of(world).fragments]


def test_copies_go_to_the_bookies_that_are_wanted() -> None:
    world = World(ledger((0, "abc"), last=9), "bcdef").lacks("a")
    assert repair(world, into="f") == RepairEnd(RepairOutcome.DONE)
    assert members(world) == ["fbc"]
    assert world.is_whole()


def test_without_one_that_is_wanted_nothing_is_copied() -> None:
    world = World(ledger((0, "abc"), last=9), "bcdef").lacks("a")
    finish = repair(world, into="b")
    assert finish.outcome is RepairOutcome.DEFERRED
    assert "no bookie to copy to" in finish.why
    assert (world.copied, members(world)) == (0, ["abc"])


def test_one_that_came_too_late_to_be_unwanted_gets_nothing() -> None:
    """The driver chooses among those that are there when it chooses."""
    world = Late(ledger((0, "abc"), last=9), "bc").lacks("a")
    assert repair(world, into="f").outcome is RepairOutcome.DEFERRED
    assert members(world) == ["abc"]


def test_a_bookie_that_has_everything_is_moved_from_when_that_is_asked_for() -> None:
    quorum = Quorum(4, 2, 2)
    world = World(ledger((0, "abcd"), last=9, quorum=quorum), "abcde").lacks("a", Reason.MISPLACED)
    assert repair(world, into="e") == RepairEnd(RepairOutcome.DONE)
    assert members(world) == ["ebcd"]
    assert world.is_whole()


def test_nobody_is_fenced_to_spread_copies() -> None:
    metadata = ledger((0, "abc"), (5, "acd"), last=None, state=LedgerState.OPEN)
    world = World(metadata, "abcde", end=9).lacks("a", Reason.MISPLACED)
    assert repair(world, into="e") == RepairEnd(RepairOutcome.DONE)
    assert members(world) == ["ebc", "acd"]
    assert not world.fenced


def test_what_is_misplaced_on_a_bookie_that_went_away_stays_where_it_is() -> None:
    world = World(ledger((0, "abc"), last=9), "bcde").lacks("a", Reason.MISPLACED)
    assert repair(world, into="e").outcome is RepairOutcome.DEFERRED
    assert (world.copied, members(world)) == (0, ["abc"])


def test_a_bookie_that_is_to_be_out_is_not_done_while_an_empty_fragment_names_it() -> None:
    fragments = (0, "abc"), (10, "bcx")
    world = World(ledger(*fragments, last=9), "bc").lacks("x", Reason.DECOMMISSIONING)
    assert repair(world).outcome is RepairOutcome.DEFERRED
    lost = World(ledger(*fragments, last=9), "bc").lacks("x", Reason.LOST)
    assert repair(lost) == RepairEnd(RepairOutcome.DONE)


def test_of_two_reasons_the_one_that_only_spreads_counts_least() -> None:
    world = World(ledger((0, "abc"), last=9), "abcd").lacks("a", Reason.MISPLACED)
    world.lacks("a", Reason.MISSING)
    assert world.mark is not None
    replica = world.mark.missing_of(names("a")[0])
    assert replica is not None
    assert replica.reason is Reason.MISSING
