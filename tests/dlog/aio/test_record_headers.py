"""Headers of records, from the append to the reader."""

import asyncio

import pytest

from dlog.aio import Log
from dlog.errors import InvalidHeaders, RecordTooLarge
from dlog.protocol.packer import ENTRY_BYTES_FULL
from dlog.protocol.pending_batch import RECORD_CHARGE
from dlog.recordbatch import parse_header
from dlog.settings import LogSettings
from ledger.errors import LevelTooLow
from ledger.feature_level import HEADER_PAIRS
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers


async def headers_of(client: FakeLedgers) -> list[dict[str, bytes | None]]:
    async with await Log.tail("log", follow=False, client=client) as reader:
        return [dict(record.headers) async for record in reader]


async def test_headers_are_read_with_their_records() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"plain")
        await log.append(b"one", headers={"trace": b"17", "größe": b"\xff"})
        one, other = log.append_async(b"first"), log.append_async(b"x", headers={"a": b""})
        await asyncio.gather(one, other)
        ids = await log.append_many([b"a", b"b", b"c"], headers=[None, {"n": b"2"}, {}])
        assert ids.end_offset == 7
    wrote = [{}, {"trace": b"17", "größe": b"\xff"}, {}, {"a": b""}, {}, {"n": b"2"}, {}]
    assert await headers_of(client) == wrote


async def test_every_way_to_read_shows_the_headers() -> None:
    client = FakeCluster().client()
    headers = [{"n": b"%d" % i} for i in range(4)]
    async with await Log.open("log", client=client) as log:
        await log.append_many([b"x"] * 4, headers=headers)
    last = await Log.last("log", 3, client=client)
    assert [record.headers for record in last] == headers[1:]
    async with await Log.tail_many(["log"], follow=False, client=client) as many:
        assert [record.headers async for _, record in many] == headers
    async with await Log.consumer("reads", "log", follow=False, client=client) as consumer:
        assert [record.headers async for record in consumer] == headers


async def test_headers_count_as_bytes_of_the_last_records() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append_many([b"12345"] * 3, headers=[{"name": b"v"}, {"name": b"v"}, None])
    for bytes_max, there in ((5, 1), (14, 1), (15, 2), (24, 2), (25, 3)):
        last = await Log.last("log", 3, bytes_max=bytes_max, client=client)
        assert len(last) == there, bytes_max


async def test_headers_of_many_records_are_cut_with_them_into_entries() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        size = ENTRY_BYTES_FULL // 3
        headers = [{"n": b"%d" % i, "filler": bytes(size)} for i in range(7)]
        ids = await log.append_many([b""] * 7, headers=headers)
        assert {record_id.dlsn.entry for record_id in ids} == {0, 1, 2, 3}
    assert await headers_of(client) == headers


async def test_only_entries_with_headers_are_of_the_format_that_has_them() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        await log.append(b"a", headers={"name": b"value"})
        await log.append(b"a", headers={})
    (ledger,) = cluster.ledgers.values()
    payloads = ledger.entries
    assert [bytes(each)[4] for each in payloads] == [1, 2, 1]
    assert [parse_header(each).headers_bytes for each in payloads] == [0, 14, 0]


Pairs = tuple[tuple[str, bytes | None], ...]
PAIRS: Pairs = (("a", b"1"), ("b", None), ("a", b""), ("a", None))


async def test_names_that_come_twice_and_null_values_travel_as_they_were_given() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"one", headers=PAIRS)
        await log.append_many([b"a", b"b"], headers=[iter(PAIRS), {"x": None}])
        first = await Log.last("log", 3, client=client)
        await log.append(b"copy", headers=first[0].headers)
    pairs: list[Pairs] = [PAIRS, PAIRS, (("x", None),), PAIRS]
    async with await Log.tail("log", follow=False, client=client) as reader:
        records = [record async for record in reader]
    assert [record.headers.pairs() for record in records] == pairs
    assert records[0].headers["a"] is None
    assert records[0].headers["b"] is None


async def test_only_batches_that_need_it_are_of_the_format_with_pairs() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a", headers={"name": b"value"})
        await log.append(b"a", headers=PAIRS)
        await log.append(b"a", headers=(("b", b""), ("a", b"")))
    (ledger,) = cluster.ledgers.values()
    assert [bytes(each)[4] for each in ledger.entries] == [2, 5, 2]


async def test_a_cluster_whose_programs_may_not_read_pairs_refuses_them_alone() -> None:
    """The writer goes on, and takes them as soon as the cluster has risen."""
    cluster = FakeCluster()
    cluster.level = HEADER_PAIRS - 1
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        with pytest.raises(LevelTooLow, match=r"name twice.* needs level 5 .* cluster upgrade"):
            await log.append(b"x", headers=PAIRS)
        with pytest.raises(LevelTooLow):
            await log.append_many([b"", b"x"], headers=[{}, PAIRS])
        pending = [log.append_async(b"y"), log.append_async(b"x", headers=PAIRS)]
        await pending[0]
        with pytest.raises(LevelTooLow):
            await pending[1]
        cluster.level = HEADER_PAIRS
        await log.append(b"x", headers=PAIRS)
        assert log.last_offset == 1


async def test_headers_count_as_bytes_of_their_record() -> None:
    client = FakeCluster().client()
    settings = LogSettings(record_bytes_max=100)
    async with await Log.open("log", client=client, settings=settings) as log:
        await log.append(b"x" * 50, key=b"k" * 10, headers={"name": b"v" * 31})
        with pytest.raises(RecordTooLarge, match="record of 101 bytes"):
            await log.append(b"x" * 50, key=b"k" * 10, headers={"name": b"v" * 32})
        with pytest.raises(RecordTooLarge, match="record of 101 bytes"):
            await log.append_many([b"", b"x" * 60], headers=[None, {"name": b"v" * 32}])
        pending = log.append_async(b"x" * 50, headers={"name": b"v" * 31})
        assert log.writer.pending_bytes == 90 + RECORD_CHARGE
        await pending
        assert log.writer.pending_bytes == 0


async def test_what_is_no_header_is_refused_before_anything_is_appended() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        with pytest.raises(TypeError, match="header 'a' must be bytes"):
            log.append_async(b"x", headers={"a": "text"})  # type: ignore[arg-type]
        with pytest.raises(InvalidHeaders, match="0 bytes"):
            await log.append(b"x", headers={"": b""})
        with pytest.raises(InvalidHeaders, match="65; give a record 64 at most"):
            await log.append_many([b"", b""], headers=[None, {str(n): b"" for n in range(65)}])
        with pytest.raises(ValueError, match="2 headers for 1 records"):
            await log.append_many([b"x"], headers=[{}, {}])
        assert log.last_offset == -1
