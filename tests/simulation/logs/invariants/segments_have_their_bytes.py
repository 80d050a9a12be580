"""A segment is on bookies, or in an object that is what its writer sent; and so is each object that
a manifest begins to name. An object is deleted only when no manifest names it.

An object that rotted while its segment was on bookies, too, must not be what is left. A local copy
is CLOSED, and has the entries of its segment, all of them."""

from dlog.archive.object_format import TRAILER_BYTES, footer_range, parse_footer
from dlog.errors import MalformedObject
from dlog.manifest import LocalCopy, Segment
from ledger.entry import parse_header, payload_of
from ledger.metadata import LedgerState
from tests.simulation.logs.oracle import LogHistory

_NAME = "segments_have_their_bytes"


def broken(history: LogHistory) -> str | None:
    if history.gone or not history.manifest.storage:
        return None
    for segment in history.manifest.segments:
        stored = segment.location.object
        if stored is None:
            continue
        key = (stored.storage, stored.name)
        objects = history.objects
        if key in objects.rotten:
            if not segment.location.on_bookies:
                return f"segment {segment.number} left the bookies, and {stored.name} had rotted"
            continue
        if key not in objects.data:
            return f"segment {segment.number} is in {stored.name}, which is not there"
        data = objects.data[key][stored.start : stored.start + stored.bytes]
        checked = f"{_NAME} {stored.name} {stored.start} {len(data)}"
        if history.checked.get(checked):
            continue
        history.checked[checked] = 1
        story = _difference(history, segment, data)
        if story is not None:
            return f"segment {segment.number} is in {stored.name}, {story}"
    stories = (_copy_differs(history, copy) for copy in history.manifest.copies)
    return next(filter(None, stories), None)


def _copy_differs(history: LogHistory, copy: LocalCopy) -> str | None:
    key = f"{_NAME} copy {copy.ledger_id}"
    if history.checked.setdefault(key, 0):
        return None
    history.checked[key] = 1
    ledgers = history.ledgers.ledgers
    segment, ledger = ledgers[history.segments[copy.number]], ledgers[copy.ledger_id]
    story = f"segment {copy.number} has the copy {copy.ledger_id}"
    if ledger.recorded.state is not LedgerState.CLOSED:
        return f"{story}, which is {ledger.recorded.state.name}"
    last, wanted = ledger.recorded.last_entry, segment.recorded.last_entry
    if last != wanted:
        return f"{story}, which ends at entry {last}, not {wanted}"
    for entry in range((wanted or 0) + 1):
        frames = (segment.sent[entry], ledger.sent[entry])
        payloads = [bytes(payload_of(frame, parse_header(frame))) for frame in frames]
        if payloads[0] != payloads[1]:
            return f"{story}, where entry {entry} is another one"
    return None


def _difference(history: LogHistory, segment: Segment, data: bytes) -> str | None:
    """Return in what the object differs from what was sent to the ledger."""
    end, sent = data[-TRAILER_BYTES:], history.ledgers.ledgers[segment.ledger_id].sent
    try:
        where = footer_range(end, len(data))
        index = parse_footer(data[where.start : where.stop], end, len(data))
        index.segment.check_is(segment)
        for block in range(index.blocks):
            within = index.range_of(block)
            for entry in index.entries_in(block, data[within.start : within.stop]):
                if bytes(entry.frame) != sent[entry.entry_id]:
                    return f"where entry {entry.entry_id} is another one"
    except MalformedObject as error:
        return str(error)
    return None
