"""Drives garbage collection and compaction of one bookie: when they are due, and when asked.

One run at a time. Disk work is done step by step on a thread of its own; between the steps the
throttle decides how long to wait, so that adds and reads get the disk. Decides nothing itself:
see `plan`, `garbage` and `ledger.delays`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from bookie.collector.collection import DirectoryCollection, LogState
from bookie.collector.evictor import Evicting, Evictor
from bookie.collector.garbage import (
    CANDIDATES_MAX,
    UNLIMITED,
    Alarm,
    AlarmKind,
    StoreMemory,
    candidates,
    doubt,
    judge,
    too_many,
    verified,
)
from bookie.collector.plan import CollectorConfig, RunKind, Timetable
from bookie.collector.store_memory import keep, recall
from bookie.disk.port import Disk, DiskFull
from bookie.errors import CollectionUnderWay, FileDamaged
from bookie.storage.ledger_directory import LedgerDirectory
from ledger.delays import Throttle
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.manager import LedgerStore

_Value = TypeVar("_Value")
_log = get_logger(__name__)

_DELETE_AT_ONCE: Final = 256
"""Ledgers; flushes wait meanwhile."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run that ended, or is under way. Times are the clock's."""

    kind: RunKind
    began_at: float
    ended_at: float = 0.0
    ledgers: int = 0
    """Deleted."""
    evicted: int = 0
    """Ledgers that no fragment named here any more."""
    logs: int = 0
    """Removed."""
    freed_bytes: int = 0
    moved_bytes: int = 0
    suspended: str = ""
    """Why logs were not compacted that should be."""
    damages: tuple[str, ...] = ()
    """Logs that had to be left as they are."""
    waiting: int = 0
    """Ledgers that are gone from the store and wait for an operator's word."""
    alarm: Alarm | None = None
    """Why ledgers were kept that may be garbage."""
    failure: str = ""


class Totals:
    """What all runs did since the start."""

    def __init__(self) -> None:
        self.runs = Counter[str]()
        self.failures = Counter[str]()
        """Runs that did not come to their end, or kept what may be garbage; both by kind."""
        self.ledgers = self.evicted = self.logs = self.freed_bytes = self.moved_bytes = 0

    def ended(self, run: Run) -> None:
        self.runs[run.kind.value] += 1
        self.failures[run.kind.value] += bool(run.failure or run.alarm)
        self.ledgers += run.ledgers
        self.evicted += run.evicted
        self.logs += run.logs
        self.freed_bytes += max(0, run.freed_bytes)
        self.moved_bytes += run.moved_bytes


@dataclass(frozen=True, slots=True)
class Due:
    kind: RunKind
    in_s: float
    share: float
    """Below which a log is compacted."""


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    running: Run | None
    last: tuple[Run, ...]
    """The last run of each kind there was."""
    due: tuple[Due, ...]
    """The kinds that are not switched off."""
    suspended: str
    alarm: Alarm | None
    """Of the last garbage collection that looked."""
    waiting: int
    evicted: int
    """Ledgers, since the start."""
    surplus: int
    """Ledgers that were seen to be named here by no fragment, and are here still."""
    logs: tuple[tuple[LogState, ...], ...]
    """Of each ledger directory, as the last run found them."""
    now: float


class Forgetting(Evicting, Protocol):
    """What is needed of `bookie.server.service.BookieService`."""

    async def delete(self, ledger_ids: Sequence[int]) -> None:
        """Forget ledgers for good, or none if nothing can be written any more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an operator has said; how many may go, negative: all, None: as many as without."""

    deletions: int | None = None
    evictions: int | None = None


class Collector:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(  # noqa: PLR0913 - what it collects in, and what it asks
        self,
        directories: Sequence[LedgerDirectory],
        ledgers: LedgerStore,
        config: CollectorConfig,
        *,
        main: Disk,
        bookie: str,
        instance: str,
        ledger_ids: Callable[[], Sequence[int]],
        storage: Forgetting,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """*main* is where it remembers what the store said, *instance* the namespace that the
        bookie belongs to. *ledger_ids* returns all ledgers that are here, from any thread."""
        self._ledgers = ledgers
        self._main = main
        self._instance = instance
        self._wall_clock = wall_clock
        self._seen: StoreMemory | None = None
        self._waiting: tuple[int, ...] = ()
        self._alarm: Alarm | None = None
        self._config = config
        self._ledger_ids = ledger_ids
        self._storage = storage
        self._evictor = Evictor(
            storage,
            ledgers,
            config,
            bookie=bookie,
            instance=instance,
            ledger_ids=lambda: self._on_thread(ledger_ids),
            clock=clock,
        )
        self._in_doubt: Callable[[], str] = lambda: ""
        self._may_be_lost: Callable[[int], bool] = lambda _ledger_id: False
        self._is_orphan: Callable[[int], bool] = lambda _ledger_id: False
        self._clock = clock
        self._timetable = Timetable(config, now=clock())
        self._collections = [
            (directory, DirectoryCollection(directory, config, ledger_ids, self._is_lost))
            for directory in directories
        ]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collector")
        self._lock = asyncio.Lock()
        self._running: Run | None = None
        self._last: dict[RunKind, Run] = {}
        self._told: dict[str, None] = {}
        self.totals = Totals()

    def heed(
        self,
        *,
        in_doubt: Callable[[], str],
        may_be_lost: Callable[[int], bool],
        is_orphan: Callable[[int], bool] = lambda _ledger_id: False,
    ) -> None:
        """Keep entry logs from which an index may be rebuilt: all of them while *in_doubt* says
        why ("": nothing is), and those with entries of ledgers that *may_be_lost* which the index
        does not name. Keep ledgers that the store does not know and forgot when it was restored,
        as *is_orphan* says, until an operator has said a word."""
        self._is_orphan = is_orphan
        self._in_doubt = in_doubt
        self._may_be_lost = may_be_lost

    async def begin(self) -> None:
        """Remember what the store says now, if nothing is remembered of it: deletions are
        distinguished from a loss by what was counted since. If it does not answer, the first
        collection does so, and does not know what was deleted before."""
        try:
            await self._remembered()
        except (LogError, OSError) as error:
            _log.warning(f"what the metadata store counts is not known yet: {error}")

    async def run(self) -> None:
        """Do what is due, for ever. To be cancelled."""
        while True:
            now = self._clock()
            kind = self._timetable.due(now)
            if kind is None:
                at = self._timetable.next_at()
                if at is None:
                    await asyncio.Event().wait()
                    return
                await asyncio.sleep(at - now)
            else:
                await self._run(kind)

    async def collect(
        self, *, allowed: int | None = None, evictions_allowed: int | None = None
    ) -> Run:
        """Delete what is gone from the metadata store, now, look for surplus copies, and evict
        those that were seen before. Raises `CollectionUnderWay`.

        *allowed*: so many ledgers may go without a trace of their deletion, even if the store is
        older than it was; negative: all. None: what may go without an operator's word.
        *evictions_allowed*: so many copies may be evicted."""
        return await self._run_now(RunKind.GC, Asked(allowed, evictions_allowed))

    async def compact(self, *, major: bool = False) -> Run:
        """Compact now, even if it is switched off as a matter of course.

        Raises `CollectionUnderWay`."""
        return await self._run_now(RunKind.MAJOR if major else RunKind.MINOR)

    def status(self) -> CollectorStatus:
        now = self._clock()
        due = tuple(
            Due(kind, max(0.0, at - now), self._config.share(kind))
            for kind in RunKind
            if (at := self._timetable.due_at(kind)) is not None
        )
        last = tuple(self._last[kind] for kind in RunKind if kind in self._last)
        newest = max(last, key=lambda run: run.ended_at, default=None)
        logs = tuple(collection.logs for _, collection in self._collections)
        suspended = newest.suspended if newest is not None else ""
        return CollectorStatus(
            self._running,
            last,
            due,
            suspended,
            self._alarm,
            len(self._waiting),
            self._evictor.total,
            self._evictor.surplus,
            logs,
            now,
        )

    async def close(self) -> None:
        """Wait for the step that is under way. Requires that `run` and all others have ended or
        were cancelled."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _run_now(self, kind: RunKind, asked: Asked | None = None) -> Run:
        if self._running is not None:
            raise CollectionUnderWay(self._running.kind.value)
        return await self._run(kind, asked)

    async def _run(self, kind: RunKind, asked: Asked | None = None) -> Run:
        async with self._lock:
            run = self._running = Run(kind, self._clock())
            try:
                if kind is RunKind.GC:
                    run = await self._delete_garbage(run, asked.deletions if asked else None)
                    run = await self._evict_surplus(run, asked)
                    self._raise(run.alarm)
                in_doubt = self._in_doubt()
                run = replace(run, suspended=in_doubt)
                for directory, collection in self._collections:
                    if directory.failure is None and not in_doubt:
                        run = await self._collect(run, directory, collection)
            except (LogError, OSError) as error:
                run = replace(run, failure=str(error))
                _log.warning(f"{kind.value} did not come to its end: {error}")
            finally:
                now = self._clock()
                run = replace(run, ended_at=now)
                self._last[kind] = run
                self.totals.ended(run)
                self._running = None
                self._timetable.ran(kind, now)
            return run

    async def _delete_garbage(self, run: Run, allowed: int | None) -> Run:
        """Delete ledgers that are garbage; any error before leaves all of them."""
        seen = await self._remembered()
        snapshot = await self._on_thread(self._ledger_ids)
        with self._ledgers.one_session():
            before = await self._ledgers.vitals()
            listed = [ledger_id async for ledger_id in self._ledgers.list()]
            chosen = candidates(snapshot, listed, self._waiting)
            absent = await self._ledgers.absent(map(LedgerId, chosen))
            after = await self._ledgers.vitals()
        believed = seen if allowed is None else seen.settled_for(before)
        alarm = doubt(self._instance, believed, before, after)
        if alarm is not None:
            if alarm.kind is AlarmKind.OLDER_NAMESPACE:
                await self._keep(replace(seen, older=True))
            return replace(run, alarm=alarm, waiting=len(self._waiting))
        now = int(self._wall_clock())
        if allowed is None:
            room = seen.room(len(snapshot), self._config.untraced_share, now)
        else:
            room = allowed if allowed >= 0 else UNLIMITED
        gone = verified(chosen, absent)
        kept = () if allowed is not None else tuple(filter(self._is_orphan, gone))
        verdict = judge(
            [one for one in gone if one not in dict.fromkeys(kept)],
            counted=after.deletions - believed.deletions,
            waiting=self._waiting,
            room=room,
        )
        if allowed is None:
            believed = believed.taking(verdict.untraced, now)
        await self._keep(believed)  # before they go: a crash must not give the share twice
        count = await self._delete_all(verdict.doomed)
        if count == len(verdict.doomed):
            # Those that are left because they were too many will be explained by the same count.
            explained = before if len(chosen) < CANDIDATES_MAX else believed
            with suppress(DiskFull):  # it is kept by the next collection
                await self._keep(
                    replace(believed, next_id=after.next_id, deletions=explained.deletions)
                )
        looked_at = dict.fromkeys(chosen)
        unlisted = dict.fromkeys(snapshot).keys() - dict.fromkeys(listed).keys()
        left = (one for one in self._waiting if one in unlisted and one not in looked_at)
        self._waiting = (*verdict.waiting, *kept, *left)
        alarm = too_many(len(self._waiting), len(snapshot)) if self._waiting else None
        return replace(run, ledgers=count, waiting=len(self._waiting), alarm=alarm)

    async def _evict_surplus(self, run: Run, asked: Asked | None) -> Run:
        """Not while there is an alarm, or something may be lost."""
        if run.alarm is not None or self._in_doubt():
            return run
        assert self._seen is not None, "a garbage collection remembers what it saw"
        evicted = await self._evictor.run(
            self._seen,
            may_be_lost=self._is_lost,
            looks=asked is not None,
            allowed=asked.evictions if asked else None,
        )
        return replace(run, evicted=evicted.ledgers, alarm=evicted.alarm)

    async def _delete_all(self, doomed: Sequence[int]) -> int:
        """Return how many were deleted: a storage that writes nothing any more, as a directory of
        it failed, deletes nothing."""
        for at in range(0, len(doomed), _DELETE_AT_ONCE):
            await self._storage.delete(doomed[at : at + _DELETE_AT_ONCE])
        if not doomed:
            return 0
        left = dict.fromkeys(await self._on_thread(self._ledger_ids))
        count = sum(one not in left for one in doomed)
        _log.info(f"{count} ledgers were deleted that the cluster does not know any more")
        return count

    async def _remembered(self) -> StoreMemory:
        """Return what is known of the store; at first, what it says now."""
        if self._seen is None:
            self._seen = await self._on_thread(lambda: recall(self._main))
        if self._seen is None:
            vitals = await self._ledgers.vitals()
            await self._keep(StoreMemory(vitals.next_id, vitals.deletions))
        assert self._seen is not None
        return self._seen

    def _is_lost(self, ledger_id: int) -> bool:
        return self._may_be_lost(ledger_id)

    async def _keep(self, seen: StoreMemory) -> None:
        if seen != self._seen:
            await self._on_thread(lambda: keep(self._main, seen))
            self._seen = seen

    def _raise(self, alarm: Alarm | None) -> None:
        if alarm is not None and alarm != self._alarm:
            _log.error(f"garbage collection: {alarm.reason}", kind=alarm.kind.value)
        self._alarm = alarm

    async def _collect(
        self, run: Run, directory: LedgerDirectory, collection: DirectoryCollection
    ) -> Run:
        """Remove and compact logs of one directory; what was done counts, also on an error."""
        try:
            await self._drive(collection.run(self._config.share(run.kind)))
            failure = run.failure
        except (OSError, FileDamaged) as error:
            failure = f"{directory.disk.describe('')}: {error}"
            _log.warning(f"{run.kind.value} stopped: {failure}")
        report = collection.report
        for damage in report.damages:
            if damage.path not in self._told:
                self._told[damage.path] = None
                _log.error(f"an entry log cannot be collected: {damage}")
        return replace(
            run,
            logs=run.logs + report.logs_removed,
            freed_bytes=run.freed_bytes + report.freed_bytes,
            moved_bytes=run.moved_bytes + report.moved_bytes,
            suspended=run.suspended or report.suspended,
            damages=(*run.damages, *map(str, report.damages)),
            failure=failure,
        )

    async def _drive(self, steps: Generator[int, None, None]) -> None:
        throttle = Throttle(self._config.bytes_per_s, now=self._clock())
        loop = asyncio.get_running_loop()
        try:
            while True:
                done_bytes = await loop.run_in_executor(self._thread, next, steps, None)
                if done_bytes is None:
                    return
                wait_s = throttle.take(done_bytes, self._clock())
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
        finally:
            self._thread.submit(steps.close)  # behind the step that is under way

    async def _on_thread(self, call: Callable[[], _Value]) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
