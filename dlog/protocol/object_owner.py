"""The owner of a log's objects: the metadata store that may delete them, by a mark beside them.

A namespace can be copied: a backup that is restored elsewhere, a directory that is copied, an older
state that is put back. The copies name the same objects, and each finds in its manifest all that
proves an object to be its own. So a deletion demands more than the manifest: the mark in object
storage carries a token, and it must be one that this manifest has put there, or was about to.

    1. draw a token that nobody else has; compare-and-swap it into the manifest
    2. replace the mark, on condition that it is the one that was read, whose token is in the
       manifest
    3. compare-and-swap the manifest: this token is the present one; then delete

Story of why a copy deletes nothing that the other one needs: (A) each attempt draws its own token,
so what one copy writes in 2 is in no manifest of the other. (B) Once one of them has done 2, the
other finds a token that it does not know, and is refused from then on, for any copy, however old or
young it is. (C) A mark that comes late, after its attempt had failed, replaces only the mark that
the attempt had read; its token is kept in the manifest as long as that one can still be there.

Story of why the first one is not the copy: both may be alike, and then the first to come has the
objects. So the mark names the places of the metadata store, too: a namespace at none of them is
refused. Names prove nothing, so they only refuse. An operator who knows better claims the objects.

Letting a ledger go is such a deletion as well: what is left is an object that others must not
delete.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dlog.errors import ObjectsOwnedElsewhere, ObjectStorageUnavailable
from dlog.manifest import Manifest
from dlog.protocol.edits import Edit, check_incarnation
from ledger.protocol.procedure import Action, Steps

if TYPE_CHECKING:
    from dlog.protocol.manifest_steps import ManifestSteps

UNMARKED: Final = ""
"""The token where there is no mark."""
RACES_MAX: Final = 8
"""How often other processes of the namespace may be faster."""
OWNERS_MAX: Final = 16
"""Tokens that a manifest keeps of attempts whose outcome is not known. The oldest ones go first: if
such a mark came still, an operator would have to claim the objects."""
PLACES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class ObjectOwner:
    """What the mark says."""

    token: str
    places: tuple[str, ...] = field(default=(), compare=False)
    """Where the metadata store was found: host and path of each server, or a directory."""


@dataclass(frozen=True, slots=True)
class DrawOwner(Action[ObjectOwner]):
    """Answer: a mark that nobody has drawn before, with the places of this metadata store."""


@dataclass(frozen=True, slots=True)
class ReadOwner(Action[ObjectOwner | None]):
    """Answer: the mark of a log's folder; None: there is none. Raises what the storage raises, and
    `MalformedObject`."""

    storage: str


@dataclass(frozen=True, slots=True)
class SwapOwner(Action[ObjectOwner | None]):
    """Replace the mark if it is *seen*. Answer: the mark that is there then. Raises what the
    storage raises: then it was replaced, or not, or will be."""

    storage: str
    seen: ObjectOwner | None
    owner: ObjectOwner


@dataclass(frozen=True, slots=True)
class DeleteOwner(Action[None]):
    """Delete the mark; no error if there is none. Raises what the storage raises."""

    storage: str


def hold_objects(node: "ManifestSteps", incarnation: str, *, claim: bool = False) -> Steps[None]:
    """Make sure that no copy of this namespace may delete the log's objects, and that this one may.

    *claim*: take them from whoever has them. Raises `ObjectsOwnedElsewhere`, `NoSuchLog`, and what
    the storage raises; `ObjectStorageUnavailable` also if others were faster very many times."""
    for _ in range(RACES_MAX):
        mark = yield from _read_own(node, incarnation, claim=claim)
        if mark is None:
            continue
        manifest, seen, owner = mark
        edit = try_owner(node.log, incarnation, _token(seen), owner.token, claim=claim)
        if owner.token not in (yield from node.edit(edit)).owners:
            continue
        there = yield from SwapOwner(manifest.storage, seen, owner)
        if there == owner:
            yield from node.edit(settle_owner(node.log, incarnation, owner.token))
            return
    reason = f"others replaced it {RACES_MAX} times; try again"
    raise ObjectStorageUnavailable(
        f"of log {node.log!r}", "replacing the mark of its owner", reason
    )


def _read_own(
    node: "ManifestSteps", incarnation: str, *, claim: bool
) -> Steps[tuple[Manifest, ObjectOwner | None, ObjectOwner] | None]:
    """Return the manifest, the mark there is and the one to replace it by; None: read again."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    seen = yield from ReadOwner(manifest.storage)
    owner = yield from DrawOwner()
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    if seen is None or claim:
        merged = owner.places
    else:
        if set(seen.places).isdisjoint(owner.places):
            raise ObjectsOwnedElsewhere(node.log, manifest.storage, seen.places)
        merged = tuple(sorted({*seen.places, *owner.places}))
        merged = merged if len(merged) <= PLACES_MAX else owner.places
    if not claim and _token(seen) not in known_owners(manifest):
        # A token is in the manifest before it is in the storage, and leaves it after another one
        # has taken its place there, where it never comes back.
        if (yield from ReadOwner(manifest.storage)) == seen:
            places = () if seen is None else seen.places
            raise ObjectsOwnedElsewhere(node.log, manifest.storage, places)
        return None
    return manifest, seen, replace(owner, places=merged)


def known_owners(manifest: Manifest) -> tuple[str, ...]:
    """Return the tokens that may be in the mark if it is this manifest's."""
    return manifest.owners or (UNMARKED,)


def try_owner(log: str, incarnation: str, seen: str, token: str, *, claim: bool) -> Edit:
    """Record that *token* is about to replace *seen*. Nothing is done if *seen* is not known,
    unless to *claim* the objects. Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        owners = known_owners(manifest)
        if token in owners:
            return manifest
        if claim and seen not in owners:
            owners = (seen,)
        if seen not in owners:
            return manifest
        owners = (*owners[owners.index(seen) :], token)
        return replace(manifest, owners=(owners[0], *owners[1:][1 - OWNERS_MAX :]))

    return edit


def settle_owner(log: str, incarnation: str, token: str) -> Edit:
    """Record that the mark has *token*: what was there before never comes back."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        if token not in manifest.owners:
            return manifest
        return replace(manifest, owners=manifest.owners[manifest.owners.index(token) :])

    return edit


def _token(owner: ObjectOwner | None) -> str:
    return UNMARKED if owner is None else owner.token
