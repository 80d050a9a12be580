"""A segment is on bookies, or in an object that is what its writer sent; and so is each object that
a manifest begins to name. An object is deleted only when no manifest names it.

An object that rotted while its segment was on bookies, too, must not be what is left."""

from dlog.archive.object_format import TRAILER_BYTES, footer_range, parse_footer
from dlog.errors import MalformedObject
from dlog.manifest import Segment
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
