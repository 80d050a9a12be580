"""Bugs of ensembles that name bookies which are away, and of writers that went on without one."""

from random import Random

from ledger.protocol import placement
from ledger.protocol.acks import AckTracker
from ledger.quorum import Quorum
from tests.simulation.mutations.mutation import Patch, mutation

_DEGRADED = "tests/ledger/protocol/test_degraded.py"


@mutation("decision 65")
def names_who_is_away_where_the_others_do_not_suffice(patch: Patch) -> None:
    """No entry could be acknowledged, or what is acknowledged could not be recovered."""
    patch.set(placement, "all_reach_ack_quorum", _always)
    patch.set(placement, "all_covered", _always)


@mutation("decision 65")
def names_who_is_away_where_a_takeover_needs_it(patch: Patch) -> None:
    """Two copies, of which one acknowledges: the log is written now, and never closed again."""
    patch.set(placement, "all_covered", _always)


@mutation("rule 7, decision 65")
def acknowledges_with_fewer_copies_while_a_bookie_is_down(patch: Patch) -> None:
    """As if the quorum were one of those that are there."""

    def first_missing(self: AckTracker, residue: int, ends: list[int], start: int) -> int:
        indexes = self._write_sets[residue]
        down = sum(self.slots[index].down for index in indexes)
        needed = max(1, self.quorum.ack - down)
        stored = sorted((ends[index] for index in indexes), reverse=True)
        after = max(stored[needed - 1] + 1, start)
        return after + (residue - after) % self.quorum.ensemble

    patch.set(AckTracker, "_first_missing", first_missing)


@mutation(
    "decision 65",
    drawn=False,
    test=f"{_DEGRADED}::test_it_names_all_that_are_there_and_as_few_others_as_can_be",
)
def puts_those_that_are_away_side_by_side(patch: Patch) -> None:
    """Then one write set has too many of them, and there is no ensemble where there could be one.

    The simulator has too few bookies for two that are away."""

    def away_indexes(quorum: Quorum, count: int, random: Random) -> tuple[int, ...]:
        return tuple(range(count))

    patch.set(placement, "away_indexes", away_indexes)


def _always(_present: object, _quorum: object) -> bool:
    return True
