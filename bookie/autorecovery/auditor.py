"""The auditor: elected, it watches the bookies and marks what lacks copies (`protocol.audit`).

All processes of repair stand for election; the others wait. There being one auditor only saves
work: marks merge, so that two of them do no harm.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Final

from bookie.autorecovery.checks import (
    Audit,
    CheckRecord,
    Part,
    PlacementRecord,
    ReplicasRecord,
    Scrub,
    check_all,
    check_placement,
    check_replicas,
    parts_of,
    record,
)
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol import audit as protocol
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.protocol.checks import bounded_share
from bookie.autorecovery.repair_io import CopyPace
from leader import campaign
from ledger.client import LedgerClient
from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger, now_ms
from ledger.mark import MissingReplica
from ledger.metastore.port import MetadataStore, Watch, children_of
from ledger.procedures import run
from ledger.process import this_process
from ledger.protocol.procedure import Action
from ledger.registry import (
    AVAILABLE,
    COOKIES,
    DECOMMISSIONING,
    READ_ONLY,
    Retirement,
    retirement_of,
)
from ledger.tasks import Background, for_each

ELECTION: Final = ".auditor"
"""No log can have this name."""
WRITES_MAX: Final = 50
ELECT_AGAIN_S: Final = 5.0

_log = get_logger(__name__)


class AuditCounts:
    """What the auditor of this process has done, over all its terms."""

    def __init__(self) -> None:
        self.leads = False
        self.terms = self.passes = self.marked = 0
        self.failures = Counter[str]()
        """Passes and checks that were cut off, and elections that could not be held."""
        self.checks = Counter[str]()
        """By kind."""
        self.last_pass_ms = self.lost = 0
        """When the last pass ended, and how many bookies were lost then."""
        self.alarm = False
        """Whether it marked nothing, as too much was lost."""


class Auditor(Background):
    """`start` and `close`, or an async context manager; or only `run`."""

    def __init__(
        self,
        client: LedgerClient,
        config: AuditConfig | None = None,
        *,
        wall_clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._client = client
        self._config = config or AuditConfig()
        self._now_ms = wall_clock_ms
        self.counts = AuditCounts()

    async def run(self) -> None:
        """Stand for election until cancelled, and audit while elected."""
        while True:
            try:
                term = await campaign(self._client.store, ELECTION, lifeline_host=None)
            except LogError as error:
                self.counts.failures["election"] += 1
                _log.warning("auditor_not_elected", reason=str(error))
                await asyncio.sleep(ELECT_AGAIN_S)
                continue
            async with term:
                self.counts.terms += 1
                self.counts.leads = True
                try:
                    await audit(
                        self._client,
                        self._config,
                        term.lost,
                        wall_clock_ms=self._now_ms,
                        counts=self.counts,
                    )
                finally:
                    self.counts.leads = False


async def audit(
    client: LedgerClient,
    config: AuditConfig,
    lost: asyncio.Event,
    *,
    wall_clock_ms: Callable[[], int] = now_ms,
    counts: AuditCounts | None = None,
) -> None:
    """Be the auditor until *lost* is set."""
    await _Auditing(client, config, wall_clock_ms, counts).until(lost)


class _Auditing:
    """One term: does the actions of the audit."""

    def __init__(
        self,
        client: LedgerClient,
        config: AuditConfig,
        wall_clock_ms: Callable[[], int],
        counts: AuditCounts | None = None,
    ) -> None:
        self._counts = counts or AuditCounts()
        self._client, self._config = client, config
        self._store: MetadataStore = client.store
        self._ledgers = client.ledgers
        self._marks = Marks(client.store)
        self._now_ms = wall_clock_ms
        self._clock = asyncio.get_running_loop().time
        self._parts: AsyncIterator[Part] | None = None
        self._emptied: set[BookieId] = set()
        """Names that are retired and emptied, and stay so. A ledger that names one nevertheless is
        found by `check_replicas`."""
        self._changed = asyncio.Event()
        """The list of bookies may have changed."""
        self._check: asyncio.Task[protocol.CheckEnded] | None = None
        """Under way, or ended and not yet reported."""

    async def until(self, lost: asyncio.Event) -> None:
        auditing = asyncio.ensure_future(run(protocol.audit(self._config), self.perform))
        losing = asyncio.ensure_future(lost.wait())
        tasks: list[asyncio.Future[Any]] = [auditing, losing]
        with ExitStack() as watches:
            # Watched before it is read: what changes in between is read again.
            for path in (COOKIES, AVAILABLE, READ_ONLY, DECOMMISSIONING):
                watch = self._store.watch(path)
                watches.callback(watch.close)
                tasks.append(asyncio.ensure_future(self._watch(watch)))
            try:
                await asyncio.wait({losing, auditing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if self._check is not None:
                    tasks.append(self._check)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if not auditing.cancelled():
                auditing.result()

    async def _watch(self, watch: Watch) -> None:
        while True:
            await watch.changed()
            self._changed.set()

    async def perform(self, action: Action[Any]) -> object:
        try:
            return await self._perform(action)
        except LogError as error:
            self._parts = None
            self._counts.failures["pass"] += 1
            _log.warning("audit_interrupted", reason=str(error))
            raise

    async def _perform(self, action: Action[Any]) -> object:
        match action:
            case protocol.ReadMembership():
                return await self._see()
            case protocol.ReadLedgers(begin):
                return await self._read(begin=begin)
            case protocol.MarkLedgers():
                return await self._mark(action)
            case protocol.RecordPass():
                await self._record(action)
            case protocol.TakeNews():
                return self._take_news()
            case protocol.BeginCheck(kind):
                assert self._check is None, "one check at a time"
                self._check = asyncio.ensure_future(self._ended(kind))
            case protocol.Await(until):
                return await self._await(until)
            case _:
                raise AssertionError(f"no action of an audit: {action}")
        return None

    def _take_news(self) -> bool:
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    async def _await(self, until: float) -> protocol.CheckEnded | None:
        check = self._check
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait(
                {changed} if check is None else {changed, check},
                timeout=max(until - self._clock(), 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()
        if check is None or not check.done():
            self._take_news()
            return None
        self._check = None
        return check.result()

    async def _ended(self, kind: protocol.CheckKind) -> protocol.CheckEnded:
        """Make a check, and report how it ended."""
        failed = False
        try:
            await self._make_check(kind)
        except LogError as error:
            failed = True
            self._counts.failures["check"] += 1
            _log.warning("check_interrupted", reason=str(error))
        return protocol.CheckEnded(self._clock(), failed=failed)

    async def _see(self) -> protocol.BookiesKnown:
        await self._store.sync(COOKIES)
        checked_ms = await self._checked_ms()
        known = await self._names(COOKIES)
        registered = await self._names(AVAILABLE) | await self._names(READ_ONLY)
        retired: set[BookieId] = set()
        for bookie in sorted(known - registered - self._emptied):
            retirement = await retirement_of(self._store, bookie)
            if retirement is Retirement.EMPTIED:
                self._emptied.add(bookie)
            elif retirement is Retirement.RETIRED:
                retired.add(bookie)
        return protocol.BookiesKnown(
            known=known - self._emptied,
            retired=frozenset(retired),
            registered=registered,
            leaving=await self._marks.decommissioning(),
            delay_s=await self._marks.delay_s(),
            checked_ms=checked_ms,
            now_ms=self._now_ms(),
        )

    async def _checked_ms(self) -> dict[protocol.CheckKind, int]:
        last = {
            protocol.CheckKind.LEDGERS: await CheckRecord.last(self._store),
            protocol.CheckKind.PLACEMENT: await PlacementRecord.last(self._store),
            protocol.CheckKind.REPLICAS: await ReplicasRecord.last(self._store),
        }
        return {kind: record.at_ms for kind, record in last.items() if record is not None}

    async def _scrub(self) -> Scrub:
        """Return how much to read, by what the last check has found to be there."""
        config, last = self._config, await CheckRecord.last(self._store)
        share = config.scrub_share
        if last is not None and config.scrub_bytes_per_s > 0:
            share = bounded_share(share, copies_bytes=last.bytes, bytes_max=config.scrub_bytes_max)
        return Scrub(share, CopyPace(config.scrub_bytes_per_s))

    async def _make_check(self, kind: protocol.CheckKind) -> None:
        match kind:
            case protocol.CheckKind.LEDGERS:
                check = await check_all(self._client, scrub=await self._scrub())
                await record(self._store, check, at_ms=self._now_ms())
                _log.info("ledgers_checked", **asdict(check))
            case protocol.CheckKind.PLACEMENT:
                placement = await check_placement(self._client, now_ms=self._now_ms())
                await placement.write(self._store)
                _log.info("placement_checked", **asdict(placement))
            case protocol.CheckKind.REPLICAS:
                replicas = await check_replicas(self._client, now_ms=self._now_ms())
                await replicas.write(self._store)
                report = _log.warning if replicas.urgent else _log.info
                report("replicas_counted", **asdict(replicas))
        self._counts.checks[kind.name.lower()] += 1

    async def _names(self, path: str) -> frozenset[BookieId]:
        return frozenset(map(BookieId, await children_of(self._store, path)))

    async def _read(self, *, begin: bool) -> protocol.LedgersPart | None:
        if begin or self._parts is None:
            self._parts = parts_of(self._ledgers)
        async for part in self._parts:
            return tuple(part)
        self._parts = None
        return None

    async def _mark(self, action: protocol.MarkLedgers) -> int:
        marked = 0

        async def write(found: tuple[LedgerId, tuple[MissingReplica, ...]]) -> None:
            nonlocal marked
            ledger_id, missing = found
            urgent = ledger_id in action.urgent
            is_new = await self._marks.add(ledger_id, missing, urgent=urgent)
            marked += is_new  # what others counted meanwhile stays

        await for_each(action.missing, write, at_once=WRITES_MAX)
        if marked:
            self._counts.marked += marked
            await self._marks.notify_workers()
        return marked

    async def _record(self, action: protocol.RecordPass) -> None:
        if action.alarm:
            _log.error("audit_alarm", reason=action.alarm)
        elif action.ledgers:
            _log.info("audit_pass", ledgers=action.ledgers, marked=action.marked, lost=action.lost)
        audit = Audit(
            at_ms=self._now_ms(),
            ledgers=action.ledgers,
            marked=action.marked,
            damaged=action.damaged,
            lost=action.lost,
            alarm=action.alarm,
            auditor=this_process(),
        )
        await audit.write(self._store)
        counts = self._counts
        counts.passes += 1
        counts.last_pass_ms, counts.lost = audit.at_ms, len(action.lost)
        counts.alarm = bool(action.alarm)
