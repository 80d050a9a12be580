"""What the procedures of logs ask for: actions of the metadata store, and of ledgers."""

from collections.abc import Mapping
from dataclasses import dataclass

from dlog.manifest import Sealed, Segment, StoredObject
from dlog.settings import LogSettings
from ledger.ids import LedgerId
from ledger.metastore.ops import Op, Versioned
from ledger.protocol.procedure import Action


@dataclass(frozen=True, slots=True)
class Sync(Action[None]):
    """Wait until reads of *path* see every write that was finished by now."""

    path: str


@dataclass(frozen=True, slots=True)
class Get(Action[Versioned]):
    """Raises `NoSuchNode`."""

    path: str


@dataclass(frozen=True, slots=True)
class Exists(Action[int | None]):
    """Answer: the node's version; None: there is none."""

    path: str


@dataclass(frozen=True, slots=True)
class Children(Action[list[str]]):
    """Answer: names, sorted. Raises `NoSuchNode`."""

    path: str


@dataclass(frozen=True, slots=True)
class Create(Action[None]):
    """Create an empty node, and its parents if they are missing. Raises `NodeExists`."""

    path: str


@dataclass(frozen=True, slots=True)
class Delete(Action[None]):
    """Delete a node whatever its version is. Raises `NoSuchNode`."""

    path: str


@dataclass(frozen=True, slots=True)
class Transact(Action[None]):
    """Do all of *ops* or none. Raises the error of the first one that cannot be done."""

    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Fence(Action[None]):
    """Recover a ledger, so that nobody adds to it any more. Raises `NoSuchLedger`, and what
    recovery raises."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class RecoverSegment(Action[Sealed]):
    """Fence, recover and close the ledger, then report its end. *last_txid* is the last txid
    before this segment. Raises `NoSuchLedger`, `DamagedLog`, and what recovery raises."""

    ledger_id: LedgerId
    last_txid: int


@dataclass(frozen=True, slots=True)
class CopyToObject(Action[tuple[StoredObject, ...]]):
    """Write the ledgers of sealed segments to a new object, one after the other, then read that
    back, all of it: the answer is what holds each of them for certain. *name* is of this attempt
    alone. Raises `NoSuchLedger`, `DamagedObject`, `ObjectLost`, and what bookies and storage
    raise: there may be an object then, or not."""

    segments: tuple[Segment, ...]
    storage: str
    name: str


@dataclass(frozen=True, slots=True)
class CopyToLedger(Action[LedgerId]):
    """Write the entries of *segment*, which is in an object, to a new ledger, close it and read it
    back, all of it. *custom* says whose it is; the segment's own custom metadata go along. Raises
    `ObjectLost`, `DamagedObject`, and what bookies and storage raise: there may be a ledger then,
    or not."""

    segment: Segment
    settings: LogSettings
    custom: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class VerifyObject(Action[None]):
    """Read the whole object of *segment*. Raises `ObjectLost`, `DamagedObject`, and what the
    storage raises."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class DeleteObject(Action[None]):
    """No error if there is none. Raises what the storage raises."""

    storage: str
    name: str


@dataclass(frozen=True, slots=True)
class ListObjects(Action[list[str]]):
    """Answer: the names of the objects in a log's folder; the newest ones may be missing. Raises
    what the storage raises."""

    storage: str


@dataclass(frozen=True, slots=True)
class DeleteLedger(Action[None]):
    """Raises `NoSuchLedger`."""

    ledger_id: LedgerId
