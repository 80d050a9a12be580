"""The pytest plugin, which pytest finds wherever dlog is installed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dlog.testing import Cluster, ReplicaGroup


@pytest.fixture
def dlog_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator["Cluster"]:
    """A fresh `dlog.testing.Cluster` for this test; ``DLOG_URI`` names it meanwhile.

    Serves `dlog` and, on whatever event loop, `dlog.aio`."""
    from dlog.testing import cluster  # here, so that other tests need not wait for it

    with cluster() as running:
        monkeypatch.setenv("DLOG_URI", running.uri)
        yield running


@pytest.fixture
def dlog_replicas(dlog_cluster: "Cluster") -> Iterator[Callable[..., "ReplicaGroup[Any]"]]:
    """Start replicas on the `dlog_cluster`: call it as `dlog.testing.replicas`. It returns a
    `dlog.testing.ReplicaGroup`, which is closed after the test."""
    from dlog.testing import replicas

    with ExitStack() as stack:
        yield lambda *args, **how: stack.enter_context(replicas(*args, uri=dlog_cluster.uri, **how))


@pytest.fixture
def kafka_bootstrap(dlog_cluster: "Cluster") -> Iterator[str]:
    """The address of a Kafka for this test, on its `dlog_cluster`: what clients call bootstrap
    server. Topics are created by their first use; needs ``dlog-ledgers[kafka]``."""
    from dlog.testing import kafka

    with kafka(dlog_cluster.uri) as bootstrap:
        yield bootstrap
