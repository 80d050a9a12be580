"""What the retention settings of a log free, by its ledgers and not by its manifest."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from dlog.manifest import Manifest
from dlog.recordbatch import decode_batch
from ledger.entry import parse_header, payload_of
from ledger.metadata import LedgerState
from tests.simulation.logs.oracle import LogHistory
from tests.simulation.oracle import LedgerHistory


@dataclass(frozen=True, slots=True)
class Held:
    """One sealed segment, by what its ledger holds."""

    end: int
    """Offset after its last record."""
    bytes: int
    last_ms: int | None
    """Timestamp of its last record; None: it has none, and nobody misses it."""
    created_ms: int
    next_created_ms: int | None
    """Of the segment behind it."""

    def written_ms(self, now_ms: int) -> int:
        """Return its last record's time within its segment's own: applications choose times."""
        assert self.last_ms is not None
        ended_ms = now_ms if self.next_created_ms is None else self.next_created_ms
        return max(self.created_ms, min(self.last_ms, ended_ms))


def let_go(history: LogHistory, before: Manifest, after: Manifest, *, now_ms: int) -> list[int]:
    """Return the offsets up to which retention may trim when *before* becomes *after*.

    Each is the end of a whole segment."""
    settings = after.settings
    segments = list(_held(history, before, after))
    ends = []
    for index, segment in enumerate(segments):
        behind = sum(each.bytes for each in segments[index + 1 :])
        enough = bool(settings.retention_bytes) and behind >= settings.retention_bytes
        old = bool(settings.retention_age_s) and (
            segment.last_ms is None
            or now_ms - segment.written_ms(now_ms) > settings.retention_age_s * 1000
        )
        if not (enough or old):
            break
        ends.append(segment.end)
    return ends


def _held(history: LogHistory, before: Manifest, after: Manifest) -> Iterator[Held]:
    """What was sealed by the time of *after*, or went with it."""
    end = before.segments[0].first_offset if before.segments else None
    created = {a.number: b.created_ms for a, b in pairwise(before.segments)}
    for segment in before.segments:
        now = after.find(segment.number)
        ledger = history.ledgers.ledgers[segment.ledger_id]
        closed = ledger.recorded.state is LedgerState.CLOSED
        if end is None or not closed or (now is not None and now.sealed is None):
            return
        held = _contents(ledger, end, segment.created_ms, created.get(segment.number))
        yield held
        end = held.end


def _contents(
    ledger: LedgerHistory, first: int, created_ms: int, next_created_ms: int | None
) -> Held:
    last, length = ledger.recorded.last_entry, ledger.recorded.length
    assert last is not None, "it is CLOSED"
    assert length is not None, "it is CLOSED"
    if last < 0:
        return Held(first, length, None, created_ms, next_created_ms)
    frame = ledger.sent[last]
    batch = decode_batch(payload_of(frame, parse_header(frame)))
    last_ms = max(batch.timestamps_ms())
    return Held(first + batch.header.end_index, length, last_ms, created_ms, next_created_ms)


def asked_for(history: LogHistory, before: Manifest, trim: int, *, now_ms: int) -> bool:
    """Whether somebody asked to keep so much that *before* may be trimmed to *trim*."""
    return any(
        _keeps_bytes(history, before, trim, keep.bytes)
        if keep.bytes is not None
        else _is_older(history, before, trim, keep.age_s or 0.0, now_ms)
        for keep in history.keeps
    )


def _keeps_bytes(history: LogHistory, before: Manifest, trim: int, bytes_min: int) -> bool:
    """Whether *trim* is the end of a segment, with enough behind it that was sent at least."""
    ends = [segment.end_offset for segment in before.segments if segment.sealed]
    if trim not in ends:
        return False
    behind = before.segments[ends.index(trim) + 1 :]
    sent = [
        payload
        for segment in behind
        for payload in _payloads(history.ledgers.ledgers[segment.ledger_id])
    ]
    return sum(map(len, sent)) >= bytes_min


def _is_older(history: LogHistory, before: Manifest, trim: int, age_s: float, now_ms: int) -> bool:
    """Whether the last record below *trim* is older than *age_s*; records ascend in time."""
    end = 0
    for segment in before.segments:
        first = end if segment.first_offset is None else segment.first_offset
        if segment.end_offset is not None and segment.end_offset < trim:
            continue
        for payload in _payloads(history.ledgers.ledgers[segment.ledger_id]):
            batch = decode_batch(payload)
            index = trim - 1 - first
            if batch.header.base_index <= index < batch.header.end_index:
                timestamp_ms = batch.timestamps_ms()[index - batch.header.base_index]
                return timestamp_ms <= now_ms - age_s * 1000
            end = first + batch.header.end_index
    return False


def _payloads(ledger: LedgerHistory) -> list[bytes]:
    """Return what was ever sent to the ledger."""
    return [bytes(payload_of(frame, parse_header(frame))) for frame in ledger.sent if frame]
