"""How repair stands, for people and for tools: read from the metadata store, decided by nobody."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.autorecovery.auditor import ELECTION
from bookie.autorecovery.checks import Audit, CheckRecord, PlacementRecord, ReplicasRecord
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.worker import RepairThrottle, WorkerReport, read_throttle, reports
from leader import current_leader
from ledger.ids import BookieId, LedgerId
from ledger.mark import UnderreplicatedLedger
from ledger.metastore.port import MetadataStore
from ledger.tasks import for_each

MARKS_READ_MAX: Final = 10_000
"""So many are read to say what concerns one bookie."""
READS_MAX: Final = 50
"""At once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutorecoveryStatus:
    enabled: bool
    auditor: str
    """host:pid; empty if there is none."""
    last_audit: Audit | None
    delay_s: float | None
    """What an operator has set."""
    marked: int
    """Ledgers that lack copies."""
    repairing: dict[LedgerId, str]
    """Ledgers that are repaired now, and by whom."""
    deferred: int
    """Marks with a failed attempt."""
    waiting: int
    """Of them, those that wait for a bookie to copy to."""
    lost: int
    """Ledgers of which entries are nowhere to be had."""
    urgent: int
    """Marked ledgers that come before others."""
    differing: int
    """Ledgers of which two bookies have different whole frames of an entry."""
    last_check: CheckRecord | None
    placement: PlacementRecord | None
    replicas: ReplicasRecord | None
    """How the last checks ended."""
    throttle: RepairThrottle
    """What an operator has set."""
    workers: tuple[WorkerReport, ...]

    @property
    def bytes_per_s(self) -> float:
        """Copied lately by all workers."""
        return sum(worker.bytes_per_s for worker in self.workers)

    @property
    def left_s(self) -> float | None:
        """How long the marked ledgers that wait for nothing take, going by those that were repaired
        lately; None: it cannot be said."""
        return left_s(self.marked - self.deferred, self.workers)


def left_s(ledgers: int, workers: Sequence[WorkerReport]) -> float | None:
    """Return how long *ledgers* take, going by those that were repaired lately."""
    per_s = sum(worker.ledgers_per_s for worker in workers)
    if ledgers <= 0:
        return 0.0
    return ledgers / per_s if per_s > 0 else None


@dataclass(frozen=True, slots=True)
class MarkedLedger:
    ledger_id: LedgerId
    mark: UnderreplicatedLedger
    worker: str
    """Who repairs it now; empty: nobody."""


async def autorecovery_status(store: MetadataStore) -> AutorecoveryStatus:
    """Raises `MetadataUnavailable`, `DamagedMetadata`."""
    marks = Marks(store)
    leader = await current_leader(store, ELECTION)
    marked = deferred = waiting = lost = urgent = differing = 0
    async for _, mark in marks.all():
        marked += 1
        deferred += mark.attempts > 0
        waiting += mark.wants_bookie
        lost += bool(mark.lost)
        urgent += mark.urgent
        differing += bool(mark.differing)
    return AutorecoveryStatus(
        enabled=await marks.enabled(),
        auditor="" if leader is None else leader.candidate,
        last_audit=await Audit.last(store),
        delay_s=await marks.delay_s(),
        marked=marked,
        repairing=await marks.locked(),
        deferred=deferred,
        waiting=waiting,
        lost=lost,
        urgent=urgent,
        differing=differing,
        last_check=await CheckRecord.last(store),
        placement=await PlacementRecord.last(store),
        replicas=await ReplicasRecord.last(store),
        throttle=await read_throttle(store),
        workers=tuple(await reports(store)),
    )


@dataclass(frozen=True, slots=True)
class OpenWork:
    """What is left to repair, in short."""

    ledgers: int
    """That are marked, whatever they wait for."""
    bytes_per_s: float
    left_s: float | None
    """None: nothing is repaired at the moment."""


async def open_work(store: MetadataStore) -> OpenWork:
    """Return as much as can be had without reading each mark. Raises `MetadataUnavailable`."""
    ledgers = len([ledger_id async for ledger_id in Marks(store).list()])
    workers = await reports(store)
    return OpenWork(
        ledgers, sum(worker.bytes_per_s for worker in workers), left_s(ledgers, workers)
    )


@dataclass(frozen=True, slots=True)
class BookieWork:
    """What is left to repair of what one bookie should hold."""

    lacking: int
    """Marked ledgers that lack what it should hold; at least that many, unless *all_looked_at*."""
    urgent: int
    """Of them, those that come before others."""
    deferred: int
    """Of them, those with a failed attempt."""
    all_looked_at: bool
    work: OpenWork
    """Of the cluster: workers take ledgers in no order of bookies."""


async def open_work_of(store: MetadataStore, bookies: Iterable[BookieId]) -> list[BookieWork]:
    """Return what is left to repair of what each of *bookies* should hold, by the first
    `MARKS_READ_MAX` marks. Raises `MetadataUnavailable`, `DamagedMetadata`."""
    work, marks = await open_work(store), Marks(store)
    read: list[UnderreplicatedLedger] = []
    looked_at = 0

    async def look(ledger_id: LedgerId) -> None:
        found = await marks.read(ledger_id)
        if found is not None:
            read.append(found[0])

    some: list[LedgerId] = []
    async for ledger_id in marks.list():
        if looked_at == MARKS_READ_MAX:
            break
        looked_at += 1
        some.append(ledger_id)
    await for_each(some, look, at_once=READS_MAX)
    found = []
    for bookie in bookies:
        own = [mark for mark in read if bookie in mark.bookies]
        found.append(
            BookieWork(
                len(own),
                sum(mark.urgent for mark in own),
                sum(mark.attempts > 0 for mark in own),
                looked_at < MARKS_READ_MAX,
                work,
            )
        )
    return found


async def underreplicated(store: MetadataStore) -> list[MarkedLedger]:
    """Return the ledgers that are marked, by id. Raises as `autorecovery_status`."""
    marks = Marks(store)
    workers = await marks.locked()
    marked = [
        MarkedLedger(ledger_id, mark, workers.get(ledger_id, ""))
        async for ledger_id, mark in marks.all()
    ]
    return sorted(marked, key=lambda ledger: ledger.ledger_id)
