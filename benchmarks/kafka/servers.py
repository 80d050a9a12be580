"""The servers that are measured beside each other: Kafka's brokers, and gateways above bookies."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol, Self

from benchmarks.peers import kafka
from benchmarks.peers.jars import PeerMissing
from benchmarks.peers.kafka import BROKERS, SYNCED, KafkaCluster
from benchmarks.peers.systems import KAFKA_VERSION
from dlog.local.cluster import LocalCluster
from dlog.local.zookeeper import dying_with_parent

GATEWAYS: Final = 2
"""One leads what is measured; the other one follows it when it is killed."""
_STOP_S: Final = 10.0


class Servers(Protocol):
    @property
    def bootstrap(self) -> str:
        """What clients call `bootstrap.servers`."""

    @property
    def topic(self) -> str:
        """Settings, NAME=VALUE,..., of topics whose records are synced before they are
        acknowledged."""

    @property
    def pids(self) -> list[int]:
        """Of what serves records; metadata of dlog are in one process more, not counted."""

    def kill(self, port: int) -> None:
        """End what listens on *port* as a crash would."""

    def revive(self) -> None:
        """Start again what was killed."""


class Brokers:
    """Three brokers of Kafka; each record is synced by two before it is acknowledged."""

    topic = ",".join(f"{name}={value}" for name, value in SYNCED.items())

    def __init__(self, directory: Path) -> None:
        self._cluster = KafkaCluster(directory, version=KAFKA_VERSION)
        self._dead: list[int] = []

    async def __aenter__(self) -> Self:
        self._cluster.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cluster.__exit__()

    @property
    def bootstrap(self) -> str:
        return self._cluster.servers

    @property
    def pids(self) -> list[int]:
        return self._cluster.pids

    def kill(self, port: int) -> None:
        ports = [int(each.rpartition(":")[2]) for each in self.bootstrap.split(",")]
        node = 1 + ports.index(port)
        self._cluster.kill(node)
        self._dead.append(node)

    def revive(self) -> None:
        while self._dead:
            self._cluster.start(self._dead.pop())


class Gateways:
    """Gateways above three bookies and a ZooKeeper, as `dlog up --zookeeper managed` has them."""

    topic = ""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self._directory = directory
        self._cluster = LocalCluster(directory / "dlog", zookeeper=zookeeper)
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._stack = ExitStack()

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        try:
            for _ in range(GATEWAYS):
                self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._stack.close()
        await self._cluster.__aexit__(None, None, None)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._running)

    @property
    def pids(self) -> list[int]:
        bookies = [each.pid for each in self._cluster.processes]
        return [*bookies, *(process.pid for process in self._running.values())]

    def kill(self, port: int) -> None:
        process = self._running.pop(port)
        process.kill()
        process.wait()

    def revive(self) -> None:
        while len(self._running) < GATEWAYS:
            self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "dlog.cli", "kafka", "start", "--json"]
        command += ["--listen", "127.0.0.1:0"]
        log = self._stack.enter_context((self._directory / "gateways.log").open("ab"))
        process = subprocess.Popen(
            dying_with_parent(command, os.getpid()),
            env={**os.environ, "DLOG_URI": self._cluster.uri},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        self._stack.callback(process.stdout.close)
        line = process.stdout.readline()
        if not line:
            process.wait()
            raise PeerMissing(f"a gateway ended: {self._directory / 'gateways.log'}")
        port = int(json.loads(line)["bootstrap"].rpartition(":")[2])
        self._running[port] = process


def brokers_version() -> str:
    return f"Kafka {KAFKA_VERSION}, {BROKERS} brokers ({kafka.artifacts(KAFKA_VERSION)[0]})"
