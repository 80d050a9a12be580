"""What is copied where: every case compared with what a plain model says entry by entry."""

from hypothesis import given
from hypothesis import strategies as st

from bookie.autorecovery.protocol.repair_plan import RepairPlan, ReplicaState, Share, choose
from ledger.quorum import Quorum, holds, write_set

QUORUMS = (Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 3, 2), Quorum(5, 3, 2))
WHOLE = Share()


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, int, Quorum, list[Share], dict[int, bool]]:
    quorum = draw(st.sampled_from(QUORUMS))
    first = draw(st.integers(0, 9))
    last = first + draw(st.integers(0, 12))
    shares = [
        Share(_spans(draw, first, last), ((draw(st.integers(first, last)), last),))
        if draw(st.integers(0, 4)) == 0
        else Share(_spans(draw, first, last))
        for _ in range(quorum.ensemble)
    ]
    moving = {
        index: draw(st.booleans())
        for index in range(quorum.ensemble)
        if draw(st.integers(0, 2)) == 0
    }
    return first, last, quorum, shares, moving


def _spans(draw: st.DrawFn, first: int, last: int) -> tuple[tuple[int, int], ...]:
    missing = sorted(draw(st.sets(st.integers(first, last), max_size=3)))
    return tuple((each, each) for each in missing)


def wanted(index: int, entry_id: int, shares: list[Share], moving: dict[int, bool]) -> bool:
    return index in moving or shares[index].at(entry_id) is ReplicaState.MISSING


@given(situations())
def test_it_copies_what_is_wanted_and_can_be_had_and_nothing_else(
    situation: tuple[int, int, Quorum, list[Share], dict[int, bool]],
) -> None:
    first, last, quorum, shares, moving = situation
    chosen = choose(first, last, quorum, shares, moving=moving)
    copied = copies_of(chosen, first, last, quorum)
    for index in range(quorum.ensemble):
        for entry_id in range(first, last + 1):
            sources = [
                holder
                for holder in write_set(entry_id, quorum)
                if moving.get(holder, holder != index)
                and shares[holder].at(entry_id) is ReplicaState.HELD
                and (holder != index or index in moving)
            ]
            must = (
                holds(index, entry_id, quorum)
                and wanted(index, entry_id, shares, moving)
                and bool(sources)
                and (index not in moving or index in chosen.moved)
            )
            assert ((index, entry_id) in copied) == must, (index, entry_id)
            if must:
                assert copied[index, entry_id] in sources
    for index in chosen.moved:
        for entry_id in range(first, last + 1):
            if holds(index, entry_id, quorum):
                assert (index, entry_id) in copied, "it moves whole, or not at all"


def copies_of(
    chosen: RepairPlan, first: int, last: int, quorum: Quorum
) -> dict[tuple[int, int], int]:
    copied: dict[tuple[int, int], int] = {}
    for copy in chosen.copies:
        for entry_id in range(first, last + 1):
            if copy.takes(entry_id, quorum):
                assert (copy.index, entry_id) not in copied, "nothing is copied twice"
                copied[copy.index, entry_id] = copy.source
    return copied


def test_an_entry_that_every_bookie_denies_is_lost() -> None:
    shares = [Share(((3, 3),)), Share(((3, 3),)), Share(((2, 4),))]
    chosen = choose(0, 9, Quorum(), shares, moving={2: False})
    assert chosen == RepairPlan((), (), ((3, 3),), unsure=False)


def test_an_entry_is_not_lost_while_somebody_who_may_have_it_does_not_answer() -> None:
    shares = [Share(((3, 3),)), Share(unsure=((0, 9),)), WHOLE]
    chosen = choose(0, 9, Quorum(), shares, moving={2: False})
    assert (chosen.lost, chosen.unsure, chosen.moved) == ((), True, ())


def test_a_bookie_that_is_to_be_emptied_is_read_from_last() -> None:
    chosen = choose(0, 9, Quorum(), [WHOLE, WHOLE, WHOLE], moving={0: True})
    assert {copy.source for copy in chosen.copies} == {1}
