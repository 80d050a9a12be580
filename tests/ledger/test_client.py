"""Ledgers through the client: real gRPC and real machines, over bookies in memory."""

import asyncio
import gc

import pytest

from ledger import Digest, LedgerState, Quorum
from ledger.errors import (
    BookieUnavailable,
    EntryLost,
    EntryTooLarge,
    HandleClosed,
    InvalidQuorum,
    LedgerFenced,
    LogError,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryFailed,
    WrongPassword,
)
from ledger.ids import EntryId, LedgerId
from tests.ledger.local_bookies import local_bookies
from tests.waiting import PATIENCE_S, TEST_S


def payloads(count: int) -> list[bytes]:
    return [f"entry {i}".encode() for i in range(count)]


async def test_what_was_added_is_read_back_in_order_after_the_close() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        ids = await asyncio.gather(*(writer.add(p) for p in payloads(500)))
        assert ids == list(range(500))
        closed = await writer.close()
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 499)
        reader = await client.open(writer.ledger_id)
        entries = await reader.read(0, 499)
        assert [bytes(e.payload) for e in entries] == payloads(500)
        assert closed.length == entries[-1].length == sum(map(len, payloads(500)))


async def test_nothing_keeps_an_entry_alive_that_its_reader_has_dropped() -> None:
    """Also before garbage is looked for: the memory of an answer is to be used again at once."""
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.add(bytes(300_000))
        await writer.close()
        reader = await client.open(writer.ledger_id)
        gc.disable()
        try:
            [entry] = await reader.read_some(0)
            memory = entry.payload.obj
            assert isinstance(memory, bytearray)
            with pytest.raises(BufferError):
                memory.pop()
            del entry
            memory.pop()
        finally:
            gc.enable()


async def test_the_length_counts_every_entry_from_its_add_on() -> None:
    async with local_bookies() as cluster:
        writer = await (await cluster.client()).create()
        first = writer.add(b"abc")
        assert (writer.last_add_pushed, writer.length) == (0, 3)
        await first
        second = writer.add(b"de")
        assert (writer.last_add_pushed, writer.length) == (1, 5)
        await second
        assert (await writer.close()).length == writer.length == 5


@pytest.mark.parametrize("sizes", [(5, 3, 2), (4, 2, 2), (3, 1, 1)])
async def test_a_striped_ledger_reads_back_whole(sizes: tuple[int, int, int]) -> None:
    async with local_bookies(5) as cluster:
        client = await cluster.client()
        writer = await client.create(Quorum(*sizes))
        for payload in payloads(50):
            await writer.add(payload)
        tail = await client.open_no_recovery(writer.ledger_id)
        got = [await tail.read_some(i, wait_s=PATIENCE_S) for i in (0, 49)]
        assert bytes(got[0][0].payload) == b"entry 0"
        assert bytes(got[1][0].payload) == b"entry 49"
        await writer.close()
        reader = await client.open(writer.ledger_id)
        assert [bytes(e.payload) for e in await reader.read(0, 49)] == payloads(50)


async def test_a_tail_sees_each_entry_soon_after_it_was_confirmed_without_a_later_one() -> None:
    """The explicit LAC of an idle writer; no control records."""
    async with local_bookies() as cluster:
        client, other = await cluster.client(), await cluster.client()
        writer = await client.create()
        tail = await other.open_no_recovery(writer.ledger_id)
        for i, payload in enumerate(payloads(20)):
            waiting = asyncio.create_task(tail.read_some(i, wait_s=PATIENCE_S))
            await writer.add(payload)
            (entry,) = await waiting
            assert (entry.entry_id, bytes(entry.payload)) == (i, payload)
        assert writer.error is None


async def test_the_last_add_confirmed_is_found_although_one_bookie_lags() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        late = cluster.of(writer.metadata.last_fragment.bookies[0])
        late.storage.gate.clear()
        await writer.add(b"one")
        reader = await client.open_no_recovery(writer.ledger_id)
        while await reader.read_last_add_confirmed() < 0:
            pass  # the explicit LAC is on its way
        late.storage.gate.set()


async def test_with_too_few_bookies_the_last_add_confirmed_is_an_error() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        reader = await client.open_no_recovery(writer.ledger_id)
        await cluster.bookies[0].kill()
        assert await reader.read_last_add_confirmed() == -1
        await cluster.bookies[1].kill()
        with pytest.raises(BookieUnavailable, match=r"bookie-1.*too few") as caught:
            await reader.read_last_add_confirmed()
        assert caught.value.retryable


async def test_nothing_acknowledged_is_above_what_bookies_are_said_to_hold() -> None:
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        writer = await client.create()
        reader = await client.open_no_recovery(writer.ledger_id)
        assert await reader.read_last_stored() == -1
        late = cluster.of(writer.metadata.last_fragment.bookies[0])
        late.storage.gate.clear()
        await writer.add(b"zero")
        assert await reader.read_last_stored() == 0
        late.storage.gate.set()
        await late.kill()
        while writer.metadata.last_fragment.first_entry == 0:  # an ensemble change
            await writer.add(b"one")
        await cluster.of(writer.metadata.last_fragment.bookies[1]).kill()
        assert await reader.read_last_stored() == writer.last_add_confirmed
        await writer.abandon()


async def test_what_is_stored_is_told_before_it_is_confirmed_and_can_be_read_once_it_is() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        for bookie in cluster.bookies:
            bookie.storage.gate.clear()
        pending = [writer.add(b"%d" % i) for i in range(3)]
        reader = await client.open_no_recovery(writer.ledger_id)
        while await reader.read_last_stored() < 2:
            pass  # the adds are on their way
        assert reader.last_add_confirmed == -1
        reader.learn_confirmed(1)  # somebody can prove it
        assert [bytes(each.payload) for each in await reader.read_some(0)] == [b"0", b"1"]
        for bookie in cluster.bookies:
            bookie.storage.gate.set()
        await asyncio.gather(*pending)
        await writer.close()
        assert await reader.read_last_stored() == 2


async def test_a_tail_ends_when_the_ledger_is_closed() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.add(b"one")
        tail = await client.open_no_recovery(writer.ledger_id)
        waiting = asyncio.create_task(tail.read_some(1, wait_s=60))
        await writer.close()
        assert await waiting == []
        assert tail.closed
        assert tail.last_entry == 0


async def test_a_reader_learns_of_a_close_between_its_open_and_its_watch() -> None:
    """A writer's own close fences nothing: only the metadata tells."""
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        tail = await client.open_no_recovery(writer.ledger_id)
        await client.ledgers.write(writer.ledger_id, writer.metadata.closed(EntryId(-1), 0), 0)
        while not tail.closed:
            await tail.read_some(0, wait_s=0.01)


async def test_a_tail_of_a_deleted_ledger_is_told() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        tail = await client.open_no_recovery(writer.ledger_id)
        waiting = asyncio.create_task(tail.read_some(0, wait_s=60))
        await client.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedger):
            await waiting


async def test_a_read_that_begins_after_its_ledger_was_deleted_is_told_at_once() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        tail = await client.open_no_recovery(writer.ledger_id)
        waiting = asyncio.ensure_future(tail.read_some(0, wait_s=TEST_S))
        await client.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedger):
            await waiting
        with pytest.raises(NoSuchLedger):
            await tail.read_some(0)


async def test_a_cancelled_read_leaves_the_reader_usable() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        tail = await client.open_no_recovery(writer.ledger_id)
        waiting = asyncio.create_task(tail.read_some(0, wait_s=60))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await writer.add(b"one")
        assert len(await tail.read_some(0, wait_s=PATIENCE_S)) == 1


async def test_recovery_keeps_everything_acknowledged_and_stops_the_writer() -> None:
    async with local_bookies() as cluster:
        client, other = await cluster.client(), await cluster.client()
        writer = await client.create()
        for payload in payloads(30):
            await writer.add(payload)
        reader = await other.open(writer.ledger_id)
        assert reader.last_entry == 29
        assert [bytes(e.payload) for e in await reader.read(0, 29)] == payloads(30)
        with pytest.raises(LedgerFenced) as caught:
            await writer.add(b"too late")
        assert caught.value.outcome_unknown
        with pytest.raises(LedgerFenced):
            writer.add(b"far too late")
        with pytest.raises(LedgerFenced):
            await writer.close()


async def test_concurrent_recoverers_agree() -> None:
    """Rule 48."""
    async with local_bookies() as cluster:
        clients = [await cluster.client() for _ in range(4)]
        writer = await clients[0].create()
        await asyncio.gather(*(writer.add(p) for p in payloads(10)))
        pending = [writer.add(p) for p in payloads(50)]
        found = await asyncio.gather(*(c.recover(writer.ledger_id) for c in clients))
        await asyncio.gather(*pending, return_exceptions=True)
        assert len({(m.last_entry, m.length, m.fragments) for m in found}) == 1
        acknowledged = 9 + sum(1 for f in pending if f.exception() is None)
        assert (found[0].last_entry or 0) >= acknowledged


async def test_an_empty_ledger_recovers_to_nothing() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.abandon()
        metadata = await client.recover(writer.ledger_id)
        assert (metadata.last_entry, metadata.length) == (-1, 0)
        reader = await client.open(writer.ledger_id)
        assert await reader.read_some(0, wait_s=60) == []


async def test_a_killed_bookie_is_replaced_and_nothing_is_lost() -> None:
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await asyncio.gather(*(writer.add(p) for p in payloads(20)))
        victim = writer.metadata.last_fragment.bookies[1]
        await cluster.of(victim).kill()
        await asyncio.gather(*(writer.add(p) for p in payloads(20)))
        metadata = await writer.close()
        assert victim not in metadata.last_fragment.bookies
        reader = await client.open(writer.ledger_id)
        assert [bytes(e.payload) for e in await reader.read(0, 39)] == payloads(20) * 2


@pytest.mark.slow
async def test_without_a_spare_bookie_the_writer_goes_on_with_two_of_three() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.add(b"three copies")
        await cluster.bookies[0].kill()
        await asyncio.gather(*(writer.add(p) for p in payloads(20)))
        await cluster.bookies[1].kill()
        with pytest.raises(NotEnoughBookies) as missed:
            await writer.add(b"one copy is no promise")
        assert sorted(missed.value.failed) == ["bookie-0", "bookie-1"]
        assert missed.value.available == ("bookie-2",), "though the dead may be registered still"
        assert "2 bookies are needed for each entry, failed: " in str(missed.value)
        with pytest.raises(RecoveryFailed) as caught:
            await client.recover(writer.ledger_id)
        assert caught.value.retryable
        assert (await client.ledgers.read(writer.ledger_id))[0].state is (LedgerState.IN_RECOVERY)
        await cluster.bookies[0].start()
        reader = await client.open(writer.ledger_id)
        assert (reader.last_entry or 0) >= 20


async def test_a_password_is_needed_to_open_read_and_fence() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create(password=b"secret", digest=Digest.HMAC_SHA256)
        await writer.add(b"one")
        for call in (client.open, client.open_no_recovery, client.recover):
            with pytest.raises(WrongPassword):
                await call(writer.ledger_id, password=b"guess")
        await writer.add(b"the writer lives on")
        reader = await client.open(writer.ledger_id, password=b"secret")
        assert bytes((await reader.read(0, 1))[0].payload) == b"one"


async def test_too_few_bookies_are_named() -> None:
    async with local_bookies(2) as cluster:
        client = await cluster.client()
        with pytest.raises(NotEnoughBookies, match="3 bookies are needed") as caught:
            await client.create()
        assert caught.value.available == ("bookie-0", "bookie-1")
        with pytest.raises(InvalidQuorum):
            await client.create(Quorum(2, 2, 3))


async def test_bad_calls_are_refused_with_typed_errors() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        with pytest.raises(NoSuchLedger):
            await client.open_no_recovery(LedgerId(4711))
        with pytest.raises(NoSuchLedger):
            await client.recover(LedgerId(-1))
        writer = await client.create()
        with pytest.raises(EntryTooLarge):
            writer.add(bytes(18 * 1024 * 1024))
        await writer.close()
        with pytest.raises(HandleClosed):
            writer.add(b"after close")
        reader = await client.open(writer.ledger_id)
        with pytest.raises(EntryLost):
            await reader.read(0, 0)
        await reader.close()
        with pytest.raises(HandleClosed):
            await reader.read_some(0)
        assert [ledger_id async for ledger_id in client.list()] == [writer.ledger_id]


def test_errors_say_what_a_caller_may_do() -> None:
    assert not LogError.retryable
    assert NotEnoughBookies.retryable
    assert LedgerFenced.outcome_unknown
