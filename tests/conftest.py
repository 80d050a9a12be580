"""Fixtures for all tests."""

import asyncio
from collections.abc import Iterator

import pytest

from dlog.local.errors import JavaMissing, ZooKeeperMissing
from dlog.local.zookeeper import ManagedZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedZooKeeper]:
    """One server for the whole run; use `tests.zookeeper.fresh_uri` for a namespace in it.

    A test that stops or pauses a server must start one of its own."""
    server = ManagedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        asyncio.run(server.start())
    except (JavaMissing, ZooKeeperMissing) as error:
        pytest.skip(str(error))
    yield server
    asyncio.run(server.stop())
