"""How big a simulated world is and how much goes wrong in it.

Each seed draws its own point (swarm testing): some worlds have no loss but many crashes, some
a perfect cluster under a zombie writer, and so on; a world where everything fails at once
hides more than it finds.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from bookie.storage.config import StorageConfig
from ledger.manager import LAYOUTS
from ledger.protocol.placement import QuarantineConfig
from ledger.protocol.writer import WriterConfig
from ledger.quorum import Quorum
from tests.simulation.cluster import Choices
from tests.simulation.kernel.network import Weather

QUORUMS: Final = (
    Quorum(3, 3, 2),
    Quorum(3, 3, 2),
    Quorum(3, 2, 2),
    Quorum(3, 3, 3),
    Quorum(4, 3, 2),
    Quorum(5, 3, 2),
    Quorum(2, 2, 1),
    Quorum(4, 2, 1),
)

DEGRADABLE: Final = (Quorum(3, 3, 2), Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(5, 3, 2))
"""Without one bookie their write sets still have Qa, and Qw - Qa + 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One world."""

    quorum: Quorum
    bookies: int
    ledgers: int
    storage: StorageConfig
    """Small sizes, so that files roll, caches evict and memory fills up in a short run."""
    entries: int
    """How many each writer appends, if it lives."""
    pauses_s: tuple[float, ...]
    """How long a writer waits between two batches, at random."""
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
    fsync_s: tuple[float, float]
    """How long a commit of the journal takes, from and to."""
    checkpoint_s: tuple[float, float]
    """Time between two checkpoints of a bookie, from and to."""
    disk_errors: bool
    disks_lost: int
    """Less than Qa: what is acknowledged survives so much."""
    resets: bool
    """Whether connections break under living hosts."""
    forgeries: bool
    """Whether somebody sends other bytes under ids that are taken."""
    moves: bool
    """Whether bookies are moved to other disks, and copies of them started."""
    aimed_s: float
    """If positive: around each recovery, messages of those that take part are late by up to
    this much, every second one."""
    deletes: float
    """How probably a ledger is deleted while it is in use."""
    pauses: bool
    partitions: bool
    writer_closes: bool
    """False: it is left open and somebody recovers it."""
    writer_fate: str
    """What happens to the writer: "lives", "crashes", "is paused", or "sleeps" for hours."""
    begins_calm: bool
    """Whether ledgers are created before anything goes wrong."""
    recoverers_sleep: float
    """How probably a recoverer is paused half way and wakes up hours later."""
    deletes_at_change: float
    """How probably a ledger is deleted as its writer or a recoverer changes its ensemble, or
    as a recovery begins: when somebody is about to find out."""
    choices: Choices
    away_first: int = 0
    """So many bookies go away, long enough for their sessions to end, before there are ledgers."""
    strangers: int = 0
    """So often a bookie of another cluster, or of other data, takes the address of one of ours."""


def draw(random: Random) -> Profile:
    """Return the short profile's next world: of any kind, or one of two that are made to hurt."""
    profile = _any_world(random)
    kind = random.random()
    if kind < 0.35:
        return _races(profile, random)
    if kind < 0.65:
        return _changes(profile, random)
    if kind < 0.75:
        return _small(profile, random)
    return profile


def _small(profile: Profile, random: Random) -> Profile:
    """As many bookies as an ensemble has, and one of them away when a ledger is created."""
    quorum = random.choice((*DEGRADABLE, *DEGRADABLE, *QUORUMS))
    others = random.choice((0, 0, 1))  # who comes before the one that is named
    return replace(
        profile,
        quorum=quorum,
        bookies=quorum.ensemble + others,
        away_first=1 + others,
        begins_calm=True,
        disks_lost=min(profile.disks_lost, quorum.ack - 1),
        entries=random.randrange(10, 60),
        pauses_s=(0.0, 3.0) if others else random.choice(((0.0, 0.01, 0.1), (0.1, 0.5))),
        faults=random.choice((0, 2, 5)),
        choices=replace(
            profile.choices,
            writer_config=replace(
                profile.choices.writer_config, leave_gone_s=random.choice((0.2, 3.0))
            ),
        ),
    )


def _races(profile: Profile, random: Random) -> Profile:
    """Recoverers at work while adds and fences are still on their way, few entries in all."""
    entries = random.randrange(1, 16)
    quorum = random.choice((Quorum(3, 3, 2), profile.quorum))
    return replace(
        profile,
        quorum=quorum,
        bookies=quorum.ensemble + random.randrange(3),
        disks_lost=min(profile.disks_lost, quorum.ack - 1),
        ledgers=random.choice((1, 3, 5)),
        aimed_s=random.choice((0.0, 0.02, 0.1, 0.4)),
        entries=entries,
        pauses_s=random.choice(((0.001, 0.005), (0.001, 0.02), (0.01, 0.1))),
        recoverers=random.choice((1, 2, 3)),
        recovery_begins_at=random.randrange(entries),
        weather=replace(
            profile.weather,
            slow=random.choice((0.0, 0.0, 0.1, 0.5)),
            slow_link=random.choice((0.0, 0.0, 0.0, 0.3)),
            slow_max_s=random.choice((0.05, 0.1, 0.9, 3.0)),
        ),
        fsync_s=random.choice(((0.0005, 0.005), (0.001, 0.1))),
        crash_after_promise=random.choice((0.0, 0.1, 0.3)) if profile.crashes else 0.0,
    )


def _changes(profile: Profile, random: Random) -> Profile:
    """A busy writer, many pending adds, and bookies that fail under it all the time."""
    return replace(
        profile,
        bookies=profile.quorum.ensemble + random.choice((1, 1, 2, 3)),
        entries=random.randrange(20, 60),
        pauses_s=(0.0, 0.0, 0.01, 0.1),
        faults=random.randrange(5, 25),
        resets=True,
        recoverers=random.choice((0, 1)),
        weather=replace(
            profile.weather,
            slow=random.choice((0.0, 0.1, 0.3)),
            slow_link=random.choice((0.0, 0.2, 0.4)),
            slow_max_s=random.choice((0.02, 0.1, 0.5)),
            corrupt=random.choice((0.0, 0.03)),
        ),
        fsync_s=random.choice(((0.0005, 0.005), (0.001, 0.05))),
        writer_fate=random.choice(("lives", "lives", "is paused", "sleeps")),
    )


def _any_world(random: Random) -> Profile:
    quorum = random.choice(QUORUMS)
    bad = random.random() < 0.5
    weather = Weather(
        slow=random.choice((0.0, 0.02, 0.1, 0.3)) if bad else 0.0,
        slow_link=random.choice((0.0, 0.0, 0.1, 0.3)) if bad else 0.0,
        slow_max_s=random.choice((0.02, 0.1, 1.0)),
        loss=random.choice((0.0, 0.005, 0.03)) if bad else 0.0,
        duplicate=random.choice((0.0, 0.02, 0.1, 0.3)) if bad else 0.0,
        corrupt=random.choice((0.0, 0.0, 0.01)) if bad else 0.0,
    )
    entries = random.randrange(4, 60)
    crashes = random.random() < 0.7
    index_is_late = entries % 2 == 0
    return Profile(
        quorum=quorum,
        bookies=quorum.ensemble + random.randrange(4),
        ledgers=random.choice((1, 1, 1, 2, 3)),
        storage=StorageConfig(
            memtable_bytes_max=random.choice((4096, 65536, 1 << 20)),
            recent_bytes_max=random.choice((0, 2000, 1 << 20)),
            read_cache_bytes=random.choice((0, 2000, 1 << 20)),
            read_ahead_bytes=2000,
            recovery_reserve_bytes=4096,
            journal_file_bytes_max=random.choice((512, 16384)),
            journal_preallocate_bytes=random.choice((0, 2048)),
            entry_log_bytes_max=random.choice((4096, 65536)),
            index_cache_bytes=random.choice((8192, 65536)),
            ledgers_in_memory_max=random.choice((1, 100)),
            files_open_max=random.choice((1, 4)),
            index_in_place_ledgers=1 if index_is_late else 1000,
            index_redo_bytes_max=4096 if index_is_late else 1 << 20,
        ),
        entries=entries,
        pauses_s=(0.0, 0.0, 0.001, 0.01, 0.1, 0.3),
        readers=random.randrange(3),
        recoverers=random.choice((0, 1, 1, 2, 2, 3)),
        recovery_begins_at=random.randrange(entries),
        faults_s=random.uniform(2.0, 10.0),
        faults=random.randrange(10),
        weather=weather,
        crashes=crashes,
        crash_after_promise=random.choice((0.0, 0.01, 0.1)) if crashes else 0.0,
        fsync_s=random.choice(((0.0005, 0.005), (0.0005, 0.005), (0.001, 0.05))),
        checkpoint_s=random.choice(((0.2, 3.0), (0.05, 0.3))),
        disk_errors=random.random() < 0.4,
        disks_lost=random.randrange(quorum.ack) if random.random() < 0.7 else 0,
        resets=random.random() < 0.3,
        forgeries=random.random() < 0.1,
        moves=random.random() < 0.3,
        aimed_s=0.0,
        deletes=random.choice((0.0, 0.0, 0.0, 0.5)),
        pauses=random.random() < 0.5,
        partitions=random.random() < 0.5,
        writer_closes=random.random() < 0.5,
        writer_fate=random.choice(("lives", "lives", "crashes", "is paused", "sleeps")),
        begins_calm=random.random() < 0.7,
        recoverers_sleep=random.choice((0.0, 0.0, 0.2)),
        deletes_at_change=random.choice((0.0, 0.0, 0.0, 0.3)),
        choices=_choices(random),
    )


def _choices(random: Random) -> Choices:
    delays = random.random() < 0.3
    return Choices(
        rack_aware=random.random() < 0.5,
        quarantine=QuarantineConfig(
            errors_min=random.choice((1.0, 1.0, 2.0)),
            quarantine_s=random.choice((0.5, 30.0)),
            quarantine_s_max=random.choice((30.0, 1800.0)),
        ),
        writer_config=WriterConfig(delay_ensemble_change=delays),
        layout=random.choice(tuple(LAYOUTS.values())),
        racks=random.choice((1, 2, 3)),
        unconfirmed=random.choice((0.0, 0.3, 0.7)),
    )
