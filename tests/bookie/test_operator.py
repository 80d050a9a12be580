"""What an operator can ask of a running bookie, over the wire."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie.directories import Directories
from bookie.disk_watch import DiskLimits
from bookie.operator_service import OperatorService
from bookie.read_only import ReadOnlyKeeper
from bookie.server import BookieServer
from bookie.service import BookieService, ServiceConfig
from bookie.storage import BookieStorage
from ledger.errors import BookieRefused, BookieUnavailable
from ledger.requests import InfoAnswer, Status
from ledger.transport.operator import BookieOperator
from tests.bookie.promises import SMALL
from tests.bookie.runs import run_of
from tests.ledger.serving import BOOKIE, add, refused_address, silent_server, transport_to
from tests.simulation.disk import SimDisk


class Operated:
    """A bookie on simulated disks: a main one that is also a journal, and two for ledgers."""

    def __init__(self) -> None:
        self.main, self.ledgers = SimDisk(0), [SimDisk(1), SimDisk(2)]
        self.directories = Directories(self.main, (self.main,), tuple(self.ledgers))
        self.storage = BookieStorage.open(self.directories, SMALL)
        info = InfoAnswer(BOOKIE, "start 1", "instance 1", read_only=False)
        self.service = BookieService(self.storage, info, ServiceConfig())
        self.keeper = ReadOnlyKeeper(self.storage, self.directories, DiskLimits(reserve_bytes=0))
        self.server = BookieServer()
        self.address = f"127.0.0.1:{self.server.bind('127.0.0.1', 0)}"
        self.keeper.look()

    async def start(self) -> None:
        operator = OperatorService(self.service, self.storage, self.keeper, address=self.address)
        await self.server.start(self.service, operator)

    async def stop(self) -> None:
        await self.server.stop()
        await self.service.close()


@asynccontextmanager
async def operated() -> AsyncIterator[tuple[Operated, BookieOperator]]:
    bookie = Operated()
    await bookie.start()
    try:
        async with BookieOperator(bookie.address, bookie=BOOKIE) as operator:
            yield bookie, operator
    finally:
        await bookie.stop()


def test_it_tells_who_it_is_and_how_it_is() -> None:
    async def scenario() -> None:
        async with operated() as (bookie, operator):
            status = await operator.status()
            assert (status.bookie, status.incarnation) == (BOOKIE, "start 1")
            assert (status.instance, status.address) == ("instance 1", bookie.address)
            assert status.version
            assert status.uptime_s >= 0
            assert not status.read_only
            assert [usage.place for usage in status.directories] == [
                "main, journal 0 of 1", "ledger 0 of 2", "ledger 1 of 2",
            ]  # fmt: skip
            assert all(usage.total_bytes >= usage.free_bytes > 0 for usage in status.directories)

    asyncio.run(scenario())


def test_it_becomes_read_only_and_writable_again_at_an_operators_word() -> None:
    async def scenario() -> None:
        async with operated() as (bookie, operator), transport_to(bookie.address) as transport:
            assert await add(transport, run_of(0)) is Status.OK
            told = await operator.set_read_only(read_only=True)
            assert told.read_only
            assert list(told.reasons) == ["an operator said so"]
            assert await add(transport, run_of(1)) is Status.READ_ONLY
            assert await add(transport, run_of(1, recovery=True)) is Status.OK
            info = await transport.info(BOOKIE)
            assert info is not None
            assert info.read_only
            assert list((await operator.status()).reasons) == ["an operator said so"]
            told = await operator.set_read_only(read_only=False)
            assert not told.read_only
            assert await add(transport, run_of(2)) is Status.OK

    asyncio.run(scenario())


def test_an_order_that_cannot_be_kept_is_refused_with_its_reason() -> None:
    async def scenario() -> None:
        async with operated() as (bookie, operator):
            bookie.main.fail("create", "readonly")
            with pytest.raises(BookieRefused, match="the order cannot be kept"):
                await operator.set_read_only(read_only=True)
            assert not (await operator.status()).read_only

    asyncio.run(scenario())


def test_another_bookie_than_the_one_meant_refuses_every_order() -> None:
    async def scenario() -> None:
        async with operated() as (bookie, _), BookieOperator(bookie.address, bookie="b2") as wrong:
            for order in (wrong.status(), wrong.set_read_only(read_only=True)):
                with pytest.raises(BookieRefused, match=f"here is bookie {BOOKIE}"):
                    await order
            assert not bookie.storage.read_only

    asyncio.run(scenario())


def test_a_bookie_that_is_not_there_or_silent_is_told_in_time() -> None:
    async def scenario() -> None:
        async with BookieOperator(refused_address(), timeout_s=2) as nobody:
            with pytest.raises(BookieUnavailable):
                await nobody.status()
        async with silent_server() as address, BookieOperator(address, timeout_s=0.3) as silent:
            async with asyncio.timeout(10):
                with pytest.raises(BookieUnavailable):
                    await silent.status()

    asyncio.run(scenario())
