"""A sealed segment's ledger is CLOSED, and ends where the manifest says; so do its records."""

from dlog.manifest import Segment
from dlog.recordbatch import parse_header as parse_batch
from ledger.entry import parse_header, payload_of
from ledger.metadata import LedgerState
from tests.simulation.logs.oracle import LogHistory

_NAME = "seals_tell_the_truth"


def broken(history: LogHistory) -> str | None:
    for _, manifest in history.new(_NAME, history.manifests):
        for segment in manifest.segments:
            if segment.sealed is None:
                continue
            key = f"{_NAME} {segment.number}"
            if history.checked.get(key):
                continue
            history.checked[key] = 1
            story = _lie(history, segment)
            if story is not None:
                return f"segment {segment.number}, ledger {segment.ledger_id}: {story}"
    return None


def _lie(history: LogHistory, segment: Segment) -> str | None:
    sealed = segment.sealed
    assert sealed is not None
    ledger = history.ledgers.ledgers[segment.ledger_id]
    metadata = ledger.recorded
    if metadata.state is not LedgerState.CLOSED:
        return f"sealed while it is {metadata.state.name}"
    if (metadata.last_entry, metadata.length) != (sealed.last_entry, sealed.bytes):
        return f"sealed at {sealed.last_entry}, CLOSED at {metadata.last_entry}"
    records = 0
    if sealed.last_entry >= 0:
        frame = ledger.sent[sealed.last_entry]
        records = parse_batch(payload_of(frame, parse_header(frame))).end_index
    if records != sealed.records:
        return f"sealed with {sealed.records} records, it holds {records}"
    return None
