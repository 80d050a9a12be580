"""What an operator asks of one bookie: how it is, and to do now what it does by itself later.

Values are the messages of service `dlog.bookie.v1.Operator` as they are. Every call raises
`BookieUnavailable` if there is no answer in time, `BookieRefused` if the bookie says no,
`AccessDenied` if it does not take orders from here. A call that is given up does not stop what the
bookie has begun.
"""

from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.message import Message

from ledger.errors import AccessDenied, BookieRefused, BookieUnavailable
from ledger.security.certificates import Security, own_name
from ledger.security.choosing import Takes, is_order_secured
from ledger.security.settings import TlsMode
from ledger.transport.orders import BOOKIE_KEY, operator_channel, operator_methods
from ledger.wire import bookie_pb2 as pb

_CONNECT_S: Final = 2.0
_REFUSALS: Final = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNIMPLEMENTED,
)


class BookieOperator:
    """A connection to the bookie whose operators' port is *address*; an async context manager."""

    def __init__(
        self,
        address: str,
        *,
        bookie: str = "",
        timeout_s: float = 10.0,
        run_timeout_s: float | None = None,
        security: Security | None = None,
        takes: Takes = Takes.PLAIN,
    ) -> None:
        """If *bookie* is given, another one at this address refuses. *timeout_s* is for short
        answers; *run_timeout_s* for those that come when a run is done, None for any time.
        *security* is what this process has, *takes* what the bookie is registered with. Raises
        `TransportMismatch`."""
        mode = TlsMode.OFF if security is None else security.mode
        is_secured = is_order_secured(mode, takes, name=bookie or address)
        self.address = address
        self._bookie = bookie
        self._identity = own_name(security)
        self._timeout_s = timeout_s
        self._run_timeout_s = run_timeout_s
        self._channel = operator_channel(
            address,
            connect_timeout_s=min(timeout_s, _CONNECT_S),
            security=security if is_secured else None,
        )
        self._methods = operator_methods(self._channel)

    async def status(self) -> pb.StatusReply:
        reply: pb.StatusReply = await self._call("Status", pb.StatusRequest(), self._timeout_s)
        return reply

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
        reply: pb.CollectReply = await self._call("Collect", request, self._run_timeout_s)
        return reply.run

    async def compact(self, *, major: bool) -> pb.CollectorRun:
        """Rewrite entry logs with little live data now; return what was done."""
        request = pb.CompactRequest(major=major)
        reply: pb.CompactReply = await self._call("Compact", request, self._run_timeout_s)
        return reply.run

    async def set_read_only(self, *, read_only: bool) -> pb.SetReadOnlyReply:
        """Keep normal adds out, or take them again; return what the bookie is now, and why."""
        request = pb.SetReadOnlyRequest(read_only=read_only)
        reply: pb.SetReadOnlyReply = await self._call("SetReadOnly", request, self._timeout_s)
        return reply

    async def trace(self, ledger_id: int, entry_id: int) -> pb.TraceReply:
        """Ask where an entry is on the bookie, and whether it is whole; reads files there."""
        request = pb.TraceRequest(ledger=ledger_id, entry=entry_id)
        reply: pb.TraceReply = await self._call("Trace", request, self._timeout_s)
        return reply

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

    async def _call(self, order: str, request: Message, timeout_s: float | None) -> Any:
        name = self._bookie or self.address
        metadata = ((BOOKIE_KEY, self._bookie.encode()),) if self._bookie else ()
        try:
            return await self._methods[order](request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            details = error.details() or error.code().name
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise AccessDenied(self._identity, "operator", f"give orders to {name}") from error
            if error.code() in _REFUSALS:
                raise BookieRefused(name, details) from error
            raise BookieUnavailable(name, details) from error
