"""Reading what a segment's ledger says about itself: headers, its end, places in it, and how well
its records are compressed.

Nobody counts what records took before their compression: a writer that dies takes its counts
along, and whoever recovers its ledger reads first and last entry alone. To read a whole log would
cost more than the answer is worth. So it is a sample of the newest entries that carry records,
bounded in entries and bytes, and says how large it is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from dlog.aio.port import Ledgers, LedgerTail
from dlog.archive import object_store
from dlog.archive.object_format import ArchivedSegment, parse_segment
from dlog.archive.object_tail import ObjectTail
from dlog.encryption.ledgers import Opener, wrapping
from dlog.envelope import decode_facts
from dlog.errors import (
    DamagedBatch,
    DamagedLog,
    EncryptionMissing,
    KeyMissing,
    MalformedObject,
    ObjectLost,
)
from dlog.manifest import Manifest, Sealed, Segment
from dlog.position import NO_TXID
from dlog.protocol.orphans import (
    STAMP_COPIED,
    STAMP_EPOCH,
    STAMP_INCARNATION,
    STAMP_LOG,
    STAMP_OWNER,
    STAMP_SEGMENT,
)
from dlog.protocol.seek import FoundEntry, ProbedEntry, ReachedTime, Seek, Wanted
from dlog.recordbatch import BatchFacts, BatchHeader, Codec, parse_header
from ledger.errors import NoSuchLedger
from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.metadata import LedgerMetadata

OWNER_BYTES_MAX: Final = 200
"""Of who writes a ledger, in its metadata."""
SAMPLE_ENTRIES_MAX: Final = 32
SAMPLE_BYTES_MAX: Final = 4 << 20
"""No further entry is read once so many bytes were."""
SAMPLE_SEGMENTS_MAX: Final = 8
SAMPLE_S: Final = 3.0
"""Bookies that do not answer are not waited for longer."""
_Parsed = TypeVar("_Parsed")


def stamp(
    log: str, incarnation: str, segment: int, *, epoch: int = 0, owner: str = ""
) -> dict[str, bytes]:
    """Return the custom metadata that say for certain whose ledger this is; and for people, in
    which *epoch* (0: not known) and by whom it is written."""
    by: dict[str, bytes] = {}
    if epoch:
        by = {
            STAMP_EPOCH: str(epoch).encode(),
            STAMP_OWNER: owner.encode()[:OWNER_BYTES_MAX],
        }
    return {
        **by,
        STAMP_LOG: log.encode(),
        STAMP_INCARNATION: incarnation.encode(),
        STAMP_SEGMENT: str(segment).encode(),
    }


async def open_segment(ledgers: Ledgers, log: str, segment: Segment) -> LedgerTail:
    """Open *segment* of *log* for reading, without recovery; the caller closes it.

    All readers of segments come here: nothing else knows that there is more than one kind of
    place. Raises what opening a ledger raises, or an object: of a segment that has one, its ledger
    may be gone by now."""
    stored = segment.location.object
    if segment.location.copy is not None:
        with suppress(NoSuchLedger, MalformedObject):  # then the object says more
            return await _open_copy(ledgers, segment, segment.location.copy)
    if segment.location.on_bookies:
        try:
            return await ledgers.open_no_recovery(segment.ledger_id)
        except NoSuchLedger:
            if stored is None:
                raise
    assert stored is not None, "a segment is somewhere"
    folder = object_store.open_folder(stored.storage)
    return await ObjectTail.open(folder, log, segment, cached=True)


async def _open_copy(ledgers: Ledgers, segment: Segment, ledger_id: LedgerId) -> LedgerTail:
    """Raises `MalformedObject` if the ledger is no copy of *segment*, and as `open_segment`."""
    tail = await ledgers.open_no_recovery(ledger_id)
    try:
        copied = parse_segment(tail.custom.get(STAMP_COPIED, b""))
        copied.check_is(segment)
        copied.check_ends(tail.last_entry)
    except BaseException:
        await tail.close()
        raise
    return CopyTail(tail, copied)


class CopyTail:
    """Reads a local copy as the ledger that its segment was written as."""

    def __init__(self, tail: LedgerTail, segment: ArchivedSegment) -> None:
        self._tail, self._segment = tail, segment
        self.learn_confirmed = tail.learn_confirmed
        self.read, self.read_some = tail.read, tail.read_some
        self.read_last_add_confirmed = tail.read_last_add_confirmed
        self.read_last_stored = tail.read_last_stored
        self.close = tail.close

    @property
    def ledger_id(self) -> LedgerId:
        """Of the segment: its encryption is bound to it."""
        return self._segment.ledger_id

    @property
    def custom(self) -> Mapping[str, bytes]:
        return self._segment.custom

    @property
    def closed(self) -> bool:
        """True: only whole copies are listed."""
        return True

    @property
    def last_entry(self) -> EntryId:
        return self._segment.sealed.last_entry

    @property
    def last_add_confirmed(self) -> EntryId:
        return self.last_entry


@asynccontextmanager
async def opened_segment(ledgers: Ledgers, log: str, segment: Segment) -> AsyncIterator[LedgerTail]:
    """As `open_segment`, and close at the end."""
    reader = await open_segment(ledgers, log, segment)
    try:
        yield reader
    finally:
        await reader.close()


@asynccontextmanager
async def opened(ledgers: Ledgers, ledger_id: LedgerId) -> AsyncIterator[LedgerTail]:
    """Open a ledger for reading without recovery, and close at the end."""
    reader = await ledgers.open_no_recovery(ledger_id)
    try:
        yield reader
    finally:
        await reader.close()


async def header_of(reader: LedgerTail, entry: int) -> BatchHeader:
    """Return the header of the batch in *entry*, which must be confirmed. Raises `DamagedBatch`."""
    return await _parsed(reader, entry, parse_header)


async def header_and_length_of(reader: LedgerTail, entry: int) -> tuple[BatchHeader, int]:
    """As `header_of`, with the payload bytes of the entry and all before it in its ledger."""
    read = (await reader.read(entry, entry))[0]
    return _parse(reader, entry, read.payload, parse_header), read.length


async def facts_of(reader: LedgerTail, entry: int) -> BatchFacts:
    """Return what the batch in *entry*, which must be confirmed, says without any key.

    Raises `DamagedBatch`."""
    return await _parsed(reader, entry, decode_facts)


async def _parsed(
    reader: LedgerTail, entry: int, parse: Callable[[bytes | memoryview], _Parsed]
) -> _Parsed:
    return _parse(reader, entry, (await reader.read(entry, entry))[0].payload, parse)


def _parse(
    reader: LedgerTail,
    entry: int,
    payload: bytes | memoryview,
    parse: Callable[[bytes | memoryview], _Parsed],
) -> _Parsed:
    try:
        return parse(payload)
    except DamagedBatch as error:
        place = f"entry {entry} of ledger {reader.ledger_id}"
        raise DamagedBatch(f"{place}: {error.reason}") from error


async def find_place(reader: LedgerTail, wanted: Wanted, last: int | None = None) -> FoundEntry:
    """Return the first entry at or past *wanted*, or the place after *last*.

    *last* must be confirmed; None: the last confirmed, as bookies report it now."""
    if last is None:
        last = await reader.read_last_add_confirmed()
    seek = Seek.among(wanted, last)
    while (entry := seek.probe) is not None:
        if isinstance(wanted, ReachedTime):
            facts = await facts_of(reader, entry)
            seek = seek.narrowed(facts.header, facts.newest_ms)
        else:
            seek = seek.narrowed(await header_of(reader, entry))
    return seek.found


async def learn_end(ledgers: Ledgers, reader: LedgerTail, later: Segment) -> EntryId | None:
    """Return the last entry of *reader*'s ledger if it is certain; let it be read up to there.

    *later* is the segment after. The end is certain if the ledger is CLOSED or if bookies hold
    any entry of *later*; `protocol.cursor` says why. Disturbs nobody.

    Reads the metadata again in any case: a reader that did not learn that its ledger is CLOSED
    would wait for ever behind a later segment that stays empty."""
    if reader.closed:
        return reader.last_entry
    if not later.location.on_bookies:  # it is sealed, so the ledger before it was CLOSED earlier
        await reader.read_last_stored()
        return reader.last_entry
    try:
        async with opened(ledgers, later.ledger_id) as after:
            if await after.read_last_stored() == NO_ENTRY:
                await reader.read_last_stored()
                return reader.last_entry
    except NoSuchLedger:  # deleted with its log: who reads on will see
        if later.location.object is None:
            return None
        await reader.read_last_stored()  # or it left the bookies, and was sealed before
        return reader.last_entry
    end = await reader.read_last_stored()
    reader.learn_confirmed(end)
    return end


@asynccontextmanager
async def opened_whole(
    ledgers: Ledgers, log: str, manifest: Manifest, segment: Segment
) -> AsyncIterator[LedgerTail]:
    """As `opened`, for what is confirmed of *segment*: all of it, if its writer left it."""
    async with opened_segment(ledgers, log, segment) as reader:
        later = manifest.after(segment.number)
        if later is not None:
            await learn_end(ledgers, reader, later)
        yield reader


async def first_offset_of(ledgers: Ledgers, log: str, manifest: Manifest, segment: Segment) -> int:
    """Return where *segment* begins; if the manifest does not know, the one before says it."""
    if segment.first_offset is not None:
        return segment.first_offset
    before = manifest.segments[manifest.segments.index(segment) - 1]
    async with opened_whole(ledgers, log, manifest, before) as reader:
        end = await find_place(reader, ProbedEntry(1 << 62))
    assert before.first_offset is not None, "only the last segment's first offset is unknown"
    return before.first_offset + end.base_index


async def seal_of(
    ledgers: Ledgers,
    log: str,
    ledger_id: LedgerId,
    *,
    last_txid: int,
    created_ms: int,
    without_key: bool = False,
) -> Sealed:
    """Recover the ledger unless it is CLOSED; return what it holds.

    *last_txid* is the last txid of the log before it. What an encrypted ledger says of itself is
    believed only after its key has shown that its writer wrote it; *without_key*: also here, where
    the key may be missing. Raises `DamagedLog`, and what the keyring does."""
    metadata = await ledgers.recover(ledger_id)
    if metadata.last_entry is None or metadata.length is None:
        raise DamagedLog(log, f"ledger {ledger_id} is not CLOSED after its recovery")
    if metadata.last_entry == NO_ENTRY:
        return Sealed.empty(last_txid, created_ms)
    async with opened(ledgers, ledger_id) as reader:
        payloads = [
            (await reader.read(entry, entry))[0].payload for entry in (0, metadata.last_entry)
        ]
    try:
        first, last = map(decode_facts, payloads)
        await _authenticate(metadata, ledger_id, payloads, without_key=without_key)
    except DamagedBatch as error:
        raise DamagedLog(log, f"first or last entry of ledger {ledger_id}: {error}") from error
    return Sealed(
        last_entry=metadata.last_entry,
        records=last.header.end_index,
        bytes=metadata.length,
        first_txid=(
            first.header.first_txid
            if first.header.first_txid != NO_TXID
            else last.header.first_txid
        ),
        last_txid=max(last.header.last_txid, last_txid),
        first_timestamp_ms=first.oldest_ms,
        last_timestamp_ms=last.newest_ms,
        receipt=last.receipt,
    )


async def _authenticate(
    metadata: LedgerMetadata,
    ledger_id: LedgerId,
    payloads: Sequence[bytes | memoryview],
    *,
    without_key: bool,
) -> None:
    """Open the first and the last batch of an encrypted ledger. Raises `DamagedBatch` if they are
    not what its writer wrote for their places, and `KeyMissing`, unless *without_key*."""
    assert metadata.last_entry is not None, "it is CLOSED"
    if wrapping(metadata.custom) is None:
        return
    incarnation = metadata.custom.get(STAMP_INCARNATION, b"").decode(errors="replace")
    try:
        opener = await Opener.of(ledger_id, metadata.custom, incarnation)
    except (KeyMissing, EncryptionMissing):
        if without_key:
            return
        raise
    for entry, payload in zip((0, metadata.last_entry), payloads, strict=True):
        opener.decode(entry, payload)


@dataclass(frozen=True, slots=True)
class CompressionSample:
    """What the newest entries of a log take, of all its segments together; at least one."""

    entries: int
    records: int
    stored_bytes: int
    """As they are stored, each copy; without frames and headers of entries."""
    uncompressed_bytes: int
    """The same columns before compression."""
    codecs: tuple[Codec, ...]
    """Those found, each once: what was set since may not be among them yet."""

    @property
    def ratio(self) -> float:
        """Bytes stored for each byte before compression: below 1 if it pays."""
        return self.stored_bytes / self.uncompressed_bytes


async def sample_compression(
    ledgers: Ledgers, log: str, manifest: Manifest
) -> CompressionSample | None:
    """Return the sample; None if no segment has an entry. Disturbs no writer.

    Raises what reading raises, and `TimeoutError` after SAMPLE_S."""
    found: list[BatchHeader] = []
    async with asyncio.timeout(SAMPLE_S):
        for segment in manifest.segments[: -SAMPLE_SEGMENTS_MAX - 1 : -1]:
            with suppress(NoSuchLedger, ObjectLost):  # trimmed meanwhile
                async with opened_segment(ledgers, log, segment) as reader:
                    entry = await reader.read_last_add_confirmed()
                    while entry >= 0 and _wants_more(found):
                        found.append(await header_of(reader, entry))
                        entry = EntryId(entry - 1)
            if not _wants_more(found):
                break
    if not found:
        return None
    return CompressionSample(
        entries=len(found),
        records=sum(header.count for header in found),
        stored_bytes=sum(header.stored_bytes for header in found),
        uncompressed_bytes=sum(header.body_bytes for header in found),
        codecs=tuple(codec for codec in Codec if codec in {header.codec for header in found}),
    )


def _wants_more(found: list[BatchHeader]) -> bool:
    read_bytes = sum(header.stored_bytes for header in found)
    return len(found) < SAMPLE_ENTRIES_MAX and read_bytes < SAMPLE_BYTES_MAX
