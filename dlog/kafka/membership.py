"""Gateways that live: this one registers itself and watches the others.

A gateway is an ephemeral node, so it is gone once its session has ended. It listens on a lifeline
as candidates of an election do (`leader.lifeline`): the others learn of its death at once, delete
its node and lead its logs, rather than waiting for its session to expire.

Invariants:
    a gateway leads nothing while its session of the metadata store is lost, or is not registered
    a node is deleted by another gateway only if its process has died for certain
"""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

from dlog.kafka.protocol.gateways import GatewayView
from dlog.protocol.gateway_record import GATEWAYS_PATH, GatewayRecord, node_id_of
from leader.lifeline import Lifeline, has_died
from ledger.delays import Backoff
from ledger.errors import DamagedMetadata, LogError, NoSuchNode
from ledger.log_events import get_logger, now_ms
from ledger.metastore.port import MetadataStore, Session, Watch, children_of
from ledger.process import this_process
from ledger.security.certificates import Security
from ledger.tasks import is_cancelled

GATEWAYS_MAX: Final = 1000
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 5.0
LOOK_S: Final = 10.0
"""The list of gateways is read this often even if its watch reports nothing."""
SETTLE_S: Final = 0.5
"""How long a client waits to hear who leads while it is found out whether a gateway is dead."""
LISTED_S: Final = 3.0
"""How long clients are told of a gateway that has left: those that had it ask within a second. New
ones may try it in vain, and report that they did."""
WITHDRAW_S: Final = 1.0
"""How long `close` waits for the node to go; the end of the session deletes it otherwise."""
_log = get_logger(__name__)


class Membership:
    """`start`, then `close`. *changed* is called after each change of the view."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        host: str,
        port: int,
        security: Security | None = None,
        listen: str | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """*host*, *port*: where clients and other gateways reach this one. *listen*: the address
        to listen on for that; *host* unless given."""
        self._store, self._security, self._changed = store, security, changed
        self._host, self._port = host, port
        self._listen = listen
        self._lifeline: Lifeline | None = None
        self._session: Session | None = None
        """In which the node was made."""
        self._own_path = ""
        self._view = GatewayView()
        self._left: dict[str, tuple[GatewayRecord, float]] = {}
        """Gateways that were in a view before, and when, by address."""
        self._records: dict[str, GatewayRecord] = {}
        """By path."""
        self._watchers: dict[str, asyncio.Task[None]] = {}
        """What waits for the death of each other gateway, by path."""
        self._dead: set[str] = set()
        """Paths of gateways that died and whose nodes are still listed."""
        self._lifelines: dict[str, asyncio.StreamReader] = {}
        """Connections to the lifelines of other gateways, by path."""
        self._decided = asyncio.Event()
        """Set when it was found out whether one is dead whose connection had ended."""
        self._running: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self.deaths = 0
        """Of other gateways, that were noticed here first or also."""

    @property
    def view(self) -> GatewayView:
        """The gateways that live, as last read; nobody while this one is not a member."""
        return self._view if self.is_member else GatewayView()

    @property
    def last_view(self) -> GatewayView:
        """The gateways as last read, also while this one is not a member."""
        return self._view

    @property
    def listed(self) -> list[GatewayRecord]:
        """The gateways that clients are told of: those as last read, and those that have left less
        than `LISTED_S` ago.

        Where a broker is missing from the list, librdkafka drops it with the partitions that it had
        and looks for these a second later, although the same list names their next leader."""
        oldest = asyncio.get_running_loop().time() - LISTED_S
        living = self._view.gateways
        addresses = {gateway.address for gateway in living}
        self._left = {
            address: (gateway, at)
            for address, (gateway, at) in self._left.items()
            if at > oldest and address not in addresses
        }
        return [*living, *(gateway for gateway, _ in self._left.values())]

    @property
    def is_member(self) -> bool:
        return (
            self._session is not None
            and not self._session.lost.is_set()
            and self._store.session is self._session
        )

    @property
    def node_id(self) -> int:
        """Of this gateway; -1 if it is no member now."""
        return node_id_of(self._own_path) if self.is_member else -1

    def leads(self, log: str) -> bool:
        """Return whether this gateway leads *log*, by its view."""
        leader = self.view.leader_of(log)
        return leader is not None and leader.node_id == self.node_id

    async def settled(self) -> GatewayView:
        """Return the view, once it is known of each gateway whose lifeline has ended whether it is
        dead; after `SETTLE_S` at the latest.

        A client that lost its leader asks at the same moment; told of the dead one again, it would
        not ask for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while any(lifeline.at_eof() for lifeline in self._lifelines.values()):
                    self._decided.clear()
                    await self._decided.wait()
        return self.view

    async def start(self) -> None:
        """Register, and read who else is there. Raises `MetadataUnavailable`."""
        try:
            self._lifeline = Lifeline.open(self._host, self._security, listen=self._listen)
        except OSError as error:  # then the others wait for the end of our session
            _log.warning("no_lifeline", host=self._host, reason=str(error))
        try:
            await self._register()
            await self.refresh()
        except BaseException:
            await self.close()
            raise
        self._running = asyncio.create_task(self._run(), name="membership")

    async def close(self) -> None:
        """Be a member no more; the others lead our logs from now on. Idempotent."""
        tasks = [*self._watchers.values(), *([self._running] if self._running else [])]
        self._watchers.clear()
        self._running = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.is_member:
            with suppress(LogError, TimeoutError):
                async with asyncio.timeout(WITHDRAW_S):
                    await self._store.delete(self._own_path)
        self._session = None
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    async def refresh(self) -> None:
        """Read who lives now. Raises `MetadataUnavailable`."""
        async with self._looking:
            await self._store.sync(GATEWAYS_PATH)
            names = (await children_of(self._store, GATEWAYS_PATH))[:GATEWAYS_MAX]
            paths = [f"{GATEWAYS_PATH}/{name}" for name in names]
            for path in paths:
                if path not in self._records:
                    with suppress(NoSuchNode):
                        await self._read(path)
            self._dead &= set(paths)
            for path in self._records.keys() - set(paths):
                del self._records[path]
                self._forget(path)
            if self._own_path and self._own_path not in paths and self.is_member:
                # Deleted by somebody who thought us dead: lead nothing until registered again.
                self._session = None
            self._apply()

    async def _read(self, path: str) -> None:
        value = (await self._store.get(path)).value
        try:
            record = GatewayRecord.decode(value, path=path)
        except (DamagedMetadata, ValueError) as error:
            _log.warning("gateway_not_read", path=path, reason=str(error))
            return
        self._records[path] = record
        if path != self._own_path and record.lifeline is not None:
            watcher = asyncio.create_task(self._until_dead(path, record), name=f"lifeline {path}")
            self._watchers[path] = watcher

    def _apply(self) -> None:
        living = (record for path, record in self._records.items() if path not in self._dead)
        view = GatewayView(living)
        if view.gateways != self._view.gateways:
            now = asyncio.get_running_loop().time()
            self._left |= {gateway.address: (gateway, now) for gateway in self._view.gateways}
            self._view = view
            _log.info("gateways", addresses=[each.address for each in view.gateways])
            self._changed()

    def _forget(self, path: str) -> None:
        watcher = self._watchers.pop(path, None)
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()

    async def _until_dead(self, path: str, record: GatewayRecord) -> None:
        """Take the gateway at *path* out of the view once its process has died for certain."""
        assert record.lifeline is not None

        def connected(reader: asyncio.StreamReader) -> None:
            self._lifelines[path] = reader

        try:
            while not await has_died(record.lifeline, security=self._security, connected=connected):
                self._is_decided(path)
                await asyncio.sleep(LOOK_S)  # nothing can be learned from here just now
            self._died(path, record)
        finally:
            self._is_decided(path)
        with suppress(LogError):
            await self._store.delete(path)

    def _is_decided(self, path: str) -> None:
        self._lifelines.pop(path, None)
        self._decided.set()

    def _died(self, path: str, record: GatewayRecord) -> None:
        self.deaths += 1
        _log.info("gateway_died", address=record.address, node_id=record.node_id)
        self._dead.add(path)
        self._apply()

    async def _register(self) -> None:
        session = self._store.session
        old, self._own_path, self._session = self._own_path, "", None
        if old:
            with suppress(LogError):  # of a session that has ended, or soon will
                await self._store.delete(old)
        lifeline = None if self._lifeline is None else self._lifeline.address
        record = GatewayRecord(
            node_id=0,
            host=self._host,
            port=self._port,
            since_ms=now_ms(),
            process=this_process(),
            lifeline=lifeline,
        )
        self._own_path = await self._store.create(
            f"{GATEWAYS_PATH}/", record.encode(), ephemeral=True, sequential=True
        )
        if self._store.session is session:
            self._session = session

    async def _run(self) -> None:
        backoff = Backoff(PAUSE_S, PAUSE_S_MAX)
        while True:
            try:
                with closing(self._store.watch(GATEWAYS_PATH)) as watch:
                    while True:
                        if not self.is_member:
                            self._changed()
                            await self._register()
                        await self.refresh()
                        backoff.reset()
                        if self.is_member:
                            await self._until_news(watch)
            except LogError as error:
                _log.warning("gateway_not_registered", error=str(error))
                await asyncio.sleep(backoff.next())

    async def _until_news(self, watch: Watch) -> None:
        """Wait for a change of the list, or the end of the session, for `LOOK_S` at most."""
        assert self._session is not None
        waits = [
            asyncio.create_task(_changed(watch)),
            asyncio.create_task(_wait(self._session.lost)),
        ]
        try:
            await asyncio.wait(waits, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def read_gateways(store: MetadataStore) -> GatewayView:
    """Return the gateways that are registered. One that died is among them until its session has
    ended, or another gateway noticed. Raises `MetadataUnavailable`."""
    await store.sync(GATEWAYS_PATH)
    records: list[GatewayRecord] = []
    for name in (await children_of(store, GATEWAYS_PATH))[:GATEWAYS_MAX]:
        path = f"{GATEWAYS_PATH}/{name}"
        with suppress(NoSuchNode, DamagedMetadata, ValueError):
            records.append(GatewayRecord.decode((await store.get(path)).value, path=path))
    return GatewayView(records)


async def _changed(watch: Watch) -> None:
    try:
        await watch.changed()
    except asyncio.CancelledError:
        if is_cancelled():
            raise


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
