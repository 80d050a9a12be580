"""Which connections there may be, as far as that is a matter of numbers. Pure.

Invariants:
    at most `connections_max` in all, and `connections_per_address_max` from one source
    at most `strangers_max` that have not said what they want, a quarter of them from one source:
        strangers of one address cannot keep out those of others
"""

from collections import Counter
from enum import StrEnum
from typing import Generic, TypeVar

from bookie.server.limits import ClientLimits

T = TypeVar("T")


class Why(StrEnum):
    """Why a client was not let in, or was shown out; a label of metrics."""

    FULL = "full"
    ADDRESS = "address"
    STRANGERS = "strangers"
    WRITERS = "writers"
    UNKNOWN = "unknown"
    """It has not shown who it is, or meant another bookie."""
    HANDSHAKE = "handshake"
    EXPIRED = "expired"
    SLOW = "slow"
    IDLE = "idle"
    STALLED = "stalled"
    """In the middle of a message."""
    NONSENSE = "nonsense"


class Places(Generic[T]):
    """See the module's docstring. *T* is a connection."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self._sources: dict[T, str] = {}
        self._of_source: Counter[str] = Counter()
        self._strangers: dict[T, None] = {}
        """The oldest first."""
        self._strangers_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    def take(self, one: T, source: str) -> tuple[Why, str] | None:
        """Give *one* a place as a stranger; or return why there is none for it."""
        limits = self.limits
        if len(self) >= limits.connections_max:
            return Why.FULL, f"there are {limits.connections_max} already"
        if self._of_source[source] >= limits.connections_per_address_max:
            many = limits.connections_per_address_max
            return Why.ADDRESS, f"there are {many} from its address already"
        if self._strangers_of[source] >= limits.strangers_per_address_max:
            many = limits.strangers_per_address_max
            return Why.ADDRESS, f"{many} from its address have not said yet what they want"
        self._sources[one] = source
        self._of_source[source] += 1
        self._strangers[one] = None
        self._strangers_of[source] += 1
        return None

    def surplus(self) -> T | None:
        """Return the stranger that has to make room for others, or None: end it."""
        if len(self._strangers) <= self.limits.strangers_max:
            return None
        return next(iter(self._strangers))

    def know(self, one: T) -> None:
        """Take note that *one* is no stranger any more. Idempotent."""
        if one in self._strangers:
            del self._strangers[one]
            _less(self._strangers_of, self._sources[one])

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
