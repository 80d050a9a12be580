"""A bookie stays registered whatever happens to its session (rule 79)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie.registering import Registrar
from ledger.errors import MetadataUnavailable
from ledger.metastore.memory import MemoryStore
from ledger.registry import BookieRegistration
from tests.ledger.serving import until

ANNA = BookieRegistration("anna", "127.0.0.1:1", "start 1")


class Watched:
    """The registrations as another process sees them."""

    def __init__(self) -> None:
        self.store = MemoryStore("memory://cluster", "cluster")
        self.other = MemoryStore("memory://cluster", "cluster")
        self.registrar = Registrar(self.store, ANNA)

    async def is_registered(self) -> bool:
        return await self.other.exists(ANNA.path) is not None

    async def until_registered(self, *, wanted: bool = True) -> None:
        async with asyncio.timeout(10):
            while await self.is_registered() is not wanted:  # noqa: ASYNC110 - any store
                await asyncio.sleep(0.01)


@asynccontextmanager
async def registered() -> AsyncIterator[Watched]:
    watched = Watched()
    await watched.registrar.start()
    try:
        yield watched
    finally:
        await watched.registrar.close()


def test_closing_takes_the_registration_back() -> None:
    async def scenario() -> None:
        async with registered() as watched:
            assert await watched.is_registered()
            await watched.registrar.close()
            assert not await watched.is_registered()

    asyncio.run(scenario())


def test_it_registers_again_after_its_session_ended() -> None:
    async def scenario() -> None:
        async with registered() as watched:
            watched.store.expire()
            assert not await watched.is_registered()
            await watched.until_registered()

    asyncio.run(scenario())


def test_it_registers_again_after_its_node_vanished() -> None:
    async def scenario() -> None:
        async with registered() as watched:
            await watched.other.delete(ANNA.path)
            await watched.until_registered()

    asyncio.run(scenario())


def test_it_registers_again_after_the_store_was_out_of_reach() -> None:
    async def scenario() -> None:
        async with registered() as watched:
            watched.store.cut()
            lost = watched.store.session
            assert lost.lost.is_set()
            watched.store.heal()
            await until(lambda: watched.store.session is not lost)
            await watched.until_registered()

    asyncio.run(scenario())


def test_a_store_out_of_reach_does_not_hold_up_the_end() -> None:
    async def scenario() -> None:
        async with registered() as watched:
            watched.store.cut()
            async with asyncio.timeout(5):
                await watched.registrar.close()
            watched.store.heal()

    asyncio.run(scenario())


def test_a_first_registration_that_fails_is_told() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.store.cut()
        with pytest.raises(MetadataUnavailable):
            await watched.registrar.start()
        await watched.registrar.close()

    asyncio.run(scenario())
