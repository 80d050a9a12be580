"""No acknowledged record is lost: the manifest lists the segment it is in, and its place there.

Only what was trimmed may be gone, and all of a log that was deleted.
"""

from tests.simulation.logs.oracle import Append, LogHistory

_NAME = "acknowledged_records_are_kept"


def broken(history: LogHistory) -> str | None:
    if history.gone or history.manifest.dropped:
        return None
    manifests = history.checked.get(f"{_NAME} manifests", 0)
    history.checked[f"{_NAME} manifests"] = len(history.manifests)
    if manifests == len(history.manifests):
        appends = history.new(_NAME, history.acknowledged)
    else:
        history.checked[_NAME] = len(history.acknowledged)
        appends = history.acknowledged
    for append in appends:
        story = _lost(history, append)
        if story is not None:
            return f"record {append.offset} of {append.who}, acknowledged at {append.dlsn}: {story}"
    return None


def _lost(history: LogHistory, append: Append) -> str | None:
    manifest = history.manifest
    if append.offset < manifest.trim_offset:
        return None
    segment = manifest.find(append.dlsn.segment)
    if segment is None:
        return f"segment {append.dlsn.segment} is not listed"
    if segment.first_offset is not None and append.offset < segment.first_offset:
        return f"the segment begins at offset {segment.first_offset}"
    if segment.sealed is None:
        return None
    if append.dlsn.entry > segment.sealed.last_entry:
        return f"the segment ends at entry {segment.sealed.last_entry}"
    end = segment.end_offset
    if end is not None and append.offset >= end:
        return f"the segment ends before offset {end}"
    return None
