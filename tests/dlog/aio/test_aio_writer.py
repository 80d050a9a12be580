"""Appending through `dlog.aio.Log`, on ledgers in memory."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from dlog.aio import Log
from dlog.aio.admin import log_tail
from dlog.aio.store import ManifestNode
from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    EpochChanged,
    InvalidPosition,
    InvalidSettings,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    RecordTooLarge,
    RollPostponed,
    TxidOutOfOrder,
    UnexpectedOffset,
)
from dlog.manifest import Manifest
from dlog.position import DLSN, RecordId
from dlog.protocol import accumulator
from dlog.protocol.pending_batch import RECORD_CHARGE
from dlog.recordbatch import Codec, decode_batch
from dlog.settings import LogSettings
from ledger.errors import LedgerFenced, MetadataUnavailable, NotEnoughBookies, TooManyPending
from ledger.ids import LedgerId
from ledger.metadata import LedgerState
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import Fault, FaultyStore
from tests.waiting import ended, eventually, settled


async def manifest_of(client: FakeLedgers, log: str = "log") -> Manifest:
    manifest, _ = await ManifestNode(client.store, log).read()
    return manifest


async def listed_segments(client: FakeLedgers, count: int) -> None:
    async def listed() -> bool:
        return len((await manifest_of(client)).segments) == count

    await eventually(listed, f"{count} segments are listed")


def faulty(cluster: FakeCluster) -> tuple[FakeLedgers, FaultyStore]:
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    return cluster.client(store), store


async def test_appends_resolve_with_dense_offsets_and_their_place() -> None:
    async with await Log.open("log", client=FakeCluster().client()) as log:
        assert log.last_offset == -1
        assert log.last_txid is None
        assert await log.append(b"a") == RecordId(0, DLSN(1, 0, 0))
        futures = [log.append_async(b"b"), log.append_async(b"c")]
        assert [await f for f in futures] == [
            RecordId(1, DLSN(1, 1, 0)),
            RecordId(2, DLSN(1, 1, 1)),
        ]
        assert log.last_offset == 2
        assert log.epoch == 1


async def test_records_of_one_turn_of_the_loop_share_an_entry() -> None:
    cluster = FakeCluster()
    async with await Log.open("log", client=cluster.client()) as log:
        for i in range(100):
            log.append_async(b"%d" % i)
        await log.flush()
        (payload,) = cluster.ledgers[LedgerId(1)].entries
        assert decode_batch(payload).count == 100


async def test_keys_txids_and_timestamps_are_kept_with_the_chosen_codec() -> None:
    cluster = FakeCluster()
    settings = LogSettings(codec=Codec.ZSTD)
    async with await Log.open("log", client=cluster.client(), settings=settings) as log:
        log.append_async(b"a", key=b"k", txid=7, timestamp_ms=123)
        await log.append(bytearray(b"b"), key=memoryview(b"l"))
    batch = decode_batch(cluster.ledgers[LedgerId(1)].entries[0])
    assert batch.header.codec is Codec.ZSTD
    assert batch.value_list() == [b"a", b"b"]
    assert batch.key_list() == [b"k", b"l"]
    assert batch.txid_list() == [7, None]
    assert batch.timestamps_ms()[0] == 123


async def test_a_reopened_log_goes_on_where_it_ended() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a", txid=41)
        await log.append(b"b")
    async with await Log.open("log", client=client) as log:
        assert (log.last_offset, log.last_txid, log.epoch) == (1, 41, 2)
        assert (await log.append(b"c")).offset == 2
        with pytest.raises(TxidOutOfOrder):
            await log.append(b"d", txid=40)


async def test_the_last_txid_survives_a_segment_without_records_or_txids() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a", txid=41)
    async with await Log.open("log", client=client):
        pass
    async with await Log.open("log", client=client) as log:
        await log.append(b"b")
    async with await Log.open("log", client=client) as log:
        assert log.last_txid == 41
        await log.truncate(before=2)
    async with await Log.open("log", client=client) as log:
        assert (log.last_offset, log.last_txid) == (1, 41)


async def test_a_crashed_writers_last_txid_is_found_although_later_records_have_none() -> None:
    client = FakeCluster().client()
    log = await Log.open("log", client=client)
    await log.append(b"a", txid=41)
    await log.append(b"b")
    await log.abandon()
    async with await Log.open("log", client=client) as log:
        assert (log.last_offset, log.last_txid) == (1, 41)


async def test_a_record_over_the_limit_is_refused_and_the_log_goes_on() -> None:
    settings = LogSettings(record_bytes_max=10)
    async with await Log.open("log", client=FakeCluster().client(), settings=settings) as log:
        with pytest.raises(RecordTooLarge) as caught:
            await log.append(b"x" * 8, key=b"kkk")
        assert (caught.value.size_bytes, caught.value.size_bytes_max) == (11, 10)
        assert not caught.value.outcome_unknown
        assert (await log.append(b"x" * 10)).offset == 0


async def test_the_default_limit_is_one_mebibyte() -> None:
    async with await Log.open("log", client=FakeCluster().client()) as log:
        assert (await log.append(bytes(1024 * 1024))).offset == 0
        with pytest.raises(RecordTooLarge):
            await log.append(bytes(1024 * 1024 + 1))


async def test_txids_must_not_decrease_within_what_is_pending_either() -> None:
    async with await Log.open("log", client=FakeCluster().client()) as log:
        first = log.append_async(b"a", txid=5)
        wrong = log.append_async(b"b", txid=4)
        same = log.append_async(b"c", txid=5)
        with pytest.raises(TxidOutOfOrder, match="txid 4 comes after 5"):
            await wrong
        assert ((await first).offset, (await same).offset) == (0, 1)
        with pytest.raises(TxidOutOfOrder, match="is out of range"):
            await log.append(b"d", txid=2**63)


async def test_a_compare_and_append_wins_once() -> None:
    async with await Log.open("log", client=FakeCluster().client()) as log:
        won = log.append_async(b"a", expected_offset=0)
        lost = log.append_async(b"b", expected_offset=0)
        assert (await won).offset == 0
        with pytest.raises(UnexpectedOffset, match="gets offset 1, not 0"):
            await lost


@pytest.mark.parametrize(
    "bad", [{"payload": "text"}, {"payload": 5}, {"payload": b"", "key": "k"}, {"payload": None}]
)
async def test_what_is_not_bytes_is_a_type_error_at_once(bad: dict[str, object]) -> None:
    async with await Log.open("log", client=FakeCluster().client()) as log:
        with pytest.raises(TypeError):
            log.append_async(**bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            log.append_async(b"", txid=1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="years 1 to 9999"):
            log.append_async(b"", timestamp_ms=2**63)


async def test_appends_after_close_are_refused() -> None:
    log = await Log.open("log", client=FakeCluster().client())
    await log.append(b"a")
    await log.close()
    await log.close()
    with pytest.raises(LogClosed):
        await log.append(b"b")


async def test_close_confirms_what_is_pending_and_seals_the_segment() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    future = log.append_async(b"a")
    await log.close()
    assert future.result().offset == 0
    assert cluster.ledgers[LedgerId(1)].state is LedgerState.CLOSED
    (segment,) = (await manifest_of(client)).segments
    assert segment.end_offset == 1


async def test_back_pressure_refuses_or_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = 50 + RECORD_CHARGE
    monkeypatch.setattr(accumulator, "PENDING_BYTES_MAX", 2 * charge)
    monkeypatch.setattr(accumulator, "PENDING_BYTES_ROOM", charge)
    cluster = FakeCluster()
    async with await Log.open("log", client=cluster.client()) as log:
        log.writer._accumulator.packer.entry_bytes_full = 1  # one record each
        cluster.hold()
        sent = [log.append_async(b"x" * 50), log.append_async(b"x" * 50)]
        with pytest.raises(TooManyPending) as caught:
            log.append_async(b"x")
        assert caught.value.retryable
        waiting = asyncio.create_task(log.append(b"y"))
        await settled()
        assert not waiting.done()
        cluster.release()
        assert (await waiting).offset == 2
        assert [f.result().offset for f in sent] == [0, 1]


async def test_a_cancelled_append_is_still_appended_and_disturbs_nothing() -> None:
    cluster = FakeCluster()
    async with await Log.open("log", client=cluster.client()) as log:
        cluster.hold()
        task = asyncio.create_task(log.append(b"a"))
        await asyncio.sleep(0)
        task.cancel()
        cluster.release()
        assert (await log.append(b"b")).offset == 1


# Losing the log.


async def test_the_next_opener_takes_the_log_over() -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    await old.append(b"a")
    new = await Log.open("log", client=cluster.client())
    assert (new.epoch, new.last_offset) == (2, 0)
    with pytest.raises((AppendOutcomeUnknown, LostOwnership)):
        await old.append(b"zombie")
    assert old.lost.is_set()
    assert (await new.append(b"b")).offset == 1
    with pytest.raises(LostOwnership):
        await old.append(b"later")
    await new.close()
    await old.abandon()


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        (None, "opened it, which is the name of this process too"),
        (f"{socket.gethostname()}:1", ":1 opened it, by its name on this machine: two workers"),
        ("billing", "fenced"),
    ],
)
async def test_a_fenced_writer_says_which_process_of_its_machine_has_the_log(
    owner: str | None, reason: str
) -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    new = await Log.open("log", client=cluster.client(), owner=owner)
    with pytest.raises((AppendOutcomeUnknown, LostOwnership)):
        await old.append(b"zombie")
    naming = old.writer._naming
    assert naming is not None
    await ended(naming)
    with pytest.raises(LostOwnership) as caught:
        await old.append(b"later")
    assert reason in str(caught.value)
    await new.close()
    await old.abandon()


async def test_a_sibling_that_has_fenced_and_not_yet_taken_over_is_named_then() -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    await old.append(b"a")
    node = ManifestNode(cluster.client().store, "log")
    manifest, version = await node.read()
    old.writer.lose(LedgerFenced(manifest.segments[-1].ledger_id))
    await settled()
    with pytest.raises(LostOwnership) as before:
        await old.append(b"b")
    assert "this machine" not in str(before.value)
    owner = f"{socket.gethostname()}:1"
    number = manifest.next_segment
    taken = replace(manifest, epoch=number, next_segment=number + 1, owner=owner)
    await node.write(taken, version)
    naming = old.writer._naming
    assert naming is not None
    await ended(naming)
    with pytest.raises(LostOwnership, match=":1 opened it, by its name on this machine"):
        await old.append(b"c")
    await old.abandon()


@pytest.mark.parametrize("ends", [Log.abandon, Log.close])
async def test_nobody_looks_for_a_sibling_once_the_log_is_closed(
    ends: Callable[[Log], Awaitable[None]],
) -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    old.writer.lose(LedgerFenced(LedgerId(1)))
    await settled()
    naming = old.writer._naming
    assert naming is not None
    assert not naming.done()  # the manifest says that it is ours
    with suppress(LostOwnership):
        await ends(old)
    await settled()
    assert naming.cancelled()


async def test_whoever_names_itself_or_is_elected_is_told_no_sibling() -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client(), owner="billing")
    old.writer.lose(LedgerFenced(LedgerId(1)))
    await settled()
    assert old.writer._naming is None
    await old.abandon()


async def test_appends_in_flight_when_fenced_have_an_unknown_outcome_later_ones_are_lost() -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    cluster.hold()
    in_flight = old.append_async(b"in flight")
    await asyncio.sleep(0)
    new = await Log.open("log", client=cluster.client())
    with pytest.raises(AppendOutcomeUnknown) as caught:
        await in_flight
    assert caught.value.outcome_unknown
    assert caught.value.offset == 0
    with pytest.raises(LostOwnership) as later:
        await old.append(b"later")
    assert not later.value.outcome_unknown
    with pytest.raises(LostOwnership):
        await old.flush()
    with pytest.raises(LostOwnership):
        await old.close()
    assert new.last_offset == 0  # recovery kept it: the new writer knows
    await new.abandon()


async def test_records_that_were_not_sent_when_the_log_was_lost_are_certainly_not_in_it() -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    cluster.hold()
    sent = []
    for _ in range(10):  # four leave, one by one; the others wait for the window
        sent.append(old.append_async(b"x"))
        await settled()
    new = await Log.open("log", client=cluster.client())
    kinds = [type(error) for error in await asyncio.gather(*sent, return_exceptions=True)]
    assert kinds == [AppendOutcomeUnknown] * 4 + [LostOwnership] * 6
    assert new.last_offset == 3
    await new.abandon()


async def test_trouble_that_is_no_takeover_says_so() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client(), reopen_timeout_s=0)
    cluster.hold()
    future = log.append_async(b"a")
    await asyncio.sleep(0)
    cluster.ledgers[LedgerId(1)].fail(NotEnoughBookies(2, ["b1"]))
    with pytest.raises(AppendOutcomeUnknown, match="2 bookies are needed"):
        await future
    with pytest.raises(AppendFailed) as caught:
        await log.append(b"b")
    assert caught.value.retryable
    with pytest.raises(AppendFailed):
        await log.close()


async def test_of_two_openers_at_once_one_ends_up_as_the_writer() -> None:
    cluster = FakeCluster()
    both = await asyncio.gather(
        *(Log.open("log", client=cluster.client()) for _ in range(2)), return_exceptions=True
    )
    logs = [log for log in both if isinstance(log, Log)]
    acknowledged = 0
    for log in logs:
        try:
            await log.append(b"a")
            acknowledged += 1
        except (LostOwnership, AppendOutcomeUnknown):
            pass
    assert acknowledged == 1
    for log in logs:
        await log.abandon()
    manifest = await manifest_of(cluster.client())
    assert {s.ledger_id for s in manifest.segments} == set(cluster.ledgers)


async def test_an_opener_that_loses_the_race_deletes_its_ledger_and_tries_again() -> None:
    cluster = FakeCluster()
    await (await Log.open("log", client=cluster.client())).close()
    raced = []

    async def other_is_faster(*_: object) -> None:
        cluster.hooks.clear()
        raced.append(await Log.open("log", client=cluster.client()))

    cluster.before("create", other_is_faster)
    log = await Log.open("log", client=cluster.client())
    assert log.epoch == 3
    assert cluster.deleted == [3]
    with pytest.raises((AppendOutcomeUnknown, LostOwnership)):
        await raced[0].append(b"zombie")
    await log.close()


@pytest.mark.parametrize("fault", ["lost request", "lost reply"])
async def test_a_takeover_whose_swap_got_no_answer_finds_out(fault: Fault) -> None:
    cluster = FakeCluster()
    client, store = faulty(cluster)
    await (await Log.open("log", client=client)).close()
    store.faults.append(fault)
    async with await Log.open("log", client=client) as log:
        assert log.epoch == 2
        await log.append(b"a")
    assert len(cluster.ledgers) == 2
    assert cluster.deleted == []


@pytest.mark.parametrize("fault", ["lost request", "lost reply"])
async def test_a_creation_that_got_no_answer_finds_out(fault: Fault) -> None:
    client, store = faulty(FakeCluster())
    store.faults.append(fault)
    async with await Log.open("log", client=client) as log:
        assert (await log.append(b"a")).offset == 0


async def test_a_log_that_does_not_exist_is_not_made_without_create() -> None:
    with pytest.raises(NoSuchLog):
        await Log.open("log", client=FakeCluster().client(), create=False)


async def test_a_sealed_log_is_refused() -> None:
    client = FakeCluster().client()
    await ManifestNode(client.store, "log").create(Manifest(incarnation="i", sealed=True))
    with pytest.raises(LogSealed):
        await Log.open("log", client=client)


async def test_a_store_that_is_down_makes_open_fail_in_bounded_time() -> None:
    client, store = faulty(FakeCluster())
    store.down = True
    with pytest.raises(MetadataUnavailable):
        await Log.open("log", client=client)


async def test_too_few_bookies_make_open_fail_in_bounded_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.protocol.takeover.BACKOFF_S", 0.0001)
    cluster = FakeCluster()
    cluster.fail_next("create", *[NotEnoughBookies(3, ["b1"]) for _ in range(100)])
    with pytest.raises(NotEnoughBookies):
        await Log.open("log", client=cluster.client())


class FakeTerm:
    def __init__(self, checks: int) -> None:
        self.checks = checks

    def is_current(self) -> bool:
        self.checks -= 1
        return self.checks >= 0

    async def verify(self) -> bool:
        return self.checks > 0


@pytest.mark.parametrize("checks", range(4))
async def test_leadership_lost_between_any_two_steps_opens_nothing_and_leaks_nothing(
    checks: int,
) -> None:
    cluster = FakeCluster()
    before = await Log.open("log", client=cluster.client())
    await before.append(b"a")
    with pytest.raises(LostOwnership, match="leadership"):
        await Log.open("log", client=cluster.client(), term=FakeTerm(checks))
    assert set(cluster.ledgers) == {1}
    await before.abandon()


async def test_a_leader_opens_the_log() -> None:
    async with await Log.open("log", client=FakeCluster().client(), term=FakeTerm(99)) as log:
        assert (await log.append(b"a")).offset == 0


# Rolling.


async def test_a_log_rolls_by_records_and_offsets_go_on() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    settings = LogSettings(roll_records=10)
    async with await Log.open("log", client=client, settings=settings) as log:
        ids = [await log.append(b"x") for _ in range(100)]
        assert [each.offset for each in ids] == list(range(100))
        assert sorted(ids, key=lambda each: each.dlsn) == ids
        assert ids[-1].dlsn.segment > 2
        assert log.epoch == 1
    manifest = await manifest_of(client)
    assert manifest.sealed_end == 100
    assert all(segment.sealed for segment in manifest.segments)


async def test_roll_returns_when_the_segment_before_is_sealed() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.roll()
        log.append_async(b"a", txid=3)
        await log.roll()
        manifest = await manifest_of(client)
        assert [s.end_offset for s in manifest.segments] == [1, None]
        assert manifest.sealed_last_txid == 3
        assert (await log.append(b"b")).dlsn == DLSN(2, 0, 0)


async def test_nothing_goes_to_the_new_ledger_before_all_of_the_old_is_confirmed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        rolling = asyncio.create_task(log.roll())
        listed = asyncio.Event()

        async def hold_when_created(*_: object) -> None:
            cluster.hold()
            log.append_async(b"b")
            listed.set()

        cluster.before("create", hold_when_created)
        await listed.wait()
        await listed_segments(client, 2)
        late = log.append_async(b"c")
        await settled()
        old, new = cluster.ledgers[LedgerId(1)], cluster.ledgers[LedgerId(2)]
        assert len(old.entries) == 2
        assert new.entries == []
        cluster.release()
        assert (await late).dlsn == DLSN(2, 0, 0)
        await rolling


async def test_a_roll_switches_only_when_the_last_of_several_adds_is_confirmed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        go = asyncio.Event()

        async def wait(*_: object) -> None:
            await go.wait()

        cluster.before("create", wait)
        rolling = asyncio.create_task(log.roll())
        await settled()
        cluster.hold()
        for _ in range(3):
            log.append_async(b"b")
            await settled()
        go.set()
        await listed_segments(client, 2)
        old, new = cluster.ledgers[LedgerId(1)], cluster.ledgers[LedgerId(2)]
        assert len(old.pending) == 3
        late = log.append_async(b"c")
        for confirmed in range(3):
            await settled()
            assert len(old.pending) == 3 - confirmed
            assert new.entries == []
            old.confirm(1)
        cluster.release()
        assert (await late).dlsn == DLSN(2, 0, 0)
        await rolling


async def test_trouble_with_the_store_postpones_a_roll_and_appends_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.protocol.roll.BACKOFF_S", 0.001)
    cluster = FakeCluster()
    client, store = faulty(cluster)
    settings = LogSettings(roll_records=1)
    log = await Log.open("log", client=client, settings=settings)
    store.down = True
    for _ in range(20):
        assert (await log.append(b"x")).dlsn.segment == 1
        await asyncio.sleep(0)
    store.down = False
    await log.roll()
    assert (await log.append(b"x")).dlsn.segment >= 2
    await log.close()


async def test_a_roll_that_is_asked_for_while_the_store_is_down_is_told_in_time_and_done_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.protocol.roll.BACKOFF_S", 0.001)
    monkeypatch.setattr("dlog.protocol.log_writer.ROLL_PATIENCE_S", 0.05)
    client, store = faulty(FakeCluster())
    log = await Log.open("log", client=client)
    await log.append(b"x")
    store.down = True
    with pytest.raises(RollPostponed, match="did not answer") as caught:
        await log.roll()
    assert caught.value.retryable
    assert (await log.append(b"x")).dlsn.segment == 1
    store.down = False
    while (await log.append(b"x")).dlsn.segment == 1:
        pass  # each append lets the roll go on
    await log.close()


@pytest.mark.parametrize("fault", ["lost request", "lost reply"])
async def test_a_roll_whose_swap_got_no_answer_lists_its_ledger_once(fault: Fault) -> None:
    cluster = FakeCluster()
    client, store = faulty(cluster)
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        store.faults.append(fault)
        await log.roll()
        await log.append(b"b")
        assert [s.number for s in (await manifest_of(client)).segments] == [1, 2]
        assert set(cluster.ledgers) == {1, 2}


async def test_a_takeover_during_a_roll_fences_both_ledgers() -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    await old.append(b"a")
    closing, go = asyncio.Event(), asyncio.Event()

    async def stop_before_close(*_: object) -> None:
        closing.set()
        await go.wait()

    cluster.before("close", stop_before_close)
    rolling = asyncio.create_task(old.roll())
    await closing.wait()  # segment 2 is listed and written, segment 1 is not closed yet
    assert (await old.append(b"b")).dlsn == DLSN(2, 0, 0)
    assert (await log_tail(cluster.client(), "log")).next_offset == 2  # both can be read
    new = await Log.open("log", client=cluster.client())
    assert (new.last_offset, new.epoch) == (1, 3)
    go.set()
    with pytest.raises((AppendOutcomeUnknown, LostOwnership)):
        await old.append(b"zombie")
    with pytest.raises(LostOwnership):
        await rolling
    assert (await new.append(b"c")).offset == 2
    cluster.hooks.clear()
    await new.close()


async def test_a_crash_during_a_roll_loses_nothing() -> None:
    cluster = FakeCluster()
    old = await Log.open("log", client=cluster.client())
    await old.append(b"a")
    cluster.fail_next("close", *[LedgerFenced(1) for _ in range(9)])
    rolling = asyncio.create_task(old.roll())
    await listed_segments(cluster.client(), 2)
    await old.abandon()
    with pytest.raises(LogClosed):
        await rolling
    cluster.hooks.clear()
    async with await Log.open("log", client=cluster.client()) as log:
        assert log.last_offset == 0
        assert (await log.append(b"b")).offset == 1


async def test_closing_during_a_roll_leaves_a_log_that_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    settings = LogSettings(roll_records=1)
    for _ in range(5):
        log = await Log.open("log", client=client, settings=settings)
        await log.append(b"a")
        await log.close()
    async with await Log.open("log", client=client) as log:
        assert log.last_offset == 4


# Trimming.


async def test_truncation_frees_whole_segments_and_moves_the_point_inside_the_open_one() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        for _ in range(3):
            await log.append(b"a")
            await log.append(b"b")
            await log.roll()
        await log.append(b"c")
        await log.truncate(before=4)
        assert set(cluster.ledgers) == {3, 4}
        await log.truncate(before=7)
        manifest = await manifest_of(client)
        assert manifest.trim_offset == 7
        assert [s.number for s in manifest.segments] == [4]
        assert manifest.deleting == ()
        await log.truncate(before=2)
        assert (await manifest_of(client)).trim_offset == 7
        assert (await log.append(b"d")).offset == 7


@pytest.mark.parametrize(("before", "reason"), [(-1, "begin at 0"), (2, "ends at offset 1")])
async def test_truncation_beyond_the_end_is_refused(before: int, reason: str) -> None:
    async with await Log.open("log", client=FakeCluster().client()) as log:
        await log.append(b"a")
        with pytest.raises(InvalidPosition, match=reason):
            await log.truncate(before=before)


async def test_a_deletion_that_was_cut_short_is_finished_by_the_next_one() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        await log.roll()
        cluster.fail_next("delete", MetadataUnavailable("x", "delete", 1))
        with pytest.raises(MetadataUnavailable):
            await log.truncate(before=1)
        assert (await manifest_of(client)).deleting == (1,)
        await log.truncate(before=1)
        assert (await manifest_of(client)).deleting == ()
        assert set(cluster.ledgers) == {2}


async def test_retention_is_applied_when_a_segment_is_sealed() -> None:
    cluster = FakeCluster()
    settings = LogSettings(retention_bytes=1)
    client = cluster.client()
    async with await Log.open("log", client=client, settings=settings) as log:
        for _ in range(4):
            await log.append(b"a")
            await log.roll()
    manifest = await manifest_of(client)
    assert manifest.trim_offset >= 2
    assert set(cluster.ledgers) == {s.ledger_id for s in manifest.segments}


# Opening under conditions.


async def test_an_open_that_expects_an_epoch_disturbs_nobody_if_it_has_changed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    first = await Log.open("log", client=client, expected_epoch=0, owner="first")
    assert first.epoch == 1
    await first.append(b"a")
    await first.roll()  # no new epoch
    await first.append(b"b")
    with pytest.raises(EpochChanged, match="taken over by first: its epoch is 1, not 0"):
        await Log.open("log", client=client, expected_epoch=0)
    assert (await first.append(b"c")).offset == 2
    second = await Log.open("log", client=client, expected_epoch=first.epoch)
    assert (second.epoch, second.last_offset) == (3, 2)
    manifest = await manifest_of(client)
    assert manifest.epoch == 3
    assert manifest.owner  # this process
    await second.close()
    await first.abandon()


async def test_settings_may_be_given_by_name_and_stay_with_the_log() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client, settings={"codec": "lz4", "roll_records": 5}):
        pass
    async with await Log.open("log", client=client, settings={"roll_records": 6}) as log:
        assert (log.settings.codec, log.settings.roll_records) == (Codec.LZ4, 5)
    with pytest.raises(InvalidSettings, match="no such setting; there are ensemble,"):
        await Log.open("log", client=client, settings={"compression": "lz4"})


async def test_a_lone_append_is_sent_before_it_returns_to_the_loop_and_the_next_waits_a_turn() -> (
    None
):
    cluster = FakeCluster()
    cluster.hold()
    log = await Log.open("log", client=cluster.client())
    (ledger,) = cluster.ledgers.values()
    first, second = log.append(b"a"), log.append(b"b")
    first.send(None)
    assert len(ledger.entries) == 1
    second.send(None)
    assert len(ledger.entries) == 1, "others may gather beside it"
    first.close()  # which ends the waiting, not the appends
    second.close()
    cluster.release()
    await log.flush()
    assert log.last_offset == 1
    assert [decode_batch(entry).value_list() for entry in ledger.entries] == [[b"a"], [b"b"]]
    await log.close()


async def test_a_refused_lone_append_lets_others_have_a_turn_of_the_loop() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    await log.append(b"a", txid=5)
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1

    asyncio.get_running_loop().call_soon(count)
    with pytest.raises(TxidOutOfOrder):
        await log.append(b"b", txid=4)
    assert turns == 1
    await log.close()
