"""How a sealed segment moves to object storage, and its ledger goes.

    archive    copy the ledger to an object that no other attempt has, read it back, list it: the
               segment is in both, by one compare-and-swap
    release    read the object back again, let the segment leave the bookies by another one, which
               lists the ledger for deletion; delete the ledger
    restore    copy the entries to another ledger, close it and read it back, list it beside the
               object by one swap, for some time: a local copy

A crash leaves the ledger, or both; or a local copy that is not listed, which its stamp proves
(`dlog.protocol.orphans`). A copy is never the only place: the object stays, with all that is proven
of it, and whoever does not find the ledger of a copy reads the object.

Story of why an object that no manifest lists can be judged by
one look: (A) an object names its segments, the first and the last. It becomes that of each of them
which is listed and has no object, by one swap. (B) Numbers of segments are never used twice. So
once a manifest, however old, was seen without them, or with other objects in them, this one is
listed by no later manifest. (C) A list of objects may be stale: what it lacks is found by a later
one, and what it names in excess is deleted once more, which does nothing.

An object whose segment is listed and has none yet belongs to an attempt that may still succeed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dlog.errors import CopiesSuperseded, DamagedObject, ManifestTooLarge, NoSuchLog, ObjectLost
from dlog.manifest import LocalCopy, Manifest, Segment, SegmentRun, StoredObject
from dlog.protocol.actions import (
    CopyToLedger,
    CopyToObject,
    DeleteLedger,
    DeleteObject,
    ListObjects,
    VerifyObject,
)
from dlog.protocol.edits import (
    add_copy,
    add_objects,
    check_incarnation,
    check_living,
    leave_bookies,
)
from dlog.protocol.manifest_steps import ManifestSteps, delete_listed
from dlog.protocol.object_owner import DeleteOwner, ReadOwner, hold_objects
from dlog.protocol.orphans import CopyFor
from dlog.protocol.segment_index import LISTED_MAX, ReadIndex, is_orphan_index
from dlog.protocol.table import delete_table, table_storage
from ledger.errors import NoSuchLedger
from ledger.ids import LedgerId
from ledger.protocol.procedure import Steps

TOKEN_BYTES: Final = 4
"""Random, in the name of each attempt's object."""
SMALL_BYTES: Final = 1 << 20
"""Segments of at most as many payload bytes share an object with their neighbors."""
MERGED_BYTES: Final = 8 << 20
"""Of segments that share an object, together."""
MERGED_MAX: Final = 64
COPIES_MAX: Final = 1024
"""Local copies of a log at any time: their lines are in its manifest."""
assert MERGED_MAX <= LISTED_MAX, "segments that share an object find room in one run"


def object_name(numbers: Sequence[int], token: str) -> str:
    """Return the name of the object of an attempt to archive the segments *numbers*."""
    first, last = numbers[0], numbers[-1]
    return f"{first}-{token}" if first == last else f"{first}-{last}-{token}"


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What the settings of a log ask for now, by the numbers of segments, oldest first."""

    archive: tuple[tuple[int, ...], ...]
    """Those that go to one object, together."""
    release: tuple[int, ...]
    """Of those that are in an object and on bookies; what is archived now may follow."""

    @property
    def segments(self) -> int:
        """How many are to be archived."""
        return sum(map(len, self.archive))


def plan_archive(manifest: Manifest, now_ms: int, *, at_once: bool = False) -> ArchivePlan:
    """Return what is due. *at_once*: all sealed segments are archived, however young."""
    settings = manifest.settings
    archive, release = list[Segment](), list[int]()
    behind = manifest.bytes_behind()
    for index, segment in enumerate(manifest.segments):
        if segment.sealed is None or not settings.archive:
            break
        age_s = (now_ms - manifest.newest_ms(index, segment.sealed, now_ms)) / 1000
        if segment.location.object is None:
            after = settings.archive_after_s, settings.archive_after_bytes
            if at_once or _is_due(age_s, behind[index], *after):
                archive.append(segment)
        elif segment.location.on_bookies and _is_due(
            age_s, behind[index], settings.local_keep_s, settings.local_keep_bytes
        ):
            release.append(segment.number)
    return ArchivePlan(_groups(archive), tuple(release))


def _is_due(age_s: float, behind: int, after_s: float, after_bytes: int) -> bool:
    """Whether a segment of this age, with *behind* bytes behind it, is beyond one of the limits
    that are set; if none is, it is due at once."""
    too_old = age_s >= after_s and (after_s > 0 or not after_bytes)
    return too_old or 0 < after_bytes <= behind


def _groups(segments: Sequence[Segment]) -> tuple[tuple[int, ...], ...]:
    """Return which of the segments, in order, go to one object: small ones that are neighbors."""
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        assert segment.sealed is not None, "only sealed segments are archived"
        last = groups[-1] if groups else []
        size += segment.sealed.bytes
        joins = (
            bool(last)
            and last[-1].number + 1 == segment.number
            and _is_small(last[-1])
            and _is_small(segment)
            and size <= MERGED_BYTES
            and len(last) < MERGED_MAX
        )
        if joins:
            last.append(segment)
        else:
            groups.append([segment])
            size = segment.sealed.bytes
    return tuple(tuple(each.number for each in group) for group in groups)


def _is_small(segment: Segment) -> bool:
    return segment.sealed is not None and segment.sealed.bytes <= SMALL_BYTES


def archive_segments(
    node: ManifestSteps, numbers: Sequence[int], *, incarnation: str, token: str
) -> Steps[tuple[StoredObject, ...]]:
    """Archive the segments *numbers* in one object; return the parts of it that hold a segment
    now: none if the segments were archived or trimmed, or another attempt was faster.

    *token*: random, of this attempt. Raises `NoSuchLog`, `ManifestTooLarge`, and what bookies and
    storage raise: then it may be tried again, with another token."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    found = (manifest.find(number) for number in numbers)
    segments = tuple(s for s in found if s and s.sealed and s.location.object is None)
    if not segments:
        return ()
    manifest.check_room(node.log)
    numbers = [segment.number for segment in segments]
    name = object_name(numbers, token)
    try:
        parts = yield from CopyToObject(segments, manifest.storage, name)
    except NoSuchLedger:
        yield from DeleteObject(manifest.storage, name)
        now, _ = yield from node.read()
        if set(segments) <= set(now.segments):
            raise
        return ()
    except (DamagedObject, ObjectLost):
        yield from DeleteObject(manifest.storage, name)
        raise
    wanted = dict(zip(numbers, parts, strict=True))
    now = yield from node.edit(add_objects(node.log, wanted, incarnation=incarnation))
    listed = {s.number: s.location.object for s in now.segments}
    there = tuple(part for number, part in wanted.items() if listed.get(number) == part)
    if not there:
        yield from DeleteObject(manifest.storage, name)  # see (A) and (B)
    return there


def release_segment(node: ManifestSteps, number: int, *, incarnation: str) -> Steps[bool]:
    """Let segment *number* leave the bookies; return False if it is not in both places.

    Raises `NoSuchLog`, `ObjectLost`, `DamagedObject`, and what bookies and storage raise: the
    ledger is there then, or listed for deletion."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    segment = manifest.find(number)
    if segment is None or not segment.location.on_bookies or segment.location.object is None:
        return False
    yield from VerifyObject(segment)
    stored = segment.location.object
    now = yield from node.edit(leave_bookies(node.log, number, stored, incarnation=incarnation))
    yield from delete_listed(node, now)
    return True


def copy_segment(
    node: ManifestSteps, segment: Segment, *, incarnation: str, copy_round: int, until_ms: int
) -> Steps[LocalCopy | None]:
    """Bring the entries of *segment*, which is in an object alone, back to bookies until
    *until_ms*; return None if it was trimmed meanwhile.

    *copy_round*: of `begin_copies`. Raises `NoSuchLog`, `CopiesSuperseded`, `ManifestTooLarge`, and
    what bookies and storage raise: then it may be tried again."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    if manifest.copy_round != copy_round:
        raise CopiesSuperseded(node.log)
    assert segment.end_offset is not None, "what is in an object is sealed"
    stamp = CopyFor(node.log, incarnation, copy_round)
    ledger_id = yield from CopyToLedger(segment, manifest.settings, stamp.custom())
    copy = LocalCopy(segment.number, ledger_id, segment.end_offset, until_ms)
    edit = add_copy(node.log, copy, incarnation=incarnation, copy_round=copy_round)
    try:
        now = yield from node.edit(edit)
    except (NoSuchLog, ManifestTooLarge):
        yield from _delete_ledger(ledger_id)
        raise
    if ledger_id in now.listed_ledgers:
        return copy
    yield from _delete_ledger(ledger_id)  # it is never listed any more: see `edits`
    if now.copy_round != copy_round:
        raise CopiesSuperseded(node.log)
    return None


def _delete_ledger(ledger_id: LedgerId) -> Steps[None]:
    with suppress(NoSuchLedger):
        yield from DeleteLedger(ledger_id)


def orphan_objects(node: ManifestSteps, *, incarnation: str, delete: bool) -> Steps[list[str]]:
    """Return the names of the objects that earlier attempts left; *delete* them. Raises
    `NoSuchLog`, and what the storage raises."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    if not manifest.storage:
        return []
    names = yield from ListObjects(manifest.storage)
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    orphans = [name for name in names if is_orphan_index(manifest, name)]
    doubtful = (name for name in names if is_orphan(manifest, name))
    firsts = [run.first_number for run in manifest.runs]
    lasts = [run.last_number for run in manifest.runs]
    known: dict[str, frozenset[str]] = {}
    for name in sorted(doubtful, key=lambda name: numbers_of(name)[0]):
        numbers = numbers_of(name)
        runs = manifest.runs[bisect_left(lasts, numbers[0]) : bisect_right(firsts, numbers[-1])]
        with suppress(ObjectLost, DamagedObject):  # then nothing is known of it
            if not (yield from _is_indexed(node, runs, name, known)):
                orphans.append(name)
    if delete and orphans:
        yield from hold_objects(node, incarnation)
        for name in orphans:
            yield from DeleteObject(manifest.storage, name)
    return orphans


def _is_indexed(
    node: ManifestSteps,
    runs: Sequence[SegmentRun],
    name: str,
    known: dict[str, frozenset[str]],
) -> Steps[bool]:
    """Return whether the object *name* holds a segment of *runs*. *known*: the objects of the runs
    that were read last, by index, so that each is read once for names in order."""
    for run in runs:
        if run.index.name not in known:
            segments = yield from ReadIndex(node.log, run)
            if len(known) > 1:
                known.clear()
            objects = (s.location.object.name for s in segments if s.location.object)
            known[run.index.name] = frozenset(objects)
        if name in known[run.index.name]:
            return True
    return False


def numbers_of(name: str) -> range:
    """Return the segments that the object *name* was written for; none: it is no object of dlog."""
    match name.split("-"):
        case [first, token] if first.isdecimal() and token:
            return range(int(first), int(first) + 1)
        case [first, last, token] if first.isdecimal() and last.isdecimal() and token:
            return range(int(first), int(last) + 1)
        case _:
            return range(0)


def is_orphan(manifest: Manifest, name: str) -> bool:
    """Whether the object *name* in the log's folder is, for certain, of no use to the segments that
    are listed: see (A), (B). Those in runs have objects of which their indexes tell.

    What does not look like an object of dlog is none."""
    numbers = numbers_of(name)
    if not numbers or numbers[-1] >= manifest.next_segment:
        return False
    if any(stored.name == name for stored in manifest.deleting_objects):
        return False  # it is deleted with those
    objects = [s.location.object for s in manifest.segments if s.number in numbers]
    return all(stored is not None and stored.name != name for stored in objects)


def delete_all_objects(node: ManifestSteps, manifest: Manifest) -> Steps[None]:
    """Delete what a log that is being deleted has in its folder: no object is listed any more.

    The mark of the owner goes last. Where there is none nothing is deleted: a deletion had come to
    its end, or nothing was ever archived. An upload that ends afterwards leaves an object that
    nobody looks for. Raises `ObjectsOwnedElsewhere`, and what the storage raises."""
    assert manifest.dropped, "the log is being deleted"
    if not manifest.storage or (yield from ReadOwner(manifest.storage)) is None:
        return
    yield from hold_objects(node, manifest.incarnation)
    yield from delete_table(table_storage(manifest))
    for name in (yield from ListObjects(manifest.storage)):
        yield from DeleteObject(manifest.storage, name)
    yield from DeleteOwner(manifest.storage)
