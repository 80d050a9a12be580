"""Where a segment ends, told while its writer goes on in the next one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from dlog.aio import Log
from dlog.aio.read.segments import learn_end, stamp
from dlog.aio.read.tails import tail_of
from dlog.aio.store import ManifestNode
from dlog.columns import Columns
from dlog.manifest import Segment
from dlog.protocol.edits import add_segment
from dlog.recordbatch import encode_batch
from dlog.settings import LogSettings
from ledger.ids import EntryId, LedgerId
from tests.dlog.fake_ledgers import FakeCluster, FakeEntry, FakeLedgers, FakeReader, FakeWriter
from tests.waiting import eventually

NOW_MS = 1_000


async def next_segment_listed(client: FakeLedgers, log: Log) -> FakeWriter:
    """List a second segment as a roll does, before its writer switches to it."""
    node = ManifestNode(client.store, "log")
    incarnation = (await node.read())[0].incarnation
    later = await client.create(custom=stamp("log", incarnation, log.epoch + 1))
    await node.edit(
        add_segment(
            "log",
            incarnation=incarnation,
            own_segment=log.epoch,
            number=log.epoch + 1,
            ledger_id=later.ledger_id,
            now_ms=NOW_MS,
        )
    )
    return later


def at_question(
    number: int, goes_on: Callable[[], Awaitable[None]]
) -> Callable[..., Awaitable[None]]:
    """Return a hook that lets the writer go on when bookies are asked for the *number*th time."""
    asked = 0

    async def hook(*_: object) -> None:
        nonlocal asked
        asked += 1
        if asked == number:
            await goes_on()

    return hook


@pytest.mark.parametrize(("question", "end"), [(1, 1), (2, None)])
async def test_an_end_is_asked_for_after_the_look_for_an_entry_behind_it(
    question: int, end: int | None
) -> None:
    """Order (C) of the cursor's proof: what is added between the questions is not left out."""
    cluster = FakeCluster()
    client = cluster.client()
    left, later = await client.create(), await client.create()
    await left.add(b"a")

    async def goes_on() -> None:
        await left.add(b"b")
        await later.add(b"c")

    cluster.before("lac", at_question(question, goes_on))
    reader = await client.open_no_recovery(left.ledger_id)
    assert await learn_end(client, reader, Segment(2, later.ledger_id, 0)) == end


class Untold(FakeReader):
    """Learns that its ledger is CLOSED only when it asks."""

    asked = False

    @property
    def closed(self) -> bool:
        return self.asked and super().closed

    async def read_last_stored(self) -> EntryId:
        self.asked = True
        return await super().read_last_stored()


async def test_a_reader_that_nobody_tells_learns_the_end_before_a_segment_that_stays_empty() -> (
    None
):
    cluster = FakeCluster()
    client = cluster.client()
    left, later = await client.create(), await client.create()
    await left.add(b"a")
    await left.close()
    await later.close()
    reader = Untold(cluster, cluster.ledger(left.ledger_id))
    assert await learn_end(client, reader, Segment(2, later.ledger_id, 0)) == 0


@pytest.mark.parametrize("question", [1, 2, 3, 4])
async def test_a_reader_that_looks_for_an_end_while_the_writer_switches_skips_nothing(
    question: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 0.01)
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    later = await next_segment_listed(client, log)

    async def goes_on() -> None:
        await log.append(b"b")
        await later.add(encode_batch(Columns([b"c"]), base_index=0, base_timestamp_ms=NOW_MS))

    cluster.before("lac", at_question(question, goes_on))
    async with await Log.tail("log", client=client) as reader:
        read = [(record.offset, record.value) async for record in reader.read_until(3)]
    assert read == [(0, b"a"), (1, b"b"), (2, b"c")]
    await log.abandon()


@pytest.mark.parametrize("question", [1, 2, 3])
async def test_a_tail_found_while_the_writer_switches_tells_no_txid_of_a_record_behind_it(
    question: int,
) -> None:
    """A later open segment is added only if the one before it is whole: else the two ends are
    of different moments, and the last txid may be that of a record behind the end."""
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    txids = {await offset_of(log, b"a", 1): 1}
    later = await next_segment_listed(client, log)

    async def goes_on() -> None:
        txids[await offset_of(log, b"b", 2)] = 2
        batch = encode_batch(Columns([b"c"], txids=[3]), base_index=0, base_timestamp_ms=NOW_MS)
        await later.add(batch)
        txids[2] = 3

    cluster.before("lac", at_question(question, goes_on))
    tail = await tail_of(client, "log")
    assert tail.last_txid == txids[tail.next_offset - 1]
    await log.abandon()


async def offset_of(log: Log, value: bytes, txid: int) -> int:
    return (await log.append(value, txid=txid)).offset


async def test_a_segment_sealed_by_a_roll_does_not_claim_the_txids_of_the_next() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client, settings=LogSettings(roll_records=2))
    closing, appended = asyncio.Event(), asyncio.Event()

    async def linger(ledger_id: LedgerId) -> None:
        if ledger_id == LedgerId(1):
            closing.set()
            await appended.wait()

    cluster.before("close", linger)
    await log.append(b"a", txid=1)
    await log.append(b"b")
    await closing.wait()
    await log.append(b"c", txid=7)
    appended.set()
    node = ManifestNode(client.store, "log")

    async def is_sealed() -> bool:
        return (await node.read())[0].segments[0].sealed is not None

    await eventually(is_sealed, "the first segment is sealed")
    sealed = (await node.read())[0].segments[0].sealed
    assert sealed is not None
    assert sealed.last_txid == 1
    await log.close()


async def test_a_segment_that_closes_as_a_read_of_it_times_out_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That nothing came in time says nothing of where it ends."""
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 0.01)
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    cluster.hold()
    log.append_async(b"b")
    await asyncio.sleep(0)
    honest = FakeReader.read_some

    async def read_some(self: FakeReader, first: int, **how: int) -> Sequence[FakeEntry]:
        entries = await honest(self, first, **how)
        if not entries and not self.closed:
            await client.recover(self.ledger_id)
        return entries

    monkeypatch.setattr(FakeReader, "read_some", read_some)
    async with await Log.tail("log", client=client) as reader:
        assert [record.value async for record in reader.read_until(2)] == [b"a", b"b"]
    await log.abandon()
