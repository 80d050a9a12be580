"""From the ways to name a place (`dlog.position.Start`) to an offset."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import assert_never

from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.read.chunks import read_range
from dlog.aio.read.segments import facts_of, find_place, first_offset_of, learn_end, opened_segment
from dlog.aio.read.tails import END_GRACE_S, RACES_MAX, acknowledged_end, end_now, until_confirmed
from dlog.aio.store import ManifestNode
from dlog.archive.segment_index import all_segments, view_with
from dlog.errors import (
    DamagedBatch,
    InvalidPosition,
    LogRecreated,
    NoSuchLog,
    ObjectLost,
    OffsetOutOfRange,
    Trimmed,
)
from dlog.manifest import Manifest, Sealed, Segment, SegmentRun
from dlog.position import DLSN, BeyondEnd, Position, Record, Start, Stop, Timestamp, Txid
from dlog.protocol.seek import FoundEntry, ProbedEntry, ReachedTime, ReachedTxid, Wanted
from dlog.recordbatch import BatchFacts
from dlog.starts import parse_start, parse_stop
from ledger.errors import InvalidValue, LogError, NoSuchLedger
from ledger.log_events import now_ms


async def start_offset(
    ledgers: Ledgers, node: ManifestNode, start: Start, *, beyond_end: BeyondEnd = "wait"
) -> int:
    """Return the offset that *start* names; beyond the end only if *beyond_end* is "wait".

    *node* follows the log that it is an offset of from then on. Raises `Trimmed`,
    `OffsetOutOfRange`, `LogRecreated`, `InvalidPosition`, `NoSuchLog`."""
    start = checked_start(node.log, start)
    offset = await _beside_truncation(lambda: _start_offset(ledgers, node, start))
    if beyond_end == "raise" and isinstance(start, int | DLSN):
        await _check_end(ledgers, node, offset)
    return offset


async def _check_end(ledgers: Ledgers, node: ManifestNode, offset: int) -> None:
    """Raise `OffsetOutOfRange` if *offset* is certainly beyond the end.

    While bookies or the writer do not answer that is not certain, and the reader waits."""
    manifest, _ = await node.read()
    if offset <= manifest.sealed_end:
        return
    try:
        end = await acknowledged_end(
            ledgers, node, timeout_s=END_GRACE_S, incarnation=manifest.incarnation
        )
    except LogError as error:
        if error.retryable:
            return
        raise
    if offset > end:
        raise OffsetOutOfRange(node.log, offset, manifest.trim_offset, end)


def checked_start(log: str, start: object) -> Start:
    """Return *start* in our words, if it can be one. Raises `InvalidPosition`."""
    try:
        return parse_start(start, "start", now_ms)
    except InvalidValue as error:
        raise InvalidPosition(log, start, error.reason) from None


def checked_stop(log: str, stop: object) -> Stop:
    """Return *stop* in our words, if it can be one. Raises `InvalidPosition`."""
    try:
        return parse_stop(stop, "stop", now_ms)
    except InvalidValue as error:
        raise InvalidPosition(log, stop, error.reason) from None


async def _beside_truncation(find: Callable[[], Awaitable[int]]) -> int:
    """Return what *find* returns, which begins with reading the manifest.

    What is gone was trimmed, deleted or replaced after that: then the manifest says more."""
    for race in range(1, RACES_MAX + 1):
        try:
            return await find()
        except (NoSuchLedger, ObjectLost):
            if race == RACES_MAX:
                raise
    raise AssertionError("unreachable")


async def _start_offset(ledgers: Ledgers, node: ManifestNode, start: Start) -> int:
    manifest, _ = await node.read()
    if manifest.dropped:
        raise NoSuchLog(node.log, "it is being deleted")
    node.follow(manifest.incarnation)
    if start == "end":
        return await end_now(ledgers, node)
    if start == "start":
        return manifest.trim_offset
    if isinstance(start, Txid):
        return await _offset_of(ledgers, node.log, manifest, ReachedTxid(start.value))
    if isinstance(start, Timestamp):
        return await _offset_of(ledgers, node.log, manifest, ReachedTime(start.value))
    assert not isinstance(start, str), "in our words: start or end"
    if isinstance(start, Position) and start.incarnation not in {None, manifest.incarnation}:
        raise LogRecreated(node.log, start, manifest.incarnation)
    offset = (
        await _offset_of_dlsn(ledgers, node.log, manifest, start)
        if isinstance(start, DLSN)
        else start
    )
    if offset < manifest.trim_offset:
        raise Trimmed(node.log, offset, manifest.trim_offset)
    return offset


async def stop_offset(
    ledgers: Ledgers, node: ManifestNode, stop: Stop | None, *, follow: bool
) -> int | None:
    """Return the offset before which to stop, or None to follow for ever."""
    if stop is not None:
        stop = checked_stop(node.log, stop)
    stops: list[int] = []
    if not follow or stop == "end":
        stops.append(await end_now(ledgers, node))
    if isinstance(stop, DLSN):
        dlsn = stop

        async def offset() -> int:
            manifest, _ = await node.read()
            return await _offset_of_dlsn(ledgers, node.log, manifest, dlsn)

        stops.append(await _beside_truncation(offset))
    elif isinstance(stop, int):
        stops.append(stop)
    return min(stops, default=None)


async def last_records(
    ledgers: Ledgers, node: ManifestNode, count: int, *, bytes_max: int
) -> list[Record]:
    """Return the last *count* records, oldest first; fewer if there are fewer, or of *bytes_max*.

    At least the last one, however large. Raises `NoSuchLog` and what reading raises."""
    for race in range(1, RACES_MAX + 1):
        end = await end_now(ledgers, node)
        manifest, _ = await node.read()
        records: deque[Record] = deque()
        size = 0
        begin = max(manifest.trim_offset, end - count)
        try:
            async for chunk in read_range(
                ledgers, node.log, begin, end, incarnation=manifest.incarnation
            ):
                for record in chunk:
                    records.append(record)
                    size += _size_of(record)
                    while size > bytes_max and len(records) > 1:
                        size -= _size_of(records.popleft())
        except Trimmed:  # meanwhile
            if race == RACES_MAX:
                raise
            continue
        return list(records)
    raise AssertionError("unreachable")


def _size_of(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers.pairs())
    return len(record.value) + len(record.key or b"") + headers


async def _offset_of_dlsn(ledgers: Ledgers, log: str, manifest: Manifest, dlsn: DLSN) -> int:
    manifest = await view_with(log, manifest, dlsn.segment)
    segment = manifest.find(dlsn.segment)
    if segment is None:
        first = manifest.segments[0].number if manifest.segments else manifest.next_segment
        if dlsn.segment < first:
            raise Trimmed(log, dlsn, manifest.trim_offset)
        raise InvalidPosition(log, str(dlsn), "there is no such segment")
    first_offset = await first_offset_of(ledgers, log, manifest, segment)
    async with opened_segment(ledgers, log, segment) as reader:
        await _learn_whole(ledgers, manifest, segment, reader)
        found, _ = await _find(reader, ProbedEntry(dlsn.entry))
    return first_offset + found.base_index + dlsn.slot


async def _offset_of(
    ledgers: Ledgers, log: str, manifest: Manifest, wanted: ReachedTxid | ReachedTime
) -> int:
    """Return the offset of the first record that reached *wanted*, or the end.

    The end is where the search ended: what is appended meanwhile may have reached it."""
    end = manifest.sealed_end
    wanted_runs = partial(_run_may_hold, wanted=wanted)
    async for segment in all_segments(log, manifest, wanted=wanted_runs):
        if segment.sealed is not None and not _may_hold(segment.sealed, wanted):
            continue
        async with opened_segment(ledgers, log, segment) as reader:
            is_whole = await _learn_whole(ledgers, manifest, segment, reader)
            found, is_there = await _find(reader, wanted)
            facts: BatchFacts | None = None
            if is_there:
                facts = await facts_of(reader, found.entry)
        offset = await first_offset_of(ledgers, log, manifest, segment) + found.base_index
        if facts is not None:
            return max(offset + _slot_of(facts, wanted), manifest.trim_offset)
        if segment.sealed is None:
            end = offset
        if not is_whole:
            break  # records of the next one come after others of this that were not looked at
    return max(end, manifest.trim_offset)


async def _learn_whole(
    ledgers: Ledgers, manifest: Manifest, segment: Segment, reader: LedgerTail
) -> bool:
    """Return whether all that *segment* will ever hold can be read from now on."""
    later = manifest.after(segment.number)
    if reader.closed or later is None:
        return reader.closed
    return await learn_end(ledgers, reader, later) is not None


async def _find(reader: LedgerTail, wanted: Wanted) -> tuple[FoundEntry, bool]:
    """Return the first entry at or past *wanted*, and True; or the end, and False.

    What bookies report as confirmed may lag behind acknowledgements. So before it is said
    that there is no such entry, what they hold is waited for, as by `end_now`."""
    last = await reader.read_last_add_confirmed()
    found = await find_place(reader, wanted, last)
    if found.entry > last and (bound := await reader.read_last_stored()) > last:
        await until_confirmed(reader, bound, asyncio.get_running_loop().time() + END_GRACE_S)
        last = reader.last_add_confirmed
        found = await find_place(reader, wanted, last)
    return found, found.entry <= last


def _may_hold(sealed: Sealed, wanted: ReachedTxid | ReachedTime) -> bool:
    match wanted:
        case ReachedTxid(txid):
            return sealed.records > 0 and sealed.last_txid >= txid
        case ReachedTime(time_ms):
            return sealed.records > 0 and sealed.last_timestamp_ms >= time_ms
        case _:
            assert_never(wanted)


def _run_may_hold(run: SegmentRun, wanted: ReachedTxid | ReachedTime) -> bool:
    newest = run.last_txid if isinstance(wanted, ReachedTxid) else run.newest_ms
    return run.records > 0 and newest >= wanted.value


def _slot_of(facts: BatchFacts, wanted: ReachedTxid | ReachedTime) -> int:
    column: Sequence[int | None]
    match wanted:
        case ReachedTxid():
            column = facts.txid_list() or ()
        case ReachedTime():
            try:
                column = facts.timestamps_ms()
            except DamagedBatch:  # of Kafka's records; whoever reads them is told so
                return 0
        case _:
            assert_never(wanted)
    for slot, each in enumerate(column):
        if each is not None and each >= wanted.value:
            return slot
    return 0  # a txid that was reached before this batch, by records that were trimmed
