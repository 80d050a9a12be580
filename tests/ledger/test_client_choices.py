"""What a caller chooses or meets at the edges: room, racks, delayed changes, deletion."""

import asyncio
import logging
from dataclasses import replace
from traceback import extract_tb

import pytest

from ledger import Quorum
from ledger.errors import (
    EntryLost,
    HandleClosed,
    LogError,
    NoSuchLedger,
    NotEnoughBookies,
    TooManyPending,
)
from ledger.metadata import LedgerState
from ledger.protocol.answers import Fault
from ledger.protocol.placement import RandomPlacement
from ledger.protocol.writer_events import SendAdds
from ledger.requests import Status
from tests.ledger.local_bookies import LocalBookies, local_bookies
from tests.patience import PATIENT
from tests.waiting import TEST_S, settled, until

SMALL = replace(PATIENT, pending_bytes_max=1024)


def hold(cluster: LocalBookies, *, held: bool) -> None:
    """Let bookies take adds and, while *held*, acknowledge none."""
    for bookie in cluster.bookies:
        if held:
            bookie.storage.gate.clear()
        else:
            bookie.storage.gate.set()


async def test_a_writer_holds_so_much_and_says_when_there_is_room_again() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client(SMALL)
        writer = await client.create()
        await writer.ready()
        hold(cluster, held=True)
        pending = [writer.add(b"") for _ in range(4)]  # small ones count as 256 bytes
        with pytest.raises(TooManyPending) as caught:
            writer.add(b"five")
        assert caught.value.retryable
        assert writer.pending_bytes == 1024
        ready = asyncio.create_task(writer.ready())
        await settled()
        assert not ready.done()
        hold(cluster, held=False)
        await ready
        await writer.add(b"five")
        assert await asyncio.gather(*pending) == [0, 1, 2, 3]
        assert writer.pending_bytes == 0


async def test_who_waits_for_room_learns_that_the_writer_is_over() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client(SMALL)
        writer, other = await client.create(), await client.create()
        hold(cluster, held=True)
        for handle in (writer, other):
            handle.add(bytes(2000))
        waiting = [asyncio.create_task(handle.ready()) for handle in (writer, other)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(writer.close())
        await other.abandon()
        for task in waiting:
            with pytest.raises(HandleClosed):
                await task
        hold(cluster, held=False)
        assert (await closing).last_entry == 0


async def test_adds_that_a_writer_leaves_behind_have_an_unknown_outcome_whatever_ended_it() -> None:
    """Rule 10: an error that says "nothing has happened" would make its caller add it twice."""
    async with local_bookies() as cluster:
        client = await cluster.client(SMALL)
        writer, abandoned = await client.create(), await client.create()
        hold(cluster, held=True)
        left = abandoned.add(b"kept by a recovery, or not")
        await abandoned.abandon()
        with pytest.raises(HandleClosed) as closed:
            await left
        assert closed.value.outcome_unknown
        left = writer.add(b"on one bookie of three")
        for bookie in cluster.bookies[:2]:
            await bookie.kill()
        with pytest.raises(NotEnoughBookies) as failed:
            await left
        assert failed.value.outcome_unknown
        with pytest.raises(NotEnoughBookies) as refused:
            writer.add(b"not even tried")
        assert not refused.value.outcome_unknown
        hold(cluster, held=False)


async def test_who_adds_again_and_again_to_a_writer_that_is_over_costs_no_memory() -> None:
    async with local_bookies() as cluster:
        writer = await (await cluster.client()).create()
        await writer.abandon()
        for _ in range(100):
            with pytest.raises(HandleClosed):
                writer.add(b"never")
        assert writer.error is not None
        assert len(extract_tb(writer.error.__traceback__)) < 10


async def test_a_second_close_waits_for_the_first() -> None:
    """#1712, #1889."""
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        hold(cluster, held=True)
        pending = writer.add(b"one")
        first = asyncio.create_task(writer.close())
        second = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        first.cancel()  # whoever stops waiting takes nothing from the other
        hold(cluster, held=False)
        closed = await second
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 0)
        assert await pending == 0
        assert await writer.close() == closed


async def test_unconfirmed_entries_are_read_only_by_name() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        hold(cluster, held=True)
        pending = [writer.add(b"%d" % i) for i in range(5)]
        ledger_id = writer.ledger_id
        await until(lambda: all(4 in b.storage.ledgers.get(ledger_id, {}) for b in cluster.bookies))
        reader = await client.open_no_recovery(ledger_id)
        with pytest.raises(EntryLost, match="not confirmed"):
            await reader.read(0, 0)
        found = await reader.read_unconfirmed(0, 9)
        assert [bytes(entry.payload) for entry in found] == [b"0", b"1", b"2", b"3", b"4"]
        assert reader.last_add_confirmed == -1
        hold(cluster, held=False)
        await asyncio.gather(*pending)


def test_a_missing_replica_is_read_elsewhere_and_hinted_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with local_bookies() as cluster, asyncio.timeout(TEST_S):
            client = await cluster.client()
            writer = await client.create()
            for i in range(3):
                await writer.add(b"%d" % i)
            await writer.close()
            first = writer.metadata.last_fragment.bookies[0]
            await until(lambda: 2 in cluster.of(first).storage.ledgers[writer.ledger_id])
            del cluster.of(first).storage.ledgers[writer.ledger_id][0]
            reader = await client.open(writer.ledger_id)
            assert len(await reader.read(0, 2)) == 3
            assert reader.repair_hints == {(first, Fault.MISSING): 1}

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    (told,) = (r for r in caplog.records if "replica_wants_repair" in r.getMessage())
    assert told.levelno == logging.INFO  # it may only be behind: the ack quorum did not wait


async def test_ensembles_and_replacements_span_the_racks_that_bookies_registered() -> None:
    async with local_bookies(0) as cluster:
        racks = {(await cluster.add(rack)).name: rack for rack in ("r1", "r2", "r2", "r1")}
        client = await cluster.client()
        for _ in range(5):
            writer = await client.create(Quorum(2, 2, 1))
            names = writer.metadata.last_fragment.bookies
            assert {racks[name] for name in names} == {"r1", "r2"}
            await writer.close()
        writer = await client.create(Quorum(2, 2, 1))
        victim, stays = writer.metadata.last_fragment.bookies
        await cluster.of(victim).kill()
        while victim in writer.metadata.last_fragment.bookies:
            await writer.add(b"until it is replaced")
        names = writer.metadata.last_fragment.bookies
        assert stays in names
        assert {racks[name] for name in names} == {"r1", "r2"}


async def test_a_client_that_wants_random_ensembles_gets_them() -> None:
    async with local_bookies(0) as cluster:
        racks = {(await cluster.add(rack)).name: rack for rack in ("r1", "r1", "r1", "r2")}
        client = await cluster.client(replace(PATIENT, placement=RandomPlacement()))
        spans = set[int]()
        while len(spans) < 2:
            writer = await client.create(Quorum(2, 2, 1))
            names = writer.metadata.last_fragment.bookies
            spans.add(len({racks[name] for name in names}))


async def test_with_delayed_changes_a_killed_bookie_stays_in_the_ensemble() -> None:
    config = replace(PATIENT, delay_ensemble_change=True)
    async with local_bookies(4) as cluster:
        client = await cluster.client(config)
        writer = await client.create()
        await writer.add(b"one")
        first = writer.metadata.last_fragment.bookies[0]
        await cluster.of(first).kill()
        await asyncio.gather(*(writer.add(b"%d" % i) for i in range(20)))
        metadata = await writer.close()
        assert [fragment.first_entry for fragment in metadata.fragments] == [0]
        assert first in metadata.last_fragment.bookies
        reader = await client.open(writer.ledger_id)
        assert len(await reader.read(0, 20)) == 21


async def test_a_writer_whose_ledger_was_deleted_fails_and_brings_nothing_back() -> None:
    async with local_bookies(4) as cluster:
        client, other = await cluster.client(), await cluster.client()
        writer, closing = await client.create(), await client.create()
        await writer.add(b"one")
        await closing.add(b"one")
        for handle in (writer, closing):
            await other.delete(handle.ledger_id)
        with pytest.raises(NoSuchLedger):
            await closing.close()
        await cluster.of(writer.metadata.last_fragment.bookies[0]).kill()
        error: LogError | None = None
        while error is None:
            try:
                await writer.add(b"the ensemble change finds out")
            except LogError as failed:
                error = failed
        assert isinstance(error, NoSuchLedger)
        with pytest.raises(NoSuchLedger):
            writer.add(b"too late")
        with pytest.raises(NoSuchLedger):
            await writer.close()
        for handle in (writer, closing):
            with pytest.raises(NoSuchLedger):
                await other.recover(handle.ledger_id)
        assert [ledger_id async for ledger_id in other.list()] == []
        successor = await client.create()
        assert successor.ledger_id > max(writer.ledger_id, closing.ledger_id)


async def test_a_recovery_of_a_ledger_that_is_deleted_meanwhile_brings_nothing_back() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.add(b"one")
        hold(cluster, held=True)
        recovering = asyncio.create_task(client.recover(writer.ledger_id))
        fenced = [bookie.storage.fenced for bookie in cluster.bookies]
        await until(lambda: all(writer.ledger_id in each for each in fenced))
        await client.delete(writer.ledger_id)
        hold(cluster, held=False)
        with pytest.raises(NoSuchLedger):
            await recovering
        assert [ledger_id async for ledger_id in client.list()] == []


async def test_a_late_failure_of_a_replaced_bookie_does_not_speak_against_its_successor() -> None:
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.add(b"one")
        victim = writer.metadata.last_fragment.bookies[0]
        await cluster.of(victim).kill()
        while victim in writer.metadata.last_fragment.bookies:
            await writer.add(b"until it is replaced")
        writer.on_answer(SendAdds(0, victim, 0, 1, 1), Status.UNREACHABLE)
        assert client._environment.quarantined() == (victim,)
        await writer.add(b"the writer goes on")


@pytest.mark.slow
async def test_a_bookie_that_hangs_in_a_recovery_is_replaced_however_much_was_found_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it goes to the new one, and more than fits a message goes in several."""
    mebibyte = 1024 * 1024
    monkeypatch.setattr("ledger.transport.sockets.MESSAGE_BYTES_MAX", 6 * mebibyte)

    async with local_bookies(2) as cluster:
        slow = await cluster.client(PATIENT)
        writer = await slow.create(Quorum(2, 2, 2))
        hanging, other = cluster.bookies
        hanging.storage.gate.clear()
        adds = [writer.add(bytes(mebibyte)) for _ in range(12)]
        await until(lambda: 11 in other.storage.ledgers.get(writer.ledger_id, {}))
        await writer.abandon()
        assert not any(add.exception() is None for add in adds)
        await cluster.add()
        impatient = await cluster.client(replace(PATIENT, bookie_timeout_s=2))
        closed = await impatient.recover(writer.ledger_id)
        assert closed.last_entry == 11
        assert hanging.name not in closed.last_fragment.bookies
        hanging.storage.gate.set()
