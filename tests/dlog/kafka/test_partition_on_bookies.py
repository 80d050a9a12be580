"""What producers of Kafka wrote, as the rest of dlog reads it: on real bookies."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import dlog.testing
from dlog.aio import Log
from dlog.aio.admin import log_info, verify_log
from dlog.chunk import Chunk
from dlog.columns import Columns
from dlog.encryption.files import add_key
from dlog.encryption.keyring import use_keys
from dlog.errors import DamagedLog
from dlog.headers import encode_headers
from dlog.health.record_trace import trace_record
from dlog.kafka.partition import Partition
from dlog.kafka_batch import HEADER_BYTES, KafkaCodec, parse_kafka_header, with_place
from dlog.position import Place, Timestamp
from dlog.recordbatch import Codec, RecordBatch, decode_batch, encode_batch, encode_kafka
from dlog.settings import LogSettings
from ledger.client import LedgerClient
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.dlog.kafka.produced import NOW_MS, batch_of, fetched, lying
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    import pyarrow as pa

SETTINGS = (
    LogSettings(),
    LogSettings(codec=Codec.ZSTD, roll_records=5),
    LogSettings(encrypt_with="one"),
)


@pytest.fixture
def _keys(tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "keys"
    add_key(path, "one")
    use_keys(file=os.fspath(path))
    yield
    use_keys()


@pytest.mark.usefixtures("_keys")
@pytest.mark.parametrize("settings", SETTINGS, ids=("plain", "compressed", "encrypted"))
async def test_readers_verification_and_traces_take_batches_of_kafka(
    settings: LogSettings,
) -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        async with await Log.open("log", client=client, settings=settings) as log:
            await log.append(b"native", timestamp_ms=NOW_MS - 1)
        partition = await Partition.open("log", client, owner="gateway")
        for codec in KafkaCodec:
            if codec is not KafkaCodec.SNAPPY:
                await partition.produce(batch_of(b"a", b"b", codec=codec, time_ms=NOW_MS), acks=-1)
        await partition.close()
        wanted = [b"native", *([b"a", b"b"] * 4)]
        async with await Log.tail("log", client=client, follow=False) as reader:
            records = [record async for record in reader]
        assert [record.value for record in records] == wanted
        assert records[-1].timestamp_ms == NOW_MS + 1
        assert [r.value for r in await Log.last("log", 3, client=client)] == wanted[-3:]
        async with await Log.tail("log", start=Timestamp(NOW_MS + 1), client=client) as reader:
            first = await anext(reader)
            assert first.offset == (1 if settings.encrypt_with else 2)
        report = await verify_log("log", client=client)
        assert report.healthy, report
        assert (await log_info("log", client=client)).records == len(wanted)
        traced = await trace_record(client, "log", 4, timeout_s=PATIENCE_S)
        assert traced.record is not None
        assert traced.record.offset == 4
        next_one = await Partition.open("log", client, owner="gateway")
        values: list[bytes | None] = []
        while len(values) < len(wanted):
            values += [value for _, value in fetched(await next_one.fetch(len(values), 1 << 20))]
        assert values == wanted
        assert await next_one.offset_for_time(NOW_MS + 1) == (2, NOW_MS + 1)
        await next_one.close()
        await client.close()


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


async def _produced(uri: str) -> None:
    client = await LedgerClient.connect(uri)
    async with await Log.open("shop", client=client):
        pass
    partition = await Partition.open("shop", client, owner="gateway")
    await partition.produce(batch_of(b"one", b"two", codec=KafkaCodec.LZ4), acks=-1)
    await partition.close()
    await client.close()


def test_people_see_records_of_kafka_at_the_shell(shell: CliShell) -> None:
    asyncio.run(_produced(shell.uri))
    lines = [json.loads(line) for line in shell.run("log", "tail", "shop", "--json").splitlines()]
    assert [line["offset"] for line in lines] == [0, 1]
    assert shell.run("log", "tail", "shop", "--format", "%k %s\\n") == "key one\nkey two\n"
    assert "two" in shell.run("log", "dump", "shop", "--records")
    assert shell.run("log", "verify", "shop")


@pytest.mark.spark
def test_spark_gets_the_rows_of_native_records() -> None:
    values = [b"a", b"", b"ccc" * 100]
    headers = encode_headers([("h", b"1")])
    native = decode_batch(
        encode_batch(
            Columns(
                [*values],
                keys=[b"key"] * 3,
                timestamps_ms=[NOW_MS, NOW_MS + 1, NOW_MS + 2],
                headers=[headers] * 3,
            ),
            base_index=0,
            base_timestamp_ms=NOW_MS,
        )
    )
    for codec in KafkaCodec:
        if codec is KafkaCodec.SNAPPY:
            continue
        batch = batch_of(*values, codec=codec)
        kafka = decode_batch(encode_kafka(batch, parse_kafka_header(batch), appended_ms=0))
        assert _rows([kafka]) == _rows([native])
        assert _rows([native, kafka]) == _rows([native, native])


def _rows(batches: list[RecordBatch]) -> "pa.Table":
    import pyarrow as pa

    from dlog.arrow_batches import rows_of
    from dlog.row_schema import COLUMNS_WITH_HEADERS

    chunks = [
        Chunk(batch, Place(1, entry, 3 * entry), 0, batch.count)
        for entry, batch in enumerate(batches)
    ]
    return pa.Table.from_batches(rows_of("log", chunks, columns=COLUMNS_WITH_HEADERS))


PLAIN: Final = batch_of(b"x", b"y")
RECORDS: Final = PLAIN[HEADER_BYTES:]
PACKED: Final = batch_of(b"x", b"y", codec=KafkaCodec.GZIP)
LIES: Final = {
    "more records than there are": lying(PLAIN, count=3),
    "fewer records than there are": lying(PLAIN, count=1),
    "bytes behind the records": lying(PLAIN, records=RECORDS + b"\0"),
    "no records": lying(PLAIN, records=b""),
    "a length beyond the end": lying(PLAIN, records=b"\xfe\xff\xff\xff\x0f" + RECORDS[1:]),
    "a length below zero": lying(PLAIN, records=b"\x01" + RECORDS[1:]),
    "what is not compressed": lying(PACKED, records=b"not gzip at all"),
    "a stream that is cut off": lying(PACKED, records=PACKED[HEADER_BYTES:-9]),
}


@pytest.mark.parametrize("kind", LIES)
async def test_a_batch_that_lies_about_its_records_is_an_error_and_alone(kind: str) -> None:
    """Each way to read says which log and offsets, and goes on behind them; writing, taking over
    and sealing are not disturbed."""
    lie = LIES[kind]
    count = parse_kafka_header(lie).count
    end = 2 + count
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        async with await Log.open("log", client=client, settings=LogSettings()):
            pass
        partition = await Partition.open("log", client, owner="gateway")
        for batch in (batch_of(b"a", b"b"), lie, batch_of(b"c")):
            await partition.produce(batch, acks=-1)
        told = rf"'log'.*offsets 2 to {end - 1} .*read on from offset {end}"

        async with await Log.tail("log", client=client, follow=False) as reader:
            values = [(await anext(reader)).value for _ in range(2)]
            with pytest.raises(DamagedLog, match=told):
                await anext(reader)
        assert values == [b"a", b"b"]
        async with await Log.tail("log", start=end, client=client, follow=False) as reader:
            assert [record.value async for record in reader] == [b"c"]
        assert [record.value for record in await Log.last("log", 1, client=client)] == [b"c"]
        with pytest.raises(DamagedLog, match=told):
            await Log.last("log", 2, client=client)

        report = await verify_log("log", client=client)
        assert not report.healthy
        [problem] = report.problems
        assert "Kafka batch" in str(problem)
        traced = await trace_record(client, "log", 2, timeout_s=PATIENCE_S)
        assert traced.record is None
        assert "Kafka batch" in str(traced)
        traced = await trace_record(client, "log", end, timeout_s=PATIENCE_S)
        assert traced.record is not None

        fetched_bytes = await partition.fetch(2, 1 << 20)
        assert with_place(lie, 2, partition.epoch) in fetched_bytes, "consumers get it as it is"
        await partition.produce(lie, acks=-1)
        await partition.close()
        second = await Partition.open("log", client, owner="another")
        assert second.high_watermark == end + 1 + count
        await second.produce(lie, acks=-1)
        await second.close()
        async with await Log.open("log", client=client) as log:
            assert log.last_offset == end + 2 * count
            await log.append(b"native")
        assert [record.value for record in await Log.last("log", 1, client=client)] == [b"native"]
        await client.close()


@pytest.mark.spark
def test_spark_says_which_log_and_offsets_a_lie_has() -> None:
    from dlog.row_schema import COLUMNS_WITH_HEADERS
    from dlog.spark.access import Access
    from dlog.spark.namespaces import Namespace
    from dlog.spark.plan import LogRange
    from dlog.spark.selection import Selection

    with dlog.testing.cluster() as cluster:
        asyncio.run(_produced_lie(cluster.uri))
        with closing(Access(Namespace(cluster.uri))) as access:
            tail = access.ends(Selection(("log",)))["log"]
            whole = LogRange("log", tail.incarnation, 0, 5)
            told = "'log'.*offsets 2 to 3 .*read on from offset 4"
            with pytest.raises(DamagedLog, match=told):
                list(access.read(whole, columns=COLUMNS_WITH_HEADERS))
            behind = access.read(replace(whole, first=4), columns=COLUMNS_WITH_HEADERS)
            assert sum(each.num_rows for each in behind) == 1


async def _produced_lie(uri: str) -> None:
    client = await LedgerClient.connect(uri)
    async with await Log.open("log", client=client):
        pass
    partition = await Partition.open("log", client, owner="gateway")
    for batch in (batch_of(b"a", b"b"), lying(PLAIN, records=RECORDS + b"\0"), batch_of(b"c")):
        await partition.produce(batch, acks=-1)
    await partition.close()
    await client.close()
