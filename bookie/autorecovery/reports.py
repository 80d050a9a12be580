"""How the passes and checks of auditors ended: written down for the next auditor, and for people.

/underreplicated/bookiecheckctime       `Audit`
/underreplicated/checkallledgersctime   `CheckRecord`
/underreplicated/placementcheckctime    `PlacementRecord`
/underreplicated/replicascheckctime     `ReplicasRecord`
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from bookie.autorecovery.marks import FORMAT_VERSION
from ledger.errors import NoSuchNode
from ledger.ids import BookieId
from ledger.metastore.nodes import put_node
from ledger.metastore.port import MetadataStore
from ledger.nodes import parse_node
from ledger.wire import metadata_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class _Report:
    """One node; the fields are those of its message."""

    path: ClassVar[str]
    message: ClassVar[type[Any]]
    at_ms: int

    async def write(self, store: MetadataStore) -> None:
        """Raises `MetadataUnavailable`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        node = self.message(version=FORMAT_VERSION, **values)
        await put_node(store, self.path, node.SerializeToString(deterministic=True))

    @classmethod
    async def last(cls, store: MetadataStore) -> Self | None:
        """Return what was written last, None if nothing was.

        Raises `MetadataUnavailable`, `DamagedMetadata`."""
        try:
            value = (await store.get(cls.path)).value
        except NoSuchNode:
            return None
        node = cls.message()
        parse_node(node, value, cls.path, version=FORMAT_VERSION)
        return cls(**{each.name: _plain(getattr(node, each.name)) for each in fields(cls)})


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else tuple(value)


@dataclass(frozen=True, kw_only=True)
class Audit(_Report):
    """A pass over all ledgers."""

    path = "/underreplicated/bookiecheckctime"
    message = pb.AuditNode
    ledgers: int
    marked: int
    damaged: int
    """Ledgers whose metadata could not be read."""
    lost: tuple[BookieId, ...]
    """Bookies that had been away for longer than the delay."""
    alarm: str
    """Why nothing was marked; empty if nothing is wrong."""
    auditor: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckRecord(_Report):
    """A check of all ledgers."""

    path = "/underreplicated/checkallledgersctime"
    message = pb.CheckNode
    ledgers: int
    lacking: int
    unsure: int
    unreadable: int
    bytes: int = 0
    """Payload of CLOSED ledgers, each copy counted."""


@dataclass(frozen=True, kw_only=True)
class PlacementRecord(_Report):
    path = "/underreplicated/placementcheckctime"
    message = pb.PlacementNode
    ledgers: int
    misplaced: int
    """Ledgers with a settled fragment that another ensemble would spread over more racks; they are
    marked."""


@dataclass(frozen=True, kw_only=True)
class ReplicasRecord(_Report):
    path = "/underreplicated/replicascheckctime"
    message = pb.ReplicasNode
    ledgers: int
    away: int
    """Ledgers with entries on a bookie that was away, also within its delay."""
    urgent: int
    """Ledgers with entries for which fewer than Qa bookies were there."""
    unknown: int = 0
    """Ledgers with entries on a bookie that no cookie speaks of; they are marked."""
