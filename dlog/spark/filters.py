"""What filters of a batch read say about where the records are that pass them.

A filter is a hint here and nothing more: all of them are given back to Spark, which applies
them to each row. So what is not understood is left alone, and what is skipped must be certain
not to pass. Of timestamps nothing is certain: applications choose them, and no seal of a segment
has their bounds. Only if a user says that they ascend within segments, a lower bound on them is
found as `startingTimestamp` finds it; an upper bound says nothing even then, because the clock of
a later writer may be behind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from dlog.spark.offsets import StreamPosition

_OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What of each log may hold records that pass; all of it, unless filters say otherwise."""

    first: int = 0
    end: int = _OFFSET_MAX
    time_ms: int | None = None
    """Records before the first one that reached this time do not pass."""
    first_us: int | None = None
    """Records of an earlier time do not pass, nor those without one; in microseconds."""
    last_us: int | None = None
    """Records of a later time do not pass, nor those without one."""
    keeps: tuple[Callable[[str], bool], ...] = ()
    """What the name of a log has to be."""

    def has(self, log: str) -> bool:
        return all(keep(log) for keep in self.keeps)


def narrow(filters: Sequence[Filter], *, by_time: bool = False, prefix: str = "") -> Narrowed:
    """Return what is left to be read for rows that have to pass all *filters*.

    *by_time*: timestamps ascend within segments. *prefix* begins the names of columns of dlog."""
    narrowed = Narrowed()
    for each in filters:
        attribute = getattr(each, "attribute", ())  # none: a negation, say
        if attribute == (f"{prefix}offset",):
            narrowed = _by_offset(narrowed, each)
        elif attribute == (f"{prefix}timestamp",):
            narrowed = _between_times(narrowed, each)
            narrowed = _by_time(narrowed, each) if by_time else narrowed
        elif attribute == (f"{prefix}log",):
            narrowed = _by_log(narrowed, each)
    return narrowed


def clamp(
    narrowed: Narrowed, starts: Mapping[str, StreamPosition], stops: Mapping[str, StreamPosition]
) -> tuple[dict[str, StreamPosition], dict[str, StreamPosition]]:
    """Return *starts* and *stops* of the logs and offsets that are left."""
    logs = [log for log in starts if narrowed.has(log)]
    first = {
        log: replace(starts[log], next_offset=max(starts[log].next_offset, narrowed.first))
        for log in logs
    }
    end = {
        log: replace(stops[log], next_offset=min(stops[log].next_offset, narrowed.end))
        for log in logs
    }
    return first, end


def _by_offset(narrowed: Narrowed, each: Filter) -> Narrowed:
    match each:
        case EqualTo(value=int(value)) | EqualNullSafe(value=int(value)):
            first, end = value, value + 1
        case GreaterThan(value=int(value)):
            first, end = value + 1, _OFFSET_MAX
        case GreaterThanOrEqual(value=int(value)):
            first, end = value, _OFFSET_MAX
        case LessThan(value=int(value)):
            first, end = 0, value
        case LessThanOrEqual(value=int(value)):
            first, end = 0, value + 1
        case In(value=values) if values and all(isinstance(value, int) for value in values):
            first, end = min(values), max(values) + 1
        case _:
            return narrowed
    return replace(narrowed, first=max(narrowed.first, first), end=min(narrowed.end, end))


def _by_time(narrowed: Narrowed, each: Filter) -> Narrowed:
    match each:
        case (
            EqualTo(value=datetime() as value)
            | EqualNullSafe(value=datetime() as value)
            | GreaterThan(value=datetime() as value)
            | GreaterThanOrEqual(value=datetime() as value)
        ):
            # Rounded down to whole milliseconds: at or before the value, so nothing is missed.
            time_ms = _micros(value) // 1000
            return replace(narrowed, time_ms=max(time_ms, narrowed.time_ms or time_ms))
        case _:
            return narrowed


def _between_times(narrowed: Narrowed, each: Filter) -> Narrowed:
    first_us = last_us = None
    match each:
        case EqualTo(value=datetime() as value) | EqualNullSafe(value=datetime() as value):
            first_us = last_us = _micros(value)
        case GreaterThan(value=datetime() as value) | GreaterThanOrEqual(value=datetime() as value):
            first_us = _micros(value)
        case LessThan(value=datetime() as value) | LessThanOrEqual(value=datetime() as value):
            last_us = _micros(value)
        case _:
            return narrowed
    firsts = [us for us in (narrowed.first_us, first_us) if us is not None]
    lasts = [us for us in (narrowed.last_us, last_us) if us is not None]
    return replace(narrowed, first_us=max(firsts, default=None), last_us=min(lasts, default=None))


def _micros(time: datetime) -> int:
    elapsed = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def _by_log(narrowed: Narrowed, each: Filter) -> Narrowed:
    match each:
        case EqualTo(value=str(value)) | EqualNullSafe(value=str(value)):
            keep: Callable[[str], bool] = _OneOf((value,))
        case In(value=values):
            keep = _OneOf(tuple(value for value in values if isinstance(value, str)))
        case StringStartsWith(value=str(value)):
            keep = _BeginsWith(value)
        case _:
            return narrowed
    return replace(narrowed, keeps=(*narrowed.keeps, keep))


@dataclass(frozen=True, slots=True)
class _OneOf:
    names: tuple[str, ...]

    def __call__(self, log: str) -> bool:
        return log in self.names


@dataclass(frozen=True, slots=True)
class _BeginsWith:
    prefix: str

    def __call__(self, log: str) -> bool:
        return log.startswith(self.prefix)
