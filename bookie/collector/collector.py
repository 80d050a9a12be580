"""Drives garbage collection and compaction of one bookie: when they are due, and when asked.

One run at a time. Disk work is done step by step on a thread of its own; between the steps the
throttle decides how long to wait, so that adds and reads get the disk. Decides nothing itself:
see `plan`, `garbage` and `throttle`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from bookie.collector.collection import DirectoryCollection, LogState
from bookie.collector.errors import CollectionUnderWay
from bookie.collector.garbage import candidates, verified
from bookie.collector.plan import CollectorConfig, Kind, Timetable
from bookie.collector.throttle import Throttle
from bookie.errors import FileDamaged
from bookie.ledger_directory import LedgerDirectory
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.manager import LedgerStore

_log = get_logger(__name__)

_DELETE_AT_ONCE: Final = 256
"""Ledgers; flushes wait meanwhile."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run that ended, or is under way. Times are the clock's."""

    kind: Kind
    began_at: float
    ended_at: float = 0.0
    ledgers: int = 0
    """Deleted."""
    logs: int = 0
    """Removed."""
    freed_bytes: int = 0
    moved_bytes: int = 0
    suspended: str = ""
    """Why logs were not compacted that should be."""
    damages: tuple[str, ...] = ()
    """Logs that had to be left as they are."""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    kind: Kind
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
    logs: tuple[tuple[LogState, ...], ...]
    """Of each ledger directory, as the last run found them."""
    now: float


class Collector:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(
        self,
        directories: Sequence[LedgerDirectory],
        ledgers: LedgerStore,
        config: CollectorConfig,
        *,
        ledger_ids: Callable[[], Sequence[int]],
        delete: Callable[[Sequence[int]], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*ledger_ids* returns all ledgers that are here, from any thread; *delete* forgets some of
        them for good, or none if nothing can be written any more."""
        self._ledgers = ledgers
        self._config = config
        self._ledger_ids = ledger_ids
        self._delete = delete
        self._clock = clock
        self._timetable = Timetable(config, now=clock())
        self._collections = [
            (directory, DirectoryCollection(directory, config, ledger_ids))
            for directory in directories
        ]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collector")
        self._lock = asyncio.Lock()
        self._running: Run | None = None
        self._last: dict[Kind, Run] = {}
        self._told: dict[str, None] = {}

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

    async def collect(self) -> Run:
        """Delete what is gone from the metadata store, now. Raises `CollectionUnderWay`."""
        return await self._run_now(Kind.GC)

    async def compact(self, *, major: bool = False) -> Run:
        """Compact now, also if it is switched off as a matter of course.

        Raises `CollectionUnderWay`."""
        return await self._run_now(Kind.MAJOR if major else Kind.MINOR)

    def status(self) -> CollectorStatus:
        now = self._clock()
        due = tuple(
            Due(kind, max(0.0, at - now), self._config.share(kind))
            for kind in Kind
            if (at := self._timetable.due_at(kind)) is not None
        )
        last = tuple(self._last[kind] for kind in Kind if kind in self._last)
        newest = max(last, key=lambda run: run.ended_at, default=None)
        logs = tuple(collection.logs for _, collection in self._collections)
        suspended = newest.suspended if newest is not None else ""
        return CollectorStatus(self._running, last, due, suspended, logs, now)

    async def close(self) -> None:
        """Wait for the step that is under way. Requires that `run` and all others have ended or
        were cancelled."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _run_now(self, kind: Kind) -> Run:
        if self._running is not None:
            raise CollectionUnderWay(self._running.kind.value)
        return await self._run(kind)

    async def _run(self, kind: Kind) -> Run:
        async with self._lock:
            run = self._running = Run(kind, self._clock())
            try:
                if kind is Kind.GC:
                    run = await self._delete_garbage(run)
                for directory, collection in self._collections:
                    if directory.failure is None:
                        run = await self._collect(run, directory, collection)
            except (LogError, OSError) as error:
                run = replace(run, failure=str(error))
                _log.warning(f"{kind.value} did not come to its end: {error}")
            finally:
                now = self._clock()
                run = replace(run, ended_at=now)
                self._last[kind] = run
                self._running = None
                self._timetable.ran(kind, now)
            return run

    async def _delete_garbage(self, run: Run) -> Run:
        """Delete ledgers that are garbage; any error before leaves all of them."""
        snapshot = await self._on_thread(self._ledger_ids)
        listed = [ledger_id async for ledger_id in self._ledgers.list()]
        chosen = candidates(snapshot, listed)
        absent = await self._ledgers.absent(map(LedgerId, chosen))
        doomed = verified(chosen, absent)
        for at in range(0, len(doomed), _DELETE_AT_ONCE):
            await self._delete(doomed[at : at + _DELETE_AT_ONCE])
        if not doomed:
            return run
        # A storage that writes nothing any more, as a directory of it failed, deletes nothing.
        left = dict.fromkeys(await self._on_thread(self._ledger_ids))
        count = sum(one not in left for one in doomed)
        _log.info(f"{count} ledgers were deleted that the cluster does not know any more")
        return replace(run, ledgers=count)

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

    async def _on_thread(self, call: Callable[[], Sequence[int]]) -> Sequence[int]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
