"""What an operator asks of one bookie: how it is, and to do now what it does by itself later.

Values are the messages of service `dlog.bookie.v1.Operator` as they are. Every call raises
`BookieUnavailable` if there is no answer in time, `BookieRefused` if the bookie says no. A call
that is given up does not stop what the bookie has begun.
"""

from types import TracebackType
from typing import Final, Self, TypeVar

import grpc

from ledger.errors import BookieRefused, BookieUnavailable
from ledger.transport.channel import open_channel
from ledger.transport.messages import BOOKIE_KEY
from ledger.transport.stub import OperatorStub
from ledger.wire import bookie_pb2 as pb

_REFUSALS: Final = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNIMPLEMENTED,
)

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


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
        self._channel = open_channel(address, connect_timeout_s=min(timeout_s, 2.0))
        self._stub = OperatorStub(self._channel)

    async def status(self) -> pb.StatusReply:
        return await self._call(self._stub.status, pb.StatusRequest(), self._timeout_s)

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
        reply = await self._call(self._stub.collect, request, self._run_timeout_s)
        return reply.run

    async def compact(self, *, major: bool) -> pb.CollectorRun:
        """Rewrite entry logs with little live data now; return what was done."""
        request = pb.CompactRequest(major=major)
        reply = await self._call(self._stub.compact, request, self._run_timeout_s)
        return reply.run

    async def set_read_only(self, *, read_only: bool) -> pb.SetReadOnlyReply:
        """Keep normal adds out, or take them again; return what the bookie is now, and why."""
        request = pb.SetReadOnlyRequest(read_only=read_only)
        return await self._call(self._stub.set_read_only, request, self._timeout_s)

    async def close(self) -> None:
        await self._channel.close()

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
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[_Request, _Reply]",
        request: _Request,
        timeout_s: float | None,
    ) -> _Reply:
        name = self._bookie or self.address
        metadata = ((BOOKIE_KEY, self._bookie.encode()),) if self._bookie else ()
        try:
            return await method(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            details = error.details() or error.code().name
            if error.code() in _REFUSALS:
                raise BookieRefused(name, details) from error
            raise BookieUnavailable(name, details) from error
