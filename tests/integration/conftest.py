"""Fixtures of the tests with real processes."""

import pytest

from dlog.local.zookeeper import ManagedZooKeeper
from tests.zookeeper import fresh_uri


@pytest.fixture(params=["file", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def metadata(request: pytest.FixtureRequest) -> str | None:
    """The metadata store to use: None for the embedded one, or the URI of a real ZooKeeper."""
    if request.param == "file":
        return None
    server: ManagedZooKeeper = request.getfixturevalue("zookeeper")
    return fresh_uri(server)
