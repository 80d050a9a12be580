"""The pytest plugin: the fixture `dlog_cluster`. Found by pytest wherever dlog is installed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dlog.testing import Cluster


@pytest.fixture
def dlog_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator["Cluster"]:
    """A fresh `dlog.testing.Cluster` for this test; ``DLOG_URI`` names it meanwhile.

    Serves `dlog` and, on whatever event loop, `dlog.aio`."""
    from dlog.testing import cluster  # here, so that other tests need not wait for it

    with cluster() as running:
        monkeypatch.setenv("DLOG_URI", running.uri)
        yield running
