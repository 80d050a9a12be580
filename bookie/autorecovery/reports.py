"""How the checks that read metadata only ended: written down for the next auditor, and for people.

/underreplicated/placementcheckctime    `PlacementRecord`
/underreplicated/replicascheckctime     `ReplicasRecord`
"""

from dataclasses import dataclass
from typing import Final, Self

from bookie.autorecovery.marks import FORMAT_VERSION, parse_node
from ledger.errors import NoSuchNode
from ledger.marking import put_node
from ledger.metastore.port import MetadataStore
from ledger.wire import metadata_pb2 as pb

LAST_PLACEMENT: Final = "/underreplicated/placementcheckctime"
LAST_REPLICAS: Final = "/underreplicated/replicascheckctime"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRecord:
    at_ms: int
    ledgers: int
    misplaced: int
    """Ledgers with a settled fragment that another ensemble would spread over more racks; they are
    marked."""

    async def write(self, store: MetadataStore) -> None:
        """Raises `MetadataUnavailable`."""
        node = pb.PlacementNode(
            version=FORMAT_VERSION,
            at_ms=self.at_ms,
            ledgers=self.ledgers,
            misplaced=self.misplaced,
        )
        await put_node(store, LAST_PLACEMENT, node.SerializeToString(deterministic=True))

    @classmethod
    async def last(cls, store: MetadataStore) -> Self | None:
        """Return what the last check wrote, None if there was none. Raises `DamagedMetadata`."""
        try:
            value = (await store.get(LAST_PLACEMENT)).value
        except NoSuchNode:
            return None
        node = pb.PlacementNode()
        parse_node(node, value, LAST_PLACEMENT)
        return cls(at_ms=node.at_ms, ledgers=node.ledgers, misplaced=node.misplaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasRecord:
    at_ms: int
    ledgers: int
    away: int
    """Ledgers with entries on a bookie that was away, also within its delay."""
    urgent: int
    """Ledgers with entries for which fewer than Qa bookies were there."""

    async def write(self, store: MetadataStore) -> None:
        """Raises `MetadataUnavailable`."""
        node = pb.ReplicasNode(
            version=FORMAT_VERSION,
            at_ms=self.at_ms,
            ledgers=self.ledgers,
            away=self.away,
            urgent=self.urgent,
        )
        await put_node(store, LAST_REPLICAS, node.SerializeToString(deterministic=True))

    @classmethod
    async def last(cls, store: MetadataStore) -> Self | None:
        """Return what the last check wrote, None if there was none. Raises `DamagedMetadata`."""
        try:
            value = (await store.get(LAST_REPLICAS)).value
        except NoSuchNode:
            return None
        node = pb.ReplicasNode()
        parse_node(node, value, LAST_REPLICAS)
        return cls(at_ms=node.at_ms, ledgers=node.ledgers, away=node.away, urgent=node.urgent)
