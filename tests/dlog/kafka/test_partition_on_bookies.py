"""What producers of Kafka wrote, as the rest of dlog reads it: on real bookies."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import dlog.testing
from dlog.aio import Log
from dlog.aio.admin import log_info, verify_log
from dlog.chunk import Chunk
from dlog.columns import Columns
from dlog.encryption.files import add_key
from dlog.encryption.keyring import use_keys
from dlog.headers import encode_headers
from dlog.health.record_trace import trace_record
from dlog.kafka.partition import Partition
from dlog.kafka_batch import KafkaCodec, parse_kafka_header
from dlog.position import Place, Timestamp
from dlog.recordbatch import Codec, RecordBatch, decode_batch, encode_batch, encode_kafka
from dlog.settings import LogSettings
from dlog.spark.arrow_batches import rows_of
from dlog.spark.schema import COLUMNS_WITH_HEADERS
from ledger.client import LedgerClient
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.dlog.kafka.produced import NOW_MS, batch_of, fetched

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
        traced = await trace_record(client, "log", 4, timeout_s=10)
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


def _rows(batches: list[RecordBatch]) -> pa.Table:
    chunks = [
        Chunk(batch, Place(1, entry, 3 * entry), 0, batch.count)
        for entry, batch in enumerate(batches)
    ]
    return pa.Table.from_batches(rows_of("log", chunks, columns=COLUMNS_WITH_HEADERS))
