"""The metadata store of the simulated logs: calls in order, sessions of clients, manifests.

What a client calls goes over one connection, in order, as a ZooKeeper client's: it breaks as a
whole, and what an older connection still carries is not done after what a newer one brought.
What it reads may be as old as the server lags that it is connected to; see `past`.
A session is a lease that heartbeats prolong; who was paused or cut off loses it, learns so by
its own timer, and gets a new one.
"""

from __future__ import annotations  # evaluated at each call, those of inner functions cost a lot

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, name_of
from dlog.protocol.consumer_steps import decode
from leader.election import LEADERS_PATH
from ledger.cluster import encode_instance
from ledger.errors import MetadataError, MetadataUnavailable
from ledger.feature_level import LEVEL_MAX, ClusterLevel
from ledger.manager.layout import INSTANCE as INSTANCE_PATH
from ledger.manager.layout import LEDGERS, Layout
from ledger.metastore.tree import Tree
from tests.simulation.bookie import INSTANCE
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.network import Network, Stream
from tests.simulation.kernel.scheduler import Scheduler
from tests.simulation.logs.oracle import LogOracle
from tests.simulation.logs.past import HidingTree, Past, PastTree
from tests.simulation.metadata import CALL_TIMEOUT_S, SimMetadata
from tests.simulation.oracle import Oracle

Result = TypeVar("Result")

Outcome = tuple[Result | MetadataError]

LAGS_FULLY: Final = 0.7
"""How probably a read sees nothing newer than what its server must know."""
READS: Final = frozenset({"get", "exists", "children"})


@dataclass(slots=True)
class Connection:
    """One client's way to the store."""

    stream: Stream[Outcome[object]]
    lag_s: float
    """How far its server may be behind."""
    done: int = 0
    """The last of its calls that was done."""
    seen: int = 0
    """The last change that it may have seen: it never reads anything older."""
    hidden: str = ""
    """A node that its server hides from it."""
    hidden_from_lists: bool = False
    """Or from reads of the node itself."""


class LogMetadata(SimMetadata):
    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        oracle: Oracle,
        layout: Layout,
        logs: LogOracle,
        lags_s: tuple[float, ...],
        late_replies: float,
        lies: float,
    ) -> None:
        """*lags_s*: how far the server of a client is behind at most. *late_replies*: how
        probably a leader learns late that a transaction of its own was done. *lies*: how
        probably a log is hidden from a janitor, by lists or by reads."""
        super().__init__(scheduler, network, oracle, layout)
        self.logs = logs
        self._lags_s = lags_s
        self.late_replies = late_replies
        self.lies = lies
        self.tree.create(INSTANCE_PATH, encode_instance(INSTANCE, ClusterLevel(LEVEL_MAX)))
        self._past = Past(self.tree)
        self._net = network
        self._time = scheduler
        self._connections: dict[tuple[str, int], Connection] = {}
        """By client and its life."""
        self._numbers = 0
        self._consumers: dict[str, str] = {}
        """Incarnation of each named consumer, by its path."""
        self._caller: Host | None = None
        """Whose call is being done."""
        self._candidates: dict[str, tuple[str, bytes]] = {}
        """Session and value of each candidate's node, by its path."""
        self.on_candidate_gone: Callable[[str, str, bytes], None] = lambda *_: None
        """Called for a candidate's node deleted by another process: by whom, session and value."""
        self.on_report: Callable[[str, str], None] = lambda *_: None
        """Called for each node that has changed, with its path and who did that."""

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
        connection = self._connection(client)

        def handle(_connection: int, reply: Callable[[Outcome[object]], None]) -> None:
            if number <= connection.done:
                return
            connection.done = number
            tree = self._tree_for(connection, what)
            try:
                answer: Result | MetadataError = operation(tree)
            except MetadataError as error:
                answer = error
            self._caller = client
            self._notify()
            self._caller = None
            if tree is self.tree:
                connection.seen = self._past.change
            elif isinstance(tree, PastTree) and tree.lagged:
                self._time.mark("metadata_read_lagged")
            elif isinstance(tree, HidingTree) and tree.hid:
                self._time.mark("metadata_hid_a_log")
            late = what == "multi" and client.name.startswith("leader")
            if late and self._time.chance(self.late_replies):
                late_s = self._time.random.uniform(0.1, CALL_TIMEOUT_S)
                self._time.mark("metadata_reply_late")
                self._time.after(late_s, partial(reply, (answer,)))
            else:
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

    def _connection(self, client: Host) -> Connection:
        key = client.name, client.life
        connection = self._connections.get(key)
        if connection is None:
            stream: Stream[Outcome[object]] = Stream(
                self._net, client, self.host, timeout_s=CALL_TIMEOUT_S
            )
            lag_s = self._time.random.choice(self._lags_s)
            connection = self._connections[key] = Connection(stream, lag_s)
            if client.name.startswith("janitor") and self._time.chance(self.lies):
                self._hide_a_log(connection)
        return connection

    def _hide_a_log(self, connection: Connection) -> None:
        random = self._time.random
        names = self.tree.children(LOGS_PATH) if self.tree.exists(LOGS_PATH) is not None else []
        if names:
            connection.hidden = f"{LOGS_PATH}/{random.choice(names)}"
            connection.hidden_from_lists = random.random() < 0.5
            connection.lag_s = 0.0

    def watch(self, client: Host, path: str, changed: Callable[[], None]) -> None:
        """Also what the client's server has not heard of yet is reported, once it has."""
        super().watch(client, path, changed)
        connection = self._connection(client)
        if connection.lag_s and self._past.find(path, self._least(connection))[1]:
            self._tell(client, changed)

    def _least(self, connection: Connection) -> int:
        """Return the last change that the server of *connection* must know."""
        return max(self._past.as_of(self._time.now - connection.lag_s), connection.seen)

    def _tree_for(self, connection: Connection, what: str) -> Tree:
        """Return what the server of *connection* knows; a write or a `sync` goes to the leader."""
        if connection.hidden and what in READS:
            from_lists = connection.hidden_from_lists
            return HidingTree(self.tree, connection.hidden, from_lists=from_lists)
        if not connection.lag_s or what not in READS:
            return self.tree
        least, newest, random = self._least(connection), self._past.change, self._time.random
        connection.seen = least if random.random() < LAGS_FULLY else random.randint(least, newest)
        return PastTree(self._past, connection.seen)

    def _tell(self, client: Host, changed: Callable[[], None]) -> None:
        connection, change = self._connections.get((client.name, client.life)), self._past.change

        def told() -> None:
            if connection is not None:
                connection.seen = max(connection.seen, change)
            changed()

        if connection is None or not connection.lag_s:
            super()._tell(client, told)
        else:  # its server must hear of it first
            late_s = self._time.random.uniform(0.0, connection.lag_s)
            self._time.after(late_s, partial(super()._tell, client, told))

    def _take_changed(self) -> tuple[str, ...]:
        paths = super()._take_changed()
        if paths and any(self._lags_s):
            self._past.changed(paths, self._time.now)
        return paths

    def stream_of(self, client: Host) -> Stream[Outcome[object]] | None:
        connection = self._connections.get((client.name, client.life))
        return None if connection is None else connection.stream

    def _report_consumer(self, path: str) -> None:
        log, name = (name_of(path.split("/")[at]) for at in (2, 4))
        if self.tree.exists(path) is None:
            incarnation = self._consumers.pop(path, None)
            if incarnation is None:  # a copy of an older state deletes it once more
                return
            if incarnation not in self._consumers.values():  # else its log was renamed
                self.logs.consumer_gone(incarnation, log)
            return
        state = decode(self.tree.get(path).value, path=path)
        self._consumers[path] = state.incarnation
        self.logs.consumer_written(name, state)

    def _report_candidate(self, path: str) -> None:
        if self.tree.exists(path) is not None:
            owner = self.tree.owner(path)
            if owner is not None:
                self._candidates[path] = owner, self.tree.get(path).value
        elif path in self._candidates:
            session, value = self._candidates.pop(path)
            if self._caller is not None and not session.startswith(f"{self._caller.name}/"):
                self.on_candidate_gone(self._caller.name, session, value)

    def _report(self, path: str) -> None:
        super()._report(path)
        self.on_report(path, "" if self._caller is None else self._caller.name)
        parent, _, node = path.rpartition("/")
        if path.startswith(f"{LEADERS_PATH}/"):
            self._report_candidate(path)
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
            manifest = self.logs.objects.expanded(Manifest.decode(value, path=path))
            by = "" if self._caller is None else self._caller.name
            self.logs.manifest_written(name_of(node), version, manifest, by)
