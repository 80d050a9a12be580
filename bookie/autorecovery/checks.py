"""The checks of all ledgers: what bookies hold, placement, living replicas; and how they ended.

The check of what bookies hold finds what no bookie's loss shows: entries that were in flight to a
bookie when it died, or was away for a moment. A share of the entries is read with digests, slowly,
so that what nobody reads does not rot unnoticed. The other two read metadata only. What follows
from the answers is decided by `protocol.checks`.

How each pass and check ended is written down for the next auditor, and for people:

    /underreplicated/bookiecheckctime       `Audit`
    /underreplicated/checkallledgersctime   `CheckRecord`
    /underreplicated/placementcheckctime    `PlacementRecord`
    /underreplicated/replicascheckctime     `ReplicasRecord`
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final, Self

from bookie.autorecovery.marks import FORMAT_VERSION, Marks
from bookie.autorecovery.protocol.checks import (
    Judgement,
    is_urgent,
    judge,
    members_with_entries,
    questions,
    settled_ensembles,
    to_read,
)
from bookie.autorecovery.protocol.repair_plan import Question, Share
from bookie.autorecovery.repair_io import CopyPace
from bookie.autorecovery.replica_scan import look
from ledger.client import LedgerClient
from ledger.environment import Environment, repair_credentials
from ledger.errors import DamagedMetadata, NoSuchLedger, NoSuchNode
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger, now_ms
from ledger.manager import LedgerStore
from ledger.mark import MissingReplica, Reason
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import MetadataStore, children_of, put_node
from ledger.nodes import parse_node
from ledger.registry import COOKIES, Retirement, retirement_of
from ledger.tasks import for_each
from ledger.wire import metadata_pb2 as pb

READS_MAX: Final = 500
"""Ledgers of one part, all read at once."""
Part = list[tuple[LedgerId, LedgerMetadata | None]]
"""Ledgers and their metadata; None where those cannot be read."""
LEDGERS_MAX: Final = 8
"""Checked at a time."""
_log = get_logger(__name__)


async def parts_of(ledgers: LedgerStore, *, reads_max: int = READS_MAX) -> AsyncIterator[Part]:
    """Yield all ledgers that existed when this was called, in parts; the last one may be empty.

    Complete, or `MetadataUnavailable` is raised: never a silent part."""
    ids: list[LedgerId] = []
    async for ledger_id in ledgers.list():
        ids.append(ledger_id)
        if len(ids) == reads_max:
            yield await _read(ledgers, ids)
            ids = []
    yield await _read(ledgers, ids)


async def _read(ledgers: LedgerStore, ids: list[LedgerId]) -> Part:
    found: dict[LedgerId, LedgerMetadata | None] = {}

    async def read(ledger_id: LedgerId) -> None:
        exists, metadata = await _metadata(ledgers, ledger_id)
        if exists:
            found[ledger_id] = metadata

    await for_each(ids, read, at_once=READS_MAX)
    missing = [ledger_id for ledger_id in ids if ledger_id not in found]
    found |= dict.fromkeys(await ledgers.hidden(missing))
    return [(ledger_id, found[ledger_id]) for ledger_id in ids if ledger_id in found]


async def _metadata(
    ledgers: LedgerStore, ledger_id: LedgerId
) -> tuple[bool, LedgerMetadata | None]:
    """Return whether the ledger exists, and its metadata unless they are damaged."""
    try:
        return True, (await ledgers.read(ledger_id))[0]
    except NoSuchLedger:
        return False, None
    except DamagedMetadata as error:
        _log.error("ledger_unreadable", ledger_id=ledger_id, reason=str(error))
        return True, None


@dataclass(frozen=True, kw_only=True)
class _Report:
    """One node; the fields are those of its message."""

    path: ClassVar[str]
    message: ClassVar[type[Any]]
    at_ms: int

    async def write(self, store: MetadataStore) -> None:
        """Raises `MetadataUnavailable`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        node = self.message(version=FORMAT_VERSION, **values)
        await put_node(store, self.path, node.SerializeToString(deterministic=True))

    @classmethod
    async def last(cls, store: MetadataStore) -> Self | None:
        """Return what was written last, None if nothing was.

        Raises `MetadataUnavailable`, `DamagedMetadata`."""
        try:
            value = (await store.get(cls.path)).value
        except NoSuchNode:
            return None
        node = cls.message()
        parse_node(node, value, cls.path, version=FORMAT_VERSION)
        return cls(**{each.name: _plain(getattr(node, each.name)) for each in fields(cls)})


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else tuple(value)


@dataclass(frozen=True, kw_only=True)
class Audit(_Report):
    """A pass over all ledgers."""

    path = "/underreplicated/bookiecheckctime"
    message = pb.AuditNode
    ledgers: int
    marked: int
    damaged: int
    """Ledgers whose metadata could not be read."""
    lost: tuple[BookieId, ...]
    """Bookies that had been away for longer than the delay."""
    alarm: str
    """Why nothing was marked; empty if nothing is wrong."""
    auditor: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckRecord(_Report):
    """A check of all ledgers."""

    path = "/underreplicated/checkallledgersctime"
    message = pb.CheckNode
    ledgers: int
    lacking: int
    unsure: int
    unreadable: int
    bytes: int = 0
    """Payload of CLOSED ledgers, each copy counted."""


@dataclass(frozen=True, kw_only=True)
class PlacementRecord(_Report):
    path = "/underreplicated/placementcheckctime"
    message = pb.PlacementNode
    ledgers: int
    misplaced: int
    """Ledgers with a settled fragment that another ensemble would spread over more racks; they are
    marked."""


@dataclass(frozen=True, kw_only=True)
class ReplicasRecord(_Report):
    path = "/underreplicated/replicascheckctime"
    message = pb.ReplicasNode
    ledgers: int
    away: int
    """Ledgers with entries on a bookie that was away, also within its delay."""
    urgent: int
    """Ledgers with entries for which fewer than Qa bookies were there."""
    unknown: int = 0
    """Ledgers with entries on a bookie that no cookie speaks of; they are marked."""


@dataclass(slots=True)
class Check:
    """The result of a check."""

    ledgers: int = 0
    lacking: int = 0
    """Ledgers of which a registered bookie lacks entries; they are marked."""
    unsure: int = 0
    """Ledgers of which a bookie is away, or did not say all."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be read."""
    bytes: int = 0
    """Payload of CLOSED ledgers, each copy counted."""


@dataclass(frozen=True, slots=True)
class Scrub:
    """How much a check reads, and how fast."""

    share: float
    """Of the entries, 0 to 1."""
    pace: CopyPace


async def check_all(
    client: LedgerClient,
    *,
    scrub: Scrub | None = None,
    on_progress: Callable[[Check], None] = lambda _: None,
) -> Check:
    """Check all ledgers, and mark what lacks entries; return what was found.

    Without *scrub* no entry is read. Raises `MetadataUnavailable`; what was marked until then
    stays so."""
    check, marks = Check(), Marks(client.store)

    async def work(found: tuple[LedgerId, LedgerMetadata | None]) -> None:
        ledger_id, metadata = found
        check.ledgers += 1
        if metadata is None:
            check.unreadable += 1
            return
        check.bytes += (metadata.length or 0) * metadata.quorum.write
        judgement = await _judged(client.environment, ledger_id, metadata, scrub)
        check.unsure += judgement.unsure
        if judgement.lacking:
            check.lacking += 1
            since_ms = now_ms()
            missing = [
                MissingReplica(bookie, reason, since_ms) for bookie, reason in judgement.lacking
            ]
            await marks.add(ledger_id, missing, urgent=judgement.urgent)

    async for part in parts_of(client.ledgers):
        before = check.lacking
        await for_each(part, work, at_once=LEDGERS_MAX)
        if check.lacking > before:
            await marks.notify_workers()
        on_progress(check)
    return check


async def _judged(
    environment: Environment, ledger_id: LedgerId, metadata: LedgerMetadata, scrub: Scrub | None
) -> Judgement:
    registered = environment.registered()
    credentials = repair_credentials(ledger_id, metadata)
    asked = questions(metadata)
    said: dict[Question, Share] = {}
    read: dict[Question, Share] = {}
    for question in asked:
        if question.bookie not in registered:
            continue
        at = environment.transport, credentials, metadata.quorum
        said[question] = await look(*at, question, thorough=False)
        if scrub is None:
            continue
        if some := to_read(question, scrub.share, environment.random):
            read[question] = await look(*at, some, thorough=True, pace=scrub.pace.take)
    return judge(metadata.quorum, asked, said, read)


async def record(store: MetadataStore, check: Check, *, at_ms: int) -> None:
    """Write down how *check* ended: the next one is due a while after that, in whatever process."""
    await CheckRecord(at_ms=at_ms, **asdict(check)).write(store)


async def check_placement(client: LedgerClient, *, now_ms: int) -> PlacementRecord:
    """Judge the ensemble of each settled fragment, and mark ledgers of which one could be better.

    Only where all members are there: what is lost comes first. Raises `MetadataUnavailable`."""
    marks = Marks(client.store)
    environment = client.environment
    ledgers = misplaced = 0
    async for part in parts_of(client.ledgers):
        marked = False
        registered = environment.registered()
        for ledger_id, metadata in part:
            ledgers += 1
            if metadata is None:
                continue
            exchanged: set[BookieId] = set()
            for ensemble in settled_ensembles(metadata):
                if registered.issuperset(ensemble):
                    better = environment.better(metadata.quorum, ensemble)
                    exchanged.update(ensemble[index] for index, _ in better)
            if exchanged:
                misplaced += 1
                missing = [
                    MissingReplica(bookie, Reason.MISPLACED, now_ms) for bookie in sorted(exchanged)
                ]
                marked |= await marks.add(ledger_id, missing)
        if marked:
            await marks.notify_workers()
    return PlacementRecord(at_ms=now_ms, ledgers=ledgers, misplaced=misplaced)


async def check_replicas(client: LedgerClient, *, now_ms: int) -> ReplicasRecord:
    """Count ledgers with entries on bookies that are away.

    Those are not marked: a bookie within its delay is not lost yet. But a name that is retired and
    emptied, or has no cookie, never comes back, and no auditor waits for it: so it is if a client
    that slept names a bookie that was emptied meanwhile.

    Raises `MetadataUnavailable`."""
    marks = Marks(client.store)
    ledgers = away = urgent = unknown = 0
    emptied = await _emptied(client)
    async for part in parts_of(client.ledgers):
        # After the ledgers were read, as for who is lost (rule 85).
        registered = client.environment.registered()
        cookies = set(map(BookieId, await children_of(client.store, COOKIES)))
        known = registered | (cookies - emptied)
        marked = False
        for ledger_id, metadata in part:
            ledgers += 1
            if metadata is None:
                continue
            members = members_with_entries(metadata)
            away += bool(members - registered)
            urgent += is_urgent(metadata, members - registered)
            if members <= known:
                continue
            unknown += 1
            missing = [
                MissingReplica(bookie, Reason.LOST, now_ms) for bookie in sorted(members - known)
            ]
            marked |= await marks.add(ledger_id, missing)
        if marked:
            await marks.notify_workers()
    return ReplicasRecord(at_ms=now_ms, ledgers=ledgers, away=away, urgent=urgent, unknown=unknown)


async def _emptied(client: LedgerClient) -> frozenset[BookieId]:
    """Return the names that are retired and emptied; they stay so."""
    names = map(BookieId, await children_of(client.store, COOKIES))
    emptied = Retirement.EMPTIED
    return frozenset([b for b in names if await retirement_of(client.store, b) is emptied])
