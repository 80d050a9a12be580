"""What clients of a bookie may take of it, each and together."""

from dataclasses import dataclass, field
from typing import Final

from bookie.errors import InvalidSetting
from bookie.server.descriptors import CONNECTIONS_MAX

_SECONDS_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Raises `InvalidSetting` for what no bookie could serve with."""

    connections_max: int = CONNECTIONS_MAX
    """Of all clients; fewer where the system allows fewer descriptors."""
    connections_per_address_max: int = 512
    """From one IPv4 address, or one /64 of IPv6. A process of ours has two."""
    strangers_max: int = 256
    """Connections that have not said what they want. One more ends the oldest of them, or is
    refused if its own address has a quarter of them."""
    handshake_s_max: float = 5.0
    """So long a stranger may be one; TLS has as long again for itself."""
    questions_per_client_max: int = 4096
    """Reads, and waits for entries, that one connection may have open; more are to be asked again
    later."""
    slow_s_max: float = 30.0
    """Within this time a client takes 1 MiB of what is due to it, or all of it."""

    def __post_init__(self) -> None:
        for name in (
            "connections_max",
            "connections_per_address_max",
            "strangers_max",
            "questions_per_client_max",
        ):
            if (count := getattr(self, name)) < 1:
                raise InvalidSetting(name, count, "give a number from 1 on")
        for name in ("handshake_s_max", "slow_s_max"):
            if not 0 < (seconds := getattr(self, name)) <= _SECONDS_MAX:
                reason = f"give a time of at most {_SECONDS_MAX:g} s, and not 0"
                raise InvalidSetting(name, seconds, reason)

    @property
    def strangers_per_address_max(self) -> int:
        return max(1, self.strangers_max // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    adds_bytes_max: int = 64 * 1024 * 1024
    """Frames accepted and not durable yet, over all clients; more is TOO_MANY_REQUESTS."""
    recovery_adds_bytes_max: int = 24 * 1024 * 1024
    """The same for recovery adds, apart, so that writers cannot starve recovery. Together, with a
    quarter more for the journal's own bytes, they fit into the space that it takes ahead."""
    disk_reads_max: int = 256
    held_reads_max: int = 16
    """Of those, so many that only list what is held: a check of all ledgers leaves the rest to
    readers."""
    held_ranges_max: int = 8192
    """An answer of these has no more ranges, whatever a query asks for."""
    waiting_reads_max: int = 10_000
    fencing_reads_max: int = 1024
    read_bytes_max: int = 8 * 1024 * 1024
    """Answers are not larger, whatever a query asks for, except for a single larger entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    limits: CoreLimits = field(default_factory=CoreLimits)
    checkpoint_interval_s: float = 10.0
    checkpoint_bytes: int = 64 * 1024 * 1024
    """A checkpoint is due early when so much came in since the last one."""
    read_threads: int = 4
