"""What a writer that heals settles: outcomes, offsets and txids, by what its log holds."""

import asyncio

import pytest

from dlog.aio import Log
from dlog.columns import Columns
from dlog.errors import AppendFailed, AppendOutcomeUnknown, TxidOutOfOrder
from dlog.position import RecordId
from dlog.recordbatch import encode_batch
from ledger.errors import LedgerFenced, NotEnoughBookies
from ledger.ids import EntryId, LedgerId
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import settled, until

TROUBLE = NotEnoughBookies(2, ["b1"])


async def sent(log: Log, *values: bytes, txid: int | None = None) -> list[asyncio.Future[RecordId]]:
    """Append *values*, an entry each, and return their futures."""
    futures = []
    for value in values:
        futures.append(log.append_async(value, txid=txid))
        await asyncio.sleep(0)
    return futures


async def test_the_txid_of_what_reopening_kept_is_the_last_one() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a", txid=1)
    cluster.hold()
    (kept,) = await sent(log, b"b", txid=5)
    cluster.held = False
    cluster.ledgers[LedgerId(1)].fail(TROUBLE)
    await kept
    assert log.last_txid == 5
    await log.append(b"c")
    assert log.last_txid == 5
    await log.close()
    async with await Log.open("log", client=client) as again:
        assert again.last_txid == 5


async def test_reopening_out_of_an_empty_segment_forgets_no_txid_of_before() -> None:
    """Exactly-once rests on `last_txid`: one that fell would let a retry append again."""
    cluster = FakeCluster()
    cluster.keep_unconfirmed = False
    client = cluster.client()
    async with await Log.open("log", client=client) as before:
        await before.append(b"a", txid=7)
    log = await Log.open("log", client=client)
    cluster.hold()
    (again,) = await sent(log, b"b")
    cluster.held = False
    cluster.ledgers[LedgerId(2)].fail(TROUBLE)
    assert (await again).dlsn == (3, 0, 0)
    assert log.last_txid == 7
    with pytest.raises(TxidOutOfOrder):
        await log.append(b"c", txid=6)
    await log.close()
    async with await Log.open("log", client=client) as after:
        assert after.last_txid == 7


async def test_an_unknown_outcome_names_the_offset_that_the_record_has_if_it_was_kept() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    cluster.hold()
    pair = [log.append_async(b"b"), log.append_async(b"c")]
    await asyncio.sleep(0)
    futures = [*pair, *await sent(log, b"d", b"e")]
    other = await Log.open("log", client=client)
    cluster.release()
    offsets = {}
    for future, value in zip(futures, (b"b", b"c", b"d", b"e"), strict=True):
        with pytest.raises(AppendOutcomeUnknown) as caught:
            await future
        offsets[caught.value.offset] = value
    async with await Log.tail("log", start=1, follow=False, client=client) as reader:
        assert offsets == {record.offset: record.value async for record in reader}
    await other.close()


@pytest.mark.parametrize("late", ["stored", "fenced"])
async def test_an_answer_about_the_ledger_of_before_says_nothing_of_what_is_sent_after_reopening(
    late: str,
) -> None:
    cluster = FakeCluster()
    cluster.keep_unconfirmed = False
    log = await Log.open("log", client=cluster.client())
    cluster.hold()
    (again,) = await sent(log, b"a")
    old = cluster.ledgers[LedgerId(1)]
    waiting = old.pending.popleft()
    log.writer.lose(TROUBLE)
    await until(lambda: log.writer.own_ledgers == {LedgerId(2)})
    new = cluster.ledgers[LedgerId(2)]
    await until(lambda: len(new.pending) == 1)
    if late == "stored":
        waiting.set_result(EntryId(0))
    else:
        waiting.set_exception(LedgerFenced(old.ledger_id))
    await settled()
    assert not again.done(), "the new ledger has not confirmed it"
    assert not log.lost.is_set()
    cluster.release()
    assert (await again).dlsn == (2, 0, 0)
    await log.close()


async def test_an_entry_that_is_in_the_log_in_part_is_not_acknowledged() -> None:
    """It cannot be, unless what bookies hold was changed: then the log is damaged."""
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    cluster.hold()
    futures = [log.append_async(value) for value in (b"a", b"b", b"c")]
    await asyncio.sleep(0)
    old = cluster.ledgers[LedgerId(1)]
    old.entries[0] = encode_batch(Columns([b"a", b"b"]), base_index=0, base_timestamp_ms=0)
    old.fail(TROUBLE)
    for future in futures:
        with pytest.raises(AppendOutcomeUnknown, match="ends at 2"):
            await future
    assert log.lost.is_set()
    cluster.release()
    with pytest.raises(AppendFailed):
        await log.append(b"d")
