"""The metadata store of the simulation: the production tree behind a simulated network.

The tree is the one that `memory://` serves; here every call takes time, its reply may be lost
after it was done, and it may arrive twice, so a client can be told "conflict" by its own
write. Sessions are leases: a host that crashes, is paused or is cut off loses its ephemeral
nodes, and makes them again when it is back (rule 79).
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from ledger.errors import MetadataError, MetadataUnavailable
from ledger.ids import BookieId, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.metastore.tree import Tree
from tests.simulation.host import Host
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Scheduler, Timer

Result = TypeVar("Result")

CALL_TIMEOUT_S: Final = 2.0
SESSION_S: Final = 6.0
HEARTBEAT_S: Final = 2.0
WATCH_RETRY_S: Final = 1.0
AVAILABLE: Final = "/bookies/available"


class SimMetadata:
    def __init__(self, scheduler: Scheduler, network: Network, oracle: Oracle) -> None:
        self.host = Host(scheduler, "metadata")
        self.tree = Tree()
        self._scheduler = scheduler
        self._network = network
        self._oracle = oracle
        self._leases: dict[str, Timer] = {}
        self._sessions = 0
        self._watches: dict[str, list[tuple[Host, Callable[[], None]]]] = {}

    def call(
        self,
        client: Host,
        what: str,
        operation: Callable[[Tree], Result],
        on_done: Callable[[Result | MetadataError], None],
    ) -> None:
        """Do *operation* at the store; tell *client* the result, or an error of the port."""

        def handle(reply: Callable[[Result | MetadataError], None]) -> None:
            try:
                answer: Result | MetadataError = operation(self.tree)
            except MetadataError as error:
                answer = error
            self._notify()
            reply(answer)

        def done(answer: Result | MetadataError | None) -> None:
            if answer is None:
                answer = MetadataUnavailable("simulated", what, CALL_TIMEOUT_S)
            on_done(answer)

        self._network.request(client, self.host, handle, done, timeout_s=CALL_TIMEOUT_S)

    def _notify(self) -> None:
        for path in self.tree.take_changed():
            for client, changed in self._watches.get(path, ()):
                self._tell(client, changed)

    def _tell(self, client: Host, changed: Callable[[], None]) -> None:
        """Tell of a change, as often as it takes: a watch is level triggered, and not lost."""
        if not client.up:
            return
        if self._network.loses(self.host, client):
            self._scheduler.after(WATCH_RETRY_S, partial(self._tell, client, changed))
        else:
            delay_s = self._network.delay_s(self.host, client)
            self._scheduler.after(delay_s, partial(client.arrive, changed))

    # Ledgers.

    def watch_ledger(self, client: Host, ledger_id: LedgerId, changed: Callable[[], None]) -> None:
        """Call *changed* on *client* a little after each change of the ledger's metadata."""
        self._watches.setdefault(_path(ledger_id), []).append((client, changed))

    def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Store a new ledger at once; creation itself is not under test here."""
        self.tree.create(_path(ledger_id), metadata.encode())
        self._oracle.recorded(ledger_id, 0, metadata)

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger at once, whoever uses it."""
        self.tree.delete(_path(ledger_id))
        self._oracle.recorded(ledger_id, 0, None)
        self._notify()

    def get_ledger(
        self,
        client: Host,
        ledger_id: LedgerId,
        on_done: Callable[[tuple[LedgerMetadata, int] | MetadataError], None],
    ) -> None:
        def operation(tree: Tree) -> tuple[LedgerMetadata, int]:
            node = tree.get(_path(ledger_id))
            return LedgerMetadata.decode(node.value, path=_path(ledger_id)), node.version

        self.call(client, "get", operation, on_done)

    def set_ledger(
        self,
        client: Host,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        on_done: Callable[[int | MetadataError], None],
    ) -> None:
        def operation(tree: Tree) -> int:
            written = tree.set(_path(ledger_id), metadata.encode(), version)
            self._oracle.recorded(ledger_id, written, metadata)
            return written

        self.call(client, "set", operation, on_done)

    # Bookies.

    def available(self) -> tuple[BookieId, ...]:
        """Return the bookies that are registered now, sorted: what a fresh watch tells."""
        if self.tree.exists(AVAILABLE) is None:
            return ()
        return tuple(BookieId(name) for name in self.tree.children(AVAILABLE))

    def register(self, bookie: Host) -> None:
        """Keep *bookie* registered as long as its session lives; begin again after a loss."""
        self._sessions += 1
        session = f"{bookie.name}/{self._sessions}"
        self._leases[session] = self._scheduler.after(SESSION_S, partial(self._expire, session))
        self._heartbeat(bookie, session)

    def _heartbeat(self, bookie: Host, session: str) -> None:
        def operation(tree: Tree) -> bool:
            lease = self._leases.get(session)
            if lease is None:
                return False
            lease.cancel()
            self._leases[session] = self._scheduler.after(SESSION_S, partial(self._expire, session))
            path = f"{AVAILABLE}/{bookie.name}"
            if tree.exists(path) is None:  # else the node of an earlier session must go first
                tree.create(path, owner=session)
            return True

        def done(alive: bool | MetadataError) -> None:
            if alive is False:
                self._scheduler.mark("session_expired")
                self.register(bookie)
            else:
                bookie.after(HEARTBEAT_S, partial(self._heartbeat, bookie, session))

        self.call(bookie, "heartbeat", operation, done)

    def _expire(self, session: str) -> None:
        self._scheduler.note("metadata", f"ends session {session}")
        del self._leases[session]
        self.tree.end_session(session)
        self._notify()


def _path(ledger_id: LedgerId) -> str:
    return f"/ledgers/L{ledger_id:010d}"
