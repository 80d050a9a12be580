"""Runs of archived segments: their lines move to an index object, so that manifests stay small.

    index    write the lines of the oldest segments that are in objects alone, with those of the
             last run while that is short, to an object that no other attempt has; read it back;
             swap: the run takes their place, the index of the run before waits for deletion
    sweep    of a run that is trimmed, whole or in part, delete the objects below the trim point,
             then note how far; once it is trimmed whole, let the run go and its index wait for
             deletion

Story of why the swap loses no segment: it demands that the segments are listed just as they were
read, and that the run which it extends is still the last one. What is in an object alone does not
change but by a truncation, which such a swap then finds.

Story of why an index that no manifest names can be judged: its name says which segment is the last
in it. A swap demands that this one is listed, and numbers are never used twice. So once the first
segment that is listed has a higher number, no attempt with this index succeeds any more.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dlog.errors import DamagedObject, ObjectLost
from dlog.manifest import Manifest, Segment, SegmentRun, StoredObject
from dlog.protocol.actions import DeleteObject
from dlog.protocol.edits import Edit, check_incarnation, check_living
from dlog.protocol.object_owner import hold_objects
from ledger.protocol.procedure import Action, Steps

if TYPE_CHECKING:
    from dlog.protocol.manifest_steps import ManifestSteps

LISTED_MAX: Final = 256
"""As many archived segments may be listed; then they go to a run."""
RUN_SEGMENTS: Final = 2048
"""A run is extended until it has as many: its index then has about 180 KB."""
INDEX: Final = "index"
"""Begins the name of an index; that of an object with segments begins with a number."""


@dataclass(frozen=True, slots=True)
class ReadIndex(Action[tuple[Segment, ...]]):
    """Answer: the segments of *run*. Raises `ObjectLost`, `DamagedObject`, and what the storage
    raises."""

    log: str
    run: SegmentRun


@dataclass(frozen=True, slots=True)
class WriteIndex(Action[StoredObject]):
    """Write an index of *segments* and read it back. Raises as `CopyToObject`."""

    manifest: Manifest
    log: str
    name: str
    segments: tuple[Segment, ...]


def index_name(segments: Sequence[Segment], token: str) -> str:
    """Return the name of the index of an attempt."""
    return f"{INDEX}-{segments[0].number}-{segments[-1].number}-{token}"


def is_orphan_index(manifest: Manifest, name: str) -> bool:
    """Whether the index *name* is, for certain, of no use to the log."""
    word, *numbers = name.split("-")
    if word != INDEX or len(numbers) != 3 or not numbers[1].isdecimal():
        return False
    named = (*(run.index for run in manifest.runs), *manifest.deleting_objects)
    if any(stored.name == name for stored in named) or not manifest.segments:
        return False
    return int(numbers[1]) < manifest.segments[0].number


def due_for_index(manifest: Manifest) -> tuple[Segment, ...]:
    """Return the segments that are to go to a run now, oldest first; none: it is not time yet.

    The last one that is listed stays, and so do all that share an object with one that stays."""
    count = 0
    for segment in manifest.segments[:-1]:
        if segment.location.on_bookies:
            break
        count += 1
    if count < LISTED_MAX:
        return ()
    run = extended_by(manifest)
    count = min(count, RUN_SEGMENTS - (run.segments if run else 0))
    stays = manifest.segments[count].location.object
    while count and stays is not None:
        stored = manifest.segments[count - 1].location.object
        if stored is None or stored.name != stays.name:
            break
        count -= 1
    return manifest.segments[:count]


def extended_by(manifest: Manifest) -> SegmentRun | None:
    """Return the run that the next segments are added to; None: they get a run of their own."""
    last = manifest.living_runs[-1:]
    return last[0] if last and last[0].segments + LISTED_MAX <= RUN_SEGMENTS else None


def index_segments(node: "ManifestSteps", *, incarnation: str, token: str) -> Steps[int]:
    """Move the lines of archived segments to a run, if it is time; return how many.

    *token*: random, of this attempt. Requires `hold_objects`. Raises `NoSuchLog`, and what the
    storage raises: then it may be tried again, with another token."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    due = due_for_index(manifest)
    if not due:
        return 0
    run = extended_by(manifest)
    segments = due if run is None else (*(yield from ReadIndex(node.log, run)), *due)
    name = index_name(segments, token)
    try:
        index = yield from WriteIndex(manifest, node.log, name, segments)
    except (DamagedObject, ObjectLost):
        yield from DeleteObject(manifest.storage, name)
        raise
    longer = run_of(manifest, segments, index, run)
    now = yield from node.edit(add_run(node.log, longer, due, run, incarnation=incarnation))
    if longer.index not in {each.index for each in now.runs}:
        yield from DeleteObject(manifest.storage, name)
        return 0
    return len(due)


def run_of(
    manifest: Manifest,
    segments: Sequence[Segment],
    index: StoredObject,
    before: SegmentRun | None,
) -> SegmentRun:
    """Return the run of *segments*, the last of which are the first that *manifest* lists; *before*
    has the others."""
    first, last = segments[0], segments[-1]
    assert first.first_offset is not None, "it is known of sealed segments"
    assert last.sealed is not None, "only sealed segments are archived"
    seals = [segment.sealed for segment in segments if segment.sealed]
    at = next(i for i, each in enumerate(manifest.segments) if each.number == last.number)
    aged = [
        manifest.newest_ms(i, each.sealed, each.sealed.last_timestamp_ms)
        for i, each in enumerate(manifest.segments[: at + 1])
        if each.sealed
    ]
    return SegmentRun(
        index=index,
        first_number=first.number,
        last_number=last.number,
        segments=len(segments),
        first_offset=first.first_offset,
        records=sum(sealed.records for sealed in seals),
        bytes=sum(sealed.bytes for sealed in seals),
        last_txid=last.sealed.last_txid,
        newest_ms=max(sealed.last_timestamp_ms for sealed in seals),
        aged_ms=max([*aged, *([before.aged_ms] if before else [])]),
        deleted_to=before.deleted_to if before else 0,
    )


def add_run(
    log: str,
    run: SegmentRun,
    due: Sequence[Segment],
    before: SegmentRun | None,
    *,
    incarnation: str,
) -> Edit:
    """Let *run* take the place of *due*, which are listed first, and of the run *before*.

    Nothing is done if these are not what the manifest has: the index is then never listed.
    Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        is_last = before is None or manifest.runs[-1:] == (before,)
        if not is_last or manifest.segments[: len(due)] != tuple(due):
            return manifest
        kept = manifest.runs[:-1] if before else manifest.runs
        old = (before.index,) if before else ()
        return replace(
            manifest,
            runs=(*kept, run),
            segments=manifest.segments[len(due) :],
            deleting_objects=(*manifest.deleting_objects, *old),
        )

    return edit


def sweep_runs(node: "ManifestSteps", manifest: Manifest) -> Steps[Manifest]:
    """Delete the objects that runs hold below the trim point; return the manifest then.

    An index that is lost or damaged does not name them: they stay until the run is trimmed whole,
    and are orphans then. Raises `ObjectsOwnedElsewhere`, and what the storage raises."""
    held = False
    while manifest.runs:
        run, trim = manifest.runs[0], manifest.trim_offset
        if run.first_offset >= trim or run.deleted_to >= trim:
            break
        segments: tuple[Segment, ...] = ()
        with suppress(ObjectLost, DamagedObject):
            segments = yield from ReadIndex(node.log, run)
        doomed = list(doomed_objects(segments, run, trim))
        if not doomed and run.end_offset > trim:
            break
        if not held:
            yield from hold_objects(node, manifest.incarnation)
            held = True
        for stored, _ in doomed:
            yield from DeleteObject(manifest.storage, stored.name)
        end = run.end_offset if run.end_offset <= trim else doomed[-1][1]
        manifest = yield from node.edit(swept(node.log, run, end, incarnation=manifest.incarnation))
    return manifest


def doomed_objects(
    segments: Sequence[Segment], run: SegmentRun, trim: int
) -> Iterator[tuple[StoredObject, int]]:
    """Yield the objects that end at *trim* or before, with their ends, and were not deleted yet."""
    for at, segment in enumerate(segments):
        stored, end = segment.location.object, segment.end_offset
        assert stored is not None, "an index lists what is in an object alone"
        assert end is not None, "and is sealed"
        if end > trim:
            return
        later = segments[at + 1].location.object if at + 1 < len(segments) else None
        if end > run.deleted_to and (later is None or later.name != stored.name):
            yield stored, end


def swept(log: str, run: SegmentRun, end: int, *, incarnation: str) -> Edit:
    """Record that the objects of *run* are gone that end at *end* or before; if that is all of it,
    let it go. Nothing is left to do if it is gone, or was extended: then it is swept once more.
    Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        if not manifest.runs or manifest.runs[0].index != run.index:
            return manifest
        first = manifest.runs[0]
        if end < first.end_offset:
            swept_run = replace(first, deleted_to=max(first.deleted_to, end))
            return replace(manifest, runs=(swept_run, *manifest.runs[1:]))
        return replace(
            manifest,
            runs=manifest.runs[1:],
            trimmed_txid=max(manifest.trimmed_txid, first.last_txid),
            deleting_objects=(*manifest.deleting_objects, first.index),
        )

    return edit
