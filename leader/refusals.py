"""What it says when the port of a candidate refuses: that its process is gone, or nothing.

A port that refuses shows that a living host took our question and that nobody listens there.
Whether it is the *right* host is another matter: 127.0.0.1 is every machine's, and private
addresses are given twice. So a refusal counts

- for certain, where the candidate wrote that it listens in the very network stack we ask from;
- for certain, at a host where a candidate of that stack once proved itself by its secret;
- once, at any other host but a loopback one. If that was wrong, a living leader has lost an
  election to an address that misleads; it cannot happen twice from here, so nobody takes turns
  in deposing one another.

Nothing rests on it but how long an election takes: fencing decides who can write.

Pure: no clock, no I/O.
"""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Protocol, Self

STACKS_MAX: Final = 256


class LifelineNode(Protocol):
    """A message of the metadata store that names a lifeline: a candidate's, a gateway's."""

    lifeline_host: str
    lifeline_port: int
    lifeline_secret: bytes
    lifeline_network: str
    lifeline_tls: bool


@dataclass(frozen=True, slots=True)
class LifelineAddress:
    """Where a candidate's lifeline is, and what it says to prove that it is the one."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    network: str = ""
    """Names the network stack it listens in, this boot of this machine; empty if unknown."""
    tls: bool = False
    """Whether it takes TLS only; else it takes plain connections only."""

    @classmethod
    def of_node(cls, node: LifelineNode) -> Self | None:
        """Return the lifeline that *node* names; None if it names none."""
        if not node.lifeline_port:
            return None
        return cls(
            node.lifeline_host,
            node.lifeline_port,
            node.lifeline_secret,
            node.lifeline_network,
            node.lifeline_tls,
        )

    def write_to(self, node: LifelineNode) -> None:
        node.lifeline_host = self.host
        node.lifeline_port = self.port
        node.lifeline_secret = self.secret
        node.lifeline_network = self.network
        node.lifeline_tls = self.tls


class Refusals:
    """Remembers at which hosts a refusal may be believed; one for each process."""

    def __init__(self) -> None:
        self._certain: dict[tuple[str, str], bool] = {}
        """Host and stack, the oldest first: whether it was proven, else it was presumed once."""

    def __len__(self) -> int:
        return len(self._certain)

    def proven(self, address: LifelineAddress) -> None:
        """Take note that *address* led to the process that wrote it."""
        self._note(address, certain=True)

    def is_death(self, address: LifelineAddress, *, here: str) -> bool:
        """Return whether the refusal of *address* shall count as the death of its process.

        *here* names the network stack that asked."""
        if not address.network:
            return False  # of an older version, or of a system that has no names for stacks
        if address.network == here:
            return True
        if _is_loopback(address.host):
            return False
        certain = self._certain.get((address.host, address.network))
        if certain is None:
            self._note(address, certain=False)
            return True
        return certain

    def _note(self, address: LifelineAddress, *, certain: bool) -> None:
        key = (address.host, address.network)
        self._certain.pop(key, None)
        self._certain[key] = certain
        if len(self._certain) > STACKS_MAX:
            self._certain.pop(next(iter(self._certain)))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
