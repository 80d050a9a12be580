"""Drives `protocol.audit`: elected, it watches the bookies and marks what lacks copies.

All processes of repair stand for election; the others wait. There being one auditor only saves
work: marks merge, so that two of them do no harm.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Final, assert_never

from bookie.autorecovery.ledger_check import Scrub, check_all, record
from bookie.autorecovery.ledger_scan import Part, parts_of
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.metadata_checks import check_placement, check_replicas
from bookie.autorecovery.protocol import audit_events as protocol
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.protocol.audit import Auditor as Auditing
from bookie.autorecovery.protocol.ledger_check import bounded_share
from bookie.autorecovery.repair_io import Pace
from bookie.autorecovery.reports import Audit, CheckRecord, PlacementRecord, ReplicasRecord
from leader import campaign
from ledger.background import Background
from ledger.client import LedgerClient
from ledger.clock import now_ms
from ledger.concurrently import for_each
from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger
from ledger.machine_loop import MachineLoop
from ledger.mark import Lack
from ledger.metastore.nodes import children_of
from ledger.metastore.port import MetadataStore, Watch
from ledger.process import this_process
from ledger.protocol.common_events import TimePassed
from ledger.registry import (
    AVAILABLE,
    COOKIES,
    DECOMMISSIONING,
    READ_ONLY,
    Retirement,
    retirement_of,
)

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
    auditing = _Auditing(client, config, wall_clock_ms, counts)
    try:
        await auditing.until(lost)
    finally:
        await auditing.stop()


class _Auditing:
    """One term."""

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
        self._parts: AsyncIterator[Part] | None = None
        self._emptied: set[BookieId] = set()
        """Names that are retired and emptied, and stay so. A ledger that names one nevertheless is
        found by `check_replicas`."""
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run: MachineLoop[protocol.AuditEvent, protocol.AuditEffect] = MachineLoop(
            Auditing(config),
            self._execute,
            time_passed=TimePassed(),
            broken=self._break,
        )
        self._watching: list[asyncio.Task[None]] = []

    async def until(self, lost: asyncio.Event) -> None:
        with ExitStack() as watches:
            # Watched before it is read: what changes in between is read again.
            for path in (COOKIES, AVAILABLE, READ_ONLY, DECOMMISSIONING):
                watch = self._store.watch(path)
                watches.callback(watch.close)
                self._watching.append(asyncio.ensure_future(self._watch(watch)))
            self._run.post(protocol.AuditBegun())
            losing = asyncio.ensure_future(_set(lost))
            try:
                await asyncio.wait({losing, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                losing.cancel()
            if self._broken.done():
                self._broken.result()

    async def stop(self) -> None:
        self._run.stop()
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    def _break(self, error: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    async def _watch(self, watch: Watch) -> None:
        while True:
            await watch.changed()
            self._run.post(protocol.BookiesChanged())

    def _execute(self, effect: protocol.AuditEffect) -> None:
        self._run.spawn(self._answered(effect))

    async def _answered(self, effect: protocol.AuditEffect) -> protocol.AuditEvent:
        try:
            match effect:
                case protocol.ReadBookies():
                    return await self._see()
                case protocol.ReadLedgers(begin):
                    return await self._read(begin=begin)
                case protocol.MarkLedgers():
                    return await self._mark(effect)
                case protocol.RecordPass():
                    return await self._record(effect)
                case protocol.CheckLedgers(kind):
                    return await self._check(kind)
                case _:
                    assert_never(effect)
        except LogError as error:
            if isinstance(effect, protocol.CheckLedgers):
                self._counts.failures["check"] += 1
                _log.warning("check_interrupted", reason=str(error))
                return protocol.CheckFailed(str(error))
            self._parts = None
            self._counts.failures["pass"] += 1
            _log.warning("audit_interrupted", reason=str(error))
            return protocol.AuditFailed(str(error))

    async def _see(self) -> protocol.BookiesSeen:
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
        return protocol.BookiesSeen(
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
        return Scrub(share, Pace(config.scrub_bytes_per_s))

    async def _check(self, kind: protocol.CheckKind) -> protocol.LedgersChecked:
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
        return protocol.LedgersChecked()

    async def _names(self, path: str) -> frozenset[BookieId]:
        return frozenset(map(BookieId, await children_of(self._store, path)))

    async def _read(self, *, begin: bool) -> protocol.LedgersRead:
        if begin or self._parts is None:
            self._parts = parts_of(self._ledgers)
        async for part in self._parts:
            return protocol.LedgersRead(tuple(part), is_last=False)
        self._parts = None
        return protocol.LedgersRead((), is_last=True)

    async def _mark(self, effect: protocol.MarkLedgers) -> protocol.LedgersMarked:
        marked = 0

        async def write(found: tuple[LedgerId, tuple[Lack, ...]]) -> None:
            nonlocal marked
            ledger_id, lacks = found
            urgent = ledger_id in effect.urgent
            is_new = await self._marks.add(ledger_id, lacks, urgent=urgent)
            marked += is_new  # what others counted meanwhile stays

        await for_each(effect.lacks, write, at_once=WRITES_MAX)
        if marked:
            self._counts.marked += marked
            await self._marks.ring()
        return protocol.LedgersMarked(marked)

    async def _record(self, effect: protocol.RecordPass) -> protocol.PassRecorded:
        if effect.alarm:
            _log.error("audit_alarm", reason=effect.alarm)
        elif effect.ledgers:
            _log.info("audit_pass", ledgers=effect.ledgers, marked=effect.marked, lost=effect.lost)
        audit = Audit(
            at_ms=self._now_ms(),
            ledgers=effect.ledgers,
            marked=effect.marked,
            damaged=effect.damaged,
            lost=effect.lost,
            alarm=effect.alarm,
            auditor=this_process(),
        )
        await audit.write(self._store)
        counts = self._counts
        counts.passes += 1
        counts.last_pass_ms, counts.lost = audit.at_ms, len(effect.lost)
        counts.alarm = bool(effect.alarm)
        return protocol.PassRecorded()


async def _set(event: asyncio.Event) -> None:
    await event.wait()
