"""Which groups the event loop commits, and that nothing is forgotten between it and a thread."""

import asyncio
import threading

import pytest

from bookie.server import service as service_module
from bookie.server.core import Ack
from bookie.server.service import (
    FAST_S,
    HERE_BYTES_MAX,
    HUNG_S,
    SHARES,
    SLOW_MAX,
    TIMES,
    TOGETHER_S,
    BookieService,
    CommitMoment,
    CommitPlace,
)
from ledger.errors import StorageError
from ledger.requests import LacQuery, ReadQuery
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.bookie.server.test_service import Client, runs, served
from tests.waiting import until

QUICK_S = FAST_S / 2


def place_after(*times: float, journals: int = 1) -> CommitPlace:
    place = CommitPlace(journals)
    for time in times:
        place.took(time)
    return place


def test_little_is_committed_on_the_loop_of_a_bookie_whose_disk_is_fast() -> None:
    place = place_after(*[QUICK_S] * TIMES)
    assert place.is_here(0)
    assert place.is_here(HERE_BYTES_MAX)
    assert not place.is_here(HERE_BYTES_MAX + 1)


def test_a_disk_that_is_not_known_is_not_waited_for() -> None:
    assert not place_after(*[QUICK_S] * (TIMES - 1)).is_here(0)


def test_a_disk_that_is_slow_every_tenth_time_is_slow() -> None:
    slow, fast = [FAST_S] * SLOW_MAX, [QUICK_S] * (TIMES - SLOW_MAX)
    assert place_after(*slow, *fast).is_here(0)
    assert not place_after(*slow, FAST_S, *fast[1:]).is_here(0)


def test_what_was_slow_long_ago_does_not_count() -> None:
    place = place_after(*[FAST_S] * TIMES, *[QUICK_S] * (TIMES - SLOW_MAX - 1))
    assert not place.is_here(0)
    place.took(QUICK_S)
    assert place.is_here(0)


def test_a_disk_that_hung_is_left_to_the_thread_until_it_was_fast_for_long() -> None:
    place = place_after(*[QUICK_S] * TIMES, HUNG_S)
    assert not place.is_here(0)
    for _ in range(TIMES - 1):
        place.took(QUICK_S)
        assert not place.is_here(0)
    place.took(QUICK_S)
    assert place.is_here(0)


def test_of_several_journals_none_waits_for_another() -> None:
    assert not place_after(*[QUICK_S] * TIMES, journals=2).is_here(0)


def test_a_client_that_is_alone_never_waits_for_others() -> None:
    moment = CommitMoment()
    for at in range(3):
        assert moment.is_now("anna", now=at)
        moment.committed("anna", ended=at, others=False)
        assert moment.is_now("anna", now=at + TOGETHER_S / 2)
        moment.committed(None, ended=at + TOGETHER_S / 2, others=False)  # a fence, a large group


def test_clients_that_come_at_times_of_their_own_wait_for_nobody() -> None:
    moment = CommitMoment()
    moment.committed("anna", ended=1.0, others=False)
    assert moment.is_now("bert", now=1.0 + 2 * TOGETHER_S)


def test_clients_that_came_together_wait_for_each_other_until_none_has_come_for_long() -> None:
    moment = CommitMoment()
    moment.committed("anna", ended=1.0, others=False)
    assert not moment.is_now("bert", now=1.0 + TOGETHER_S / 2)
    for _ in range(SHARES - 1):
        moment.committed("bert", ended=2.0, others=False)
        assert not moment.is_now("anna", now=3.0)
    moment.committed("bert", ended=2.0, others=True)
    for _ in range(SHARES):
        assert not moment.is_now("bert", now=3.0)
        moment.committed("bert", ended=2.0, others=False)
    assert moment.is_now("bert", now=3.0)


class Watched(MemoryStorage):
    """Knows which threads commit."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def commit(self, journal: int = 0) -> int:
        self.threads.append(threading.get_ident())
        return super().commit(journal)


def found_fast(service: BookieService) -> None:
    """Let the service know that the disk is fast."""
    for _ in range(TIMES):
        service._place.took(QUICK_S)


async def test_a_lone_add_and_a_fence_wake_no_thread() -> None:
    storage = Watched()
    async with served(storage) as (service, client):
        found_fast(service)
        client.take(*runs([1]))
        client.offer(*runs([2]))
        assert client.acked == [Ack(1, 2)], "it was answered in the turn that took it"
        assert storage.threads == [threading.get_ident()], "one commit for what came together"
        found_fast(service)
        assert (await service.read_lac(LacQuery(1, KEY, fence=True))).fenced
        assert storage.threads == [threading.get_ident()] * 2
        assert not any(wake.is_set() for wake in service._journal_wakes)


async def test_adds_of_clients_that_come_together_are_one_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "TOGETHER_S", 3600.0)
    storage = Watched()
    async with served(storage) as (service, anna):
        bert = Client(service)
        found_fast(service)
        anna.offer(*runs([1]))
        assert storage.commits == 1, "nobody had come with it yet"
        for entry_id in (1, 2):
            bert.offer(*runs([2], entry_id))
            anna.offer(*runs([1], entry_id))
            assert storage.commits == entry_id
            await anna.acks()
            await bert.acks()
            assert storage.commits == entry_id + 1
        assert set(storage.threads) == {threading.get_ident()}
        bert.stream.close()


async def test_who_waits_for_an_entry_is_told_of_it_by_the_turn_that_commits_it() -> None:
    storage = MemoryStorage()
    async with served(storage) as (service, client):
        found_fast(service)
        client.offer(run_of(0, ledger_id=1))
        waiting = asyncio.ensure_future(service.read(ReadQuery(1, KEY, 0, 0, wait_ms=60_000)))
        await until(lambda: bool(service._until_changed))
        client.offer(run_of(1, ledger_id=1, lac=0))
        assert list((await waiting).entries) == [0]


async def test_what_comes_while_the_thread_commits_is_committed_after_that() -> None:
    storage = Watched()
    async with served(storage) as (service, client):
        storage.gate.clear()
        client.offer(*runs([1]))
        await until(lambda: storage.commits_begun == 1)
        found_fast(service)
        client.offer(*runs([2]))
        await until(service._journal_wakes[0].is_set)  # the loop does not wait for it
        storage.gate.set()
        await client.acks()
        assert storage.commits >= 2
        assert threading.get_ident() not in storage.threads


async def test_a_failure_on_the_loop_ends_the_bookie() -> None:
    storage = MemoryStorage()
    async with served(storage) as (service, client):
        found_fast(service)
        storage.commit_error = StorageError("broken")
        client.offer(*runs([1]))
        await until(service.failure.done)
        assert "broken" in str(service.failure.result())
        assert client.acked == []


async def test_a_storage_without_space_is_the_threads() -> None:
    storage = Watched()
    async with served(storage) as (service, client):
        found_fast(service)
        storage.read_only = True
        client.offer(*runs([1]))
        await client.acks()
        assert threading.get_ident() not in storage.threads


async def test_clients_that_come_together_share_a_commit_however_long_their_adds_take_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1.0

    def clock() -> float:
        return now

    monkeypatch.setattr("bookie.server.service.time.perf_counter", clock)
    storage = MemoryStorage()
    async with served(storage) as (service, anna):
        bert = Client(service)
        found_fast(service)
        anna.offer(*runs([1]))
        assert storage.commits == 1
        began = now + TOGETHER_S / 2
        bert.take(*runs([2, 3, 4]))
        now += 3 * TOGETHER_S
        bert.stream.commit(began)
        assert storage.commits == 1, "others may come in this turn"
        await bert.acks()
        bert.stream.close()


async def test_the_thread_looks_for_space_after_the_loop_found_none() -> None:
    """Nothing is added then, so nothing else would find the space."""

    class Full(Watched):
        def commit(self, journal: int = 0) -> int:
            self.read_only = True
            return super().commit(journal)

    storage = Full()
    async with served(storage) as (service, client):
        found_fast(service)
        client.offer(*runs([1]))
        assert storage.threads[0] == threading.get_ident()
        await until(lambda: len(set(storage.threads)) == 2)
