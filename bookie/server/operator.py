"""What operators may ask of a bookie: orders in, how they are carried out, answers out.

The answers are messages of service `dlog.bookie.v1.Operator`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from bookie.collector.collection import LogState
from bookie.collector.collector import Collector, CollectorStatus, Run
from bookie.collector.garbage import Alarm
from bookie.entrylog.format import DIRECTORY, logs_of, path_of
from bookie.errors import CollectionUnderWay, OrderNotKept
from bookie.server.authorizer import ConnectionAuthorizer
from bookie.server.limits import ClientLimits
from bookie.server.read_only import Measured, ReadOnlyKeeper
from bookie.server.service import BookieService
from bookie.storage.engine import BookieStorage
from bookie.storage.entry_trace import Traced
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.status import CacheStatus, JournalStatus, StorageStatus
from ledger.errors import BadMessage
from ledger.ids import BookieIdentity
from ledger.log_events import get_logger, now_ms
from ledger.process import own_version
from ledger.security.certificates import Security
from ledger.transport.connection import Connection
from ledger.transport.framing import Frame, FrameKind
from ledger.transport.operator import ORDER_BYTES_MAX, order_of, order_reply
from ledger.wire import bookie_pb2 as pb

OPERATOR_LIMITS: Final = ClientLimits(connections_max=256, connections_per_address_max=128)
ORDERS_MAX: Final = 8
"""Of one connection at a time; more are refused."""
_LOOKS: Final = frozenset({"status"})
"""Orders that change nothing."""
Order = Callable[[Any], Awaitable[Message]]
_log = get_logger(__name__)


def directory_message(measured: Measured) -> pb.DirectoryUsage:
    message = pb.DirectoryUsage(path=measured.path, place=measured.place)
    if measured.usage is not None:
        message.total_bytes = measured.usage.total_bytes
        message.free_bytes = measured.usage.free_bytes
    return message


def journal_message(status: JournalStatus) -> pb.JournalStatus:
    return pb.JournalStatus(
        path=status.path,
        mark_file=status.mark.journal_id,
        mark_offset=status.mark.offset,
        end_file=status.end.journal_id,
        end_offset=status.end.offset,
        files=status.files,
        bytes=status.size_bytes,
        full=status.full,
    )


def memtable_message(status: StorageStatus) -> pb.MemtableStatus:
    return pb.MemtableStatus(
        active_bytes=status.active_bytes,
        flushing_bytes=status.flushing_bytes,
        recent_bytes=status.recent_bytes,
        bytes_max=status.memtable_bytes_max,
    )


def cache_message(status: CacheStatus) -> pb.CacheStatus:
    return pb.CacheStatus(
        name=status.name,
        unit=status.unit,
        used=status.used,
        max=status.at_most,
        hits=status.hits,
        misses=status.misses,
    )


def entry_log_messages(
    directory: LedgerDirectory, seen: Sequence[LogState]
) -> list[pb.EntryLogStatus]:
    """Return all entry logs of *directory*, with what a collection has *seen* of them; asks the
    disk for their sizes. One that cannot be asked counts as damaged."""
    states = {state.log_id: state for state in seen}
    messages = []
    for log_id in logs_of(directory.disk.list(DIRECTORY)):
        try:
            size_bytes = _size_bytes(directory, log_id)
        except FileNotFoundError:
            continue  # compacted since it was listed
        except OSError:
            messages.append(pb.EntryLogStatus(log=log_id, state="damaged"))
            continue
        state = states.get(log_id)
        if directory.logs.is_writing(log_id):
            word, live_bytes = "writing", size_bytes
        elif state is None:
            word, live_bytes = "new", size_bytes
        else:
            word, live_bytes = "damaged" if state.damage else "ended", state.live_bytes
        messages.append(
            pb.EntryLogStatus(log=log_id, bytes=size_bytes, live_bytes=live_bytes, state=word)
        )
    return messages


def collector_message(status: CollectorStatus) -> pb.CollectorStatus:
    return pb.CollectorStatus(
        running=status.running.kind.value if status.running is not None else "",
        last=[run_message(run, status.now) for run in status.last],
        due=[
            pb.CollectorDue(kind=due.kind.value, in_s=due.in_s, threshold=due.share)
            for due in status.due
        ],
        suspended=status.suspended,
        waiting=status.waiting,
        alarms=_alarms(status.alarm),
        evicted=status.evicted,
        surplus=status.surplus,
    )


def run_message(run: Run, now: float) -> pb.CollectorRun:
    return pb.CollectorRun(
        kind=run.kind.value,
        ended_ago_s=now - run.ended_at,
        took_s=run.ended_at - run.began_at,
        ledgers=run.ledgers,
        evicted=run.evicted,
        logs=run.logs,
        bytes_freed=max(0, run.freed_bytes),
        bytes_moved=run.moved_bytes,
        failure=run.failure,
        suspended=run.suspended,
        damages=run.damages,
        waiting=run.waiting,
        alarms=_alarms(run.alarm),
    )


def _alarms(alarm: Alarm | None) -> list[pb.CollectorAlarm]:
    if alarm is None:
        return []
    return [pb.CollectorAlarm(kind=alarm.kind.value, reason=alarm.reason)]


def _size_bytes(directory: LedgerDirectory, log_id: int) -> int:
    file = directory.disk.open(path_of(log_id))
    try:
        return file.size()
    finally:
        file.close()


def trace_message(found: Traced) -> pb.TraceReply:
    return pb.TraceReply(
        ledger=found.ledger.value,
        fenced=found.fenced,
        last_entry=found.last_entry,
        doubts=found.doubts,
        copies=[
            pb.TracedCopy(
                place=copy.place,
                path=copy.path,
                offset=copy.offset,
                bytes=copy.size_bytes,
                damage=copy.damage,
                since_ms=copy.since_ms,
            )
            for copy in found.copies
        ],
    )


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


class OrderConnection:
    """One operator's connection, at the bookie: orders in, answers out.

    Operators have a port of their own, so that a firewall can keep it apart from that of clients.
    It is served by the same listener (`listener`): with the same TLS, names, limits and ends.
    """

    body_bytes_max = ORDER_BYTES_MAX

    def __init__(
        self,
        operator: OperatorService,
        connection: Connection,
        door: ConnectionAuthorizer | None = None,
    ) -> None:
        """*door*: what knows who may give orders; None: everybody may."""
        self._connection = connection
        self._door = door
        self._orders: dict[str, Order] = {
            "status": operator.status,
            "collect": operator.collect,
            "compact": operator.compact,
            "set_read_only": operator.set_read_only,
            "trace": operator.trace,
        }
        self._open: dict[int, asyncio.Task[pb.OrderReply]] = {}
        self._last = 0
        self._shut = False

    @property
    def is_done(self) -> bool:
        """Whether every order is answered."""
        return not self._open

    def took(self, frame: Frame) -> None:
        """Begin to carry out an order. Raises `BadMessage`."""
        number, request = frame.number, bytes(frame.body)
        if frame.kind == FrameKind.CANCEL:
            if (task := self._open.get(number)) is not None:
                task.cancel()
            return
        if number <= self._last:
            raise BadMessage("Frame", f"order {number} came after {self._last}")
        self._last = number
        if frame.kind != FrameKind.ORDER:
            self._connection.send(FrameKind.NOT_KNOWN, number)
            return
        name, order = order_of(request)
        if reply := self._why_not(name):
            self._connection.send(FrameKind.ANSWER, number, order_reply(reply, request))
            return
        task = self._open[number] = asyncio.ensure_future(self._carry_out(name, order))
        task.add_done_callback(partial(self._answered, number, request))

    def blocked(self) -> None:
        self._connection.pause()

    def unblocked(self) -> None:
        self._connection.resume()

    def eased(self) -> None:
        """Nothing waits for that."""

    def look(self, _now: float) -> bool:
        """Nor for this."""
        return False

    def shut(self) -> None:
        """Take nothing more; what was taken is still answered."""
        self._shut = True

    def close(self) -> None:
        for task in self._open.values():
            task.cancel()

    def _why_not(self, name: str) -> pb.OrderReply | None:
        """Return why the order *name* is not obeyed; None if it is. It is in the log then."""
        identity, peer = self._connection.identity, self._connection.peer
        if name not in self._orders:
            return pb.OrderReply(refused="it does not know this order; its program is older")
        if len(self._open) >= ORDERS_MAX:
            return pb.OrderReply(refused=f"{ORDERS_MAX} orders of the connection are under way")
        if identity is not None and time.time() > identity.expires_at:
            return pb.OrderReply(denied=True, refused=f"the certificate of {identity} has expired")
        if self._door is not None and not self._door.may_order():
            return pb.OrderReply(denied=True, refused=f"{identity or 'nobody'} is no operator here")
        if name not in _LOOKS:
            _log.info("order_taken", order=name, identity=str(identity or ""), peer=peer)
        return None

    async def _carry_out(self, name: str, order: Message) -> pb.OrderReply:
        try:
            answer = await self._orders[name](order)
        except (CollectionUnderWay, OrderNotKept) as error:
            return pb.OrderReply(refused=str(error))
        return pb.OrderReply(**{name: answer})  # type: ignore[arg-type] # a field for each order

    def _answered(self, number: int, request: bytes, answer: "asyncio.Task[pb.OrderReply]") -> None:
        del self._open[number]
        if answer.cancelled():
            pass
        elif (error := answer.exception()) is not None:
            _log.error("order_not_answered", peer=self._connection.peer, reason=repr(error))
            self._connection.abort()
        else:
            self._connection.send(FrameKind.ANSWER, number, order_reply(answer.result(), request))
        self._connection.settled()
