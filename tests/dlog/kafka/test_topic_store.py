"""Topics in the metadata store: created, grown, adopted and deleted, by several gateways."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

import dlog.testing
from dlog.aio import Log
from dlog.aio.admin import create_log, delete_log, list_logs, log_settings
from dlog.aio.namespace_connection import connect
from dlog.aio.port import Ledgers
from dlog.errors import InvalidSettings, NoSuchLog
from dlog.kafka import topic_store
from dlog.kafka.protocol.topics import TOPICS_PATH, InvalidTopic, NoSuchTopic, TopicExists
from dlog.kafka.topic_store import TopicStore
from ledger.errors import MetadataUnavailable
from tests.waiting import eventually


@asynccontextmanager
async def ledgers() -> AsyncIterator[Ledgers]:
    async with dlog.testing.cluster() as cluster:
        connected = await connect(cluster.uri)
        try:
            yield connected
        finally:
            await connected.close()


async def test_a_topic_is_created_with_its_logs_and_their_settings() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await store.create("orders", 3, {"retention_bytes": "1000"})
        assert (await store.find("orders")).logs == ("orders-0", "orders-1", "orders-2")
        assert await list_logs(client=connected) == ["orders-0", "orders-1", "orders-2"]
        assert (await log_settings("orders-2", client=connected)).retention_bytes == 1000


async def test_a_dry_creation_creates_nothing() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await store.create("orders", 3, {}, dry=True)
        assert await list_logs(client=connected) == []
        with pytest.raises(NoSuchTopic):
            await store.find("orders")


async def test_a_topic_is_not_created_over_another_or_over_a_log_of_somebody_else() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await create_log("orders-1", client=connected)
        with pytest.raises(TopicExists, match="orders-1"):
            await store.create("orders", 2, {})
        await store.create("orders", 1, {})
        with pytest.raises(TopicExists, match="choose another name"):
            await store.create("orders", 1, {})
        with pytest.raises(InvalidTopic):
            await store.create("a/b", 1, {})
        with pytest.raises(InvalidSettings):
            await store.create("other", 1, {"codec": "nothing"})


async def test_of_gateways_that_create_one_topic_at_once_one_does() -> None:
    async with ledgers() as connected:
        tries = [TopicStore(connected).create("orders", 2, {}) for _ in range(5)]
        found = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(each, TopicExists) for each in found) == 4


async def test_a_log_is_a_topic_and_keeps_its_records_when_the_topic_grows() -> None:
    async with ledgers() as connected:
        async with Log.open("flights", client=connected) as log:
            await log.append(b"1")
        store = TopicStore(connected)
        assert (await store.find("flights")).logs == ("flights",)
        await store.grow("flights", 3)
        assert (await store.find("flights")).logs == ("flights", "flights-1", "flights-2")
        with pytest.raises(InvalidTopic, match="only become more"):
            await store.grow("flights", 2)


async def test_logs_of_any_name_are_given_a_topic() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await create_log("shop/orders", client=connected)
        await store.adopt("orders", ["shop/orders"])
        assert (await store.find("orders")).logs == ("shop/orders",)
        with pytest.raises(InvalidTopic, match="partition of topic 'orders'"):
            await store.adopt("others", ["shop/orders"])
        with pytest.raises(NoSuchLog):
            await store.adopt("others", ["nothing"])


async def test_logs_that_a_topic_is_made_of_stay_those_of_programs() -> None:
    """But for the log of its name, which is given away by it."""
    async with ledgers() as connected:
        store = TopicStore(connected)
        for log in ("orders-0", "orders-1", "flights", "trips"):
            await create_log(log, client=connected)
        await store.adopt("orders", ["orders-0", "orders-1"])
        await store.adopt("flights", ["flights"])
        await store.grow("trips", 2)
        await store.create("made", 2, {})
        names = ("orders", "flights", "trips", "made")
        found = {name: (await TopicStore(connected).find(name)).belongs_to_kafka for name in names}
        assert found == {"orders": False, "flights": True, "trips": False, "made": True}


async def test_a_topic_is_deleted_with_its_logs() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await store.create("orders", 2, {})
        await store.delete("orders")
        assert await list_logs(client=connected) == []
        with pytest.raises(NoSuchTopic):
            await store.find("orders")
        with pytest.raises(NoSuchTopic):
            await store.delete("orders")


async def test_a_deletion_that_was_interrupted_is_finished_by_the_next_creation() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await store._mark_dropped(await store.create("orders", 2, {}))  # and the process died
        with pytest.raises(NoSuchTopic):
            await store.find("orders")
        created = await store.create("orders", 1, {})
        assert (await store.find("orders")).id == created.id
        assert await list_logs(client=connected) == ["orders"]


async def test_a_log_that_got_a_name_of_a_deleted_topic_meanwhile_stays() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await store._mark_dropped(await store.create("orders", 1, {}))
        await delete_log("orders", client=connected)  # and the process died
        async with await Log.open("orders", client=connected) as log:
            await log.append(b"of a program")
        with pytest.raises(TopicExists):
            await store.create("orders", 1, {})
        assert await list_logs(client=connected) == ["orders"]
        assert (await store.find("orders")).logs == ("orders",), "it is a topic of its own"


async def test_a_log_of_dlog_becomes_no_topic_of_its_name() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        with pytest.raises(InvalidTopic, match="dlog's own"):
            await store.adopt("_audit", ["_audit"])
        created = await store.create("_audit", 1, {})
        assert created.logs == ("kafka/_audit",)
        assert await store.find("_audit") == created


async def test_a_log_that_is_created_as_its_topic_is_deleted_goes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ledgers() as connected:
        store, deleting = TopicStore(connected), TopicStore(connected)
        topic = await store.create("orders", 1, {})
        await delete_log("orders", client=connected)
        looked, created = asyncio.Event(), asyncio.Event()

        async def slow(logs: Sequence[str]) -> tuple[str, ...]:
            found = await TopicStore._incarnations(deleting, logs)
            looked.set()
            await created.wait()
            return found

        monkeypatch.setattr(deleting, "_incarnations", slow)
        deletion = asyncio.create_task(deleting.delete("orders"))
        await looked.wait()  # and it saw no log
        await store.create_logs(topic)
        created.set()
        await deletion
        assert await list_logs(client=connected) == []


async def test_a_topic_that_is_deleted_gets_no_logs_from_who_does_not_know_it_yet() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        topic = await store.create("orders", 2, {})
        await store.delete("orders")
        with pytest.raises(NoSuchTopic):
            await store.create_logs(topic)
        assert await list_logs(client=connected) == []


async def test_a_log_that_was_a_topic_by_itself_is_not_created_again() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await create_log("orders", client=connected)
        topic = await store.find("orders")
        await delete_log("orders", client=connected)
        await store.create_logs(topic)
        assert await list_logs(client=connected) == []


async def test_a_topic_that_was_created_again_is_not_deleted_for_the_one_before() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        before = await store.create("orders", 1, {})
        await store.delete("orders")
        await store.create("orders", 1, {})
        with pytest.raises(NoSuchTopic):
            await store._mark_dropped(before)
        assert await list_logs(client=connected) == ["orders"]


async def test_a_topic_whose_deletion_fails_half_way_is_gone_for_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await store.create("orders", 2, {})

        async def fails(*_: object, **__: object) -> None:
            raise MetadataUnavailable("", "/logs", 0.0, "refused")

        with monkeypatch.context() as patch:
            patch.setattr(topic_store, "drop", fails)
            with pytest.raises(MetadataUnavailable):
                await store.delete("orders")
        assert await list_logs(client=connected) == ["orders-0", "orders-1"]
        assert (await store.table(fresh=True)).names() == [], "neither the topic nor its logs"
        await store.delete("orders")
        assert await list_logs(client=connected) == []


async def test_settings_of_a_topic_are_those_of_all_its_logs_also_of_later_ones() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        topic = await store.create("orders", 2, {})
        await store.change_settings(topic, {"retention_bytes": "7"})
        await store.grow("orders", 3)
        for log in ("orders-0", "orders-1", "orders-2"):
            assert (await log_settings(log, client=connected)).retention_bytes == 7


async def test_a_gateway_sees_what_another_one_does_to_topics() -> None:
    async with ledgers() as connected:
        watching, other = TopicStore(connected), TopicStore(connected)
        watching.start()
        try:
            assert (await watching.table()).names() == []

            async def sees(*names: str) -> bool:
                return (await watching.table()).names() == list(names)

            async def has(partitions: int) -> bool:
                topic = (await watching.table()).find("orders")
                return topic is not None and len(topic.logs) == partitions

            await other.create("orders", 2, {})
            await eventually(lambda: sees("orders"))
            await other.grow("orders", 4)
            await eventually(lambda: has(4))
            await other.delete("orders")
            await eventually(sees)
        finally:
            await watching.close()


async def test_a_record_that_cannot_be_read_hides_no_other_topic() -> None:
    async with ledgers() as connected:
        store = TopicStore(connected)
        await store.create("orders", 1, {})
        await connected.store.create(f"{TOPICS_PATH}/broken", b"\xff")
        assert (await store.table(fresh=True)).names() == ["orders"]


async def test_ids_of_producers_are_given_once() -> None:
    async with ledgers() as connected:
        blocks = await asyncio.gather(*(TopicStore(connected).producer_ids() for _ in range(5)))
        ids = [each for block in blocks for each in block]
        assert len(set(ids)) == len(ids) == 5 * len(blocks[0])
