"""How a reader moves across the segments of a log.

The cursor knows the offset it will deliver next and the segment it is in. A segment is left
only when its end is certain and it was read to there; the next one begins at just the offset
where that ended, which is also how the first offset of a segment is known before the
manifest says it. Nothing is ever skipped in silence: what does not join is `DamagedLog`, a
position below the trim point is `Trimmed`.

The end is certain if the ledger is CLOSED, or if its writer went on in the next one. Story of
the second: a writer died after it had switched to segment n + 1 and before it closed n, so
nobody closes n before the next takeover. (A) A roll sends nothing to the new ledger before
every add to n is confirmed, and nothing to n afterwards (`protocol.roll`, step 3). (B) So as
soon as bookies hold any entry of n + 1, all entries of n that they hold are confirmed, and no
more will come. (C) Bookies are asked first for an entry of n + 1, then for the last of n.
Nothing is fenced or written. A takeover that comes between closes n at just that entry.

After any trouble that may pass the cursor waits, longer each time, and finds its place again
from the manifest, at the record after the last one delivered.

Invariants (asserted by `step`):
    what is delivered begins where what was delivered before ended, and never goes beyond the stop
    position <= what is delivered next, and they differ only before the first delivery since
        the place was found
    there is a deadline only while it waits after trouble
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from dlog.errors import DamagedLog, NoSuchLog, ObjectLost, Trimmed
from dlog.manifest import Manifest, Segment
from ledger.delays import Backoff
from ledger.errors import LogError
from ledger.protocol.common import TimePassed

BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 5.0

# Events.


@dataclass(frozen=True, slots=True)
class ManifestSeen:
    """What is stored now; None iff there is no such log. May come at any time."""

    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class PlaceFound:
    """Answer to `FindPlace`: the entry, and the index of its first record."""

    entry: int
    base_index: int


@dataclass(frozen=True, slots=True)
class BatchesRead:
    """Answer to `ReadEntries`: (entry, base index, record count) of each, in order."""

    batches: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class NothingNew:
    """Answer to `ReadEntries`: none was confirmed in time."""


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """Answer to `ReadEntries`: the ledger is CLOSED, and there is no such entry."""


@dataclass(frozen=True, slots=True)
class EndFound:
    """Answer to `FindEnd`. None: the writer may still add to the segment."""

    last_entry: int | None


@dataclass(frozen=True, slots=True)
class LedgerMissing:
    """The segment's ledger does not exist (any more)."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Whatever was asked for failed."""

    error: LogError


@dataclass(frozen=True, slots=True)
class StopMoved:
    """The stop is at *stop* now, or where it was. Comes after `Finish` only."""

    stop: int


CursorEvent = (
    ManifestSeen
    | PlaceFound
    | BatchesRead
    | NothingNew
    | SegmentEnded
    | EndFound
    | LedgerMissing
    | Interrupted
    | StopMoved
    | TimePassed
)


# Effects: any number of `Deliver`, then one of the others, or none while it waits after trouble.


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand *take* records of *entry*, after the first *skip*, to the application.

    *first_offset* is the offset of the entry's slot 0."""

    segment: int
    entry: int
    first_offset: int
    skip: int
    take: int


@dataclass(frozen=True, slots=True)
class FetchManifest:
    """Answer: `ManifestSeen`."""


@dataclass(frozen=True, slots=True)
class AwaitManifest:
    """Wait until the manifest may have changed, then as `FetchManifest`."""


@dataclass(frozen=True, slots=True)
class FindPlace:
    """Open *segment* and find the entry that holds record *index* of it, or its end.

    Answer: `PlaceFound`."""

    segment: Segment
    index: int


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read confirmed entries of *segment*, from *first* on."""

    segment: Segment
    first: int


@dataclass(frozen=True, slots=True)
class FindEnd:
    """Find out whether the writer left *segment* for *later*, and where *segment* ends then.

    Entries up to there can be read from then on. Answer: `EndFound`."""

    segment: Segment
    later: Segment


@dataclass(frozen=True, slots=True)
class Finish:
    """The stop was reached, or the log was sealed for good. `StopMoved` may follow."""


@dataclass(frozen=True, slots=True)
class Fail:
    error: LogError


Request = FetchManifest | AwaitManifest | FindPlace | ReadEntries | FindEnd
"""What is answered by one event, unless that is `LedgerMissing` or `Interrupted`."""

CursorEffect = Deliver | Request | Finish | Fail


class CursorPhase(Enum):
    LOCATING = "locating"
    """No segment: the next manifest says where to go on."""
    SEEKING = "seeking"
    READING = "reading"
    BETWEEN = "between"
    """The segment was read to its end, and no later one is known."""
    DONE = "done"


class Cursor:
    """Delivers offsets from *start* (inclusive) to *stop* (exclusive; None: for ever)."""

    def __init__(
        self, log: str, start: int, *, stop: int | None = None, incarnation: str | None = None
    ) -> None:
        assert start >= 0
        self.log = log
        self._next = start
        """Offset that is delivered next."""
        self._delivered = start
        """Offset after the last one that was delivered."""
        self._stop = stop
        self._is_in_place = False
        """True iff it is over, and goes on with `_entry` if the stop moves."""
        self._end_max = None if stop is None else max(start, stop)
        self._incarnation = incarnation
        self._phase = CursorPhase.LOCATING
        self._segment: Segment | None = None
        self._first = 0
        """Offset of the segment's first record."""
        self._position = start
        """Offset of the first record of `_entry`."""
        self._entry = 0
        self._later: Segment | None = None
        """The segment after `_segment`, if the manifest lists one."""
        self._last_entry: int | None = None
        """Where `_segment` ends for certain, if its writer left it without closing it."""
        self._manifest: Manifest | None = None
        """What was seen last."""
        self._missing: Segment | None = None
        """Segment whose ledger was not there; if it is still listed, the log is damaged."""
        self._joined = False
        """True iff something was delivered since the place was found."""
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._again_at: float | None = None

    @property
    def next_offset(self) -> int:
        return self._next

    @property
    def incarnation(self) -> str | None:
        """Which life of the log is read; None before a manifest was seen."""
        return self._incarnation

    @property
    def later(self) -> Segment | None:
        """The segment that will be read after the present one, if there is one yet."""
        return self._later

    def deadline(self) -> float | None:
        """Return when `TimePassed` is due, or None."""
        return self._again_at

    def step(self, event: CursorEvent, *, now: float) -> list[CursorEffect]:
        """Apply *event*; return what to deliver, and the one thing to do next."""
        assert self._phase is not CursorPhase.DONE or isinstance(event, StopMoved), (
            "the cursor is over"
        )
        effects = self._dispatch(event, now)
        if effects and isinstance(effects[-1], Finish | Fail):
            self._phase = CursorPhase.DONE
        self._check(effects)
        return effects

    def _check(self, effects: list[CursorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                assert effect.first_offset + effect.skip == self._delivered, (
                    "a gap, or a repetition"
                )
                self._delivered += effect.take
        assert self._delivered == self._next
        assert self._end_max is None or self._next <= self._end_max, "delivered beyond the stop"
        assert self._phase in {CursorPhase.LOCATING, CursorPhase.DONE} or self._segment is not None
        if self._phase not in {CursorPhase.LOCATING, CursorPhase.DONE}:
            assert self._position <= self._next
            assert self._position == self._next or not self._joined
        assert self._again_at is None or self._phase in {CursorPhase.LOCATING, CursorPhase.DONE}

    def _dispatch(self, event: CursorEvent, now: float) -> list[CursorEffect]:
        match event:
            case ManifestSeen():
                return [self._manifest_seen(event.manifest)]
            case PlaceFound():
                return [self._place_found(event)]
            case BatchesRead():
                return self._batches_read(event.batches)
            case NothingNew():
                return [self._nothing_new()]
            case SegmentEnded():
                return [self._ended()]
            case EndFound():
                return [self._end_found(event.last_entry)]
            case LedgerMissing():
                self._missing = self._segment
                return [self._locate()]
            case Interrupted():
                return self._interrupted(event.error, now)
            case StopMoved():
                return [self._stop_moved(event.stop)]
            case TimePassed():
                return self._time_passed(now)
            case _:
                assert_never(event)

    def _interrupted(self, error: LogError, now: float) -> list[CursorEffect]:
        if not error.retryable:
            return [Fail(error)]
        self._phase = CursorPhase.LOCATING
        self._again_at = now + self._backoff.next()
        return []

    def _time_passed(self, now: float) -> list[CursorEffect]:
        if self._again_at is None or now < self._again_at:
            return []
        self._again_at = None
        return [self._locate()]

    def _locate(self) -> CursorEffect:
        self._phase = CursorPhase.LOCATING
        self._joined = False
        return FetchManifest()

    def _manifest_seen(self, manifest: Manifest | None) -> CursorEffect:
        if manifest is None or manifest.dropped:
            return Fail(NoSuchLog(self.log, "it was deleted"))
        if self._incarnation not in {None, manifest.incarnation}:
            return Fail(NoSuchLog(self.log, "it was deleted, and another one has its name"))
        self._incarnation = manifest.incarnation
        self._manifest = manifest
        self._again_at = None
        if self._stop is not None and self._next >= self._stop:
            return Finish()
        if self._next < manifest.trim_offset:
            return Fail(Trimmed(self.log, self._next, manifest.trim_offset))
        if self._segment is not None:
            self._later = manifest.after(self._segment.number)
        match self._phase:
            case CursorPhase.LOCATING:
                return self._enter_by_offset(manifest)
            case CursorPhase.BETWEEN:
                assert self._segment is not None
                return self._enter_after(self._segment.number, manifest)
            case CursorPhase.SEEKING:
                return self._seek()
            case CursorPhase.READING:
                return self._read()
            case CursorPhase.DONE:
                raise AssertionError("the cursor is over")
            case _:
                assert_never(self._phase)

    def _enter_by_offset(self, manifest: Manifest) -> CursorEffect:
        """Enter the last segment that is known to begin at or before the next offset."""
        chosen: Segment | None = None
        for segment in manifest.segments:
            if segment.first_offset is None or segment.first_offset > self._next:
                break
            chosen = segment
        if chosen is None:
            return Finish() if manifest.sealed else AwaitManifest()
        assert chosen.first_offset is not None
        if chosen.end_offset is not None and chosen.end_offset <= self._next:
            self._segment, self._position = chosen, chosen.end_offset
            self._phase = CursorPhase.BETWEEN
            return self._enter_after(chosen.number, manifest)
        return self._enter(chosen, chosen.first_offset, manifest)

    def _enter_after(self, number: int, manifest: Manifest) -> CursorEffect:
        left = manifest.find(number)
        if left is None and self._position < self._next:
            return self._enter_by_offset(manifest)  # it was trimmed, and others that were skipped
        if left is not None and left.end_offset not in {None, self._position}:
            return Fail(
                DamagedLog(
                    self.log,
                    f"segment {number} ends at offset {left.end_offset} by the manifest, "
                    f"at {self._position} by its ledger",
                )
            )
        segment = manifest.after(number)
        if segment is None:
            return Finish() if manifest.sealed else AwaitManifest()
        if segment.first_offset not in {None, self._position}:
            return Fail(
                DamagedLog(
                    self.log,
                    f"segment {segment.number} begins at offset {segment.first_offset}, "
                    f"the one before ends at {self._position}",
                )
            )
        return self._enter(segment, self._position, manifest)

    def _enter(self, segment: Segment, first_offset: int, manifest: Manifest) -> CursorEffect:
        if segment == self._missing:  # its location, too: it may have moved meanwhile
            if (stored := segment.location.object) is not None:
                offsets = f"{first_offset}..{(segment.end_offset or 1) - 1}"
                return Fail(ObjectLost(self.log, offsets, f"{stored.storage}/{stored.name}"))
            return Fail(
                DamagedLog(
                    self.log,
                    f"ledger {segment.ledger_id} of segment {segment.number} does not exist",
                )
            )
        self._segment, self._first, self._position = segment, first_offset, first_offset
        self._entry = 0
        self._later, self._last_entry = manifest.after(segment.number), None
        if self._next > first_offset:
            self._phase = CursorPhase.SEEKING
            return self._seek()
        self._phase = CursorPhase.READING
        return self._read()

    def _seek(self) -> CursorEffect:
        assert self._segment is not None
        return FindPlace(self._segment, self._next - self._first)

    def _read(self) -> CursorEffect:
        assert self._segment is not None
        return ReadEntries(self._segment, self._entry)

    def _place_found(self, event: PlaceFound) -> CursorEffect:
        assert self._phase is CursorPhase.SEEKING
        self._phase = CursorPhase.READING
        self._entry = event.entry
        self._position = self._first + event.base_index
        assert self._position <= self._next, "found a place behind the one wanted"
        return self._read()

    def _batches_read(self, batches: Sequence[tuple[int, int, int]]) -> list[CursorEffect]:
        assert self._phase is CursorPhase.READING
        assert self._segment is not None
        effects: list[CursorEffect] = []
        for entry, base_index, count in batches:
            if entry != self._entry or self._first + base_index != self._position:
                reason = (
                    f"entry {entry} of segment {self._segment.number} begins at record "
                    f"{base_index}; expected entry {self._entry} at {self._position - self._first}"
                )
                return [*effects, Fail(DamagedLog(self.log, reason))]
            begin, end = self._position, self._position + count
            read_to = end if self._stop is None else min(end, self._stop)
            if read_to > self._next:
                skip = self._next - begin
                take = read_to - self._next
                effects.append(Deliver(self._segment.number, entry, begin, skip, take))
                self._next = read_to
                self._joined = True
                self._backoff.reset()
            if read_to < end:
                break  # the rest of it is read when the stop moves
            self._entry, self._position = entry + 1, end
        if self._stop is not None and self._next >= self._stop:
            self._is_in_place, self._joined = True, self._position == self._next
            return [*effects, Finish()]
        return [*effects, self._go_on()]

    def _stop_moved(self, stop: int) -> CursorEffect:
        assert self._phase is CursorPhase.DONE, "it had come to its stop"
        assert self._stop is not None, "there was one"
        self._stop = max(self._stop, stop)
        self._end_max = max(self._stop, self._next)
        if not self._is_in_place:
            return self._locate()
        self._phase, self._is_in_place = CursorPhase.READING, False
        return self._go_on()

    def _go_on(self) -> CursorEffect:
        if self._last_entry is not None and self._entry > self._last_entry:
            return self._ended()
        return self._read()

    def _nothing_new(self) -> CursorEffect:
        assert self._segment is not None
        if self._later is None:
            return self._read()
        return FindEnd(self._segment, self._later)

    def _end_found(self, last_entry: int | None) -> CursorEffect:
        assert self._phase is CursorPhase.READING
        self._last_entry = last_entry
        return self._go_on()

    def _ended(self) -> CursorEffect:
        assert self._phase is CursorPhase.READING
        assert self._segment is not None
        assert self._manifest is not None
        self._phase = CursorPhase.BETWEEN
        left = self._manifest.find(self._segment.number)
        if self._later is not None and left is not None and left.end_offset == self._position:
            return self._enter_after(left.number, self._manifest)  # as it stays for ever
        return FetchManifest()
