"""What the run found out, and how it says it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_PEAK_OVER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """How far everybody was at a moment."""

    at_s: float
    """Since the rest of the departures was let go."""
    appended: int
    parquet: int
    delays: int
    """Records of `flights` that each query was through with."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to the run."""

    at_s: float
    what: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`exact` iff every number is right."""

    records: int
    days: int
    kills: Sequence[str]
    """The moments at which the driver was killed."""
    bookie_kills: int
    parquet: Mapping[str, int]
    delays: Mapping[str, int]
    """What the comparison with the plain computation has counted (`compare.Verdict`)."""
    tailed_records: int
    tailed_hours: int
    """What the second job has read of `delays`, and how many of them are different ones."""
    worst: str
    samples: Sequence[Sample]
    marks: Sequence[Mark]

    @property
    def exact(self) -> bool:
        wrong = sum(self.wrong(what) for what in ("lost", "doubled", "changed", "foreign"))
        return wrong == 0 and self.tailed_records == self.tailed_hours == self.delays["found"]

    def wrong(self, what: str) -> int:
        return self.parquet[what] + self.delays[what]

    @property
    def seconds(self) -> float:
        return self.samples[-1].at_s


def peak(points: Sequence[tuple[float, int]]) -> float:
    """Return the highest rate over some seconds in a row, of (seconds, total) as it grew."""
    best, first = 0.0, 0
    for last in range(1, len(points)):
        while points[last][0] - points[first + 1][0] >= _PEAK_OVER_S:
            first += 1
        seconds = max(points[last][0] - points[first][0], _PEAK_OVER_S)
        best = max(best, (points[last][1] - points[first][1]) / seconds)
    return best


def rates(points: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    """Return (seconds, rate) between each two neighbours of (seconds, total)."""
    return [
        (later[0], (later[1] - earlier[1]) / (later[0] - earlier[0]))
        for earlier, later in pairwise(points)
        if later[0] > earlier[0]
    ]


def last_line(outcome: Outcome) -> str:
    """The outcome as one line for programs."""
    parquet = peak([(each.at_s, each.parquet) for each in outcome.samples])
    delays = peak([(each.at_s, each.delays) for each in outcome.samples])
    return (
        f"lakehouse: {outcome.records} records, {outcome.parquet['found']} rows in "
        f"{outcome.days} days, {outcome.delays['found']} windows, {len(outcome.kills)} driver "
        f"kills, {outcome.bookie_kills} bookie kills, lost {outcome.wrong('lost')}, doubled "
        f"{outcome.wrong('doubled')}, wrong {outcome.wrong('changed') + outcome.wrong('foreign')}, "
        f"{outcome.seconds:.0f} s, at most {parquet:.0f} records/s into Parquet and "
        f"{delays:.0f}/s into windows"
    )
