"""Pure: which entry logs go, which are copied together, and when to look.

The ancestor's rules: a *minor* compaction every hour takes logs with little left in them, a *major*
one every day those with some room in them; logs with nothing left go without being copied.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from bookie.errors import InvalidSetting


class RunKind(Enum):
    """What a collector does from time to time."""

    GC = "gc"
    """Deletes ledgers that are gone from the metadata store, and evicts surplus copies."""
    MINOR = "minor"
    MAJOR = "major"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorConfig:
    """Shares and intervals of zero or less switch that kind off. Raises `InvalidSetting`."""

    gc_interval_s: float = 900.0
    untraced_share: float = 0.1
    """Of the ledgers here, how many may be deleted in a day although nothing but their absence
    shows that they were deleted. 1 and more: all of them; zero or less: none."""
    eviction_interval_s: float = 86_400.0
    """Between two looks at all ledgers for copies that no fragment names any more."""
    eviction_pause_s: float = 3600.0
    """Between the look that saw one, and the one after which it is evicted, at least."""
    evicted_share: float = 0.25
    """Of the ledgers here, how many may be evicted in a day without an operator's word. 1 and more:
    all of them; zero or less: none."""
    minor_share: float = 0.2
    """Logs with a smaller share of live bytes are compacted."""
    minor_interval_s: float = 3600.0
    major_share: float = 0.8
    major_interval_s: float = 86_400.0
    bytes_per_s: float = 32 * 1024 * 1024
    """Read and written by compaction; zero or less is no limit."""
    log_bytes_max: int = 1024 * 1024 * 1024
    """Live bytes that are put together into one log."""
    run_bytes_max: int = 16 * 1024 * 1024 * 1024
    """Live bytes that one run copies; the rest waits for the next."""
    reserve_bytes: int = 256 * 1024 * 1024
    """Space that copying must leave free."""

    def __post_init__(self) -> None:
        for setting in ("minor_share", "major_share"):
            share: float = getattr(self, setting)
            if not share < 1:
                reason = "a log that is all live cannot shrink; give less than 1"
                raise InvalidSetting(setting, share, reason)
        assert self.log_bytes_max > 0 < self.run_bytes_max, "at least something is copied"

    def interval_s(self, kind: RunKind) -> float:
        match kind:
            case RunKind.GC:
                return self.gc_interval_s
            case RunKind.MINOR:
                return self.minor_interval_s if self.minor_share > 0 else 0.0
            case RunKind.MAJOR:
                return self.major_interval_s if self.major_share > 0 else 0.0
            case _:
                assert_never(kind)

    def share(self, kind: RunKind) -> float:
        """Return below which share of live bytes a log is compacted."""
        match kind:
            case RunKind.GC:
                return 0.0
            case RunKind.MINOR:
                return self.minor_share
            case RunKind.MAJOR:
                return self.major_share
            case _:
                assert_never(kind)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What is known of a log that is finished, whole, and not the newest."""

    log_id: int
    frames_bytes: int
    live_bytes: int

    @property
    def share(self) -> float:
        return self.live_bytes / self.frames_bytes if self.frames_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    groups: tuple[tuple[LogFacts, ...], ...]
    """Logs to be put together into one; in the order in which to do it."""
    suspended: str = ""
    """Why some were left out, if that is for want of space."""


def plan(
    logs: Iterable[LogFacts],
    *,
    share: float,
    free_bytes: int,
    budget_bytes: int,
    config: CollectorConfig,
) -> Plan:
    """Return what to do about those of *logs* with less than *share* live, least first.

    *budget_bytes* is how much may still be copied in this run; the last log may exceed it. Each
    group has to find room beside the reserve: what it frees is free only afterwards."""
    chosen: list[LogFacts] = []
    for log in sorted(logs, key=lambda log: (log.share, log.log_id)):
        if log.share >= share or budget_bytes <= 0:
            break
        chosen.append(log)
        budget_bytes -= log.live_bytes
    groups, suspended = [], ""
    for group in _groups(chosen, config.log_bytes_max):
        needed_bytes = sum(log.live_bytes for log in group) + config.reserve_bytes
        if needed_bytes > free_bytes:
            suspended = f"to compact, {needed_bytes} bytes are needed and {free_bytes} are free"
        else:
            groups.append(tuple(group))
    return Plan(tuple(groups), suspended)


def _groups(logs: Sequence[LogFacts], bytes_max: int) -> list[list[LogFacts]]:
    """Return *logs* in groups of at most *bytes_max* live bytes, or of one log."""
    groups: list[list[LogFacts]] = []
    room_bytes = 0
    for log in logs:
        if not groups or log.live_bytes > room_bytes:
            groups.append([])
            room_bytes = bytes_max
        groups[-1].append(log)
        room_bytes -= log.live_bytes
    return groups


class Timetable:
    """When each kind is due; the time is an argument."""

    def __init__(self, config: CollectorConfig, *, now: float) -> None:
        self._config = config
        self._last = dict.fromkeys(RunKind, now)

    def due_at(self, kind: RunKind) -> float | None:
        """Return when *kind* is due next; None if it is switched off."""
        interval_s = self._config.interval_s(kind)
        return self._last[kind] + interval_s if interval_s > 0 else None

    def due(self, now: float) -> RunKind | None:
        """Return what to do now: GC first, and no minor compaction just before a major one."""
        for kind in (RunKind.GC, RunKind.MAJOR, RunKind.MINOR):
            at = self.due_at(kind)
            if at is not None and at <= now:
                return kind
        return None

    def next_at(self) -> float | None:
        """Return when something is due next."""
        times = [at for kind in RunKind if (at := self.due_at(kind)) is not None]
        return min(times, default=None)

    def ran(self, kind: RunKind, now: float) -> None:
        """Take note that *kind* was done, even if it failed. A major one is a minor one too."""
        self._last[kind] = now
        if kind is RunKind.MAJOR:
            self._last[RunKind.MINOR] = now
