"""Verifying a log: every entry is read from every bookie that should hold it, and compared.

Reads only; nothing is fenced and no writer is disturbed. Entries of an open segment are looked
at up to the last add confirmed. What seems to be missing is looked for twice: an entry may be
on its way to the last of its bookies, or have moved with an ensemble change.
Bounded: a window of entries at a time, and of each entry the payload of one replica. Of a segment
in object storage the whole object is read, block after block.

What is found may be handed to repair, as marks (`mark_faults`): what is marked its workers look at.
A mark is a suspicion. Replicas that differ and are each whole are not handed on: which of them is
right is for a person to say.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt, wait_exponential

from dlog.aio.port import Ledgers
from dlog.aio.read.segments import opened_whole
from dlog.aio.store import ManifestNode
from dlog.archive.object_format import ObjectEntry
from dlog.archive.object_tail import verify_object
from dlog.archive.segment_index import read_run, view_with
from dlog.envelope import decode_facts
from dlog.errors import DamagedBatch, DamagedObject, NoSuchLog, ObjectLost
from dlog.manifest import ON_BOOKIES, Manifest, Segment
from dlog.protocol.edits import check_living
from dlog.protocol.verification import (
    PROBLEMS_MAX,
    FragmentFault,
    Problem,
    SegmentCheck,
)
from ledger.entry import Header, ReplicaFault, judge_replicas, payload_of
from ledger.errors import BookieUnavailable, LogError, NoSuchLedger
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica, Reason
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.port import MetadataStore
from ledger.protocol.answers import Found
from ledger.quorum import holds, write_set
from ledger.repair_marks import mark_ledger, notify_workers
from ledger.requests import Status

WINDOW_BYTES: Final = 8 * 1024 * 1024
WINDOW_ENTRIES_MAX: Final = 1024
ASKS_MAX: Final = 3
"""How often a bookie that does not answer, or is too busy, is asked."""
ASK_AGAIN_S: Final = 0.4
"""After how long it is asked again; the next time after twice as long."""


async def mark_faults(store: MetadataStore, faults: Iterable[FragmentFault]) -> int:
    """Mark the ledgers of *faults* that repair can make good; return how many those are.

    Raises `MetadataUnavailable`; then some may be marked, and it can be repeated."""
    missing: dict[LedgerId, list[MissingReplica]] = {}
    since_ms = now_ms()
    for fault in faults:
        reason = _reason_of(fault.fault)
        if reason is not None:
            replica = MissingReplica(fault.bookie, reason, since_ms)
            missing.setdefault(fault.ledger_id, []).append(replica)
    for ledger_id, found in missing.items():
        await mark_ledger(store, ledger_id, found)
    if missing:
        await notify_workers(store)
    return len(missing)


def _reason_of(fault: ReplicaFault) -> Reason | None:
    match fault:
        case ReplicaFault.MISSING:
            return Reason.MISSING
        case ReplicaFault.DAMAGED | ReplicaFault.UNREADABLE:
            return Reason.DAMAGED
        case ReplicaFault.DIFFERENT | ReplicaFault.REFUSED | ReplicaFault.UNREACHABLE:
            return None
        case _:
            assert_never(fault)


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    segment: int
    segments_done: int
    segments: int
    entries: int
    """Verified so far, of all segments."""
    bytes: int
    """Payload bytes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    log: str
    incarnation: str
    segments: int
    entries: int
    records: int
    replicas: int
    """Copies of entries that were read and found right."""
    bytes: int
    """Payload bytes, each entry counted once."""
    faults: tuple[FragmentFault, ...]
    """Fragments that are damaged or short on a bookie."""
    problems: tuple[Problem, ...]
    """What is wrong with the log itself."""
    more: int
    """Problems beyond those that are named."""
    trimmed: int
    """Segments that were trimmed away before they could be read whole."""
    marked: int = 0
    """Ledgers that were handed to repair."""

    @property
    def healthy(self) -> bool:
        """True iff every replica of every entry is there and right."""
        return not (self.faults or self.problems)


@dataclass(slots=True)
class _Share:
    """What one bookie gave of a window."""

    headers: dict[int, Header] = field(default_factory=dict)
    faults: dict[int, ReplicaFault] = field(default_factory=dict)


async def verify(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    on_progress: Callable[[VerifyProgress], None] = lambda _: None,
) -> VerifyReport:
    """Verify all segments that the log has now. Raises `NoSuchLog`, `MetadataUnavailable`."""
    manifest, _ = await node.read()
    check_living(manifest, node.log)
    node.follow(manifest.incarnation)
    return await _Verifier(ledgers, node, manifest, on_progress).run()


class _Verifier:
    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        manifest: Manifest,
        on_progress: Callable[[VerifyProgress], None],
    ) -> None:
        self._ledgers = ledgers
        self._node = node
        self._manifest = manifest
        self._on_progress = on_progress
        self._faults: dict[tuple[LedgerId, int, BookieId, ReplicaFault], FragmentFault] = {}
        self._problems: list[Problem] = []
        self._more = 0
        self._segments = self._entries = self._records = self._replicas = self._bytes = 0
        self._trimmed = 0
        self._silent: set[BookieId] = set()
        """Bookies that did not answer in this segment."""

    async def run(self) -> VerifyReport:
        last_txid = self._manifest.trimmed_txid
        async for segment in self._all_segments():
            check = SegmentCheck(segment, last_txid=last_txid)
            self._silent.clear()
            try:
                if segment.location.on_bookies:
                    await self._segment(segment, check)
                if segment.location.object is not None:
                    in_both = segment.location.on_bookies
                    await self._object(segment, None if in_both else check)
                if segment.location.copy is not None:
                    await self._copy(segment, segment.location.copy, last_txid)
            except BookieUnavailable as error:
                self._note([Problem(segment.number, None, f"its end is not known: {error}")])
            except NoSuchLedger:
                listed = await self._listed(segment)
                if listed is not None and listed.location.object is not None:
                    check = SegmentCheck(listed, last_txid=last_txid)  # it left the bookies
                    await self._object(listed, check)
                elif listed is not None:
                    reason = f"its ledger {segment.ledger_id} does not exist: its records are lost"
                    self._note([Problem(segment.number, None, reason)])
                else:
                    self._trimmed += 1
            self._segments += 1
            self._records += check.records
            last_txid = check.last_txid
            self._report_progress(segment)
        return VerifyReport(
            log=self._node.log,
            incarnation=self._manifest.incarnation,
            segments=self._segments,
            entries=self._entries,
            records=self._records,
            replicas=self._replicas,
            bytes=self._bytes,
            faults=tuple(self._faults.values()),
            problems=tuple(self._problems),
            more=self._more,
            trimmed=self._trimmed,
        )

    async def _all_segments(self) -> AsyncIterator[Segment]:
        """Yield all segments; of a run whose index cannot be read, a problem."""
        trim = self._manifest.trim_offset
        for run in self._manifest.living_runs:
            try:
                segments = await read_run(self._node.log, run)
            except (ObjectLost, DamagedObject) as error:
                now, _ = await self._node.read()
                if run in now.living_runs:
                    self._note([Problem(run.first_number, None, str(error))])
                else:
                    self._trimmed += run.segments
                continue
            for segment in self._manifest.located(segments):
                if (segment.end_offset or 0) > trim:
                    yield segment
        for segment in self._manifest.segments:
            yield segment

    async def _copy(self, segment: Segment, ledger_id: LedgerId, last_txid: int) -> None:
        """Verify a local copy as the ledger that it is."""
        copy = replace(segment, ledger_id=ledger_id, location=ON_BOOKIES)
        try:
            await self._segment(copy, SegmentCheck(copy, last_txid=last_txid))
        except NoSuchLedger:
            now, _ = await self._node.read()
            if ledger_id in now.listed_ledgers:
                reason = f"its local copy, ledger {ledger_id}, does not exist: its object is read"
                self._note([Problem(segment.number, None, reason)])

    async def _segment(self, segment: Segment, check: SegmentCheck) -> None:
        metadata = await self._ledgers.describe(segment.ledger_id)
        last = metadata.last_entry
        if last is None:
            opening = opened_whole(self._ledgers, self._node.log, self._manifest, segment)
            async with opening as reader:
                last = await reader.read_last_add_confirmed()
        entry, average = 0, WINDOW_BYTES
        while entry <= last:
            fragment = metadata.fragment_of(entry)
            ends = metadata.fragment_end(fragment)
            size = max(1, min(WINDOW_ENTRIES_MAX, WINDOW_BYTES // average))
            stop = min(last, entry + size - 1, last if ends is None else ends)
            window = range(entry, stop + 1)
            seen = self._bytes
            await self._window(segment, metadata, fragment, window, check)
            average = max(1, (self._bytes - seen) // len(window))
            entry = stop + 1
            self._report_progress(segment)
        self._note(check.end())

    async def _window(
        self,
        segment: Segment,
        metadata: LedgerMetadata,
        fragment: Fragment,
        window: range,
        check: SegmentCheck,
    ) -> None:
        frames: dict[Header, memoryview] = {}
        shares = await self._shares(segment.ledger_id, metadata, fragment, window, frames)
        if any(ReplicaFault.MISSING in share.faults.values() for share in shares.values()):
            fresh = await self._ledgers.describe(segment.ledger_id)
            if fresh.fragment_of(window[-1]) == fragment:
                shares = await self._shares(segment.ledger_id, metadata, fragment, window, frames)
            else:  # an ensemble change came between; it begins at or before the window's end
                for entry_id in window:
                    moved = fresh.fragment_of(entry_id)
                    one = range(entry_id, entry_id + 1)
                    shares = await self._shares(segment.ledger_id, fresh, moved, one, frames)
                    self._judge(segment, fresh, moved, one, shares, frames, check)
                return
        self._judge(segment, metadata, fragment, window, shares, frames, check)

    async def _shares(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        fragment: Fragment,
        window: range,
        frames: dict[Header, memoryview],
    ) -> dict[BookieId, _Share]:
        shares = await asyncio.gather(
            *(
                self._share(ledger_id, metadata, bookie, _held(metadata, index, window), frames)
                for index, bookie in enumerate(fragment.bookies)
            )
        )
        return dict(zip(fragment.bookies, shares, strict=True))

    async def _share(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        bookie: BookieId,
        held: list[int],
        frames: dict[Header, memoryview],
    ) -> _Share:
        """Read the entries *held* from *bookie*; keep a frame of each different header."""
        share = _Share()
        if not held:
            return share
        first, last, upto = held[0], held[-1], held[-1]
        while first <= last:
            found = None
            if bookie not in self._silent:
                found = await self._ask(ledger_id, metadata, bookie, first, upto)
            if found is None:
                self._silent.add(bookie)
                _mark(share, held, first, last, ReplicaFault.UNREACHABLE)
                return share
            for entry_id, header in found.headers.items():
                share.headers[entry_id] = header
                frames.setdefault(header, found.frames[entry_id])
            if found.status is Status.NO_SUCH_LEDGER:
                _mark(share, held, first, last, ReplicaFault.MISSING)
                return share
            if found.damaged is not None:
                _mark(share, held, first, found.damaged - 1, ReplicaFault.MISSING)
                _mark(share, held, found.damaged, found.damaged, ReplicaFault.DAMAGED)
                first, upto = found.damaged + 1, last
            elif found.status is Status.OK and found.considered >= first:
                _mark(share, held, first, min(found.considered, upto), ReplicaFault.MISSING)
                first, upto = found.considered + 1, last
            elif upto > first:
                upto = first  # find out which entry the bookie has trouble with
            else:
                _mark(share, held, first, first, ReplicaFault.UNREADABLE)
                first, upto = first + 1, last
        return share

    async def _ask(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, bookie: BookieId, first: int, last: int
    ) -> Found | None:
        asking = AsyncRetrying(
            retry=retry_if_result(_is_silent),
            stop=stop_after_attempt(ASKS_MAX),
            wait=wait_exponential(ASK_AGAIN_S),
            retry_error_callback=lambda _: None,
        )
        return await asking(
            self._ledgers.read_replica, ledger_id, bookie, first, last, metadata=metadata
        )

    def _judge(
        self,
        segment: Segment,
        metadata: LedgerMetadata,
        fragment: Fragment,
        window: range,
        shares: dict[BookieId, _Share],
        frames: dict[Header, memoryview],
        check: SegmentCheck,
    ) -> None:
        for bookie, share in shares.items():
            for entry_id, fault in share.faults.items():
                self._fault(segment, fragment, bookie, fault, entry_id)
        for entry_id in window:
            holders = [fragment.bookies[i] for i in write_set(entry_id, metadata.quorum)]
            found = {b: h for b in holders if (h := shares[b].headers.get(entry_id)) is not None}
            right, others = judge_replicas(entry_id, holders, found)
            for bookie in others:
                self._fault(segment, fragment, bookie, ReplicaFault.DIFFERENT, entry_id)
            if right is None:
                self._note([check.lost(entry_id)])
                continue
            self._entries += 1
            self._replicas += len(found) - len(others)
            self._bytes += right.payload_bytes
            self._look_into(payload_of(frames[right], right), right, check)

    def _fault(
        self,
        segment: Segment,
        fragment: Fragment,
        bookie: BookieId,
        fault: ReplicaFault,
        entry_id: int,
    ) -> None:
        key = (segment.ledger_id, fragment.first_entry, bookie, fault)
        known = self._faults.get(key)
        if known is None:
            self._faults[key] = FragmentFault(
                segment.number,
                segment.ledger_id,
                EntryId(fragment.first_entry),
                bookie,
                fault,
                entry_id,
                entry_id,
                1,
            )
            return
        self._faults[key] = replace(
            known,
            first_entry=min(known.first_entry, entry_id),
            last_entry=max(known.last_entry, entry_id),
            entries=known.entries + 1,
        )

    def _note(self, problems: list[Problem]) -> None:
        room = PROBLEMS_MAX - len(self._problems)
        self._problems += problems[:room]
        self._more += len(problems[room:])

    def _report_progress(self, segment: Segment) -> None:
        self._on_progress(
            VerifyProgress(
                segment.number,
                self._segments,
                self._manifest.segment_count,
                self._entries,
                self._bytes,
            )
        )

    async def _object(self, segment: Segment, check: SegmentCheck | None) -> None:
        """Read the whole object; *check*: its entries, unless those of the ledger were."""
        log = self._node.log
        try:
            await verify_object(segment, log, on_entry=lambda *entry: self._take(check, *entry))
        except ObjectLost as error:
            if await self._listed(segment) is None:
                self._trimmed += 1
            else:
                self._note([Problem(segment.number, None, str(error))])
        except LogError as error:
            self._note([Problem(segment.number, None, str(error))])
        else:
            if check is not None:
                self._note(check.end())
        self._report_progress(segment)

    def _take(self, check: SegmentCheck | None, entry: ObjectEntry, header: Header) -> None:
        """Check an entry of an object, which is whole by itself."""
        if check is None:
            return
        self._entries += 1
        self._bytes += header.payload_bytes
        self._look_into(entry.payload, header, check)

    def _look_into(self, payload: bytes | memoryview, header: Header, check: SegmentCheck) -> None:
        try:
            batch = decode_facts(payload)
            batch.check_headers()
        except DamagedBatch as error:
            self._note(check.entry(header, None, str(error)))
        else:
            self._note(check.entry(header, batch.header))

    async def _listed(self, segment: Segment) -> Segment | None:
        """Return what is listed of *segment* by now; None: it was trimmed."""
        try:
            manifest, _ = await self._node.read()
            manifest = await view_with(self._node.log, manifest, segment.number)
        except NoSuchLog:
            return None
        return next((s for s in manifest.segments if s.ledger_id == segment.ledger_id), None)


def _held(metadata: LedgerMetadata, index: int, window: range) -> list[int]:
    return [entry_id for entry_id in window if holds(index, entry_id, metadata.quorum)]


def _mark(share: _Share, held: list[int], first: int, last: int, fault: ReplicaFault) -> None:
    """Note *fault* for each entry of first..last that the bookie should hold and did not give."""
    for entry_id in _between(held, first, last):
        if entry_id not in share.headers:
            share.faults[entry_id] = fault


def _between(held: list[int], first: int, last: int) -> Iterator[int]:
    return (entry_id for entry_id in held if first <= entry_id <= last)


def _is_silent(found: Found) -> bool:
    return found.status in {Status.UNREACHABLE, Status.TOO_MANY_REQUESTS}
