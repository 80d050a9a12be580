"""Keeps a ZooKeeper session alive, replaces it when it ends, and keeps watches armed.

A session is one `Link`. When it ends, by the server's word or by the lease's own timer, the
link is given up and a new one made, so nothing of the old session (its ephemeral nodes, calls
that wait in its queue) can be taken for part of the new one.

Watches on the server fire once and are lost with the connection. So a path is armed when
first watched, after each firing and after each connecting, and its watchers are woken once
that is done: they read what is new, and the next change will fire again.

Nothing here waits for an answer for longer than a share of the session timeout: then the
connection is dropped, and the next one begins where this one ended.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, NoAuthError, NoNodeError
from kazoo.security import ACL

from ledger.log_events import get_logger
from ledger.metastore.acl import WITNESSES, AclRoles, ids_of, is_masked, roles_of
from ledger.metastore.ops import INSTANCE, ROOT
from ledger.metastore.port import Session
from ledger.metastore.session import Lease, PathWatch, WatchTable
from ledger.metastore.uri import ZooKeeperUri
from ledger.metastore.zookeeper_link import CONNECTED, LOST, AsyncCall, AsyncResult, Link

_HEARTBEATS_PER_TIMEOUT: Final = 6
_ANSWER_SHARE: Final = 1 / 4
"""Of the session timeout. With a sixth before the last proof, there is a quarter left to connect
again and prove the session, before it counts as gone."""
_BEGIN_AGAIN_S: Final = 0.5
_STOP_TIMEOUT_S: Final = 10.0
_ROLES_S: Final = 60.0
"""How old what is known of the roles of the namespace may get: operators can change them."""

_log: Final = get_logger(__name__)


class ZooKeeperKeeper:
    """Used on one event loop."""

    def __init__(self, parsed: ZooKeeperUri, session_timeout_s: float) -> None:
        self._parsed = parsed
        self.root = parsed.root
        self._session_timeout_s = session_timeout_s
        self._loop = asyncio.get_running_loop()
        self.link = Link(parsed, session_timeout_s, self)
        self.ready = asyncio.Event()
        """Set while connected in a session that is believed in."""
        self.denied = ""
        """Why the server does not let us in."""
        self.roles = AclRoles()
        """Of the namespace, as they were read last."""
        self._roles_due = 0.0
        self._lease: Lease | None = None
        self._leased: Link | None = None
        self._watches = WatchTable(on_first=self._arm_first, on_last=self._disarm)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def session(self) -> Session:
        assert self._lease is not None, "open() waits for the first session"
        return self._lease.session

    def start(self) -> None:
        """Connect in the background; `ready` says when that is done, or `denied`."""
        self.link.start()
        self._spawn(self._send_heartbeats())

    def watch(self, path: str) -> PathWatch:
        return self._watches.add(path)

    def on_server(self, path: str) -> str:
        """Return the server's path of a node of the namespace."""
        return self.root + path if path != ROOT else self.root or ROOT

    def in_namespace(self, on_server: str) -> str:
        return on_server.removeprefix(self.root) or ROOT

    async def close(self, *, timeout_s: float) -> None:
        """End the session: its ephemeral nodes go at once."""
        self._closed = True
        self.ready.clear()
        self._watches.close()
        if self._lease is not None:
            self._lease.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.stop(timeout_s=timeout_s)

    # Events of the link.

    def state_changed(self, link: Link, state: str) -> None:
        if link is not self.link or self._closed:
            return
        if state == CONNECTED:
            self._spawn(self._resume(link))
            return
        self.ready.clear()
        if state == LOST:
            if link is self._leased and self._lease is not None:
                self._lease.end()
            else:  # it ended before it had begun
                self._loop.call_later(_BEGIN_AGAIN_S, self._begin_again, link)

    def watch_fired(self, link: Link, path: str) -> None:
        path = self.in_namespace(path)
        if link is self.link and path in self._watches and not self._closed:
            self._spawn(self._arm(link, [path]))

    async def _resume(self, link: Link) -> None:
        """The link is connected: begin or prove its session, and arm all watches."""
        sent_at = self._loop.time()
        try:
            if link is not self._leased:
                await self._take_acl(link)
            await self._ask(link, self._heartbeat, urgent=True)
        except NoAuthError:
            self.denied = f"no right to use {self.on_server(ROOT)}"
            self.ready.set()
            return
        except KazooException:
            return  # disconnected again: the next connection tries again
        if link is not self.link or not link.connected or self._closed:
            return
        if link is not self._leased:
            self._leased = link
            self._lease = Lease(
                link.session_id,
                proven_at=sent_at,
                timeout_s=self._granted_s(link),
                on_lost=lambda: self._begin_again(link),
            )
        elif self._lease is not None:
            self._lease.prove(sent_at)
        if not self.session.lost.is_set():
            self.ready.set()
            await self._arm(link, self._watches.paths())

    async def _send_heartbeats(self) -> None:
        while True:
            await self.ready.wait()
            link, sent_at = self.link, self._loop.time()
            with contextlib.suppress(KazooException):
                await self._ask(link, self._heartbeat, urgent=True)
                if link is self._leased and self._lease is not None:
                    self._lease.prove(sent_at)
                if self._loop.time() >= self._roles_due:
                    await self._take_acl(link)
            await asyncio.sleep(self._granted_s(link) / _HEARTBEATS_PER_TIMEOUT)

    async def _ask(self, link: Link, start: AsyncCall, *, urgent: bool = False) -> object:
        """Do one of our own calls. Raises what kazoo gives; drops a connection that is silent."""
        try:
            within_s = self._granted_s(link) * _ANSWER_SHARE
            return await link.call(start, urgent=urgent, within_s=within_s)
        except TimeoutError as error:
            _log.warning("zookeeper_is_silent", session=link.session_id)
            link.drop()
            raise ConnectionLoss from error

    def _granted_s(self, link: Link) -> float:
        return min(self._session_timeout_s, link.granted_timeout_s)

    def _begin_again(self, link: Link) -> None:
        """Give *link* up, whose session has ended, and begin another."""
        if link is not self.link or self._closed:
            return
        self.ready.clear()
        self._spawn(link.stop(timeout_s=_STOP_TIMEOUT_S))
        self.link = Link(self._parsed, self._session_timeout_s, self)
        self.link.start()

    def _heartbeat(self, client: KazooClient) -> AsyncResult:
        # A sync goes to the leader, who keeps the sessions: a server that lost it could
        # answer a read all by itself.
        result: AsyncResult = client.sync_async(self.on_server(ROOT))
        return result

    async def _take_acl(self, link: Link) -> None:
        """Let all nodes that this session makes have the ACL of the namespace, if there is one."""
        known: list[tuple[str, ...]] = []
        self._roles_due = self._loop.time() + _ROLES_S
        for witness in WITNESSES:
            try:
                acl = await self._acl(link, witness)
            except NoNodeError:
                if witness == INSTANCE:  # no namespace: is there a right to make one?
                    with contextlib.suppress(NoNodeError):
                        await self._acl(link, ROOT)
                    return
                known.append(())
                continue
            known.append(ids_of(acl))
            if is_masked(known[-1]):
                raise NoAuthError
            if witness == INSTANCE:
                link.make_as(acl)
        self.roles = roles_of(*known)

    async def _acl(self, link: Link, path: str) -> list[ACL]:
        on_server = self.on_server(path)
        said = await self._ask(link, partial(_get_acls, on_server), urgent=True)
        assert isinstance(said, tuple), "kazoo returns ACL and stat"
        return list(said[0])

    # Watches.

    def _arm_first(self, path: str) -> None:
        if self.ready.is_set():
            self._spawn(self._arm(self.link, [path]))

    def _disarm(self, path: str) -> None:
        if self.ready.is_set() and not self._closed:
            self._spawn(self._disarm_unless_wanted(self.link, path))

    async def _disarm_unless_wanted(self, link: Link, path: str) -> None:
        if path not in self._watches:  # still so
            with contextlib.suppress(KazooException):
                await self._ask(link, link.unwatch(self.on_server(path)))

    async def _arm(self, link: Link, paths: Iterable[str]) -> None:
        for path in paths:
            on_server = self.on_server(path)
            for start in (link.watch_node(on_server), link.watch_children(on_server)):
                # No node has no children to watch; a lost connection arms all again.
                with contextlib.suppress(KazooException):
                    await self._ask(link, start)
            self._watches.wake([path])

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _get_acls(path: str, client: KazooClient) -> AsyncResult:
    result: AsyncResult = client.get_acls_async(path)
    return result
