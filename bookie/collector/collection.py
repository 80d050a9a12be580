"""One run over one ledger directory: finishes what an earlier one began, looks at all logs, removes
those with nothing live, puts together those with little.

Which ledgers are here is asked after the logs were listed: whatever is in those logs belongs to
a ledger that was here before, or to none: unless an index was lost (`bookie.loss.limbo`). A log
with entries of a ledger that may have lost its index stays as it is until the index names all of
them, or the ledger is deleted: an index can be rebuilt from it. Only logs are listed that are
finished, while no flush is under way: what they hold is in the index. The newest log is never
touched, so that its id is never given out again.
"""

from array import array
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import dataclass, replace

from bookie.collector.compaction import Compactor, Settled, failing
from bookie.collector.plan import CollectorConfig, LogFacts, plan
from bookie.disk.port import DiskFull
from bookie.entrylog.catalog import LogCatalog, LogInfo
from bookie.entrylog.format import HEADER_BYTES
from bookie.entrylog.ledger_map import LedgerMap
from bookie.errors import FileDamaged
from bookie.storage.ledger_directory import LedgerDirectory


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as the last run saw it."""

    log_id: int
    size_bytes: int
    live_bytes: int
    damage: str = ""


@dataclass(slots=True)
class CollectionReport:
    """What a run over one directory did, so far."""

    logs_removed: int = 0
    freed_bytes: int = 0
    moved_bytes: int = 0
    suspended: str = ""
    damages: tuple[FileDamaged, ...] = ()
    """Logs that were left alone, or not wholly emptied, and what of others was damaged. Each is
    worth an alarm."""


class DirectoryCollection:
    """The collection of one ledger directory. Used by one thread at a time."""

    def __init__(
        self,
        directory: LedgerDirectory,
        config: CollectorConfig,
        ledger_ids: Callable[[], Collection[int]],
        may_be_lost: Callable[[int], bool] = lambda _ledger_id: False,
    ) -> None:
        """*ledger_ids* returns all ledgers that are here now, also in other directories;
        *may_be_lost* says whether a ledger may have lost its index, or a part of it."""
        self._directory = directory
        self._config = config
        self._ledger_ids = ledger_ids
        self._may_be_lost = may_be_lost
        self._catalog = LogCatalog(directory.disk)
        self._known: frozenset[int] = frozenset()
        self._whole: set[int] = set()
        """Logs whose entries the index named, all that may be lost."""
        self._compactor = Compactor(directory, self._catalog, is_here=self._is_here)
        self.report = CollectionReport()
        self.logs: tuple[LogState, ...] = ()
        """The logs that the last run looked at, as it found them."""

    def run(self, share: float) -> Generator[int, None, None]:
        """Compact logs with less than *share* live, and remove those with nothing live at all;
        `report` says what was done. Yields the bytes that each step has read and written.

        Raises `OSError`; then the directory failed, or, by `DiskFull`, is full."""
        self.report = CollectionReport()
        with failing(self._directory):
            self._catalog.remove_unfinished()
        logs, facts = yield from self._look()
        dead = [log.log_id for log in facts if log.live_bytes == 0]
        yield from self._compactor.remove(dead)
        self._count(dead, logs)
        left = [log for log in facts if log.live_bytes > 0]
        budget_bytes = self._config.run_bytes_max
        while True:
            chosen = plan(
                left,
                share=share,
                free_bytes=self._directory.disk.usage().free_bytes,
                budget_bytes=budget_bytes,
                config=self._config,
            )
            self.report.suspended = chosen.suspended
            if not chosen.groups:
                break
            group = chosen.groups[0]
            left = [log for log in left if log not in group]
            budget_bytes -= sum(log.live_bytes for log in group)
            infos = [self._to_compact(log.log_id) for log in group]
            self._add((yield from self._compactor.compact(infos)), logs)

    def _look(self) -> Generator[int, None, tuple[dict[int, LogState], list[LogFacts]]]:
        """Finish the compactions that were not; return all logs that are finished, and what is
        known of those that may be touched."""
        with self._directory.lock:
            self._directory.evicted.clear()
            ids = self._catalog.log_ids()
            finished = [one for one in ids if not self._directory.logs.is_writing(one)]
        self._known = frozenset(filter(self._directory.owns, self._ledger_ids()))
        self._whole.intersection_update(finished)
        left = dict.fromkeys(finished)
        states: dict[int, LogState] = {}
        facts: list[LogFacts] = []
        for log_id in reversed(finished):  # a log is newer than its sources
            if log_id not in left:
                continue
            info, named_bytes = yield from self._prove(self._catalog.info(log_id))
            live_bytes = info.ledger_map.live_bytes(self._known.__contains__)
            is_whole = yield from self._is_whole(info)
            if info.damage is not None:
                self._alarm(info.damage)
                live_bytes += info.size_bytes if named_bytes is None else named_bytes
            if named_bytes is not None and log_id != ids[-1] and is_whole:
                facts.append(LogFacts(log_id, _frames_bytes(info), live_bytes))
            states[log_id] = LogState(log_id, info.size_bytes, live_bytes, str(info.damage or ""))
            sources = [one for one in info.ledger_map.sources if one in left]
            if sources:
                sizes = {
                    one: LogState(one, self._catalog.info(one).size_bytes, 0) for one in sources
                }
                settled = yield from self._compactor.settle(info)
                self._add(settled, sizes)
                for source in settled.removed:
                    del left[source]
            yield 0
        self.logs = tuple(states[log_id] for log_id in sorted(states))
        return states, facts

    def _prove(self, info: LogInfo) -> Generator[int, None, tuple[LogInfo, int | None]]:
        """Return *info* without its damage if the index names nothing in what is damaged; and how
        many bytes it does name there, None if that is not known."""
        if info.is_foreign:
            return info, None
        if info.is_sealed:
            return info, 0
        if info.damage is not None:
            named_bytes = yield from self._compactor.named_bytes(
                info.log_id, info.damage.offset, self._known
            )
            if named_bytes != 0:
                return info, named_bytes
        with suppress(DiskFull):  # then it is proven again by the next run
            self._compactor.seal(info)
        return LogInfo(info.log_id, info.size_bytes, info.ledger_map), 0

    def _to_compact(self, log_id: int) -> LogInfo:
        """Return what is in a log; of a damaged one without a map, any ledger may be."""
        info = self._catalog.info(log_id)
        if info.damage is None:
            return info
        ledgers = array("q", sorted(self._known))
        unknown = array("Q", bytes(8 * len(ledgers)))
        everything = LedgerMap(info.ledger_map.frames_end, ledgers, unknown, unknown)
        return replace(info, ledger_map=everything)

    def _is_here(self, ledger_id: int) -> bool:
        """A ledger that was made after the logs were listed is in none of them. What they hold of
        one that was evicted since is dead, also if it was brought back: that is in later logs."""
        return (
            ledger_id in self._known
            and ledger_id not in self._directory.tombstones
            and ledger_id not in self._directory.evicted
        )

    def _is_whole(self, info: LogInfo) -> Generator[int, None, bool]:
        """Return whether the index names all that the log has of ledgers that may be lost."""
        if info.log_id in self._whole:
            return True
        tombstones, ledgers = self._directory.tombstones, info.ledger_map.ledgers
        lost = frozenset(one for one in ledgers if self._may_be_lost(one) and one not in tombstones)
        if lost:
            named_bytes = yield from self._compactor.named_bytes(info.log_id, 0, sorted(lost))
            if named_bytes != info.ledger_map.live_bytes(lost.__contains__):
                return False
            self._whole.add(info.log_id)
        return True

    def _add(self, settled: Settled, logs: dict[int, LogState]) -> None:
        self._count(settled.removed, logs)
        self.report.moved_bytes += settled.moved_bytes
        self.report.freed_bytes -= settled.moved_bytes
        for damage in settled.damages:
            self._alarm(damage)

    def _count(self, removed: Collection[int], logs: dict[int, LogState]) -> None:
        self.report.logs_removed += len(removed)
        self.report.freed_bytes += sum(logs[log_id].size_bytes for log_id in removed)

    def _alarm(self, damage: FileDamaged) -> None:
        self.report.damages = (*self.report.damages, damage)


def _frames_bytes(info: LogInfo) -> int:
    """Return what is between header and map: frames that the map counts, and others."""
    ledger_map = info.ledger_map
    if info.damage is not None:
        return max(0, info.size_bytes - HEADER_BYTES)
    return max(ledger_map.size_bytes, ledger_map.frames_end - HEADER_BYTES)
