"""Gathers the facts: asks the metadata store and the bookies, some at a time, a bounded number of
them, each within a deadline. Decides nothing, changes nothing.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from bookie.autorecovery.auditor import ELECTION as AUDITORS
from bookie.autorecovery.checks import Audit
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.checks import is_urgent, members_with_entries
from bookie.autorecovery.worker import reports
from dlog.aio.maintain.survey import was_left_open
from dlog.aio.store import ManifestNode, log_names
from dlog.errors import InvalidName, NoSuchLog
from dlog.health.bookies import BookieFacts, BookiesFacts
from dlog.health.logs import LogsFacts, Obstacle, OpeningsFacts, blocked_by
from dlog.health.repair import RepairFacts, sample
from dlog.names import is_own
from leader import contested_logs, current_leader, is_led
from ledger.environment import repair_credentials
from ledger.errors import CallerError, DamagedMetadata, LogError, NoSuchLedger
from ledger.feature_level import FIRST
from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.mark import UnderreplicatedLedger
from ledger.membership import KnownBookie, Membership
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metastore.port import MetadataStore
from ledger.protocol.answers import proven_lac
from ledger.registry import BookieDirectory, BookieRegistration
from ledger.requests import LacQuery, Status
from ledger.security.certificates import Security
from ledger.security.settings import Takes
from ledger.tasks import for_each
from ledger.transport.handshake import NEEDED
from ledger.transport.operator import BookieOperator
from ledger.transport.sockets import SocketTransport

READS_MAX: Final = 50
"""Of the metadata store, at once."""
ASKS_MAX: Final = 16
"""Of bookies, at once."""
ASKED_MAX: Final = 100
"""So many read-only bookies are asked why they are."""
MARKS_MAX: Final = 1_000
"""So many marks are read; all are counted."""
LISTED_MAX: Final = 1_000_000
"""So many ids of ledgers are listed."""
REASONS_MAX: Final = 10
ELECTIONS_MAX: Final = 10_000
MANIFESTS_MAX: Final = 1_000
"""Of logs without a leader; and of all, for whether they can be opened."""
OPEN_LOGS_MAX: Final = 200
"""Of so many logs bookies are asked what they hold of open segments."""


class NoOrders(CallerError):
    """The bookie cannot be given orders."""

    def __init__(self, bookie: str, reason: str) -> None:
        super().__init__(reason)
        self.bookie, self.reason = bookie, reason


def taking_orders(
    directory: BookieDirectory, bookie: str, *, security: Security | None
) -> BookieRegistration:
    """Return how *bookie* is given orders. One that is not registered is asked where its clients
    last found it, and will not answer. Raises `NoOrders`."""
    for found in directory.available():
        if found.bookie == bookie:
            if not found.operator_address:
                reason = f"bookie {bookie!r} accepts no operator requests: start it with {NEEDED}"
                raise NoOrders(bookie, reason)
            return found
    address = directory.address(bookie)
    if not address:
        raise NoOrders(bookie, f"no bookie {bookie!r} is known; see 'dlog bookie list'")
    takes = Takes.PLAIN if security is None else security.takes
    meant = directory.identity(bookie)
    return BookieRegistration(
        bookie,
        address,
        "",
        operator_address=address,
        takes=takes,
        identity="" if meant is None else meant.identity,
        instance="" if meant is None else meant.instance,
    )


@asynccontextmanager
async def operator_of(
    found: BookieRegistration, *, timeout_s: float, security: Security | None
) -> AsyncIterator[BookieOperator]:
    """Yield a connection to the operators' port of the bookie, which must have one; *security* is
    what this process has. Raises `TransportMismatch`."""
    operator = BookieOperator(
        found.operator_address,
        bookie=found.bookie,
        meant=found.meant,
        timeout_s=timeout_s,
        security=security,
        takes=found.takes,
    )
    async with operator:
        yield operator


@dataclass(frozen=True, slots=True)
class Reach:
    """All that a survey queries, and how."""

    store: MetadataStore
    ledgers: LedgerStore
    there: Membership
    timeout_s: float
    """For each answer of a bookie."""
    security: Security | None = None
    """The certificates of this process."""
    level: int = FIRST
    """Of the cluster."""

    @property
    def registered(self) -> frozenset[BookieId]:
        return frozenset(
            BookieId(bookie.bookie)
            for bookie in self.there.bookies
            if bookie.registration is not None or bookie.damaged
        )

    def transport(self) -> SocketTransport:
        """Return what asks the bookies that are registered, as clients do. The caller closes it."""
        there = {
            BookieId(bookie.bookie): (bookie.address, bookie.registration)
            for bookie in self.there.bookies
            if bookie.registration is not None
        }
        return SocketTransport(
            {bookie: address for bookie, (address, _) in there.items()}.get,
            timeout_s=self.timeout_s,
            security=self.security,
            takes={bookie: found.takes for bookie, (_, found) in there.items()}.get,
            meant={bookie: found.meant for bookie, (_, found) in there.items()}.get,
        )


async def gather_bookies(reach: Reach) -> BookiesFacts:
    """Raises `MetadataUnavailable`."""
    refusing = [
        bookie.bookie
        for bookie in reach.there.bookies
        if bookie.registration is not None and bookie.registration.read_only and not bookie.leaving
    ]
    reasons: dict[str, tuple[str, ...]] = {}
    silent: dict[str, str] = {}

    async def ask(bookie: KnownBookie) -> None:
        assert bookie.registration is not None
        if not bookie.registration.operator_address:
            silent[bookie.bookie] = "it accepts no operator requests"
            return
        try:
            async with operator_of(
                bookie.registration, timeout_s=reach.timeout_s, security=reach.security
            ) as operator:
                reasons[bookie.bookie] = tuple((await operator.status()).reasons)
        except LogError as error:
            silent[bookie.bookie] = str(error)

    asked = frozenset(refusing[:ASKED_MAX])
    await for_each(
        [each for each in reach.there.bookies if each.bookie in asked], ask, at_once=ASKS_MAX
    )
    return BookiesFacts(
        bookies=tuple(
            _facts(each, reasons.get(each.bookie, ()), silent.get(each.bookie, ""))
            for each in reach.there.bookies
        ),
        left_out=reach.there.left_out,
        not_asked=len(refusing) - len(asked),
        level=reach.level,
    )


def _facts(known: KnownBookie, reasons: tuple[str, ...], silent: str) -> BookieFacts:
    found = known.registration
    return BookieFacts(
        bookie=known.bookie,
        address=known.address,
        rack="" if found is None else found.rack,
        registered=found is not None,
        read_only=found is not None and found.read_only,
        leaving=known.leaving,
        retired=known.retired,
        limbo=known.limbo if found is not None else "",
        damaged=known.damaged,
        reasons=reasons,
        silent=silent,
        reads=FIRST if found is None else found.level,
    )


async def gather_repair(reach: Reach) -> RepairFacts:
    """Raises `MetadataUnavailable`, `DamagedMetadata`."""
    marks = Marks(reach.store)
    listed: list[LedgerId] = []
    marked = 0
    async for bucket in marks.buckets():
        marked += len(bucket)
        listed.extend(bucket[: MARKS_MAX - len(listed)])
    read: dict[LedgerId, UnderreplicatedLedger] = {}

    async def look(ledger_id: LedgerId) -> None:
        found = await marks.read(ledger_id)
        if found is not None:
            read[ledger_id] = found[0]

    await for_each(listed, look, at_once=READS_MAX)
    urgent = len(await marks.urgent())
    audit = await Audit.last(reach.store)
    auditor = await current_leader(reach.store, AUDITORS)
    reasons = dict.fromkeys(mark.deferred_why for mark in read.values() if mark.deferred_why)
    away = tuple(bookie.bookie for bookie in reach.there.bookies if bookie.is_missed)
    ledgers, looked_at, exposed, short = await _exposed(reach) if away else (0, 0, 0, 0)
    return RepairFacts(
        enabled=await marks.enabled(),
        auditor="" if auditor is None else auditor.candidate,
        alarm="" if audit is None else audit.alarm,
        workers=len(await reports(reach.store)),
        marked=marked,
        looked_at=len(listed),
        urgent=urgent,
        deferred=sum(mark.attempts > 0 for mark in read.values()),
        deferred_why=tuple(reasons)[:REASONS_MAX],
        lost=tuple(sorted(each for each, mark in read.items() if mark.lost)),
        differing=tuple(sorted(each for each, mark in read.items() if mark.differing)),
        lacking=tuple(dict.fromkeys(mark.bookies for mark in read.values())),
        away=away,
        ledgers=ledgers,
        sampled=looked_at,
        exposed=exposed,
        short=short,
    )


async def _exposed(reach: Reach) -> tuple[int, int, int, int]:
    """Return how many ledgers there are, how many were looked at, and how many of those have
    entries on bookies that are not there: at all, and on too many."""
    ids: list[LedgerId] = []
    async for ledger_id in reach.ledgers.list():
        if len(ids) == LISTED_MAX:
            break
        ids.append(ledger_id)
    there, exposed, short = reach.registered, 0, 0

    async def look(ledger_id: LedgerId) -> None:
        nonlocal exposed, short
        try:
            metadata, _ = await reach.ledgers.read(ledger_id)
        except (NoSuchLedger, DamagedMetadata):
            return  # deleted since; or an audit counts it
        gone = members_with_entries(metadata) - there
        exposed += bool(gone)
        short += bool(gone) and is_urgent(metadata, gone)

    looked_at = sample(ids)
    await for_each(looked_at, look, at_once=READS_MAX)
    return len(ids), len(looked_at), exposed, short


async def gather_logs(reach: Reach) -> LogsFacts:
    """Raises `MetadataUnavailable`."""
    logs = await log_names(reach.store)
    contested = sorted(set(await contested_logs(reach.store)).intersection(logs))
    looked_at = contested[:ELECTIONS_MAX]
    unled: list[str] = []

    async def look(log: str) -> None:
        if not await is_led(reach.store, log):
            unled.append(log)

    await for_each(looked_at, look, at_once=READS_MAX)
    leaderless, unread = await _left_open(reach.store, sorted(unled)[:MANIFESTS_MAX])
    own = sum(map(is_own, logs))
    return LogsFacts(
        logs=len(logs) - own,
        own=own,
        elections=len(contested),
        looked_at=len(looked_at),
        led=len(looked_at) - len(unled),
        leaderless=leaderless,
        unread=unread,
        not_read=max(0, len(unled) - MANIFESTS_MAX),
    )


async def _left_open(
    store: MetadataStore, logs: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which of *logs* their writers did not close, and of which that cannot be read."""
    left: list[str] = []
    unread: list[str] = []

    async def look(log: str) -> None:
        try:
            manifest, _ = await ManifestNode(store, log).read(fresh=False)
        except NoSuchLog:
            return  # deleted since
        except (DamagedMetadata, InvalidName):
            unread.append(log)
            return
        if was_left_open(manifest):
            left.append(log)

    await for_each(logs, look, at_once=READS_MAX)
    return tuple(sorted(left)), tuple(sorted(unread))


async def gather_openings(reach: Reach) -> OpeningsFacts:
    """Raises `MetadataUnavailable`."""
    logs = await log_names(reach.store)
    looked_at = sorted(logs)[:MANIFESTS_MAX]
    open_ledgers: dict[str, list[tuple[LedgerId, LedgerMetadata]]] = {}

    async def look(log: str) -> None:
        try:
            manifest, _ = await ManifestNode(reach.store, log).read(fresh=False)
            found = [
                (segment.ledger_id, (await reach.ledgers.read(segment.ledger_id))[0])
                for segment in manifest.segments
                if segment.sealed is None and not (manifest.sealed or manifest.dropped)
            ]
        except (NoSuchLog, NoSuchLedger, DamagedMetadata, InvalidName):
            return  # deleted since; or another check says that it cannot be read
        if any(metadata.state is not LedgerState.CLOSED for _, metadata in found):
            open_ledgers[log] = found

    await for_each(looked_at, look, at_once=READS_MAX)
    blocked: dict[str, Obstacle] = {}
    asked = sorted(open_ledgers)[:OPEN_LOGS_MAX]
    transport = reach.transport()

    async def ask(log: str) -> None:
        for ledger_id, metadata in open_ledgers[log]:
            claims = await _claims(transport, ledger_id, metadata) if log in asked else {}
            obstacle = blocked_by(ledger_id, metadata, reach.registered, claims)
            if obstacle is not None:
                blocked[log] = obstacle

    try:
        await for_each(sorted(open_ledgers), ask, at_once=ASKS_MAX)
    finally:
        await transport.close()
    return OpeningsFacts(
        logs=len(logs),
        looked_at=len(looked_at),
        open=len(open_ledgers),
        asked=len(asked),
        blocked=tuple(sorted(blocked.items())),
    )


async def _claims(
    transport: SocketTransport, ledger_id: LedgerId, metadata: LedgerMetadata
) -> dict[str, tuple[int, int]]:
    """Return, by member that answers, the last entry that it proves to be confirmed, and the last
    one that it holds."""
    keys = repair_credentials(ledger_id, metadata)
    claims: dict[str, tuple[int, int]] = {}
    for bookie in metadata.last_fragment.bookies:
        answer = await transport.read_lac(bookie, LacQuery(ledger_id, keys.key))
        if answer.status is Status.OK:
            lac = proven_lac(answer.lac_proof, ledger_id, keys.checks)
            claims[bookie] = lac, answer.last_entry
    return claims
