"""Where a log ends: the committed end, found without disturbing its writer.

Everything up to the last sealed segment's end is committed. In an open segment everything up to
the last add confirmed is, as bookies report it, and the header of that batch says how many
records that makes. A later open segment counts only if the end of the one before is certain:
it is CLOSED, or its writer went on in the later one (`protocol.cursor` says why that is enough).
"""

import asyncio
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from dlog.aio.cancellation import is_cancelled
from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.read.segments import header_and_length_of, learn_end
from dlog.aio.store.manifests import ManifestNode
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest, Segment
from dlog.position import NO_TXID
from dlog.recordbatch import BatchHeader
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import NO_ENTRY, LedgerId

RACES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class LogTail:
    """What is committed: the records from *first_offset* up to, not with, *next_offset*."""

    log: str
    incarnation: str
    first_offset: int
    next_offset: int
    last_txid: int | None
    segments: tuple[Segment, ...]
    newest_record_bytes: float = 1.0
    """Average size of a record in the newest batch of an open segment, if there is one."""
    open_record_bytes: tuple[tuple[int, float], ...] = ()
    """Numbers of open segments that have records, and the average size of these as stored."""

    @property
    def record_bytes(self) -> float:
        """Average size of a record, at least 1: an estimate, for planning."""
        sealed = [segment.sealed for segment in self.segments if segment.sealed]
        records = sum(each.records for each in sealed)
        sealed_bytes = sum(each.bytes for each in sealed) / records if records else 1.0
        return max(sealed_bytes, self.newest_record_bytes)

    def stored_sizes(self) -> list[tuple[int, float]]:
        """Return for each segment the offset after its last record, and the average size of its
        records as stored (compressed, if the log is); in order. The last one is the tail's end."""
        opened, sizes = dict(self.open_record_bytes), []
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
        if await learn_end(self._ledgers, found.reader, later.ledger_id) is None:
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
