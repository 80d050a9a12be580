"""How big a simulated world of logs is, what its users do, and how much goes wrong in it."""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from dlog.aio.read.chunks import WAIT_S
from dlog.recordbatch import Codec
from dlog.settings import LogSettings
from ledger.entry import Digest
from ledger.quorum import Quorum
from tests.simulation.logs.objects import STORAGE
from tests.simulation.profile import DEGRADABLE, Profile
from tests.simulation.profile import draw as draw_ledgers

QUORUMS: Final = (
    Quorum(3, 3, 2),
    Quorum(3, 3, 2),
    Quorum(3, 2, 2),
    Quorum(4, 3, 2),
    Quorum(2, 2, 1),
    Quorum(3, 3, 3),
)


NO_LIFELINES: Final = "none"
ONE_MACHINE: Final = "on one machine"
MANY_MACHINES: Final = "on many machines"
STRANGERS: Final = "on many machines that all say 127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProfile:
    """One world."""

    floor: Profile
    """Bookies, network and faults, as the ledger scenario has them."""
    logs: int
    candidates: int
    """Processes that want to lead a log, for each."""
    readers: int
    """For each log."""
    settings: LogSettings
    reopen_timeout_s: float
    """How long a writer tries to heal; 0: trouble with its ledger ends it at once."""
    bursts: tuple[int, ...]
    """How many times a leader appends before it lets go, at random."""
    thinks_s: tuple[float, ...]
    """How long a candidate waits before it opens, at most, at random."""
    pauses_s: tuple[float, ...]
    reader_pauses_s: tuple[float, ...]
    flushes: float
    rolls: float
    truncates: float
    abandons: float
    manies: float
    """How probably several records are appended by one call."""
    expects: float
    """How probably an append is meant for a certain offset."""
    txids: float
    standbys: float
    """Share of the candidates that are standbys; they are always elected."""
    elections: float
    """How probably a leader is elected before it opens; the others just open."""
    elects_itself: float
    """How probably those who are elected are left alone, once all is well, until they have one."""
    restarts: float
    """How probably a reader begins elsewhere after a batch."""
    consumers: int
    """How many processes share a named consumer of each log."""
    exclusive: bool
    """Whether one of them at a time may."""
    commits: float
    """How probably a consumer commits after a batch."""
    admin_truncates: int
    renames: int
    """How many times somebody gives a log another name."""
    seals: int
    """How many times somebody seals a log for good."""
    updates: int
    """How many times somebody changes a setting of a log."""
    consumer_resets: int
    """How many times somebody lets a consumer begin again elsewhere."""
    consumer_deletes: int
    """How many times somebody forgets one."""
    collects: bool
    """Whether bookies delete what is deleted, and compact what is left."""
    skew_s: float
    """How wrong a process's wall clock may be, either way."""
    deletes: int
    """How many times somebody deletes a log."""
    queries: int
    """Drivers that write a log through a sink, for each; they are of one query or of two."""
    sweeps: int
    """How many times somebody looks for orphans while faults last."""
    readers_away_s: float
    """How long a message to or from a reader takes at most; 0: as long as any other."""
    reader_wait_s: float
    """How long a reader waits for news of an entry before it looks for the segment's end."""
    late_replies: float
    """How probably a leader learns late of a change of a manifest that is done."""
    lies: float
    """How probably the metadata store hides a log from a janitor, by lists or by reads."""
    archives: int = 0
    """How many times somebody archives each log; 0: none has object storage."""
    storage_faults: float = 0.0
    """How probably a call to object storage meets a fault."""
    rots: int = 0
    """How many objects rot while their segments are on bookies, too."""
    restores: int = 0
    """How many times somebody brings archived segments of each log back to bookies."""
    lags_s: tuple[float, ...]
    """How far the server of the metadata store that a client has is behind at most, at random."""
    lifelines: str
    """Where candidates listen for those behind them."""
    fates: tuple[str, ...]
    """What happens to a leader's process, at random."""
    fate_calls: tuple[int, ...]
    """At which call to the metadata store or to a bookie it happens: up to so many, at random."""


def with_archive(profile: LogProfile, random: Random) -> LogProfile:
    """Return *profile*, or one of logs that move to object storage; *random* is of this alone, so
    that worlds without it are what they were."""
    if random.random() >= 0.2:
        return profile
    settings = replace(
        profile.settings,
        archive=STORAGE,
        archive_after_s=random.choice((0.0, 0.0, 0.5)),
        local_keep_s=random.choice((0.0, 0.0, 1.0, 5.0)),
        roll_records=profile.settings.roll_records or random.choice((1, 3, 10)),
    )
    profile = replace(
        profile,
        settings=settings,
        archives=random.choice((3, 6, 12)),
        storage_faults=random.choice((0.0, 0.1, 0.3)),
        rots=random.choice((0, 0, 2)),
        restores=random.choice((0, 3, 6)),
    )
    if settings.encrypt_with or random.random() < 0.5:
        return profile
    return replace(
        profile,
        settings=replace(settings, archive_table="parquet"),
        archives=12,
        storage_faults=random.choice((0.03, 0.05, 0.1)),
    )


def draw(random: Random) -> LogProfile:
    """Return the next world: of any kind, or one of five that are made to hurt."""
    profile = _any_world(random)
    kind = random.random()
    if kind < 0.2:
        return _made_anew(profile, random)
    if kind < 0.4:
        return _taken_over(profile, random)
    if kind < 0.55:
        return _troubled(profile, random)
    if kind < 0.65:
        return _wandering(profile, random)
    if kind < 0.72:
        return _listed_late(profile, random)
    if kind < 0.8:
        return _small(profile, random)
    if kind < 0.9:
        return _queried(profile, random)
    return profile


def _queried(profile: LogProfile, random: Random) -> LogProfile:
    """Drivers of one or two queries that commit units to one log, and hardly anybody else."""
    return replace(
        profile,
        logs=1,
        queries=random.choice((1, 2, 3)),
        candidates=random.choice((0, 0, 1)),
        readers=random.choice((1, 2)),
        reopen_timeout_s=random.choice((0.0, 1.0, 5.0)),
        bursts=random.choice(((3,), (20,), (1, 5))),
        thinks_s=random.choice(((0.1,), (0.0, 0.5))),
        pauses_s=random.choice(((0.0, 0.01), (0.0, 0.05))),
        sweeps=random.choice((0, 3, 10)),
        renames=random.choice((0, 0, 2)),
        standbys=0.0,
        elects_itself=0.0,
        fates=random.choice(
            (("lives",), ("lives", "crashes"), ("pauses", "crashes"), ("crashes", "sleeps"))
        ),
    )


def _small(profile: LogProfile, random: Random) -> LogProfile:
    """As many bookies as an ensemble has, or one more, and too few there when logs are opened."""
    floor = profile.floor
    quorum = random.choice((*DEGRADABLE, *DEGRADABLE, *QUORUMS))
    others = random.choice((0, 0, 1))
    config = replace(floor.choices.writer_config, leave_gone_s=random.choice((0.2, 3.0)))
    return replace(
        profile,
        floor=replace(
            floor,
            quorum=quorum,
            bookies=quorum.ensemble + others,
            away_first=1 + others,
            begins_calm=True,
            disks_lost=min(floor.disks_lost, quorum.ack - 1),
            faults=random.choice((0, 2, 5)),
            choices=replace(floor.choices, writer_config=config),
        ),
        settings=replace(profile.settings, quorum=quorum, degraded_writes=random.random() < 0.9),
        updates=random.choice((0, 0, 4)),
        thinks_s=random.choice(((0.0, 0.5), (3.0,))),
        fates=random.choice((("lives",), ("lives", "pauses", "crashes"))),
    )


def _made_anew(profile: LogProfile, random: Random) -> LogProfile:
    """One log, deleted and re-created all the time, and processes that sleep meanwhile.

    In most they roll at random: a step of a roll that slept may then fit the re-created log, whose
    segments have the same numbers."""
    settings = profile.settings
    if random.random() < 0.7:
        settings = replace(settings, roll_records=0, roll_bytes=0, roll_age_s=0.0)
    calm = replace(profile.floor.weather, loss=0.0, slow=0.0, slow_link=0.0)
    return replace(
        profile,
        floor=replace(profile.floor, weather=calm, faults=random.randrange(5), resets=True),
        logs=1,
        settings=settings,
        candidates=random.choice((2, 3)),
        bursts=random.choice(((0, 1, 3), (10,))),
        thinks_s=random.choice(((0.0, 0.1), (0.0, 0.5))),
        pauses_s=(0.0, 0.01, 0.1),
        rolls=random.choice((0.1, 0.4)),
        truncates=random.choice((0.0, 0.1, 0.3)),
        deletes=random.randrange(3, 16),
        renames=random.choice((0, 0, 5)),
        seals=random.choice((0, 0, 1)),
        fates=("pauses", "pauses", "sleeps", "crashes"),
        fate_calls=random.choice(((12,), (40,))),
    )


def _taken_over(profile: LogProfile, random: Random) -> LogProfile:
    """Leaders that roll after every few records, and others who take over from them."""
    return replace(
        profile,
        logs=1,
        candidates=3,
        settings=replace(profile.settings, roll_records=random.choice((1, 2, 3))),
        bursts=random.choice(((1, 5), (1, 20))),
        thinks_s=random.choice(((0.1,), (0.0, 0.5))),
        pauses_s=random.choice(((0.0,), (0.0, 0.005, 0.02))),
        elections=random.choice((0.0, 0.0, 0.5)),
        standbys=0.0,
        elects_itself=0.0,
        abandons=random.choice((0.0, 0.3)),
        sweeps=random.choice((0, 3, 10)),
        fates=random.choice((("lives", "pauses"), ("pauses", "pauses", "sleeps"))),
        fate_calls=random.choice(((12,), (40,))),
    )


def _troubled(profile: LogProfile, random: Random) -> LogProfile:
    """Writers that live on, above bookies that come and go and have nobody to replace them."""
    floor = profile.floor
    return replace(
        profile,
        floor=replace(
            floor,
            bookies=floor.quorum.ensemble + random.choice((0, 0, 1)),
            faults=random.randrange(6, 16),
            crashes=True,
            resets=True,
            pauses=True,
        ),
        logs=1,
        candidates=random.choice((1, 1, 2)),
        reopen_timeout_s=random.choice((0.0, 1.0, 5.0, 30.0, 30.0)),
        bursts=(100,),
        thinks_s=(0.0, 0.5),
        pauses_s=random.choice(((0.0, 0.01), (0.01, 0.1))),
        fates=random.choice((("lives",), ("lives", "pauses", "crashes"))),
    )


def _wandering(profile: LogProfile, random: Random) -> LogProfile:
    """One log that changes its name all the time, with consumers that retention has to wait for."""
    return replace(
        profile,
        logs=1,
        candidates=2,
        settings=replace(
            profile.settings,
            roll_records=random.choice((1, 2, 5)),
            retention_bytes=random.choice((0, 200)),
            retention_age_s=0.2,
            retention_waits_for_consumers=True,
        ),
        bursts=(5, 20),
        pauses_s=(0.01, 0.1),
        consumers=random.choice((1, 2)),
        commits=0.3,
        truncates=0.0,
        admin_truncates=random.choice((0, 0, 3)),
        renames=random.choice((5, 25)),
        sweeps=6,
    )


def _listed_late(profile: LogProfile, random: Random) -> LogProfile:
    """Writers that append on while their next segment is listed, and do not know it yet; readers
    far away, who look meanwhile whether the writer left the segment."""
    floor = profile.floor
    return replace(
        profile,
        floor=replace(
            floor,
            faults=random.randrange(4),
            weather=replace(floor.weather, loss=0.0, slow=0.0, slow_link=0.0),
        ),
        logs=1,
        candidates=1,
        readers=random.choice((2, 4)),
        settings=replace(profile.settings, roll_records=random.choice((1, 3, 10))),
        bursts=(100,),
        thinks_s=(0.1,),
        pauses_s=random.choice(((0.0, 0.1, 0.3), (0.05, 0.2))),
        reader_pauses_s=(0.0,),
        readers_away_s=random.choice((0.03, 0.1, 0.2)),
        reader_wait_s=0.05,
        late_replies=random.choice((0.5, 0.9)),
        restarts=0.0,
        deletes=random.choice((0, 0, 2)),
        fates=random.choice((("lives",), ("lives", "pauses", "crashes"))),
    )


def _any_world(random: Random) -> LogProfile:
    quorum = random.choice(QUORUMS)
    floor = draw_ledgers(random)
    floor = replace(
        floor,
        quorum=quorum,
        bookies=quorum.ensemble + random.randrange(3),
        disks_lost=min(floor.disks_lost, quorum.ack - 1),
        forgeries=False,
        deletes=0.0,
        faults_s=random.uniform(3.0, 8.0),
        crash_after_promise=min(floor.crash_after_promise, 0.03),
        faults=min(floor.faults, 10),
    )
    retention = random.random() < 0.2
    settings = LogSettings(
        quorum=quorum,
        digest=random.choice((Digest.CRC32C, Digest.CRC32C, Digest.HMAC_SHA256)),
        codec=random.choice((Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4)),
        roll_records=random.choice((0, 1, 3, 10)),
        roll_bytes=random.choice((0, 500, 4000)),
        roll_age_s=random.choice((0.0, 0.5, 2.0)),
        retention_bytes=random.choice((0, 1000)) if retention else 0,
        retention_age_s=random.choice((0.0, 1.0)) if retention else 0.0,
        retention_waits_for_consumers=retention and random.random() < 0.3,
    )
    standbys = random.choice((0.0, 0.0, 0.5, 1.0))
    elections = random.choice((0.0, 0.5, 1.0))
    return LogProfile(
        floor=floor,
        logs=random.choice((1, 1, 2, 3)),
        candidates=random.choice((1, 2, 2, 3)),
        readers=random.choice((0, 1, 1, 2)),
        settings=settings,
        reopen_timeout_s=random.choice((0.0, 1.0, 5.0, 30.0)),
        bursts=random.choice(((3,), (20,), (0, 1, 5, 30))),
        thinks_s=random.choice(((0.1,), (3.0,), (0.0, 0.01, 1.0, 4.0))),
        pauses_s=random.choice(((0.0, 0.01), (0.0, 0.01, 0.1), (0.05, 0.3))),
        reader_pauses_s=random.choice(((0.0,), (0.0, 0.01, 0.3), (0.0, 1.0))),
        flushes=random.choice((0.0, 0.1, 0.5)),
        rolls=random.choice((0.0, 0.1, 0.2)),
        truncates=random.choice((0.0, 0.0, 0.05, 0.1)),
        abandons=random.choice((0.0, 0.2, 0.5)),
        txids=random.choice((0.0, 0.5, 1.0)),
        standbys=standbys,
        elections=elections,
        elects_itself=0.3 if elections == 1.0 or standbys == 1.0 else 0.0,
        restarts=random.choice((0.0, 0.05, 0.3)),
        consumers=random.choice((0, 0, 1, 2)),
        exclusive=random.random() < 0.5,
        commits=random.choice((0.1, 0.5, 1.0)),
        admin_truncates=random.choice((0, 0, 1, 4)),
        renames=random.choice((0, 0, 0, 1, 4)),
        seals=random.choice((0, 0, 0, 1)),
        deletes=random.choice((0, 0, 0, 1, 3)),
        queries=random.choice((0, 0, 0, 1)),
        sweeps=random.choice((0, 0, 2)),
        manies=random.choice((0.0, 0.1, 0.5)),
        expects=random.choice((0.0, 0.0, 0.3)),
        updates=random.choice((0, 0, 0, 4)),
        consumer_resets=random.choice((0, 0, 0, 3)),
        consumer_deletes=random.choice((0, 0, 0, 2)),
        collects=random.random() < 0.1,
        skew_s=random.choice((0.0, 0.0, 0.5, 60.0)),
        lifelines=random.choice((NO_LIFELINES, ONE_MACHINE, MANY_MACHINES, STRANGERS)),
        readers_away_s=0.0,
        reader_wait_s=WAIT_S,
        late_replies=0.0,
        lags_s=random.choice(((0.0,), (0.0, 0.05, 1.0), (0.2, 5.0))),
        fates=random.choice(
            (("lives",), ("lives", "crashes"), ("lives", "sleeps"), ("pauses", "crashes", "sleeps"))
        ),
        fate_calls=random.choice(((12,), (40,), (12, 200))),
        lies=random.choice((0.0, 0.3)),
    )
