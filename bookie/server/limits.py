"""Limits of what clients may take of a bookie: connections, descriptors, bytes and time.

Connections come from unauthenticated clients, and each takes a descriptor; a checkpoint that finds
none left ends the bookie. So both have a share of their own, and what is beyond a share is never
opened.
"""

import resource
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from bookie.errors import InvalidSetting, TooFewDescriptors

LIMIT_MAX: Final = 65_536
"""More are not asked for: some systems allow a billion."""
CONNECTIONS_MAX: Final = 16_384
CONNECTIONS_MIN: Final = 32
FILES_MIN: Final = 16
_OTHERS: Final = 160
"""A flush has 64 files in use beside those kept open; the rest is for threads that read, the
metadata store, connections that are being refused, and what libraries open."""
_OTHERS_PER_DIRECTORY: Final = 8
_CACHES: Final = 2
"""Index files and entry logs are kept open apart."""
_SECONDS_MAX: Final = 3600.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Descriptors:
    connections_max: int
    files_open_max: int
    """Of index files, and of entry logs."""


def share_out(limit: int, *, directories: int, files_open_max: int) -> Descriptors:
    """Return the shares of *limit* descriptors: at most half of what is free goes to files.

    *directories*: how many places for journals and ledgers there are, together.
    *files_open_max*: more files are not wanted. Raises `TooFewDescriptors`."""
    others = _OTHERS + _OTHERS_PER_DIRECTORY * directories
    needed = others + CONNECTIONS_MIN + 2 * _CACHES * FILES_MIN
    if limit < needed:
        raise TooFewDescriptors(limit, needed)
    files = min(files_open_max, (limit - others) // (2 * _CACHES))
    return Descriptors(min(CONNECTIONS_MAX, limit - others - _CACHES * files), files)


def descriptor_limit() -> int:
    """Return how many descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Allow this process as many as the system lets it have, up to `LIMIT_MAX`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Raises `InvalidSetting` for what no bookie could serve with."""

    connections_max: int = CONNECTIONS_MAX
    """Of all clients; fewer where the system allows fewer descriptors."""
    connections_per_address_max: int = 512
    """From one IPv4 address, or one /64 of IPv6. A process of ours has two."""
    pending_handshakes_max: int = 256
    """Connections that have not said what they want. One more ends the oldest of them, or is
    refused if its own address has a quarter of them."""
    handshake_s_max: float = 5.0
    """So long a handshake may take; TLS has as long again for itself."""
    questions_per_client_max: int = 4096
    """Reads, and waits for entries, that one connection may have open; more are to be asked again
    later."""
    slow_s_max: float = 30.0
    """Within this time a client takes 1 MiB of what is due to it, or all of it."""

    def __post_init__(self) -> None:
        for name in (
            "connections_max",
            "connections_per_address_max",
            "pending_handshakes_max",
            "questions_per_client_max",
        ):
            if (count := getattr(self, name)) < 1:
                raise InvalidSetting(name, count, "give a number from 1 on")
        for name in ("handshake_s_max", "slow_s_max"):
            if not 0 < (seconds := getattr(self, name)) <= _SECONDS_MAX:
                reason = f"give a time of at most {_SECONDS_MAX:g} s, and not 0"
                raise InvalidSetting(name, seconds, reason)

    @property
    def pending_per_address_max(self) -> int:
        return max(1, self.pending_handshakes_max // 4)


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


class RejectReason(StrEnum):
    """Why a connection was refused or closed; a label of metrics."""

    FULL = "full"
    ADDRESS = "address"
    PENDING = "pending"
    """Too many had not completed their handshake."""
    WRITERS = "writers"
    UNKNOWN = "unknown"
    """It has not shown who it is, or meant another bookie."""
    HANDSHAKE = "handshake"
    EXPIRED = "expired"
    SLOW = "slow"
    IDLE = "idle"
    STALLED = "stalled"
    """In the middle of a message."""
    INVALID = "invalid"


class ConnectionSlots(Generic[T]):
    """Which connections there may be, as far as that is a matter of numbers. Pure.

    Invariants:
        at most `connections_max` in all, and `connections_per_address_max` from one source
        at most `pending_handshakes_max` that have not said what they want, a quarter of them from
            one source: clients of one address cannot keep out those of others

    *T* is a connection.
    """

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self._sources: dict[T, str] = {}
        self._of_source: Counter[str] = Counter()
        self._pending: dict[T, None] = {}
        """The oldest first."""
        self._pending_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def pending_handshakes(self) -> int:
        return len(self._pending)

    def take(self, one: T, source: str) -> tuple[RejectReason, str] | None:
        """Give *one* a place until its handshake is done; or return why there is none for it."""
        limits = self.limits
        if len(self) >= limits.connections_max:
            return RejectReason.FULL, f"there are {limits.connections_max} already"
        if self._of_source[source] >= limits.connections_per_address_max:
            many = limits.connections_per_address_max
            return RejectReason.ADDRESS, f"there are {many} from its address already"
        if self._pending_of[source] >= limits.pending_per_address_max:
            many = limits.pending_per_address_max
            return RejectReason.ADDRESS, f"{many} from its address have not said yet what they want"
        self._sources[one] = source
        self._of_source[source] += 1
        self._pending[one] = None
        self._pending_of[source] += 1
        return None

    def surplus(self) -> T | None:
        """Return the connection without a handshake that has to make room, or None: end it."""
        if len(self._pending) <= self.limits.pending_handshakes_max:
            return None
        return next(iter(self._pending))

    def know(self, one: T) -> None:
        """Record that the handshake of *one* is done. Idempotent."""
        if one in self._pending:
            del self._pending[one]
            _less(self._pending_of, self._sources[one])

    def leave(self, one: T) -> None:
        """Free the place of *one*, if it has one."""
        self.know(one)
        source = self._sources.pop(one, None)
        if source is not None:
            _less(self._of_source, source)


def _less(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if not counts[source]:
        del counts[source]
