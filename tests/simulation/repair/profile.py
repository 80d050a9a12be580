"""How big a world with repair is, and how much goes wrong in it."""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from ledger.quorum import Quorum
from tests.simulation.profile import Profile
from tests.simulation.profile import draw as draw_ledgers

QUORUMS: Final = (
    Quorum(3, 3, 2),
    Quorum(3, 3, 2),
    Quorum(4, 3, 2),
    Quorum(5, 3, 2),
    Quorum(3, 2, 2),
    Quorum(3, 3, 3),
    Quorum(4, 2, 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairProfile:
    """One world."""

    floor: Profile
    """What is below: ledgers, their clients, bookies and faults."""
    workers: int
    auditors: int
    delay_s: float
    """How long a bookie may be away before its ledgers are marked."""
    grace_s: float
    """How long an open last fragment is left to its writer."""
    check_all_s: float
    """How often all bookies are asked what they hold."""
    look_s: float
    """How often a worker looks for marks by itself."""
    fates: tuple[str, ...]
    """What happens to processes of repair, at one of their calls while something is marked."""
    fate_calls: int
    """That is one of so many."""
    stopped: float
    """Share of the processes that something happens to."""
    aways: int
    """How many times a bookie is away for longer than the delay."""
    disks: int
    """How many disks are lost for good, at most, and never so many at a time that an entry is."""
    forgeries: int
    """How many messages somebody sends who has the certificate of a bookie, and repairs nothing."""
    leaving: int
    """How many bookies are emptied and stopped."""
    lags_s: tuple[float, ...]
    """How far the server of the metadata store that a process reads from is behind at most."""
    collects: bool
    """Whether bookies collect and compact."""


def draw(random: Random) -> RepairProfile:
    """Return the next world."""
    floor = draw_ledgers(random)
    quorum = random.choice(QUORUMS)
    entries = random.randrange(3, 40)
    floor = replace(
        floor,
        quorum=quorum,
        bookies=quorum.ensemble + random.choice((0, 1, 1, 2, 3)),
        ledgers=random.choice((1, 2, 3)),
        entries=entries,
        pauses_s=random.choice(((0.01, 0.1, 0.3), (0.1, 1.0, 3.0))),
        readers=random.choice((0, 0, 1)),
        recoverers=random.choice((0, 0, 1)),
        recovery_begins_at=random.randrange(entries),
        faults_s=random.uniform(15.0, 45.0),
        faults=random.randrange(12),
        disks_lost=0,
        forgeries=False,
        weather=replace(floor.weather, corrupt=random.choice((0.0, 0.0, 0.0, 0.1))),
        moves=False,
        aimed_s=0.0,
        crash_after_promise=min(floor.crash_after_promise, 0.03),
        begins_calm=True,
        away_first=random.choice((0, 0, 0, 1)),
    )
    return RepairProfile(
        floor=floor,
        workers=random.choice((1, 1, 2, 3)),
        auditors=random.choice((1, 1, 2)),
        delay_s=random.choice((0.5, 2.0, 5.0)),
        grace_s=random.choice((0.5, 3.0, 10.0)),
        check_all_s=random.choice((5.0, 20.0)),
        look_s=random.choice((0.5, 2.0, 5.0)),
        fates=random.choice(
            (
                ("lives",),
                ("lives", "crashes"),
                ("crashes", "pauses", "sleeps"),
                ("lives", "pauses", "pauses"),
                ("lives", "crashes", "pauses", "sleeps"),
            )
        ),
        fate_calls=random.choice((6, 15, 40)),
        stopped=random.choice((0.4, 0.9)),
        aways=random.choice((0, 1, 1, 2, 3)),
        disks=random.choice((0, 1, 1, 2, 3)),
        forgeries=random.randrange(0, 30),
        leaving=random.choice((0, 0, 0, 1, 1, 2)),
        lags_s=random.choice(((0.0,), (0.0,), (0.0, 0.3), (0.0, 1.0))),
        collects=random.random() < 0.5,
    )
