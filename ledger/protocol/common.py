"""Events and effects that several machines of this package have in common, and their retries.

What a machine asks of its driver beside questions to bookies: the ledger's metadata, bookies
to put in the place of others, and to be called again at its deadline.
"""

from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ledger.ids import BookieId
from ledger.metadata import LedgerMetadata


class Checks:
    """The switch of invariant checks whose cost shows, as they run with each entry. Cheap ones are
    always asserted, and so is all that is checked at rare events."""

    costly = False


CHECKS: Final = Checks()
"""Tests and simulators turn it on."""

# Events.


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The CAS succeeded."""

    version: int


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """What is stored now: asked for, seen by a watch, after a CAS that failed, or because the
    outcome of one is unknown.

    *metadata* is None iff the ledger was deleted."""

    metadata: LedgerMetadata | None
    version: int


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """The store did not answer a write or a read."""


@dataclass(frozen=True, slots=True)
class ReplacementsChosen:
    """Answer to `ChooseReplacements`: new bookies by index, empty if there are not enough."""

    bookies: tuple[tuple[int, BookieId], ...]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`deadline` was reached."""


MetadataEvent = MetadataWritten | MetadataRead | MetadataFailed


# Effects.


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """CAS; report MetadataWritten, MetadataRead (it conflicted) or MetadataFailed."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Report MetadataRead or MetadataFailed."""


@dataclass(frozen=True, slots=True)
class ChooseReplacements:
    """Pick a bookie for each of *indexes* of *ensemble*, none of *exclude*.

    Report ReplacementsChosen."""

    indexes: tuple[int, ...]
    exclude: tuple[BookieId, ...]
    ensemble: tuple[BookieId, ...]


MetadataEffect = WriteMetadata | ReadMetadata


class Indexed(Protocol):
    """Something about the bookie at *index* of an ensemble."""

    @property
    def index(self) -> int: ...


T = TypeVar("T", bound=Indexed)


class Retries(Generic[T]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self.waiting: list[tuple[float, T]] = []
        """What is put off, and until when."""
        self._tries: dict[tuple[type[T], int], int] = {}

    def put_off(self, what: T, now: float) -> None:
        self.waiting.append((now + self._pause_s, what))

    def try_again(self, what: T, now: float, *, tries_max: int) -> bool:
        """Put *what* off; return False, and do not, if its like had its tries at this bookie."""
        of = (type(what), what.index)
        self._tries[of] = self._tries.get(of, 0) + 1
        if self._tries[of] >= tries_max:
            return False
        self.put_off(what, now)
        return True

    def succeeded(self, what: type[T], index: int) -> None:
        """Start counting tries from zero."""
        self._tries.pop((what, index), None)

    def forget(self, kind: type[T] | None = None) -> None:
        """Drop what was put off: all, or what is of *kind*."""
        self.waiting = [each for each in self.waiting if kind and not isinstance(each[1], kind)]

    def due(self, now: float) -> list[T]:
        """Take out and return what is to be done by *now*."""
        due = [what for at, what in self.waiting if at <= now]
        self.waiting = [(at, what) for at, what in self.waiting if at > now]
        return due

    def deadline(self) -> float | None:
        return min((at for at, _ in self.waiting), default=None)
