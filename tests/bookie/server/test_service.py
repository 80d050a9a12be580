"""The threads of a bookie: one per journal, one for checkpoints, and what they do without space."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from bookie.server import core
from bookie.server.core import Ack
from bookie.server.limits import ServiceConfig
from bookie.server.service import AddStream, BookieService
from ledger.requests import AddRun, HeldQuery, InfoAnswer, LacQuery, Status
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.waiting import PATIENCE_S, until


class Client:
    """A stream and the acks that it got, as batch numbers."""

    def __init__(self, service: BookieService) -> None:
        self.stream: AddStream = service.stream(self._collect)
        self.acked: list[Ack] = []
        self.batches = 0

    def offer(self, *runs: AddRun) -> None:
        self.take(*runs)
        self.stream.commit(time.perf_counter())

    def take(self, *runs: AddRun) -> None:
        """Offer a batch behind which more are to come."""
        self.batches += 1
        self.stream.offer(self.batches, runs)

    async def acks(self) -> list[Ack]:
        """Wait until all that was offered is answered; return the answers."""
        await until(lambda: bool(self.acked) and self.acked[-1].last == self.batches)
        return self.acked

    def _collect(self) -> None:
        self.acked += self.stream.session.acks()


@asynccontextmanager
async def served(
    storage: MemoryStorage, config: ServiceConfig | None = None
) -> AsyncIterator[tuple[BookieService, Client]]:
    info = InfoAnswer("anna", "start 1", "instance 1", read_only=False)
    service = BookieService(storage, info, config or ServiceConfig())
    client = Client(service)
    try:
        yield service, client
    finally:
        open_all(storage)
        client.stream.close()
        await service.close()


def open_all(storage: MemoryStorage) -> None:
    for gate in storage.gates:
        gate.set()


def runs(ledgers: Iterable[int], entry_id: int = 0) -> list[AddRun]:
    return [run_of(entry_id, ledger_id=ledger_id) for ledger_id in ledgers]


async def test_each_journal_has_a_thread_of_its_own() -> None:
    storage = MemoryStorage(journals=3)
    async with served(storage) as (_, client):
        storage.gates[1].clear()
        client.offer(*runs([0]))
        await client.acks()
        client.offer(*runs([1]))
        client.offer(*runs([0, 2], entry_id=1))
        await until(lambda: not storage.has_pending(0) and not storage.has_pending(2))
        assert storage.has_pending(1)
        assert client.acked == [Ack(1, 1)], "an answer waits for all that came before it"
        storage.gates[1].set()
        assert (await client.acks())[-1].last == 3


async def test_a_fence_in_one_journal_is_answered_when_it_is_durable() -> None:
    storage = MemoryStorage(journals=2)
    async with served(storage) as (service, _):
        storage.gates[1].clear()
        fencing = asyncio.ensure_future(service.read_lac(LacQuery(1, KEY, fence=True)))
        await until(lambda: storage.has_pending(1))
        other = asyncio.ensure_future(service.read_lac(LacQuery(2, KEY, fence=True)))
        await until(lambda: not storage.has_pending(0))
        assert not fencing.done()
        storage.gates[1].set()
        assert (await fencing).fenced
        assert (await other).fenced


async def test_a_list_waits_for_every_journal_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage(journals=2)
    async with served(storage) as (service, client):
        storage.gates[1].clear()
        client.offer(*runs([0, 1]))
        listing = asyncio.ensure_future(service.read_held(HeldQuery(0, KEY, 0, 9)))
        await until(lambda: not storage.has_pending(0) and bool(service._until_durable))
        assert not listing.done()
        storage.gates[1].set()
        assert (await listing).status is Status.OK
        storage.gates[1].clear()
        client.offer(*runs([1], entry_id=1))
        monkeypatch.setattr(core, "HELD_WAIT_S", 0.0)
        refused = await service.read_held(HeldQuery(0, KEY, 0, 9))
        assert refused.status is Status.TOO_MANY_REQUESTS
        assert not service._until_durable


async def test_a_stop_commits_what_is_queued_in_every_journal_before_the_last_checkpoint() -> None:
    class Ordered(MemoryStorage):
        def checkpoint(self) -> None:
            super().checkpoint()
            self.pending_at_last = [self.has_pending(journal) for journal in range(3)]

    storage = Ordered(journals=3)
    async with served(storage) as (_, client):
        client.offer(*runs(range(6)))
    assert storage.closed
    assert storage.pending_at_last == [False] * 3


async def test_what_a_stopping_bookie_still_takes_is_answered() -> None:
    """Streams end a moment after the stop began, and each answers what it took until then."""
    async with served(MemoryStorage()) as (service, client):
        service.stop_taking()
        for entry_id in range(3):
            client.offer(*runs([0], entry_id=entry_id))
            await client.acks()
        fencing = await service.read_lac(LacQuery(1, KEY, fence=True))
        assert fencing.fenced


async def test_the_last_checkpoint_waits_for_the_slowest_journal() -> None:
    class Ordered(MemoryStorage):
        def checkpoint(self) -> None:
            super().checkpoint()
            self.pending_at_last = self.has_pending(1)

    storage = Ordered(journals=2)
    async with served(storage, ServiceConfig(checkpoint_interval_s=0.01)) as (service, client):
        storage.gates[1].clear()
        client.offer(*runs([0, 1]))
        await until(lambda: not storage.has_pending(0))
        service.stop_taking()
        closing = asyncio.ensure_future(service.close())
        checkpoints = storage.checkpoints
        await until(lambda: storage.checkpoints >= checkpoints + 5)
        assert not closing.done()
        open_all(storage)
        await closing
        assert not storage.pending_at_last


async def test_one_journal_that_fails_ends_them_all() -> None:
    storage = MemoryStorage(journals=2)
    async with served(storage) as (service, client):
        storage.gates[0].clear()
        client.offer(*runs([0]))
        storage.commit_error = OSError("broken")
        client.offer(*runs([1]))
        async with asyncio.timeout(PATIENCE_S):
            assert "broken" in str(await service.failure)
        open_all(storage)
    assert client.acked == []
    assert not storage.closed


async def test_what_finds_no_space_is_kept_and_done_when_there_is_some() -> None:
    storage = MemoryStorage()
    storage.full = storage.read_only = True
    async with served(storage) as (service, client):
        assert service.info.read_only
        client.offer(run_of(0))
        client.offer(run_of(0, recovery=True))
        await until(lambda: storage.commits >= 3)
        assert [ack.statuses for ack in client.acked] == [(Status.READ_ONLY,)]
        storage.full = storage.read_only = False
        assert (await client.acks())[-1] == Ack(2, 2)
        assert not service.info.read_only


@pytest.mark.slow
async def test_an_idle_journal_looks_for_space_while_the_storage_is_read_only() -> None:
    """Nothing is added to it then, so nothing else would find the space."""
    storage = MemoryStorage(journals=2)
    storage.read_only = True
    async with served(storage):
        await until(lambda: storage.commits >= 6)
        storage.read_only = False


async def test_a_full_disk_does_not_hold_up_a_stop() -> None:
    storage = MemoryStorage()
    storage.full = storage.read_only = True
    async with asyncio.timeout(PATIENCE_S):
        async with served(storage) as (_, client):
            client.offer(run_of(0, recovery=True))
            await until(lambda: storage.commits >= 1)
    assert client.acked == [], "what is not durable is not acknowledged"
    assert storage.closed


async def test_a_checkpoint_comes_soon_when_there_may_be_space() -> None:
    storage = MemoryStorage()
    async with served(storage, ServiceConfig(checkpoint_interval_s=1000)) as (service, _):
        assert storage.checkpoints == 0
        service.checkpoint_soon()
        await until(lambda: storage.checkpoints == 1)
