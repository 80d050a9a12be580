"""Silence proves nothing: neither that a process has died, nor that a create was not done."""

import asyncio
import socket

import pytest

from leader import lifeline as lifeline_module
from leader.election import leaders_path
from leader.lifeline import Lifeline, has_died, network
from leader.refusals import LifelineAddress
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryStore
from tests.leader.stores import TroubledStore
from tests.patience import patient_campaign
from tests.waiting import until

LOG = "flights"
HOST = "127.0.0.1"


class LateStore(TroubledStore):
    """Its next create is done just before the next write of its session, and is not answered."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.late: tuple[str, bytes] | None = None

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        assert ephemeral
        assert sequential
        self.late = path, value
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def delete(self, path: str, version: int = -1) -> None:
        await self.arrive()
        await super().delete(path, version)

    async def arrive(self) -> None:
        """Do what is still on its way."""
        late, self.late = self.late, None
        if late is not None:
            await self.inner.create(*late, ephemeral=True, sequential=True)


async def test_a_campaign_that_is_given_up_while_its_create_is_on_its_way_leaves_no_node() -> None:
    """A node that nobody withdraws would hold the next candidate back as long as we live."""
    memory = await open_store("memory://election")
    assert isinstance(memory, MemoryStore)
    store = LateStore(memory)
    campaigning = asyncio.create_task(patient_campaign(store, LOG, lifeline_host=None))
    await until(lambda: store.late is not None, "it has asked for its node")
    campaigning.cancel()
    await asyncio.gather(campaigning, return_exceptions=True)
    await store.arrive()
    children = await memory.children("/leaders")
    nodes = await memory.children(leaders_path(LOG)) if LOG in children else []
    assert nodes == []
    await memory.close()


async def test_a_port_that_takes_connections_and_says_nothing_is_no_sign_of_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifeline_module, "CONNECT_S", 0.02)

    with socket.create_server((HOST, 0)) as silent:
        address = LifelineAddress(HOST, silent.getsockname()[1], b"secret", network())
        assert not await has_died(address)


async def test_a_process_that_was_stopped_after_it_let_us_go_is_not_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernel still takes connections for it, and it says nothing."""
    lifeline = Lifeline.open(HOST)
    watching = asyncio.create_task(has_died(lifeline.address))
    await until(lambda: lifeline.followers == 1, "it is followed")
    monkeypatch.setattr(lifeline_module, "CONNECT_S", 0.02)
    asyncio.get_running_loop().remove_reader(lifeline._listening)
    lifeline._let_go(next(iter(lifeline._followers)))
    assert not await watching
    lifeline.close()
