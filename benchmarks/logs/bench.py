"""What the measurements of logs share: sizes and results; clusters are `benchmarks.ledger`'s."""

from dataclasses import dataclass
from typing import Final

from benchmarks.results import Results

COPIES: Final = 6
"""How often each byte is written: three copies, in journal and entry log."""
RECORD_BYTES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    seconds: float = 3.0
    """For each rate and each latency."""
    takeover_bytes: int = 1_000_000_000
    logs_written: int = 1000
    """By one process at the same time."""
    segments: tuple[int, ...] = (10, 100, 1000, 10_000)
    archived: tuple[int, ...] = (1000, 1_000_000)
    """Segments in object storage."""
    logs: tuple[int, ...] = (10, 100, 1000, 10_000)
    samples: int = 9
    """Of what is measured once at a time: opening, rolling, listing."""
    turns: int = 9
    """Pairs of rates that are compared with each other."""


QUICK: Final = Sizes(
    seconds=0.1,
    takeover_bytes=2_000_000,
    logs_written=5,
    segments=(3, 30),
    archived=(2100,),
    logs=(3, 8),
    samples=1,
    turns=1,
)


@dataclass(slots=True)
class Bench(Results):
    sizes: Sizes
