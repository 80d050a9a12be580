"""What a rebalancing moves, and what it never does; and with real bookies."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.move_job import rebalance
from bookie.autorecovery.protocol.rebalance import Move, Rebalancing, weight_of
from ledger.client import LedgerClient
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum
from tests.bookie.autorecovery.repair_world import ledger, names
from tests.bookie.autorecovery.test_worker import closed_ledger, copies, world
from tests.waiting import eventually


def closed(*ensembles: str, length: int = 100) -> LedgerMetadata:
    """A ledger of ten entries a fragment, all on three bookies."""
    fragments = tuple(
        Fragment(EntryId(10 * number), names(text)) for number, text in enumerate(ensembles)
    )
    return LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        fragments=fragments,
        state=LedgerState.CLOSED,
        last_entry=EntryId(10 * len(ensembles) - 1),
        length=length,
    )


def loads_of(ledgers: Sequence[LedgerMetadata], bookies: str) -> dict[BookieId, int]:
    return {b: sum(weight_of(each, {b}).bytes for each in ledgers) for b in names(bookies)}


def rebalancing(
    loads: Mapping[str, int],
    *,
    racks: Mapping[str, str] | None = None,
    tolerance: float = 0.1,
    bytes_max: int | None = None,
) -> Rebalancing:
    return Rebalancing(
        {BookieId(name): load for name, load in loads.items()},
        racks={BookieId(name): rack for name, rack in (racks or {}).items()},
        tolerance=tolerance,
        bytes_max=bytes_max,
    )


def move(source: str, target: str, size_bytes: int = 100) -> Move:
    return Move(BookieId(source), BookieId(target), size_bytes)


def test_a_new_bookie_takes_from_the_fullest_until_all_hold_much_the_same() -> None:
    ledgers = [closed("abc") for _ in range(40)]
    choice = Rebalancing(loads_of(ledgers, "abcd"), racks={})
    moves = [each for each in map(choice.choose, ledgers) if each is not None]
    assert {each.target for each in moves} == set(names("d"))
    assert choice.is_even
    assert sum(choice.loads.values()) == 3 * 40 * 100
    assert max(choice.loads.values()) - min(choice.loads.values()) <= 0.2 * 3000


def test_where_all_is_even_nothing_moves() -> None:
    choice = rebalancing({"a": 1000, "b": 1050, "c": 950})
    assert choice.is_even
    assert choice.choose(closed("abc")) is None


def test_only_what_is_closed_moves() -> None:
    choice = rebalancing({"a": 5000, "b": 0, "c": 0, "d": 0})
    assert choice.choose(ledger((0, "abc"), last=None, state=LedgerState.OPEN)) is None
    assert choice.choose(closed("abc")) == move("a", "d")


def test_a_bookie_that_has_a_copy_in_one_of_the_fragments_gets_no_other() -> None:
    choice = rebalancing({"a": 5000, "b": 0, "c": 0, "d": 0, "e": 10})
    assert choice.choose(closed("abc", "abd", length=200)) == move("a", "e", 200)
    assert choice.choose(closed("abc", "bcd", length=200)) == move("a", "d")


def test_a_move_never_takes_a_rack_away() -> None:
    racks = {"a": "1", "b": "2", "c": "3", "d": "2", "e": "1"}
    loads = {"a": 5000, "b": 0, "c": 0, "d": 0, "e": 10}
    assert rebalancing(loads, racks=racks).choose(closed("abc")) == move("a", "e")
    del loads["e"]
    assert rebalancing(loads, racks=racks).choose(closed("abc")) is None


def test_no_more_moves_than_was_allowed() -> None:
    choice = rebalancing({"a": 5000, "b": 0, "c": 0, "d": 0}, bytes_max=250)
    moves = [choice.choose(closed("abc")) for _ in range(5)]
    assert [each is not None for each in moves] == [True, True, False, False, False]
    assert choice.moved_bytes == 200


def test_a_ledger_that_would_only_change_who_is_full_stays() -> None:
    assert rebalancing({"a": 1000, "d": 0}).choose(closed("abc", length=1000)) is None


def test_bookies_that_may_not_give_or_take_are_left_alone() -> None:
    choice = rebalancing({"b": 9000, "d": 0})
    assert choice.choose(closed("abc")) == move("b", "d")
    assert rebalancing({"b": 0, "d": 0}).choose(closed("abc")) is None
    assert rebalancing({}).choose(closed("abc")) is None


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), tolerance=st.sampled_from([0.0, 0.1, 0.5]))
def test_every_move_makes_the_fuller_one_emptier_and_the_ensembles_stay_right(
    seed: int, tolerance: float
) -> None:
    random = Random(seed)
    bookies = "abcdefg"[: random.randint(4, 7)]
    ledgers = [
        closed(
            *("".join(random.sample(bookies[:-1], 3)) for _ in range(random.randint(1, 3))),
            length=random.randint(0, 1000),
        )
        for _ in range(30)
    ]
    loads = loads_of(ledgers, bookies)
    choice = Rebalancing(loads, racks={}, tolerance=tolerance)
    for metadata in ledgers:
        before = dict(choice.loads)
        found = choice.choose(metadata)
        if found is None:
            assert choice.loads == before
            continue
        source, target = found.source, found.target
        assert max(choice.loads[source], choice.loads[target]) < before[source]
        for fragment in metadata.fragments:
            assert not {source, target} <= set(fragment.bookies)
    assert sum(choice.loads.values()) == sum(loads.values())


# With real bookies.


async def writable(client: LedgerClient, count: int) -> bool:
    return len(client.bookies.writable()) == count


@pytest.mark.slow
async def test_an_empty_bookie_gets_its_share_and_every_copy_is_right() -> None:
    async with world(bookies=4) as (cluster, client):
        await cluster.set_read_only(3)
        await eventually(lambda: writable(client, 3), "the empty one is read-only")
        ledgers = [await closed_ledger(client, entries=10) for _ in range(12)]
        await cluster.set_read_only(3, read_only=False)
        await eventually(lambda: writable(client, 4), "it takes entries")
        planned = await rebalance(client, bytes_per_s=0, dry_run=True)
        assert (planned.moved, planned.before[BookieId("bookie-3")]) == (0, 0)
        assert planned.chosen > 0
        done = await rebalance(client, bytes_per_s=0)
        assert (done.moved, done.failed, done.why) == (done.chosen, 0, "")
        assert done.is_even
        assert done.after == planned.after
        again = await rebalance(client, bytes_per_s=0, dry_run=True)
        assert again.before == done.after
        assert again.chosen == 0
        for ledger_id in ledgers:
            assert set((await copies(client, ledger_id)).values()) == {3}


@pytest.mark.parametrize("leaving", [True, False])
async def test_a_bookie_that_is_to_be_emptied_gets_nothing(*, leaving: bool) -> None:
    async with world(bookies=4) as (_, client):
        await closed_ledger(client, entries=1)
        if leaving:
            await Marks(client.store).announce(BookieId("bookie-0"))
        done = await rebalance(client, bytes_per_s=0, dry_run=True)
        assert ("bookie-0" in done.before) is not leaving
