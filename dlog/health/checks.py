"""All checks there are, and how they are made: one more is one more line in `CHECKS`.

What only the doctor looks at is gathered here: each bookie is asked, each manifest read. See
`survey` for what is gathered for all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Final, NamedTuple

from dlog.aio.maintain.janitor import ELECTION as JANITORS
from dlog.aio.store import ManifestNode, log_names
from dlog.errors import InvalidName, NoSuchLog
from dlog.health.acls import AclFacts
from dlog.health.archive import gather_archive
from dlog.health.findings import CheckResult, Facts, Report
from dlog.health.logs import DeletionsFacts
from dlog.health.servers import ServerFacts, ServersFacts, Validity
from dlog.health.store import StoreFacts
from dlog.health.survey import (
    ASKS_MAX,
    READS_MAX,
    Reach,
    gather_bookies,
    gather_logs,
    gather_openings,
    gather_repair,
    operator_of,
)
from dlog.protocol.retention import implausible_time
from leader import current_leader
from ledger.cluster import open_namespace
from ledger.errors import DamagedMetadata, LogError, NoNamespace
from ledger.ids import BookieId
from ledger.log_events import now_ms
from ledger.manager import LedgerStore
from ledger.membership import attendance
from ledger.metastore.acl_survey import survey_acls
from ledger.metastore.port import MetadataStore
from ledger.process import own_version
from ledger.registry import BookieRegistration
from ledger.security.certificates import Security
from ledger.security.documents import read_rules
from ledger.tasks import for_each
from ledger.transport.sockets import SocketTransport
from ledger.wire import bookie_pb2 as pb

SERVERS_MAX: Final = 1_000
MANIFESTS_MAX: Final = 10_000
FILLING_PERCENT: Final = 50
CHECK_S_MAX: Final = 60.0
"""A check that takes longer is given up."""
ANSWER_S_MAX: Final = 5.0
"""A bookie that does not answer an operator by then is silent."""


async def gather_servers(reach: Reach) -> ServersFacts:
    """Ask all bookies that are registered, as clients and as operators do."""
    registered = [
        _Registered(bookie.bookie, bookie.address, bookie.registration)
        for bookie in reach.there.bookies
        if bookie.registration is not None
    ]
    transport = reach.transport()
    found: dict[str, ServerFacts] = {}

    async def ask(bookie: _Registered) -> None:
        found[bookie.bookie] = await _asked(bookie, transport, reach)

    asked = registered[:SERVERS_MAX]
    try:
        await for_each(asked, ask, at_once=ASKS_MAX)
    finally:
        await transport.close()
    return ServersFacts(
        version=own_version(),
        servers=tuple(found[each.bookie] for each in asked),
        left_out=len(registered) - len(asked),
        now_s=now_ms() / 1000,
        own_certificate=None if reach.security is None else _validity(reach.security),
    )


def _validity(security: Security) -> Validity:
    own = security.certificate
    return Validity(own.begins_at, own.expires_at)


class _Registered(NamedTuple):
    bookie: str
    address: str
    registration: BookieRegistration


async def _asked(bookie: _Registered, transport: SocketTransport, reach: Reach) -> ServerFacts:
    info, (status, silent, answered_s, clock_off_s) = await asyncio.gather(
        transport.info(BookieId(bookie.bookie)), _status(bookie.registration, reach)
    )
    return ServerFacts(
        bookie=bookie.bookie,
        address=bookie.address,
        operator_address=bookie.registration.operator_address,
        reached=info is not None,
        silent=silent,
        status=status,
        answered_s=answered_s,
        clock_off_s=clock_off_s,
    )


async def _status(
    found: BookieRegistration, reach: Reach
) -> tuple[pb.StatusReply | None, str, float, float | None]:
    """Return what it said, why not, how long that took, and how far its clock is ahead of ours
    going by the middle of that time."""
    if not found.operator_address:
        return None, "it accepts no operator requests", 0.0, None
    try:
        async with operator_of(
            found, timeout_s=reach.timeout_s, security=reach.security
        ) as operator:
            await operator.status()  # connects, and warms up what the answer needs
            began_ms, began = now_ms(), time.perf_counter()
            status = await operator.status()
            took_s = time.perf_counter() - began
    except LogError as error:
        return None, str(error), 0.0, None
    off_s = (status.clock_ms - began_ms) / 1000 - took_s / 2
    return status, "", took_s, off_s if status.clock_ms else None


async def gather_acls(reach: Reach) -> AclFacts:
    """Raises `MetadataUnavailable`."""
    survey = await survey_acls(reach.store)
    try:
        grants = len((await read_rules(reach.store)).grants)
    except LogError:  # other checks say so
        grants = 0
    return AclFacts(survey, grants)


async def gather_deletions(reach: Reach) -> DeletionsFacts:
    """Raises `MetadataUnavailable`."""
    logs = await log_names(reach.store)
    half_deleted: list[str] = []
    waiting: list[tuple[str, int]] = []
    unread: list[str] = []
    implausible: list[tuple[str, str]] = []
    filling: list[tuple[str, int, int]] = []
    retained = 0
    now = now_ms()

    async def look(log: str) -> None:
        nonlocal retained
        try:
            manifest, _ = await ManifestNode(reach.store, log).read(fresh=False)
        except NoSuchLog:
            return  # deleted since
        except (DamagedMetadata, InvalidName):
            unread.append(log)
            return
        if (reason := implausible_time(manifest, now)) is not None:
            implausible.append((log, reason))
        if (percent := manifest.full_percent) >= FILLING_PERCENT:
            filling.append((log, percent, len(manifest.segments)))
        settings = manifest.settings
        retained += bool(settings.retention_age_s or settings.retention_bytes)
        if manifest.dropped:
            half_deleted.append(log)
        elif manifest.deleting:
            waiting.append((log, len(manifest.deleting)))

    looked_at = logs[:MANIFESTS_MAX]
    await for_each(looked_at, look, at_once=READS_MAX)
    janitor = await current_leader(reach.store, JANITORS)
    return DeletionsFacts(
        logs=len(logs),
        looked_at=len(looked_at),
        janitor="" if janitor is None else janitor.candidate,
        half_deleted=tuple(sorted(half_deleted)),
        waiting=tuple(sorted(waiting)),
        retained=retained,
        unread=tuple(sorted(unread)),
        implausible=tuple(sorted(implausible)),
        filling=tuple(sorted(filling)),
    )


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    """Of its facts in JSON."""
    gather: Callable[[Reach], Awaitable[Facts]]
    """May raise any `LogError`."""
    deep: bool = False
    """Only the doctor makes it: it asks much."""


CHECKS: Final = (
    Check("bookies", gather_bookies),
    Check("repair", gather_repair),
    Check("logs", gather_logs),
    Check("openings", gather_openings),
    Check("servers", gather_servers, deep=True),
    Check("deletions", gather_deletions, deep=True),
    Check("archive", gather_archive, deep=True),
    Check("acls", gather_acls, deep=True),
)


async def examine(
    store: MetadataStore,
    *,
    deep: bool,
    only: Container[str] | None = None,
    timeout_s: float = ANSWER_S_MAX,
    security: Security | None = None,
) -> Report:
    """Make all checks at once, the *deep* ones too if asked; or those that *only* names, deep or
    not. Changes nothing; raises nothing that another program is to blame for: a check that cannot
    be made is a finding itself."""
    began = time.perf_counter()
    try:
        await store.sync()
        answered_s = time.perf_counter() - began
        namespace = await open_namespace(store)
        there = await attendance(store)
    except NoNamespace:
        return Report((CheckResult("store", StoreFacts(uri=store.uri)),))
    except LogError as error:
        return unreachable(store.uri, error)
    facts = StoreFacts(
        uri=store.uri,
        instance=namespace.instance,
        answered_s=answered_s,
        held=namespace.held,
    )
    ledgers = LedgerStore(store, namespace.layout)
    reach = Reach(
        store, ledgers, there, min(timeout_s, ANSWER_S_MAX), security, namespace.held.level
    )
    wanted = [
        check
        for check in CHECKS
        if (deep or not check.deep if only is None else check.name in only)
    ]
    made = await asyncio.gather(*(_made(check, reach) for check in wanted))
    return Report((CheckResult("store", facts), *made))


def unreachable(uri: str, error: LogError) -> Report:
    """Return what is to be said if the metadata store does not serve."""
    return Report((CheckResult("store", StoreFacts(uri=uri, trouble=str(error))),))


async def _made(check: Check, reach: Reach) -> CheckResult:
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            return CheckResult(check.name, await check.gather(reach))
    except TimeoutError:
        return CheckResult(check.name, None, f"it took longer than {CHECK_S_MAX:g} s")
    except LogError as error:
        return CheckResult(check.name, None, str(error))
