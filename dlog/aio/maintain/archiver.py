"""The archiver: archives all logs of a namespace that have object storage, pass after pass.

Several may run, and `dlog log archive` beside them: everything is safe to do twice and at the same
time. An election keeps all but one idle; it is a hint and nothing depends on it. Logs are archived
one after the other, so that a pass has one upload under way, at the rate that is set.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dlog import metrics
from dlog.aio.maintain.archive import ArchiveReport, archive_log
from dlog.aio.maintain.pass_runner import PassRunner
from dlog.aio.maintain.survey import Trouble
from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode, log_names
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest
from dlog.protocol.archive import plan_archive
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.log_events import now_ms as wall_clock_ms
from ledger.values import count_of, duration_s

ELECTION: Final = ".archiver"
"""No log can have this name."""
ORPHAN_PASSES: Final = 60
"""One pass of so many, the first one among them, lists all objects of each log."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiverConfig:
    interval_s: float = 60.0
    """Pause between two passes."""
    bytes_per_s: int = 0
    """Uploads are no faster, on average; 0: as fast as bookies and storage are."""
    elect: bool = True
    """Stay idle while another archiver of the namespace works."""

    def __post_init__(self) -> None:
        interval_s = duration_s(self.interval_s, "interval_s", least=0.001)
        object.__setattr__(self, "interval_s", interval_s)
        count_of(self.bytes_per_s, "bytes_per_s")


@dataclass(frozen=True, slots=True)
class ArchiverPass:
    """What one pass did."""

    logs: int
    """How many have object storage."""
    reports: tuple[ArchiveReport, ...]
    """Of those for which there was something to do."""
    troubles: tuple[Trouble, ...]
    """Logs that could not be looked at; the next pass tries again."""

    @property
    def failures(self) -> int:
        """How many segments could not be archived or released, and tables not extended."""
        return sum(report.failed for report in self.reports)


@dataclass(frozen=True, slots=True)
class _Backlog:
    """Segments of a log that are due and not archived."""

    oldest: int
    segments: int
    bytes: int
    """Of their payload."""
    since: float
    """When the oldest one was first among them, on the monotonic clock."""


class Archiver(PassRunner[ArchiverPass]):
    """Archives all logs; a pass raises what listing logs raises."""

    def __init__(
        self,
        ledgers: Ledgers,
        config: ArchiverConfig | None = None,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._config = config or ArchiverConfig()
        super().__init__(ledgers, ELECTION, self._config.interval_s, elect=self._config.elect)
        self._now_ms = now_ms
        self._sent_until_s = 0.0
        """When what was uploaded so far would have been, at the rate that is set."""
        self._backlogs: dict[str, _Backlog] | None = None
        """By incarnation, of logs that have one, as of the last pass; None: there was none."""
        self._succeeded_at = 0.0
        metrics.ARCHIVERS.add(self)

    @property
    def backlog_segments(self) -> int | None:
        return None if self._backlogs is None else sum(x.segments for x in self._backlogs.values())

    @property
    def backlog_bytes(self) -> int | None:
        return None if self._backlogs is None else sum(x.bytes for x in self._backlogs.values())

    @property
    def stuck_s(self) -> float | None:
        """How long the oldest segment of a backlog has been known as such, of all the longest."""
        if self._backlogs is None:
            return None
        now = time.monotonic()
        return max((now - each.since for each in self._backlogs.values()), default=0.0)

    @property
    def succeeded_s(self) -> float | None:
        """Time since a pass without an error, or since the first one since it was elected."""
        return None if self._backlogs is None else time.monotonic() - self._succeeded_at

    def _stood_down(self) -> None:
        self._backlogs = None

    async def _pass(self) -> ArchiverPass:
        began = time.perf_counter()
        if self._backlogs is None:
            self._backlogs, self._succeeded_at = {}, time.monotonic()
        backlogs = dict[str, _Backlog]()
        logs, reports, troubles = 0, list[ArchiveReport](), list[Trouble]()
        for name in await log_names(self._ledgers.store):
            try:
                report = await self._archive(name, backlogs)
            except NoSuchLog:
                continue
            except LogError as error:
                troubles.append(Trouble(name, error))
                continue
            if report is None:
                continue
            logs += 1
            if report.did_something:
                reports.append(report)
        for trouble in troubles:
            _log.warning("archiver_trouble", what=trouble.what, error=str(trouble.error))
        done = ArchiverPass(logs, tuple(reports), tuple(troubles))
        metrics.ARCHIVER_PASS_S.observe(time.perf_counter() - began)
        metrics.ARCHIVER_TROUBLES.add(by=done.failures + len(troubles))
        self._backlogs = backlogs
        if not (done.failures or troubles):
            self._succeeded_at = time.monotonic()
        return done

    def _pass_failed(self, error: LogError) -> None:
        metrics.ARCHIVER_TROUBLES.add()
        _log.warning("archiver_pass_failed", error=str(error))

    async def _archive(self, name: str, backlogs: "dict[str, _Backlog]") -> ArchiveReport | None:
        """Archive one log, and note what is left to do; return None if it has no object storage."""
        node = ManifestNode(self._ledgers.store, name)
        manifest, _ = await node.read()
        if manifest.dropped or not manifest.storage:
            return None
        try:
            return await archive_log(
                self._ledgers,
                node,
                now_ms=self._now_ms,
                orphans=self.passes % ORPHAN_PASSES == 0,
                paced=self._paced,
            )
        finally:
            with suppress(LogError):  # the next pass tells
                manifest, _ = await node.read()
            self._note_backlog(manifest, backlogs)

    def _note_backlog(self, manifest: Manifest, backlogs: "dict[str, _Backlog]") -> None:
        due = {n for group in plan_archive(manifest, self._now_ms()).archive for n in group}
        if not due or manifest.dropped:
            return
        before = (self._backlogs or {}).get(manifest.incarnation)
        oldest = min(due)
        since = before.since if before and before.oldest == oldest else time.monotonic()
        sizes = (s.sealed.bytes for s in manifest.segments if s.sealed and s.number in due)
        backlogs[manifest.incarnation] = _Backlog(oldest, len(due), sum(sizes), since)

    async def _paced(self, size: int) -> None:
        if not self._config.bytes_per_s:
            return
        now = asyncio.get_running_loop().time()
        self._sent_until_s = max(self._sent_until_s, now) + size / self._config.bytes_per_s
        await asyncio.sleep(self._sent_until_s - now)
