"""The plan of a truncation, which can be shown before it is carried out.

A trim point is an offset: records below it cannot be read from then on, whatever segment they
are in. Space is freed by whole ledgers: a segment goes once all of it lies below the trim
point, except the last one, which always stays.

The plan is made by the same function that the edit of the manifest uses, so what it names is
what goes, unless the log changes in between.
"""

from dataclasses import dataclass
from typing import Final

from dlog.manifest import Manifest, Segment, SegmentRun, StoredObject
from ledger.ids import LedgerId


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """What a truncation to *trim_offset* does to a log."""

    log: str
    incarnation: str
    first_offset: int
    """The first offset that can be read before it."""
    trim_offset: int
    """The first one that can be read after it."""
    segments: tuple[Segment, ...]
    """They go whole; so do their ledgers and objects."""
    runs: tuple[SegmentRun, ...]
    """Of archived segments before those; they go whole, too."""
    waiting: tuple[LedgerId, ...]
    """Ledgers that an earlier truncation left to be deleted; they go too."""
    copies: tuple[LedgerId, ...]
    """Local copies of archived segments that go; they go too."""
    inside: Segment | None
    """The segment that the trim point then lies in; its ledger stays, all of it."""

    @property
    def records(self) -> int:
        """How many records cannot be read any more."""
        return self.trim_offset - self.first_offset

    @property
    def ledgers(self) -> tuple[LedgerId, ...]:
        """What is deleted, in this order."""
        own = (s.ledger_id for s in self.segments if s.location.on_bookies)
        return (*self.waiting, *own, *self.copies)

    @property
    def objects(self) -> tuple[StoredObject, ...]:
        """What is deleted in object storage, beside the objects of runs."""
        return tuple(s.location.object for s in self.segments if s.location.object)

    @property
    def bytes(self) -> int:
        """Payload bytes of the segments that go; each is stored as often as its write quorum."""
        listed = sum(segment.sealed.bytes for segment in self.segments if segment.sealed)
        return listed + sum(run.bytes for run in self.runs)


def plan_trim(log: str, manifest: Manifest, before: int) -> TrimPlan:
    """Return what trimming to *before* does. A trim point never moves back."""
    after = manifest.trimmed(before)
    kept = {segment.number for segment in after.segments}
    first = after.segments[0] if after.segments else None
    begins = first is not None and (first.first_offset or 0) < after.trim_offset
    return TrimPlan(
        log=log,
        incarnation=manifest.incarnation,
        first_offset=manifest.trim_offset,
        trim_offset=after.trim_offset,
        segments=tuple(s for s in manifest.segments if s.number not in kept),
        runs=tuple(run for run in manifest.living_runs if run.end_offset <= after.trim_offset),
        waiting=manifest.deleting,
        copies=tuple(c.ledger_id for c in manifest.copies if c.end_offset <= after.trim_offset),
        inside=first if begins else None,
    )


def offset_keeping_bytes(manifest: Manifest, bytes_min: int, *, open_bytes: int = 0) -> int:
    """Return where to trim so that at least *bytes_min* payload bytes stay, if there are as many.

    Whole segments go or stay, and whole runs of them. *open_bytes*: what is known to be
    in segments not sealed yet."""
    held = open_bytes + manifest.sealed_bytes
    trim = manifest.trim_offset
    for run in manifest.living_runs:
        held -= run.bytes
        if held < bytes_min:
            return trim
        trim = max(trim, run.end_offset)
    for segment in manifest.segments:
        end = segment.end_offset
        if segment.sealed is None or end is None:
            break
        held -= segment.sealed.bytes
        if held < bytes_min:
            break
        trim = max(trim, end)
    return trim


_FUTURE_MS: Final = 86_400_000
"""Clocks of writers may be ahead by that much."""
_SECONDS_LIKELY: Final = range(315_532_800, 4_102_444_800)
"""A time of these milliseconds, in January and February 1970, is one of 1980 to 2100 in seconds."""


def implausible_time(manifest: Manifest, now_ms: int) -> str | None:
    """Return what is wrong with the times of the log's records, as far as sealed segments show it;
    None: nothing. Retention and reading by time are then of little use."""
    for segment in manifest.segments:
        if segment.sealed is None or not segment.sealed.records:
            continue
        for time_ms in (segment.sealed.first_timestamp_ms, segment.sealed.last_timestamp_ms):
            unit = None
            if time_ms in _SECONDS_LIKELY:
                unit = "seconds"
            elif time_ms > now_ms + _FUTURE_MS:
                unit = "the future, microseconds or nanoseconds"
            if unit is not None:
                return f"segment {segment.number} has a record of {time_ms} ms: {unit}?"
    return None
