"""Renaming: one step, nothing lost, and who has the log open goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from dlog.aio import Log, read_range
from dlog.aio.admin import (
    audit_namespace,
    consumer_info,
    create_log,
    delete_consumer,
    delete_log,
    list_consumers,
    list_logs,
    log_exists,
    log_info,
    rename_log,
    truncate_log,
)
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.maintain.survey import count_of_renames
from dlog.aio.procedures import run_on_store
from dlog.aio.store import ManifestNode
from dlog.errors import InvalidName, LogExists, LostOwnership, NoSuchConsumer, NoSuchLog
from dlog.position import Txid
from dlog.protocol.manifest_steps import newest_name
from ledger.errors import BadVersion, MetadataUnavailable
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import Op
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import FaultyStore, OvertakenStore
from tests.waiting import PATIENCE_S


async def test_a_renamed_log_is_the_same_log_under_another_name() -> None:
    client = FakeCluster().client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    before = (await log_info("a", client=client)).manifest
    await rename_log("a", "b/c", client=client)
    assert await list_logs(client=client) == ["b/c"]
    assert not await log_exists("a", client=client)
    assert (await log_info("b/c", client=client)).manifest == replace(before, renames=1)
    assert await _values(client, "b/c") == [b"x"]
    async with await Log.open("b/c", client=client) as log:
        assert (await log.append(b"y")).offset == 1
    async with await Log.open("a", client=client) as log:  # another one
        assert log.last_offset == -1


async def test_a_living_writer_goes_on_rolls_and_truncates_under_the_new_name() -> None:
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    await log.append(b"x")
    await rename_log("a", "b", client=client)
    assert (await log.append(b"y")).offset == 1
    await log.roll()
    await rename_log("b", "c", client=client)
    assert (await log.append(b"z")).offset == 2
    await log.truncate(before=1)
    await log.roll()
    await log.close()
    assert await _values(client, "c") == [b"y", b"z"]
    assert await list_logs(client=client) == ["c"]


async def test_a_tailing_reader_reads_on_across_a_rename() -> None:
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    async with await Log.tail("a", client=client) as reader:
        await log.append(b"x")
        assert (await anext(reader)).value == b"x"
        await rename_log("a", "b", client=client)
        await log.roll()
        await log.append(b"y")
        await log.roll()
        await log.append(b"z")
        assert [(await anext(reader)).value for _ in range(2)] == [b"y", b"z"]
        assert await reader.barrier() == 3
    await log.close()


async def test_a_range_is_read_on_across_a_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody said which life of the log is meant."""
    monkeypatch.setattr("dlog.aio.read.chunks.READ_BYTES_MAX", 1)
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    for value in (b"x", b"y", b"z"):
        await log.append(value)
        await log.roll()
    values = []
    async for chunk in read_range(client, "a", 0, 3, patience_s=PATIENCE_S):
        values += [record.value for record in chunk.records()]
        if len(values) == 1:
            await rename_log("a", "b", client=client)
            await create_log("a", client=client)
    assert values == [b"x", b"y", b"z"]
    await log.close()


async def test_a_writer_follows_its_log_and_not_the_one_that_took_its_old_name() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    old = await Log.open("a", client=client)
    await old.append(b"x")
    await rename_log("a", "b", client=client)
    new = await Log.open("a", client=client)
    await new.append(b"other")
    await old.roll()
    await old.append(b"y")
    await old.close()
    await new.close()
    assert await _values(client, "b") == [b"x", b"y"]
    assert await _values(client, "a") == [b"other"]


async def test_consumers_move_with_their_log() -> None:
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    for value in (b"x", b"y"):
        await log.append(value)
    async with (
        await Log.consumer("shared", "a", client=client) as shared,
        await Log.consumer("alone", "a", client=client, exclusive=True) as alone,
    ):
        for consumer in (shared, alone):
            await anext(consumer)
            await consumer.commit()
        await rename_log("a", "b", client=client)
        for consumer in (shared, alone):
            assert (await anext(consumer)).value == b"y"
            with pytest.raises(NoSuchConsumer):
                await consumer.commit()
    assert [each.name for each in await list_consumers("b", client=client)] == ["alone", "shared"]
    for name in ("alone", "shared"):
        assert (await consumer_info(name, "b", client=client)).position == 1
        async with await Log.consumer(name, "b", client=client) as consumer:
            assert (await anext(consumer)).value == b"y"
            await consumer.commit()
    await log.close()


async def test_a_consumer_that_is_made_anew_while_its_log_is_renamed_is_the_one_that_moves() -> (
    None
):
    """Both are at the same version, so that of the node alone does not tell."""
    cluster = FakeCluster()
    store = OvertakenStore(MemoryStore("memory://fake", "fake"))
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append_many([b"x"] * 5)
    await (await Log.consumer("view", "a", start=4, client=client)).close()

    async def made_anew() -> None:
        await delete_consumer("view", "a", client=client)
        await (await Log.consumer("view", "a", start=2, client=client)).close()

    store.sleeps_after("/logs/a/consumers/view", made_anew)
    await rename_log("a", "b", client=cluster.client(store))
    assert (await consumer_info("view", "b", client=client)).position == 2


async def test_a_name_that_is_taken_or_missing_is_refused_and_nothing_changes() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    await create_log("b", client=client)
    with pytest.raises(LogExists):
        await rename_log("a", "b", client=client)
    with pytest.raises(LogExists):
        await rename_log("a", "a", client=client)
    with pytest.raises(NoSuchLog):
        await rename_log("c", "d", client=client)
    for name, new_name in (("a", ".x"), ("a", ""), ("/a", "c")):
        with pytest.raises(InvalidName):
            await rename_log(name, new_name, client=client)
    assert await list_logs(client=client) == ["a", "b"]


async def test_a_rename_onto_a_log_that_is_half_deleted_finishes_the_deletion() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("b", client=client) as log:
        await log.append(b"old")
    cluster.fail_next("delete", MetadataUnavailable("x", "delete", 1))
    with pytest.raises(MetadataUnavailable):
        await delete_log("b", client=client)
    await create_log("a", client=client)
    await rename_log("a", "b", client=client)
    assert cluster.ledgers == {}
    assert await list_logs(client=client) == ["b"]


class _LostReplies(FaultyStore):
    """Does the next transaction and does not tell."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.lose_next = False

    async def multi(self, ops: Sequence[Op]) -> None:
        await super().multi(ops)
        if self.lose_next and len(ops) > 3:
            self.lose_next = False
            raise MetadataUnavailable(self.uri, "multi", 0.1)


async def test_a_rename_that_got_no_answer_recognises_its_own_work() -> None:
    store = _LostReplies(MemoryStore("memory://fake", "fake"))
    client = FakeCluster().client(store)
    await create_log("a", client=client)
    store.lose_next = True
    await rename_log("a", "b", client=client)
    assert not store.lose_next
    assert await list_logs(client=client) == ["b"]


@pytest.mark.parametrize("looked", [False, True])
async def test_a_version_from_before_a_rename_never_fits_the_node_after_it(looked: bool) -> None:
    """The new node's versions begin anew, at the one that a sleeper knows of the old node."""
    client = FakeCluster().client()
    await create_log("a", client=client)
    node = ManifestNode(client.store, "a")
    manifest, version = await node.read()
    node.follow(manifest.incarnation)
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    await rename_log("a", "b", client=client)
    if looked:
        await node.read()
    with pytest.raises(BadVersion):
        await node.write(manifest, version)
    assert await _values(client, "b") == [b"x"]
    assert (await node.edit(lambda manifest: manifest.trimmed(1))).trim_offset == 1
    assert await truncate_log("b", before=0, client=client) == 1


async def test_a_deleted_log_leaves_no_note_of_its_renames() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    incarnation = (await log_info("a", client=client)).manifest.incarnation
    counts = [await count_of_renames(client.store)]
    for old, new in (("a", "b"), ("b", "c"), ("c", "a")):
        await rename_log(old, new, client=client)
        assert await run_on_store(newest_name(incarnation), client.store) == new
        counts.append(await count_of_renames(client.store))
    assert len(set(counts)) == 4
    await delete_log("a", client=client)
    assert await run_on_store(newest_name(incarnation), client.store) is None


async def test_a_writer_of_a_renamed_and_deleted_log_has_lost_it() -> None:
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    await log.append(b"x")
    await rename_log("a", "b", client=client)
    await delete_log("b", client=client)
    with pytest.raises(LostOwnership):
        await log.roll()
    with pytest.raises(LostOwnership):
        await log.append(b"y")
    await log.abandon()


async def test_who_loses_to_another_rename_of_the_same_log_is_told_so() -> None:
    cluster = FakeCluster()
    client = cluster.client(MemoryStore("memory://renames", "renames"))
    await create_log("a", client=client)
    moved = False

    class Beaten(FaultyStore):
        """Another process renames the log just before the first transaction."""

        async def multi(self, ops: Sequence[Op]) -> None:
            nonlocal moved
            if not moved:
                moved = True
                await rename_log("a", "b", client=client)
            await super().multi(ops)

    store = Beaten(MemoryStore("memory://renames", "renames"))
    with pytest.raises(NoSuchLog):
        await rename_log("a", "c", client=cluster.client(store))
    assert await list_logs(client=client) == ["b"]


async def test_of_two_renames_at_once_one_wins() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    outcomes = await asyncio.gather(
        rename_log("a", "b", client=client),
        rename_log("a", "c", client=client),
        return_exceptions=True,
    )
    assert len(await list_logs(client=client)) == 1
    assert sum(outcome is None for outcome in outcomes) >= 1


async def _values(client: FakeLedgers, log: str) -> list[bytes]:
    reader = await Log.tail(log, client=client, follow=False)
    return [record.value async for record in reader]


class _RandomTrouble(FaultyStore):
    """Loses some transactions and some answers to them."""

    def __init__(self, store: MemoryStore, random: Random) -> None:
        super().__init__(store)
        self._random = random

    async def multi(self, ops: Sequence[Op]) -> None:
        luck = self._random.random()
        if luck > 0.1:
            await super().multi(ops)
        if luck < 0.25:
            raise MetadataUnavailable(self.uri, "multi", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_comes_between_a_log_that_is_renamed_all_the_time_loses_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 0.05)
    random = Random(seed)
    cluster = FakeCluster()
    client = cluster.client()
    troubled = cluster.client(_RandomTrouble(MemoryStore("memory://fake", "fake"), random))
    log = await Log.open("n0", client=client)
    reader = await Log.tail("n0", client=client)
    janitor = Janitor(troubled)
    done = asyncio.Event()

    async def write() -> None:
        for index in range(300):
            assert (await log.append(b"%d" % index)).offset == index
            if random.random() < 0.1:
                await log.roll()
            if random.random() < 0.2:
                await asyncio.sleep(0)
        done.set()

    async def rename() -> None:
        renames = 0
        while not done.is_set() or renames < 5:
            (name,) = await list_logs(client=client)
            with suppress(MetadataUnavailable, LogExists):  # by a try that was not answered
                await rename_log(name, f"n{random.randrange(5)}x{renames}", client=troubled)
                renames += 1
            for _ in range(random.randrange(20)):
                await asyncio.sleep(0)

    async def look_after() -> None:
        while not done.is_set():
            with suppress(MetadataUnavailable):
                assert (await janitor.run_once()).orphans == ()

    async def read() -> list[bytes]:
        return [record.value async for record in reader]

    reading = asyncio.ensure_future(read())
    await asyncio.gather(write(), rename(), look_after())
    await log.seal()
    assert await reading == [b"%d" % index for index in range(300)]
    assert (await audit_namespace(client=client)).healthy
    assert cluster.deleted == []


async def test_a_version_from_before_does_not_fit_a_log_that_was_given_its_old_name_back() -> None:
    """Its node was made anew and counts from 0 again, up to the version that a sleeper knows."""
    client = FakeCluster().client()
    async with await Log.open("a", client=client) as log:
        for _ in range(9):
            await log.append(b"x")
    sleeper = ManifestNode(client.store, "a")
    manifest, version = await sleeper.read()
    await rename_log("a", "b", client=client)
    await rename_log("b", "a", client=client)
    for offset in range(1, version + 1):
        await truncate_log("a", before=offset, client=client)
    current, at = await ManifestNode(client.store, "a").read()
    assert at == version
    with pytest.raises(BadVersion):
        await sleeper.write(manifest, version)
    assert (await sleeper.read())[0] == current
    with pytest.raises(BadVersion):
        await sleeper.delete(manifest.life, version)


async def test_a_consumer_of_a_renamed_log_never_commits_to_that_of_the_next_one() -> None:
    client = FakeCluster().client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    async with await Log.consumer("shop", "a", client=client) as consumer:
        assert len([record async for record in consumer.read_until(1)]) == 1
        await rename_log("a", "b", client=client)
        await create_log("a", client=client)
        await (await Log.consumer("shop", "a", client=client)).close()  # at the same version
        with pytest.raises(NoSuchConsumer):
            await consumer.commit()
    assert (await consumer_info("shop", "a", client=client)).position == 0
    assert (await consumer_info("shop", "b", client=client)).position == 0


async def test_a_commit_from_before_does_not_fit_a_log_that_was_given_its_old_name_back() -> None:
    client = FakeCluster().client()
    async with await Log.open("a", client=client) as log:
        for value in (b"x", b"y", b"z"):
            await log.append(value)
    async with await Log.consumer("shop", "a", client=client) as consumer:
        await anext(consumer)
        for name, new in (("a", "b"), ("b", "a")):
            async with await Log.consumer("shop", name, client=client) as other:
                assert len([record async for record in other.read_until(3)]) in {0, 3}
                await other.commit()
            await rename_log(name, new, client=client)
        with pytest.raises(NoSuchConsumer):
            await consumer.commit()
    assert (await consumer_info("shop", "a", client=client)).position == 3


async def three_records(client: FakeLedgers, value: bytes) -> None:
    async with await Log.open("a", client=client) as log:
        for txid in range(3):
            await log.append(value, txid=txid)


def at_the_next_lac(client: FakeLedgers, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Do *meanwhile* once, when the end of a ledger is asked for."""

    async def hook(*_: object) -> None:
        client.cluster.hooks.clear()
        await meanwhile()

    client.cluster.before("lac", hook)


async def test_a_reader_reads_the_log_that_its_start_was_found_in() -> None:
    client = FakeCluster().client()
    await three_records(client, b"old")

    async def made_anew() -> None:
        await rename_log("a", "b", client=client)
        await three_records(client, b"new")

    at_the_next_lac(client, made_anew)
    async with await Log.tail("a", client=client, start=Txid(2)) as reader:
        assert [record.value for record in await reader.read_batch()] == [b"old"]
