"""Kafka: three brokers on this machine, each of them a voter too, with nothing but defaults.

They end with the process that started them, however that ends.
"""

import secrets
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import getpid
from pathlib import Path
from typing import Final, Self

from benchmarks.peers.jars import PeerMissing, fetched
from dlog.local.child import dying_with_parent
from dlog.local.errors import JavaMissing
from dlog.local.java import find_java

VERSION: Final = "4.3.1"
BROKERS: Final = 3
SYNCED: Final = {"flush.messages": "1"}
"""A topic whose records are on the disk of each replica when they are acknowledged."""
_ARTIFACTS: Final = tuple(
    f"org.apache.kafka:{name}:{VERSION}" for name in ("kafka_2.13", "kafka-tools")
)
# As Kafka's own scripts start a broker and a tool.
_BROKER_FLAGS: Final = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
_TOOL_FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_S: Final = 60.0
_STOP_S: Final = 15.0
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


class KafkaCluster:
    """Three brokers in *directory*; a context manager. Topics have three replicas, and acks=all
    means two of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.servers = ""
        """What clients call `bootstrap.servers`."""

    def __enter__(self) -> Self:
        """Start the brokers. Raises `PeerMissing`. Call it on a thread that stays."""
        jars = fetched(_ARTIFACTS)
        try:
            self._java = str(find_java().executable)
        except JavaMissing as error:
            raise PeerMissing(str(error)) from error
        self._class_path = ":".join(map(str, jars))
        ports = _free_ports(2 * BROKERS)
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
                self._start(directory, properties)
            self._await_brokers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

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

    def _start(self, directory: Path, properties: Path) -> None:
        command = [
            self._java,
            *_BROKER_FLAGS,
            "-cp",
            self._class_path,
            "kafka.Kafka",
            str(properties),
        ]
        with (directory / "broker.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    dying_with_parent(command, getpid()),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=directory,
                )
            )

    def _await_brokers(self) -> None:
        """Wait until each of them can lead: a topic with three replicas needs all three."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.create("started", partitions=1, config={})
            except PeerMissing:
                if time.monotonic() > deadline or any(
                    p.poll() is not None for p in self._processes
                ):
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

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


def _free_ports(count: int) -> Sequence[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
