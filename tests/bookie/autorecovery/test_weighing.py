"""How much of a ledger is on some bookies, and whether anybody else has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.autorecovery.protocol.rebalance import Weight, has_no_source, weight_of
from ledger.ids import BookieId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.quorum import Quorum, holds
from tests.bookie.autorecovery.repair_world import ledger, names


def closed(*fragments: tuple[int, str], last: int, quorum: Quorum, length: int) -> LedgerMetadata:
    made = ledger(*fragments, last=last, quorum=quorum)
    return LedgerMetadata(
        quorum=quorum,
        fragments=made.fragments,
        state=made.state,
        last_entry=made.last_entry,
        length=length,
    )


def test_a_member_of_a_full_stripe_weighs_every_entry_once() -> None:
    metadata = closed((0, "abc"), last=9, quorum=Quorum(3, 3, 2), length=1000)
    assert weight_of(metadata, names("b")) == Weight(1, 1, 10, 1000)
    assert weight_of(metadata, names("bc")) == Weight(1, 1, 20, 2000)
    assert weight_of(metadata, names("x")) == Weight()


def test_an_empty_last_fragment_is_counted_and_weighs_nothing() -> None:
    metadata = closed((0, "abc"), (10, "abd"), last=9, quorum=Quorum(3, 3, 2), length=1000)
    assert weight_of(metadata, names("d")) == Weight(1, 1, 0, 0)


def test_what_is_written_still_weighs_nothing_and_is_counted_as_open() -> None:
    metadata = ledger((0, "abc"), (10, "abd"), last=None, state=LedgerState.OPEN)
    of_d, of_c = weight_of(metadata, names("d")), weight_of(metadata, names("c"))
    assert of_d == Weight(1, 1, 0, 0, 1)
    assert of_c == Weight(1, 1, 10, 0, 0)
    assert of_d.plus(weight_of(metadata, names("a"))) == Weight(2, 3, 10, 0, 2)


@given(
    first=st.integers(0, 9),
    size=st.integers(0, 25),
    shape=st.sampled_from([(5, 3, 2), (4, 2, 2), (3, 3, 2), (3, 1, 1)]),
)
def test_entries_are_counted_as_if_one_by_one(
    first: int, size: int, shape: tuple[int, int, int]
) -> None:
    quorum = Quorum(*shape)
    early, late = "abcde"[: shape[0]], "vwxyz"[: shape[0]]
    last = first + size
    fragments = [(0, early), (first, late)] if first else [(0, late)]
    metadata = closed(*fragments, last=last, quorum=quorum, length=0)
    for index, name in enumerate(late):
        expected = sum(holds(index, entry_id, quorum) for entry_id in range(first, last + 1))
        assert weight_of(metadata, names(name)).entries == expected


@pytest.mark.parametrize(
    ("there", "bare"), [("abcd", False), ("a", False), ("d", False), ("", True), ("xy", True)]
)
def test_a_ledger_has_no_source_if_none_is_there_that_should_have_a_copy(
    there: str, *, bare: bool
) -> None:
    metadata = closed((0, "abd"), last=9, quorum=Quorum(3, 3, 2), length=0)
    assert has_no_source(metadata, names(there)) is bare


def test_of_a_striped_ledger_each_write_set_needs_a_source() -> None:
    metadata = closed((0, "abcd"), last=9, quorum=Quorum(4, 2, 2), length=0)
    assert not has_no_source(metadata, names("ac"))
    assert has_no_source(metadata, names("ab"))
    assert not has_no_source(
        closed((0, "abcd"), last=0, quorum=Quorum(4, 2, 2), length=0), names("b")
    )


def test_nothing_that_is_written_still_is_without_a_source() -> None:
    assert not has_no_source(
        ledger((0, "abc"), last=None, state=LedgerState.OPEN), frozenset[BookieId]()
    )
