"""Ledger metadata in the store: ids, lost replies, compare-and-swap, complete lists."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest

from ledger.cluster import make_namespace
from ledger.errors import (
    BadVersion,
    DamagedMetadata,
    MetadataUnavailable,
    NodeExists,
    NoSuchLedger,
)
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ledger_owner import (
    OWNERS_PATH,
    STAMP_INCARNATION,
    STAMP_LOG,
    LedgerOwner,
    owner_in,
    owner_path,
    owner_value,
)
from ledger.manager import LAYOUTS, LedgerStore
from ledger.manager.ids import BLOCK_SIZE, BlockIds, SequentialIds
from ledger.manager.layout import LEDGERS
from ledger.manager.ledger_store import OWNED_AT_ONCE
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore.memory import MemoryStore
from ledger.metastore.ops import Op
from ledger.quorum import Quorum
from tests.ledger.flaky_store import FlakyStore, LyingStore
from tests.waiting import PATIENCE_S

EACH_LAYOUT = pytest.mark.parametrize("layout", sorted(LAYOUTS))
METADATA = LedgerMetadata(
    quorum=Quorum(1, 1, 1),
    fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
    creation_token=b"token",
)


@asynccontextmanager
async def opened(layout: str) -> AsyncIterator[tuple[MemoryStore, LedgerStore]]:
    store = MemoryStore("memory://manager", "manager")
    await make_namespace(store, layout=layout)
    yield store, LedgerStore(store, layout)
    await store.close()


@EACH_LAYOUT
async def test_a_ledger_is_created_read_written_and_deleted(layout: str) -> None:
    async with opened(layout) as (_, ledgers):
        ledger_id = await ledgers.create(METADATA)
        assert await ledgers.read(ledger_id) == (METADATA, 0)
        closed = METADATA.closed(EntryId(3), 30)
        assert await ledgers.write(ledger_id, closed, 0) == 1
        with pytest.raises(BadVersion):
            await ledgers.write(ledger_id, METADATA, 0)
        assert (await ledgers.read(ledger_id))[0].state is LedgerState.CLOSED
        await ledgers.delete(ledger_id)
        await ledgers.delete(ledger_id)
        for call in (ledgers.read(ledger_id), ledgers.write(ledger_id, closed, 1)):
            with pytest.raises(NoSuchLedger):
                await call


@EACH_LAYOUT
async def test_ids_are_never_given_out_twice_also_not_after_deletion(layout: str) -> None:
    async with opened(layout) as (store, _):
        seen: set[int] = set()
        for _ in range(4):
            ledgers = LedgerStore(store, layout)  # a process of its own
            made = await asyncio.gather(*(ledgers.create(METADATA) for _ in range(20)))
            assert not seen.intersection(made)
            assert len(set(made)) == 20
            seen.update(made)
            for ledger_id in made:
                await ledgers.delete(ledger_id)


async def test_a_block_of_ids_costs_one_write_and_a_lost_reply_only_wastes_it() -> None:
    async with opened("longhierarchical") as (store, _):
        flaky = FlakyStore(store)
        ids = BlockIds(flaky)
        first = [await ids.take() for _ in range(BLOCK_SIZE)]
        assert first == list(range(BLOCK_SIZE))
        assert await store.exists("/idgen") == 1
        flaky.lose_replies = ["set"]
        with pytest.raises(MetadataUnavailable):
            await ids.take()
        assert await ids.take() == 2 * BLOCK_SIZE


async def test_sequential_ids_leave_no_nodes_and_survive_lost_replies() -> None:
    async with opened("flat") as (store, _):
        flaky = FlakyStore(store)
        ids = SequentialIds(flaky)
        assert [await ids.take() for _ in range(3)] == [0, 1, 2]
        assert await store.children("/idgen") == []
        flaky.lose_requests = ["delete"]
        assert await ids.take() == 3
        flaky.lose_replies = ["create"]
        with pytest.raises(MetadataUnavailable):
            await ids.take()
        assert await ids.take() == 5


@EACH_LAYOUT
async def test_a_counter_that_was_lost_does_not_begin_again(layout: str) -> None:
    async with opened(layout) as (store, ledgers):
        await ledgers.create(METADATA)
        await store.delete("/idgen")
        with pytest.raises(DamagedMetadata) as caught:
            await LedgerStore(store, layout).create(METADATA)
        assert "twice" in str(caught.value)


@EACH_LAYOUT
async def test_a_counter_that_another_client_makes_meanwhile_is_not_taken_for_a_lost_one(
    layout: str,
) -> None:
    class Overtaken(FlakyStore):
        """Somebody else creates the first ledger while this client looks for ledgers."""

        def __init__(self, store: MemoryStore) -> None:
            super().__init__(store)
            self.first: LedgerId | None = None
            self._other = LedgerStore(store, layout)

        async def children(self, path: str) -> list[str]:
            if path == LEDGERS and self.first is None:
                self.first = await self._other.create(METADATA)
            return await super().children(path)

    async with opened(layout) as (store, _):
        overtaken = Overtaken(store)
        second = await LedgerStore(overtaken, layout).create(METADATA)
        assert overtaken.first is not None
        assert second != overtaken.first


async def test_a_counter_that_cannot_be_read_is_told() -> None:
    async with opened("longhierarchical") as (store, ledgers):
        await store.create("/idgen", b"\xff\xff")
        with pytest.raises(DamagedMetadata):
            await ledgers.create(METADATA)


async def test_a_create_whose_reply_was_lost_knows_its_own_ledger() -> None:
    async with opened("longhierarchical") as (store, _):
        flaky = FlakyStore(store)
        ledgers = LedgerStore(flaky, "longhierarchical")
        await ledgers.create(METADATA)
        flaky.lose_replies = ["multi"]
        ledger_id = await ledgers.create(METADATA)
        flaky.lose_requests = ["multi"]
        other_id = await ledgers.create(METADATA)
        assert await listed(ledgers) == [0, ledger_id, other_id]


async def test_a_ledger_that_was_deleted_meanwhile_is_not_made_again_under_its_id() -> None:
    """A janitor may find it before the one that made it has heard that it did."""
    async with opened("longhierarchical") as (store, others):
        flaky = FlakyStore(store)
        ledgers = LedgerStore(flaky, "longhierarchical")
        await ledgers.create(METADATA)
        honest = flaky.multi

        async def deleted_meanwhile(ops: Sequence[Op]) -> None:
            flaky.multi = honest  # type: ignore[method-assign]
            await honest(ops)
            await others.delete(LedgerId(1))
            raise MetadataUnavailable("flaky", "multi", 0.1)

        flaky.multi = deleted_meanwhile  # type: ignore[method-assign]
        assert await ledgers.create(METADATA) == 2
        assert await listed(others) == [0, 2]


async def test_another_ledger_under_the_id_is_not_taken_for_ones_own() -> None:
    async with opened("flat") as (store, ledgers):
        foreign = LedgerMetadata(
            quorum=METADATA.quorum, fragments=METADATA.fragments, creation_token=b"other"
        )
        await store.create("/ledgers/L0000000000", foreign.encode())
        await store.create("/idgen")
        with pytest.raises(NodeExists):
            await ledgers.create(METADATA)
        assert (await ledgers.read(LedgerId(0)))[0] == foreign


async def test_a_store_that_stays_silent_ends_a_create_after_some_tries() -> None:
    async with opened("flat") as (store, _):
        flaky = FlakyStore(store)
        ledgers = LedgerStore(flaky, "flat")
        await ledgers.create(METADATA)
        flaky.lose_requests = ["multi"] * 100
        with pytest.raises(MetadataUnavailable):
            await ledgers.create(METADATA)
        assert len(flaky.lose_requests) > 90


OWNED: Final = replace(METADATA, custom={STAMP_LOG: b"a", STAMP_INCARNATION: b"i"})
HIS: Final = LedgerOwner("a", "i")


@EACH_LAYOUT
async def test_a_ledger_is_made_with_its_owner_node_by_one_call(layout: str) -> None:
    async with opened(layout) as (store, _):
        calls: list[str] = []

        class Counting(FlakyStore):
            def _before(self, operation: str) -> None:
                calls.append(operation)

        ledgers = LedgerStore(Counting(store), layout)
        first = await ledgers.create(OWNED)
        calls.clear()
        second = await ledgers.create(METADATA)
        assert [each for each in calls if each == "multi"] == ["multi"]
        assert [each for each in calls if each == "create"] == (
            [] if layout == "longhierarchical" else ["create"]  # of the id
        )
        for ledger_id, expected in ((first, HIS), (second, None)):
            assert await owner_of(store, ledger_id) == expected


@EACH_LAYOUT
async def test_an_id_whose_owner_node_is_there_is_passed_over_so_many_times(layout: str) -> None:
    async with opened(layout) as (store, _):
        theirs = owner_value(LedgerOwner("theirs", "t"))
        for ledger_id in range(5):
            await store.create(owner_path(LedgerId(ledger_id)), theirs)
        ledger_id = await LedgerStore(store, layout).create(OWNED)
        assert ledger_id >= 5
        assert await owner_of(store, ledger_id) == HIS
        assert await listed(LedgerStore(store, layout)) == [ledger_id]

        class Ahead(FlakyStore):
            """Somebody makes an owner node for each id that is about to be used."""

            tried = 0

            async def multi(self, ops: Sequence[Op]) -> None:
                self.tried += 1
                await store.create(ops[-1].path, theirs)
                await super().multi(ops)

        ahead = Ahead(store)
        with pytest.raises(DamagedMetadata, match=r"/owners/\d+.*16 new ledgers in a row"):
            await LedgerStore(ahead, layout).create(OWNED)
        assert ahead.tried == 16


async def test_an_owner_node_goes_with_its_ledger_unless_it_decides_rights() -> None:
    async with opened("longhierarchical") as (store, _):
        flaky = FlakyStore(store)
        ledgers = LedgerStore(flaky, "longhierarchical")
        first, second, third, fourth = [await ledgers.create(OWNED) for _ in range(4)]
        await ledgers.delete(first)
        assert await store.exists(owner_path(first)) is None
        await store.delete(owner_path(second))
        await ledgers.delete(second)
        await store.set(OWNERS_PATH, b"")
        for ledger_id in (third, fourth):
            await ledgers.delete(ledger_id)
            assert await owner_of(store, ledger_id) == HIS
        assert await listed(ledgers) == []
        assert (await ledgers.vitals()).deletions == 4
        last = await ledgers.create(OWNED)
        await store.set(OWNERS_PATH, b"")
        flaky.lose_requests = ["multi"]
        with pytest.raises(MetadataUnavailable):
            await ledgers.delete(last)
        await ledgers.delete(last)
        assert await owner_of(store, last) == HIS


async def test_a_ledger_is_made_without_owner_node_where_nobody_has_made_room_for_them() -> None:
    async with opened("longhierarchical") as (store, ledgers):
        await store.delete(OWNERS_PATH)
        ledger_id = await ledgers.create(OWNED)
        assert await ledgers.read(ledger_id) == (OWNED, 0)
        await ledgers.delete(ledger_id)
        assert await store.exists(OWNERS_PATH) is None


async def test_owner_nodes_that_are_missing_are_made_as_the_ledgers_say() -> None:
    async with opened("longhierarchical") as (store, ledgers):
        await store.delete(OWNERS_PATH)
        made = [await ledgers.create(each) for each in [OWNED, METADATA] * OWNED_AT_ONCE]
        counts: list[int] = []
        assert await ledgers.write_owners(counts.append) == []
        assert counts == [OWNED_AT_ONCE, 2 * OWNED_AT_ONCE, 2 * OWNED_AT_ONCE]
        assert [await owner_of(store, each) for each in made[:2]] == [HIS, None]
        await store.delete(owner_path(made[0]))
        assert await ledgers.write_owners(counts.append) == []
        assert await owner_of(store, made[0]) == HIS

        metadata, version = await ledgers.read(made[1])
        stolen = {**OWNED.custom, STAMP_LOG: b"theirs"}
        await ledgers.write(made[1], replace(metadata, custom=stolen), version)
        await store.set(LAYOUTS["longhierarchical"].path(made[2]), b"\xff")
        changed, damaged = sorted(await ledgers.write_owners(counts.append))
        assert "ledger 1 is of log 'theirs' by its metadata, and of no log by /owners/1" in changed
        assert damaged.startswith("ledger 2 does not say whose it is")
        assert await owner_of(store, made[1]) is None, "what was written once is not changed"


async def owner_of(store: MemoryStore, ledger_id: LedgerId) -> LedgerOwner | None:
    path = owner_path(ledger_id)
    return owner_in((await store.get(path)).value, path)


@EACH_LAYOUT
async def test_a_list_is_complete_and_ascending(layout: str) -> None:
    async with opened(layout) as (store, ledgers):
        assert await listed(ledgers) == []
        ids = [0, 1, 9, 9_999, 10_000, 99_999_999, 100_000_000, 2**31 - 1]
        if layout == "longhierarchical":
            ids += [2**32, 10**18, 2**63 - 1]
        for ledger_id in reversed(ids):
            await store.create(LAYOUTS[layout].path(ledger_id), METADATA.encode())
        assert await listed(ledgers) == ids


@EACH_LAYOUT
async def test_a_list_that_cannot_be_complete_raises(layout: str) -> None:
    async with opened(layout) as (store, _):
        flaky = FlakyStore(store)
        ledgers = LedgerStore(flaky, layout)
        await ledgers.create(METADATA)
        for operation in ("sync", "children"):
            flaky.lose_requests = [operation]
            with pytest.raises(MetadataUnavailable):
                await listed(ledgers)
        await store.create("/ledgers/stranger")
        with pytest.raises(DamagedMetadata):
            await listed(ledgers)


async def test_a_tree_of_ledgers_that_is_gone_is_not_taken_for_no_ledgers() -> None:
    async with opened("flat") as (store, ledgers):
        await store.delete("/ledgers")
        with pytest.raises(DamagedMetadata):
            await listed(ledgers)


async def test_damaged_metadata_is_told_with_its_path() -> None:
    async with opened("flat") as (store, ledgers):
        await store.create("/ledgers/L0000000007", b"\xff")
        with pytest.raises(DamagedMetadata) as caught:
            await ledgers.read(LedgerId(7))
        assert caught.value.path == "/ledgers/L0000000007"


async def test_an_id_that_the_layout_cannot_hold_is_no_ledger() -> None:
    async with opened("flat") as (_, ledgers):
        for ledger_id in (-1, 10**10, 2**63):
            with pytest.raises(NoSuchLedger):
                await ledgers.read(LedgerId(ledger_id))


async def test_a_ledger_is_watched() -> None:
    async with opened("hierarchical") as (_, ledgers):
        ledger_id = await ledgers.create(METADATA)
        watch = ledgers.watch(ledger_id)
        await ledgers.write(ledger_id, METADATA.in_recovery(), 0)
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()
        await ledgers.delete(ledger_id)
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()


@EACH_LAYOUT
async def test_each_deletion_is_counted_once_and_ids_only_grow(layout: str) -> None:
    async with opened(layout) as (_, ledgers):
        before = await ledgers.vitals()
        assert before.deletions == 0
        assert len(before.instance) == 32
        ids = [await ledgers.create(METADATA) for _ in range(5)]
        made = await ledgers.vitals()
        assert before.next_id <= min(ids) <= max(ids) < made.next_id
        await asyncio.gather(*(ledgers.delete(one) for one in (*ids[:3], *ids[:2])))
        await ledgers.delete(LedgerId(7_000_000))
        after = await ledgers.vitals()
        assert after.deletions == 3
        assert await ledgers.absent(ids) == tuple(ids[:3])
        assert made.is_older(after)
        assert not after.is_older(made)


async def test_a_place_without_a_namespace_has_no_instance() -> None:
    store = MemoryStore("memory://empty", "empty")
    assert (await LedgerStore(store, "longhierarchical").vitals()).instance == ""
    await store.close()


async def listed(ledgers: LedgerStore) -> list[LedgerId]:
    return [ledger_id async for ledger_id in ledgers.list()]


@EACH_LAYOUT
async def test_the_absent_are_those_that_are_gone_and_no_others(layout: str) -> None:
    async with opened(layout) as (store, ledgers):
        kept, gone = await ledgers.create(METADATA), await ledgers.create(METADATA)
        damaged = LedgerId(5_000_000)
        await store.create(LAYOUTS[layout].path(damaged), b"\xff")
        await ledgers.delete(gone)
        never = LedgerId(7_000_000)
        assert await ledgers.absent([kept, gone, damaged, never]) == (gone, never)
        assert await ledgers.absent([]) == ()


@EACH_LAYOUT
async def test_no_ledger_is_absent_from_a_store_that_is_damaged(layout: str) -> None:
    store = LyingStore()
    await make_namespace(store, layout=layout)
    ledgers = LedgerStore(store, layout)
    kept, gone = await ledgers.create(METADATA), await ledgers.create(METADATA)
    await ledgers.delete(gone)
    store.is_damaged = True
    assert await ledgers.absent([kept]) == ()
    with pytest.raises(DamagedMetadata):
        await ledgers.absent([kept, gone])
    await store.close()


@EACH_LAYOUT
async def test_a_ledger_that_is_listed_and_not_found_is_hidden_and_not_deleted(layout: str) -> None:
    store = LyingStore()
    await make_namespace(store, layout=layout)
    ledgers = LedgerStore(store, layout)
    kept, gone = await ledgers.create(METADATA), await ledgers.create(METADATA)
    await ledgers.delete(gone)
    store.unread.add(LAYOUTS[layout].path(kept))
    assert await ledgers.hidden([kept, gone]) == (kept,)
    await store.close()


async def test_a_list_or_a_read_over_two_sessions_is_no_answer() -> None:
    """The second session may be with a server that is behind the first one's `sync`."""
    async with opened("longhierarchical") as (store, _):
        flaky = ExpiringStore(store)
        ledgers = LedgerStore(flaky, "longhierarchical")
        ledger_id = await ledgers.create(METADATA)
        calls = 0
        for operation in ("list", "absent"):
            for call in range(20):
                flaky.expire_after = call
                try:
                    if operation == "list":
                        assert await listed(ledgers) == [ledger_id]
                    else:
                        assert await ledgers.absent([ledger_id]) == ()
                except MetadataUnavailable:
                    calls += 1
                else:
                    assert flaky.expire_after is not None, "an answer of two sessions"
        assert calls >= 6


class ExpiringStore(FlakyStore):
    """Its session ends after so many calls."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._memory = store
        self.expire_after: int | None = None

    def _before(self, operation: str) -> None:
        if self.expire_after == 0:
            self._memory.expire()
            self.expire_after = None
        elif self.expire_after is not None:
            self.expire_after -= 1
