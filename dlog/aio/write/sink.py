"""The writer of a log that commits whole units, each once: carries out `protocol.unit_commit`.

sink = await Sink.open("orders")
await sink.commit(Receipt(query, 17), [encoded_batch])           # small: one entry
stager = await Stager.begin(client, sink.assignment, Receipt(query, 18))  # large: in each task
...
await sink.commit(Receipt(query, 18), [staged, staged])
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from dlog.aio.maintain.lifecycle import ensure_log
from dlog.aio.maintain.trim import apply_retention
from dlog.aio.namespace_connection import connect
from dlog.aio.port import LedgerAppender, Ledgers
from dlog.aio.procedures import on_ledgers
from dlog.aio.store import ManifestNode, delete_listed
from dlog.aio.write.append_future import AppendFuture
from dlog.aio.write.takeover_driver import TakeoverDriver
from dlog.aio.write.writer import LogWriter
from dlog.encoded_batch import decode_encoded, largest_record_bytes, placed
from dlog.encryption.ledgers import Sealer, new_data_key, stamp_of
from dlog.errors import AppendFailed, DamagedBatch, LogClosed, RecordTooLarge
from dlog.headers import PAIRED_RECORD
from dlog.manifest import FULL_BYTES, Manifest, Sealed
from dlog.names import check_name
from dlog.position import NO_TXID
from dlog.protocol import unit_commit
from dlog.protocol.edits import Staged
from dlog.protocol.orphans import StagedFor
from dlog.protocol.unit_commit import Committed, Inline, Tenure, Unit, commit
from dlog.receipts import Receipt
from dlog.recordbatch import Codec, Flag, decode_batch, parse_header
from dlog.settings import LogSettings
from ledger.errors import LogError
from ledger.feature_level import HEADER_PAIRS, ClusterLevel
from ledger.ids import EntryId
from ledger.log_events import get_logger
from ledger.log_events import now_ms as wall_clock_ms
from ledger.procedures import run
from ledger.process import this_process
from ledger.protocol.procedure import Action

__all__ = ["Assignment", "Committed", "Sink", "Staged", "Stager"]

ENTRY_BYTES_MAX: Final = 1024 * 1024
"""A unit of so many bytes becomes an entry unless asked otherwise."""
REOPEN_TIMEOUT_S: Final = 60.0
"""How long an append waits for bookies and the metadata store."""
CLOSE_S: Final = 10.0
STAGED_AT_ONCE_MAX: Final = 16
"""Adds of a stager that are not confirmed; an entry has 512 KiB mostly."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task needs to know to stage a ledger for a log."""

    log: str
    incarnation: str
    epoch: int
    settings: LogSettings
    previous_txid: int
    """The last one of the log; `NO_TXID` if there is none."""


class Sink:
    """Made by `open`; its methods are called on the loop that made it. An async context manager."""

    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        writer: LogWriter,
        tenure: Tenure,
        *,
        owns_ledgers: bool,
        reopen_timeout_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        node.follow(tenure.incarnation)
        self._ledgers = ledgers
        self._owns_ledgers = owns_ledgers
        self._node = node
        self._settings = writer.settings
        self._writer: LogWriter | None = writer
        self._tenure = tenure
        self._reopen_timeout_s = reopen_timeout_s
        self._now_ms = now_ms
        self._one_unit = asyncio.Lock()
        self._closed = False
        self._warned_bytes = 0

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        uri: str | None = None,
        client: Ledgers | None = None,
        create: bool = True,
        settings: LogSettings | None = None,
        owner: str | None = None,
        reopen_timeout_s: float = REOPEN_TIMEOUT_S,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> Self:
        """Take the log over, as `Log.open` does: whoever wrote it before cannot any more.

        *reopen_timeout_s*: how long a commit bears that bookies or metadata store are away, each
        time it tries. The other arguments and what is raised are those of `Log.open`."""
        check_name(name)
        ledgers = client if client is not None else await connect(uri)
        try:
            node = ManifestNode(ledgers.store, name)
            if create:
                await ensure_log(ledgers, node, settings)
            opened = await TakeoverDriver(
                ledgers,
                node,
                term=None,
                now_ms=now_ms,
                owner=this_process() if owner is None else owner,
            ).run()
            return cls(
                ledgers,
                node,
                LogWriter(ledgers, node, opened, now_ms=now_ms, reopen_timeout_s=reopen_timeout_s),
                Tenure.of(opened.manifest),
                owns_ledgers=client is None,
                reopen_timeout_s=reopen_timeout_s,
                now_ms=now_ms,
            )
        except BaseException:
            if client is None:
                await ledgers.close()
            raise

    @classmethod
    async def resume(
        cls,
        name: str,
        *,
        client: Ledgers,
        incarnation: str,
        epoch: int,
        owner: str | None = None,
        reopen_timeout_s: float = REOPEN_TIMEOUT_S,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> Self:
        """Go on as the sink that opened the log with this *epoch*; its assignments stay good.

        Requires that it has ended. Raises `EpochChanged` if somebody took the log over since,
        `NoSuchLog` also if the log was made anew, and what `open` does."""
        node = ManifestNode(client.store, check_name(name))
        opened = await TakeoverDriver(
            client,
            node,
            term=None,
            now_ms=now_ms,
            owner=this_process() if owner is None else owner,
            expected_epoch=epoch,
            reopens=incarnation,
        ).run()
        return cls(
            client,
            node,
            LogWriter(client, node, opened, now_ms=now_ms, reopen_timeout_s=reopen_timeout_s),
            Tenure.of(opened.manifest),
            owns_ledgers=False,
            reopen_timeout_s=reopen_timeout_s,
            now_ms=now_ms,
        )

    @property
    def log(self) -> str:
        """The log's name, where it was found last."""
        return self._node.log

    @property
    def epoch(self) -> int:
        return self._tenure.epoch

    @property
    def incarnation(self) -> str:
        return self._tenure.incarnation

    @property
    def writing(self) -> bool:
        """Whether a segment is open; if not, others learn of units by the manifest only."""
        return self._tenure.writing

    @property
    def assignment(self) -> Assignment:
        """What tasks of the next unit need."""
        tenure = self._tenure
        return Assignment(
            self.log, tenure.incarnation, tenure.epoch, self._settings, tenure.last_txid
        )

    def last_unit(self, origin: bytes) -> int | None:
        """Return the number of the last unit of *origin* in the log, as far as this sink knows."""
        return self._tenure.receipts.last(origin)

    async def commit(
        self,
        receipt: Receipt,
        parts: Sequence[bytes | Staged],
        *,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> Committed:
        """Make *parts* the next records of the log, all or none, unless that was done before.

        A part is an encoded batch (`dlog.recordbatch`, not compressed), or a ledger that a
        `Stager` sealed. Batches alone, of *entry_bytes_max* bytes of records at most, become one
        entry; all else becomes segments of its own. One unit at a time; others wait.

        Raises what `protocol.unit_commit.commit` does, `DamagedBatch`, `LogClosed`. Who is
        cancelled may commit the unit again, or open the log again to see whether it is there."""
        async with self._one_unit:
            if self._closed:
                raise LogClosed(self.log)
            unit, payloads = self._unit(receipt, parts, entry_bytes_max)

            async def perform(action: Action[Any]) -> object:
                return await self._perform(action, payloads)

            steps = commit(self._node.steps, self._tenure, unit, now_ms=self._now_ms())
            done = await run(steps, perform)
        if not unit.is_entry:
            await self._apply_retention()
        return done

    async def close(self) -> None:
        """Seal what is open, if that can be done now: the next open does otherwise."""
        async with self._one_unit:
            self._closed = True
            await self._end_segment()
            self._tenure.writing = False
        await self._leave()

    async def abandon(self) -> None:
        """Let the log go at once, as a crash would; the next open recovers it."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.abandon()
        await self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _unit(
        self, receipt: Receipt, parts: Sequence[bytes | Staged], entry_bytes_max: int
    ) -> tuple[Unit, list[bytes]]:
        payloads: list[bytes] = []
        found: list[Inline | Staged] = []
        for part in parts:
            if isinstance(part, Staged):
                found.append(part)
                continue
            header = parse_header(part)
            found.append(Inline(len(payloads), header.count, header.records_bytes))
            payloads.append(part)
        return Unit(receipt, tuple(found), entry_bytes_max), payloads

    async def _perform(self, action: Action[Any], payloads: Sequence[bytes]) -> object:
        match action:
            case unit_commit.OpenSegment(epoch):
                return await self._open_segment(epoch)
            case unit_commit.AppendUnit(receipt):
                return await self._append(receipt, payloads)
            case unit_commit.StageRun(receipt, numbers):
                return await self._stage(receipt, [payloads[number] for number in numbers])
            case unit_commit.CloseSegments():
                await self._end_segment()
                return None
            case _:
                return await on_ledgers(self._ledgers)(action)

    async def _open_segment(self, epoch: int) -> Manifest:
        await self._end_segment()  # of a commit that was cancelled
        opened = await TakeoverDriver(
            self._ledgers,
            self._node,
            term=None,
            now_ms=self._now_ms,
            expected_epoch=epoch,
            reopens=self._tenure.incarnation,
        ).run()
        self._settings = opened.manifest.settings
        self._warn_of(opened.manifest)
        self._writer = LogWriter(
            self._ledgers,
            self._node,
            opened,
            now_ms=self._now_ms,
            reopen_timeout_s=self._reopen_timeout_s,
        )
        return opened.manifest

    async def _append(
        self, receipt: Receipt, payloads: Sequence[bytes]
    ) -> unit_commit.UnitAppended:
        writer = self._writer
        if writer is None:
            raise AppendFailed(self.log, "no segment is open")
        count = sum(parse_header(payload).count for payload in payloads)
        outcome = writer.submit_encoded(payloads, receipt)
        first = (await AppendFuture(outcome, 0, asyncio.get_running_loop())).offset
        last_txid = NO_TXID if writer.last_txid is None else writer.last_txid
        return unit_commit.UnitAppended(first, first + count, last_txid)

    async def _stage(self, receipt: Receipt, payloads: Sequence[bytes]) -> Staged:
        most = self._settings.record_bytes_max
        for payload in payloads:  # whoever encoded it may not have known the log
            size = parse_header(payload).records_bytes
            if size > most and (size := largest_record_bytes(decode_encoded(payload))) > most:
                raise RecordTooLarge(self.log, size, most)
        stager = await Stager.begin(self._ledgers, self.assignment, receipt)
        try:
            for payload in payloads:
                await stager.add(payload)
            return await stager.seal()
        except BaseException:
            await stager.abandon()
            raise

    async def _end_segment(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            await writer.close(CLOSE_S)
        except LogError as error:  # the next one to open seals it
            _log.info("segment_not_closed", log=self.log, error=str(error))

    async def _apply_retention(self) -> None:
        try:
            manifest, _ = await self._node.read()
            self._warn_of(manifest)
            manifest = await apply_retention(
                self._ledgers, self._node, manifest, now_ms=self._now_ms()
            )
            await delete_listed(self._ledgers, self._node, manifest)
        except LogError as error:  # they stay listed: the next unit or the janitor deletes them
            _log.warning("deletion_postponed", log=self.log, error=str(error))

    def _warn_of(self, manifest: Manifest) -> None:
        """Log a warning while the manifest is filling up, with each tenth that it grows."""
        size = manifest.size_bytes
        if size < max(FULL_BYTES / 2, self._warned_bytes * 1.1):
            return
        self._warned_bytes = size
        _log.warning(
            "manifest_half_full",
            log=self.log,
            segments=len(manifest.segments),
            size_bytes=size,
            size_bytes_max=FULL_BYTES,
            advice="let retention or a truncation take whole segments, or write fewer",
        )

    async def _leave(self) -> None:
        if self._owns_ledgers:
            self._owns_ledgers = False
            await self._ledgers.close()


class Stager:
    """Writes a ledger that a sink may make part of its log. Made by `begin`.

    If it is not asked for, because the unit was done by another attempt, it never becomes part of
    the log, and the janitor deletes it."""

    def __init__(
        self, ledger: LedgerAppender, assignment: Assignment, sealer: Sealer | None, level: int
    ) -> None:
        """*level*: the feature level of the cluster."""
        self._ledger = ledger
        self._sealer = sealer
        self._level = level
        self._assignment = assignment
        self._adding: deque[asyncio.Future[EntryId]] = deque()
        self._first: bytes | None = None
        self._last = b""
        self._records = 0
        self._first_txid = NO_TXID
        self._last_txid = assignment.previous_txid

    @classmethod
    async def begin(cls, ledgers: Ledgers, assignment: Assignment, receipt: Receipt) -> Self:
        """Make the ledger. Raises what making one does (`NotEnoughBookies`, ...), and if the log
        is encrypted what `new_data_key` does."""
        settings = assignment.settings
        data_key = await new_data_key(settings.encrypt_with)
        stamp = StagedFor(assignment.log, assignment.incarnation, assignment.epoch, receipt)
        ledger = await ledgers.create(
            settings.quorum,
            digest=settings.digest,
            custom=stamp.custom() | stamp_of(data_key),
            degraded_writes=settings.degraded_writes,
        )
        sealer = Sealer.of(data_key, assignment.incarnation, ledger.ledger_id)
        return cls(ledger, assignment, sealer, ledgers.level)

    async def add(self, payload: bytes) -> None:
        """Add an encoded batch that is not compressed; wait while too many are under way.

        Raises `DamagedBatch`, `LevelTooLow`, and what ended the ledger: then begin another one."""
        settings = self._assignment.settings
        header = parse_header(payload)
        if header.flags & Flag.PAIRS:
            ClusterLevel(self._level).check_brings(HEADER_PAIRS, PAIRED_RECORD)
        while len(self._adding) >= STAGED_AT_ONCE_MAX:
            await self._adding.popleft()
        entry = placed(
            payload,
            base_index=self._records,
            previous_txid=self._last_txid,
            codec=settings.codec if self._sealer is None else Codec.NONE,
            codec_level=settings.codec_level,
        )
        if self._sealer is not None:
            entry = self._sealer.seal(entry, settings.codec, settings.codec_level)
        if self._first is None:
            self._first = payload
        self._last = payload
        self._records += header.count
        if header.first_txid != NO_TXID:
            self._last_txid = header.last_txid
            if self._first_txid == NO_TXID:
                self._first_txid = header.first_txid
        self._adding.append(self._ledger.add(entry))
        if self._sealer is not None:
            self._sealer.added()

    async def seal(self) -> Staged:
        """Confirm and close. Requires that something was added. Raises what `add` does."""
        assert self._first is not None, "a unit has records"
        await asyncio.gather(*self._adding)
        self._adding.clear()
        metadata = await self._ledger.close()
        if metadata.last_entry is None or metadata.length is None:
            raise DamagedBatch(f"ledger {self._ledger.ledger_id} is not closed")
        first, last = decode_batch(self._first), decode_batch(self._last)
        sealed = Sealed(
            last_entry=metadata.last_entry,
            records=self._records,
            bytes=metadata.length,
            first_txid=self._first_txid,
            last_txid=self._last_txid,
            first_timestamp_ms=min(first.timestamps_ms()),
            last_timestamp_ms=max(last.timestamps_ms()),
        )
        return Staged(self._ledger.ledger_id, self._assignment.epoch, sealed)

    async def abandon(self) -> None:
        """Give it up; the janitor deletes the ledger."""
        for adding in self._adding:
            adding.cancel()
        self._adding.clear()
        with suppress(LogError):
            await self._ledger.abandon()
