"""One log that a gateway leads, on ledgers in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from google_crc32c import value as crc32c
from kio.schema.errors import ErrorCode

from dlog.aio import Log
from dlog.errors import DamagedLog, NoSuchLog
from dlog.kafka import consumer_reads
from dlog.kafka import partition as module
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.followed_partition import FollowedPartition
from dlog.kafka.partition import Partition
from dlog.recordbatch import RecordBatch
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.kafka.produced import NOW_MS, batch_of, epochs_of, fetched
from tests.waiting import ended, settled, until

WHOLE = 1 << 24


@asynccontextmanager
async def led(client: FakeLedgers, log: str = "log") -> AsyncIterator[Partition]:
    partition = await Partition.open(log, client, owner="gateway")
    try:
        yield partition
    finally:
        await partition.close()


async def made() -> FakeLedgers:
    client = FakeCluster().client()
    async with await Log.open("log", client=client):
        pass
    return client


async def fetch_all(partition: Partition, offset: int = 0) -> list[tuple[int, bytes | None]]:
    records: list[tuple[int, bytes | None]] = []
    while offset < partition.high_watermark:
        data = await ended(partition.fetch(offset, WHOLE))
        records += fetched(data)
        offset = records[-1][0] + 1
    return records


async def test_what_producers_send_is_fetched_with_dense_offsets_and_the_epoch() -> None:
    async with led(await made()) as partition:
        sent = [partition.produce(batch_of(b"a", b"b"), acks=-1) for _ in range(3)]
        produced = await ended(asyncio.gather(*sent))
        assert [each.base_offset for each in produced] == [0, 2, 4]
        assert (partition.start_offset, partition.high_watermark) == (0, 6)
        data = await partition.fetch(0, WHOLE)
        assert fetched(data) == [(i, b"ab"[i % 2 : i % 2 + 1]) for i in range(6)]
        assert set(epochs_of(data)) == {partition.epoch}
        assert fetched(await partition.fetch(3, 1)) == [(2, b"a"), (3, b"b")]
        assert await partition.fetch(6, WHOLE) == b""


async def test_native_readers_get_what_kafka_sent_and_consumers_of_kafka_what_was_native() -> None:
    client = await made()
    async with await Log.open("log", client=client) as log:
        await log.append(b"native", key=b"k", headers={"a": b"1"})
    async with led(client) as partition:
        await partition.produce(batch_of(b"x", codec=3), acks=-1)
        assert await fetch_all(partition) == [(0, b"native"), (1, b"x")]
    records = [r async for r in await Log.tail("log", client=client, follow=False)]
    assert [(r.offset, r.key, r.value) for r in records] == [
        (0, b"k", b"native"),
        (1, b"key", b"x"),
    ]
    assert dict(records[1].headers) == {"h": b"1"}
    assert records[1].timestamp_ms == NOW_MS


async def test_a_log_that_is_not_there_is_not_made() -> None:
    with pytest.raises(NoSuchLog):
        await Partition.open("log", FakeCluster().client(), owner="gateway")


async def test_a_batch_that_is_sent_again_is_appended_once_also_after_a_takeover() -> None:
    client = await made()
    batches = [batch_of(b"a", producer=7, epoch=0, sequence=i) for i in range(7)]
    async with led(client) as partition:
        for batch in batches:
            await partition.produce(batch, acks=-1)
        assert (await partition.produce(batches[5], acks=-1)).base_offset == 5
        with pytest.raises(KafkaRefusal) as refusal:  # too long ago: it may be a gap as well
            await partition.produce(batches[1], acks=-1)
        assert refusal.value.code is ErrorCode.out_of_order_sequence_number
        async with led(client) as next_one:
            assert (await next_one.produce(batches[6], acks=-1)).base_offset == 6
            assert next_one.high_watermark == 7


async def test_a_duplicate_of_a_batch_in_flight_waits_for_it() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client):
        pass
    async with led(client) as partition:
        cluster.hold()
        batch = batch_of(b"a", producer=7, epoch=0, sequence=0)
        both = [asyncio.ensure_future(partition.produce(batch, acks=-1)) for _ in range(2)]
        await settled()
        assert not any(each.done() for each in both)
        assert await partition.fetch(0, WHOLE) == b""
        cluster.release()
        assert [each.base_offset for each in await ended(asyncio.gather(*both))] == [0, 0]
        assert partition.high_watermark == 1


async def test_a_fenced_partition_refuses_and_says_so() -> None:
    client = await made()
    async with led(client) as partition:
        await partition.produce(batch_of(b"a"), acks=-1)
        moved = partition.movement(1)
        async with led(client) as next_one:
            await until(partition.failed.is_set, "the watch saw the next epoch")
            await ended(moved)
            with pytest.raises(KafkaRefusal) as refusal:
                await partition.produce(batch_of(b"b"), acks=-1)
            assert refusal.value.code is ErrorCode.not_leader_or_follower
            assert next_one.epoch > partition.epoch
            assert await next_one.end_of_epoch(partition.epoch) == (partition.epoch, 1)
            assert await next_one.end_of_epoch(next_one.epoch) == (next_one.epoch, 1)
            assert await next_one.end_of_epoch(next_one.epoch + 1) == (-1, -1)


async def test_a_batch_that_failed_is_not_taken_for_one_that_is_in_the_log() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client):
        pass
    cluster.keep_unconfirmed = False
    batch = batch_of(b"a", producer=7, epoch=0, sequence=0)
    async with led(client) as partition:
        cluster.hold()
        sent = asyncio.ensure_future(partition.produce(batch, acks=-1))
        await settled()
        async with led(client) as next_one:
            for again in (sent, partition.produce(batch, acks=-1)):
                with pytest.raises(KafkaRefusal) as refusal:
                    await ended(again)
                assert refusal.value.code is ErrorCode.not_leader_or_follower
            cluster.release()
            assert (await next_one.produce(batch, acks=-1)).base_offset == 0
            assert next_one.high_watermark == 1


async def test_a_gap_is_not_refused_by_who_does_not_lead_any_more() -> None:
    client = await made()
    async with led(client) as partition:
        await partition.produce(batch_of(b"a", producer=7, epoch=0, sequence=0), acks=-1)
        async with led(client) as next_one:
            await next_one.produce(batch_of(b"b", producer=7, epoch=0, sequence=1), acks=-1)
            with pytest.raises(KafkaRefusal) as refusal:
                await partition.produce(batch_of(b"c", producer=7, epoch=0, sequence=2), acks=-1)
            assert refusal.value.code is ErrorCode.not_leader_or_follower


async def test_what_follows_a_batch_that_is_refused_as_the_log_closes_is_no_gap() -> None:
    """A producer that is told so gives up; these it sends to the next leader."""
    async with led(await made()) as partition:
        await partition.produce(batch_of(b"a", producer=7, epoch=0, sequence=0), acks=-1)
        await partition.close()
        for sequence in (1, 2):
            batch = batch_of(b"b", producer=7, epoch=0, sequence=sequence)
            with pytest.raises(KafkaRefusal) as refusal:
                await partition.produce(batch, acks=-1)
            assert refusal.value.code is ErrorCode.not_leader_or_follower


async def test_a_leader_that_was_replaced_unnoticed_tells_no_consumer_to_go_back() -> None:
    """One that has read on from the next leader would begin again at an end that is none."""
    client = await made()
    async with led(client) as partition:
        await partition.produce(batch_of(b"a"), acks=-1)
        partition._watching.cancel()
        async with led(client) as next_one:
            await next_one.produce(batch_of(b"b"), acks=-1)
            for asked in (partition.fetch(2, WHOLE), partition.end_of_epoch(partition.epoch)):
                with pytest.raises(KafkaRefusal) as refusal:
                    await asked
                assert refusal.value.code is ErrorCode.not_leader_or_follower
            with pytest.raises(KafkaRefusal) as refusal:
                await next_one.fetch(3, WHOLE)
            assert refusal.value.code is ErrorCode.offset_out_of_range


async def test_a_movement_is_done_once_something_is_confirmed_behind_its_offset() -> None:
    async with led(await made()) as partition:
        movement, cancelled = partition.movement(0), partition.movement(0)
        cancelled.cancel()
        await settled()
        assert not movement.done()
        await partition.produce(batch_of(b"a", b"b"), acks=-1)
        assert movement.done()
        assert partition.movement(1).done()
        later = partition.movement(2)
    assert later.done(), "it is closed"


async def test_old_records_are_read_from_bookies_batch_by_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.kafka.recent_batches.PROCESS_BYTES_MAX", 0)
    monkeypatch.setattr("dlog.kafka.recent_batches.LOG_BYTES_MIN", 1000)
    async with led(await made()) as partition:
        for i in range(40):
            await partition.produce(batch_of(b"%d" % i * 20, b"x" * 100), acks=-1)
        wanted = [(i, b"%d" % (i // 2) * 20 if i % 2 == 0 else b"x" * 100) for i in range(80)]
        assert await fetch_all(partition) == wanted
        assert fetched(await ended(partition.fetch(5, 1))) == wanted[4:6]
        assert partition._reads._catch_ups, "the next fetch continues where this one ended"


async def test_records_below_the_first_offset_are_gone_and_the_rest_is_there() -> None:
    async with led(await made()) as partition:
        for _ in range(3):
            await partition.produce(batch_of(b"a", b"b"), acks=-1)
        assert await partition.delete_records(3) == 3
        assert partition.start_offset == 3
        for outside in (2, 7):
            with pytest.raises(KafkaRefusal) as refusal:
                await partition.fetch(outside, WHOLE)
            assert refusal.value.code is ErrorCode.offset_out_of_range
        with pytest.raises(KafkaRefusal):
            await partition.delete_records(7)
        assert await partition.delete_records(-1) == 6


async def test_the_first_record_of_a_time_is_found() -> None:
    async with led(await made()) as partition:
        for i in range(5):
            await partition.produce(batch_of(b"a", b"b", b"c", time_ms=NOW_MS + 10 * i), acks=-1)
        assert await partition.offset_for_time(NOW_MS + 21) == (7, NOW_MS + 21)
        assert await partition.offset_for_time(NOW_MS + 25) == (9, NOW_MS + 30)
        assert await partition.offset_for_time(0) == (0, NOW_MS)
        assert await partition.offset_for_time(NOW_MS + 100) is None


async def test_a_time_is_found_although_the_records_there_are_none() -> None:
    broken = bytearray(batch_of(b"a", b"b"))
    broken[61] = 0xFF
    async with led(await made()) as partition:
        await partition.produce(batch_of(b"a", time_ms=NOW_MS - 10), acks=-1)
        await partition.produce(recomputed(bytes(broken)), acks=-1)
        assert await partition.offset_for_time(NOW_MS) == (1, NOW_MS)


async def test_a_native_entry_is_encoded_once_for_all_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await made()
    async with await Log.open("log", client=client) as log:
        await log.append_many([b"a", b"b"])
        await log.append(b"c" * 1000)
    encoded: list[RecordBatch] = []
    honest = consumer_reads._encoded

    def encode(batch: RecordBatch) -> bytes:
        encoded.append(batch)
        return honest(batch)

    monkeypatch.setattr(consumer_reads, "_encoded", encode)
    async with led(client) as partition:
        for _ in range(3):
            assert await fetch_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c" * 1000)]
        assert len(encoded) == 2
        monkeypatch.setattr("dlog.kafka.recent_batches.ENCODED_BYTES_MAX", 1000)
        async with await Log.open("other", client=client) as log:
            await log.append(b"d" * 1000)
        async with led(client, "other") as other:
            assert len(await fetch_all(other)) == 1
        assert await fetch_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c" * 1000)]
        assert len(encoded) > 3, "what was used longest ago is let go of"


async def test_the_snapshot_of_producers_is_enough_and_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_BATCHES", 4)
    client = await made()
    for producer in range(20):
        async with led(client) as partition:
            for sequence in range(3):
                batch = batch_of(b"v", producer=producer, epoch=0, sequence=sequence)
                await partition.produce(batch, acks=-1)
    async with led(client) as partition:
        for producer in range(20):
            for sequence in range(3):
                again = batch_of(b"v", producer=producer, epoch=0, sequence=sequence)
                produced = await partition.produce(again, acks=-1)
                assert produced.base_offset == 3 * producer + sequence
        assert partition.high_watermark == 60
        assert len(await fetch_all(partition)) == 60


async def test_native_records_in_between_hide_no_producer() -> None:
    client = await made()
    batch = batch_of(b"a", producer=7, epoch=0, sequence=0)
    async with led(client) as partition:
        await partition.produce(batch, acks=-1)
    for _ in range(3):
        async with await Log.open("log", client=client) as log:
            await log.append(b"native")
    async with led(client) as partition:
        assert (await partition.produce(batch, acks=-1)).base_offset == 0


async def test_records_that_are_none_stop_native_readers_with_their_offsets_alone() -> None:
    client = await made()
    good = batch_of(b"a", b"b")
    broken = bytearray(good)
    broken[61] = 0xFF
    async with led(client) as partition:
        await partition.produce(good, acks=-1)
        await partition.produce(recomputed(bytes(broken)), acks=-1)
        await partition.produce(good, acks=-1)
        assert len(await partition.fetch(0, WHOLE)) == 3 * len(good), "consumers of Kafka get it"
    reader = await Log.tail("log", client=client)
    assert [(await anext(reader)).offset for _ in range(2)] == [0, 1]
    with pytest.raises(DamagedLog, match=r"offsets 2 to 3 .* read on from offset 4"):
        await ended(anext(reader))
    records = [r async for r in await Log.tail("log", client=client, start=4, follow=False)]
    assert [r.offset for r in records] == [4, 5]


def recomputed(batch: bytes) -> bytes:
    crc: int = crc32c(batch[21:])
    return batch[:17] + crc.to_bytes(4, "big") + batch[21:]


async def test_an_offset_that_a_follower_does_not_know_yet_is_not_out_of_range() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"x")
        followed = await FollowedPartition.open("log", client)
        try:
            assert followed._following is not None
            followed._following.cancel()
            await log.append(b"y")
            assert followed.high_watermark == 1
            assert await followed.fetch(2, WHOLE) == b""
            with pytest.raises(KafkaRefusal) as refusal:
                await followed.fetch(3, WHOLE)
            assert refusal.value.code is ErrorCode.offset_out_of_range
        finally:
            await followed.close()


async def test_a_log_that_is_followed_tells_the_time_of_the_record_that_it_found() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        for i in range(3):
            await log.append(b"x", timestamp_ms=NOW_MS + 10 * i)
        followed = await FollowedPartition.open("log", client)
        try:
            assert await followed.offset_for_time(NOW_MS + 5) == (1, NOW_MS + 10)
            assert await followed.offset_for_time(NOW_MS + 21) is None
        finally:
            await followed.close()


async def test_a_reader_that_no_consumer_asks_again_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_reads, "CATCH_UP_IDLE_S", 0.0)
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        for _ in range(3):
            await log.append(b"x" * 100)
        followed = await FollowedPartition.open("log", client)
        try:
            assert await ended(followed.fetch(0, 1))
            await until(lambda: not followed._reads._catch_ups, "it is closed")
        finally:
            await followed.close()
