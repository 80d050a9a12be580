"""Handles of one event loop share a session and connections, for as long as one of them is open."""

import asyncio
from pathlib import Path

import pytest

from dlog import Log as SyncLog
from dlog.aio import Log
from dlog.aio.namespace_connection import connect
from dlog.local.zookeeper import ManagedZooKeeper
from dlog.testing import AsyncCluster, cluster
from ledger import LedgerClient
from ledger.errors import NoNamespace
from ledger.metastore.memory import MemoryHub
from ledger.transport.port import BookieTransport
from tests.clusters import running
from tests.namespaces import made
from tests.zookeeper import fresh_uri


async def connected(uri: str) -> LedgerClient:
    client = await connect(uri)
    assert isinstance(client, LedgerClient)
    return client


def transport_of(client: LedgerClient) -> BookieTransport:
    return client.environment.transport


async def test_handles_share_one_session_until_the_last_one_is_closed() -> None:
    async with cluster(3) as testing:
        first, second = [await connected(testing.uri) for _ in range(2)]
        assert first.store is second.store
        assert transport_of(first) is transport_of(second)
        await first.close()
        await first.close()
        async with await Log.open("log", uri=testing.uri) as log:
            await log.append(b"it goes on")
            assert not second.store.session.lost.is_set()
        await second.close()
        assert second.store.session.lost.is_set()
        third = await connected(testing.uri)
        assert third.store is not second.store
        await third.close()


async def test_logs_and_readers_that_are_opened_at_once_connect_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster(3) as testing:
        connections = counted(monkeypatch)
        logs = await asyncio.gather(*(Log.open(f"log-{at}", uri=testing.uri) for at in range(20)))
        await asyncio.gather(*(log.append(b"x") for log in logs))
        readers = await asyncio.gather(*(Log.tail(log.name, uri=testing.uri) for log in logs))
        assert len(connections) == 1
        for reader in readers:
            await reader.close()
        for log in logs:
            await log.close()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets each client that connects."""
    found: list[object] = []
    honest = LedgerClient.connect.__func__  # type: ignore[attr-defined]

    async def counting(cls: type[LedgerClient], *arguments: object) -> LedgerClient:
        client: LedgerClient = await honest(cls, *arguments)
        found.append(client)
        return client

    monkeypatch.setattr(LedgerClient, "connect", classmethod(counting))
    return found


@pytest.mark.integration
@pytest.mark.zookeeper
def test_a_process_opens_more_logs_than_zookeeper_allows_connections(
    zookeeper: ManagedZooKeeper, tmp_path: Path
) -> None:
    """As it comes, a server takes 60 from one address."""
    with running(tmp_path, zookeeper=fresh_uri(zookeeper)) as there:
        logs = [SyncLog.open(f"log-{at}", uri=there.uri) for at in range(70)]
        for log in logs:
            assert log.append(b"x").offset == 0
        for log in logs:
            log.close()


async def test_a_consumer_that_has_it_for_itself_has_a_session_of_its_own() -> None:
    """The lock goes with the session, also if nobody could take it away."""
    async with cluster(3) as testing:
        log = await Log.open("log", uri=testing.uri)
        consumer = await Log.consumer("sole", "log", uri=testing.uri, exclusive=True)
        shared = await Log.consumer("shared", "log", uri=testing.uri)
        assert consumer._ledgers.store is not shared._ledgers.store
        for handle in (shared, consumer, log):
            await handle.close()


async def test_what_could_not_connect_is_tried_again_by_the_next_one() -> None:
    hub = MemoryHub()
    with hub.shared("later"):
        results = await asyncio.gather(
            *(connect("memory://later") for _ in range(2)), return_exceptions=True
        )
        assert [type(each) for each in results] == [NoNamespace, NoNamespace]
        await made("memory://later")
        client = await connect("memory://later")
        await client.close()


async def test_who_gives_up_waiting_takes_the_connection_from_nobody() -> None:
    async with cluster(3) as testing:
        first = asyncio.create_task(connected(testing.uri))
        second = asyncio.create_task(connected(testing.uri))
        await asyncio.sleep(0)
        first.cancel()
        client = await second
        await client.store.exists("/")
        await client.close()
        assert client.store.session.lost.is_set()


async def test_a_handle_that_is_given_its_client_leaves_the_shared_one_alone() -> None:
    async with cluster(3) as testing:
        other: AsyncCluster = testing
        own = await LedgerClient.connect(other.uri)
        async with await Log.open("log", client=own) as log:
            shared = await connected(other.uri)
            assert shared.store is not own.store
            await shared.close()
            await log.append(b"x")
        await own.close()
