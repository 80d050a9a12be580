"""The record of a gateway for Kafka's clients in the metadata store.

    /kafka/gateways/<sequence>     ephemeral, written by the gateway; its sequence is its node id

`dlog.kafka` runs gateways. The record is here because a takeover looks whether one leads the log.

Pure.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from dlog.wire import gateway_pb2 as pb
from leader.refusals import LifelineAddress
from ledger.nodes import parse_node

FORMAT_VERSION: Final = 1
GATEWAYS_PATH: Final = "/kafka/gateways"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRecord:
    """A gateway as it registered itself."""

    node_id: int
    """As Kafka's clients know it; another one after each registration."""
    host: str
    port: int
    since_ms: int = 0
    process: str = ""
    """host:pid."""
    lifeline: LifelineAddress | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def encode(self) -> bytes:
        node = pb.GatewayNode(
            version=FORMAT_VERSION,
            host=self.host,
            port=self.port,
            since_ms=self.since_ms,
            process=self.process,
        )
        if self.lifeline is not None:
            self.lifeline.write_to(node)
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Return what *value*, read at *path*, says. Raises `DamagedMetadata`."""
        node = pb.GatewayNode()
        parse_node(node, value, path, version=FORMAT_VERSION)
        lifeline = LifelineAddress.of_node(node)
        return cls(
            node_id=node_id_of(path),
            host=node.host,
            port=node.port,
            since_ms=node.since_ms,
            process=node.process,
            lifeline=lifeline,
        )


def node_id_of(path: str) -> int:
    """Return the node id of the gateway that registered at *path*, or under this name."""
    return int(path.rpartition("/")[2])
