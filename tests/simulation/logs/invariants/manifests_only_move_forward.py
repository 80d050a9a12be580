"""From manifest to manifest: the trim point and the next number never fall, what is sealed stays
as it is, and segments go only from the front, when they are trimmed or the log is dropped."""

from dataclasses import replace
from itertools import pairwise

from dlog.manifest import Manifest, Segment
from tests.simulation.logs.oracle import LogHistory

_NAME = "manifests_only_move_forward"


def broken(history: LogHistory) -> str | None:
    first = max(1, history.checked.get(_NAME, 1))
    history.checked[_NAME] = len(history.manifests)
    for (_, before), (version, after) in pairwise(history.manifests[first - 1 :]):
        story = _backwards(before, after)
        if story is not None:
            return f"version {version}: {story}"
    return None


def _stays(segment: Segment, now: Segment) -> bool:
    """Whether a sealed segment is what it was. It may go from bookies to an object, which stays the
    same, and never comes back but as a local copy."""
    before, after = (replace(each.location, copy=None) for each in (segment, now))
    if before.object is None:
        moved = before == after or after.on_bookies
    else:
        moved = after.object == before.object and (before.on_bookies or not after.on_bookies)
    return moved and replace(now, location=segment.location) == segment


def _backwards(before: Manifest, after: Manifest) -> str | None:
    if after.trim_offset < before.trim_offset:
        return f"trim point {after.trim_offset} after {before.trim_offset}"
    if after.next_segment < before.next_segment:
        return f"next segment {after.next_segment} after {before.next_segment}"
    if before.sealed and not after.sealed:
        return "a sealed log is open again"
    if before.sealed and not after.dropped and after.sealed_end != before.sealed_end:
        return f"the end of a sealed log moved from {before.sealed_end} to {after.sealed_end}"
    if before.dropped and not after.dropped:
        return "a dropped log is there again"
    if after.sealed_end < before.sealed_end:
        return f"committed end {after.sealed_end} after {before.sealed_end}"
    kept = [s for s in before.segments if after.find(s.number) is not None]
    if kept != list(before.segments[len(before.segments) - len(kept) :]):
        return "a segment between others vanished"
    for segment in before.segments:
        now = after.find(segment.number)
        if now is None:
            end = segment.end_offset  # or it was sealed and trimmed at once
            if end is None and after.segments:
                end = after.segments[0].first_offset
            if not after.dropped and (end is None or end > after.trim_offset):
                return f"segment {segment.number} vanished, it is not trimmed"
        elif segment.sealed is not None and not _stays(segment, now):
            return f"segment {segment.number} changed after it was sealed: {now.location}"
    return None
