"""What tests of logs share that need real bookies: one cluster for each module."""

from collections.abc import Iterator

import pytest

from tests import clusters


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with clusters.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.uri
