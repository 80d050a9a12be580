"""Reads a segment from object storage as its ledger was read: a `dlog.aio.port.LedgerTail`.

A reader that goes through the segment finds the next blocks fetched, up to `AHEAD_BLOCKS` of them
at once. At most `KEPT_BLOCKS` are kept. Every byte is checked before it is used.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Self

from dlog.archive import block_cache, object_store
from dlog.archive.object_format import (
    MAGIC,
    TRAILER_BYTES,
    ArchivedSegment,
    ObjectEntry,
    ObjectIndex,
    footer_range,
    parse_footer,
)
from dlog.archive.object_store import ObjectFolder
from dlog.errors import DamagedObject, MalformedObject, ObjectLost
from dlog.manifest import Segment, StoredObject
from ledger.entry import Header
from ledger.errors import HandleClosed
from ledger.ids import EntryId, LedgerId
from ledger.log_events import get_logger

END_BYTES: Final = 64 * 1024
"""Fetched first, from the end: most footers are in it whole."""
AHEAD_BLOCKS: Final = 8
KEPT_BLOCKS: Final = 16
_log = get_logger(__name__)
_Fetch = asyncio.Task[list[ObjectEntry]]


class ObjectTail:
    """Safe to use for several reads at once; close it.

    Reads raise `ObjectLost`, `DamagedObject`, and what the storage raises."""

    def __init__(
        self,
        folder: ObjectFolder,
        log: str,
        stored: StoredObject,
        index: ObjectIndex,
        *,
        cached: bool = False,
    ) -> None:
        self.index = index
        self._folder, self._log, self._stored = folder, log, stored
        self._blocks: OrderedDict[int, _Fetch] = OrderedDict()
        """By number, in the order of use."""
        self._cache = block_cache.configured() if cached else None
        self._next = 0
        """The entry after those that were read last."""
        self._closed = False

    @classmethod
    async def open(
        cls, folder: ObjectFolder, log: str, segment: Segment, *, cached: bool = False
    ) -> Self:
        """Open the object of *segment*, and check that it is this segment's. *cached*: blocks may
        come from the disk of this machine."""
        stored = segment.location.object
        assert stored is not None, "the segment is in an object"
        try:
            index = await read_index(folder, stored)
            if index is not None:
                index.segment.check_is(segment)
        except MalformedObject as error:
            raise _damaged(log, segment, stored, error) from error
        if index is None:
            raise ObjectLost(log, _offsets(segment), f"{stored.storage}/{stored.name}")
        return cls(folder, log, stored, index, cached=cached)

    @property
    def segment(self) -> ArchivedSegment:
        return self.index.segment

    @property
    def ledger_id(self) -> LedgerId:
        return self.segment.ledger_id

    @property
    def custom(self) -> Mapping[str, bytes]:
        return self.segment.custom

    @property
    def closed(self) -> bool:
        """True: only sealed segments are in objects."""
        return True

    @property
    def last_entry(self) -> EntryId:
        return self.segment.sealed.last_entry

    @property
    def last_add_confirmed(self) -> EntryId:
        return self.last_entry

    async def read_last_add_confirmed(self) -> EntryId:
        return self.last_entry

    async def read_last_stored(self) -> EntryId:
        return self.last_entry

    def learn_confirmed(self, entry_id: int) -> None:
        """All of it is confirmed."""

    async def read(self, first: int, last: int) -> list[ObjectEntry]:
        """Return the entries from *first* to *last*. Requires that they are there."""
        entries: list[ObjectEntry] = []
        while first <= last:
            entries += await self.read_some(first, last=last)
            first = entries[-1].entry_id + 1
        return entries

    async def read_some(
        self, first: int, *, last: int | None = None, bytes_max: int = 1 << 20, wait_s: float = 0.0
    ) -> list[ObjectEntry]:
        """Return entries from *first* on: one at least, *bytes_max* payload bytes beyond it at
        most; none after the last one. Waits for nothing."""
        del wait_s
        stop = self.last_entry if last is None else min(last, self.last_entry)
        if first > stop:
            return []
        goes_on = first == self._next
        some: list[ObjectEntry] = []
        size = 0
        while first <= stop:
            block = self.index.block_of(first)
            if some and block not in self._blocks:
                break
            entries = await self._entries(block, ahead=AHEAD_BLOCKS if goes_on else 0)
            for entry in entries[first - self.index.firsts[block] :]:
                size += len(entry.payload)
                if entry.entry_id > stop or (some and size > bytes_max):
                    stop = -1
                    break
                some.append(entry)
            first = some[-1].entry_id + 1
        self._next = some[-1].entry_id + 1
        return some

    async def close(self) -> None:
        """Let go of what was fetched. Idempotent."""
        self._closed = True
        fetches = list(self._blocks.values())
        self._blocks.clear()
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def _entries(self, block: int, *, ahead: int) -> list[ObjectEntry]:
        if self._closed:
            raise HandleClosed("reader")
        wanted = self._fetch(block)
        for number in range(block + 1, min(block + 1 + ahead, self.index.blocks)):
            self._fetch(number)
        while len(self._blocks) > KEPT_BLOCKS:
            _, old = self._blocks.popitem(last=False)
            old.cancel()
        try:
            return await asyncio.shield(wanted)
        except asyncio.CancelledError:
            if self._closed:
                raise HandleClosed("reader") from None
            raise
        except BaseException:
            if self._blocks.get(block) is wanted:
                del self._blocks[block]  # the next read tries again
            raise

    def _fetch(self, block: int) -> _Fetch:
        fetch = self._blocks.get(block)
        if fetch is None:
            fetch = asyncio.get_running_loop().create_task(self._fetched(block))
            fetch.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._blocks[block] = fetch
        self._blocks.move_to_end(block)
        return fetch

    async def _fetched(self, block: int) -> list[ObjectEntry]:
        wanted = self.index.range_of(block)
        kept = await self._kept(block)
        if kept is not None:
            return kept
        data = await _read(self._folder, self._stored, wanted)
        segment, stored = self.segment, self._stored
        offsets = f"{segment.first_offset}..{segment.first_offset + segment.sealed.records - 1}"
        where = f"{stored.storage}/{stored.name}"
        if data is None:
            raise ObjectLost(self._log, offsets, where)
        try:
            entries = self.index.entries_in(block, data)
        except MalformedObject as error:
            raise DamagedObject(self._log, offsets, where, error.reason) from error
        if self._cache is not None:
            await self._cache.put(self._key(block), data)
        return entries

    async def _kept(self, block: int) -> list[ObjectEntry] | None:
        """Return the entries of *block* if they are on this machine, and right."""
        if self._cache is None:
            return None
        data = await self._cache.get(self._key(block))
        if data is None:
            return None
        try:
            return self.index.entries_in(block, data)
        except MalformedObject as error:
            _log.warning("cached_block_damaged", log=self._log, reason=error.reason)
            await self._cache.drop(self._key(block))
            return None

    def _key(self, block: int) -> str:
        stored, within = self._stored, self.index.range_of(block)
        absolute = range(stored.start + within.start, stored.start + within.stop)
        return block_cache.key_of(stored.storage, stored.name, absolute)


async def _read(folder: ObjectFolder, stored: StoredObject, within: range) -> bytes | None:
    """Return bytes of a segment, which may share its object; None: there is no object."""
    start = stored.start
    return await folder.read(stored.name, range(start + within.start, start + within.stop))


async def read_index(folder: ObjectFolder, stored: StoredObject) -> ObjectIndex | None:
    """Return the index of an object; None: there is no such object.

    Raises `MalformedObject`, and what the storage raises."""
    begin = max(0, stored.bytes - END_BYTES)
    end = await _read(folder, stored, range(begin, stored.bytes))
    if end is None:
        return None
    if len(end) != stored.bytes - begin:
        raise MalformedObject(f"it ends before its {stored.bytes} bytes")
    trailer = end[-TRAILER_BYTES:]
    footer = footer_range(trailer, stored.bytes)
    head = b""
    if footer.start < begin:
        head = await _read(folder, stored, range(footer.start, begin)) or b""
    else:
        end = end[footer.start - begin :]
    return parse_footer(head + end[: len(end) - TRAILER_BYTES], trailer, stored.bytes)


async def verify_object(
    segment: Segment,
    log: str,
    *,
    expected: ObjectIndex | None = None,
    on_entry: Callable[[ObjectEntry, Header], object] = lambda *_: None,
) -> None:
    """Read the whole object of *segment* and check each byte. *expected*: what its writer knows
    that it must be. *on_entry* is called with each entry. Raises as reading does."""
    stored = segment.location.object
    assert stored is not None, "the segment is in an object"
    folder = object_store.open_folder(stored.storage)
    tail = await ObjectTail.open(folder, log, segment)
    try:
        await _verify_ends(folder, stored, tail.index, expected)
        entry = 0
        while entries := await tail.read_some(entry):
            for each in entries:
                on_entry(each, tail.index.verify(each))
            entry = entries[-1].entry_id + 1
            await asyncio.sleep(0)
    except MalformedObject as error:
        raise _damaged(log, segment, stored, error) from error
    finally:
        await tail.close()


async def _verify_ends(
    folder: ObjectFolder, stored: StoredObject, index: ObjectIndex, expected: ObjectIndex | None
) -> None:
    if expected is not None and index != expected:
        raise MalformedObject("its index is not what was written")
    if await _read(folder, stored, range(len(MAGIC))) != MAGIC:
        raise MalformedObject("it does not begin as a segment does")
    end = stored.start + stored.bytes
    if (await folder.size(stored.name) or 0) < end:
        raise MalformedObject(f"it does not have {end} bytes")


def _damaged(
    log: str, segment: Segment, stored: StoredObject, error: MalformedObject
) -> DamagedObject:
    where = f"{stored.storage}/{stored.name}"
    return DamagedObject(log, _offsets(segment), where, error.reason)


def _offsets(segment: Segment) -> str:
    first, end = segment.first_offset, segment.end_offset
    return f"{first}..{'' if end is None else end - 1}"
