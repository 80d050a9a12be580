"""Serves what a process shows of itself over HTTP: /metrics, /healthz and /readyz.

On a thread with an event loop of its own, so that nobody who asks slowly, or wrongly, or all the
time takes a turn of the loop that does the work. Bounded: connections, how long each may take,
the size of a request, and how often a page is made.

    /metrics    all metrics, in Prometheus' text format
    /healthz    200 while the loop of the process turns, 503 if it does not
    /readyz     200 once the process does what it is there for, 503 before; as JSON, with reasons
"""

import asyncio
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from ledger.errors import MetricsNotServed
from ledger.log_events import get_logger
from ledger.metering.declaration import Exposed
from ledger.security.certificates import Security, certificate_of_peer
from ledger.security.metrics import METRICS
from ledger.security.settings import TlsMode
from ledger.security.tls_listener import TlsListener
from ledger.tasks import stop_accepting

if TYPE_CHECKING:
    from ledger.metering.collector import Page

_CLOSE_S_MAX: Final = 2.0
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    connections_max: int = 32
    """One more ends the oldest: who holds them all keeps out no probe, which takes no time."""
    request_s: float = 5.0
    """A connection is closed if its request has not come by then."""
    request_bytes_max: int = 8 * 1024
    answer_s: float = 10.0
    """A connection is closed if its answer was not taken by then."""
    linger_s: float = 1.0
    """So long what follows a request is thrown away, so that its client hears the answer."""
    page_s: float = 0.2
    """Who asks for metrics again within this time gets the page that was made last."""
    alive_s: float = 2.0
    """So long the loop of the process may take for its next turn."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


@contextmanager
def served(
    exposed: Exposed,
    host: str,
    port: int | None,
    tell: Callable[[str], None],
    *,
    security: Security | None = None,
) -> Iterator[None]:
    """Serve *exposed* for as long as this lasts, unless *port* is None; *tell* gets the sentence
    that says where. With *security* that requires TLS, what is served is HTTPS, and /metrics is for
    those with a certificate. Raises `MetricsNotServed`."""
    tls = security is not None and security.mode is TlsMode.REQUIRED
    if security is not None:
        exposed.add(METRICS, security)
    if port is None:
        yield
        return
    server = MetricsServer(exposed, security=security if tls else None)
    bound = server.start(host, port)
    tell(f"metrics are at {address_of(host, bound, tls=tls)}")
    try:
        yield
    finally:
        server.close()


def address_of(host: str, port: int, *, tls: bool = False) -> str:
    """Return where metrics that are served on *host* and *port* are found."""
    scheme = "https" if tls else "http"
    return (
        f"{scheme}://[{host}]:{port}/metrics"
        if ":" in host
        else f"{scheme}://{host}:{port}/metrics"
    )


class MetricsServer:
    """`start` and `close`, both from the thread that runs the event loop of the process."""

    def __init__(
        self,
        exposed: Exposed,
        limits: ServingLimits | None = None,
        *,
        security: Security | None = None,
    ) -> None:
        """Shows *exposed*, which may get more to show while this serves; by TLS only, with
        *security*."""
        self._security = security
        self._exposed = exposed
        self._limits = limits or ServingLimits()
        self._page: Page | None = None
        self._made: _Answer | None = None
        self._made_at = 0.0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """The oldest first."""
        self._worker: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    def start(self, host: str, port: int) -> int:
        """Listen on *host*:*port*, 0 for any free port; return the port.

        Whether the loop that runs now turns is what /healthz says. Raises `MetricsNotServed`."""
        from ledger.metering.collector import page_of

        assert self._thread is None, "it serves already"
        listening = _listen(host, port, self._limits.connections_max)
        self._page = page_of(self._exposed)
        self._main = asyncio.get_running_loop()
        self._worker = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._worker, listening), name="metrics", daemon=True
        )
        self._thread.start()
        bound: int = listening.getsockname()[1]
        return bound

    def close(self) -> None:
        """Answer nobody any more; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and self._worker is not None:
            self._worker.call_soon_threadsafe(self._ending.set)
            thread.join(_CLOSE_S_MAX)

    def _run(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        try:
            loop.run_until_complete(self._serve(listening))
        except Exception as error:  # noqa: BLE001 - the process goes on without
            _log.error("metrics_ended", reason=repr(error))
        finally:
            loop.close()
            listening.close()

    async def _serve(self, listening: socket.socket) -> None:
        server, taker = None, None
        if self._security is None:
            server = await asyncio.start_server(
                self._connected, sock=listening, limit=self._limits.request_bytes_max
            )
        else:
            taker = TlsListener(listening, self._protocol, self._security, open_to_all=True)
            taker.start()
        try:
            await self._ending.wait()
        finally:
            if server is not None:
                await stop_accepting(server)
            if taker is not None:
                await taker.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=self._limits.request_bytes_max)
        return asyncio.StreamReaderProtocol(reader, self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._limits.connections_max:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).transport.abort()  # it may not have begun
            oldest.cancel()
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda ended: self._connections.pop(ended, None))

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, answer it, close. Nothing is raised: nobody could do anything."""
        # `drain` waits until all was taken; with TLS, at 0, for ever.
        writer.transport.set_write_buffer_limits(high=1)
        try:
            async with asyncio.timeout(self._limits.request_s):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    head = None
            answer, has_body = await self._answer(head, writer.get_extra_info("ssl_object"))
            async with asyncio.timeout(self._limits.answer_s):
                writer.write(_encoded(answer, has_body=has_body))
                await writer.drain()
                if not writer.can_write_eof():  # TLS has an end of its own
                    writer.close()
                    await writer.wait_closed()
                    return
                writer.write_eof()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.linger_s):
                    while await reader.read(self._limits.request_bytes_max):
                        pass
        except (OSError, EOFError, TimeoutError):
            pass
        except Exception as error:  # noqa: BLE001 - a bug of ours takes one answer, not all
            _log.error("metrics_not_answered", reason=repr(error))
        finally:
            writer.transport.abort()  # what was to be sent, was: nothing else is waited for

    async def _answer(
        self, head: bytes | None, ssl_object: ssl.SSLObject | None
    ) -> tuple[_Answer, bool]:
        """Return the answer to a request, and whether its body is wanted."""
        if self._security is not None and ssl_object is None:
            return _said(HTTPStatus.FORBIDDEN, "TLS is required: use https://"), True
        if head is None:
            return _said(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long"), True
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _said(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1"), True
        method, target, _ = words
        if method not in {b"GET", b"HEAD"}:
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"), True
        known = self._security is None or certificate_of_peer(ssl_object) is not None
        return await self._get(target.partition(b"?")[0], known=known), method == b"GET"

    async def _get(self, path: bytes, *, known: bool) -> _Answer:
        """Metrics name logs, and a page takes a while to make: they are for who is *known*."""
        match path:
            case b"/metrics" if not known:
                return _said(HTTPStatus.FORBIDDEN, "metrics are for those who show a certificate")
            case b"/metrics":
                return self._metrics()
            case b"/healthz":
                return await self._health()
            case b"/readyz":
                return _ready(self._exposed)
            case _:
                return _said(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    def _metrics(self) -> _Answer:
        now = time.monotonic()
        if self._made is None or now >= self._made_at + self._limits.page_s:
            from ledger.metering.collector import CONTENT_TYPE

            assert self._page is not None
            self._made = _Answer(HTTPStatus.OK, self._page.render(), CONTENT_TYPE)
            self._made_at = time.monotonic()
        return self._made

    async def _health(self) -> _Answer:
        turned = asyncio.Event()
        assert self._main is not None
        try:
            self._main.call_soon_threadsafe(self._tell, turned)
            async with asyncio.timeout(self._limits.alive_s):
                await turned.wait()
        except (TimeoutError, RuntimeError):  # or the loop is closed
            reason = f"the event loop has not turned for {self._limits.alive_s:g} s"
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return _said(HTTPStatus.OK, "alive")

    def _tell(self, turned: asyncio.Event) -> None:
        """On the loop of the process."""
        assert self._worker is not None
        try:
            self._worker.call_soon_threadsafe(turned.set)
        except RuntimeError:
            return  # closed meanwhile


def _ready(exposed: Exposed) -> _Answer:
    found = exposed.readiness()
    status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
    return _Answer(status, json.dumps(asdict(found)).encode() + b"\n", _JSON)


def _said(status: HTTPStatus, words: str) -> _Answer:
    return _Answer(status, words.encode() + b"\n")


def _encoded(answer: _Answer, *, has_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode()
    return head + answer.body if has_body else head


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise MetricsNotServed(host, port, reason_of(error)) from error


def reason_of(error: OSError) -> str:
    """Return the system's words, without what was being attempted."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
