"""The metadata store of the simulated logs: calls in order, sessions of clients, manifests.

What a client calls goes over one connection, in order, as a ZooKeeper client's: it breaks as a
whole, and what an older connection still carries is not done after what a newer one brought.
A session is a lease that heartbeats prolong; who was paused or cut off loses it, learns so by
its own timer, and gets a new one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dlog.aio.consumer_nodes import decode
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, name_of
from ledger.errors import MetadataError, MetadataUnavailable
from ledger.manager.layout import LEDGERS, Layout
from ledger.metastore.tree import Tree
from tests.simulation.host import Host
from tests.simulation.logs.oracle import LogOracle
from tests.simulation.metadata import CALL_TIMEOUT_S, SimMetadata
from tests.simulation.network import Network, Stream
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Scheduler

Result = TypeVar("Result")

Outcome = tuple[Result | MetadataError]


@dataclass(slots=True)
class Connection:
    """One client's way to the store."""

    stream: Stream[Outcome[object]]
    done: int = 0
    """The last of its calls that was done."""


class LogMetadata(SimMetadata):
    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        oracle: Oracle,
        layout: Layout,
        logs: LogOracle,
    ) -> None:
        super().__init__(scheduler, network, oracle, layout)
        self.logs = logs
        self._net = network
        self._time = scheduler
        self._connections: dict[tuple[str, int], Connection] = {}
        """By client and its life."""
        self._numbers = 0
        self._ended: dict[str, None] = {}

    def call(
        self,
        client: Host,
        what: str,
        operation: Callable[[Tree], Result],
        on_done: Callable[[Result | MetadataError], None],
    ) -> None:
        self._numbers += 1
        number = self._numbers
        key = client.name, client.life
        connection = self._connections.get(key)
        if connection is None:
            stream: Stream[Outcome[object]] = Stream(
                self._net, client, self.host, timeout_s=CALL_TIMEOUT_S
            )
            connection = self._connections[key] = Connection(stream)

        def handle(_connection: int, reply: Callable[[Outcome[object]], None]) -> None:
            if number <= connection.done:
                return
            connection.done = number
            try:
                answer: Result | MetadataError = operation(self.tree)
            except MetadataError as error:
                answer = error
            self._notify()
            reply((answer,))

        def done(answer: Outcome[object] | None) -> None:
            if key != (client.name, client.life):
                return  # who asked has died
            if answer is None:
                self._time.mark("metadata_call_unknown")
                on_done(MetadataUnavailable("simulated", what, CALL_TIMEOUT_S))
            else:
                on_done(answer[0])  # type: ignore[arg-type]

        connection.stream.request(handle, done)

    def unwatch(self, client: Host, path: str, changed: Callable[[], None]) -> None:
        """Undo one `watch`."""
        self._watches[path].remove((client, changed))

    def stream_of(self, client: Host) -> Stream[Outcome[object]] | None:
        connection = self._connections.get((client.name, client.life))
        return None if connection is None else connection.stream

    def prolong(self, session: str) -> bool:
        """At the store: let *session* live on from now; False if it has ended."""
        if session in self._ended:
            return False
        lease = self._leases.get(session)
        if lease is not None:
            lease.cancel()
        self._lease(session)
        return True

    def _expire(self, session: str) -> None:
        self._ended[session] = None
        super()._expire(session)

    def _report_consumer(self, path: str) -> None:
        value = b"" if self.tree.exists(path) is None else self.tree.get(path).value
        if value:
            self.logs.consumer_written(path.rpartition("/")[2], decode(value, path=path))

    def _report(self, path: str) -> None:
        super()._report(path)
        parent, _, node = path.rpartition("/")
        if path.startswith(LEDGERS):
            names = tuple(path.split("/")[2:])
            if len(names) == self._layout.depth and self.tree.exists(path) is None:
                self.logs.ledger_deleted(self._layout.ledger_id(names))
        if parent.startswith(LOGS_PATH) and parent.endswith("/consumers"):
            self._report_consumer(path)
        if parent != LOGS_PATH:
            return
        version = self.tree.exists(path)
        if version is None:
            self.logs.manifest_deleted(name_of(node))
            return
        value = self.tree.get(path).value
        if value:
            manifest = Manifest.decode(value, path=path)
            self.logs.manifest_written(name_of(node), version, manifest)
