"""The face of the log layer, async: open a log to append, or tail it.

async with Log.open("flights") as log:
    record_id = await log.append(b"...")

async for record in await Log.tail("flights"):
    ...
"""

import asyncio
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

from dlog import spans
from dlog.aio.handle import opening
from dlog.aio.maintain.lifecycle import ensure_log, seal
from dlog.aio.maintain.trim import Before, Keep, trim_target
from dlog.aio.namespace_connection import connect
from dlog.aio.port import Leadership, Ledgers
from dlog.aio.read import handles
from dlog.aio.store import ManifestNode
from dlog.aio.write.append_future import AppendFuture, ManyFuture, resolve_many
from dlog.aio.write.takeover_driver import OpenedLog, TakeoverDriver
from dlog.aio.write.writer import LogWriter
from dlog.columns import Row, checked, checked_many, size_of
from dlog.headers import HeadersGiven, Payload
from dlog.names import check_name
from dlog.position import RecordId, RecordIds
from dlog.protocol.log_writer import CLOSE_S, REOPEN_TIMEOUT_S
from dlog.settings import LogSettings, parse_settings
from ledger.errors import LogError, TooManyPending
from ledger.log_events import now_ms
from ledger.process import this_process
from ledger.values import Duration, Size, duration_or_none, duration_s

_HEAL_S_DEPRECATED: Final = "heal_s of Log.open is called reopen_timeout_s now"


class Log:
    """A log that this process writes. Made by `Log.open`; an async context manager.

    Leaving its block closes it and raises what could not be appended; not again what ended the
    writer, if a call or a future of this log has told that before."""

    def __init__(self, writer: LogWriter, ledgers: Ledgers, *, owns_ledgers: bool) -> None:
        self._writer = writer
        self._ledgers = ledgers
        self._owns_ledgers = owns_ledgers
        self._loop = asyncio.get_running_loop()

    @classmethod
    @opening
    async def open(  # noqa: PLR0913 - one is deprecated
        cls,
        name: str,
        *,
        uri: str | None = None,
        term: Leadership | None = None,
        create: bool = True,
        settings: LogSettings | Mapping[str, object] | None = None,
        expected_epoch: int | None = None,
        owner: str | None = None,
        take_over: bool = False,
        reopen_timeout_s: Duration = REOPEN_TIMEOUT_S,
        heal_s: Duration | None = None,
        client: Ledgers | None = None,
    ) -> Self:
        """Take the log over for writing: whoever wrote it before cannot any more.

        *settings* (or a mapping, see `parse_settings`) count only when the log is created
        here. With *term*, leadership is checked between the steps. With *expected_epoch* the log
        is taken over only if that is still its epoch (`Log.epoch` of its last writer; 0: it never
        had one), and otherwise nobody is disturbed. *owner* is shown to people who ask who
        writes the log; host and process unless given. A log that a gateway for Kafka's clients
        leads is refused while one lives, unless *take_over*. After trouble that may pass the writer
        reopens the log by itself, if it can within *reopen_timeout_s* (0: never); appends wait
        meanwhile. *heal_s* is its name of before, deprecated. *client* is used and left open;
        without it, one is made for *uri*.

        Raises `InvalidName`, `InvalidSettings`, `InvalidValue`, `NoSuchLog` (with *create* False),
        `LogSealed`, `EpochChanged`, `LedByGateway`, `LostOwnership`, `TakeoverFailed`,
        `CodecMissing`, `ManifestTooLarge` (then nobody was disturbed; truncate the log), and what
        connecting raises."""
        check_name(name)
        if heal_s is not None:
            warnings.warn(_HEAL_S_DEPRECATED, DeprecationWarning, stacklevel=2)
            reopen_timeout_s = heal_s
        timeout_s = duration_s(reopen_timeout_s, "reopen_timeout_s")
        chosen = parse_settings(settings) if isinstance(settings, Mapping) else settings
        ledgers = client if client is not None else await connect(uri)
        owns = client is None
        process = this_process()
        try:
            node = ManifestNode(ledgers.store, name)
            if create:
                await ensure_log(ledgers, node, chosen)
            driver = TakeoverDriver(
                ledgers,
                node,
                term=term,
                now_ms=now_ms,
                owner=process if owner is None else owner,
                expected_epoch=expected_epoch,
                spares_gateways=not take_over,
            )
            writer = LogWriter(
                ledgers,
                node,
                await _take_over(driver, name),
                now_ms=now_ms,
                term=term,
                reopen_timeout_s=timeout_s,
                process=process if owner is None and term is None else "",  # who is elected knows
            )
        except BaseException:
            if owns:
                await ledgers.close()
            raise
        return cls(writer, ledgers, owns_ledgers=owns)

    tail = staticmethod(handles.tail)
    tail_many = staticmethod(handles.tail_many)
    consumer = staticmethod(handles.consumer)
    last = staticmethod(handles.last)
    end_of = staticmethod(handles.end_of)

    @property
    def writer(self) -> LogWriter:
        """What the synchronous facade hands its appends to."""
        return self._writer

    @property
    def name(self) -> str:
        return self._writer.log

    @property
    def epoch(self) -> int:
        """Grows with each takeover of this log; usable as a fencing token."""
        return self._writer.epoch

    @property
    def settings(self) -> LogSettings:
        return self._writer.settings

    @property
    def last_offset(self) -> int:
        """Offset of the last confirmed record; -1 if the log never had one."""
        return self._writer.last_offset

    @property
    def last_txid(self) -> int | None:
        """Txid of the last confirmed record that has one: where an application resumes."""
        return self._writer.last_txid

    @property
    def lost(self) -> asyncio.Event:
        """Set when the log was lost to another writer, or this writer failed."""
        return self._writer.lost

    async def append(
        self,
        payload: Payload,
        *,
        key: Payload | None = None,
        txid: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersGiven | None = None,
        expected_offset: int | None = None,
    ) -> RecordId:
        """Append one record and wait until it can never be lost.

        With nothing else pending it is sent at once. Waits for room first if much is pending.
        Raises as `append_async` resolves."""
        if self._writer.is_idle:
            record: bytes | Row
            if (
                type(payload) is bytes
                and key is None
                and txid is None
                and timestamp_ms is None
                and headers is None
            ):
                record, size = payload, len(payload)
            else:
                record = checked(payload, key, txid, timestamp_ms, headers)
                size = size_of(record)
            outcome, slot = self._writer.append_lone(record, size, expected_offset)
            if not outcome.done:
                waiter: asyncio.Future[None] = self._loop.create_future()
                outcome.watch(partial(_wake, waiter))
                await waiter
            else:  # refused: a caller that tries again must not keep the loop from all others
                await asyncio.sleep(0)
            return outcome.record_id(slot)
        await self._writer.room()
        return await self.append_async(
            payload,
            key=key,
            txid=txid,
            timestamp_ms=timestamp_ms,
            headers=headers,
            expected_offset=expected_offset,
        )

    def append_async(
        self,
        payload: Payload,
        *,
        key: Payload | None = None,
        txid: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersGiven | None = None,
        expected_offset: int | None = None,
    ) -> asyncio.Future[RecordId]:
        """Append one record; return a future, which resolves in any case.

        Records keep the order of the calls. Cancelling the future does not take the record
        back. *txid* must not be below the one before;
        *expected_offset* appends only if the record gets that offset. The future fails with
        `RecordTooLarge`, `TxidOutOfOrder`, `UnexpectedOffset`, `LogClosed`,
        `LostOwnership`, `AppendFailed` (all: certainly not appended), or
        `AppendOutcomeUnknown`. Raises `TooManyPending` at once, and `TypeError`."""
        record: bytes | Row
        if (
            type(payload) is bytes
            and key is None
            and txid is None
            and timestamp_ms is None
            and headers is None
        ):
            record, size = payload, len(payload)
        else:
            record = checked(payload, key, txid, timestamp_ms, headers)
            size = size_of(record)
        outcome, slot = self._writer.append(record, size, expected_offset)
        return AppendFuture(outcome, slot, self._loop)

    async def append_many(
        self,
        payloads: Iterable[Payload],
        *,
        keys: Iterable[Payload | None] | None = None,
        txids: Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        headers: Iterable[HeadersGiven | None] | None = None,
        expected_offset: int | None = None,
    ) -> RecordIds:
        """Append records behind each other and wait until none can be lost; return their ids.

        Far cheaper than one append each. *keys*, *txids* and *timestamps_ms* have a value or
        None for each record; *expected_offset* is for the first one. Up to 32 MiB. All are
        refused or none; what is taken stays together. Up to 512 KiB (and 65,536 records) is
        kept or lost as one; of more, a crash may keep the first ones. Waits for room first if
        much is pending. Raises `BatchTooLarge`, ValueError if there is no record or a column
        has another length, and what `append_async` resolves to or raises."""
        await self._writer.room()
        return await self.append_many_async(
            payloads,
            keys=keys,
            txids=txids,
            timestamps_ms=timestamps_ms,
            headers=headers,
            expected_offset=expected_offset,
        )

    def append_many_async(
        self,
        payloads: Iterable[Payload],
        *,
        keys: Iterable[Payload | None] | None = None,
        txids: Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        headers: Iterable[HeadersGiven | None] | None = None,
        expected_offset: int | None = None,
    ) -> asyncio.Future[RecordIds]:
        """As `append_many`, but return one future for all. Raises `TooManyPending` at once."""
        records = checked_many(payloads, keys, txids, timestamps_ms, headers)
        future = ManyFuture(self._writer.tell, self._loop)
        try:
            parts = self._writer.submit_many(records, expected_offset)
        except TooManyPending:
            raise
        except LogError as error:
            future.set_exception(error.with_traceback(None))
        else:
            resolve_many(future, parts)
        return future

    async def flush(self) -> None:
        """Return once every append made before is confirmed; raise if one cannot be."""
        await self._writer.flush()

    async def roll(self) -> None:
        """Begin a new segment, unless the present one is empty."""
        await self._writer.roll()

    async def truncate(
        self,
        *,
        before: Before | None = None,
        keep_bytes: Size | None = None,
        keep_age_s: Duration | None = None,
    ) -> None:
        """Remove the oldest records: those below *before*, or all that need not be kept.

        `dlog.aio.admin.truncate_log` describes the three; give one. Raises `InvalidPosition`
        beyond the end, `LostOwnership` and what else ended this writer, ValueError."""
        keep = Keep.of(self.name, before, keep_bytes, keep_age_s)
        if isinstance(keep.before, int):
            target = keep.before
        else:
            node = self._writer.node
            target = await trim_target(self._ledgers, node, keep, now_ms=now_ms)
        await self._writer.truncate(target)

    async def seal(self) -> None:
        """Confirm what is pending, then end the log for good, and close it.

        Nobody can append to it any more (`LogSealed`); readers that follow end after the last
        record. Raises what could not be appended, and `LostOwnership`: then it is not sealed."""
        try:
            writer = self._writer
            await writer.close()
            own = writer.own_ledgers  # it may have rolled or reopened until it was closed
            await seal(
                self._ledgers,
                writer.node,
                now_ms=now_ms,
                incarnation=writer.incarnation,
                own=own,
            )
        finally:
            await self.close()

    async def close(self, *, timeout_s: Duration | None = CLOSE_S) -> None:
        """Confirm what is pending, then let the log go. Raises what could not be appended.

        Takes up to *timeout_s* (None: as long as it takes): appends that are not confirmed
        then fail, and this raises `CloseTimedOut`. If only the last segment cannot be sealed in
        time, because the metadata store is away, that is no failure: every record is kept, and
        the next open seals it. If it is cancelled, appends that are not confirmed fail. A second
        call waits for the first, and raises nothing."""
        wait_s = duration_or_none(timeout_s, "timeout_s")
        try:
            await self._writer.close(wait_s)
        finally:
            if self._owns_ledgers:
                self._owns_ledgers = False
                await self._ledgers.close()

    async def abandon(self) -> None:
        """Let the log go at once, as a crash would; the next open recovers it."""
        await self._writer.abandon()
        if self._owns_ledgers:
            self._owns_ledgers = False
            await self._ledgers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None and not self._writer.told:
            await self.close()
            return
        with suppress(LogError):  # the error on its way says more, or it was told before
            await self.close()


async def open_as_gateway(
    name: str, ledgers: Ledgers, *, owner: str, expected_epoch: int | None = None
) -> Log:
    """Take *name*, which must exist, over for a gateway for Kafka's clients: `Log.open` of others
    is refused from then on while one lives. *ledgers* is left open. Raises as `Log.open`."""
    node = ManifestNode(ledgers.store, name)
    driver = TakeoverDriver(
        ledgers,
        node,
        term=None,
        now_ms=now_ms,
        owner=owner,
        expected_epoch=expected_epoch,
        is_gateway=True,
    )
    opened = await _take_over(driver, name)
    writer = LogWriter(
        ledgers, node, opened, now_ms=now_ms, term=None, reopen_timeout_s=REOPEN_TIMEOUT_S
    )
    return Log(writer, ledgers, owns_ledgers=False)


async def _take_over(driver: TakeoverDriver, name: str) -> OpenedLog:
    with spans.span("dlog.open", log=name) as span:
        opened = await driver.run()
        spans.describe(span, epoch=opened.manifest.epoch)
    return opened


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():  # else its task was cancelled
        waiter.set_result(None)
