"""Kafka: three brokers on this machine, each of them a voter too, with nothing but defaults.

They end with the process that started them, however that ends.
"""

import secrets
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.java import Processes, class_path, executable
from benchmarks.peers.ports import free_ports

VERSION: Final = "4.3.1"
BROKERS: Final = 3
SYNCED: Final = {"flush.messages": "1"}
"""A topic whose records are on the disk of each replica when they are acknowledged."""
# As Kafka's own scripts start a broker and a tool.
_BROKER_FLAGS: Final = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
_TOOL_FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_S: Final = 60.0
_TOOL_S: Final = 60.0
_RETRY_S: Final = 0.5
_PROPERTIES: Final = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
log.dirs={directory}/data
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
auto.create.topics.enable=false
"""


def artifacts(version: str) -> tuple[str, ...]:
    return tuple(f"org.apache.kafka:{name}:{version}" for name in ("kafka_2.13", "kafka-tools"))


class KafkaCluster:
    """Three brokers in *directory*; a context manager. Topics have three replicas, and acks=all
    means two of them."""

    def __init__(self, directory: Path, *, version: str = VERSION) -> None:
        self._directory = directory
        self._version = version
        self._processes = Processes()
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = ""
        """What clients call `bootstrap.servers`."""

    @property
    def pids(self) -> list[int]:
        return self._processes.pids

    def __enter__(self) -> Self:
        """Start the brokers. Raises `PeerMissing`. Call it on a thread that stays."""
        self._java = str(executable())
        self._class_path = class_path(fetched(artifacts(self._version)))
        ports = free_ports(2 * BROKERS)
        brokers, controllers = ports[:BROKERS], ports[BROKERS:]
        self.servers = ",".join(f"127.0.0.1:{port}" for port in brokers)
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1))
        cluster_id = (
            urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "a")
        )
        try:
            for node, (port, controller_port) in enumerate(
                zip(brokers, controllers, strict=True), 1
            ):
                directory = self._directory / f"broker-{node}"
                directory.mkdir(parents=True)
                properties = directory / "server.properties"
                properties.write_text(
                    _PROPERTIES.format(
                        node=node,
                        voters=voters,
                        port=port,
                        controller_port=controller_port,
                        directory=directory,
                    )
                )
                self._tool(
                    "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)
                )
                self.start(node)
            self._await_brokers()
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.stop()

    def start(self, node: int) -> None:
        """Start broker *node*, from 1 on, on its data."""
        directory = self._directory / f"broker-{node}"
        command = [self._java, *_BROKER_FLAGS, "-cp", self._class_path]
        command += ["kafka.Kafka", str(directory / "server.properties")]
        self._nodes[node] = self._processes.start(command, directory / "broker.log")

    def kill(self, node: int) -> None:
        """End broker *node* as a crash would."""
        self._processes.kill(self._nodes.pop(node))

    def create(self, topic: str, *, partitions: int, config: Mapping[str, str]) -> None:
        """Create *topic*; see `SYNCED` for *config*."""
        command = ["--create", "--topic", topic, "--partitions", str(partitions)]
        command += ["--replication-factor", str(BROKERS)]
        for name, value in config.items():
            command += ["--config", f"{name}={value}"]
        self._topics(*command)

    def delete(self, topic: str) -> None:
        self._topics("--delete", "--topic", topic)

    def _topics(self, *arguments: str) -> None:
        self._tool(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.servers, *arguments
        )

    def _await_brokers(self) -> None:
        """Wait until each of them can lead: a topic with three replicas needs all three."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.create("started", partitions=1, config={})
            except PeerMissing:
                if time.monotonic() > deadline or any(
                    p.poll() is not None for p in self._processes.running
                ):
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def _tool(self, main: str, *arguments: str) -> None:
        command = [self._java, *_TOOL_FLAGS, "-cp", self._class_path, main, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TOOL_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"Kafka does not answer: {main} took over {_TOOL_S:.0f} s") from error
        if done.returncode:
            raise PeerMissing(
                f"Kafka's {main} failed: {(done.stdout + done.stderr).strip()[-600:]}"
            )
