"""A writer heals after trouble that may pass: nothing lost, nothing doubled, nobody disturbed."""

import asyncio
from functools import partial

import pytest

from dlog.aio import Log
from dlog.errors import AppendFailed, AppendOutcomeUnknown, CloseTimedOut, LostOwnership
from dlog.position import DLSN, RecordId
from dlog.protocol.packer import PARTIAL_MAX
from ledger.errors import NotEnoughBookies
from ledger.ids import LedgerId
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import FaultyStore
from tests.waiting import PATIENCE_S, settled, until

TROUBLE = NotEnoughBookies(2, ["b1"])


async def values_of(client: FakeLedgers) -> list[bytes]:
    async with await Log.tail("log", follow=False, client=client) as reader:
        return [record.value async for record in reader]


async def sent(log: Log, *values: bytes) -> list[asyncio.Future[RecordId]]:
    """Append *values*, an entry each, and return their futures."""
    futures: list[asyncio.Future[RecordId]] = []
    for value in values:
        futures.append(log.append_async(value))
        await settled()
    return futures


@pytest.mark.parametrize("kept", [True, False])
async def test_what_was_in_flight_is_kept_once_whether_recovery_found_it_or_not(kept: bool) -> None:
    cluster = FakeCluster()
    cluster.keep_unconfirmed = kept
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a", txid=1)
    cluster.hold()
    futures = await sent(log, b"b", b"c")
    queued = log.append_async(b"d", txid=5)
    await settled()
    cluster.ledgers[LedgerId(1)].fail(TROUBLE)
    cluster.held = False
    ids = [await future for future in (*futures, queued)]
    assert [record_id.offset for record_id in ids] == [1, 2, 3]
    places = [record_id.dlsn for record_id in ids]
    assert places[0] == (DLSN(1, 1, 0) if kept else DLSN(2, 0, 0))
    assert (log.epoch, log.last_offset, log.last_txid) == (1, 3, 5)
    assert not log.lost.is_set()
    assert (await log.append(b"e", expected_offset=4)).offset == 4
    await log.close()
    assert await values_of(client) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_part_of_what_was_in_flight_may_be_kept() -> None:
    cluster = FakeCluster()
    cluster.keep_unconfirmed = False
    client = cluster.client()
    log = await Log.open("log", client=client)
    cluster.hold()
    futures = await sent(log, b"a", b"b", b"c")
    ledger = cluster.ledgers[LedgerId(1)]
    ledger.last_add_confirmed = 0  # a bookie had it, and the writer was not told
    ledger.fail(TROUBLE)
    cluster.held = False
    ids = [await future for future in futures]
    assert [r.dlsn for r in ids] == [DLSN(1, 0, 0), DLSN(2, 0, 0), DLSN(2, 1, 0)]
    await log.close()
    assert await values_of(client) == [b"a", b"b", b"c"]


async def test_who_was_taken_over_meanwhile_does_not_heal_and_disturbs_nobody() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    cluster.hold()
    (future,) = await sent(log, b"b")
    old = cluster.ledgers[LedgerId(1)]
    waiting, old.pending = old.pending.copy(), type(old.pending)()
    other = await Log.open("log", client=client)
    old.pending = waiting
    cluster.held = False
    old.fail(TROUBLE)
    with pytest.raises(AppendOutcomeUnknown, match="its epoch is 2, not 1"):
        await future
    with pytest.raises(LostOwnership):
        await log.append(b"c")
    assert (await other.append(b"d")).offset == 2
    await other.close()
    assert await values_of(client) == [b"a", b"b", b"d"]


async def test_trouble_that_lasts_ends_the_writer() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client(), reopen_timeout_s=0.05)
    cluster.hold()
    future, *_ = await sent(log, *[b"a"] * PARTIAL_MAX)
    queued = log.append_async(b"b")

    async def refuse(*_: object) -> None:
        raise TROUBLE

    cluster.before("create", refuse)
    cluster.ledgers[LedgerId(1)].fail(TROUBLE)
    with pytest.raises(AppendOutcomeUnknown, match="2 bookies are needed"):
        await future
    with pytest.raises(AppendFailed) as caught:
        await queued
    assert caught.value.retryable
    assert log.lost.is_set()
    with pytest.raises(AppendFailed):
        await log.close()


async def test_who_healed_in_vain_heals_again_until_the_bookies_stay() -> None:
    cluster = FakeCluster()
    cluster.keep_unconfirmed = False
    client = cluster.client()
    log = await Log.open("log", client=client)
    cluster.hold()
    (future,) = await sent(log, b"a")
    for number in (1, 2, 3):
        await until(partial(in_flight_or_done, cluster, number, future))
        assert not future.done()
        cluster.ledgers[LedgerId(number)].fail(TROUBLE)
    await until(partial(in_flight_or_done, cluster, 4, future))
    cluster.release()
    assert (await future).dlsn == DLSN(4, 0, 0)
    await log.close()
    assert await values_of(client) == [b"a"]


async def test_healing_that_does_not_help_is_not_repeated_for_ever() -> None:
    cluster = FakeCluster()
    cluster.keep_unconfirmed = False
    log = await Log.open("log", client=cluster.client(), reopen_timeout_s=0.35)
    cluster.hold()
    (future,) = await sent(log, b"a")
    number = 0
    while not future.done():
        number += 1
        await until(partial(in_flight_or_done, cluster, number, future))
        if not future.done():
            cluster.ledgers[LedgerId(number)].fail(TROUBLE)
    with pytest.raises(AppendOutcomeUnknown, match="2 bookies are needed"):
        await future
    assert len(cluster.ledgers) <= 4, "at once, after 0.1 s, after 0.2 s more"


async def test_a_roll_that_was_under_way_is_done_by_healing() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    creating = asyncio.Event()

    async def linger(*_: object) -> None:
        if not creating.is_set():
            creating.set()
            await asyncio.Event().wait()

    cluster.before("create", linger)
    rolling = asyncio.create_task(log.roll())
    await creating.wait()
    cluster.hold()
    (future,) = await sent(log, b"b")
    cluster.ledgers[LedgerId(1)].fail(TROUBLE)
    cluster.held = False
    await rolling
    assert (await future).offset == 1
    await log.roll()
    await log.append(b"c")
    await log.close()
    assert await values_of(client) == [b"a", b"b", b"c"]


async def test_closing_while_it_heals_waits_for_it_as_long_as_it_may() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    cluster.hold()
    (future,) = await sent(log, b"a")
    cluster.ledgers[LedgerId(1)].fail(TROUBLE)
    cluster.held = False
    await log.close()
    assert (await future).offset == 0
    assert await values_of(client) == [b"a"]


def in_flight_or_done(cluster: FakeCluster, number: int, append: asyncio.Future[RecordId]) -> bool:
    ledger = cluster.ledgers.get(LedgerId(number))
    return append.done() or (ledger is not None and bool(ledger.pending))


# Closing in time.


async def test_closing_gives_up_what_is_not_confirmed_in_time_and_says_so() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    cluster.hold()
    futures = await sent(log, b"a", b"b")
    with pytest.raises(CloseTimedOut, match="2 records were not confirmed") as caught:
        await log.close(timeout_s=0.02)
    assert caught.value.outcome_unknown
    for future in futures:
        with pytest.raises(AppendOutcomeUnknown):
            await future


async def test_closing_without_a_metadata_store_ends_in_time_and_is_no_failure() -> None:
    cluster = FakeCluster()
    store = FaultyStore(MemoryStore("memory://fake", "closing"))
    log = await Log.open("log", client=cluster.client(store))
    await log.append(b"a")

    async def away(*_: object) -> None:
        await asyncio.Event().wait()

    cluster.before("close", away)
    async with asyncio.timeout(PATIENCE_S):
        await log.close(timeout_s=0.02)
    cluster.hooks.clear()
    async with await Log.open("log", client=cluster.client(store)) as log:
        assert log.last_offset == 0


async def test_the_name_of_before_of_the_reopen_timeout_still_counts() -> None:
    with pytest.warns(DeprecationWarning, match="reopen_timeout_s"):
        log = await Log.open("log", client=FakeCluster().client(), heal_s=0.25)
    assert log.writer._machine._reopen_timeout_s == 0.25
    await log.close()
