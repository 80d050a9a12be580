"""The level of a cluster: who is in the way of its rise, and that nobody slips in beside one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from ledger.cluster import decode_instance, encode_instance, make_namespace, open_namespace
from ledger.errors import CannotUpgrade, LevelTooLow, LevelTooNew, NamespaceMismatch
from ledger.feature_level import LEVEL_MAX, LEVELS, OWNERS, BookieLevel, ClusterLevel, obstacles
from ledger.feature_level_upgrade import raise_level, read_held, survey
from ledger.ids import BookieId, EntryId
from ledger.ledger_owner import OWNERS_PATH, STAMP_INCARNATION, STAMP_LOG, owner_path
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.memory import MemoryStore
from ledger.metastore.ops import ANY_VERSION, INSTANCE, Op
from ledger.metastore.port import create_node
from ledger.quorum import Quorum
from ledger.registry import COOKIES, BookieRegistration, find_registration, register
from ledger.wire import metadata_pb2 as pb

NEW = BookieRegistration("new", "h:1", "i1")
OLD = BookieRegistration("old", "h:2", "i2", level=1)
LEDGER = LedgerMetadata(
    quorum=Quorum(1, 1, 1),
    fragments=(Fragment(EntryId(0), (BookieId("new"),)),),
    creation_token=b"token",
)
Happening = Callable[[], Awaitable[None]]


class Store(MemoryStore):
    """Lets something happen right before a transaction, or a change of the level, is written."""

    def __init__(self) -> None:
        super().__init__("memory://levels", "levels")
        self.before_multi: list[Happening] = []
        self.before_set: list[Happening] = []

    async def multi(self, ops: Sequence[Op]) -> None:
        if self.before_multi:
            await self.before_multi.pop(0)()
        await super().multi(ops)

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        if path == INSTANCE and self.before_set:
            await self.before_set.pop(0)()
        return await super().set(path, value, version)

    async def known(self, bookie: str, *, retired_ms: int = 0) -> None:
        cookie = pb.CookieNode(version=2, bookie=bookie, retired_ms=retired_ms)
        await self.create(f"{COOKIES}/{bookie}", cookie.SerializeToString())

    async def write(self, held: ClusterLevel) -> None:
        instance, _ = decode_instance((await self.get(INSTANCE)).value)
        await super().set(INSTANCE, encode_instance(instance, held))


def at_level_1(scenario: Callable[[Store], Awaitable[None]]) -> None:
    """Run *scenario* in a namespace as a program before levels made it, with one bookie that reads
    all there is."""

    async def run() -> None:
        store = Store()
        await make_namespace(store, level=1)
        await create_node(store, COOKIES)
        await store.known("new")
        await register(store, NEW)
        await scenario(store)

    asyncio.run(run())


async def nothing() -> None:
    pass


def test_a_cluster_rises_only_if_every_bookie_can_read_the_level() -> None:
    able, more = BookieLevel("b0", 2), BookieLevel("b1", 3)
    assert not list(obstacles(2, [able, more]))
    assert not list(obstacles(2, []))
    (older,) = obstacles(3, [able, more])
    assert older.startswith("b0 runs a release that reads levels up to 2: replace")
    (away,) = obstacles(2, [able, BookieLevel("b2", None, "does not run")])
    assert away.startswith("b2 does not run: start it with this release")
    assert list(obstacles(2, [able], left_out=7)) == ["7 more bookies were not looked at"]


def test_what_a_level_brings_is_written_from_it_on() -> None:
    ClusterLevel(2).check_brings(2, "it")
    ClusterLevel(3).check_brings(2, "it")
    with pytest.raises(LevelTooLow, match=r"it needs level 2 .* at level 1.*dlog cluster upgrade"):
        ClusterLevel(1, raising_to=2).check_brings(2, "it")


def test_who_cannot_read_the_level_is_told_which_release_can() -> None:
    ClusterLevel(2).check_readable(2)
    with pytest.raises(LevelTooNew, match=r"install dlog 9\.1 or newer"):
        ClusterLevel(1, raising_to=3, needs="9.1").check_readable(2)


def test_levels_ascend_without_a_gap_and_each_says_what_it_brings() -> None:
    assert sorted(LEVELS) == list(range(1, LEVEL_MAX + 1))
    assert all(each.release and each.brings for each in LEVELS.values())


def test_at_the_first_level_the_instance_is_written_as_before_levels() -> None:
    before = pb.InstanceNode(version=1, instance="abc").SerializeToString()
    assert encode_instance("abc", ClusterLevel()) == before
    assert decode_instance(before) == ("abc", ClusterLevel())


@pytest.mark.parametrize(
    "held", [ClusterLevel(2, needs="1"), ClusterLevel(1, 2, "1"), ClusterLevel(2, 9, "x")]
)
def test_from_the_second_on_programs_before_levels_refuse_it(held: ClusterLevel) -> None:
    value = encode_instance("abc", held)
    assert pb.InstanceNode.FromString(value).version == 2
    assert decode_instance(value) == ("abc", held)


def test_an_instance_of_an_unknown_format_is_refused() -> None:
    with pytest.raises(NamespaceMismatch, match="version 1 or 2"):
        decode_instance(pb.InstanceNode(version=3, instance="abc").SerializeToString())


def test_a_new_namespace_begins_at_the_newest_level() -> None:
    async def scenario() -> None:
        assert (await make_namespace(Store())).held.level == LEVEL_MAX

    asyncio.run(scenario())


def test_the_level_rises_once_all_bookies_read_it_and_stays() -> None:
    async def scenario(store: Store) -> None:
        await store.known("old")
        await register(store, OLD)
        with pytest.raises(CannotUpgrade, match=r"stays at level 1.*old runs a release"):
            await raise_level(store)
        assert await read_held(store) == ClusterLevel()
        await register(store, replace(OLD, level=LEVEL_MAX))
        risen = await raise_level(store)
        assert (risen.before, risen.level, risen.late) == (1, LEVEL_MAX, ())
        assert (await raise_level(store)).before == LEVEL_MAX
        assert (await open_namespace(store)).held.level == LEVEL_MAX

    at_level_1(scenario)


def test_a_bookie_that_is_away_is_in_the_way_and_a_retired_one_is_not() -> None:
    async def scenario(store: Store) -> None:
        await store.known("gone", retired_ms=1)
        await store.known("away")
        with pytest.raises(CannotUpgrade, match="away does not run"):
            await raise_level(store)
        assert [each.bookie for each in (await survey(store)).standings] == ["away", "new"]
        await store.delete(f"{COOKIES}/away")
        assert (await raise_level(store)).level == LEVEL_MAX

    at_level_1(scenario)


def test_a_bookie_that_cannot_read_the_level_is_not_registered() -> None:
    async def scenario(store: Store) -> None:
        await raise_level(store)
        await store.known("old")
        with pytest.raises(LevelTooNew, match="install dlog"):
            await register(store, OLD)
        assert await find_registration(store, "old") is None

    at_level_1(scenario)


def test_an_older_program_does_not_open_a_cluster_of_a_newer_level() -> None:
    async def scenario(store: Store) -> None:
        await store.write(ClusterLevel(LEVEL_MAX + 1, needs="9.0.0"))
        with pytest.raises(LevelTooNew, match=rf"level {LEVEL_MAX + 1}.*dlog 9\.0\.0 or newer"):
            await open_namespace(store)
        with pytest.raises(LevelTooNew):
            await raise_level(store)

    at_level_1(scenario)


def test_a_level_that_rises_while_a_bookie_registers_keeps_it_out() -> None:
    async def scenario(store: Store) -> None:
        await store.known("old")
        store.before_multi.append(lambda: store.write(ClusterLevel(LEVEL_MAX)))
        with pytest.raises(LevelTooNew):
            await register(store, OLD)
        assert await find_registration(store, "old") is None

    at_level_1(scenario)


def test_a_bookie_that_registers_while_the_level_rises_stops_the_rise() -> None:
    async def scenario(store: Store) -> None:
        async def come() -> None:
            await store.known("old")
            await register(store, OLD)

        store.before_set.append(come)  # after the first look, before the door is shut
        with pytest.raises(CannotUpgrade, match="old runs"):
            await raise_level(store)
        assert await read_held(store) == ClusterLevel()

    at_level_1(scenario)


def test_once_the_level_is_about_to_rise_nobody_registers_who_cannot_read_it() -> None:
    refused: list[LevelTooNew] = []

    async def scenario(store: Store) -> None:
        async def come() -> None:
            await store.known("old")
            try:
                await register(store, OLD)
            except LevelTooNew as error:
                refused.append(error)

        store.before_set += [nothing, come]  # the door is shut, and the second look is over
        assert (await raise_level(store)).level == LEVEL_MAX

    at_level_1(scenario)
    assert refused


def test_a_program_before_levels_that_had_begun_to_start_is_named() -> None:
    async def scenario(store: Store) -> None:
        async def come() -> None:  # it checks no level
            node = pb.BookieNode(version=1, address="h:2", incarnation="i2")
            await store.create("/bookies/available/old", node.SerializeToString(), ephemeral=True)

        store.before_set += [nothing, come]
        assert (await raise_level(store)).late == ("old",)

    at_level_1(scenario)


def test_a_rise_that_was_not_finished_is_taken_back_or_finished() -> None:
    async def scenario(store: Store) -> None:
        await store.known("old")
        await store.write(ClusterLevel(1, LEVEL_MAX))
        with pytest.raises(CannotUpgrade, match="old does not run"):
            await raise_level(store)
        assert await read_held(store) == ClusterLevel()
        await store.write(ClusterLevel(1, LEVEL_MAX))
        await register(store, replace(OLD, level=LEVEL_MAX))
        assert (await raise_level(store)).level == LEVEL_MAX

    at_level_1(scenario)


def test_ledgers_have_owner_nodes_before_the_level_demands_them() -> None:
    async def scenario(store: Store) -> None:
        await store.delete(OWNERS_PATH)
        ledgers = LedgerStore(store, (await open_namespace(store)).layout)
        ledger_id = await ledgers.create(LEDGER)
        assert (await raise_level(store, OWNERS - 1)).level == OWNERS - 1
        assert await store.exists(owner_path(ledger_id)) is None
        counts: list[int] = []
        assert (await raise_level(store, progress=counts.append)).level == LEVEL_MAX
        assert await store.exists(owner_path(ledger_id)) is not None
        assert counts == [1]

    at_level_1(scenario)


def test_a_ledger_of_two_owners_stops_the_rise_until_somebody_has_looked() -> None:
    async def scenario(store: Store) -> None:
        ledgers = LedgerStore(store, (await open_namespace(store)).layout)
        ledger_id = await ledgers.create(LEDGER)
        stolen = replace(LEDGER, custom={STAMP_LOG: b"theirs", STAMP_INCARNATION: b"i"})
        await ledgers.write(ledger_id, stolen, 0)
        with pytest.raises(CannotUpgrade, match="ledger 0 is of log 'theirs' by its metadata"):
            await raise_level(store)
        assert await read_held(store) == ClusterLevel()
        await ledgers.write(ledger_id, LEDGER, 1)
        assert (await raise_level(store)).level == LEVEL_MAX

    at_level_1(scenario)


def test_many_who_raise_the_level_at_once_agree() -> None:
    async def scenario(store: Store) -> None:
        risen = await asyncio.gather(*(raise_level(store) for _ in range(5)))
        assert {each.level for each in risen} == {LEVEL_MAX}
        assert await read_held(store) == ClusterLevel(LEVEL_MAX, needs=LEVELS[LEVEL_MAX].release)

    at_level_1(scenario)
