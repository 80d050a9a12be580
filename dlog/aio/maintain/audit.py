"""Audit of a namespace: do its logs, ledgers and objects fit together? Changes nothing by itself.

A list of objects proves none missing: each object of a segment is looked for by its name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

from dlog.aio.maintain.janitor import remove_orphan
from dlog.aio.maintain.lifecycle import finish_drop
from dlog.aio.maintain.survey import Survey, Trouble, Unlisted, survey, unlisted
from dlog.aio.port import Ledgers
from dlog.aio.procedures import run_on_ledgers
from dlog.aio.store import ManifestNode, delete_listed
from dlog.archive import object_store
from dlog.archive.segment_index import read_run, view_with
from dlog.errors import DamagedObject, NoSuchLog, ObjectLost
from dlog.manifest import Manifest, Segment
from dlog.protocol.archive import orphan_objects
from dlog.protocol.orphans import OrphanKind
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import LedgerId
from ledger.tasks import for_each

T = TypeVar("T")

OBJECTS_AT_ONCE: Final = 16
FINDINGS_MAX: Final = 10_000
"""How many of each kind a report names; it counts all."""


@dataclass(frozen=True, slots=True)
class MissingLedger:
    """A segment whose ledger does not exist: its records are lost."""

    log: str
    segment: int
    ledger_id: LedgerId
    records: int | None
    """None: not known, the segment was open."""


@dataclass(frozen=True, slots=True)
class MissingObject:
    """A segment whose object does not exist, or has another size than when it was written."""

    log: str
    segment: int
    object: str
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class OrphanObject:
    """An object of an attempt that failed."""

    log: str
    object: str


@dataclass(frozen=True, slots=True)
class WaitingLedgers:
    """Ledgers and objects of a log that are listed for deletion and still there."""

    log: str
    ledgers: tuple[LedgerId, ...]
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    logs: int
    ledgers: int
    segments: int
    missing: tuple[MissingLedger, ...]
    missing_objects: tuple[MissingObject, ...]
    orphans: tuple[Unlisted, ...]
    """Provably of no use to any log; with *repair* they were deleted."""
    orphan_objects: tuple[OrphanObject, ...]
    """The same of objects."""
    waiting: tuple[WaitingLedgers, ...]
    """Left by a truncation that did not finish; with *repair* they were deleted."""
    half_deleted: tuple[str, ...]
    """Logs whose deletion has begun; with *repair* it was finished."""
    pending: tuple[Unlisted, ...]
    """Made for a log and not listed: a writer may be about to. If it stays so it is a leak
    that ends with the next takeover of the log; nobody may delete it before."""
    foreign: int
    """Ledgers that were not made for logs."""
    undecided: int
    """Ledgers that could not be judged: logs changed, or could not be read meanwhile."""
    troubles: tuple[Trouble, ...]
    """What could not be read or repaired."""
    repaired: bool
    more: int
    """Findings beyond those that are named."""

    @property
    def healthy(self) -> bool:
        """True iff nothing is lost, leaked or unreadable, or all that was has been repaired."""
        leaks = (self.orphans, self.orphan_objects, self.waiting, self.half_deleted)
        lost = self.missing or self.missing_objects
        return not (lost or self.troubles or (any(leaks) and not self.repaired))


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """*what* is being looked at: "logs", then "ledgers"."""

    what: str
    done: int


async def audit(
    ledgers: Ledgers,
    *,
    repair: bool = False,
    on_progress: Callable[[AuditProgress], None] = lambda _: None,
) -> AuditReport:
    """Compare all logs with all ledgers. With *repair*, delete what is provably leaked.

    Raises what listing logs and ledgers raises."""
    auditor = _Auditor(ledgers, repair=repair, on_progress=on_progress)
    found = await survey(ledgers, auditor.look_at_log)
    async for each in unlisted(ledgers, found, skip=set()):
        await auditor.look_at_ledger(found, each)
    return auditor.report(found)


class _Auditor:
    """Gathers the findings of one audit."""

    def __init__(
        self, ledgers: Ledgers, *, repair: bool, on_progress: Callable[[AuditProgress], None]
    ) -> None:
        self._ledgers = ledgers
        self._repair = repair
        self._on_progress = on_progress
        self._logs = self._segments = self._unlisted = self._foreign = self._undecided = 0
        self._missing: list[MissingLedger] = []
        self._missing_objects: list[MissingObject] = []
        self._orphan_objects: list[OrphanObject] = []
        self._orphans: list[Unlisted] = []
        self._waiting: list[WaitingLedgers] = []
        self._half_deleted: list[str] = []
        self._pending: list[Unlisted] = []
        self._more = 0

    async def look_at_log(self, found: Survey, node: ManifestNode, manifest: Manifest) -> None:
        self._logs += 1
        self._segments += manifest.segment_count
        self._on_progress(AuditProgress("logs", self._logs))
        if manifest.dropped:
            self._note(self._half_deleted, node.log)
            if self._repair:
                await finish_drop(self._ledgers, node)
            return
        if manifest.deleting or manifest.deleting_objects:
            objects = tuple(stored.name for stored in manifest.deleting_objects)
            self._note(self._waiting, WaitingLedgers(node.log, manifest.deleting, objects))
            if self._repair:
                await delete_listed(self._ledgers, node, manifest)
        for segment in manifest.segments:
            if segment.location.object is not None:
                continue  # its records are there too, or only there
            if not found.exists(segment.ledger_id) and await self._is_missing(node, segment):
                records = segment.sealed.records if segment.sealed else None
                lost = MissingLedger(node.log, segment.number, segment.ledger_id, records)
                self._note(self._missing, lost)
        if manifest.storage:
            await self._look_at_objects(node, manifest)

    async def _look_at_objects(self, node: ManifestNode, manifest: Manifest) -> None:
        folder = object_store.open_folder(manifest.storage)

        async def look_at(segment: Segment) -> None:
            stored, sealed = segment.location.object, segment.sealed
            assert stored is not None, "only those with an object are looked at"
            assert sealed is not None, "only sealed segments have one"
            size = await folder.size(stored.name)
            end = stored.start + stored.bytes
            if (size or 0) >= end or not await self._is_listed(node, segment):
                return
            reason = "does not exist" if size is None else f"has {size} bytes, not {end}"
            lost = MissingObject(node.log, segment.number, stored.name, sealed.records, reason)
            self._note(self._missing_objects, lost)

        archived = [segment for segment in manifest.segments if segment.location.object]
        await for_each(archived, look_at, at_once=OBJECTS_AT_ONCE)
        for run in manifest.living_runs:
            try:
                segments = await read_run(node.log, run)
            except (ObjectLost, DamagedObject) as error:
                now, _ = await node.read()
                if run in now.living_runs:
                    lost = MissingObject(
                        node.log, run.first_number, run.index.name, run.records, str(error)
                    )
                    self._note(self._missing_objects, lost)
                continue
            there = [each for each in segments if (each.end_offset or 0) > manifest.trim_offset]
            await for_each(there, look_at, at_once=OBJECTS_AT_ONCE)
        orphans = await run_on_ledgers(
            orphan_objects(node.steps, incarnation=manifest.incarnation, delete=self._repair),
            self._ledgers,
        )
        for name in orphans:
            self._note(self._orphan_objects, OrphanObject(node.log, name))

    async def _is_listed(self, node: ManifestNode, segment: Segment) -> bool:
        """Whether the segment is in its object still."""
        try:
            manifest, _ = await node.read()
            manifest = await view_with(node.log, manifest, segment.number)
        except NoSuchLog:
            return False
        listed = manifest.find(segment.number)
        return listed is not None and listed.location.object == segment.location.object

    async def look_at_ledger(self, found: Survey, each: Unlisted) -> None:
        self._unlisted += 1
        self._on_progress(AuditProgress("ledgers", self._unlisted))
        if each.stamp is None:
            self._foreign += 1
            return
        match each.standing:
            case None:
                self._undecided += 1
            case OrphanKind.PENDING:
                self._note(self._pending, each)
            case (
                OrphanKind.UNLISTED
                | OrphanKind.DISCARDED
                | OrphanKind.UNUSED_COPY
                | OrphanKind.ENDED
                | OrphanKind.LOG_GONE
            ):
                self._note(self._orphans, each)
                if self._repair:
                    try:
                        await remove_orphan(self._ledgers, each)
                    except LogError as error:
                        found.troubles.append(Trouble(f"ledger {each.ledger_id}", error))
            case OrphanKind.SEGMENT | OrphanKind.WAITING:
                pass  # its log's
            case _:
                assert_never(each.standing)

    def report(self, found: Survey) -> AuditReport:
        return AuditReport(
            logs=self._logs,
            ledgers=len(found.ledgers),
            segments=self._segments,
            missing=tuple(self._missing),
            missing_objects=tuple(self._missing_objects),
            orphan_objects=tuple(self._orphan_objects),
            orphans=tuple(self._orphans),
            waiting=tuple(self._waiting),
            half_deleted=tuple(self._half_deleted),
            pending=tuple(self._pending),
            foreign=self._foreign,
            undecided=self._undecided,
            troubles=tuple(found.troubles),
            repaired=self._repair,
            more=self._more,
        )

    async def _is_missing(self, node: ManifestNode, segment: Segment) -> bool:
        """Return whether a ledger that was not there before the manifest was read is missing.

        It may be younger than that look; or its segment was trimmed or dropped since."""
        try:
            await self._ledgers.describe(segment.ledger_id)
        except NoSuchLedger:
            pass
        else:
            return False
        try:
            manifest, _ = await node.read()
        except NoSuchLog:
            return False
        return any(
            listed.ledger_id == segment.ledger_id and listed.location.object is None
            for listed in manifest.segments
        )

    def _note(self, findings: list[T], finding: T) -> None:
        if len(findings) < FINDINGS_MAX:
            findings.append(finding)
        else:
            self._more += 1
