"""Which gateway leads which log: the live one with the highest rendezvous hash.

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
from hashlib import blake2b
from typing import Final

from dlog.protocol.gateway_record import GatewayRecord

LEADERS_KNOWN_MAX: Final = 100_000
"""Logs whose leader a view remembers; then it computes them again."""


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
