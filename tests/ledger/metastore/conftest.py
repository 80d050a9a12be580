from pathlib import Path

import pytest

from dlog.local.zookeeper import ManagedZooKeeper
from tests.ledger.metastore.backends import Backend
from tests.zookeeper import fresh_uri


@pytest.fixture(params=["memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    match request.param:
        case "memory":
            return Backend("memory", f"memory://{tmp_path.name}")
        case "sqlite":
            return Backend("sqlite", f"file://{tmp_path}/with%20space/namespace")
        case _:
            server: ManagedZooKeeper = request.getfixturevalue("zookeeper")
            return Backend("zookeeper", fresh_uri(server))


@pytest.fixture
def sqlite(tmp_path: Path) -> Backend:
    return Backend("sqlite", f"file://{tmp_path}/namespace")
