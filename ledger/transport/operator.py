"""What an operator asks of one bookie: how it is, and to do now what it does by itself later.

Values are the messages of bookie.proto as they are. Every call raises `BookieUnavailable` if there
is no answer in time, `BookieRefused` if the bookie says no. A call that is given up does not
stop what the bookie has begun.
"""

from types import TracebackType
from typing import Final, Self, TypeVar

from google.protobuf.message import Message

from ledger.errors import BadMessage, BookieRefused, BookieUnavailable
from ledger.transport.calling import Asker
from ledger.transport.checksum import checked, verified
from ledger.transport.connection import new_scratch
from ledger.transport.framing import Kind
from ledger.transport.handshake import Hello, Purpose
from ledger.wire import bookie_pb2 as pb

_CONNECT_S: Final = 2.0

_Reply = TypeVar("_Reply", bound=Message)


class BookieOperator:
    """A connection to the bookie at *address*; an async context manager."""

    def __init__(
        self,
        address: str,
        *,
        bookie: str = "",
        timeout_s: float = 10.0,
        run_timeout_s: float | None = None,
    ) -> None:
        """If *bookie* is given, another one at this address refuses. *timeout_s* is for short
        answers; *run_timeout_s* for those that come when a run is done, None for any time."""
        self.address = address
        self._bookie = bookie
        self._timeout_s = timeout_s
        self._run_timeout_s = run_timeout_s
        self._asker = Asker(
            Hello(Purpose.ORDERS, bookie),
            address,
            new_scratch(),
            connect_timeout_s=min(timeout_s, _CONNECT_S),
        )

    async def status(self) -> pb.StatusReply:
        return await self._call(Kind.STATUS, pb.StatusRequest(), pb.StatusReply, self._timeout_s)

    async def collect(
        self, *, allow_deletions: int | None = None, allow_evictions: int | None = None
    ) -> pb.CollectorRun:
        """Remove what belongs to deleted ledgers now, look for copies that no fragment names any
        more, and evict those that were seen before; return what was done, and what prevented more.

        *allow_deletions*: how many ledgers may go although nothing shows that they were
        deleted; *allow_evictions*: how many may be evicted. Negative: all; None: as many as
        without an operator's word."""
        request = pb.CollectRequest(
            allow_deletions=allow_deletions, allow_evictions=allow_evictions
        )
        reply = await self._call(Kind.COLLECT, request, pb.CollectReply, self._run_timeout_s)
        return reply.run

    async def compact(self, *, major: bool) -> pb.CollectorRun:
        """Rewrite entry logs with little live data now; return what was done."""
        request = pb.CompactRequest(major=major)
        reply = await self._call(Kind.COMPACT, request, pb.CompactReply, self._run_timeout_s)
        return reply.run

    async def set_read_only(self, *, read_only: bool) -> pb.SetReadOnlyReply:
        """Keep normal adds out, or take them again; return what the bookie is now, and why."""
        request = pb.SetReadOnlyRequest(read_only=read_only)
        return await self._call(Kind.SET_READ_ONLY, request, pb.SetReadOnlyReply, self._timeout_s)

    async def close(self) -> None:
        self._asker.close()
        await self._asker.gone()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(
        self, kind: Kind, request: Message, reply: type[_Reply], timeout_s: float | None
    ) -> _Reply:
        name = self._bookie or self.address
        question = checked(request)
        answer = await self._asker.ask(kind, question, timeout_s)
        if answer is None and self._asker.was_refused:
            raise BookieRefused(name, self._asker.why_not)
        if answer is None:
            raise BookieUnavailable(name, self._asker.why_not or "no answer in time")
        if answer.kind == Kind.REFUSED:
            raise BookieRefused(name, answer.body.decode(errors="replace"))
        if answer.kind == Kind.NOT_KNOWN:
            raise BookieRefused(name, "that its version does not know this order")
        try:
            return verified(reply, answer.body, request=question)[0]
        except BadMessage as error:
            raise BookieUnavailable(name, str(error)) from error
