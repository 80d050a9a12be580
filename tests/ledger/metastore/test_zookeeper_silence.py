"""Connections on which ZooKeeper's answers are lost: given up in time, and the session lives on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest

from dlog.local.zookeeper import ManagedZooKeeper
from ledger.errors import MetadataUnavailable
from ledger.metastore import MetadataStore, Versioned
from ledger.metastore.zookeeper_link import CALLS_MAX
from tests.ledger.metastore.backends import Backend, settled
from tests.ledger.metastore.zookeeper_proxy import (
    Answers,
    Proxy,
    lost,
    proxy,
    without_content,
)
from tests.waiting import PATIENCE_S, until
from tests.zookeeper import fresh_uri

pytestmark = pytest.mark.zookeeper

SESSION_TIMEOUT_S: Final = 24.0
"""Believed in for 16 s after a proof; silence is borne for 2 s while connecting, then for 6 s."""


@asynccontextmanager
async def behind_a_proxy(server: ManagedZooKeeper) -> AsyncIterator[tuple[MetadataStore, Proxy]]:
    uri = fresh_uri(server)
    async with proxy(server.port) as way:
        through = uri.replace(f":{server.port}", f":{way.port}")
        backend = Backend("zookeeper", through)
        async with backend.one(session_timeout_s=SESSION_TIMEOUT_S) as store:
            await store.create("/a", b"v")
            yield store, way


@pytest.mark.parametrize("answers", [Answers.NONE, Answers.GREETING])
async def test_a_connection_that_is_taken_and_not_served_costs_no_session(
    answers: Answers, zookeeper: ManagedZooKeeper
) -> None:
    async with behind_a_proxy(zookeeper) as (store, way):
        watch, session = store.watch("/a"), store.session
        await settled(watch)
        way.next = [answers]
        way.cut()
        await until(lambda: way.connections == 2)
        assert (await store.get("/a")).value == b"v"
        assert way.connections > 2
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()  # it is armed again
        await settled(watch)
        await store.set("/a", b"w")
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()
        assert store.session is session
        assert not session.lost.is_set()


async def test_a_first_connection_that_is_not_served_does_not_keep_a_store_from_opening(
    zookeeper: ManagedZooKeeper,
) -> None:
    async with proxy(zookeeper.port) as way:
        way.next = [Answers.NONE, Answers.GREETING]
        uri = fresh_uri(zookeeper).replace(f":{zookeeper.port}", f":{way.port}")
        async with Backend("zookeeper", uri).one(session_timeout_s=SESSION_TIMEOUT_S) as store:
            await store.create("/a")
        assert way.connections > 2


@pytest.mark.parametrize(("at_once", "pause_s"), [(2 * CALLS_MAX, 10.0), (1, 0.25)])
async def test_a_connection_that_falls_silent_is_given_up_whatever_waits_on_it(
    at_once: int, pause_s: float, zookeeper: ManagedZooKeeper
) -> None:
    """With all slots taken, or with new calls now and then, which keep kazoo from pinging."""
    async with behind_a_proxy(zookeeper) as (store, way):
        session = store.session
        calls: list[asyncio.Task[Versioned]] = []

        async def call_often() -> None:
            while True:
                calls.extend(asyncio.create_task(store.get("/a")) for _ in range(at_once))
                await asyncio.sleep(pause_s)

        way.silence()
        busy = asyncio.create_task(call_often())
        await until(lambda: way.connections == 2)
        busy.cancel()
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*calls)
        assert {answer.value for answer in answers} == {b"v"}
        assert store.session is session
        assert not session.lost.is_set()


@pytest.mark.parametrize("spoiled", [lost, without_content])
async def test_after_an_answer_that_is_lost_or_damaged_others_are_not_taken_for_it(
    spoiled: Callable[[bytes], bytes], zookeeper: ManagedZooKeeper
) -> None:
    """kazoo's thread ended with a RuntimeError, and so did the call."""
    async with behind_a_proxy(zookeeper) as (store, way):
        session, before = store.session, (await store.get("/a")).version
        way.spoil = spoiled
        done = await asyncio.gather(
            store.set("/a", b"w"), store.get("/a"), store.get("/a"), return_exceptions=True
        )
        assert way.spoil is None
        assert isinstance(done[0], MetadataUnavailable)
        assert done[0].outcome_unknown
        assert all(isinstance(each, Versioned) for each in done[1:])
        assert (await store.get("/a")).version == before + 1
        assert store.session is session
        assert not session.lost.is_set()


async def test_a_heartbeat_whose_answer_is_damaged_is_not_the_last(
    zookeeper: ManagedZooKeeper,
) -> None:
    """The task that sends them ended with kazoo's error, and no session lived after that."""
    uri = fresh_uri(zookeeper)
    async with proxy(zookeeper.port) as way:
        through = uri.replace(f":{zookeeper.port}", f":{way.port}")
        async with Backend("zookeeper", through).one(session_timeout_s=8.0) as store:
            session = store.session
            way.spoil, seen = without_content, way.answers
            await until(lambda: way.answers >= seen + 3)
            assert store.session is session
            assert not session.lost.is_set()
