"""Which ledgers can never become part of a log (again), as their stamps prove.

A ledger is stamped when it is made: with the log, the log's incarnation and the segment number
it is meant for. It becomes part of the log by one compare-and-swap of the manifest, which
raises the next segment number above its own. Story of why nothing else is ever needed:

    (A) next number above the stamp's, and the ledger not listed: either another ledger got that
        number, or this one was listed once, and was trimmed or left for an object in object
        storage, which it never comes back from. A number is never used twice.
    (B) the log is sealed or being deleted: no segment is added any more.
    (C) no log has the incarnation: it was deleted. An incarnation is random and never made twice.

A ledger that a sink's task stages for a unit (`dlog.aio.write.sink`) has no number yet. It carries
the epoch of the sink and the unit's receipt, and becomes part of the log by one compare-and-swap
that demands this epoch, and that the unit was not committed:

    (D) the epoch is above the stamp's, or the unit was committed, and the ledger is not listed:
        another attempt was taken, or none ever will be. Epochs never fall, nor do receipts.

A local copy of an archived segment (`dlog.protocol.archive`) has no number either. It carries the
round it was made in, and is listed by one compare-and-swap that demands this round:

    (E) the round is above the stamp's, and the ledger not listed: it was not listed in time, or was
        let go, or its segment was trimmed. Rounds never fall.

(A), (B), (D), (E) hold for any reading of the manifest, however old: they never become false again.
(C) rests on no list alone. It needs a reading of all manifests that are listed, begun after the
ledger was there: the log is there before its first ledger is. Then, by itself, a read of the log
that the stamp names, and of its newest name if it was renamed, and no rename since the beginning:
at any time a log has one of these names (`dlog.protocol.manifest_steps`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self, assert_never

from dlog.manifest import Manifest
from dlog.receipts import Receipt
from ledger.ids import LedgerId
from ledger.ledger_owner import STAMP_INCARNATION as STAMP_INCARNATION  # noqa: PLC0414 - with the rest
from ledger.ledger_owner import STAMP_LOG as STAMP_LOG  # noqa: PLC0414

STAMP_SEGMENT: Final = "dlog.segment"
STAMP_EPOCH: Final = "dlog.epoch"
STAMP_OWNER: Final = "dlog.owner"
"""Who made the ledger, for people."""
STAMP_ORIGIN: Final = "dlog.origin"
STAMP_UNIT: Final = "dlog.unit"
STAMP_COPY_ROUND: Final = "dlog.copy_round"
STAMP_COPIED: Final = "dlog.copied"
"""Whose entries a local copy has (`dlog.archive.object_format.encode_segment`)."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Whose ledger it is, and what for. *log* is the name when it was made."""

    log: str
    incarnation: str
    segment: int

    @classmethod
    def of(cls, custom: Mapping[str, bytes]) -> Self | None:
        """Return the stamp in a ledger's custom metadata; None: it is no ledger of a log."""
        try:
            log = custom[STAMP_LOG].decode()
            incarnation = custom[STAMP_INCARNATION].decode()
            segment = int(custom[STAMP_SEGMENT])
        except (KeyError, ValueError):
            return None
        return cls(log, incarnation, segment) if incarnation and segment > 0 else None

    @property
    def purpose(self) -> str:
        return f"segment {self.segment}"


@dataclass(frozen=True, slots=True)
class StagedFor:
    """Whose ledger it is that was staged, in which epoch, and for which unit."""

    log: str
    incarnation: str
    epoch: int
    receipt: Receipt

    @classmethod
    def of(cls, custom: Mapping[str, bytes]) -> Self | None:
        """Return the stamp in a ledger's custom metadata; None: it was not staged."""
        try:
            log = custom[STAMP_LOG].decode()
            incarnation = custom[STAMP_INCARNATION].decode()
            epoch = int(custom[STAMP_EPOCH])
            receipt = Receipt(custom[STAMP_ORIGIN], int(custom[STAMP_UNIT]))
        except (KeyError, ValueError):
            return None
        return cls(log, incarnation, epoch, receipt) if incarnation and epoch > 0 else None

    @property
    def purpose(self) -> str:
        return f"staged in epoch {self.epoch} for {self.receipt}"

    def custom(self) -> dict[str, bytes]:
        """Return the custom metadata that say so."""
        return {
            STAMP_LOG: self.log.encode(),
            STAMP_INCARNATION: self.incarnation.encode(),
            STAMP_EPOCH: str(self.epoch).encode(),
            STAMP_ORIGIN: self.receipt.origin,
            STAMP_UNIT: str(self.receipt.number).encode(),
        }


@dataclass(frozen=True, slots=True)
class CopyFor:
    """Whose ledger it is that was made as a local copy, and in which round."""

    log: str
    incarnation: str
    copy_round: int

    @classmethod
    def of(cls, custom: Mapping[str, bytes]) -> Self | None:
        """Return the stamp in a ledger's custom metadata; None: it is no local copy."""
        try:
            log = custom[STAMP_LOG].decode()
            incarnation = custom[STAMP_INCARNATION].decode()
            copy_round = int(custom[STAMP_COPY_ROUND])
        except (KeyError, ValueError):
            return None
        return cls(log, incarnation, copy_round) if incarnation and copy_round > 0 else None

    @property
    def purpose(self) -> str:
        return f"a local copy of an archived segment, of round {self.copy_round}"

    def custom(self) -> dict[str, bytes]:
        """Return the custom metadata that say so."""
        return {
            STAMP_LOG: self.log.encode(),
            STAMP_INCARNATION: self.incarnation.encode(),
            STAMP_COPY_ROUND: str(self.copy_round).encode(),
        }


AnyStamp = Stamp | StagedFor | CopyFor


def stamp_of(custom: Mapping[str, bytes]) -> AnyStamp | None:
    """Return what a ledger's custom metadata say; None: it is no ledger of a log."""
    return Stamp.of(custom) or StagedFor.of(custom) or CopyFor.of(custom)


class OrphanKind(Enum):
    """What a stamped ledger is to the log whose incarnation it carries."""

    SEGMENT = "part of the log"
    WAITING = "listed for deletion"
    PENDING = "not listed yet; it may become a segment"
    UNLISTED = "its segment was trimmed or has left the bookies, or another ledger has its number"
    DISCARDED = "staged for a unit that was committed without it, or by a sink that was deposed"
    UNUSED_COPY = "a local copy that was let go, or was never listed"
    ENDED = "never listed, and the log is sealed or being deleted"
    LOG_GONE = "its log was deleted"

    @property
    def is_orphan(self) -> bool:
        """True iff it can never become part of a log again, and nobody will delete it."""
        match self:
            case (
                OrphanKind.UNLISTED
                | OrphanKind.DISCARDED
                | OrphanKind.UNUSED_COPY
                | OrphanKind.ENDED
                | OrphanKind.LOG_GONE
            ):
                return True
            case OrphanKind.SEGMENT | OrphanKind.WAITING | OrphanKind.PENDING:
                return False
            case _:
                assert_never(self)


def standing(ledger_id: LedgerId, stamp: AnyStamp, manifest: Manifest | None) -> OrphanKind:
    """Return what the ledger is. *manifest* has the stamp's incarnation; None: no log has it."""
    if manifest is None:
        return OrphanKind.LOG_GONE
    assert manifest.incarnation == stamp.incarnation, "the manifest of another log"
    if ledger_id in manifest.listed_ledgers:
        return OrphanKind.SEGMENT  # one that has left the bookies for an object never comes back
    if ledger_id in manifest.deleting:
        return OrphanKind.WAITING
    if isinstance(stamp, CopyFor):
        current = stamp.copy_round == manifest.copy_round and not manifest.dropped
        return OrphanKind.PENDING if current else OrphanKind.UNUSED_COPY
    if isinstance(stamp, Stamp):
        if stamp.segment < manifest.next_segment:
            return OrphanKind.UNLISTED
    elif stamp.epoch < manifest.epoch or manifest.receipts.has(stamp.receipt):
        return OrphanKind.DISCARDED
    return OrphanKind.ENDED if manifest.sealed or manifest.dropped else OrphanKind.PENDING
