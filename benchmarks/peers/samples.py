"""Samples: what was measured of one system in one round, kept as lines of JSON over many runs.

Machine and disk are others a minute later, so a ratio is made of two samples of one round, and
ratios of many rounds have a median and a range.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Self


@dataclass(frozen=True, slots=True)
class Sample:
    metric: str
    system: str
    value: float
    run: str
    """When its run began."""
    round: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the most of what it is the median of."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """*values*: at least one."""
        return cls(median(values), min(values), max(values))


class BadSamples(Exception):
    """A file is not one that this benchmark kept."""


def kept(path: Path) -> list[Sample]:
    """Return what `keep` wrote. Raises `BadSamples`, which says where."""
    samples = []
    try:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                samples.append(Sample(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise BadSamples(f"{path}, line {number}, is no sample: {error}") from error
    except FileNotFoundError as error:
        raise BadSamples(f"{path} is not there: measure something first") from error
    return samples


def keep(samples: Iterable[Sample], path: Path) -> None:
    """Append *samples* to *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(each)) + "\n" for each in samples)


@dataclass(frozen=True, slots=True)
class Samples:
    all: Sequence[Sample]

    def metrics(self) -> set[str]:
        return {each.metric for each in self.all}

    def spread(self, metric: str, system: str) -> Spread | None:
        values = list(self._rounds(metric, system).values())
        return Spread.of(values) if values else None

    def ratio(self, metric: str, ours: str, peer: str) -> Spread | None:
        """Return how *ours* compares with *peer* in the rounds that have both; None if none has."""
        mine, theirs = self._rounds(metric, ours), self._rounds(metric, peer)
        ratios = [mine[each] / theirs[each] for each in mine if theirs.get(each)]
        return Spread.of(ratios) if ratios else None

    def _rounds(self, metric: str, system: str) -> dict[tuple[str, int], float]:
        return {
            (each.run, each.round): each.value
            for each in self.all
            if (each.metric, each.system) == (metric, system)
        }
