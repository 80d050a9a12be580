"""The level of a cluster: which formats its programs may write. Pure.

A level is a small number. It only rises, and only when every bookie that is known can read what it
brings: so a program may write what a level brings as soon as it has seen the cluster at it, and go
on for ever.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ledger.errors import LevelTooLow, LevelTooNew

FIRST: Final = 1
"""Of a cluster that never heard of levels."""
ENCRYPTION: Final = 2
IDENTITIES: Final = 3
OWNERS: Final = 4
HEADER_PAIRS: Final = 5
KAFKA_BATCHES: Final = 6
ARCHIVE: Final = 7


@dataclass(frozen=True, slots=True)
class Level:
    release: str
    """The first one that reads it."""
    brings: str
    """What is written from it on, for people."""


LEVELS: Final[Mapping[int, Level]] = MappingProxyType(
    {
        FIRST: Level("0.1.0", "everything that has no level of its own"),
        ENCRYPTION: Level("0.1.0", "encrypted logs: record batch 4, manifest 3"),
        IDENTITIES: Level("0.1.0", "connections of version 2 only: both ends prove whose they are"),
        OWNERS: Level("0.1.0", "rights go by owner nodes: whose a ledger is, no client changes"),
        HEADER_PAIRS: Level("0.1.0", "headers with a name twice or a null value: record batch 5"),
        KAFKA_BATCHES: Level("0.1.0", "batches that Kafka's producers encoded: record batch 6"),
        ARCHIVE: Level("0.1.0", "logs with segments in object storage: manifest 4"),
    }
)
LEVEL_MAX: Final = max(LEVELS)
"""What this program reads."""


@dataclass(frozen=True, slots=True)
class ClusterLevel:
    """What the metadata store says of the level."""

    level: int = FIRST
    raising_to: int = 0
    """A level that is about to be; 0: none. Who cannot read it does not come in."""
    needs: str = ""
    """The first release that reads the higher of both; empty: it does not say."""

    @property
    def highest(self) -> int:
        return max(self.level, self.raising_to)

    def check_readable(self, reads: int = LEVEL_MAX) -> None:
        """Raise `LevelTooNew` unless a program that reads levels up to *reads* may come in."""
        if self.highest > reads:
            raise LevelTooNew(self.highest, reads, self.needs)

    def check_brings(self, level: int, what: str) -> None:
        """Raise `LevelTooLow` unless *what*, which *level* brings, may be written."""
        if self.level < level:
            raise LevelTooLow(what, level, self.level)


@dataclass(frozen=True, slots=True)
class BookieLevel:
    """What is known of one bookie."""

    bookie: str
    reads: int | None
    """The highest level that it can read; None: it is not there, or what it says cannot be read."""
    trouble: str = ""
    """Why it is not known."""

    def can_read(self, level: int) -> bool:
        return self.reads is not None and self.reads >= level


def obstacles(level: int, standings: Iterable[BookieLevel], *, left_out: int = 0) -> Iterator[str]:
    """Yield why the cluster may not rise to *level*, a sentence for each reason; none: it may.

    *left_out*: bookies of which nothing is known."""
    for each in standings:
        if each.can_read(level):
            continue
        if each.reads is None:
            yield (
                f"{each.bookie} {each.trouble}: start it with this release, or give it up "
                f"('dlog bookie recover {each.bookie}')"
            )
        else:
            yield (
                f"{each.bookie} runs a release that reads levels up to {each.reads}: "
                "replace it by this release"
            )
    if left_out:
        yield f"{left_out} more bookies were not looked at"
