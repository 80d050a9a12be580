"""Real clients of Kafka produce and consume, and native readers read the same records."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import dlog.testing
from dlog.aio import Log, Standby
from dlog.aio.admin import archive_log, create_log, restore_segments, update_settings
from dlog.aio.namespace_connection import connect
from dlog.errors import AppendOutcomeUnknown, LedByGateway, LostOwnership
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.membership import Membership
from dlog.kafka.wire import METADATA
from dlog.settings import LogSettings
from ledger.errors import LevelTooLow
from ledger.feature_level import HEADER_PAIRS
from ledger.metastore.memory import MemoryHub
from tests.dlog.kafka.clients import CLIENTS, CONFLUENT, KafkaClient
from tests.dlog.kafka.test_wire import request_frame, response_in
from tests.namespaces import made

EARLY_S = 0.2
"""In which an answer would come that comes too early."""

pytestmark = pytest.mark.slow


@asynccontextmanager
async def serving() -> AsyncIterator[Gateway]:
    async with dlog.testing.cluster() as cluster:
        ledgers = await connect(cluster.uri)
        try:
            async with gateway(ledgers, GatewayOptions(port=0)) as running:
                yield running
        finally:
            await ledgers.close()


@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_a_client_consumes_what_it_produced_in_order(client: KafkaClient) -> None:
    values = [b"value %d" % number for number in range(500)]
    async with serving() as served:
        await asyncio.to_thread(client.produce, served.address, "greetings", values, key=b"k")
        found = await asyncio.to_thread(client.consume, served.address, "greetings", 0, 500)
    assert [record.value for record in found] == values
    assert [record.offset for record in found] == list(range(500))
    assert {record.key for record in found} == {b"k"}


@pytest.mark.parametrize("consumer", CLIENTS, ids=str)
@pytest.mark.parametrize("producer", CLIENTS, ids=str)
async def test_a_client_consumes_what_another_one_produced_with_headers(
    producer: KafkaClient, consumer: KafkaClient
) -> None:
    async with serving() as served:
        headers = [("trace", b"1"), ("trace", b"2")]
        await asyncio.to_thread(
            producer.produce, served.address, "greetings", [b"hello"], headers=headers
        )
        (record,) = await asyncio.to_thread(consumer.consume, served.address, "greetings", 0, 1)
    assert record.value == b"hello"
    assert record.headers == (("trace", b"1"), ("trace", b"2"))


async def test_a_topic_that_a_client_names_is_created_unless_that_is_off() -> None:
    async with serving() as served:
        await asyncio.to_thread(CONFLUENT.produce, served.address, "made", [b"1"])
        assert (await served.topics.table(fresh=True)).names() == ["made"]


async def test_partitions_of_a_topic_are_logs_of_their_own() -> None:
    async with serving() as served:
        await served.topics.create("split", 3, {})
        for partition in range(3):
            values = [b"%d" % partition]
            await asyncio.to_thread(
                CONFLUENT.produce, served.address, "split", values, partition=partition
            )
        for partition in range(3):
            (record,) = await asyncio.to_thread(
                CONFLUENT.consume, served.address, "split", partition, 1
            )
            assert (record.partition, record.value) == (partition, b"%d" % partition)


async def test_native_readers_read_what_a_client_produced() -> None:
    async with serving() as served:
        await asyncio.to_thread(
            CONFLUENT.produce, served.address, "t", [b"1", b"2"], key=b"k", headers=[("h", b"x")]
        )
        reader = await Log.tail("t", client=served.ledgers)
        async with reader:
            records = [await anext(reader), await anext(reader)]
    assert [(record.offset, record.value, record.key) for record in records] == [
        (0, b"1", b"k"),
        (1, b"2", b"k"),
    ]
    assert records[0].headers.pairs() == (("h", b"x"),)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_clients_consume_from_a_native_writer_and_do_not_disturb_it(
    client: KafkaClient,
) -> None:
    async with serving() as served:
        async with Log.open("flights", client=served.ledgers) as log:
            await log.append(b"LH1", key=b"k", headers=[("h", b"x")])
            (first,) = await asyncio.to_thread(client.consume, served.address, "flights", 0, 1)
            consuming = asyncio.create_task(
                asyncio.to_thread(client.consume, served.address, "flights", 0, 3)
            )
            await log.append(b"LH2")
            await log.append(b"LH3")
            found = await consuming
            assert not log.lost.is_set()
            epoch = log.epoch
        assert (first.value, first.key, first.headers) == (b"LH1", b"k", (("h", b"x"),))
        assert [record.value for record in found] == [b"LH1", b"LH2", b"LH3"]
        async with Log.open("flights", client=served.ledgers, expected_epoch=epoch) as log:
            assert log.last_offset == 2


async def test_a_program_that_is_called_like_a_gateway_is_a_program() -> None:
    async with serving() as served:
        named = Log.open("t", client=served.ledgers, owner="kafka gateway of mine")
        async with await named as log:
            await log.append(b"1")
            (record,) = await asyncio.to_thread(CONFLUENT.consume, served.address, "t", 0, 1)
            assert record.value == b"1"
            assert not log.lost.is_set(), "a consumer follows it"
        async with Log.open("t", client=served.ledgers) as log:  # though a gateway lives
            assert log.last_offset == 0


async def test_a_producer_takes_no_log_from_a_program_that_has_it_open() -> None:
    async with serving() as served:
        async with Log.open("flights", client=served.ledgers) as log:
            await log.append(b"1")
            (record,) = await asyncio.to_thread(CONFLUENT.consume, served.address, "flights", 0, 1)
            for _ in range(2):
                with pytest.raises(AssertionError, match="POLICY_VIOLATION"):
                    await asyncio.to_thread(CONFLUENT.produce, served.address, "flights", [b"2"])
            await log.append(b"2")
            assert served.led.takeovers == 0
        await asyncio.to_thread(CONFLUENT.produce, served.address, "flights", [b"3"])
        found = await asyncio.to_thread(CONFLUENT.consume, served.address, "flights", 0, 3)
        assert [each.value for each in (record, *found)] == [b"1", b"1", b"2", b"3"]


async def test_a_log_that_a_program_left_open_goes_to_kafka_by_the_topic_of_its_name() -> None:
    async with serving() as served:
        log = await Log.open("flights", client=served.ledgers)
        await log.append(b"1")
        await log.abandon()  # as a crash leaves it
        with pytest.raises(AssertionError, match="POLICY_VIOLATION"):
            await asyncio.to_thread(CONFLUENT.produce, served.address, "flights", [b"2"])
        await served.topics.adopt("flights", ["flights"])
        await asyncio.to_thread(CONFLUENT.produce, served.address, "flights", [b"2"])
        found = await asyncio.to_thread(CONFLUENT.consume, served.address, "flights", 0, 2)
        assert [each.value for each in found] == [b"1", b"2"]


async def test_an_election_tells_whether_a_program_has_the_log() -> None:
    async with serving() as served:
        async with Standby.open(
            "flights", lambda _: None, client=served.ledgers, lifeline_host=None
        ) as standby:
            log = await standby.promote()
            await log.append(b"1")
            with pytest.raises(AssertionError, match="POLICY_VIOLATION"):
                await asyncio.to_thread(CONFLUENT.produce, served.address, "flights", [b"2"])
            await log.abandon()
        await asyncio.to_thread(CONFLUENT.produce, served.address, "flights", [b"2"])
        found = await asyncio.to_thread(CONFLUENT.consume, served.address, "flights", 0, 2)
        assert [each.value for each in found] == [b"1", b"2"]


async def test_requests_that_take_a_log_over_together_take_it_once() -> None:
    async with serving() as served:
        async with Log.open("flights", client=served.ledgers) as log:
            await log.append(b"1")
        topic = await served.topics.find("flights")
        await served.led.partition(topic, 0, follow=True)
        opened = await asyncio.gather(*(served.led.partition(topic, 0) for _ in range(5)))
        assert len(set(map(id, opened))) == 1
        assert served.led.takeovers == 1


async def test_a_topic_of_kafka_is_taken_back_from_a_program() -> None:
    async with serving() as served:
        await asyncio.to_thread(CONFLUENT.produce, served.address, "t", [b"1"])
        log = await Log.open("t", client=served.ledgers, take_over=True)
        await log.append(b"2")
        await asyncio.to_thread(CONFLUENT.produce, served.address, "t", [b"3"])
        with pytest.raises((LostOwnership, AppendOutcomeUnknown)):
            await log.append(b"4")
        await log.abandon()
        found = await asyncio.to_thread(CONFLUENT.consume, served.address, "t", 0, 3)
        assert [each.value for each in found] == [b"1", b"2", b"3"]


async def test_a_sealed_log_is_consumed_and_takes_no_more() -> None:
    async with serving() as served:
        async with Log.open("flights", client=served.ledgers) as log:
            await log.append(b"1")
            await log.seal()
        (record,) = await asyncio.to_thread(CONFLUENT.consume, served.address, "flights", 0, 1)
        assert record.value == b"1"
        with pytest.raises(AssertionError, match="POLICY_VIOLATION"):
            await asyncio.to_thread(CONFLUENT.produce, served.address, "flights", [b"2"])


async def test_a_native_open_of_a_log_that_a_gateway_leads_is_refused_until_it_is_gone() -> None:
    async with serving() as served:
        await asyncio.to_thread(CONFLUENT.produce, served.address, "t", [b"1"])
        with pytest.raises(LedByGateway, match="take_over=True") as refused:
            await Log.open("t", client=served.ledgers)
        assert served.address in str(refused.value)
        assert refused.value.retryable
        await asyncio.to_thread(CONFLUENT.produce, served.address, "t", [b"2"])
        async with Log.open("t", client=served.ledgers, take_over=True) as log:
            await log.append(b"3")
        await asyncio.to_thread(CONFLUENT.produce, served.address, "t", [b"4"])
        await served.stop()
        async with Log.open("t", client=served.ledgers) as log:
            assert log.last_offset == 3


async def test_a_cluster_at_a_low_level_is_served_after_its_upgrade_only() -> None:
    with MemoryHub().shared("old"):
        await made("memory://old", level=HEADER_PAIRS)
        ledgers = await connect("memory://old")
        try:
            with pytest.raises(LevelTooLow, match="dlog cluster upgrade"):
                async with gateway(ledgers, GatewayOptions(port=0)):
                    pass
        finally:
            await ledgers.close()


async def test_no_client_is_told_that_there_is_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    register = Membership.start
    clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask_first(self: Membership) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        clients.append((reader, writer))
        frame = request_frame(METADATA, 4, {"topics": (), "allow_auto_topic_creation": False})
        writer.write(struct.pack(">i", len(frame)) + frame)
        await asyncio.sleep(EARLY_S)
        await register(self)

    monkeypatch.setattr(Membership, "start", ask_first)
    async with serving() as served:
        [(reader, writer)] = clients
        (size,) = struct.unpack(">i", head := await reader.readexactly(4))
        _, metadata = response_in(head + await reader.readexactly(size), METADATA, 4)
        writer.close()
        await writer.wait_closed()
    assert [broker.port for broker in metadata.brokers] == [served.port]


@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_a_client_reads_a_log_from_its_first_offset_through_objects(
    client: KafkaClient, tmp_path: Path
) -> None:
    """Written by a client and a program, in turn; what is sealed is in objects alone, or back."""
    values = [b"%04d" % number for number in range(600)]
    async with serving() as served:
        settings = LogSettings(archive=f"file://{tmp_path}/objects", roll_records=100)
        await create_log("t", settings=settings, client=served.ledgers)
        async with Log.open("t", client=served.ledgers) as log:
            await log.append_many(values[:250])
        await served.topics.create("produced", 1, {})
        await update_settings("produced", settings_of(settings), client=served.ledgers)
        for first in range(0, 600, 150):
            some = values[first : first + 150]
            await asyncio.to_thread(CONFLUENT.produce, served.address, "produced", some)
        for name, count in (("t", 250), ("produced", 600)):
            report = await archive_log(name, client=served.ledgers)
            assert report.released
            assert not report.failures
            for restored in (False, True):
                if restored:
                    assert (await restore_segments(name, client=served.ledgers)).restored
                found = await asyncio.to_thread(client.consume, served.address, name, 0, count)
                assert [record.value for record in found] == values[:count]
                assert [record.offset for record in found] == list(range(count))


def settings_of(settings: LogSettings) -> dict[str, object]:
    return {"archive": settings.archive, "roll_records": settings.roll_records}
