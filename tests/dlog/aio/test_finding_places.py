"""Places named by txid, time or DLSN, found beside a writer that appends meanwhile."""

import pytest

from dlog.aio import Log
from dlog.aio.admin import log_tail, truncate_log
from dlog.columns import Columns
from dlog.position import DLSN, Start, Timestamp, Txid
from dlog.recordbatch import encode_batch
from ledger.ids import LedgerId
from tests.dlog.aio.test_ends_of_segments import at_question, next_segment_listed
from tests.dlog.fake_ledgers import FakeCluster

NEW_MS = 2_000_000
OLD_MS = 1_000_000


def append_at_each_open(cluster: FakeCluster, log: Log, **columns: int) -> None:
    """Append a record with *columns* whenever a reader opens a ledger, but for the first time."""
    opened = 0

    async def hook(_: object) -> None:
        nonlocal opened
        opened += 1
        if opened == 2:
            await log.append(b"new", **columns)  # type: ignore[arg-type]

    cluster.before("open", hook)


@pytest.mark.parametrize("start", [Txid(2), Timestamp(NEW_MS)])
async def test_a_record_that_is_appended_while_its_place_is_looked_for_is_not_skipped(
    start: Start,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"old", txid=1, timestamp_ms=OLD_MS)
        append_at_each_open(cluster, log, txid=2, timestamp_ms=NEW_MS)
        reader = await Log.tail("log", start=start, client=client)
        async with reader:
            assert reader.position == 1


@pytest.mark.parametrize("opening", [1, 2, 3])
async def test_a_record_is_not_skipped_if_its_writer_goes_on_in_the_next_segment_meanwhile(
    opening: int,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"old", txid=1)
    later = await next_segment_listed(client, log)

    async def goes_on() -> None:
        await log.append(b"wanted", txid=2)
        behind = encode_batch(
            Columns([b"behind"], txids=[3]), base_index=0, base_timestamp_ms=NEW_MS
        )
        await later.add(behind)

    cluster.before("open", at_question(opening, goes_on))
    async with await Log.tail("log", start=Txid(2), client=client) as reader:
        assert reader.position == 1
    await log.abandon()


async def test_a_truncation_by_age_keeps_a_record_that_is_appended_meanwhile() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"old", timestamp_ms=OLD_MS)
        append_at_each_open(cluster, log)
        assert await truncate_log("log", keep_age_s=60, client=client) == 1
        assert (await log_tail(client, "log")).first_offset == 1


@pytest.mark.parametrize(
    ("start", "offset"), [(DLSN(1, 3, 0), 3), (Txid(3), 3), (Txid(4), 4), (Timestamp(3), 3)]
)
async def test_what_was_acknowledged_is_found_although_bookies_do_not_tell_it_yet(
    start: Start, offset: int
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"0", txid=0, timestamp_ms=0)
        ledger = cluster.ledgers[LedgerId(1)]
        ledger.silence()
        for i in range(1, 4):
            await log.append(b"%d" % i, txid=i, timestamp_ms=i)

        async def told_soon(*_: object) -> None:
            ledger.silent = False
            ledger.tell()

        cluster.before("read", told_soon)
        reader = await Log.tail("log", start=start, client=client)
        async with reader:
            assert reader.position == offset
