"""One kazoo client, and so one ZooKeeper session, bridged to an event loop.

kazoo calls back on threads of its own; all that happens there is a `call_soon_threadsafe`.
What it does not do, and is done here (found with kazoo 2.11):
    - a call may never be answered: callers put a timeout around `call`;
    - a call wakes kazoo's thread by a byte in a blocking socket pair, which is full after some
      270 bytes: an event loop that calls on while kazoo is disconnected would stop there. So
      calls are made only while connected, and at most `CALLS_MAX` are under way;
    - the session timeout that the server granted is not told: it is read from the reply;
    - `stop` can hang: it runs on a thread that nobody has to wait for.
"""

import asyncio
import contextlib
import logging
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeVar, TypeVarTuple

from kazoo.client import KazooClient, KazooState
from kazoo.protocol.serialization import Connect, write_string
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.security import CREATOR_ALL_ACL

from ledger.metastore.uri import ZooKeeperUri

_Ts = TypeVarTuple("_Ts")
_R = TypeVar("_R")

CALLS_MAX: Final = 100
CONNECTED: Final[str] = KazooState.CONNECTED
LOST: Final[str] = KazooState.LOST
_WATCHES_OF_ANY_KIND: Final = 3
_RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}

_log: Final = logging.getLogger(__name__)
logging.getLogger("kazoo").addHandler(logging.NullHandler())  # quiet unless asked for


class AsyncResult(Protocol):
    """What kazoo's calls return."""

    value: object
    exception: Exception | None

    def rawlink(self, callback: Callable[["AsyncResult"], None], /) -> None: ...


AsyncCall = Callable[[KazooClient], AsyncResult]
"""Starts a call on the client and returns its result object."""


@dataclass(frozen=True, slots=True)
class _RemoveWatches:
    """ZooKeeper's request 18, for all watches of one path, in the form of kazoo's requests."""

    path: str
    type: ClassVar[int] = 18

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path)
        return encoded + struct.pack("!i", _WATCHES_OF_ANY_KIND)

    @classmethod
    def deserialize(cls, _reply: bytes, _offset: int) -> bool:
        return True


class LinkEvents(Protocol):
    """What a link tells, on the event loop."""

    def state_changed(self, link: "Link", state: str) -> None:
        """The connection is `CONNECTED`, suspended, or the session is `LOST`."""

    def watch_fired(self, link: "Link", path: str) -> None:
        """A watch of *path*, the path on the server, has fired and is gone."""


class Link:
    """A session from before its first connection to its end."""

    def __init__(self, parsed: ZooKeeperUri, session_timeout_s: float, events: LinkEvents) -> None:
        self._loop = asyncio.get_running_loop()
        self._events = events
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self.connected = False
        self.granted_timeout_s = session_timeout_s
        with_user = bool(parsed.user)
        self._client = KazooClient(
            hosts=parsed.hosts,
            timeout=session_timeout_s,
            connection_retry=dict(_RECONNECT),
            auth_data=[("digest", f"{parsed.user}:{parsed.password}")] if with_user else None,
            default_acl=CREATOR_ALL_ACL if with_user else None,
            use_ssl=bool(parsed.ca_file),
            ca=parsed.ca_file or None,
            certfile=parsed.cert_file or None,
            keyfile=parsed.key_file or None,
            check_hostname=bool(parsed.ca_file),
        )
        self._client.add_listener(self._listen)
        self._learn_granted_timeout()

    @property
    def session_id(self) -> str:
        client_id = self._client.client_id
        return f"{client_id[0]:x}" if client_id else "none"

    def start(self) -> None:
        """Connect in the background, and again after each loss of the connection."""
        self._client.start_async()

    async def call(self, start: AsyncCall) -> object:
        """Return the result of a call. Raises what kazoo gives; may wait for ever."""
        await self._slots.acquire()
        try:
            future = self._begin(start)
        except BaseException:
            self._slots.release()
            raise
        return await future

    def watch_node(self, path: str) -> AsyncCall:
        """Return the call that arms a watch of value and existence."""
        return lambda client: client.exists_async(path, watch=self._watch_fired)

    def watch_children(self, path: str) -> AsyncCall:
        """Return the call that arms a watch of the list of children."""
        return lambda client: client.get_children_async(path, watch=self._watch_fired)

    def unwatch(self, path: str) -> AsyncCall:
        """Return the call that takes both watches back; else they stay until they fire."""

        def start(client: KazooClient) -> AsyncResult:
            # kazoo knows no such request; what it keeps by path would stay, too.
            client._data_watchers.pop(path, None)  # noqa: SLF001
            client._child_watchers.pop(path, None)  # noqa: SLF001
            result: AsyncResult = client.handler.async_result()
            client._call(_RemoveWatches(path), result)  # noqa: SLF001
            return result

        return start

    async def stop(self, *, timeout_s: float) -> None:
        """End the session; return when that is done, or after *timeout_s* in any case."""
        self.connected = False
        done: asyncio.Future[None] = self._loop.create_future()

        def on_thread() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception:  # noqa: BLE001 - whatever it is, the session will expire
                _log.warning("zookeeper_client_did_not_stop", exc_info=True)
            self._post(_set_result, done, None)

        threading.Thread(target=on_thread, name="zookeeper-stop", daemon=True).start()
        await asyncio.wait([done], timeout=timeout_s)

    def _begin(self, start: AsyncCall) -> asyncio.Future[object]:
        future: asyncio.Future[object] = self._loop.create_future()

        def on_thread(result: AsyncResult) -> None:
            self._post(self._finish, future, result.value, result.exception)

        start(self._client).rawlink(on_thread)
        return future

    def _finish(
        self, future: asyncio.Future[object], value: object, exception: Exception | None
    ) -> None:
        # Here, when kazoo is done with it, and not when the caller's patience ended.
        self._slots.release()
        if exception is None:
            _set_result(future, value)
        elif not future.done():
            future.set_exception(exception)

    # The next three run on kazoo's threads.

    def _listen(self, state: str) -> None:
        self._post(self._on_state, state)

    def _watch_fired(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # that only says that the connection is gone
            self._post(self._events.watch_fired, self, event.path)

    def _post(self, call: Callable[[*_Ts], None], *arguments: *_Ts) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody cares
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_state(self, state: str) -> None:
        self.connected = state == CONNECTED
        self._events.state_changed(self, state)

    def _learn_granted_timeout(self) -> None:
        # No public way: the reply to Connect is seen by this private method alone.
        connection = self._client._connection  # noqa: SLF001
        invoke = connection._invoke  # noqa: SLF001

        def invoke_and_look(timeout: float, request: object, xid: int | None = None) -> object:
            reply = invoke(timeout, request, xid)
            if isinstance(request, Connect) and reply[0].time_out > 0:
                self.granted_timeout_s = reply[0].time_out / 1000
            return reply

        connection._invoke = invoke_and_look  # noqa: SLF001


def _set_result(future: asyncio.Future[_R], value: _R) -> None:
    if not future.done():
        future.set_result(value)
