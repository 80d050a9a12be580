"""What operators may ask of a bookie, and how it carries that out; `ordering` is where they do."""

import asyncio
import time
from collections.abc import Coroutine

from bookie.collector.collector import Collector, CollectorStatus, Run
from bookie.server.operator_messages import (
    cache_message,
    collector_message,
    directory_message,
    entry_log_messages,
    journal_message,
    memtable_message,
    run_message,
    trace_message,
)
from bookie.server.read_only import ReadOnlyKeeper
from bookie.server.service import BookieService
from bookie.storage.engine import BookieStorage
from bookie.storage.status import StorageStatus
from ledger.clock import now_ms
from ledger.distribution import own_version
from ledger.ids import BookieIdentity
from ledger.security.certificates import Security
from ledger.wire import bookie_pb2 as pb


class OperatorService:
    def __init__(
        self,
        service: BookieService,
        storage: BookieStorage,
        keeper: ReadOnlyKeeper,
        collector: Collector,
        *,
        address: str,
        security: Security | None = None,
    ) -> None:
        self._security = security
        self._service = service
        self._storage = storage
        self._keeper = keeper
        self._collector = collector
        self._address = address
        self._started_at = time.monotonic()
        self._runs: dict[asyncio.Task[Run], None] = {}

    @property
    def bookie(self) -> str:
        return self._service.info.bookie

    @property
    def identity(self) -> BookieIdentity:
        info = self._service.info
        return BookieIdentity(info.instance, info.identity, info.life)

    async def close(self) -> None:
        """Stop the runs that were asked for; those that wait for them get no answer."""
        for task in self._runs:
            task.cancel()
        if self._runs:
            await asyncio.wait(list(self._runs))

    async def status(self, _request: pb.StatusRequest) -> pb.StatusReply:
        info, keeper = self._service.info, self._keeper
        collector = self._collector.status()
        storage, logs = await asyncio.to_thread(self._ask_disks, collector)
        return pb.StatusReply(
            bookie=info.bookie,
            incarnation=info.incarnation,
            instance=info.instance,
            address=self._address,
            version=own_version(),
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
            clock_ms=now_ms(),
            work=self._work(),
            certificate=None if self._security is None else _validity(self._security),
        )

    def _work(self) -> pb.WorkStatus:
        service = self._service
        syncs = [writer.counts.sync_s for writer in self._storage.journal_writers]
        return pb.WorkStatus(
            added_entries=service.core.added_entries,
            added_bytes=service.core.added_bytes,
            read_entries=service.read_entries,
            read_bytes=service.read_bytes,
            journal_syncs=sum(sum(each.counts) for each in syncs),
            journal_sync_s=sum(each.total for each in syncs),
        )

    def _ask_disks(
        self, collector: CollectorStatus
    ) -> tuple[StorageStatus, list[list[pb.EntryLogStatus]]]:
        pairs = zip(self._storage.ledger_directories, collector.logs, strict=True)
        return self._storage.status(), [entry_log_messages(*pair) for pair in pairs]

    async def collect(self, request: pb.CollectRequest) -> pb.CollectReply:
        allowed = request.allow_deletions if request.HasField("allow_deletions") else None
        evictions = request.allow_evictions if request.HasField("allow_evictions") else None
        running = self._collector.collect(allowed=allowed, evictions_allowed=evictions)
        return pb.CollectReply(run=await self._done(running))

    async def compact(self, request: pb.CompactRequest) -> pb.CompactReply:
        running = self._collector.compact(major=request.major)
        return pb.CompactReply(run=await self._done(running))

    async def _done(self, running: Coroutine[object, object, Run]) -> pb.CollectorRun:
        """Return what a run has done. It goes on if its client does not wait for it."""
        task = asyncio.ensure_future(running)
        self._runs[task] = None
        task.add_done_callback(self._runs.pop)
        run = await asyncio.shield(task)
        return run_message(run, run.ended_at)

    async def set_read_only(self, request: pb.SetReadOnlyRequest) -> pb.SetReadOnlyReply:
        """Raises `OrderNotKept`."""
        await self._keeper.set_by_operator(read_only=request.read_only)
        return pb.SetReadOnlyReply(read_only=self._storage.read_only, reasons=self._keeper.reasons)

    async def trace(self, request: pb.TraceRequest) -> pb.TraceReply:
        found = await asyncio.to_thread(self._storage.trace, request.ledger, request.entry)
        return trace_message(found)


def _validity(security: Security) -> pb.CertificateStatus:
    security.look()  # files may have been renewed since the last connection was made
    own = security.certificate
    return pb.CertificateStatus(begins_s=own.begins_at, expires_s=own.expires_at)
