"""The metadata store of the simulation: the production tree behind a simulated network.

The tree is the one that `memory://` serves; here every call takes time, its reply may be lost
after it was done, and while somebody waits for it it may be done twice, so a client can be
answered "conflict" by its own write. Sessions are leases: a host that crashes, is paused or is
cut off loses its ephemeral nodes, and makes them again when it is back (rule 79).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from ledger.errors import MetadataError, MetadataUnavailable
from ledger.ids import BookieId
from ledger.manager.layout import LEDGERS, Layout
from ledger.metadata import LedgerMetadata
from ledger.metastore.tree import Tree
from ledger.registry import AVAILABLE, COOKIES
from ledger.wire import metadata_pb2 as pb
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.network import Network, Stream
from tests.simulation.kernel.scheduler import Scheduler, Timer
from tests.simulation.oracle import Oracle

Result = TypeVar("Result")

CALL_TIMEOUT_S: Final = 2.0
SESSION_S: Final = 6.0
HEARTBEAT_S: Final = 2.0
WATCH_RETRY_S: Final = 1.0
CALM_SESSION_S: Final = 1800.0
CALM_HEARTBEAT_S: Final = 600.0


class SimMetadata:
    def __init__(
        self, scheduler: Scheduler, network: Network, oracle: Oracle, layout: Layout
    ) -> None:
        self.host = Host(scheduler, "metadata")
        self.tree = Tree()
        self.tree.create(LEDGERS)
        self.session_s, self.heartbeat_s = SESSION_S, HEARTBEAT_S
        self._layout = layout
        self._scheduler = scheduler
        self._network = network
        self._oracle = oracle
        self._leases: dict[str, Timer] = {}
        self._ended: dict[str, None] = {}
        self._sessions = 0
        self._calls = 0
        self._done: dict[str, int] = {}
        """The last call of each client that was done."""
        self._watches: dict[str, list[tuple[Host, Callable[[], None]]]] = {}

    def calm(self) -> None:
        """Let sessions be long from now on, so that hours pass in few steps."""
        self.session_s, self.heartbeat_s = CALM_SESSION_S, CALM_HEARTBEAT_S

    def call(
        self,
        client: Host,
        what: str,
        operation: Callable[[Tree], Result],
        on_done: Callable[[Result | MetadataError], None],
    ) -> None:
        """Do *operation* at the store; give *client* the result, or an error of the port.

        A call that nobody waits for any more may still be done, but not after a later one of
        the same client: a session is in order, and forgets what came by an older connection."""
        self._calls += 1
        number = self._calls
        waiting = [True]

        def handle(reply: Callable[[tuple[Result | MetadataError]], None]) -> None:
            if not waiting and number <= self._done.get(client.name, 0):
                return
            self._done[client.name] = max(number, self._done.get(client.name, 0))
            try:
                answer: Result | MetadataError = operation(self.tree)
            except MetadataError as error:
                answer = error
            self._notify()
            reply((answer,))

        def done(answer: tuple[Result | MetadataError] | None) -> None:
            waiting.clear()
            if answer is None:
                on_done(MetadataUnavailable("simulated", what, CALL_TIMEOUT_S))
            else:
                on_done(answer[0])

        self._network.request(client, self.host, handle, done, timeout_s=CALL_TIMEOUT_S)

    def _notify(self) -> None:
        for path in self._take_changed():
            self._report(path)
            for client, changed in self._watches.get(path, ()):
                self._tell(client, changed)

    def _take_changed(self) -> tuple[str, ...]:
        return self.tree.take_changed()

    def _tell(self, client: Host, changed: Callable[[], None]) -> None:
        """Report a change, as often as it takes: a watch is level triggered, and not lost."""
        if not client.up:
            return
        if self._network.loses(self.host, client):
            self._scheduler.after(WATCH_RETRY_S, partial(self._tell, client, changed))
        else:
            delay_s = self._network.delay_s(self.host, client)
            self._scheduler.after(delay_s, partial(client.arrive, changed))

    def _report(self, path: str) -> None:
        """Show the oracle what the store holds of a ledger now."""
        names = tuple(path.split("/")[2:])
        if not path.startswith(LEDGERS) or len(names) != self._layout.depth:
            return
        ledger_id = self._layout.ledger_id(names)
        version = self.tree.exists(path)
        if version is None:
            self._oracle.deleted(ledger_id)
        else:
            metadata = LedgerMetadata.decode(self.tree.get(path).value, path=path)
            self._oracle.recorded(ledger_id, version, metadata)

    def watch(self, client: Host, path: str, changed: Callable[[], None]) -> None:
        """Call *changed* on *client* a little after each change of *path*."""
        self._watches.setdefault(path, []).append((client, changed))

    def unwatch(self, client: Host, path: str, changed: Callable[[], None]) -> None:
        """Undo one `watch`."""
        self._watches[path].remove((client, changed))

    def stream_of(self, _client: Host) -> Stream[Any] | None:
        """Return the connection of a client, if its calls go over one."""
        return None

    # Bookies.

    def available(self) -> tuple[BookieId, ...]:
        """Return the bookies that are registered now, sorted: what a fresh watch reports."""
        if self.tree.exists(AVAILABLE) is None:
            return ()
        return tuple(BookieId(name) for name in self.tree.children(AVAILABLE))

    def away(self) -> tuple[BookieId, ...]:
        """Return the bookies that have a cookie and may come back, sorted; none that is
        registered."""
        if self.tree.exists(COOKIES) is None:
            return ()
        there = self.available()
        return tuple(
            BookieId(name)
            for name in self.tree.children(COOKIES)
            if name not in there
            and not pb.CookieNode.FromString(self.tree.get(f"{COOKIES}/{name}").value).retired_ms
        )

    def register(self, bookie: Host) -> None:
        """Keep *bookie* registered as long as its session lives; begin again after a loss."""
        self._sessions += 1
        session = f"{bookie.name}/{self._sessions}"
        self._lease(session)
        self._heartbeat(bookie, session)

    def prolong(self, session: str) -> bool:
        """At the store: let *session* live on from now; False if it has ended."""
        if session in self._ended:
            return False
        lease = self._leases.get(session)
        if lease is not None:
            lease.cancel()
        self._lease(session)
        return True

    def _lease(self, session: str) -> None:
        expire = partial(self._expire, session)
        self._leases[session] = self._scheduler.after(self.session_s, expire)

    def _heartbeat(self, bookie: Host, session: str) -> None:
        def operation(tree: Tree) -> bool:
            lease = self._leases.get(session)
            if lease is None:
                return False
            lease.cancel()
            self._lease(session)
            path = f"{AVAILABLE}/{bookie.name}"
            if tree.exists(path) is not None and tree.owner(path) != session:
                tree.delete(path)  # it would vanish with its session later on (rule 79)
            if tree.exists(path) is None:
                tree.create(path, owner=session)
            return True

        def done(alive: bool | MetadataError) -> None:
            if alive is False:
                self._scheduler.mark("session_expired")
                self.register(bookie)
            else:
                soon = isinstance(alive, MetadataError)  # also while everything is calm
                pause_s = HEARTBEAT_S if soon else self.heartbeat_s
                bookie.after(pause_s, partial(self._heartbeat, bookie, session))

        self.call(bookie, "heartbeat", operation, done)

    def _expire(self, session: str) -> None:
        self._scheduler.note("metadata", f"ends session {session}")
        self._ended[session] = None
        del self._leases[session]
        self.tree.end_session(session)
        self._notify()
