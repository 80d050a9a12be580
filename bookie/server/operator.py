"""The edge of a bookie towards its operators: service `dlog.bookie.v1.Operator`.

It is on the port of the bookie and as open as the rest of it: who can reach the port can make
the bookie read-only.
"""

import asyncio
import time
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any, Final

import grpc

from bookie.collector.collector import Collector, CollectorStatus, Run
from bookie.errors import CollectionUnderWay, OrderNotKept
from bookie.server.operator_messages import (
    cache_message,
    collector_message,
    directory_message,
    entry_log_messages,
    journal_message,
    memtable_message,
    run_message,
)
from bookie.server.read_only import ReadOnlyKeeper
from bookie.server.service import BookieService
from bookie.storage.engine import BookieStorage
from bookie.storage.status import StorageStatus
from ledger.transport.messages import BOOKIE_KEY
from ledger.transport.stub import OPERATOR_SERVICE
from ledger.wire import bookie_pb2 as pb

_PACKAGE: Final = "dlog"

Context = grpc.aio.ServicerContext[Any, Any]


class OperatorService:
    def __init__(
        self,
        service: BookieService,
        storage: BookieStorage,
        keeper: ReadOnlyKeeper,
        collector: Collector,
        *,
        address: str,
    ) -> None:
        self._service = service
        self._storage = storage
        self._keeper = keeper
        self._collector = collector
        self._address = address
        self._started_at = time.monotonic()
        self._runs: dict[asyncio.Task[Run], None] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            OPERATOR_SERVICE,
            {
                "Status": grpc.unary_unary_rpc_method_handler(
                    self._status, pb.StatusRequest.FromString, pb.StatusReply.SerializeToString
                ),
                "Collect": grpc.unary_unary_rpc_method_handler(
                    self._collect, pb.CollectRequest.FromString, pb.CollectReply.SerializeToString
                ),
                "Compact": grpc.unary_unary_rpc_method_handler(
                    self._compact, pb.CompactRequest.FromString, pb.CompactReply.SerializeToString
                ),
                "SetReadOnly": grpc.unary_unary_rpc_method_handler(
                    self._set_read_only,
                    pb.SetReadOnlyRequest.FromString,
                    pb.SetReadOnlyReply.SerializeToString,
                ),
            },
        )

    async def close(self) -> None:
        """Stop the runs that were asked for; those that wait for them get no answer."""
        for task in self._runs:
            task.cancel()
        if self._runs:
            await asyncio.wait(list(self._runs))

    async def _status(self, _request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        await check_meant(context, self._service.info.bookie)
        info, keeper = self._service.info, self._keeper
        collector = self._collector.status()
        storage, logs = await asyncio.to_thread(self._ask_disks, collector)
        return pb.StatusReply(
            bookie=info.bookie,
            incarnation=info.incarnation,
            instance=info.instance,
            address=self._address,
            version=version(_PACKAGE),
            uptime_s=time.monotonic() - self._started_at,
            read_only=info.read_only,
            reasons=keeper.reasons,
            warnings=(*keeper.warnings, *([self._storage.doubts] if self._storage.doubts else ())),
            directories=map(directory_message, keeper.measured),
            journals=map(journal_message, storage.journals),
            memtable=memtable_message(storage),
            caches=map(cache_message, storage.caches),
            ledgers=storage.ledgers,
            ledger_directories=[
                pb.LedgerDirectoryStatus(path=one.path, failure=one.failure, logs=its_logs)
                for one, its_logs in zip(storage.ledger_directories, logs, strict=True)
            ],
            collector=collector_message(collector),
        )

    def _ask_disks(
        self, collector: CollectorStatus
    ) -> tuple[StorageStatus, list[list[pb.EntryLogStatus]]]:
        pairs = zip(self._storage.ledger_directories, collector.logs, strict=True)
        return self._storage.status(), [entry_log_messages(*pair) for pair in pairs]

    async def _collect(self, request: pb.CollectRequest, context: Context) -> pb.CollectReply:
        await check_meant(context, self._service.info.bookie)
        allowed = request.allow_deletions if request.HasField("allow_deletions") else None
        evictions = request.allow_evictions if request.HasField("allow_evictions") else None
        running = self._collector.collect(allowed=allowed, evictions_allowed=evictions)
        return pb.CollectReply(run=await self._done(running, context))

    async def _compact(self, request: pb.CompactRequest, context: Context) -> pb.CompactReply:
        await check_meant(context, self._service.info.bookie)
        running = self._collector.compact(major=request.major)
        return pb.CompactReply(run=await self._done(running, context))

    async def _done(
        self, running: Coroutine[object, object, Run], context: Context
    ) -> pb.CollectorRun:
        """Return what a run has done. It goes on if its client does not wait for it."""
        task = asyncio.ensure_future(running)
        self._runs[task] = None
        task.add_done_callback(self._runs.pop)
        try:
            run = await asyncio.shield(task)
        except CollectionUnderWay as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return run_message(run, run.ended_at)

    async def _set_read_only(
        self, request: pb.SetReadOnlyRequest, context: Context
    ) -> pb.SetReadOnlyReply:
        await check_meant(context, self._service.info.bookie)
        try:
            await self._keeper.set_by_operator(read_only=request.read_only)
        except OrderNotKept as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return pb.SetReadOnlyReply(read_only=self._storage.read_only, reasons=self._keeper.reasons)


async def check_meant(context: Context, bookie: str) -> None:
    """Abort the call if its client means another bookie."""
    for key, value in context.invocation_metadata() or ():
        if key == BOOKIE_KEY and value != bookie.encode():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"here is bookie {bookie}")
