"""Readers through trouble: nothing is skipped or doubled, and none stops in silence."""

import asyncio
from random import Random

import pytest

from dlog.aio import Log, Reader
from dlog.aio.admin import truncate_log
from dlog.aio.store import ManifestNode
from dlog.manifest import Manifest
from dlog.settings import LogSettings
from ledger.errors import BookieUnavailable, EntryLost, LogError, MetadataUnavailable
from ledger.ids import LedgerId
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import Versioned, Watch
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import FaultyStore
from tests.ledger.local_bookies import local_bookies
from tests.waiting import ended


async def take(reader: Reader, count: int) -> list[int]:
    return [(await anext(reader)).offset for _ in range(count)]


async def in_segments(client: FakeLedgers, segments: int, each: int = 3) -> Log:
    log = await Log.open("log", client=client)
    for segment in range(segments):
        if segment:
            await log.roll()
        for _ in range(each):
            await log.append(b"x")
    return log


async def test_the_next_segment_is_opened_while_one_is_read_and_no_more_than_that() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await in_segments(client, 6)
    assert cluster.open_readers == 0
    opened: list[LedgerId] = []
    most = 0

    async def note(ledger_id: LedgerId) -> None:
        nonlocal most
        opened.append(ledger_id)
        most = max(most, cluster.open_readers + 1)

    async def turn(*_: object) -> None:  # a read takes a while
        await asyncio.sleep(0)

    cluster.before("open", note)
    cluster.before("read", turn)
    reader = await Log.tail("log", client=client, stop=18)
    assert await take(reader, 18) == list(range(18))
    cluster.hooks.clear()
    assert opened == [1, 2, 3, 4, 5, 6]
    assert most == 2
    await reader.close()
    assert cluster.open_readers == 0
    await log.close()


async def test_a_segment_that_cannot_be_opened_ahead_is_opened_when_it_is_needed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await in_segments(client, 3)
    failed: dict[LedgerId, int] = {}

    async def fail_once(ledger_id: LedgerId, *_: object) -> None:
        failed[ledger_id] = failed.get(ledger_id, 0) + 1
        if ledger_id == 2 and failed[ledger_id] == 1:
            raise MetadataUnavailable("x", "get", 1)

    cluster.before("open", fail_once)
    async with await Log.tail("log", client=client, follow=False) as reader:
        assert await take(reader, 9) == list(range(9))
    assert failed[LedgerId(2)] == 2
    cluster.hooks.clear()
    assert cluster.open_readers == 0
    await log.close()


async def test_reading_through_many_segments_reads_the_manifest_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeCluster().client()
    log = await in_segments(client, 30, 1)
    reads = 0
    read = ManifestNode.read

    async def count(node: ManifestNode, *, fresh: bool = True) -> tuple[Manifest, int]:
        nonlocal reads
        reads += 1
        return await read(node, fresh=fresh)

    monkeypatch.setattr(ManifestNode, "read", count)
    async with await Log.tail("log", client=client, stop=30) as reader:
        assert await take(reader, 30) == list(range(30))
    assert reads <= 4
    await log.close()


async def test_entries_are_read_on_while_the_metadata_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.LOOK_AGAIN_S", 0.01)
    cluster = FakeCluster()
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    log = await in_segments(cluster.client(), 1)
    reader = await Log.tail("log", client=cluster.client(store))
    assert await take(reader, 3) == [0, 1, 2]
    store.down = True
    await truncate_log("log", before=1, client=cluster.client())  # the reader is told of a change
    for offset in range(3, 30):
        await log.append(b"x")
        assert await take(reader, 1) == [offset]
    store.down = False
    await log.roll()
    await log.append(b"x")
    assert await take(reader, 1) == [30]
    await reader.close()
    await log.close()


class _SilentStore(MemoryStore):
    """Does not answer while it is silent."""

    silent = False

    async def get(self, path: str) -> Versioned:
        if self.silent:
            await asyncio.Event().wait()
        return await super().get(path)


async def test_entries_are_read_on_while_the_metadata_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.LOOK_S", 0.01)
    cluster = FakeCluster()
    log = await in_segments(cluster.client(), 1)
    store = _SilentStore("memory://fake", "fake")
    reader = await Log.tail("log", client=cluster.client(store))
    assert await take(reader, 3) == [0, 1, 2]
    store.silent = True
    await truncate_log("log", before=1, client=cluster.client())  # the reader is told of a change
    for offset in range(3, 10):
        await log.append(b"x")
        assert await ended(take(reader, 1), "it reads on") == [offset]
    await reader.close()
    await log.close()


class _Watch:
    """Never tells of anything, or breaks."""

    def __init__(self, error: LogError | None) -> None:
        self._error = error

    async def changed(self) -> None:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()

    def close(self) -> None:
        pass


class _BlindStore(MemoryStore):
    error: LogError | None = None

    def watch(self, path: str) -> Watch:
        return _Watch(self.error)


@pytest.mark.parametrize("error", [None, MetadataUnavailable("x", "watch", 1)])
async def test_a_reader_whose_watch_is_lost_or_breaks_still_gets_on(
    error: LogError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.IDLE_CHECK_S", 0.02 if error is None else 1000.0)
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 0.01)
    cluster = FakeCluster()
    log = await in_segments(cluster.client(), 1)
    store = _BlindStore("memory://fake", "fake")
    store.error = error
    reader = await Log.tail("log", client=cluster.client(store))
    assert await take(reader, 3) == [0, 1, 2]

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    cluster.before("close", never)  # so only the manifest tells of the next segment
    rolling = asyncio.create_task(log.roll())
    while (appended := await log.append(b"x")).dlsn.segment < 2:
        pass
    read = await ended(take(reader, appended.offset - 2), "it gets on")
    assert read == list(range(3, appended.offset + 1))
    rolling.cancel()
    await asyncio.gather(rolling, return_exceptions=True)
    await reader.close()
    await log.abandon()


@pytest.mark.parametrize("seed", range(10))
async def test_reads_cancelled_anywhere_lose_and_double_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.protocol.cursor.BACKOFF_S", 0.0001)
    monkeypatch.setattr("dlog.aio.read.chunks.READ_BYTES_MAX", 200)
    monkeypatch.setattr("dlog.aio.read.reader.READ_AHEAD_BYTES", 400)
    random = Random(seed)
    cluster = FakeCluster()
    client = cluster.client()
    total = 120

    async def trouble(*_: object) -> None:
        for _turn in range(random.randrange(3)):
            await asyncio.sleep(0)
        if random.random() < 0.1:
            raise EntryLost(1, 0, "x")
        if random.random() < 0.1:
            raise BookieUnavailable("b", "x")

    async def write() -> None:
        done = 0
        while done < total:  # one leader after another
            async with await Log.open("log", client=client) as log:
                for _ in range(min(random.randrange(1, 40), total - done)):
                    await log.append(b"x")
                    done += 1
                    if random.random() < 0.1:
                        await log.roll()

    await (await Log.open("log", client=client)).close()
    cluster.before("read", trouble)
    got: list[int] = []

    async def read(reader: Reader) -> None:
        match random.randrange(3):
            case 0:
                record = await anext(reader)
                got.append(record.offset)
            case 1:
                batch = await reader.read_batch(timeout_s=random.choice([None, 0.001]))
                got.extend(record.offset for record in batch)
            case _:
                async for record in reader.read_until(reader.position + random.randrange(5)):
                    got.append(record.offset)  # noqa: PERF401 - it may be cancelled

    reader = await Log.tail("log", client=client, stop=total)
    writing = asyncio.create_task(write())
    while reader.position < total:
        assert not writing.done() or writing.exception() is None
        reading = asyncio.create_task(read(reader))
        if random.random() < 0.5:
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            reading.cancel()
        await asyncio.wait([reading])
    await writing
    assert got == list(range(total))
    await reader.close()
    cluster.hooks.clear()
    assert cluster.open_readers == 0


@pytest.mark.slow
async def test_a_tail_outlives_bookies_that_restart_while_leaders_come_and_go() -> None:
    async with local_bookies(4) as cluster:
        client, *leaders = [await cluster.client() for _ in range(4)]
        settings = LogSettings(roll_records=10)
        log = await Log.open("log", client=leaders.pop(), settings=settings)
        reader = await Log.tail("log", client=client)
        appended = 0

        async def append(log: Log, count: int) -> None:
            nonlocal appended
            for _ in range(count):
                await log.append(b"%d" % appended)
                appended += 1

        for bookie in (cluster.bookies[0], cluster.bookies[1]):
            await append(log, 15)
            await bookie.kill()
            await append(log, 15)  # with an ensemble change
            other = await Log.open("log", client=leaders.pop())
            await append(other, 5)
            await log.abandon()
            log = other
            await bookie.start()
        assert await take(reader, appended) == list(range(appended))
        assert await reader.barrier() == appended
        await reader.close()
        await log.close()
