"""The manifest of a log: a value that is only ever changed by compare-and-swap.

Invariants (asserted when a value is made):
    segment numbers ascend and are below next_segment; a number is never used again
    sealed segments come first; at most the last two are not sealed
    a first offset is known for the first segment and for each one after a sealed one, and
        is the end of the one before; an offset is never used twice
    the last segment stays listed until the log is deleted, even when it is trimmed whole, so
        that the log's end and its last txid are never forgotten
    no ledger on which a segment rests waits for deletion; nor does any object, which has one size
    all objects are in the log's own folder
    only sealed segments lie elsewhere than on bookies alone
    runs join each other and, unless they are trimmed whole, the first segment that is listed; there
        is one that is listed behind them, until the log is deleted
    a local copy is of a segment that can be read and is in an object alone

Deletion has two steps: trimmed segments move to `deleting` in the same compare-and-swap that
drops them, and leave it when their ledgers are gone. A crash between leaks nothing. Objects wait in
`deleting_objects` in the same way.

What is in object storage alone does not change any more. So the lines of such segments can be moved
to an index there, a run of them, and the manifest stays small however old the log is. A run that is
trimmed whole stays in front until its objects are deleted (`dlog.protocol.segment_index`).

A local copy is one more ledger with the entries of an archived segment. The object stays what the
segment is: nothing is lost with a copy, and whoever finds none reads the object.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, Self

from google.protobuf.message import DecodeError

from dlog.errors import ManifestTooLarge
from dlog.position import NO_TXID
from dlog.receipts import Receipt, Receipts
from dlog.recordbatch import Codec
from dlog.settings import LogSettings
from dlog.wire import log_pb2 as pb
from ledger.entry import Digest
from ledger.errors import CallerError, DamagedMetadata
from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.metastore.ops import VALUE_BYTES_MAX
from ledger.quorum import Quorum

FORMAT_VERSION: Final = 4
"""Of a log that has object storage: programs that would lose sight of the objects refuse it."""
ENCRYPTED_VERSION: Final = 3
"""Of a log that is encrypted: programs that would write it in plain refuse it."""
RECEIPTS_VERSION: Final = 2
PLAIN_VERSION: Final = 1
"""Of a log without receipts: programs that would drop them read it."""
FULL_BYTES: Final = VALUE_BYTES_MAX - 50_000
"""Manifests of this size get no more segments. The rest is for what must never be refused: seals
of the segments there are, truncation, deletion, settings."""
RUNS_KEPT: Final = 16
"""Lists of runs that are remembered."""
OPEN_SEGMENTS_MAX: Final = 2
"""A takeover recovers all that are without sealed data, so it never has more to do."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is known for ever about a segment whose ledger is CLOSED."""

    last_entry: EntryId
    records: int
    bytes: int
    """Payload bytes of the ledger."""
    first_txid: int
    last_txid: int
    """The last txid in this segment or, if it has none, before it in the log."""
    first_timestamp_ms: int
    last_timestamp_ms: int
    receipt: Receipt | None = field(default=None, compare=False)
    """Of the last unit in it; not kept with the segment, but among the log's (`Receipts`)."""

    @classmethod
    def empty(cls, last_txid: int, timestamp_ms: int) -> Self:
        """Return the seal of a segment that never got a record."""
        return cls(NO_ENTRY, 0, 0, NO_TXID, last_txid, timestamp_ms, timestamp_ms)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the log's object storage that holds sealed segments."""

    name: str
    """Relative to *storage*; never empty."""
    bytes: int
    """Of the segment in it."""
    storage: str = ""
    """URI of the log's folder, `Manifest.storage`; not kept with each object."""
    start: int = 0
    """Where the segment begins in it: small segments share an object."""

    def __post_init__(self) -> None:
        assert self.name, "an object has a name"
        assert self.bytes > 0, "an object that holds a segment has bytes"
        assert self.start >= 0


@dataclass(frozen=True, slots=True)
class Location:
    """Where the entries of a segment are; both at once while its ledger waits to be let go."""

    on_bookies: bool = True
    """Whether its ledger is there."""
    object: StoredObject | None = None
    copy: LedgerId | None = None
    """Another ledger with the same entries, as `Manifest.copies` says."""

    def __post_init__(self) -> None:
        assert self.on_bookies or self.object, "a segment is somewhere"

    def __str__(self) -> str:
        if self.object is None:
            return "bookies"
        if self.copy is not None:
            return f"ledger {self.copy}, {self.object.name}"
        return f"bookies, {self.object.name}" if self.on_bookies else self.object.name


ON_BOOKIES: Final = Location()


@dataclass(frozen=True, slots=True)
class Segment:
    number: int
    ledger_id: LedgerId
    """The ledger that it was written as. Checksums and encryption of its entries are bound to this
    id, wherever they are; `location` says whether the ledger exists still."""
    created_ms: int
    first_offset: int | None = None
    sealed: Sealed | None = None
    location: Location = ON_BOOKIES

    @property
    def end_offset(self) -> int | None:
        """Offset after the last record, or None as long as that is not fixed."""
        if self.sealed is None or self.first_offset is None:
            return None
        return self.first_offset + self.sealed.records


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRun:
    """Archived segments in a row, whose lines are in the object *index*."""

    index: StoredObject
    first_number: int
    last_number: int
    segments: int
    first_offset: int
    records: int
    bytes: int
    """Payload bytes."""
    last_txid: int
    newest_ms: int
    """The latest time of a record, as applications gave it."""
    aged_ms: int
    """The same, as far as it is believed (`Manifest.newest_ms`)."""
    deleted_to: int = 0
    """Objects that end at this offset or before were deleted."""

    def __post_init__(self) -> None:
        assert 0 < self.segments <= self.last_number - self.first_number + 1, "each has a number"

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.records


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A ledger with the entries of an archived segment, for some time."""

    number: int
    """Of the segment."""
    ledger_id: LedgerId
    end_offset: int
    """Of the segment; indexes of runs have it, too."""
    until_ms: int
    """The archiver lets it go then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    incarnation: str
    settings: LogSettings = field(default_factory=LogSettings)
    runs: tuple[SegmentRun, ...] = ()
    """Of segments before those in `segments`, oldest first."""
    segments: tuple[Segment, ...] = ()
    next_segment: int = 1
    trim_offset: int = 0
    trimmed_txid: int = NO_TXID
    """The last txid of the segments that are not listed any more."""
    deleting: tuple[LedgerId, ...] = ()
    deleting_objects: tuple[StoredObject, ...] = ()
    """Of segments that are not listed any more."""
    sealed: bool = False
    """Ended for good: nobody may append any more."""
    renames: int = 0
    """How often the log got another name."""
    dropped: bool = False
    """Being deleted: nobody may open it any more."""
    epoch: int = 0
    """Number of the segment that the last takeover began with; 0: nobody ever wrote the log."""
    owner: str = ""
    """Who took the log over last: for people to read, nothing is decided by it."""
    gateway: bool = False
    """Whether that was a gateway for Kafka's clients, as it said itself when it took over."""
    receipts: Receipts = field(default_factory=Receipts)
    """Of units up to `sealed_end`."""
    owners: tuple[str, ...] = ()
    """Tokens of marks in object storage: the first one was there, others were about to replace it
    (`dlog.protocol.object_owner`)."""
    copies: tuple[LocalCopy, ...] = ()
    """Of archived segments, by number; also of those in runs."""
    copy_round: int = 0
    """How often somebody began to make copies: whoever began before makes none any more."""

    def __post_init__(self) -> None:
        if self.copies or any(s.location.copy is not None for s in self.segments):
            object.__setattr__(self, "segments", self.located(self.segments))
            self._check_copies()
        numbers = [segment.number for segment in self.segments]
        assert all(a < b for a, b in pairwise(numbers)), "numbers ascend"
        assert not numbers or numbers[-1] < self.next_segment, "a number may be used twice"
        assert self.segments or self.dropped or self.next_segment == 1, "the last one stays listed"
        assert sum(s.sealed is None for s in self.segments) <= OPEN_SEGMENTS_MAX, (
            "more segments are open than a takeover fences"
        )
        assert self.trim_offset >= 0
        assert 0 <= self.epoch < self.next_segment, "the epoch is a segment's number"
        expected: int | None = self.segments[0].first_offset if self.segments else 0
        assert expected is not None, "the first segment's first offset is known"
        for before, segment in zip((None, *self.segments), self.segments, strict=False):
            assert before is None or before.sealed or not segment.sealed, "sealed ones first"
            assert segment.first_offset == expected, (
                f"segment {segment.number} begins at {segment.first_offset}, not {expected}"
            )
            assert segment.sealed or segment.location == ON_BOOKIES, "open ones are on bookies"
            expected = segment.end_offset
        listed = {segment.ledger_id for segment in self.segments}
        assert len(listed) == len(self.segments), "a ledger is listed twice"
        if self.deleting:
            held = {s.ledger_id for s in self.segments if s.location.on_bookies}
            assert held.isdisjoint(self.deleting), "a listed ledger waits for deletion"
        self._check_runs()
        objects = _objects_of(self.segments)
        if objects or self.deleting_objects:
            names = {stored.name for stored in objects}
            assert all(each.name not in names for each in self.deleting_objects), (
                "a listed object waits for deletion"
            )
            known = objects.union(self.deleting_objects)
            assert {each.storage for each in known} == {self.storage}, "an object is elsewhere"
            parts = {(each.name, each.start) for each in known}
            assert len(parts) == len(known), "an object has two sizes"

    def _check_copies(self) -> None:
        assert all(a.number < b.number for a, b in pairwise(self.copies)), "numbers ascend"
        ledgers = {copy.ledger_id for copy in self.copies}
        assert len(ledgers) == len(self.copies), "a ledger is the copy of two segments"
        assert ledgers.isdisjoint(self.deleting), "a copy that is listed waits for deletion"
        assert ledgers.isdisjoint(s.ledger_id for s in self.segments), "a copy is a segment"
        assert all(copy.end_offset > self.trim_offset for copy in self.copies), "it can be read"
        assert not any(s.location.copy and s.location.on_bookies for s in self.segments), (
            "a copy is of a segment that is on bookies"
        )

    def located(self, segments: Iterable[Segment]) -> tuple[Segment, ...]:
        """Return *segments* of this log, listed ones or of a run, with their copies."""
        ledgers = {copy.number: copy.ledger_id for copy in self.copies}
        return tuple(
            s
            if s.location.copy == (ledger := ledgers.get(s.number))
            else replace(s, location=replace(s.location, copy=ledger))
            for s in segments
        )

    def _check_runs(self) -> None:
        if not self.runs:
            return
        assert {run.index.storage for run in self.runs} == {self.storage}, "an index is elsewhere"
        for before, run in pairwise(self.runs):
            assert before.last_number < run.first_number, "numbers ascend"
            joins = before.end_offset == run.first_offset
            assert joins or before.end_offset <= self.trim_offset, "runs join"
        names = {run.index.name for run in self.runs}
        assert len(names) == len(self.runs), "an index is listed twice"
        assert names.isdisjoint(each.name for each in self.deleting_objects), (
            "a listed index waits for deletion"
        )
        last = self.runs[-1]
        if self.segments:
            assert last.last_number < self.segments[0].number, "numbers ascend"
            joins = last.end_offset == self.segments[0].first_offset
            assert joins or last.end_offset <= self.trim_offset, "a run joins the first segment"
        else:
            assert self.dropped, "the last one stays listed"

    @property
    def life(self) -> str:
        """The incarnation, and how often it was renamed: what versions of a node belong to."""
        return f"{self.incarnation}-{self.renames}" if self.renames else self.incarnation

    @property
    def storage(self) -> str:
        """URI of the folder with the log's objects, whatever its name is; empty: it has none."""
        archive = self.settings.archive
        return f"{archive}/{self.incarnation}" if archive else ""

    @property
    def has_objects(self) -> bool:
        """Whether object storage holds anything of the log, as far as the manifest knows."""
        waiting = bool(self.deleting_objects or self.runs)
        return waiting or any(s.location.object for s in self.segments)

    @property
    def living_runs(self) -> tuple[SegmentRun, ...]:
        """Those that hold records which can be read."""
        return tuple(run for run in self.runs if run.end_offset > self.trim_offset)

    @property
    def listed_ledgers(self) -> tuple[LedgerId, ...]:
        """Those that are there for its records: of segments, and copies."""
        own = (s.ledger_id for s in self.segments if s.location.on_bookies)
        return (*own, *(copy.ledger_id for copy in self.copies))

    @property
    def segment_count(self) -> int:
        """Also of those in runs."""
        return len(self.segments) + sum(run.segments for run in self.living_runs)

    @property
    def sealed_bytes(self) -> int:
        """Payload bytes of all sealed segments that can be read."""
        listed = sum(segment.sealed.bytes for segment in self.segments if segment.sealed)
        return listed + sum(run.bytes for run in self.living_runs)

    @property
    def last(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    @property
    def first_offset(self) -> int:
        """The first offset that can still be read (or will be the first)."""
        return self.trim_offset

    @property
    def sealed_end(self) -> int:
        """Offset after the last record of the last sealed segment: committed for certain."""
        for segment in reversed(self.segments):
            if segment.end_offset is not None:
                return segment.end_offset
        return self.segments[0].first_offset or 0 if self.segments else self.trim_offset

    @property
    def sealed_last_txid(self) -> int:
        """The last txid up to `sealed_end`."""
        for segment in reversed(self.segments):
            if segment.sealed is not None:
                return segment.sealed.last_txid
        return self.runs[-1].last_txid if self.runs else self.trimmed_txid  # the only one is open

    def find(self, number: int) -> Segment | None:
        """Return the segment *number*, or None if it is not listed (any more)."""
        return next((s for s in reversed(self.segments) if s.number == number), None)

    def after(self, number: int) -> Segment | None:
        """Return the first listed segment with a larger number."""
        found = None
        for segment in reversed(self.segments):
            if segment.number <= number:
                break
            found = segment
        return found

    def with_segment(self, number: int, ledger_id: LedgerId, created_ms: int) -> Self:
        """Return the manifest with a new last segment. Requires number >= next_segment."""
        assert number >= self.next_segment, f"segment number {number} was given out before"
        first = self.last.end_offset if self.last else self.trim_offset
        segment = Segment(number, ledger_id, created_ms, first)
        return replace(self, segments=(*self.segments, segment), next_segment=number + 1)

    def taken_over(
        self,
        number: int,
        ledger_id: LedgerId,
        created_ms: int,
        owner: str,
        *,
        gateway: bool = False,
    ) -> Self:
        """Return the manifest with a new last segment that begins a new epoch."""
        manifest = self.with_segment(number, ledger_id, created_ms)
        return replace(manifest, epoch=number, owner=owner, gateway=gateway)

    def with_sealed(self, number: int, sealed: Sealed) -> Self:
        """Return the manifest with segment *number* sealed. Requires all before it to be."""
        segments = list(self.segments)
        index = next(i for i, s in enumerate(segments) if s.number == number)
        receipts = self.receipts.with_one(sealed.receipt)
        segments[index] = replace(segments[index], sealed=replace(sealed, receipt=None))
        if index + 1 < len(segments):
            end = segments[index].end_offset
            segments[index + 1] = replace(segments[index + 1], first_offset=end)
        return replace(self, segments=tuple(segments), receipts=receipts)

    def with_adopted(
        self, ledgers: Iterable[tuple[LedgerId, Sealed]], created_ms: int, receipt: Receipt
    ) -> Self:
        """Return the manifest with CLOSED ledgers as its last segments, the unit of *receipt*.

        Requires that all segments are sealed."""
        segments, number = list(self.segments), self.next_segment
        first = self.sealed_end
        for ledger_id, sealed in ledgers:
            segments.append(Segment(number, ledger_id, created_ms, first, sealed))
            number, first = number + 1, first + sealed.records
        return replace(
            self,
            segments=tuple(segments),
            next_segment=number,
            receipts=self.receipts.with_one(receipt),
        )

    def trimmed(self, before: int) -> Self:
        """Return the manifest whose first offset is *before* at least.

        Segments that lie below it whole go to `deleting`; the last one never does."""
        trim = max(self.trim_offset, before)
        kept = list(self.segments)
        gone: list[Segment] = []
        last_txid = self.trimmed_txid
        for run in self.runs:
            if run.end_offset <= trim:
                last_txid = max(last_txid, run.last_txid)
        while len(kept) > 1:
            first, end = kept[0], kept[0].end_offset
            if first.sealed is None or end is None or end > trim:
                break
            last_txid = first.sealed.last_txid
            gone.append(kept.pop(0))
        ledgers, objects = self._waiting(gone, kept)
        doomed = tuple(copy.ledger_id for copy in self.copies if copy.end_offset <= trim)
        return replace(
            self,
            trim_offset=trim,
            trimmed_txid=last_txid,
            segments=tuple(kept),
            copies=tuple(copy for copy in self.copies if copy.end_offset > trim),
            deleting=(*ledgers, *doomed),
            deleting_objects=objects,
        )

    def _waiting(
        self, gone: Sequence[Segment], kept: Sequence[Segment]
    ) -> tuple[tuple[LedgerId, ...], tuple[StoredObject, ...]]:
        """Return what waits to be deleted once *kept* alone are listed, *gone* not any more.

        An object that holds one of *kept* too stays."""
        objects = {s.location.object.name: s.location.object for s in gone if s.location.object}
        listed = {stored.name for stored in _objects_of(kept)} if objects else set()
        return (
            (*self.deleting, *(s.ledger_id for s in gone if s.location.on_bookies)),
            (*self.deleting_objects, *(objects[name] for name in objects if name not in listed)),
        )

    def retained_from(self, now_ms: int, *, processed: int | None = None) -> int:
        """Return the offset below which the retention settings keep nothing.

        *processed*: what lies below it, every consumer has processed; None: not known. Counts
        only if the settings say that retention waits for consumers."""
        settings = self.settings
        trim = self.trim_offset
        if settings.retention_waits_for_consumers and processed is None:
            return trim
        if not (settings.retention_age_s or settings.retention_bytes):
            return trim
        held = self.sealed_bytes
        for run in self.living_runs:
            held -= run.bytes
            if not self._gives_up(now_ms, run.aged_ms, held):
                return trim
            if settings.retention_waits_for_consumers and run.end_offset > (processed or 0):
                return trim
            trim = max(trim, run.end_offset)
        for index, segment in enumerate(self.segments):
            end = segment.end_offset
            if segment.sealed is None or end is None:
                break
            held -= segment.sealed.bytes
            newest_ms = self.newest_ms(index, segment.sealed, now_ms)
            # Nobody misses an empty one; by a wrong clock it may be younger than those behind it.
            if segment.sealed.records and not self._gives_up(now_ms, newest_ms, held):
                break
            if settings.retention_waits_for_consumers and end > (processed or 0):
                break
            trim = max(trim, end)
        return trim

    def _gives_up(self, now_ms: int, newest_ms: int, held: int) -> bool:
        """Whether retention gives up what ends at *newest_ms* and has *held* bytes behind it."""
        settings = self.settings
        age_s = (now_ms - newest_ms) / 1000
        too_old = bool(settings.retention_age_s) and age_s > settings.retention_age_s
        return too_old or (bool(settings.retention_bytes) and held >= settings.retention_bytes)

    def newest_ms(self, index: int, sealed: Sealed, now_ms: int) -> int:
        """Return when the last record of sealed segment *index* was written, for its age.

        Applications choose the times of records, so theirs counts only within what is known of the
        segment: it was created, and the next one after it, or now. Else a record in the wrong unit
        would delete all behind it, or keep it permanently."""
        created_ms = self.segments[index].created_ms
        is_last = index + 1 == len(self.segments)
        ended_ms = now_ms if is_last else self.segments[index + 1].created_ms
        return max(created_ms, min(sealed.last_timestamp_ms, ended_ms))

    def with_objects(self, parts: Mapping[int, StoredObject]) -> Self:
        """Return the manifest with segments, which are sealed, in objects as well, by number."""
        return self._moved({n: Location(object=stored) for n, stored in parts.items()})

    def with_copies(self, copies: Iterable[LocalCopy]) -> Self:
        """Return the manifest with *copies* and no others; the ledgers of the rest are to go."""
        kept = tuple(sorted(copies, key=lambda copy: copy.number))
        ledgers = {copy.ledger_id for copy in kept}
        gone = (c.ledger_id for c in self.copies if c.ledger_id not in ledgers)
        return replace(self, copies=kept, deleting=(*self.deleting, *gone))

    def bytes_behind(self) -> list[int]:
        """Return for each listed segment how many payload bytes are sealed behind it."""
        sizes = [segment.sealed.bytes if segment.sealed else 0 for segment in self.segments]
        total = sum(sizes)
        return [total - done for done in accumulate(sizes)]

    def without_ledger(self, number: int) -> Self:
        """Return the manifest with segment *number* in its object alone: its ledger is to go."""
        segment = self.find(number)
        assert segment is not None, "the segment is listed"
        location = replace(segment.location, on_bookies=False)
        return self._moved({number: location}, segment.ledger_id)

    def _moved(self, locations: Mapping[int, Location], *gone: LedgerId) -> Self:
        segments = (
            replace(segment, location=locations.get(segment.number, segment.location))
            for segment in self.segments
        )
        return replace(self, segments=tuple(segments), deleting=(*self.deleting, *gone))

    def deleted(self, ledgers: Iterable[LedgerId], objects: Iterable[StoredObject] = ()) -> Self:
        """Return the manifest without *ledgers* and *objects* in its lists: they are gone."""
        gone, gone_objects = frozenset(ledgers), frozenset(objects)
        return replace(
            self,
            deleting=tuple(x for x in self.deleting if x not in gone),
            deleting_objects=tuple(x for x in self.deleting_objects if x not in gone_objects),
        )

    def dropping(self) -> Self:
        """Return the manifest of a log that is being deleted: its ledgers and objects are to go."""
        ledgers, objects = self._waiting(self.segments, ())
        return replace(
            self,
            dropped=True,
            trim_offset=max(self.trim_offset, self.sealed_end),
            segments=(),
            copies=(),
            deleting=(*ledgers, *(copy.ledger_id for copy in self.copies)),
            deleting_objects=objects,
        )

    @property
    def size_bytes(self) -> int:
        """Of the node's value."""
        return len(self._value())

    @property
    def full_percent(self) -> int:
        """How much of the room for segments is taken; at 100 it gets no more."""
        return 100 * self.size_bytes // FULL_BYTES

    def check_room(self, log: str) -> None:
        """Raise `ManifestTooLarge` unless it may get another segment."""
        size = self.size_bytes
        if size >= FULL_BYTES:
            raise ManifestTooLarge(log, size, FULL_BYTES, len(self.segments))

    def encode(self, log: str) -> bytes:
        """Return the node's value. Raises `ManifestTooLarge`."""
        value = self._value()
        if len(value) > VALUE_BYTES_MAX:
            raise ManifestTooLarge(log, len(value), VALUE_BYTES_MAX, len(self.segments))
        return value

    def _version(self) -> int:
        """Return the oldest version whose programs drop nothing of this."""
        if self.settings.archive or self.has_objects or self.owners:
            return FORMAT_VERSION
        if self.settings.encrypt_with:
            return ENCRYPTED_VERSION
        return RECEIPTS_VERSION if self.receipts.each else PLAIN_VERSION

    def _value(self) -> bytes:
        segments = self.segments
        seals = [segment.sealed for segment in segments if segment.sealed]
        node = pb.ManifestNode(
            version=self._version(),
            incarnation=self.incarnation,
            next_segment=self.next_segment,
            first_offset=segments[0].first_offset or 0 if segments else 0,
            trim_offset=self.trim_offset,
            trimmed_txid=None if self.trimmed_txid == NO_TXID else self.trimmed_txid,
            sealed=self.sealed,
            dropped=self.dropped,
            renames=self.renames,
            epoch=self.epoch,
            owner=self.owner,
            gateway=self.gateway,
            receipts=(
                pb.ReceiptNode(origin=receipt.origin, number=receipt.number)
                for receipt in self.receipts
            ),
            settings=_encode_settings(self.settings),
            deleting=self.deleting,
            numbers=_differences(s.number for s in segments),
            ledgers=_differences(s.ledger_id for s in segments),
            created_ms=_differences(s.created_ms for s in segments),
            last_entry=(s.last_entry for s in seals),
            records=(s.records for s in seals),
            bytes=(s.bytes for s in seals),
            first_txid=(s.first_txid for s in seals),
            last_txid=(s.last_txid for s in seals),
            first_timestamp_ms=_differences(s.first_timestamp_ms for s in seals),
            last_timestamp_ms=_differences(s.last_timestamp_ms for s in seals),
            elsewhere=_encode_locations(segments),
            deleting_objects=map(_encode_object, self.deleting_objects),
            owners=self.owners,
            runs=_encode_runs(self.runs),
            copies=(
                pb.LocalCopyNode(
                    number=copy.number,
                    ledger=copy.ledger_id,
                    end_offset=copy.end_offset,
                    until_ms=copy.until_ms,
                )
                for copy in self.copies
            ),
            copy_round=self.copy_round,
        )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Return what *value*, read at *path*, says. Raises `DamagedMetadata`."""
        try:
            node = pb.ManifestNode.FromString(value)
        except DecodeError as error:
            raise DamagedMetadata(path, str(error)) from error
        if not PLAIN_VERSION <= node.version <= FORMAT_VERSION:
            raise DamagedMetadata(
                path, f"format version {node.version}, this program knows {FORMAT_VERSION}"
            )
        settings = node.settings
        if node.version < FORMAT_VERSION and any(
            (
                node.elsewhere,
                node.deleting_objects,
                settings.archive,
                node.owners,
                node.runs,
                node.copies,
            )
        ):
            raise DamagedMetadata(path, f"format version {node.version} has no objects")
        storage = f"{settings.archive}/{node.incarnation}" if settings.archive else ""
        # The last segment's number is the epoch or above it.
        epoch = node.epoch if node.HasField("epoch") else sum(node.numbers)
        try:
            return cls(
                incarnation=node.incarnation,
                settings=_decode_settings(node.settings),
                segments=tuple(_decode_segments(node, storage)),
                next_segment=node.next_segment,
                trim_offset=node.trim_offset,
                trimmed_txid=node.trimmed_txid if node.HasField("trimmed_txid") else NO_TXID,
                deleting=tuple(LedgerId(x) for x in node.deleting),
                deleting_objects=tuple(_decode_object(x, storage) for x in node.deleting_objects),
                sealed=node.sealed,
                dropped=node.dropped,
                renames=node.renames,
                epoch=epoch,
                owner=node.owner,
                gateway=node.gateway,
                receipts=Receipts(tuple(Receipt(x.origin, x.number) for x in node.receipts)),
                owners=tuple(node.owners),
                runs=_decode_runs(node.runs, storage),
                copies=tuple(
                    LocalCopy(x.number, LedgerId(x.ledger), x.end_offset, x.until_ms)
                    for x in node.copies
                ),
                copy_round=node.copy_round,
            )
        except (AssertionError, ValueError, CallerError, DecodeError) as error:
            raise DamagedMetadata(path, str(error)) from error


def _differences(values: Iterable[int]) -> Iterator[int]:
    before = 0
    for value in values:
        yield _int64(value - before)
        before = value


def _sums(differences: Iterable[int]) -> Iterator[int]:
    return (_int64(total) for total in accumulate(differences))


def _int64(value: int) -> int:
    """Return *value* modulo 2**64, as an int64: two times of older programs may be so far apart
    that their difference is none."""
    return (value + 2**63) % 2**64 - 2**63


def _decode_segments(node: pb.ManifestNode, storage: str) -> Iterator[Segment]:
    seals: list[Sealed | None] = [
        Sealed(EntryId(last_entry), *columns)
        for last_entry, *columns in zip(
            node.last_entry,
            node.records,
            node.bytes,
            node.first_txid,
            node.last_txid,
            _sums(node.first_timestamp_ms),
            _sums(node.last_timestamp_ms),
            strict=True,
        )
    ]
    seals += [None] * (len(node.numbers) - len(seals))
    elsewhere = {
        x.number: Location(on_bookies=x.on_bookies, object=_decode_object(x.object, storage))
        for x in node.elsewhere
    }
    assert len(elsewhere) == len(node.elsewhere), "a segment has one location"
    first: int | None = node.first_offset
    for number, ledger_id, created_ms, sealed in zip(
        accumulate(node.numbers),
        accumulate(node.ledgers),
        accumulate(node.created_ms),
        seals,
        strict=True,
    ):
        location = elsewhere.pop(number, ON_BOOKIES)
        segment = Segment(number, LedgerId(ledger_id), created_ms, first, sealed, location)
        yield segment
        first = segment.end_offset
    assert not elsewhere, "a location is of a segment that is listed"


def _objects_of(segments: Iterable[Segment]) -> frozenset[StoredObject]:
    return frozenset(s.location.object for s in segments if s.location.object)


def _encode_locations(segments: Iterable[Segment]) -> Iterator[pb.LocationNode]:
    for segment in segments:
        location = segment.location
        if location.object is not None:
            yield pb.LocationNode(
                number=segment.number,
                on_bookies=location.on_bookies,
                object=_encode_object(location.object),
            )


def _encode_object(stored: StoredObject) -> pb.ObjectNode:
    return pb.ObjectNode(name=stored.name, bytes=stored.bytes, start=stored.start)


def _decode_object(node: pb.ObjectNode, storage: str) -> StoredObject:
    return StoredObject(node.name, node.bytes, storage, node.start)


class _StoredRuns(tuple[SegmentRun, ...]):
    """Runs as they were read, with their bytes: a million segments have 489, which take 3 ms to
    encode. A manifest that is made of another one has the same."""

    encoded: bytes


def _encode_runs(runs: tuple[SegmentRun, ...]) -> bytes:
    if isinstance(runs, _StoredRuns):
        return runs.encoded
    nodes = pb.RunList(runs=map(_encode_run, runs))
    return nodes.SerializeToString(deterministic=True)


@lru_cache(maxsize=RUNS_KEPT)
def _decode_runs(value: bytes, storage: str) -> tuple[SegmentRun, ...]:
    runs = _StoredRuns(_decode_run(node, storage) for node in pb.RunList.FromString(value).runs)
    runs.encoded = value
    return runs


def _encode_run(run: SegmentRun) -> pb.RunNode:
    return pb.RunNode(
        index=_encode_object(run.index),
        first_number=run.first_number,
        last_number=run.last_number,
        segments=run.segments,
        first_offset=run.first_offset,
        records=run.records,
        bytes=run.bytes,
        last_txid=run.last_txid,
        newest_ms=run.newest_ms,
        aged_ms=run.aged_ms,
        deleted_to=run.deleted_to,
    )


def _decode_run(node: pb.RunNode, storage: str) -> SegmentRun:
    return SegmentRun(
        index=_decode_object(node.index, storage),
        first_number=node.first_number,
        last_number=node.last_number,
        segments=node.segments,
        first_offset=node.first_offset,
        records=node.records,
        bytes=node.bytes,
        last_txid=node.last_txid,
        newest_ms=node.newest_ms,
        aged_ms=node.aged_ms,
        deleted_to=node.deleted_to,
    )


def _encode_settings(settings: LogSettings) -> pb.SettingsNode:
    return pb.SettingsNode(
        ensemble=settings.quorum.ensemble,
        write_quorum=settings.quorum.write,
        ack_quorum=settings.quorum.ack,
        digest=settings.digest,
        codec=settings.codec,
        codec_level=settings.codec_level,
        encrypt_with=settings.encrypt_with,
        record_bytes_max=settings.record_bytes_max,
        roll_bytes=settings.roll_bytes,
        roll_age_ms=round(settings.roll_age_s * 1000),
        roll_records=settings.roll_records,
        retention_bytes=settings.retention_bytes,
        retention_age_ms=round(settings.retention_age_s * 1000),
        roll_idle_ms=round(settings.roll_idle_s * 1000),
        retention_waits_for_consumers=settings.retention_waits_for_consumers,
        no_degraded_writes=not settings.degraded_writes,
        archive=settings.archive,
        archive_after_ms=round(settings.archive_after_s * 1000),
        local_keep_ms=round(settings.local_keep_s * 1000),
        archive_after_bytes=settings.archive_after_bytes,
        local_keep_bytes=settings.local_keep_bytes,
        archive_table=settings.archive_table,
    )


def _decode_settings(node: pb.SettingsNode) -> LogSettings:
    return LogSettings(
        quorum=Quorum(node.ensemble, node.write_quorum, node.ack_quorum),
        digest=Digest(node.digest),
        codec=Codec(node.codec),
        codec_level=node.codec_level,
        encrypt_with=node.encrypt_with,
        record_bytes_max=node.record_bytes_max,
        roll_bytes=node.roll_bytes,
        roll_age_s=node.roll_age_ms / 1000,
        roll_records=node.roll_records,
        retention_bytes=node.retention_bytes,
        retention_age_s=node.retention_age_ms / 1000,
        roll_idle_s=node.roll_idle_ms / 1000,
        retention_waits_for_consumers=node.retention_waits_for_consumers,
        degraded_writes=not node.no_degraded_writes,
        archive=node.archive,
        archive_after_s=node.archive_after_ms / 1000,
        local_keep_s=node.local_keep_ms / 1000,
        archive_after_bytes=node.archive_after_bytes,
        local_keep_bytes=node.local_keep_bytes,
        archive_table=node.archive_table,
    )
