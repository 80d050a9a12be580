"""For the tests of applications: a real cluster in the process, up in a fraction of a second.

`cluster()` and `replicas()` are context managers, sync and async; `check_deterministic` finds
what replicas of a state machine would differ by. `kafka()` serves Kafka's clients on a cluster.
`dlog.testing.plugin` is the pytest plugin with the fixtures `dlog_cluster`, `dlog_replicas` and
`kafka_bootstrap`, which an installed dlog brings along.
"""

from dlog.testing.bookie import InProcessBookie
from dlog.testing.cluster import AsyncCluster, Cluster, InvalidTestCluster, cluster
from dlog.testing.determinism import NotDeterministic, check_deterministic
from dlog.testing.kafka import kafka
from dlog.testing.replica_group import AsyncReplicaGroup, ReplicaGroup, StatesDiffer, replicas

__all__ = [
    "AsyncCluster",
    "AsyncReplicaGroup",
    "Cluster",
    "InProcessBookie",
    "InvalidTestCluster",
    "NotDeterministic",
    "ReplicaGroup",
    "StatesDiffer",
    "check_deterministic",
    "cluster",
    "kafka",
    "replicas",
]
