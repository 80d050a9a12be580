"""Reading through `dlog.aio.Log.tail`, on ledgers in memory."""

import asyncio

import pytest

from dlog.aio import Chunk, Log, Reader, read_range
from dlog.aio.admin import delete_log, log_tail, truncate_log
from dlog.aio.port import LedgerTail
from dlog.aio.read import reader as reader_module
from dlog.aio.read.chunks import ChunkReader, RangeReaders
from dlog.aio.read.tails import TailTracker
from dlog.aio.store import ManifestNode
from dlog.errors import (
    DamagedLog,
    InvalidPosition,
    LogClosed,
    NoSuchLog,
    NotThereYet,
    Trimmed,
)
from dlog.position import DLSN, Place, Record, RecordId, Start, Stop, Timestamp, Txid
from dlog.recordbatch import Codec
from dlog.settings import LogSettings
from ledger.errors import BookieUnavailable, EntryLost, MetadataUnavailable
from ledger.ids import LedgerId
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import FaultyStore
from tests.waiting import ended, settled, until


async def written(client: FakeLedgers, count: int = 10, *, per_segment: int = 4) -> Log:
    """Return an open log with *count* records, value = offset, txid = ten times that."""
    log = await Log.open("log", client=client)
    for i in range(count):
        if i and i % per_segment == 0:
            await log.roll()
        await log.append(b"%d" % i, txid=10 * i)
    return log


async def values(reader: Reader) -> list[int]:
    async with reader:
        return [int(record.value) async for record in reader]


async def some(reader: Reader, count: int) -> list[int]:
    return [int((await anext(reader)).value) for _ in range(count)]


async def test_all_records_are_read_once_and_in_order_across_segments() -> None:
    client = FakeCluster().client()
    log = await written(client)
    reader = await Log.tail("log", client=client, follow=False)
    records = [record async for record in reader]
    assert [record.offset for record in records] == list(range(10))
    assert records[5] == Record(5, Place(2, 1, 5), records[5].timestamp_ms, 50, None, b"5")
    assert reader.at_end
    assert reader.position == 10
    await reader.close()
    await log.close()


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("start", 0),
        ("end", 10),
        (0, 0),
        (3, 3),
        (4, 4),
        (9, 9),
        (10, 10),
        (DLSN(1, 0, 0), 0),
        (DLSN(2, 3, 0), 7),
        (DLSN(3, 1, 0), 9),
        (Txid(-5), 0),
        (Txid(30), 3),
        (Txid(31), 4),
        (Txid(35), 4),
        (Txid(90), 9),
        (Txid(91), 10),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
async def test_reading_begins_where_it_was_told_to(start: Start, first: int, closed: bool) -> None:
    client = FakeCluster().client()
    log = await written(client)
    if closed:
        await log.close()
    reader = await Log.tail("log", client=client, start=start, follow=False)
    assert await values(reader) == list(range(first, 10))
    if not closed:
        await log.abandon()


async def timed(client: FakeLedgers, leaders: list[list[list[int]]]) -> None:
    """Append, by one leader after another, entries of records with these timestamps."""
    for entries in leaders:
        log = await Log.open("log", client=client)
        for entry in entries:
            futures = [log.append_async(b"", timestamp_ms=each) for each in entry]
            await asyncio.gather(*futures)
        await log.close()


@pytest.mark.parametrize("open_end", [False, True])
async def test_a_timestamp_is_found_whatever_the_clocks_of_other_leaders_said(
    open_end: bool,
) -> None:
    client = FakeCluster().client()
    leaders = [
        [[10, 10, 12], [13], [20, 25]],
        [[5], [6, 7]],  # its clock was behind
        [],
        [[22, 23], [30, 30], [31]],
    ]
    await timed(client, leaders)
    log = None
    if open_end:
        log = await Log.open("log", client=client)
        await log.append(b"", timestamp_ms=40)
    times = [time for entries in leaders for entry in entries for time in entry]
    times += [40] if open_end else []
    for wanted in range(42):
        # Timestamps do not decrease inside a segment here, so the answer is exact.
        first = next((i for i, time in enumerate(times) if time >= wanted), len(times))
        reader = await Log.tail("log", client=client, start=Timestamp(wanted), follow=False)
        assert [r.timestamp_ms for r in [r async for r in reader]] == times[first:]
        await reader.close()
    await truncate_log("log", before=4, client=client)
    reader = await Log.tail("log", client=client, start=Timestamp(0))
    assert reader.position == 4
    await reader.close()
    if log is not None:
        await log.close()


async def test_times_that_run_backwards_in_a_segment_still_give_a_place_that_reached_the_time() -> (
    None
):
    client = FakeCluster().client()
    times = [3, 9, 1, 8, 2, 9, 4, 7, 5, 6]
    await timed(client, [[[each] for each in times]])
    for wanted in range(1, 7):
        reader = await Log.tail("log", client=client, start=Timestamp(wanted), follow=False)
        place = reader.position
        assert times[place] >= wanted
        assert place == 0 or times[place - 1] < wanted
        await reader.close()


@pytest.mark.parametrize(("stop", "end"), [(0, 0), (5, 5), (DLSN(2, 2, 0), 6), ("end", 10)])
async def test_reading_ends_before_the_stop(stop: Stop, end: int) -> None:
    client = FakeCluster().client()
    log = await written(client)
    assert await values(await Log.tail("log", client=client, stop=stop)) == list(range(end))
    await log.close()


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (-1, InvalidPosition),
        (DLSN(9, 0, 0), InvalidPosition),
        (3, Trimmed),
        (DLSN(1, 0, 0), Trimmed),
    ],
)
async def test_a_start_that_cannot_be_is_told_at_once(start: Start, error: type[Exception]) -> None:
    client = FakeCluster().client()
    log = await written(client)
    await log.truncate(before=6)
    with pytest.raises(error):
        await Log.tail("log", client=client, start=start)
    reader = await Log.tail("log", client=client, start=Txid(0), follow=False)
    assert await values(reader) == [6, 7, 8, 9]
    await log.close()


async def test_a_log_that_does_not_exist_cannot_be_read() -> None:
    with pytest.raises(NoSuchLog):
        await Log.tail("log", client=FakeCluster().client())


async def test_a_tail_follows_rolls_and_takeovers() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 3)
    reader = await Log.tail("log", client=cluster.client())
    assert await some(reader, 3) == [0, 1, 2]
    await log.roll()
    await log.append(b"3")
    assert await some(reader, 1) == [3]
    other = await Log.open("log", client=cluster.client())
    await other.append(b"4")
    assert await some(reader, 1) == [4]
    await other.close()
    third = await Log.open("log", client=cluster.client())
    waiting = asyncio.create_task(some(reader, 1))
    await third.append(b"5")
    assert await waiting == [5]
    await third.close()
    await log.abandon()
    await reader.close()


async def died_in_a_roll(cluster: FakeCluster) -> FakeLedgers:
    """Return a client; a writer appended 0 to 4 and died after its switch to segment 2.

    Nobody was told that record 2, the last one of segment 1, is confirmed."""
    log = await written(cluster.client(), 2)
    cluster.ledgers[LedgerId(1)].silence()
    await log.append(b"2", txid=20)

    switched = asyncio.Event()

    async def never(*_: object) -> None:
        switched.set()
        await asyncio.Event().wait()

    cluster.before("close", never)
    rolling = asyncio.create_task(log.roll())
    await switched.wait()
    await log.append(b"3", txid=30)
    await log.append(b"4", txid=40)
    await log.abandon()
    rolling.cancel()
    await asyncio.gather(rolling, return_exceptions=True)
    cluster.hooks.clear()
    return cluster.client()


async def test_a_tail_goes_on_where_a_writer_died_between_switch_and_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 0.01)
    cluster = FakeCluster()
    client = await died_in_a_roll(cluster)
    reader = await Log.tail("log", client=client)
    assert await some(reader, 5) == [0, 1, 2, 3, 4]
    assert [ledger.state.name for ledger in cluster.ledgers.values()] == ["OPEN", "OPEN"]
    assert (await log_tail(client, "log")).next_offset == 5
    for start, first in (("end", 5), (3, 3), (DLSN(2, 0, 0), 3), (Txid(20), 2), (Txid(25), 3)):
        other = await Log.tail("log", client=client, start=start, follow=False)  # type: ignore[arg-type]
        assert await values(other) == list(range(first, 5))
    async with await Log.open("log", client=client) as log:
        await log.append(b"5")
        assert await some(reader, 1) == [5]
    await reader.close()


async def test_a_tail_waits_for_the_first_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 1000.0)  # it hears of it
    cluster = FakeCluster()
    node = ManifestNode(cluster.client().store, "log")
    from dlog.manifest import Manifest

    await node.create(Manifest(incarnation="i"))
    reader = await Log.tail("log", client=cluster.client())
    waiting = asyncio.create_task(some(reader, 1))
    await asyncio.sleep(0)
    async with await Log.open("log", client=cluster.client()) as log:
        await log.append(b"0")
        assert await ended(waiting, "it is woken") == [0]
    await reader.close()


async def test_unconfirmed_records_are_never_read() -> None:
    cluster = FakeCluster()
    log = await written(cluster.client(), 1)
    cluster.hold()
    late = log.append_async(b"1")
    reader = await Log.tail("log", client=cluster.client())
    assert await some(reader, 1) == [0]
    assert not await reader.read_batch(timeout_s=0.01)
    assert not reader.at_end
    cluster.release()
    assert await some(reader, 1) == [1]
    assert await late == RecordId(1, DLSN(1, 1, 0))
    await reader.close()
    await log.close()


async def test_a_cancelled_read_takes_nothing() -> None:
    cluster = FakeCluster()
    log = await written(cluster.client(), 1)
    reader = await Log.tail("log", client=cluster.client())
    assert await some(reader, 1) == [0]
    for _ in range(3):
        waiting = asyncio.ensure_future(reader.read_batch())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await log.append(b"1")
    assert await some(reader, 1) == [1]
    await reader.close()
    await log.close()


async def test_batches_records_and_chunks_can_be_mixed() -> None:
    client = FakeCluster().client()
    log = await Log.open("log", client=client)
    for entry in range(3):
        for i in range(10):
            log.append_async(b"%d" % (10 * entry + i))
        await log.flush()
    reader = await Log.tail("log", client=client, follow=False)
    got = await some(reader, 3)
    got += [int(record.value) for record in await reader.read_batch()]
    assert got == list(range(10))
    got += await some(reader, 2)
    async for chunk in reader.read_batches():
        assert chunk.begin == len(got)
        got += [int(record.value) for record in chunk.records()]
    assert got == list(range(30))
    assert not await reader.read_batch()
    assert reader.at_end
    await reader.close()
    await log.close()


async def test_reading_ahead_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "READ_AHEAD_BYTES", 10_000)
    monkeypatch.setattr("dlog.aio.read.chunks.READ_BYTES_MAX", 1000)
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    for _ in range(100):
        await log.append(bytes(1000))
    reads = []

    async def count(*_: object) -> None:
        reads.append(1)

    reader = await Log.tail("log", client=client, follow=False)
    cluster.before("read", count)
    await settled()
    assert 5 <= len(reads) <= 12
    assert len([record async for record in reader]) == 100
    await reader.close()
    await log.close()


@pytest.mark.parametrize("read_bytes_max", [None, 64 * 1024])
async def test_what_is_decompressed_at_once_is_bounded(read_bytes_max: int | None) -> None:
    """Entries that are small on the wire can be large: the rest of a read is decoded later."""
    client = FakeCluster().client()
    async with await Log.open("log", client=client, settings=LogSettings(codec=Codec.ZSTD)) as log:
        for _ in range(40):
            await log.append(bytes(2**20))
    source = ChunkReader(
        client, ManifestNode(client.store, "log"), 0, stop=40, read_bytes_max=read_bytes_max
    )
    offsets = []
    while chunks := await source.read():
        sizes = [chunk.batch.header.body_bytes for chunk in chunks]
        assert len(sizes) == 1 or sum(sizes) <= (3 * read_bytes_max if read_bytes_max else 2**23)
        offsets += [chunk.begin for chunk in chunks]
    await source.close()
    assert offsets == list(range(40))


async def test_a_reader_heals_at_the_record_after_the_last_one_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.protocol.cursor.BACKOFF_S", 0.0001)
    monkeypatch.setattr("dlog.aio.read.chunks.READ_BYTES_MAX", 1)
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 10)
    calls = 0

    async def fail_one_of_three(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 1:
            raise EntryLost(1, 0, "no replica")

    cluster.before("read", fail_one_of_three)
    reader = await Log.tail("log", client=client, start=2)
    assert await some(reader, 8) == list(range(2, 10))
    assert calls > 9
    await reader.close()
    cluster.hooks.clear()
    await log.close()


async def test_a_reader_outlives_a_metadata_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.protocol.cursor.BACKOFF_S", 0.0001)
    cluster = FakeCluster()
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    log = await written(cluster.client(), 2)
    reader = await Log.tail("log", client=cluster.client(store))
    assert await some(reader, 2) == [0, 1]
    store.down = True
    await log.roll()
    await log.append(b"2")
    assert not await reader.read_batch(timeout_s=0.02)
    store.down = False
    assert await some(reader, 1) == [2]
    await reader.close()
    await log.close()


async def test_a_bounded_read_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 0.05)
    monkeypatch.setattr("dlog.protocol.cursor.BACKOFF_S", 0.0001)
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 2)
    with pytest.raises(NotThereYet):
        await chunks(client, 0, 5, patience_s=0.0)
    cluster.fail_next("read", *[EntryLost(1, 0, "no replica") for _ in range(1000)])
    with pytest.raises(EntryLost):
        await chunks(client, 0, 2, patience_s=0.01)
    await log.close()


async def test_an_end_that_no_bookie_tells_is_an_error_and_not_an_empty_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.read.tails.END_GRACE_S", 0.01)
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 2)
    cluster.fail_next("lac", *[BookieUnavailable("b1, b2, b3", "silent") for _ in range(9)])
    with pytest.raises(BookieUnavailable):
        await Log.tail("log", client=client, follow=False)
    with pytest.raises(BookieUnavailable):
        await log_tail(client, "log")
    await log.close()


async def test_damage_is_told_and_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.READ_BYTES_MAX", 1)  # each entry is read by itself
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 3)
    cluster.ledgers[LedgerId(1)].entries[1] = b"garbage"
    reader = await Log.tail("log", client=client, stop=3)
    await until(lambda: reader.error is not None, "it came to the damage")
    assert await some(reader, 1) == [0]
    with pytest.raises(DamagedLog, match="entry 1 of ledger 1"):
        await anext(reader)
    with pytest.raises(DamagedLog):
        await anext(reader)
    await reader.close()
    await log.close()


async def test_a_lagging_reader_is_told_that_its_place_was_trimmed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 10)
    source = ChunkReader(client, ManifestNode(client.store, "log"), 0)
    assert [chunk.begin for chunk in await source.read()] == [0, 1, 2, 3]
    await log.truncate(before=9)
    with pytest.raises(Trimmed) as caught:
        await source.read()
    assert caught.value.first_offset == 9
    await source.close()
    await log.close()


async def test_a_deleted_log_ends_its_readers_and_its_writer() -> None:
    cluster = FakeCluster()
    log = await written(cluster.client(), 2)
    reader = await Log.tail("log", client=cluster.client())
    assert await some(reader, 2) == [0, 1]
    await delete_log("log", client=cluster.client())
    with pytest.raises(NoSuchLog):
        await anext(reader)
    assert cluster.ledgers == {}
    await reader.close()
    await log.abandon()


async def test_a_closed_reader_says_so() -> None:
    client = FakeCluster().client()
    log = await written(client, 2)
    reader = await Log.tail("log", client=client)
    await reader.close()
    await reader.close()
    with pytest.raises(LogClosed):
        await anext(reader)
    await log.close()


# Ranges and tails, for Spark.


async def chunks(client: FakeLedgers, start: int, end: int, **options: float) -> list[Chunk]:
    return [chunk async for chunk in read_range(client, "log", start, end, **options)]  # type: ignore[arg-type]


async def test_a_range_is_exactly_what_was_asked_for() -> None:
    client = FakeCluster().client()
    log = await written(client, 10, per_segment=3)
    for start in range(11):
        for end in range(11):
            got = [
                int(record.value)
                for chunk in await chunks(client, start, end)
                for record in chunk.records()
            ]
            assert got == list(range(start, end))
    await log.close()


async def read_next(readers: RangeReaders, start: int, end: int, *, incarnation: str) -> list[int]:
    found = readers.read("log", start, end, incarnation=incarnation)
    return [
        int(record.value)
        async for chunks in found
        for chunk in chunks
        for record in chunk.records()
    ]


@pytest.mark.parametrize("per_segment", [3, 100])
async def test_ranges_that_follow_each_other_are_exactly_what_was_asked_for(
    per_segment: int,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 10, per_segment=per_segment)
    incarnation = (await log_tail(client, "log")).incarnation
    readers = RangeReaders(client)
    for step in range(1, 11):
        for start in range(0, 10, step):
            end = min(start + step, 10)
            got = await read_next(readers, start, end, incarnation=incarnation)
            assert got == list(range(start, end))
    await readers.close()
    assert cluster.open_readers == 0
    await log.close()


async def test_who_follows_a_log_by_ranges_looks_for_its_place_once() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 10, per_segment=100)
    incarnation = (await log_tail(client, "log")).incarnation
    readers = RangeReaders(client)
    opened: list[object] = []

    async def note(*arguments: object) -> None:
        opened.append(arguments)

    cluster.before("open", note)
    for row in range(5, 15):
        if row >= 10:
            await log.append(b"%d" % row)
        assert await read_next(readers, row, row + 1, incarnation=incarnation) == [row]
    assert len(opened) == 1
    await readers.close()
    await log.close()


async def test_readers_are_kept_for_so_many_ranges_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.KEPT_MAX", 2)
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 10, per_segment=100)
    incarnation = (await log_tail(client, "log")).incarnation
    readers = RangeReaders(client)
    before = cluster.open_readers
    for end in (3, 4, 5, 6, 6):
        assert await read_next(readers, 0, end, incarnation=incarnation) == list(range(end))
    assert cluster.open_readers - before == 2
    assert await read_next(readers, 6, 8, incarnation=incarnation) == [6, 7]
    await readers.close()
    assert cluster.open_readers == before
    await log.close()


async def test_a_range_after_another_one_was_trimmed_meanwhile() -> None:
    client = FakeCluster().client()
    log = await written(client, 10, per_segment=2)
    incarnation = (await log_tail(client, "log")).incarnation
    readers = RangeReaders(client)
    assert await read_next(readers, 0, 2, incarnation=incarnation) == [0, 1]
    await log.truncate(before=6)
    with pytest.raises(Trimmed):
        await read_next(readers, 2, 6, incarnation=incarnation)
    assert await read_next(readers, 6, 8, incarnation=incarnation) == [6, 7]
    await readers.close()
    await log.close()


async def test_a_range_of_another_incarnation_is_not_read() -> None:
    client = FakeCluster().client()
    log = await written(client, 2)
    with pytest.raises(NoSuchLog, match="another one has its name"):
        async for _ in read_range(client, "log", 0, 1, incarnation="other"):
            pass
    await log.close()


async def test_the_tail_is_the_committed_end_and_disturbs_nobody() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 10)
    cluster.hold()
    future = log.append_async(b"10")
    await asyncio.sleep(0)
    tail = await log_tail(client, "log")
    assert (tail.first_offset, tail.next_offset, tail.last_txid) == (0, 10, 90)
    assert [segment.number for segment in tail.segments] == [1, 2, 3]
    assert tail.record_bytes > 1
    cluster.release()
    await future
    assert (await log_tail(client, "log")).next_offset == 11
    await log.close()
    assert (await log_tail(client, "log")).next_offset == 11


async def test_a_tracker_follows_appends_rolls_truncations_and_never_moves_back() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client, settings=LogSettings(roll_records=3))
    tracker = TailTracker(client, "log")
    ends = [(await tracker.poll()).next_offset]
    for _ in range(20):
        await log.append(b"x")
        ends.append((await tracker.poll()).next_offset)
    assert ends == list(range(21))
    await truncate_log("log", before=12, client=client)
    assert (await tracker.poll()).first_offset == 12
    waiting = asyncio.create_task(tracker.poll(wait_s=60))
    await settled()
    await log.append(b"x")
    assert (await waiting).next_offset == 21
    await tracker.close()
    await log.close()


async def test_a_tail_never_moves_back_if_bookies_tell_less_than_before() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 4)
    tracker = TailTracker(client, "log")
    tail = await tracker.poll()
    assert (tail.next_offset, tail.last_txid) == (4, 30)
    cluster.ledgers[LedgerId(1)].silent = True
    cluster.ledgers[LedgerId(1)].told = 1
    assert await tracker.poll() == tail
    await tracker.close()
    await log.close()


async def test_a_tail_is_found_although_a_ledger_is_trimmed_before_it_is_opened() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 4)

    async def trimmed(_: LedgerId) -> None:
        cluster.hooks.clear()
        await log.roll()
        await log.append(b"x")
        await log.truncate(before=4)

    cluster.before("open", trimmed)
    assert (await log_tail(client, "log")).next_offset == 5
    assert cluster.deleted == [LedgerId(1)]
    await log.close()


async def test_a_tracker_survives_a_ledger_that_is_trimmed_under_it() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client, 4)
    tracker = TailTracker(client, "log")
    await tracker.poll()
    await log.roll()
    await log.append(b"x")
    await log.truncate(before=4)
    assert (await tracker.poll()).next_offset == 5
    cluster.fail_next("open", MetadataUnavailable("x", "get", 1))
    fresh = TailTracker(client, "log")
    with pytest.raises(MetadataUnavailable):
        await fresh.poll()
    assert (await fresh.poll()).next_offset == 5
    await fresh.close()
    await tracker.close()
    await log.close()


@pytest.mark.parametrize("start", [DLSN(1, 2, 0), Txid(20)], ids=repr)
async def test_a_start_whose_segment_is_trimmed_meanwhile_is_looked_up_again(start: Start) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await written(client)
    opening = client.open_no_recovery

    async def trimmed_first(ledger_id: LedgerId) -> LedgerTail:
        client.open_no_recovery = opening  # type: ignore[method-assign]
        await log.truncate(before=4)
        return await opening(ledger_id)

    client.open_no_recovery = trimmed_first  # type: ignore[assignment, method-assign]
    if isinstance(start, Txid):
        reader = await Log.tail("log", start=start, client=client, follow=False)
        assert reader.position == 4
        await reader.close()
    else:
        with pytest.raises(Trimmed):
            await Log.tail("log", start=start, client=client)
    await log.close()


async def test_the_size_of_records_is_known_before_a_segment_is_sealed() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(bytes(1000))
        assert (await log_tail(client, "log")).record_bytes > 1000
