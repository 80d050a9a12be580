"""`BookieTransport` over sockets: per bookie one connection for adds and one for the rest.

Decides nothing about ledgers: a bookie that refuses, hangs, breaks, answers nonsense or is
another one than was asked for is `Status.UNREACHABLE`, and nothing is repeated here. While a
bookie is down, adds fail at once except for one attempt to connect per back-off period.
A large read does not stand before an ack: they have connections of their own.

What is added to a bookie that has answered everything leaves at once. What is added to others in
one turn of the loop leaves at its end; a message that several get is made once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from operator import is_
from typing import Final, TypeVar

from ledger.delays import Backoff
from ledger.errors import BadMessage
from ledger.ids import BookieId, BookieIdentity
from ledger.log_events import get_logger
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.security.certificates import Security
from ledger.security.settings import Takes
from ledger.transport.client_connection import RequestConnection, Way
from ledger.transport.connection import new_scratch
from ledger.transport.envelope import Received
from ledger.transport.framing import Blocks, FrameKind
from ledger.transport.messages import (
    ENTRY_BYTES,
    MESSAGE_BYTES_MAX,
    RUN_BYTES,
    batch_message,
    held_answer,
    held_request,
    info_answer,
    info_request,
    lac_answer,
    lac_request,
    read_answer,
    read_request,
)
from ledger.transport.session import EXCHANGED, BookieSession, SessionLimits
from ledger.transport.window import OnDone, WindowLimits

_BACKOFF_S_MIN: Final = 0.05
_BACKOFF_S_MAX: Final = 1.0
_CONNECT_S: Final = 2.0
_CONNECTING: Final = 0.4
"""The part of a longer time-out."""
_ARRIVE_S: Final = 1.0
"""How long closing waits for what was sent to arrive: an entry that is confirmed may still be on
its way to the slowest of its bookies, and nobody would send it again."""
_IDLE_S: Final = 60.0
"""An unused connection is closed here, long before its bookie would do so: a request that meets
a bookie's end of the connection would count as its failure."""
_LOOK_S: Final = 10.0
_SCRATCH_BYTES: Final = 64 * 1024
"""What is large is an answer, and is received where it stays after its beginning."""
_IDLE: Final = "it was idle"
_NO_TROUBLE: Final = (_IDLE, EXCHANGED)

_Answer = TypeVar("_Answer")
_log = get_logger(__name__)


def connecting_s(timeout_s: float) -> float:
    """Return within what time there has to be a connection if an answer may take *timeout_s*: who
    is not there is noticed sooner than who is slow."""
    return min(timeout_s, max(_CONNECT_S, _CONNECTING * timeout_s))


class SocketTransport:
    """See the module's docstring. *resolve* gives a bookie's address, ``host:port``, now, *takes*
    what it takes there, and *meant* which one of its name it is; *security* is what this process
    has for it."""

    def __init__(
        self,
        resolve: Callable[[BookieId], str | None],
        *,
        timeout_s: float = 5.0,
        connect_timeout_s: float | None = None,
        batch_bytes_max: int = 512 * 1024,
        flight_bytes_max: int = 8 * 1024 * 1024,
        pending_bytes_max: int = 64 * 1024 * 1024,
        security: Security | None = None,
        takes: Callable[[BookieId], Takes | None] = lambda _: None,
        meant: Callable[[BookieId], BookieIdentity | None] = lambda _: None,
    ) -> None:
        self._resolve, self._security, self._takes = resolve, security, takes
        self._meant = meant
        self._limits = SessionLimits(
            timeout_s=timeout_s,
            connect_timeout_s=min(connect_timeout_s or connecting_s(timeout_s), timeout_s),
            window=WindowLimits(
                batch_bytes_max=batch_bytes_max,
                flight_bytes_max=flight_bytes_max,
                pending_bytes_max=pending_bytes_max,
            ),
        )
        self._scratch = new_scratch(_SCRATCH_BYTES)
        self._blocks = Blocks()
        self._links: dict[BookieId, _Link] = {}
        self._retired: list[RequestConnection] = []
        """Of addresses of before, until all that was asked there is answered."""
        self._to_flush: dict[BookieSession, None] = {}
        self._batches = _Batches()
        self._closing: dict[asyncio.Task[None], None] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, bookie: BookieId, run: AddRun, on_done: OnDone) -> None:
        size_bytes = len(run.frames) + len(run.key) + RUN_BYTES + ENTRY_BYTES * len(run.entries)
        if size_bytes > MESSAGE_BYTES_MAX:
            asyncio.get_running_loop().call_soon(on_done, Status.BAD_REQUEST)
            return
        link = self._links.get(bookie)
        session = None if link is None else link.session
        if session is None or session.address != self._resolve(bookie):
            now = asyncio.get_running_loop().time()
            session = None if self._closed else self._session(bookie, now)
        if session is None or self._closed:
            asyncio.get_running_loop().call_soon(on_done, Status.UNREACHABLE)
        else:
            session.add(run, on_done, size_bytes)

    def is_watched(self, bookie: BookieId) -> bool:
        link = self._links.get(bookie)
        return link is None or link.session is None or link.session.is_watched

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
        request, timeout_s = read_request(query), self._limits.timeout_s + query.wait_ms / 1000
        answer = await self._ask(bookie, FrameKind.READ, request, read_answer, timeout_s)
        return ReadAnswer(Status.UNREACHABLE) if answer is None else answer

    async def read_lac(self, bookie: BookieId, query: LacQuery) -> LacAnswer:
        answer = await self._ask(bookie, FrameKind.READ_LAC, lac_request(query), lac_answer)
        return LacAnswer(Status.UNREACHABLE) if answer is None else answer

    async def read_held(self, bookie: BookieId, query: HeldQuery) -> HeldAnswer:
        unsupported = HeldAnswer(Status.UNREACHABLE, is_supported=False)
        request = held_request(query)
        answer = await self._ask(
            bookie, FrameKind.READ_HELD, request, held_answer, not_known=unsupported
        )
        return HeldAnswer(Status.UNREACHABLE) if answer is None else answer

    async def info(self, bookie: BookieId) -> InfoAnswer | None:
        return await self._ask(bookie, FrameKind.INFO, info_request(), info_answer)

    def check_identities(self) -> None:
        """End connections to whom is not meant any more: the list of bookies was read again."""
        now = asyncio.get_running_loop().time()
        for bookie, link in self._links.items():
            meant = self._meant(bookie)
            if link.session is not None and not link.session.leads_to(meant):
                self._let_go(link, "another bookie is meant by now", now)
            if link.asker is not None and not link.asker.leads_to(meant):
                asker = link.asker
                self._retire(asker, link)
                asker.rest()

    async def close(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        sessions = [link.session for link in self._links.values() if link.session is not None]
        try:
            async with asyncio.timeout(_ARRIVE_S):
                await asyncio.gather(*(session.answered() for session in sessions))
        except TimeoutError:
            late = [session.address for session in sessions if not session.is_idle]
            _log.warning("adds_given_up_at_close", bookies=late, within_s=_ARRIVE_S)
        for link in self._links.values():
            if link.session is not None:
                link.session.end("the transport was closed")
            if link.asker is not None:
                self._retired.append(link.asker)
                link.asker = None
        for asker in self._retired:
            asker.close()
            self._close_later(asker.gone())
        while self._closing:
            await asyncio.wait(list(self._closing))
        await asyncio.sleep(0)  # the last answers are on their way to their callers

    def _session(self, bookie: BookieId, now: float) -> BookieSession | None:
        """Return a session that takes adds, a new one if need be; None while backing off."""
        link = self._links.get(bookie) or self._link(bookie)
        address = self._resolve(bookie)
        session = link.session
        if session is not None and session.address != address:
            _log.info("bookie_moved", bookie=bookie, was=session.address, now=address)
            self._let_go(link, "the bookie moved", now)
        if link.session is None and address is not None and now >= link.retry_at:
            link.session = self._new_session(bookie, address, link)
        return link.session

    def _new_session(self, bookie: BookieId, address: str, link: "_Link") -> BookieSession:
        return BookieSession(
            bookie,
            self._way(bookie, address),
            self._limits,
            self._scratch,
            message=self._batches.message,
            flush_soon=self._flush_soon,
            on_end=self._ended(bookie, link),
        )

    def _way(self, bookie: BookieId, address: str) -> Way:
        return Way(address, self._security, self._takes(bookie), self._meant(bookie))

    def _link(self, bookie: BookieId) -> "_Link":
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        link = self._links[bookie] = _Link()
        return link

    def _let_go(self, link: "_Link", reason: str, now: float) -> None:
        """End the session of *link*; the next one may begin at once."""
        if link.session is not None:
            link.session.end(reason)
        link.retry_at = now

    def _ended(self, bookie: BookieId, link: "_Link") -> Callable[[BookieSession, bool, str], None]:
        def ended(session: BookieSession, connected: bool, reason: str) -> None:  # noqa: FBT001
            self._close_later(session.gone())
            if link.session is not session:
                return  # another one has followed it
            link.session = None
            if connected:
                link.backoff.reset()
            backoff_s = link.backoff.next()
            link.retry_at = asyncio.get_running_loop().time() + backoff_s
            if self._closed or reason in _NO_TROUBLE or backoff_s != _BACKOFF_S_MIN:
                return  # it was told of once; then silence
            tell = _log.warning if session.was_refused else _log.info
            tell("bookie_session_ended", bookie=bookie, address=session.address, reason=reason)

        return ended

    def _flush_soon(self, session: BookieSession) -> None:
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush[session] = None

    def _flush(self) -> None:
        sessions, self._to_flush = self._to_flush, {}
        for session in sessions:
            session.flush()
        self._batches.forget()

    def _look(self) -> None:
        """Close what is not used; exchange what is secured with files of before."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._looking = loop.call_later(_LOOK_S, self._look)
        self._retired = [each for each in self._retired if not each.is_idle]
        self._blocks.rest()
        if self._security is not None:
            self._security.look()
        for bookie, link in self._links.items():
            session, asker = link.session, link.asker
            if session is not None and session.is_idle and now - session.used_at > _IDLE_S:
                self._let_go(link, _IDLE, now)
            elif session is not None and session.is_outdated(now):
                self._exchange(bookie, session, link)
            if asker is not None and now - asker.used_at > _IDLE_S:
                asker.rest()
            elif asker is not None and asker.is_outdated(now):
                self._retire(asker, link)

    def _exchange(self, bookie: BookieId, session: BookieSession, link: "_Link") -> None:
        link.session = self._new_session(bookie, session.address, link)
        link.session.follow(session)

    def _retire(self, asker: RequestConnection, link: "_Link") -> None:
        asker.retire()
        self._retired.append(asker)
        link.asker = None

    async def _ask(
        self,
        bookie: BookieId,
        kind: FrameKind,
        request: bytes,
        decode: Callable[[Received, bytes], _Answer],
        timeout_s: float | None = None,
        *,
        not_known: _Answer | None = None,
    ) -> _Answer | None:
        """Return what *decode* makes of the reply and *request*; None for no reply that counts, and
        *not_known* if the bookie does not know what it was asked."""
        asker = None if self._closed else self._asker(bookie)
        if asker is None:
            return None
        reply = await asker.ask(kind, request, timeout_s or self._limits.timeout_s)
        if reply is None:
            return None
        if reply.kind == FrameKind.NOT_KNOWN:
            return not_known
        try:
            return decode(reply.body, request)
        except BadMessage as error:
            _log.warning("bookie_sent_nonsense", bookie=bookie, reason=str(error))
            return None

    def _asker(self, bookie: BookieId) -> RequestConnection | None:
        link = self._links.get(bookie) or self._link(bookie)
        address = self._resolve(bookie)
        if link.asker is not None and link.asker.address != address:
            self._retire(link.asker, link)
        if link.asker is None and address is not None:
            link.asker = RequestConnection(
                bookie,
                self._way(bookie, address),
                self._scratch,
                connect_timeout_s=self._limits.connect_timeout_s,
                blocks=self._blocks,
            )
        return link.asker

    def _close_later(self, closing: Awaitable[None]) -> None:
        task = asyncio.ensure_future(_finish(closing))
        self._closing[task] = None
        task.add_done_callback(lambda done: self._closing.pop(done, None))


class _Link:
    """What the transport keeps of one bookie."""

    def __init__(self) -> None:
        self.session: BookieSession | None = None
        self.backoff = Backoff(_BACKOFF_S_MIN, _BACKOFF_S_MAX)
        self.retry_at = 0.0
        self.asker: RequestConnection | None = None


class _Batches:
    """Makes the messages of batches. Bookies of one ensemble mostly get the same runs in the
    same turn: then the same message."""

    def __init__(self) -> None:
        self._runs: Sequence[AddRun] = ()
        self._message = b""

    def message(self, runs: Sequence[AddRun]) -> bytes:
        """Return the message of *runs*, which is not empty."""
        if len(runs) != len(self._runs) or not all(map(is_, runs, self._runs)):
            self._runs, self._message = runs, batch_message(runs)
        return self._message

    def forget(self) -> None:
        """Keep no entries alive beyond the turn in which they were sent, but the few bytes that
        left at once."""
        self._runs, self._message = (), b""


async def _finish(closing: Awaitable[None]) -> None:
    await closing
