"""For the tests of applications: a real cluster in the process, up in a fraction of a second.

`cluster()` is a context manager, sync and async; `dlog.testing.plugin` is the pytest plugin
with the fixture `dlog_cluster`, which an installed dlog brings along.
"""

from dlog.testing.bookie import InProcessBookie
from dlog.testing.cluster import AsyncCluster, Cluster, InvalidTestCluster, cluster

__all__ = ["AsyncCluster", "Cluster", "InProcessBookie", "InvalidTestCluster", "cluster"]
