"""The trace of one record: who wrote it, what each bookie has of it, who has passed it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dlog.manifest import Manifest, Segment
from dlog.protocol.orphans import STAMP_EPOCH, STAMP_OWNER
from ledger.entry import Header, ReplicaFault, judge_replicas
from ledger.ids import BookieId
from ledger.metadata import LedgerMetadata
from ledger.protocol.answers import Found
from ledger.quorum import write_set
from ledger.requests import Status

_SILENT: Final = (Status.UNREACHABLE, Status.TOO_MANY_REQUESTS)


@dataclass(frozen=True, slots=True)
class WrittenBy:
    epoch: int | None
    """None: not known, a program wrote it that did not say."""
    owner: str
    """Empty: not known."""


def written_by(manifest: Manifest, segment: Segment, custom: Mapping[str, bytes]) -> WrittenBy:
    """Return who wrote *segment*, going by what its ledger's metadata say, else by the manifest."""
    try:
        epoch: int | None = int(custom[STAMP_EPOCH])
    except (KeyError, ValueError):
        epoch = manifest.epoch if 0 < manifest.epoch <= segment.number else None
    owner = custom.get(STAMP_OWNER, b"").decode(errors="replace")
    if not owner and epoch is not None and epoch == manifest.epoch:
        owner = manifest.owner
    return WrittenBy(epoch, owner)


def holders_of(metadata: LedgerMetadata, entry_id: int) -> tuple[BookieId, ...]:
    """Return the bookies that should have the entry, in the order of its write set."""
    bookies = metadata.fragment_of(entry_id).bookies
    return tuple(bookies[index] for index in write_set(entry_id, metadata.quorum))


def judged(
    entry_id: int, holders: Sequence[BookieId], found: Mapping[BookieId, Found]
) -> dict[BookieId, ReplicaFault | None]:
    """Return what is wrong with the copy of each of *holders*; None: it is right."""
    headers: dict[BookieId, Header] = {
        bookie: found[bookie].headers[entry_id]
        for bookie in holders
        if entry_id in found[bookie].headers
    }
    _, others = judge_replicas(entry_id, holders, headers)
    return {
        bookie: ReplicaFault.DIFFERENT if bookie in others else _fault(found[bookie], entry_id)
        for bookie in holders
    }


def _fault(found: Found, entry_id: int) -> ReplicaFault | None:
    if entry_id in found.headers:
        return None
    if found.damaged == entry_id:
        return ReplicaFault.DAMAGED
    if found.status in _SILENT:
        return ReplicaFault.UNREACHABLE
    if found.status is Status.NO_SUCH_LEDGER:
        return ReplicaFault.MISSING
    if found.status is Status.OK and found.considered >= entry_id:
        return ReplicaFault.MISSING
    if found.status in {Status.OK, Status.IO_ERROR}:
        return ReplicaFault.UNREADABLE
    return ReplicaFault.REFUSED
