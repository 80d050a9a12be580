"""Which gateway leads which log: the live one with the highest rendezvous hash.

    /kafka/gateways/<sequence>     ephemeral, written by the gateway; its sequence is its node id

Every gateway, and every client by Metadata, computes the same leader from the same view, so there
is no node for each log and no handover. A hash is of the log and of the address that clients
reach: a gateway that restarts at its address leads the same logs again, and one that comes or goes
moves only logs that it leads itself.

Invariants:
    a view has at most one gateway for an address, the one that registered last
    if a gateway leaves a view, only the logs that it led get another leader
    two views with the same gateways name the same leader for every log

Two gateways may have different views for a while. Both may believe they lead a log: then the one
that takes it over last writes it, as taking over fences the other, whatever its view says.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Self

from dlog.wire import gateway_pb2 as pb
from leader.refusals import LifelineAddress
from ledger.nodes import parse_node

FORMAT_VERSION: Final = 1
GATEWAYS_PATH: Final = "/kafka/gateways"
LEADERS_KNOWN_MAX: Final = 100_000
"""Logs whose leader a view remembers; then it computes them again."""


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
            node.lifeline_host = self.lifeline.host
            node.lifeline_port = self.lifeline.port
            node.lifeline_secret = self.lifeline.secret
            node.lifeline_network = self.lifeline.network
            node.lifeline_tls = self.lifeline.tls
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Return what *value*, read at *path*, says. Raises `DamagedMetadata`."""
        node = pb.GatewayNode()
        parse_node(node, value, path, version=FORMAT_VERSION)
        lifeline = None
        if node.lifeline_port:
            lifeline = LifelineAddress(
                node.lifeline_host,
                node.lifeline_port,
                node.lifeline_secret,
                node.lifeline_network,
                node.lifeline_tls,
            )
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


class GatewayView:
    """The gateways that live, as far as one of them knows."""

    def __init__(self, gateways: Iterable[GatewayRecord] = ()) -> None:
        newest: dict[str, GatewayRecord] = {}
        for gateway in sorted(gateways, key=lambda gateway: gateway.node_id):
            newest[gateway.address] = gateway
        self.gateways = tuple(sorted(newest.values(), key=lambda gateway: gateway.node_id))
        """By node id."""
        self._leaders: dict[str, GatewayRecord] = {}

    def leader_of(self, log: str) -> GatewayRecord | None:
        """Return the gateway that leads *log*; None if there is no gateway."""
        leader = self._leaders.get(log)
        if leader is None and self.gateways:
            leader = max(self.gateways, key=lambda gateway: rendezvous(log, gateway.address))
            if len(self._leaders) >= LEADERS_KNOWN_MAX:
                self._leaders.clear()
            self._leaders[log] = leader
        return leader

    def without(self, node_id: int) -> "GatewayView":
        """Return this view without the gateway *node_id*, which is dead."""
        return GatewayView(each for each in self.gateways if each.node_id != node_id)

    @property
    def controller(self) -> GatewayRecord | None:
        """The gateway that clients send changes of topics to; any of them carries them out."""
        return self.gateways[0] if self.gateways else None


def rendezvous(log: str, address: str) -> int:
    """Return how high *address* stands among the gateways that may lead *log*."""
    digest = blake2b(f"{address}\0{log}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
