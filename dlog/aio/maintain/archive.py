"""Carries out `protocol.archive`: copies ledgers to objects, verifies them, lets ledgers go; and
brings archived segments back to bookies, for some time."""

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google_crc32c import value as crc32c

from dlog import metrics
from dlog.aio.maintain.table import TableReport, extend_table
from dlog.aio.port import LedgerAppender, Ledgers
from dlog.aio.procedures import on_ledgers
from dlog.aio.read.segments import opened
from dlog.aio.store import ManifestNode
from dlog.archive import object_store
from dlog.archive.object_format import ArchivedSegment, ObjectEncoder, encode_segment
from dlog.archive.object_tail import ObjectTail, verify_object
from dlog.archive.segment_index import all_segments
from dlog.errors import (
    CopiesSuperseded,
    DamagedLog,
    InvalidSettings,
    NoSuchLog,
    TooManyCopies,
)
from dlog.manifest import LocalCopy, Location, Manifest, Segment, StoredObject
from dlog.protocol import archive as protocol
from dlog.protocol.actions import CopyToLedger, CopyToObject, VerifyObject
from dlog.protocol.edits import begin_copies, check_living, drop_copies, keep_copies
from dlog.protocol.manifest_steps import delete_listed
from dlog.protocol.object_owner import hold_objects
from dlog.protocol.orphans import STAMP_COPIED
from dlog.protocol.segment_index import due_for_index, index_segments
from dlog.settings import LogSettings
from ledger.entry import Digest
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.procedures import Perform, run
from ledger.protocol.procedure import Action

READ_BYTES_MAX: Final = 2 << 20
RESTORED_KEEP_S: Final = 7 * 86_400.0
"""How long local copies stay by default."""
FAILURES_MAX: Final = 3
"""In a row: then the storage, or the bookies, are given a rest."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """Of one log."""

    segments_done: int
    segments: int
    """How many are to be archived."""
    bytes: int
    """Of objects written so far, also of one that is under way."""


@dataclass(frozen=True, slots=True)
class ArchiveFailure:
    segment: int
    error: LogError


@dataclass(slots=True)
class ArchiveReport:
    """What was done to one log."""

    log: str
    archived: list[StoredObject] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    """Segments whose ledgers were deleted."""
    orphans: int = 0
    """Objects of earlier attempts that were deleted."""
    indexed: int = 0
    """Segments whose lines went from the manifest to an index object."""
    failures: list[ArchiveFailure] = field(default_factory=list)
    copies_dropped: int = 0
    """Local copies whose time was over."""
    waiting: int = 0
    """Segments that are due and were not tried, after failures."""
    table: TableReport = field(default_factory=TableReport)
    """What was added to the log's table, if it has one."""
    table_error: LogError | None = None
    """Why the table was not extended; nothing else depends on it."""

    @property
    def did_something(self) -> bool:
        done = self.archived or self.released or self.orphans or self.failed
        return bool(done or self.copies_dropped or self.table.rows or self.table.orphans)

    @property
    def failed(self) -> int:
        """How many segments could not be archived or released, and the table not extended."""
        return len(self.failures) + (self.table_error is not None)

    @property
    def bytes(self) -> int:
        """Of the objects that were written."""
        return sum(stored.bytes for stored in self.archived)


@dataclass(slots=True)
class RestoreReport:
    """What was brought back to bookies of one log."""

    log: str
    restored: list[LocalCopy] = field(default_factory=list)
    bytes: int = 0
    """Payload bytes of those."""
    kept: int = 0
    """Segments that had a local copy; it stays as long as the new ones."""
    on_bookies: int = 0
    """Segments that have not left the bookies; local_keep_s and local_keep_bytes say when."""
    until_ms: int = 0
    failures: list[ArchiveFailure] = field(default_factory=list)
    waiting: int = 0
    """Segments that were not tried, after failures."""


Paced = Callable[[int], Awaitable[None]]


async def archive_log(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    now_ms: Callable[[], int],
    at_once: bool = False,
    claim: bool = False,
    orphans: bool = True,
    on_progress: Callable[[ArchiveProgress], None] = lambda _: None,
    paced: Paced | None = None,
) -> ArchiveReport:
    """Archive and release what the settings of the log ask for; *at_once*: archive all that is
    sealed. *claim*: take the log's objects from another copy of the namespace, which deletes none
    from then on. *orphans*: also look for objects of earlier attempts, by a list of all objects.
    *paced* is awaited with the bytes of each part of an object before it is written.

    A segment that fails is reported, and the next one tried. Raises `InvalidSettings` if the log
    has no object storage, `ObjectsOwnedElsewhere` if there is something to do, `NoSuchLog`,
    `ArchiveMissing`, and what metadata store and storage raise."""
    manifest, _ = await node.read()
    check_living(manifest, node.log)
    node.follow(manifest.incarnation)
    if not manifest.storage:
        reason = f"log {node.log!r} has no object storage: set archive to its URI"
        raise InvalidSettings("archive", "", reason)
    object_store.open_folder(manifest.storage)
    incarnation = manifest.incarnation
    plan = protocol.plan_archive(manifest, now_ms(), at_once=at_once)
    report = ArchiveReport(node.log)
    copier = _Copier(ledgers, node, plan.segments, on_progress, paced)
    perform = copier.perform
    if claim or plan.archive or plan.release:
        await run(hold_objects(node.steps, incarnation, claim=claim), perform)
    in_a_row = done = 0
    for numbers in plan.archive:
        if in_a_row >= FAILURES_MAX:
            report.waiting = plan.segments - done
            break
        done += len(numbers)
        token = secrets.token_hex(protocol.TOKEN_BYTES)
        steps = protocol.archive_segments(node.steps, numbers, incarnation=incarnation, token=token)
        try:
            stored = await run(steps, perform)
        except NoSuchLog:
            raise
        except LogError as error:
            _note(report, numbers[0], error)
            in_a_row += 1
            continue
        in_a_row = 0
        copier.finished(len(numbers))
        report.archived.extend(stored)
        metrics.ARCHIVED_SEGMENTS.add(by=len(stored))
        metrics.ARCHIVED_BYTES.add(by=sum(part.bytes for part in stored))
        if stored:
            segments, name = len(stored), stored[0].name
            _log.info("segments_archived", log=node.log, segments=segments, object=name)
    await _release(node, report, incarnation, perform, now_ms)
    if not report.failures:
        report.indexed = await _index(node, incarnation, perform)
    if orphans:
        with suppress(LogError):  # the next time
            look = protocol.orphan_objects(node.steps, incarnation=incarnation, delete=True)
            report.orphans = len(await run(look, perform))
    if manifest.settings.archive_table:
        await _extend_table(
            ledgers,
            node,
            report,
            incarnation,
            now_ms,
            at_once=at_once,
            orphans=orphans,
            paced=paced,
        )
    return report


async def _extend_table(
    ledgers: Ledgers,
    node: ManifestNode,
    report: ArchiveReport,
    incarnation: str,
    now_ms: Callable[[], int],
    *,
    at_once: bool,
    orphans: bool,
    paced: Paced | None,
) -> None:
    try:
        report.table = await extend_table(
            ledgers,
            node,
            incarnation=incarnation,
            now_ms=now_ms,
            at_once=at_once,
            orphans=orphans,
            paced=paced,
        )
    except NoSuchLog:
        raise
    except LogError as error:
        report.table_error = error
        _log.warning("table_not_extended", log=node.log, error=str(error))


async def _release(
    node: ManifestNode,
    report: ArchiveReport,
    incarnation: str,
    perform: Perform,
    now_ms: Callable[[], int],
) -> None:
    """Let the segments leave the bookies whose time has come."""
    manifest, _ = await node.read()
    if any(copy.until_ms <= now_ms() for copy in manifest.copies):
        after = await node.edit(drop_copies(node.log, now_ms(), incarnation=incarnation))
        report.copies_dropped = len(manifest.copies) - len(after.copies)
        manifest = await run(delete_listed(node.steps, after), perform)
    for number in protocol.plan_archive(manifest, now_ms()).release:
        steps = protocol.release_segment(node.steps, number, incarnation=incarnation)
        try:
            if await run(steps, perform):
                report.released.append(number)
                metrics.RELEASED_SEGMENTS.add()
        except NoSuchLog:
            raise
        except LogError as error:
            _note(report, number, error)
            break


async def _index(node: ManifestNode, incarnation: str, perform: Perform) -> int:
    """Move lines of archived segments out of the manifest; return how many."""
    manifest, _ = await node.read()
    if not due_for_index(manifest):
        return 0
    await run(hold_objects(node.steps, incarnation), perform)
    moved = 0
    while True:
        token = secrets.token_hex(protocol.TOKEN_BYTES)
        steps = index_segments(node.steps, incarnation=incarnation, token=token)
        try:
            lines = await run(steps, perform)
        except NoSuchLog:
            raise
        except LogError as error:  # the next time
            _log.warning("indexing_failed", log=node.log, error=str(error))
            break
        moved += lines
        if not lines:
            break
    manifest, _ = await node.read()
    await run(delete_listed(node.steps, manifest), perform)
    return moved


def _note(report: ArchiveReport | RestoreReport, number: int, error: LogError) -> None:
    report.failures.append(ArchiveFailure(number, error))
    _log.warning("archiving_failed", log=report.log, segment=number, error=str(error))


async def restore_segments(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    first: int,
    end: int | None,
    keep_s: float,
    now_ms: Callable[[], int],
    on_progress: Callable[[ArchiveProgress], None] = lambda _: None,
) -> RestoreReport:
    """Bring the segments with the offsets from *first* on, before *end*, back to bookies for
    *keep_s*; 0: let the copies go that there are, with the next pass of the archiver, and stop
    whoever makes more.

    A segment that fails is reported, and the next one tried. Raises `NoSuchLog`, `TooManyCopies`,
    `CopiesSuperseded`, `ObjectLost` and `DamagedObject` of an index, `ArchiveMissing`, and what
    metadata store and storage raise."""
    manifest, _ = await node.read()
    check_living(manifest, node.log)
    incarnation = manifest.incarnation
    node.follow(incarnation)
    report = RestoreReport(node.log, until_ms=now_ms() + round(keep_s * 1000))
    wanted = await _segments_within(node.log, manifest, first, end)
    held = {s.number for s in wanted if s.location.copy is not None}
    missing = [s for s in wanted if s.number not in held and not s.location.on_bookies]
    report.on_bookies, report.kept = len(wanted) - len(held) - len(missing), len(held)
    if held:
        edit = keep_copies(node.log, held, report.until_ms, incarnation=incarnation)
        await node.edit(edit)
    if not missing and keep_s:
        return report
    if keep_s and len(missing) + len(manifest.copies) > protocol.COPIES_MAX:
        copies = len(manifest.copies)
        raise TooManyCopies(node.log, len(missing), copies, protocol.COPIES_MAX)
    begun = await node.edit(begin_copies(node.log, incarnation=incarnation))
    if not keep_s:
        return report
    copier = _Copier(ledgers, node, len(missing), on_progress, None)
    in_a_row = 0
    for done, segment in enumerate(missing):
        if in_a_row >= FAILURES_MAX:
            report.waiting = len(missing) - done
            break
        steps = protocol.copy_segment(
            node.steps,
            segment,
            incarnation=incarnation,
            copy_round=begun.copy_round,
            until_ms=report.until_ms,
        )
        try:
            copy = await run(steps, copier.perform)
        except (NoSuchLog, CopiesSuperseded):
            raise
        except LogError as error:
            _note(report, segment.number, error)
            in_a_row += 1
            continue
        in_a_row = 0
        copier.finished(1)
        if copy is not None and segment.sealed is not None:
            report.restored.append(copy)
            report.bytes += segment.sealed.bytes
            metrics.RESTORED_SEGMENTS.add()
            _log.info("segment_restored", log=node.log, segment=copy.number, ledger=copy.ledger_id)
    return report


async def _segments_within(
    log: str, manifest: Manifest, first: int, end: int | None
) -> list[Segment]:
    """Return the segments in objects that have an offset from *first* on, before *end*."""

    def overlaps(begins: int | None, ends: int | None) -> bool:
        is_before = ends is not None and ends <= first
        return not (is_before or (end is not None and begins is not None and begins >= end))

    each = all_segments(
        log, manifest, wanted=lambda run: overlaps(run.first_offset, run.end_offset)
    )
    return [s async for s in each if s.location.object and overlaps(s.first_offset, s.end_offset)]


class _Copier:
    """Does the actions of archiving one log."""

    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        segments: int,
        on_progress: Callable[[ArchiveProgress], None],
        paced: Paced | None,
    ) -> None:
        self._ledgers, self._node = ledgers, node
        self._segments, self._done, self._bytes = segments, 0, 0
        self._on_progress, self._paced = on_progress, paced
        self._otherwise: Perform = on_ledgers(ledgers)

    async def perform(self, action: Action[Any]) -> object:
        match action:
            case CopyToObject(segments, storage, name):
                return await self._copy(segments, storage, name)
            case CopyToLedger(segment, settings, custom):
                return await self._copy_back(segment, settings, custom)
            case VerifyObject(segment):
                await self._verify(segment)
                return None
            case _:
                return await self._otherwise(action)

    def finished(self, segments: int) -> None:
        """Count segments as done."""
        self._done += segments
        self._report()

    async def _verify(self, segment: Segment) -> None:
        await verify_object(segment, self._node.log)

    async def _copy(
        self, segments: tuple[Segment, ...], storage: str, name: str
    ) -> tuple[StoredObject, ...]:
        encoders = [await self._encoder(segment, storage) for segment in segments]
        folder = object_store.open_folder(storage)
        await folder.put(name, self._chunks(encoders))
        parts, start = list[StoredObject](), 0
        for segment, encoder in zip(segments, encoders, strict=True):
            part = StoredObject(name, encoder.bytes, storage, start)
            moved = replace(segment, location=Location(object=part))
            await verify_object(moved, self._node.log, expected=encoder.index())
            parts.append(part)
            start += encoder.bytes
        return tuple(parts)

    async def _copy_back(
        self, segment: Segment, settings: LogSettings, custom: Mapping[str, bytes]
    ) -> LedgerId:
        stored = segment.location.object
        assert stored is not None, "it is in an object"
        folder = object_store.open_folder(stored.storage)
        tail = await ObjectTail.open(folder, self._node.log, segment)
        try:
            whose = encode_segment(tail.segment)
            writer = await self._ledgers.create(
                settings.quorum,
                digest=Digest(settings.digest),
                custom={**custom, STAMP_COPIED: whose},
                degraded_writes=settings.degraded_writes,
            )
            try:
                crcs = await self._write(writer, tail)
                await self._check_copy(segment, writer.ledger_id, crcs)
            except BaseException:
                with suppress(LogError):  # else its stamp tells the janitor
                    await writer.abandon()
                    await self._ledgers.delete(writer.ledger_id)
                raise
        finally:
            await tail.close()
        return writer.ledger_id

    async def _write(self, writer: LedgerAppender, tail: ObjectTail) -> "array[int]":
        """Write the entries of *tail*, and close the ledger; return the checksums of what was sent.

        What one read brings is sent at once, and acknowledged before the next one is sent."""
        crcs, entry = array("I"), 0
        while entries := await tail.read_some(entry, bytes_max=READ_BYTES_MAX):
            for each in entries:
                tail.index.verify(each)
            payloads = [bytes(each.payload) for each in entries]
            crcs.extend(crc32c(payload) for payload in payloads)
            await asyncio.gather(*map(writer.add, payloads))
            await self._counted(sum(map(len, payloads)))
            entry = entries[-1].entry_id + 1
        await writer.close()
        return crcs

    async def _check_copy(self, segment: Segment, ledger_id: LedgerId, crcs: "array[int]") -> None:
        """Read the copy back, wholly. Raises `DamagedLog` if it is not what was sent."""
        sealed, entry = segment.sealed, 0
        assert sealed is not None, "it is in an object"
        metadata = await self._ledgers.describe(ledger_id)
        right = (metadata.last_entry, metadata.length) == (sealed.last_entry, sealed.bytes)
        async with opened(self._ledgers, ledger_id) as reader:
            while right and entry < len(crcs):
                entries = await reader.read_some(entry, bytes_max=READ_BYTES_MAX)
                right = bool(entries)
                for each in entries:
                    right = right and crc32c(bytes(each.payload)) == crcs[each.entry_id]
                entry += len(entries)
                await asyncio.sleep(0)
        if not right or len(crcs) != sealed.last_entry + 1:
            reason = f"the local copy of segment {segment.number} differs from its object"
            raise DamagedLog(self._node.log, reason)

    async def _encoder(self, segment: Segment, storage: str) -> ObjectEncoder:
        log, sealed = self._node.log, segment.sealed
        assert sealed is not None, "only sealed segments are archived"
        assert segment.first_offset is not None, "it is known of sealed segments"
        metadata = await self._ledgers.describe(segment.ledger_id)
        if metadata.last_entry != sealed.last_entry:
            reason = f"ledger {segment.ledger_id} ends at entry {metadata.last_entry}"
            raise DamagedLog(log, f"{reason}, segment {segment.number} at {sealed.last_entry}")
        return ObjectEncoder(
            ArchivedSegment(
                incarnation=storage.rpartition("/")[2],
                log=log,
                number=segment.number,
                ledger_id=segment.ledger_id,
                first_offset=segment.first_offset,
                sealed=sealed,
                created_ms=segment.created_ms,
                digest=metadata.digest,
                custom=metadata.custom,
            )
        )

    async def _chunks(self, encoders: Sequence[ObjectEncoder]) -> AsyncGenerator[bytes, None]:
        for encoder in encoders:
            yield await self._sent(encoder.begin())
            async with opened(self._ledgers, encoder.segment.ledger_id) as reader:
                entry = 0
                while entry < encoder.segment.entries:
                    entries = await reader.read_some(
                        entry, last=encoder.segment.entries - 1, bytes_max=READ_BYTES_MAX
                    )
                    for each in entries:
                        block = encoder.add(each.frame)
                        if block is not None:
                            yield await self._sent(block)
                    entry = entries[-1].entry_id + 1 if entries else entry
                    await asyncio.sleep(0)
            yield await self._sent(encoder.end())

    async def _sent(self, data: bytes) -> bytes:
        await self._counted(len(data))
        return data

    async def _counted(self, size: int) -> None:
        if self._paced is not None:
            await self._paced(size)
        self._bytes += size
        self._report()

    def _report(self) -> None:
        self._on_progress(ArchiveProgress(self._done, self._segments, self._bytes))
