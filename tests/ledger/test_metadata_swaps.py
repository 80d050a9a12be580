"""Replacing one member of a fragment (rules 80, 82): what changes, and every reason against it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState, SwapRefusal
from ledger.quorum import Quorum

A, B, C, D, E = NAMES = tuple(BookieId(name) for name in "abcde")
OPEN = LedgerMetadata(
    quorum=Quorum(3, 2, 2),
    fragments=(
        Fragment(EntryId(0), (A, B, C)),
        Fragment(EntryId(12), (D, B, C)),
        Fragment(EntryId(20), (A, B, C)),
    ),
    custom={"log": b"flights"},
)
CLOSED = OPEN.closed(EntryId(30), 999)


def test_a_member_of_a_fragment_that_is_not_the_last_is_replaced_in_any_state() -> None:
    for metadata in (OPEN, OPEN.in_recovery(), CLOSED):
        swapped = metadata.replaced(12, 1, B, E)
        assert isinstance(swapped, LedgerMetadata)
        assert [f.bookies for f in swapped.fragments] == [(A, B, C), (D, E, C), (A, B, C)]


def test_the_last_fragment_is_edited_only_in_a_closed_ledger() -> None:
    assert OPEN.replaced(20, 0, A, E) is SwapRefusal.UNSETTLED
    assert OPEN.in_recovery().replaced(20, 0, A, E) is SwapRefusal.UNSETTLED
    swapped = CLOSED.replaced(20, 0, A, E)
    assert isinstance(swapped, LedgerMetadata)
    assert swapped.last_fragment == Fragment(EntryId(20), (E, B, C))
    assert (swapped.state, swapped.last_entry) == (LedgerState.CLOSED, 30)


def test_the_key_decides_which_fragment_it_is_and_not_its_ensemble() -> None:
    """The first and the last fragment have the same bookies; only one of them is settled."""
    swapped = OPEN.replaced(0, 0, A, E)
    assert isinstance(swapped, LedgerMetadata)
    assert [f.bookies[0] for f in swapped.fragments] == [E, D, A]


@pytest.mark.parametrize(
    ("first", "index", "old", "new", "why"),
    [
        (13, 0, D, E, SwapRefusal.NO_FRAGMENT),
        (12, 3, D, E, SwapRefusal.NO_INDEX),
        (12, -1, C, E, SwapRefusal.NO_INDEX),
        (12, 0, A, E, SwapRefusal.OTHER_MEMBER),
        (12, 0, D, B, SwapRefusal.ALREADY_MEMBER),
        (12, 0, A, D, SwapRefusal.DONE),
        (12, 0, D, D, SwapRefusal.DONE),
    ],
)
def test_what_may_not_be_swapped_says_why(
    first: int, index: int, old: BookieId, new: BookieId, why: SwapRefusal
) -> None:
    assert CLOSED.replaced(first, index, old, new) is why


def test_two_members_of_a_fragment_are_replaced_in_one_value() -> None:
    one = OPEN.replaced(0, 0, A, D)
    assert isinstance(one, LedgerMetadata)
    both = one.replaced(0, 2, C, E)
    assert isinstance(both, LedgerMetadata)
    assert both.fragments[0].bookies == (D, B, E)


def test_an_end_is_settled_where_nobody_can_move_it() -> None:
    assert [OPEN.settled_end(f) for f in OPEN.fragments] == [11, 19, None]
    assert [CLOSED.settled_end(f) for f in CLOSED.fragments] == [11, 19, 30]
    empty = OPEN.closed(EntryId(19), 5)
    assert empty.settled_end(empty.last_fragment) == 19, "nothing was acknowledged in it"


@st.composite
def metadata(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 4))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 12), max_size=3)))]
    fragments = tuple(
        Fragment(EntryId(first), tuple(draw(st.permutations(NAMES))[:ensemble])) for first in firsts
    )
    ledger = LedgerMetadata(quorum=Quorum(ensemble, ensemble, 1), fragments=fragments)
    state = draw(st.sampled_from(list(LedgerState)))
    if state is LedgerState.CLOSED:
        last = draw(st.integers(firsts[-1] - 1, firsts[-1] + 5))
        return ledger.closed(EntryId(last), 0)
    return ledger if state is LedgerState.OPEN else ledger.in_recovery()


@given(metadata(), st.integers(0, 13), st.integers(-1, 4), *[st.sampled_from(NAMES)] * 2)
def test_a_swap_changes_one_place_or_nothing(
    before: LedgerMetadata, first: int, index: int, old: BookieId, new: BookieId
) -> None:
    """Judged by a second, simpler predicate: the one of the protocol, clause by clause."""
    outcome = before.replaced(first, index, old, new)
    keys = [f.first_entry for f in before.fragments]
    at = keys.index(EntryId(first)) if first in keys else None
    allowed = (
        at is not None
        and (at + 1 < len(keys) or before.state is LedgerState.CLOSED)
        and 0 <= index < before.quorum.ensemble
        and before.fragments[at].bookies[index] == old
        and new not in before.fragments[at].bookies
    )
    assert isinstance(outcome, LedgerMetadata) == allowed
    if isinstance(outcome, LedgerMetadata):
        places = [
            (a.first_entry, i)
            for a, b in zip(before.fragments, outcome.fragments, strict=True)
            for i in range(before.quorum.ensemble)
            if a.bookies[i] != b.bookies[i]
        ]
        assert places == [(first, index)]
        assert [f.first_entry for f in outcome.fragments] == keys
        assert replace(outcome, fragments=before.fragments) == before
        assert outcome.replaced(first, index, old, new) is SwapRefusal.DONE, "a reply was lost"
