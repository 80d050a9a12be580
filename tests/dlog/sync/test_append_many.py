"""Many records by one call: one future, one range of ids."""

import pytest

import dlog
from dlog.aio import Log
from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogClosed,
    RecordTooLarge,
    TxidOutOfOrder,
    UnexpectedOffset,
)
from dlog.position import DLSN, Record, RecordId, RecordIds, Span
from dlog.protocol import accumulator
from dlog.protocol.log_writer import Writing
from dlog.protocol.packer import ENTRY_BYTES_FULL
from dlog.settings import LogSettings
from ledger.errors import LogError, NotEnoughBookies, TooManyPending
from ledger.ids import LedgerId
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.waiting import settled


async def records_of(client: FakeLedgers) -> list[Record]:
    async with await Log.tail("log", follow=False, client=client) as reader:
        return [record async for record in reader]


async def test_the_ids_of_many_records_are_a_dense_range() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"first")
        ids = await log.append_many([b"a", b"b", bytearray(b"c")])
        assert (len(ids), ids.first_offset, ids.end_offset) == (3, 1, 4)
        assert list(ids) == [RecordId(i + 1, DLSN(1, 1, i)) for i in range(3)]
        assert ids[-1] == RecordId(3, DLSN(1, 1, 2))
        assert log.last_offset == 3
    assert [record.value for record in await records_of(client)] == [b"first", b"a", b"b", b"c"]


async def test_many_records_have_keys_txids_and_timestamps() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append_many(
            [b"a", b"b"], keys=[b"k", None], txids=[4, 9], timestamps_ms=[5, 6], expected_offset=0
        )
        assert log.last_txid == 9
        await log.append_many([b"c"], keys=[None])
    found = [(r.value, r.key, r.txid) for r in await records_of(client)]
    assert found == [(b"a", b"k", 4), (b"b", None, 9), (b"c", None, None)]


async def test_more_than_an_entry_is_several_entries_and_one_range() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        values = [b"%d" % i + bytes(ENTRY_BYTES_FULL // 4) for i in range(10)]
        ids = await log.append_many(values)
        assert [record_id.offset for record_id in ids] == list(range(10))
        assert ids[9].dlsn.entry > 0
        found = await records_of(client)
        assert [(r.value, r.dlsn) for r in found] == [
            (v, i.dlsn) for v, i in zip(values, ids, strict=True)
        ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"payloads": [b"a", b"x" * 11]}, RecordTooLarge),
        ({"payloads": [b"a"], "keys": [b"k" * 10]}, RecordTooLarge),
        ({"payloads": [b"a", b"b"], "txids": [5, 4]}, TxidOutOfOrder),
        ({"payloads": [b"a"], "txids": [2]}, TxidOutOfOrder),
        ({"payloads": [b"a"], "expected_offset": 0}, UnexpectedOffset),
        ({"payloads": [b"a"], "expected_offset": 2}, UnexpectedOffset),
        ({"payloads": [b"x" * 10] * 5}, BatchTooLarge),
    ],
)
async def test_all_are_refused_or_none(
    arguments: dict[str, object], error: type[LogError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "APPEND_MANY_BYTES_MAX", 40)
    settings = LogSettings(record_bytes_max=10)
    async with await Log.open("log", client=FakeCluster().client(), settings=settings) as log:
        await log.append(b"", txid=3)
        with pytest.raises(error):
            await log.append_many(**arguments)  # type: ignore[arg-type]
        assert (await log.append(b"", txid=3)).offset == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"payloads": []}, ValueError),
        ({"payloads": [b"a"], "keys": []}, ValueError),
        ({"payloads": [b"a"], "txids": [1, 2]}, ValueError),
        ({"payloads": ["a"]}, TypeError),
        ({"payloads": [b"a"], "keys": ["k"]}, TypeError),
        ({"payloads": [b"a"], "timestamps_ms": [2**63]}, ValueError),
    ],
)
async def test_what_cannot_be_records_is_told_at_once(
    arguments: dict[str, object], error: type[Exception]
) -> None:
    async with await Log.open("log", client=FakeCluster().client()) as log:
        with pytest.raises(error):
            log.append_many_async(**arguments)  # type: ignore[arg-type]


async def test_many_that_are_in_flight_when_the_writer_ends_have_an_unknown_outcome() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client(), reopen_timeout_s=0)
    cluster.hold()
    values = [bytes(ENTRY_BYTES_FULL)] * 40  # more than may be in flight
    partly = log.append_many_async(values)
    unsent = log.append_many_async([b"a", b"b"])
    await settled()
    cluster.ledgers[LedgerId(1)].confirm(3)
    await settled()
    cluster.ledgers[LedgerId(1)].fail(NotEnoughBookies(2, []))
    with pytest.raises(AppendOutcomeUnknown, match="offset 3"):
        await partly
    with pytest.raises(AppendFailed):
        await unsent


async def test_many_of_which_the_first_were_kept_have_an_unknown_outcome_that_names_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.protocol.packer.SENT_BYTES_MAX", 1)
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    cluster.hold()
    many = log.append_many_async([b"x" * 400_000] * 2)
    await settled()
    monkeypatch.setattr(Writing, "_send", lambda _: [])  # as while a roll holds
    cluster.release()
    await settled()
    assert log.last_offset == 0
    await log.abandon()
    with pytest.raises(AppendOutcomeUnknown, match="log 'log': the record sent for offset 0"):
        await many


async def test_many_are_refused_while_too_much_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulator, "PENDING_BYTES_MAX", 1000)
    cluster = FakeCluster()
    async with await Log.open("log", client=cluster.client()) as log:
        cluster.hold()
        first = log.append_many_async([b"x"] * 10)
        with pytest.raises(TooManyPending):
            log.append_many_async([b"x"])
        cluster.release()
        assert len(await first) == 10


def test_ranges_of_ids_are_sequences() -> None:
    ids = RecordIds([Span(7, 1, 4, 2, 2), Span(9, 1, 5, 0, 1)])
    assert list(ids) == [
        RecordId(7, DLSN(1, 4, 2)),
        RecordId(8, DLSN(1, 4, 3)),
        RecordId(9, DLSN(1, 5, 0)),
    ]
    assert ids[1:] == list(ids)[1:]
    assert ids[-3] == ids[0]
    with pytest.raises(IndexError):
        ids[3]


def test_threads_append_many_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()

    async def connect(_: str | None) -> FakeLedgers:
        return cluster.client(MemoryStore("memory://many", "many"))

    monkeypatch.setattr("dlog.aio.log.connect", connect)
    monkeypatch.setattr("dlog.aio.read.handles.connect", connect)
    with dlog.Log.open("log") as log:
        log.append(b"a")
        pending = log.append_many_async([b"b", b"c"])
        assert log.append_many([b"d"], txids=[3], expected_offset=3).first_offset == 3
        assert [record_id.offset for record_id in pending.result()] == [1, 2]
        with pytest.raises(TxidOutOfOrder):
            log.append_many([b"e"], txids=[2])
        assert not pending.cancel()
    with pytest.raises(LogClosed):
        log.append_many([b"f"])
