"""How a sealed segment moves to object storage, and its ledger goes.

    archive    copy the ledger to an object that no other attempt has, read it back, list it: the
               segment is in both, by one compare-and-swap
    release    read the object back again, let the segment leave the bookies by another one, which
               lists the ledger for deletion; delete the ledger

A crash leaves the ledger, or both. Story of why an object that no manifest lists can be judged by
one look: (A) an object names its segment. It becomes the segment's by a swap that demands that the
segment is listed and has no object. (B) Numbers of segments are never used twice. So once a
manifest, however old, was seen without the segment, or with another object in it, this one is
listed by no later manifest. (C) A list of objects may be stale: what it lacks is found by a later
one, and what it names in excess is deleted once more, which does nothing.

An object whose segment is listed and has none yet belongs to an attempt that may still succeed.
"""

from dataclasses import dataclass
from typing import Final

from dlog.errors import DamagedObject, ObjectLost
from dlog.manifest import Manifest, StoredObject
from dlog.protocol.actions import CopyToObject, DeleteObject, ListObjects, VerifyObject
from dlog.protocol.edits import add_object, check_incarnation, check_living, leave_bookies
from dlog.protocol.manifest_steps import ManifestSteps, delete_listed
from ledger.errors import NoSuchLedger
from ledger.protocol.procedure import Steps

TOKEN_BYTES: Final = 4
"""Random, in the name of each attempt's object."""


def object_name(number: int, token: str) -> str:
    """Return the name of the object of an attempt to archive segment *number*."""
    return f"{number}-{token}"


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What the settings of a log ask for now, by the numbers of segments, oldest first."""

    archive: tuple[int, ...]
    release: tuple[int, ...]
    """Of those that are in an object and on bookies; what is archived now may follow."""


def plan_archive(manifest: Manifest, now_ms: int, *, at_once: bool = False) -> ArchivePlan:
    """Return what is due. *at_once*: all sealed segments are archived, however young."""
    settings = manifest.settings
    archive, release = list[int](), list[int]()
    for index, segment in enumerate(manifest.segments):
        if segment.sealed is None or not settings.archive:
            break
        age_s = (now_ms - manifest.newest_ms(index, segment.sealed, now_ms)) / 1000
        if segment.location.object is None:
            if at_once or age_s >= settings.archive_after_s:
                archive.append(segment.number)
        elif segment.location.on_bookies and age_s >= settings.local_keep_s:
            release.append(segment.number)
    return ArchivePlan(tuple(archive), tuple(release))


def archive_segment(
    node: ManifestSteps, number: int, *, incarnation: str, token: str
) -> Steps[StoredObject | None]:
    """Archive segment *number*; return its object, or None if there was nothing to do: it is
    archived or trimmed, or another attempt was faster.

    *token*: random, of this attempt. Raises `NoSuchLog`, `ManifestTooLarge`, and what bookies and
    storage raise: then it may be tried again, with another token."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    segment = manifest.find(number)
    if segment is None or segment.sealed is None or segment.location.object is not None:
        return None
    manifest.check_room(node.log)
    name = object_name(number, token)
    try:
        stored = yield from CopyToObject(segment, manifest.storage, name)
    except NoSuchLedger:
        yield from DeleteObject(manifest.storage, name)
        now, _ = yield from node.read()
        if segment in now.segments:
            raise
        return None
    except (DamagedObject, ObjectLost):
        yield from DeleteObject(manifest.storage, name)
        raise
    now = yield from node.edit(add_object(node.log, number, stored, incarnation=incarnation))
    listed = now.find(number)
    if listed is not None and listed.location.object == stored:
        return stored
    yield from DeleteObject(manifest.storage, name)  # see (A) and (B)
    return None


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


def is_orphan(manifest: Manifest, name: str) -> bool:
    """Whether the object *name* in the log's folder is, for certain, of no use to it: see (A), (B).

    What does not look like an object of dlog is none."""
    digits, dash, token = name.partition("-")
    if not (digits.isdecimal() and dash and token and int(digits) < manifest.next_segment):
        return False
    if any(stored.name == name for stored in manifest.deleting_objects):
        return False  # it is deleted with those
    segment = manifest.find(int(digits))
    if segment is None:
        return True
    stored_there = segment.location.object
    return stored_there is not None and stored_there.name != name


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
    orphans = [name for name in names if is_orphan(manifest, name)]
    if delete:
        for name in orphans:
            yield from DeleteObject(manifest.storage, name)
    return orphans


def delete_all_objects(manifest: Manifest) -> Steps[None]:
    """Delete what a log that is being deleted has in its folder: no object is listed any more.

    An upload that ends afterwards leaves an object that nobody looks for."""
    assert manifest.dropped, "the log is being deleted"
    if manifest.storage:
        for name in (yield from ListObjects(manifest.storage)):
            yield from DeleteObject(manifest.storage, name)
