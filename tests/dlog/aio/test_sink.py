"""Committing whole units through `dlog.aio.write.sink`, on ledgers in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from dlog.aio import Log
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.store import ManifestNode
from dlog.aio.write.sink import Sink, Staged, Stager
from dlog.aio.write.writer import LogWriter
from dlog.columns import Columns
from dlog.errors import (
    AppendOutcomeUnknown,
    DamagedBatch,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    RecordTooLarge,
    TxidOutOfOrder,
    UnitSuperseded,
)
from dlog.headers import encode_headers
from dlog.manifest import Manifest
from dlog.protocol import unit_commit
from dlog.receipts import Receipt
from dlog.recordbatch import Codec, encode_batch
from dlog.settings import LogSettings
from ledger.errors import LevelTooLow, LogError, NotEnoughBookies
from ledger.feature_level import HEADER_PAIRS
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import Fault, FaultyStore
from tests.waiting import until

QUERY: Final = bytes(range(16))
OTHER: Final = bytes(16)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble is tried again without much waiting."""
    monkeypatch.setattr(unit_commit, "BACKOFF_S", 0.001)
    monkeypatch.setattr(unit_commit, "BACKOFF_S_MAX", 0.002)


def batch(*values: bytes, **columns: list[int | None]) -> bytes:
    records = Columns(list(values), **columns)  # type: ignore[arg-type]
    return encode_batch(records, base_index=0, base_timestamp_ms=1000)


async def staged(client: FakeLedgers, sink: Sink, number: int, *payloads: bytes) -> Staged:
    stager = await Stager.begin(client, sink.assignment, Receipt(QUERY, number))
    for payload in payloads:
        await stager.add(payload)
    return await stager.seal()


async def values_of(client: FakeLedgers, log: str = "log") -> list[bytes]:
    async with await Log.tail(log, client=client, follow=False) as reader:
        return [record.value async for record in reader]


async def manifest_of(client: FakeLedgers, log: str = "log") -> Manifest:
    manifest, _ = await ManifestNode(client.store, log).read()
    return manifest


async def test_small_units_become_entries_of_one_segment() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        for number in range(5):
            done = await sink.commit(Receipt(QUERY, number), [batch(b"%d" % number, b"x")])
            assert (done.first_offset, done.end_offset, done.already) == (
                2 * number,
                2 * number + 2,
                False,
            )
        assert sink.last_unit(QUERY) == 4
        assert sink.last_unit(OTHER) is None
    manifest = await manifest_of(client)
    assert [segment.sealed is not None for segment in manifest.segments] == [True]
    assert manifest.receipts.last(QUERY) == 4
    assert await values_of(client) == [v for n in range(5) for v in (b"%d" % n, b"x")]


async def test_a_unit_of_several_batches_keeps_their_columns_and_is_one_entry() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Sink.open("log", client=client) as sink:
        plain = batch(b"a")
        rich = encode_batch(
            Columns([b"b", b"c"], [b"k", None], [7, 8], [5, 6], None),
            base_index=0,
            base_timestamp_ms=0,
        )
        await sink.commit(Receipt(QUERY, 0), [plain, rich])
    async with await Log.tail("log", client=client, follow=False) as reader:
        found = [(r.value, r.key, r.txid, r.timestamp_ms, r.dlsn.entry) async for r in reader]
    assert found == [
        (b"a", None, None, 1000, 0),
        (b"b", b"k", 7, 5, 0),
        (b"c", None, 8, 6, 0),
    ]


async def test_units_with_header_pairs_are_taken_from_the_level_on_that_brings_them() -> None:
    cluster = FakeCluster()
    cluster.level = HEADER_PAIRS - 1
    client = cluster.client()
    headers = (("a", b"1"), ("a", None))
    records = Columns([b"x"], headers=[encode_headers(headers)])
    payload = encode_batch(records, base_index=0, base_timestamp_ms=0)
    async with await Sink.open("log", client=client) as sink:
        with pytest.raises(LevelTooLow, match="needs level 5"):
            await sink.commit(Receipt(QUERY, 0), [payload])
        with pytest.raises(LevelTooLow, match="needs level 5"):
            await staged(client, sink, 0, payload)
        cluster.level = HEADER_PAIRS
        await sink.commit(Receipt(QUERY, 0), [payload])
        await sink.commit(Receipt(QUERY, 1), [await staged(client, sink, 1, payload)])
    async with await Log.tail("log", client=client, follow=False) as reader:
        assert [record.headers.pairs() async for record in reader] == [headers, headers]


async def test_a_unit_whose_txids_decrease_within_a_batch_is_refused_and_leaves_no_trace() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        with pytest.raises(TxidOutOfOrder, match="6"):
            await sink.commit(Receipt(QUERY, 0), [batch(b"a", b"b", b"c", txids=[5, 7, 6])])
        damaged = batch(b"a")[:-1]
        with pytest.raises(DamagedBatch):
            await sink.commit(Receipt(QUERY, 0), [damaged])
        await sink.commit(Receipt(QUERY, 0), [batch(b"good", txids=[5])])
    assert await values_of(client) == [b"good"]


async def test_staged_ledgers_become_segments_by_one_swap_in_their_order() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(Receipt(QUERY, 0), [batch(b"small")])
        one = await staged(client, sink, 1, batch(b"a", b"b"), batch(b"c"))
        two = await staged(client, sink, 1, batch(b"f"))
        done = await sink.commit(Receipt(QUERY, 1), [one, batch(b"d"), batch(b"e"), two])
        assert (done.first_offset, done.end_offset) == (1, 7)
        last = await sink.commit(Receipt(QUERY, 2), [batch(b"again small")])
        assert last.first_offset == 7
        assert sink.epoch == 1
    manifest = await manifest_of(client)
    assert manifest.epoch == 1
    assert [segment.sealed.records for segment in manifest.segments if segment.sealed] == [
        1,
        3,
        2,
        1,
        1,
    ]
    assert await values_of(client) == [b"small", *map(bytes, zip(b"abcdef")), b"again small"]


@pytest.mark.parametrize("codec", list(Codec))
async def test_what_is_staged_is_compressed_as_the_log_is(codec: Codec) -> None:
    client = FakeCluster().client()
    settings = LogSettings(codec=codec)
    async with await Sink.open("log", client=client, settings=settings) as sink:
        ledger = await staged(client, sink, 0, batch(b"a" * 1000), batch(b"b" * 1000))
        await sink.commit(Receipt(QUERY, 0), [ledger])
    assert (ledger.sealed.bytes > 2000) == (codec is Codec.NONE)
    assert await values_of(client) == [b"a" * 1000, b"b" * 1000]


async def test_a_unit_that_comes_again_is_not_added_again() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(Receipt(QUERY, 3), [batch(b"a")])
        assert (await sink.commit(Receipt(QUERY, 3), [batch(b"a")])).already
        ledger = await staged(client, sink, 3, batch(b"a"))
        assert (await sink.commit(Receipt(QUERY, 3), [ledger])).already
        ledger = await staged(client, sink, 4, batch(b"b"))
        assert not (await sink.commit(Receipt(QUERY, 4), [ledger])).already
        ledger = await staged(client, sink, 4, batch(b"b"))
        assert (await sink.commit(Receipt(QUERY, 4), [ledger])).already
        assert (await sink.commit(Receipt(QUERY, 4), [batch(b"b")])).already
    async with await Sink.open("log", client=client) as sink:
        assert (await sink.commit(Receipt(QUERY, 4), [batch(b"b")])).already
        assert not (await sink.commit(Receipt(QUERY, 5), [batch(b"c")])).already
    assert await values_of(client) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_staged", [False, True])
async def test_a_unit_before_the_last_one_is_an_error_and_never_dropped_in_silence(
    *, is_staged: bool
) -> None:
    client = FakeCluster().client()

    async def part(sink: Sink) -> Staged | bytes:
        if not is_staged:
            return batch(b"other rows")
        return await staged(client, sink, 3, batch(b"other rows"))

    async with await Sink.open("log", client=client) as sink:
        for number in range(6):
            await sink.commit(Receipt(QUERY, number), [batch(b"%d" % number)])
        with pytest.raises(UnitSuperseded, match=r"unit 3 comes after unit 5.*from 6 on"):
            await sink.commit(Receipt(QUERY, 3), [await part(sink)])
        await sink.commit(Receipt(OTHER, 3), [batch(b"of another")])
    async with await Sink.open("log", client=client) as sink:
        with pytest.raises(UnitSuperseded):
            await sink.commit(Receipt(QUERY, 3), [await part(sink)])
        assert (await sink.commit(Receipt(QUERY, 5), [batch(b"5")])).already
        assert not (await sink.commit(Receipt(QUERY, 6), [batch(b"6")])).already
    assert await values_of(client) == [*(b"%d" % n for n in range(6)), b"of another", b"6"]


@pytest.mark.parametrize("same_epoch", [False, True])
async def test_a_sink_that_learns_of_later_units_from_the_manifest_drops_nothing(
    *, same_epoch: bool
) -> None:
    client = FakeCluster().client()
    sink = await Sink.open("log", client=client)
    await sink.commit(Receipt(QUERY, 0), [batch(b"0")])
    if same_epoch:
        other = await Sink.resume(
            "log", client=client, incarnation=sink.incarnation, epoch=sink.epoch
        )
    else:
        other = await Sink.open("log", client=client)
    for number in (1, 2):
        await other.commit(
            Receipt(QUERY, number), [await staged(client, other, number, batch(b"o"))]
        )
    with pytest.raises(UnitSuperseded if same_epoch else LostOwnership):
        await sink.commit(Receipt(QUERY, 1), [batch(b"other rows")])
    await sink.abandon()
    await other.close()
    assert await values_of(client) == [b"0", b"o", b"o"]


async def test_a_manifest_that_fills_up_is_warned_of_from_its_half_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = FakeCluster().client()
    monkeypatch.setattr("dlog.aio.write.sink.FULL_BYTES", 2000)
    sizes: list[int] = []
    async with await Sink.open("log", client=client) as sink:
        for number in range(40):
            ledger = await staged(client, sink, number, batch(b"x"))
            await sink.commit(Receipt(QUERY, number), [ledger])
            sizes.append((await manifest_of(client)).size_bytes)
    warned = [text for text in caplog.messages if text.startswith("manifest_half_full")]
    assert 2 <= len(warned) <= 10
    first = next(size for size in sizes if size >= 1000)
    assert f" size_bytes={first} size_bytes_max=2000 " in warned[0]


@pytest.mark.parametrize("rolls", [False, True])
async def test_the_receipt_of_a_sink_that_crashed_is_found_by_whoever_opens_the_log(
    *, rolls: bool
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    crashed = await Sink.open("log", client=client, settings=LogSettings(roll_records=rolls * 2))
    for number in range(5):
        await crashed.commit(Receipt(QUERY, number), [batch(b"%d" % number)])
    await crashed.abandon()
    async with await Log.open("log", client=client) as log:
        await log.append(b"of an application")
    assert (await manifest_of(client)).receipts.last(QUERY) == 4
    async with await Sink.open("log", client=client) as sink:
        assert (await sink.commit(Receipt(QUERY, 4), [batch(b"4")])).already
        await sink.commit(Receipt(QUERY, 5), [batch(b"5")])
    assert await values_of(client) == [b"0", b"1", b"2", b"3", b"4", b"of an application", b"5"]


async def test_origins_do_not_hide_each_other() -> None:
    client = FakeCluster().client()
    sink = await Sink.open("log", client=client)
    await sink.commit(Receipt(QUERY, 7), [batch(b"a")])
    await sink.commit(Receipt(OTHER, 0), [batch(b"b")])
    await sink.commit(Receipt(QUERY, 8), [batch(b"c")])
    await sink.abandon()
    async with await Sink.open("log", client=client) as after:
        assert (after.last_unit(QUERY), after.last_unit(OTHER)) == (8, 0)
    assert await values_of(client) == [b"a", b"b", b"c"]


async def open_by_an_application(client: FakeLedgers) -> None:
    log = await Log.open("log", client=client, owner="an application")
    await log.close()


async def open_by_a_sink(client: FakeLedgers) -> None:
    sink = await Sink.open("log", client=client, owner="an application")
    await sink.close()


@pytest.mark.parametrize("opens", [open_by_an_application, open_by_a_sink])
@pytest.mark.parametrize("large", [False, True])
async def test_whoever_opens_the_log_later_ends_the_sink_which_says_who_has_it(
    opens: Callable[[FakeLedgers], Awaitable[None]], *, large: bool
) -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(Receipt(QUERY, 0), [batch(b"a")])
        parts = [await staged(client, sink, 1, batch(b"b"))] if large else [batch(b"b")]
        await opens(client)
        with pytest.raises(LostOwnership, match="an application took it over"):
            await sink.commit(Receipt(QUERY, 1), parts)
        with pytest.raises(LostOwnership, match="an application took it over"):
            await sink.commit(Receipt(QUERY, 1), [batch(b"b")])
    assert await values_of(client) == [b"a"]


async def test_a_sink_ends_the_application_that_wrote_the_log() -> None:
    client = FakeCluster().client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(Receipt(QUERY, 0), [batch(b"b")])
        with pytest.raises(AppendOutcomeUnknown):
            await log.append(b"c")
        assert isinstance(log.writer.error, LostOwnership)
    await log.abandon()
    assert await values_of(client) == [b"a", b"b"]


FAULTS: Final[list[Fault]] = ["lost request", "lost reply"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("at", range(4))
async def test_a_lost_call_of_the_metadata_store_neither_loses_nor_doubles_a_unit(
    fault: Fault, at: int, *, large: bool
) -> None:
    cluster = FakeCluster()
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = cluster.client(store)
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(Receipt(QUERY, 0), [batch(b"a")])
        ledger = await staged(client, sink, 1, batch(b"b"))
        store.faults.extend([*[None] * at, fault])
        await sink.commit(Receipt(QUERY, 1), [ledger if large else batch(b"b")])
        await sink.commit(Receipt(QUERY, 2), [batch(b"c")])
    assert await values_of(client) == [b"a", b"b", b"c"]


async def an_entry_is_on_its_way(cluster: FakeCluster, sink: Sink) -> LogWriter:
    def pending() -> bool:
        return any(ledger.pending for ledger in cluster.ledgers.values())

    await until(pending)
    assert sink._writer is not None
    return sink._writer


@pytest.mark.parametrize("kept", [False, True])
async def test_an_entry_whose_outcome_is_unknown_is_looked_for_before_it_is_sent_again(
    *, kept: bool
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Sink.open("log", client=client, reopen_timeout_s=0) as sink:
        await sink.commit(Receipt(QUERY, 0), [batch(b"a")])
        cluster.held, cluster.keep_unconfirmed = True, kept
        commit = asyncio.ensure_future(sink.commit(Receipt(QUERY, 1), [batch(b"b")]))
        writer = await an_entry_is_on_its_way(cluster, sink)
        cluster.held = False
        writer.lose(NotEnoughBookies(3, ()))
        assert (await commit).already == kept
    assert await values_of(client) == [b"a", b"b"]


async def test_a_unit_that_healing_sent_again_has_its_receipt() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    sink = await Sink.open("log", client=client)
    await sink.commit(Receipt(QUERY, 0), [batch(b"a")])
    cluster.held, cluster.keep_unconfirmed = True, False
    commit = asyncio.ensure_future(sink.commit(Receipt(QUERY, 1), [batch(b"b")]))
    writer = await an_entry_is_on_its_way(cluster, sink)
    cluster.held = False
    writer.lose(NotEnoughBookies(3, ()))
    assert not (await commit).already
    assert (sink._writer, writer.error) == (writer, None)
    await sink.abandon()
    async with await Sink.open("log", client=client) as after:
        assert after.last_unit(QUERY) == 1
    assert await values_of(client) == [b"a", b"b"]


async def test_a_commit_that_was_cancelled_can_be_made_again() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Sink.open("log", client=client) as sink:
        cluster.held = True
        commit = asyncio.ensure_future(sink.commit(Receipt(QUERY, 0), [batch(b"a")]))
        await an_entry_is_on_its_way(cluster, sink)
        commit.cancel()
        await asyncio.wait([commit])
        cluster.held = False
        cluster.release()
        assert (await sink.commit(Receipt(QUERY, 0), [batch(b"a")])).already
        await sink.commit(Receipt(QUERY, 1), [batch(b"b")])
    assert await values_of(client) == [b"a", b"b"]


async def test_what_travels_and_is_too_much_for_an_entry_is_staged() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(
            Receipt(QUERY, 0), [batch(b"a" * 60), batch(b"b" * 60)], entry_bytes_max=100
        )
        assert not sink.writing
        await sink.commit(Receipt(QUERY, 1), [batch(b"c" * 60)], entry_bytes_max=100)
        assert sink.writing
    manifest = await manifest_of(client)
    assert [s.sealed.records for s in manifest.segments if s.sealed] == [2, 1]


async def test_ledgers_of_other_attempts_and_of_deposed_sinks_are_deleted_and_no_others() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    sink = await Sink.open("log", client=client)
    taken = await staged(client, sink, 0, batch(b"a"))
    zombie = await staged(client, sink, 0, batch(b"a"))
    await sink.commit(Receipt(QUERY, 0), [taken])
    next_one = await staged(client, sink, 1, batch(b"b"))
    janitor = Janitor(client)
    assert [each.ledger_id for each in (await janitor.run_once()).orphans] == [zombie.ledger_id]
    await sink.commit(Receipt(QUERY, 1), [next_one])
    late = await staged(client, sink, 2, batch(b"c"))
    await sink.abandon()
    assert not (await janitor.run_once()).orphans
    await open_by_an_application(client)
    assert [each.ledger_id for each in (await janitor.run_once()).orphans] == [late.ledger_id]
    assert await values_of(client) == [b"a", b"b"]


async def test_a_ledger_staged_in_an_epoch_before_is_not_taken() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        ledger = await staged(client, sink, 0, batch(b"a"))
    async with await Sink.open("log", client=client) as sink:
        with pytest.raises(LostOwnership):
            await sink.commit(Receipt(QUERY, 0), [ledger])


async def test_txids_go_on_where_the_log_ends_and_decrease_nowhere() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(Receipt(QUERY, 0), [batch(b"a", txids=[5])])
        below = await staged(client, sink, 1, batch(b"b", txids=[4]))
        with pytest.raises(TxidOutOfOrder):
            await sink.commit(Receipt(QUERY, 1), [below])
        with pytest.raises(TxidOutOfOrder):
            await sink.commit(Receipt(QUERY, 1), [batch(b"b", txids=[4])])
        without = await staged(client, sink, 1, batch(b"b"))
        assert without.sealed.last_txid == 5
        await sink.commit(Receipt(QUERY, 1), [without])
        one = await staged(client, sink, 2, batch(b"c", txids=[7]))
        two = await staged(client, sink, 2, batch(b"d", txids=[6]))
        with pytest.raises(TxidOutOfOrder):
            await sink.commit(Receipt(QUERY, 2), [one, two])
        await sink.commit(Receipt(QUERY, 2), [two, one])
    async with await Log.open("log", client=client) as log:
        assert log.last_txid == 7
    assert await values_of(client) == [b"a", b"b", b"d", b"c"]


async def test_what_cannot_be_committed_is_refused_and_the_sink_goes_on() -> None:
    client = FakeCluster().client()
    settings = LogSettings(record_bytes_max=100)
    async with await Sink.open("log", client=client, settings=settings) as sink:
        with pytest.raises(RecordTooLarge):
            await sink.commit(Receipt(QUERY, 0), [batch(b"a" * 101)])
        with pytest.raises(RecordTooLarge):  # also of a unit that is no entry
            await sink.commit(
                Receipt(QUERY, 0), [batch(b"b" * 100), batch(b"a" * 101)], entry_bytes_max=200
            )
        await sink.commit(Receipt(QUERY, 0), [batch(b"a" * 100)])
    with pytest.raises(LogClosed):
        await sink.commit(Receipt(QUERY, 1), [batch(b"b")])
    with pytest.raises(NoSuchLog):
        await Sink.open("other", client=client, create=False)


async def test_a_sealed_log_takes_no_units_and_says_so() -> None:
    client = FakeCluster().client()
    async with await Sink.open("log", client=client) as sink:
        await sink.commit(Receipt(QUERY, 0), [batch(b"a")])
        log = await Log.open("log", client=client)
        await log.seal()
        with pytest.raises((LogSealed, LostOwnership)):
            await sink.commit(Receipt(QUERY, 1), [batch(b"b")])
    with pytest.raises(LogSealed):
        await Sink.open("log", client=client)


async def test_trouble_that_does_not_pass_is_raised_after_some_attempts() -> None:
    cluster = FakeCluster()
    client = cluster.client()

    async def down(*_: object) -> None:
        raise NotEnoughBookies(3, ())

    async with await Sink.open("log", client=client, reopen_timeout_s=0) as sink:
        cluster.before("create", down)
        with pytest.raises(LogError) as raised:
            await sink.commit(Receipt(QUERY, 0), [batch(b"a")], entry_bytes_max=0)
        assert raised.value.retryable
        cluster.hooks.clear()
        await sink.commit(Receipt(QUERY, 0), [batch(b"a")], entry_bytes_max=0)
    assert await values_of(client) == [b"a"]
