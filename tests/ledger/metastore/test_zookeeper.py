"""The store on ZooKeeper on bad days: no server, a stopped one, an expired session."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from dlog.local.zookeeper import ManagedZooKeeper
from ledger.errors import MetadataDenied, MetadataUnavailable
from ledger.metastore import MetadataStore, open_store
from ledger.metastore.zookeeper import ZooKeeperStore
from tests.ledger.metastore.backends import Backend, gone, hold, renewed, settled
from tests.waiting import PATIENCE_S, SESSION_S, eventually
from tests.zookeeper import fresh_uri, paused

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ManagedZooKeeper]:
    """A server for one test alone, which may be stopped."""
    server = ManagedZooKeeper(tmp_path / "zookeeper")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def test_no_server_is_told_within_the_timeout() -> None:
    with socket.socket() as silent, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (silent.getsockname()[1], refusing.getsockname()[1]):
            began = time.monotonic()
            with pytest.raises(MetadataUnavailable):
                asyncio.run(open_store(f"zk://127.0.0.1:{port}/r?auth=digest:u:p", timeout_s=0.5))
            assert time.monotonic() - began < PATIENCE_S


async def test_a_stopped_server_fails_calls_in_time_and_the_session_by_our_own_clock(
    server: ManagedZooKeeper,
) -> None:
    session_timeout_s = 2.0
    store = await open_store(
        server.uri("/ns"), session_timeout_s=session_timeout_s, timeout_s=PATIENCE_S
    )
    assert isinstance(store, ZooKeeperStore)
    try:
        await hold(store, "/e")
        with paused(server.pid):
            began = time.monotonic()
            store._timeout_s = 0.5
            session, lease = store.session, store._keeper._lease
            for call in (store.get("/e"), store.set("/e", b""), store.sync()):
                with pytest.raises(MetadataUnavailable):
                    await call
            assert time.monotonic() - began < PATIENCE_S
            async with asyncio.timeout(PATIENCE_S):
                await session.lost.wait()
            assert lease is not None
            assert lease._proven_at <= began
            assert lease._trusted_s < session_timeout_s  # before the server could end it
            with pytest.raises(MetadataUnavailable):
                await store.create("/e2", ephemeral=True)
            store._timeout_s = PATIENCE_S
        await renewed(store)
        assert store.session is not session
        await gone(store, "/e")
        await hold(store, "/e")
    finally:
        await store.close()


async def test_watches_and_data_outlive_a_restart_of_the_server(server: ManagedZooKeeper) -> None:
    async with Backend("zookeeper", server.uri("/ns")).two() as (a, b):
        await a.create("/w", b"v")
        watch = b.watch("/w")
        await settled(watch)
        session = b.session
        fixed = ManagedZooKeeper(server.directory, port=server.port)
        server.kill()
        await fixed.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await watch.changed()  # it may have changed meanwhile
            await settled(watch)
            assert (await b.get("/w")).value == b"v"
            assert await set_until_done(a, "/w", b"w") == 1
            async with asyncio.timeout(PATIENCE_S):
                await watch.changed()
            assert b.session is session
            assert not session.lost.is_set()
        finally:
            await fixed.stop()


async def test_an_expired_session_is_told_and_replaced_and_watches_go_on(
    zookeeper: ManagedZooKeeper,
) -> None:
    uri = fresh_uri(zookeeper)

    async with Backend("zookeeper", uri).two() as (a, b):
        await a.create("/e", ephemeral=True)
        watch = a.watch("/w")
        session = a.session
        await asyncio.to_thread(expire, a, zookeeper.hosts)
        async with asyncio.timeout(PATIENCE_S):
            await session.lost.wait()
        await gone(b, "/e")
        await renewed(a)
        assert a.session is not session
        await a.create("/e", ephemeral=True)
        await settled(watch)
        await b.create("/w")
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()


async def test_a_session_is_believed_in_no_longer_than_the_server_grants(
    zookeeper: ManagedZooKeeper,
) -> None:
    store = await open_store(fresh_uri(zookeeper), session_timeout_s=600.0)
    assert isinstance(store, ZooKeeperStore)
    assert store._keeper.link.granted_timeout_s == 300.0
    await store.close()


async def test_with_credentials_only_their_owner_may_touch_what_is_made(
    zookeeper: ManagedZooKeeper,
) -> None:
    uri = fresh_uri(zookeeper)

    async with Backend("zookeeper", uri + "?auth=digest:me:secret").one() as mine:
        await mine.create("/a/b", b"v")
        for credentials in ("", "?auth=digest:me:guess"):
            with pytest.raises(MetadataDenied):
                await open_store(uri + credentials)
        assert (await mine.get("/a/b")).value == b"v"
    async with Backend("zookeeper", uri + "?auth=digest:me:secret").one() as again:
        assert await again.set("/a/b", b"w") == 1
        assert "secret" not in str(again._unavailable("x"))  # type: ignore[attr-defined]


async def test_closed_watches_leave_nothing_on_the_server_or_in_the_client(
    server: ManagedZooKeeper,
) -> None:
    def on_server() -> int:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(b"wchs")
            said = connection.makefile("rb").read().decode()
        return int(said.partition("Total watches:")[2])

    async with Backend("zookeeper", server.uri("/ns")).one() as store:
        assert isinstance(store, ZooKeeperStore)
        await store.create("/there/child")
        for path in ("/there", "/not-there", "/there/child"):
            watch = store.watch(path)
            await settled(watch)
            assert on_server() > 0
            watch.close()
            await store.sync()
            await eventually(lambda: asyncio.to_thread(lambda: on_server() == 0))
        client = store._keeper.link._client
        assert not client._data_watchers
        assert not client._child_watchers
        watch = store.watch("/there")  # and it can be watched again
        await settled(watch)
        await store.set("/there", b"x")
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()


async def test_many_calls_at_once_are_all_answered(zookeeper: ManagedZooKeeper) -> None:
    async with Backend("zookeeper", fresh_uri(zookeeper)).one() as store:
        await asyncio.gather(*(store.create(f"/n/{n:04}") for n in range(1000)))
        assert len(await store.children("/n")) == 1000


async def test_calls_while_disconnected_do_not_block_the_event_loop(
    server: ManagedZooKeeper,
) -> None:
    store = await open_store(server.uri(), session_timeout_s=SESSION_S, timeout_s=PATIENCE_S)
    assert isinstance(store, ZooKeeperStore)
    server.kill()
    store._timeout_s = 0.5
    calls = [asyncio.create_task(store.sync()) for _ in range(2000)]
    began = time.monotonic()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - began < PATIENCE_S  # all of them, not one after the other
    assert all(isinstance(outcome, MetadataUnavailable) for outcome in outcomes)
    await store.close()


def expire(store: MetadataStore, hosts: str) -> None:
    """End the session of *store* as the server does: somebody else closes it."""
    assert isinstance(store, ZooKeeperStore)
    other = KazooClient(hosts, client_id=store._keeper.link._client.client_id)
    other.start()
    other.stop()
    other.close()


async def set_until_done(store: MetadataStore, path: str, value: bytes) -> int:
    while True:
        try:
            return await store.set(path, value)
        except MetadataUnavailable:
            await asyncio.sleep(0.05)
