"""How big a simulated world is and how much goes wrong in it.

Each seed draws its own point (swarm testing): some worlds have no loss but many crashes, some
a perfect cluster under a zombie writer, and so on; a world where everything fails at once
hides more than it finds.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from bookie.storage import StorageConfig
from ledger.quorum import Quorum
from tests.simulation.network import Weather

QUORUMS: Final = (
    Quorum(3, 3, 2),
    Quorum(3, 3, 2),
    Quorum(3, 2, 2),
    Quorum(3, 3, 3),
    Quorum(4, 3, 2),
    Quorum(5, 3, 2),
    Quorum(2, 2, 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One world."""

    quorum: Quorum
    bookies: int
    storage: StorageConfig
    """Small sizes, so that files roll, caches evict and memory fills up in a short run."""
    entries: int
    """How many the writer appends, if it lives."""
    readers: int
    recoverers: int
    """How many recover the ledger while faults last; some of them die at it."""
    recovery_begins_at: int
    """Entry at whose sending the first of them begins; the others follow soon."""
    faults_s: float
    """Faults happen this long; then they stop and everything must finish."""
    faults: int
    weather: Weather
    crashes: bool
    crash_after_promise: float
    """How probably a bookie crashes just after it promised something: when it hurts most."""
    disk_errors: bool
    pauses: bool
    partitions: bool
    writer_closes: bool
    """False: it is left open and somebody recovers it."""
    writer_fate: str
    """What happens to the writer: "lives", "crashes" or "is paused"."""


def draw(random: Random) -> Profile:
    """Return the short profile's next world."""
    quorum = random.choice(QUORUMS)
    bad = random.random() < 0.5
    weather = Weather(
        slow=random.choice((0.0, 0.02, 0.1, 0.3)) if bad else 0.0,
        slow_link=random.choice((0.0, 0.0, 0.1, 0.3)) if bad else 0.0,
        slow_max_s=random.choice((0.02, 0.1, 1.0)),
        loss=random.choice((0.0, 0.005, 0.03)) if bad else 0.0,
        duplicate=random.choice((0.0, 0.02, 0.1)) if bad else 0.0,
    )
    entries = random.randrange(4, 60)
    crashes = random.random() < 0.7
    return Profile(
        quorum=quorum,
        bookies=quorum.ensemble + random.randrange(4),
        storage=StorageConfig(
            memtable_bytes_max=random.choice((4096, 65536, 1 << 20)),
            recovery_reserve_bytes=4096,
            journal_file_bytes_max=random.choice((4096, 16384)),
            journal_preallocate_bytes=random.choice((0, 2048)),
            entry_log_bytes_max=random.choice((4096, 65536)),
            index_cache_bytes=random.choice((8192, 65536)),
            ledgers_in_memory_max=random.choice((1, 100)),
            files_open_max=random.choice((1, 4)),
        ),
        entries=entries,
        readers=random.randrange(3),
        recoverers=random.choice((0, 1, 1, 2, 2, 3)),
        recovery_begins_at=random.randrange(entries),
        faults_s=random.uniform(2.0, 10.0),
        faults=random.randrange(10),
        weather=weather,
        crashes=crashes,
        crash_after_promise=random.choice((0.0, 0.01, 0.1)) if crashes else 0.0,
        disk_errors=random.random() < 0.3,
        pauses=random.random() < 0.5,
        partitions=random.random() < 0.5,
        writer_closes=random.random() < 0.5,
        writer_fate=random.choice(("lives", "lives", "crashes", "is paused")),
    )
