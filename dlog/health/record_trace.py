"""Traces one record down to the files of its bookies. Reads only; disturbs no writer.

Its bookies are asked twice: as readers ask them, for the entry, which is verified here; and as
operators do, for where it is. One that does not answer in a way is said to be silent there.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlog.aio.port import LedgerTail
from dlog.aio.read.segments import (
    facts_of,
    find_place,
    first_offset_of,
    opened_segment,
    opened_whole,
)
from dlog.aio.store import ManifestNode, read_consumers
from dlog.archive.segment_index import view_at, view_with
from dlog.errors import BatchTooNew, CodecMissing, DamagedBatch, InvalidPosition, Trimmed
from dlog.health.survey import operator_of
from dlog.manifest import Manifest, Segment
from dlog.position import DLSN, Place, Record
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.edits import check_living
from dlog.protocol.record_trace import WrittenBy, holders_of, judged, written_by
from dlog.protocol.seek import Index
from ledger.client import LedgerClient
from ledger.entry import ReplicaFault
from ledger.errors import EntryLost, EntryUnavailable, LogError, NoSuchLedger
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol.answers import Found
from ledger.security.certificates import Security
from ledger.tasks import for_each
from ledger.wire import bookie_pb2 as pb

ASKS_MAX: Final = 2
"""A copy that is not there may still be on its way: so often each bookie is asked."""
ASK_AGAIN_S: Final = 0.4
AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedReplica:
    """The state of one bookie's copy of the entry."""

    bookie: BookieId
    fault: ReplicaFault | None
    """As readers find it; None: it is whole and right."""
    checksum: int | None
    """CRC32C of the payload that it gave; None: it gave none that is whole."""
    told: pb.TraceReply | None
    """Where it is, as the bookie says."""
    silent: str
    """Why it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRecord:
    log: str
    offset: int | None
    """None: not known, as the entry cannot be read."""
    record: Record | None
    """Without key, value and headers if it is encrypted."""
    unread: str
    """Why there is no record; empty: there is one."""
    segment: Segment
    ledger_id: LedgerId
    entry_id: EntryId
    metadata: LedgerMetadata | None
    """None: the segment is on bookies no more, and its entry was read from its object."""
    custom: Mapping[str, bytes]
    """Custom metadata of the ledger."""
    writer: WrittenBy
    replicas: tuple[TracedReplica, ...]
    """In the order of the entry's write set."""
    consumers: tuple[tuple[str, ConsumerState], ...]

    @property
    def is_whole(self) -> bool:
        """Return True if each bookie that should have the entry gave it, and all the same."""
        return all(replica.fault is None for replica in self.replicas)

    def has_passed(self, consumer: ConsumerState) -> bool | None:
        """Return True if *consumer* has processed the record; None: the record is not known."""
        return None if self.offset is None else consumer.position > self.offset


async def trace_record(
    client: LedgerClient,
    log: str,
    place: int | DLSN,
    *,
    timeout_s: float,
    security: Security | None = None,
) -> TracedRecord:
    """Trace the record at the offset or DLSN *place*. *timeout_s*: of each operators' answer.

    An entry that nobody can give is traced all the same; of an offset, the first one on the way to
    it that cannot be read. Raises `NoSuchLog`, `InvalidPosition` if there is no such record,
    `Trimmed`, `NoSuchLedger` if its ledger is lost and it has no object, `BookieUnavailable` if it
    is not known how far an open ledger goes."""
    node = ManifestNode(client.store, log)
    manifest, _ = await node.read()
    check_living(manifest, log)
    found = await (
        _at_dlsn(client, log, manifest, place)
        if isinstance(place, DLSN)
        else _at_offset(client, log, manifest, place)
    )
    ledger_id = found.segment.ledger_id
    metadata: LedgerMetadata | None = None
    replicas: tuple[TracedReplica, ...] = ()
    if found.segment.location.on_bookies:
        try:
            metadata = await client.describe(ledger_id)
        except NoSuchLedger:  # it left the bookies since the manifest was read, or was lost there
            if found.segment.location.object is None:
                raise
    if metadata is not None:
        custom = metadata.custom
        replicas = await _replicas(
            client, ledger_id, metadata, EntryId(found.entry), timeout_s, security
        )
    else:
        async with opened_segment(client, log, found.segment) as reader:
            custom = reader.custom
    offset = place if isinstance(place, int) else None
    return TracedRecord(
        log=log,
        offset=offset if found.record is None else found.record.offset,
        record=found.record,
        unread=found.unread,
        segment=found.segment,
        ledger_id=ledger_id,
        entry_id=EntryId(found.entry),
        metadata=metadata,
        custom=custom,
        writer=written_by(manifest, found.segment, custom),
        replicas=replicas,
        consumers=tuple(await read_consumers(client.store, log, manifest)),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    segment: Segment
    entry: int
    record: Record | None
    unread: str = ""


async def _at_offset(client: LedgerClient, log: str, manifest: Manifest, offset: int) -> _Found:
    if offset < manifest.trim_offset:
        raise Trimmed(log, offset, manifest.trim_offset)
    manifest = await view_at(log, manifest, offset)
    for segment in reversed(manifest.segments):
        first = await first_offset_of(client, log, manifest, segment)
        if first > offset:
            continue
        async with opened_whole(client, log, manifest, segment) as reader:
            last = await reader.read_last_add_confirmed()
            try:
                place = await find_place(reader, Index(offset - first), last)
            except (EntryLost, EntryUnavailable) as error:
                return _Found(segment, error.entry_id, None, str(error))
            if place.entry > last:
                raise InvalidPosition(
                    log, offset, f"the log ends at offset {first + place.base_index}"
                )
            slot = offset - first - place.base_index
            return await _read(log, reader, segment, DLSN(segment.number, place.entry, slot), first)
    raise InvalidPosition(log, offset, "the log is empty")


async def _at_dlsn(client: LedgerClient, log: str, manifest: Manifest, dlsn: DLSN) -> _Found:
    manifest = await view_with(log, manifest, dlsn.segment)
    segment = manifest.find(dlsn.segment)
    if segment is None:
        if manifest.segments and dlsn.segment < manifest.segments[0].number:
            raise Trimmed(log, dlsn, manifest.trim_offset)
        raise InvalidPosition(log, str(dlsn), "there is no such segment")
    async with opened_whole(client, log, manifest, segment) as reader:
        if dlsn.entry > await reader.read_last_add_confirmed():
            raise InvalidPosition(log, str(dlsn), "there is no such entry")
        first = await first_offset_of(client, log, manifest, segment)
        return await _read(log, reader, segment, dlsn, first)


async def _read(
    log: str, reader: LedgerTail, segment: Segment, dlsn: DLSN, first_offset: int
) -> _Found:
    """Return the record at *dlsn* of *segment*, which begins at *first_offset*, or why it is not
    to be had. Raises `InvalidPosition`."""
    try:
        batch = await facts_of(reader, dlsn.entry)
        if dlsn.slot >= batch.count:
            raise InvalidPosition(log, str(dlsn), f"its entry has {batch.count} records")
        place = Place(segment.number, dlsn.entry, first_offset + batch.header.base_index)
        return _Found(segment, dlsn.entry, batch.known(place, dlsn.slot))
    except (EntryLost, EntryUnavailable, DamagedBatch, BatchTooNew, CodecMissing) as error:
        return _Found(segment, dlsn.entry, None, str(error))


async def _replicas(
    client: LedgerClient,
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    entry_id: EntryId,
    timeout_s: float,
    security: Security | None,
) -> tuple[TracedReplica, ...]:
    holders = holders_of(metadata, entry_id)
    answers: dict[BookieId, Found] = {}
    faults: dict[BookieId, ReplicaFault | None] = {}
    for ask in range(ASKS_MAX):
        if ask:
            await asyncio.sleep(ASK_AGAIN_S)
        found = await asyncio.gather(
            *(
                client.read_replica(ledger_id, bookie, entry_id, entry_id, metadata=metadata)
                for bookie in holders
            )
        )
        answers = dict(zip(holders, found, strict=True))
        faults = judged(entry_id, holders, answers)
        if not any(faults.values()):
            break
    registered = {BookieId(each.bookie): each for each in client.bookies.available()}
    told: dict[BookieId, tuple[pb.TraceReply | None, str]] = {}

    async def ask_where(bookie: BookieId) -> None:
        found = registered.get(bookie)
        if found is None or not found.operator_address:
            refused = "it accepts no operator requests"
            silent = "it is not registered" if found is None else refused
            told[bookie] = None, silent
            return
        try:
            async with operator_of(found, timeout_s=timeout_s, security=security) as operator:
                told[bookie] = await operator.trace(ledger_id, entry_id), ""
        except LogError as error:
            told[bookie] = None, str(error)

    await for_each(holders, ask_where, at_once=AT_ONCE)
    headers = {holder: answers[holder].headers.get(entry_id) for holder in holders}
    return tuple(
        TracedReplica(
            bookie=each,
            fault=faults[each],
            checksum=None if (header := headers[each]) is None else header.payload_crc,
            told=told[each][0],
            silent=told[each][1],
        )
        for each in holders
    )
