"""Where a log ends: the committed end, and the end of what was acknowledged when somebody asked.

Both are found without disturbing the writer. Everything up to the last sealed segment's end is
committed. In an open segment everything up to the last add confirmed is, as bookies report it, and
the header of that batch says how many records that makes. A later open segment counts only if the
end of the one before is certain: it is CLOSED, or its writer went on in the later one
(`protocol.cursor` says why that is enough).

The last add confirmed, as bookies report it, may lag behind the acknowledgements: a writer's
next entry carries it, or its next idle moment. So it is a lower bound, and a read that ends
there right after an acknowledgement may miss that very record. The strongest *upper* bound
that a reader can have without fencing is what bookies hold: what was acknowledged is on an
ack quorum, so the highest entry that a covering set of bookies holds is not below it
(`LedgerReader.read_last_stored`). A barrier finds that bound and then waits until the bound
itself is confirmed, which takes a living writer about a round trip.

What a barrier promises: every record acknowledged before the call began has an offset below the
returned one, and every record below that is committed and can be read. What it cannot: if the
writer died after its last acknowledgement and before it reported the last add confirmed, nobody
can know, without taking the log over, whether the last entries were acknowledged. Then the
barrier is `BarrierNotReached`; it is reached as soon as somebody opens the log.
"""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.read.segments import (
    first_offset_of,
    header_and_length_of,
    header_of,
    learn_end,
    opened_segment,
)
from dlog.aio.store import ManifestNode
from dlog.errors import BarrierNotReached, NoSuchLog
from dlog.manifest import Manifest, Segment, SegmentRun
from dlog.position import DLSN, NO_TXID
from dlog.recordbatch import BatchHeader
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.log_events import get_logger
from ledger.tasks import is_cancelled

RACES_MAX: Final = 5
BARRIER_S: Final = 10.0
"""How long a barrier waits for a record that bookies hold to be confirmed."""
END_GRACE_S: Final = 2.0
"""The same for reads up to "end", which then go on without it."""
RETRY_S: Final = 0.05
Learned = Callable[[LedgerId, EntryId], None]
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogTail:
    """What is committed: the records from *first_offset* up to, not with, *next_offset*."""

    log: str
    incarnation: str
    first_offset: int
    next_offset: int
    last_txid: int | None
    segments: tuple[Segment, ...]
    runs: tuple[SegmentRun, ...] = ()
    """Of segments before those."""
    newest_record_bytes: float = 1.0
    """Average size of a record in the newest batch of an open segment, if there is one."""
    open_record_bytes: tuple[tuple[int, float], ...] = ()
    """Numbers of open segments that have records, and the average size of these as stored."""

    @property
    def record_bytes(self) -> float:
        """Average size of a record, at least 1: an estimate, for planning."""
        sealed = [segment.sealed for segment in self.segments if segment.sealed]
        records = sum(each.records for each in sealed) + sum(run.records for run in self.runs)
        stored = sum(each.bytes for each in sealed) + sum(run.bytes for run in self.runs)
        sealed_bytes = stored / records if records else 1.0
        return max(sealed_bytes, self.newest_record_bytes)

    def stored_sizes(self) -> list[tuple[int, float]]:
        """Return for each segment, or run of them, the offset after its last record, and the
        average size of its records as stored (compressed, if the log is); in order. The last one is
        the tail's end."""
        opened = dict(self.open_record_bytes)
        sizes = [(run.end_offset, run.bytes / max(1, run.records)) for run in self.runs]
        for segment in self.segments:
            if segment.sealed is not None:
                end, size = segment.end_offset, 0.0
                if segment.sealed.records:
                    size = segment.sealed.bytes / segment.sealed.records
            else:  # where it ends is not fixed: what follows counts as of its kind
                end, size = None, opened.get(segment.number, self.record_bytes)
            sizes.append((self.next_offset if end is None else end, size))
        return sizes


@dataclass(slots=True)
class _Open:
    """An open segment: its reader and what was found last time."""

    reader: LedgerTail
    entry: int = NO_ENTRY
    header: BatchHeader | None = None
    record_bytes: float = 1.0
    """Average size of its records as stored."""


class TailTracker:
    """Follows the end of one log; each poll costs little. Used by one task; close it."""

    def __init__(self, ledgers: Ledgers, log: str) -> None:
        self._ledgers = ledgers
        self._node = ManifestNode(ledgers.store, log)
        self._open: dict[LedgerId, _Open] = {}
        self._last: LogTail | None = None

    async def poll(self, *, wait_s: float = 0.0) -> LogTail:
        """Return the tail now; wait up to *wait_s* if it is where it was at the last poll.

        Never moves back. Raises `NoSuchLog`, and what reading a ledger raises."""
        before = self._last
        tail = await self._locate()
        if wait_s > 0 and before is not None and before.next_offset == tail.next_offset:
            newest = next(reversed(self._open.values()), None)
            if newest is None or newest.reader.closed:
                await self._until_changed(tail, wait_s)
            else:
                next_entry = newest.entry + 1
                with suppress(NoSuchLedger):  # trimmed or deleted: the manifest says which
                    await newest.reader.read_some(next_entry, last=next_entry, wait_s=wait_s)
            tail = await self._locate()
        return tail

    def follow(self, incarnation: str) -> None:
        """Mean the log with *incarnation* from now on, whatever name it is given."""
        self._node.follow(incarnation)

    async def close(self) -> None:
        for each in self._open.values():
            await each.reader.close()
        self._open.clear()

    async def _until_changed(self, seen: LogTail, wait_s: float) -> None:
        """Wait for another segment: nothing is added to those there are."""
        with closing(self._node.watch()) as watch:
            manifest, _ = await self._node.read()
            if manifest.segments != seen.segments:
                return
            try:
                async with asyncio.timeout(wait_s):
                    await watch.changed()
            except TimeoutError:
                return
            except asyncio.CancelledError:
                if is_cancelled():
                    raise

    async def _locate(self) -> LogTail:
        for race in range(1, RACES_MAX + 1):
            manifest, _ = await self._node.read()
            if manifest.dropped:
                raise NoSuchLog(self._node.log, "it is being deleted")
            try:
                return await self._end_of(manifest)
            except NoSuchLedger:  # trimmed or deleted after the manifest was read
                if race == RACES_MAX:
                    raise
        raise AssertionError("unreachable")

    async def _end_of(self, manifest: Manifest) -> LogTail:
        await self._forget_all_but(manifest)
        end, last_txid, newest_bytes = manifest.sealed_end, manifest.sealed_last_txid, 1.0
        opened: list[tuple[int, float]] = []
        for segment in manifest.segments:
            if segment.sealed is not None:
                continue
            found, is_whole = await self._look_at(segment, manifest)
            if found.header is not None:
                end += found.header.end_index
                last_txid = max(last_txid, found.header.last_txid)
                newest_bytes = found.header.body_bytes / found.header.count
                opened.append((segment.number, found.record_bytes))
            if not is_whole:
                break
        last = self._last
        if last is not None and last.incarnation == manifest.incarnation:
            end = max(end, last.next_offset)
        self._last = LogTail(
            log=self._node.log,
            incarnation=manifest.incarnation,
            first_offset=manifest.trim_offset,
            next_offset=max(end, manifest.trim_offset),
            last_txid=None if last_txid == NO_TXID else last_txid,
            segments=manifest.segments,
            runs=manifest.living_runs,
            newest_record_bytes=newest_bytes,
            open_record_bytes=tuple(opened),
        )
        return self._last

    async def _look_at(self, segment: Segment, manifest: Manifest) -> tuple[_Open, bool]:
        """Return what *segment* holds, and whether that is all it ever will."""
        found = await self._look(segment.ledger_id)
        later = manifest.after(segment.number)
        if found.reader.closed or later is None:
            return found, found.reader.closed
        if await learn_end(self._ledgers, found.reader, later) is None:
            return found, False
        return await self._look(segment.ledger_id), True

    async def _look(self, ledger_id: LedgerId) -> _Open:
        found = self._open.get(ledger_id)
        if found is None:
            found = self._open[ledger_id] = _Open(await self._ledgers.open_no_recovery(ledger_id))
        closed = found.reader.closed
        entry = await found.reader.read_last_add_confirmed()
        if entry > found.entry:
            found.header, stored = await header_and_length_of(found.reader, entry)
            found.record_bytes = stored / max(1, found.header.end_index)
            found.entry = entry
        if found.reader.closed and not closed:
            return await self._look(ledger_id)  # it closed meanwhile, maybe with more entries
        return found

    async def _forget_all_but(self, manifest: Manifest) -> None:
        wanted = {segment.ledger_id for segment in manifest.segments if segment.sealed is None}
        for ledger_id in [each for each in self._open if each not in wanted]:
            with suppress(LogError):
                await self._open.pop(ledger_id).reader.close()


async def tail_of(ledgers: Ledgers, log: str) -> LogTail:
    """Return the tail of *log* now. Raises `NoSuchLog`."""
    tracker = TailTracker(ledgers, log)
    try:
        return await tracker.poll()
    finally:
        await tracker.close()


async def acknowledged_end(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    timeout_s: float = BARRIER_S,
    incarnation: str | None = None,
    learned: Learned | None = None,
) -> int:
    """Return the offset after all that was acknowledged before the call; all is readable.

    With *incarnation*, of that life of the log only. *learned* is called with a ledger and its last
    entry that is confirmed: bookies may forget that, and a reader that knew less would wait.
    Tries again after errors that may pass. Raises `NoSuchLog`, `BarrierNotReached`, and after
    *timeout_s* what bookies and metadata store raise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    was_gone = False
    while True:
        try:
            return await _try(ledgers, node, incarnation, deadline, timeout_s, learned)
        except BarrierNotReached:
            raise
        except LogError as error:
            # A ledger that is gone was trimmed or dropped after the manifest was read: who reads
            # it again knows which, and is let do so once, however late it is.
            is_gone = isinstance(error, NoSuchLedger)
            is_late = loop.time() + RETRY_S >= deadline
            if not (error.retryable or is_gone):
                raise
            if is_late and (was_gone or not is_gone):
                raise
            was_gone = is_gone
            await asyncio.sleep(RETRY_S)


async def end_now(ledgers: Ledgers, node: ManifestNode) -> int:
    """Return `acknowledged_end` or, if nobody reports it soon, the end of what is confirmed."""
    with suppress(BarrierNotReached):
        return await acknowledged_end(ledgers, node, timeout_s=END_GRACE_S)
    _log.warning("end_is_not_certain", log=node.log, waited_s=END_GRACE_S)
    return (await tail_of(ledgers, node.log)).next_offset


async def _try(
    ledgers: Ledgers,
    node: ManifestNode,
    incarnation: str | None,
    deadline: float,
    timeout_s: float,
    learned: Learned | None,
) -> int:
    manifest, _ = await node.read()
    if manifest.dropped:
        raise NoSuchLog(node.log, "it is being deleted")
    if incarnation not in {None, manifest.incarnation}:
        raise NoSuchLog(node.log, "it was deleted, and another one has its name")
    end = max(manifest.sealed_end, manifest.trim_offset)
    for segment in reversed(manifest.segments):
        if segment.sealed is not None:
            break
        async with opened_segment(ledgers, node.log, segment) as reader:
            bound = await reader.read_last_stored()
            if bound == NO_ENTRY:
                continue  # nothing was ever acknowledged here
            place = DLSN(segment.number, bound, 0)
            if not await until_confirmed(reader, bound, deadline):
                raise BarrierNotReached(node.log, place, timeout_s)
            if learned is not None:
                learned(segment.ledger_id, reader.last_add_confirmed)
            return max(end, await _end_of(ledgers, node.log, manifest, segment, reader, bound))
    return end


async def until_confirmed(reader: LedgerTail, bound: int, deadline: float) -> bool:
    """Wait until the entry *bound* is confirmed, or certain never to be; False: not in time."""
    loop = asyncio.get_running_loop()
    while reader.last_add_confirmed < bound and not reader.closed:
        wait_s = deadline - loop.time()
        if wait_s <= 0:
            return await reader.read_last_add_confirmed() >= bound or reader.closed
        await reader.read_some(bound, last=bound, bytes_max=1, wait_s=wait_s)
    return True


async def _end_of(
    ledgers: Ledgers, log: str, manifest: Manifest, segment: Segment, reader: LedgerTail, bound: int
) -> int:
    last = bound if reader.last_entry is None else min(bound, reader.last_entry)
    records = 0 if last == NO_ENTRY else (await header_of(reader, last)).end_index
    return await first_offset_of(ledgers, log, manifest, segment) + records
