"""What a bookie says, and what it never does again, once its storage has failed."""

import asyncio
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from bookie.server.service import BookieService
from ledger.errors import StorageError
from ledger.requests import HeldQuery, LacQuery, ReadQuery, Status
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY
from tests.bookie.server.test_service import Client, runs, served
from tests.waiting import PATIENCE_S, settled


def broken(*_: object) -> NoReturn:
    raise StorageError("the disk is broken")


def within(scenario: Callable[[MemoryStorage, BookieService, Client], object]) -> None:
    async def run() -> None:
        storage = MemoryStorage()
        async with served(storage) as (service, client):
            client.offer(*runs([0]))
            await client.acks()
            result = scenario(storage, service, client)
            if asyncio.iscoroutine(result):
                await result

    asyncio.run(run())


def test_a_read_that_fails_is_an_error_and_never_an_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(storage: MemoryStorage, service: BookieService, _: Client) -> None:
        monkeypatch.setattr(storage, "read_recent", broken)
        monkeypatch.setattr(storage, "lac", broken)
        answer = await service.read(ReadQuery(0, KEY, 0, 0))
        assert (answer.status, answer.considered) == (Status.IO_ERROR, -1)
        monkeypatch.setattr(storage, "held", broken)
        held = await service.read_held(HeldQuery(0, KEY, 0, 0))
        assert (held.status, held.considered) == (Status.IO_ERROR, -1)
        lac = await service.read_lac(LacQuery(0, KEY))
        assert (lac.status, lac.fenced) == (Status.IO_ERROR, False)

    within(scenario)


def test_an_add_that_breaks_the_storage_ends_the_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds then is not known, so nothing may be committed on top of it."""

    def scenario(storage: MemoryStorage, service: BookieService, client: Client) -> None:
        monkeypatch.setattr(storage, "add", broken)
        with pytest.raises(StorageError):
            client.offer(*runs([1]))
        assert isinstance(service.failure.result(), StorageError)

    within(scenario)


def test_a_deletion_that_breaks_the_storage_ends_the_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(storage: MemoryStorage, service: BookieService, _: Client) -> None:
        monkeypatch.setattr(storage, "delete", broken)
        with pytest.raises(StorageError):
            await service.delete([0])
        assert isinstance(service.failure.result(), StorageError)

    within(scenario)


def test_nothing_is_acknowledged_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit may come to its end when another journal has failed already."""

    async def scenario(storage: MemoryStorage, service: BookieService, client: Client) -> None:
        committing, honest = threading.Event(), storage.commit

        def commit(journal: int = 0) -> int:
            committing.set()
            return honest(journal)

        monkeypatch.setattr(storage, "commit", commit)
        storage.gate.clear()
        client.offer(*runs([1]))
        assert await asyncio.to_thread(committing.wait, PATIENCE_S)
        acked = list(client.acked)
        service.fail(StorageError("the disk is broken"))
        storage.gate.set()
        await asyncio.wait(service._journals)
        await settled()  # an acknowledgement would take a few turns of the loop
        assert client.acked == acked

    within(scenario)
