"""One kazoo client, and so one ZooKeeper session, bridged to an event loop.

kazoo calls back on threads of its own; all that happens there is a `call_soon_threadsafe`.
What it does not do, and is done here (found with kazoo 2.11):
    - a call may never be answered, and kazoo takes long to doubt a connection, or never as long
      as new calls are sent: callers put a timeout around `call`, the keeper drops connections;
    - a Connect that meets a server which is just starting may never be answered, and kazoo waits
      for the whole session timeout: each step of connecting has a share of that here;
    - a call wakes kazoo's thread by a byte in a blocking socket pair, which is full after some
      270 bytes: an event loop that calls on while kazoo is disconnected would stop there. So
      calls are made only while connected, and at most `CALLS_MAX` are under way, beside a few
      of the keeper's, which must not wait behind them;
    - an answer that is not the one that kazoo expects (one before it never came), or that cannot
      be read, ends kazoo's thread for ever and gives the caller a `RuntimeError` or the like: here
      it is a connection that is lost, and another is made;
    - the session timeout that the server granted is not reported: it is read from the reply;
    - `stop` can hang: it runs on a thread that nobody has to wait for.
"""

import asyncio
import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, ParamSpec, Protocol, TypeVar, TypeVarTuple

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import Connect, write_string
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.security import ACL

from ledger.metastore.acl import acl_of, digest_id
from ledger.metastore.uri import ZooKeeperUri

_Ts = TypeVarTuple("_Ts")
_P = ParamSpec("_P")
_R = TypeVar("_R")

CALLS_MAX: Final = 100
URGENT_CALLS_MAX: Final = 20
CONNECTED: Final[str] = KazooState.CONNECTED
LOST: Final[str] = KazooState.LOST
_WATCHES_OF_ANY_KIND: Final = 3
_CONNECTING_SHARE_MIN: Final = 1 / 12
_CONNECTING_SHARE_MAX: Final = 1 / 3
"""Of the session timeout, for an answer while connecting: doubled with each silence, for servers
that are slow, and small at first, so that a session outlives several silent ones."""
_RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}

_log: Final = logging.getLogger(__name__)
logging.getLogger("kazoo").addHandler(logging.NullHandler())  # quiet unless asked for
_logs_of_kazoo: Final = logging.getLogger("kazoo.client.dlog")
_logs_of_kazoo.addFilter(lambda record: record.levelno > logging.DEBUG)
"""Else it tells all that it sends, at DEBUG: passwords, and what nodes hold."""


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
    """What a link reports, on the event loop."""

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
        self._urgent_slots = asyncio.Semaphore(URGENT_CALLS_MAX)
        self.connected = False
        self.granted_timeout_s = session_timeout_s
        with_user = bool(parsed.user)
        self._client = KazooClient(
            hosts=parsed.hosts,
            timeout=session_timeout_s,
            connection_retry=dict(_RECONNECT),
            auth_data=[("digest", f"{parsed.user}:{parsed.password}")] if with_user else None,
            default_acl=acl_of(new_ids(parsed)),
            use_ssl=bool(parsed.ca_file),
            ca=parsed.ca_file or None,
            certfile=parsed.cert_file or None,
            keyfile=parsed.key_file or None,
            check_hostname=bool(parsed.ca_file),
            logger=_logs_of_kazoo,
        )
        self._client.add_listener(self._listen)
        self._watch_over_connecting(session_timeout_s)
        self._watch_over_answers()

    @property
    def session_id(self) -> str:
        client_id = self._client.client_id
        return f"{client_id[0]:x}" if client_id else "none"

    def make_as(self, acl: list[ACL]) -> None:
        """Let every node that is made from now on have *acl*."""
        self._client.default_acl = acl

    def start(self) -> None:
        """Connect in the background, and again after each loss of the connection."""
        self._client.start_async()

    async def call(
        self, start: AsyncCall, *, urgent: bool = False, within_s: float | None = None
    ) -> object:
        """Return the result of a call. Raises `KazooException`; may wait for ever.

        *urgent*: do not wait behind calls that are not. *within_s*: from when it has a slot;
        raises `TimeoutError`. A call that is given up keeps its slot until it is answered, or
        the connection is lost."""
        slots = self._urgent_slots if urgent else self._slots
        await slots.acquire()
        try:
            future = self._begin(start, slots)
        except BaseException:
            slots.release()
            raise
        async with asyncio.timeout(within_s):
            return await future

    def drop(self) -> None:
        """Give the connection up, which has been silent for too long, and make another one.

        The session goes on if that succeeds in time; calls that wait fail as disconnected."""
        connected = self._client._connection._socket  # noqa: SLF001
        if connected is not None:
            # The plain socket's method: that of TLS changes what kazoo's thread works with.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

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

    def _begin(self, start: AsyncCall, slots: asyncio.Semaphore) -> asyncio.Future[object]:
        future: asyncio.Future[object] = self._loop.create_future()

        def on_thread(result: AsyncResult) -> None:
            self._post(self._finish, future, slots, result.value, result.exception)

        start(self._client).rawlink(on_thread)
        return future

    def _finish(
        self,
        future: asyncio.Future[object],
        slots: asyncio.Semaphore,
        value: object,
        exception: Exception | None,
    ) -> None:
        # Here, when kazoo is done with it, and not when the caller's patience ended.
        slots.release()
        if exception is None:
            _set_result(future, value)
        elif not future.done():
            future.set_exception(_understood(exception))

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

    def _watch_over_connecting(self, session_timeout_s: float) -> None:
        """Bound each step of connecting; learn the session timeout that the server granted."""
        # No public way: these private methods are all that kazoo connects by.
        connection, handler = self._client._connection, self._client.handler  # noqa: SLF001
        invoke, connect = connection._invoke, handler.create_connection  # noqa: SLF001
        longest_s = session_timeout_s * _CONNECTING_SHARE_MAX
        patience_s = shortest_s = session_timeout_s * _CONNECTING_SHARE_MIN

        def connect_in_time(*arguments: object, timeout: float, **options: object) -> object:
            return connect(*arguments, timeout=min(timeout, patience_s), **options)

        def invoke_in_time(timeout: float, request: object, xid: int | None = None) -> object:
            nonlocal patience_s
            try:
                reply = invoke(min(timeout, patience_s), request, xid)
            except handler.timeout_exception:
                patience_s = min(2 * patience_s, longest_s)
                raise
            patience_s = shortest_s
            if isinstance(request, Connect) and reply[0].time_out > 0:
                self.granted_timeout_s = reply[0].time_out / 1000
            return reply

        connection._invoke = invoke_in_time  # noqa: SLF001
        handler.create_connection = connect_in_time

    def _watch_over_answers(self) -> None:
        """Make the connection anew on which an answer is not what it should be."""
        connection, silent = self._client._connection, self._client.handler.timeout_exception  # noqa: SLF001

        def kept(step: Callable[_P, _R]) -> Callable[_P, _R]:
            def step_or_drop(*arguments: _P.args, **named: _P.kwargs) -> _R:
                try:
                    return step(*arguments, **named)
                except (KazooException, OSError, silent):
                    raise  # kazoo knows what to do
                except Exception as error:
                    _log.warning("zookeeper_answer_not_understood", exc_info=True)
                    raise ConnectionDropped(f"answer not understood: {error}") from error

            return step_or_drop

        connection._invoke = kept(connection._invoke)  # noqa: SLF001
        connection._read_socket = kept(connection._read_socket)  # noqa: SLF001


def new_ids(parsed: ZooKeeperUri) -> tuple[str, ...]:
    """Return who may touch a namespace that is made, sorted; empty: everybody."""
    user = {digest_id(parsed.user, parsed.password)} if parsed.user else set()
    return tuple(sorted({*parsed.ids, *user}))


def _understood(exception: Exception) -> KazooException:
    """Return what a call ended with: if kazoo did not understand the answer, nothing is known."""
    if isinstance(exception, KazooException):
        return exception
    loss = ConnectionLoss(f"answer not understood: {exception}")
    loss.__cause__ = exception
    return loss


def _set_result(future: asyncio.Future[_R], value: _R) -> None:
    if not future.done():
        future.set_result(value)
