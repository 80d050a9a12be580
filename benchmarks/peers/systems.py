"""What is measured beside each other, and what each was configured with.

A *system* is one way to use a group of servers: a client process with its settings. Servers are
started when the first of their clients is, and end with the run.
"""

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.peers import bookkeeper, kafka
from benchmarks.peers.bookkeeper import BookKeeperCluster
from benchmarks.peers.clients import Client
from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.java import class_path, compiled, executable
from benchmarks.peers.kafka import KafkaCluster
from dlog.local.cluster import LocalCluster
from dlog.local.zookeeper import ManagedZooKeeper

KAFKA_VERSION: Final = "3.9.1"
AIO, MANY, BLOCKING = "dlog aio", "dlog many", "dlog blocking"
STANDBY: Final = "dlog standby"
KAFKA, CONFLUENT = "Kafka", "confluent-kafka"
BUFFERED, IMMEDIATE = "DistributedLog", "DistributedLog, immediate"
BOOKKEEPER, WHEN_EMPTY = "BookKeeper", "BookKeeper, when empty"
OURS: Final = (AIO, BLOCKING, MANY, STANDBY)

_JAVA_FLAGS: Final = (
    "-Xms512m", "-Xmx2g", "-XX:+UseG1GC",
    "-Dorg.apache.logging.log4j.level=WARN",  # of what BookKeeper says: why it gave up
)  # fmt: skip
_PRODUCER: Final = {
    "acks": "all",
    "linger.ms": "0",
    "batch.size": str(1 << 20),
}
_KAFKA: Final = {**_PRODUCER, "buffer.memory": str(64 << 20), "topic.flush.messages": "1"}
_CONFLUENT: Final = {
    **_PRODUCER,
    "batch.num.messages": "100000",
    "max.in.flight": "5",  # as Java's; many small requests at once take seconds
    "queue.buffering.max.messages": "1000000",
    "topic.flush.messages": "1",
    "consumer.queued.min.messages": "1000000",
    "consumer.fetch.queue.backoff.ms": "10",  # else it looks away for a second when it has as many
}
_BUFFERED: Final = {
    "writerOutputBufferSize": str(512 << 10),
    "periodicFlushFrequencyMilliSeconds": "2",
    "bkc.throttle": "0",
    "bkcWriteTimeoutSeconds": "60",  # as of BookKeeper
}
_IMMEDIATE: Final = {
    "enableImmediateFlush": "true",
    "writerOutputBufferSize": "0",
    "bkc.throttle": "0",  # else 5,000 entries a second
    "bkcWriteTimeoutSeconds": "60",
}
_BOOKKEEPER: Final = {
    "throttle": "0",
    "addEntryTimeoutSec": "60",  # else a machine that stands still for 5 s ends its ledger
}


@dataclass(frozen=True, slots=True)
class System:
    servers: str
    """Of which group; see `Cluster`."""
    told: str
    """What a reader of the table has to know of it."""


SYSTEMS: Final[Mapping[str, System]] = {
    AIO: System("dlog", "`append_async`, and records read one by one, on asyncio"),
    BLOCKING: System("dlog", "`append_async` of the blocking API; records read one by one"),
    MANY: System("dlog", "`append_many_async` of up to 1,000 records; records read as chunks"),
    STANDBY: System("dlog", "a `Standby` whose leader is killed while it appends at full speed"),
    KAFKA: System("kafka", f"Java client, `{_KAFKA}`"),
    CONFLUENT: System("kafka", f"`{_CONFLUENT}`"),
    BUFFERED: System("when empty", f"`{_BUFFERED}`"),
    IMMEDIATE: System("when empty", f"`{_IMMEDIATE}`"),
    BOOKKEEPER: System(
        "bookkeeper", f"an entry for each record, CRC32C, `{_BOOKKEEPER}`; bookies as they come"
    ),
    WHEN_EMPTY: System("when empty", f"the same; bookies with `{bookkeeper.WHEN_EMPTY}`"),
}


@dataclass(slots=True)
class Cluster:
    """Servers, and clients of them, as far as they were asked for; an async context manager."""

    directory: Path
    kafka: KafkaCluster | None = None
    dlog: LocalCluster | None = None
    bookkeepers: dict[str, BookKeeperCluster] = field(default_factory=dict)
    _clients: dict[str, Client] = field(default_factory=dict)
    _zookeeper: ManagedZooKeeper | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def client(self, name: str, number: int = 0) -> Client:
        """Return the client of system *name*, or its *number*-th one beside that. Raises
        `PeerMissing`, and `ChildFailed` of dlog."""
        key = f"{name} {number}" if number else name
        if key not in self._clients:
            command = await self._command(name)
            log = self.directory / f"client-{key.replace(' ', '-').replace(',', '')}.log"
            client = await Client.start(key, command, log)
            self._stack.push_async_callback(client.stop)
            self._clients[key] = client
        return self._clients[key]

    async def forget(self, name: str) -> None:
        """End the clients of system *name*; `client` starts others."""
        for key in [key for key in self._clients if key.rstrip("0123456789 ") == name]:
            await self._clients.pop(key).stop()

    def pids(self, name: str) -> list[int]:
        """Return the processes that serve system *name*. Metadata are on a ZooKeeper that is not
        counted, or, of Kafka, on its brokers."""
        servers = SYSTEMS[name].servers
        if servers == "dlog":
            assert self.dlog is not None
            return [each.pid for each in self.dlog.processes]
        if servers == "kafka":
            assert self.kafka is not None
            return self.kafka.pids
        return self.bookkeepers[servers].pids

    async def _command(self, name: str) -> list[str]:
        python = [sys.executable, "-m"]
        if name in (AIO, MANY):
            kind = "many" if name == MANY else "one"
            return [*python, "benchmarks.peers.awaiting", await self.uri(), kind]
        if name == BLOCKING:
            return [*python, "benchmarks.peers.calling", await self.uri()]
        if name == CONFLUENT:
            if find_spec("confluent_kafka") is None:
                raise PeerMissing("confluent-kafka is not installed: pip install '.[peers]'")
            servers = (await self.brokers()).servers
            return [*python, "benchmarks.peers.confluent", servers, *_pairs(_CONFLUENT)]
        if name == KAFKA:
            servers = (await self.brokers()).servers
            jars = kafka.artifacts(KAFKA_VERSION)
            return _java("KafkaPeer", jars, servers, *_pairs(_KAFKA))
        bookies = await self._bookies(SYSTEMS[name].servers)
        if name in (BOOKKEEPER, WHEN_EMPTY):
            return _java("BookKeeperPeer", bookkeeper.ARTIFACTS, bookies.uri, *_pairs(_BOOKKEEPER))
        settings = _BUFFERED if name == BUFFERED else _IMMEDIATE
        place = ((await self._metadata()).hosts, bookies.ledgers)
        return _java("DistributedLogPeer", bookkeeper.ARTIFACTS, *place, *_pairs(settings))

    async def uri(self) -> str:
        """Return where dlog is; it is started if it is not there yet."""
        if self.dlog is None:
            zookeeper = await self._metadata()
            cluster = LocalCluster(self.directory / "dlog", zookeeper=zookeeper.uri("/dlog"))
            self.dlog = await self._stack.enter_async_context(cluster)
        return self.dlog.uri

    async def brokers(self) -> KafkaCluster:
        if self.kafka is None:
            cluster = KafkaCluster(self.directory / "kafka", version=KAFKA_VERSION)
            self.kafka = self._stack.enter_context(cluster)
        return self.kafka

    async def _bookies(self, servers: str) -> BookKeeperCluster:
        if servers not in self.bookkeepers:
            zookeeper, path = await self._metadata(), servers.replace(" ", "-")
            settings = bookkeeper.WHEN_EMPTY if servers == "when empty" else bookkeeper.DEFAULT
            cluster = BookKeeperCluster(
                self.directory / path, zookeeper.hosts, f"/{path}", settings
            )
            self.bookkeepers[servers] = self._stack.enter_context(cluster)
        return self.bookkeepers[servers]

    async def _metadata(self) -> ManagedZooKeeper:
        if self._zookeeper is None:
            server = ManagedZooKeeper(self.directory / "zookeeper")
            self._stack.push_async_callback(server.stop)
            self._zookeeper = await server.start()
        return self._zookeeper


def _java(main: str, artifacts: tuple[str, ...], *arguments: str) -> list[str]:
    jars = fetched(artifacts)
    path = class_path(jars, compiled(main, jars))
    return [str(executable()), *_JAVA_FLAGS, "-cp", path, main, *arguments]


def _pairs(settings: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]
