"""What the measurements of Spark share: sizes, results, a warm session beside a cluster."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.figures import Figure
from benchmarks.results import Results

LIMIT: Final = "of what Spark does with memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    records: tuple[tuple[int, int], ...] = ((100, 2_000_000), (1000, 500_000))
    """(bytes of a value, how many)."""
    rounds: int = 3
    """Of each; the median counts."""
    per_trigger: int = 250_000
    latency_s: float = 30.0
    latency_per_s: int = 1000
    seconds: float = 2.0
    """For the disk."""


QUICK: Final = Sizes(
    records=((100, 20_000),), rounds=1, per_trigger=5000, latency_s=3.0, seconds=0.1
)


@dataclass(slots=True)
class Bench(Results):
    sizes: Sizes

    def rate(self, name: str, rows: int, seconds: float, limit_s: float, *, aim: float) -> None:
        """Report rows a second; *limit_s*: how long rows out of, or into, memory took."""
        ratio = limit_s / seconds
        self.figures.append(
            Figure(
                name,
                rows / seconds / 1e3,
                "k rows/s",
                ratio,
                "limits",
                f">= {aim:g} limits",
                ratio >= aim,
            )
        )


@dataclass(slots=True)
class Running:
    spark: SparkSession
    uri: str
    directory: Path
    made: int = 0

    def fresh(self, kind: str) -> str:
        """Return a name that nothing had before."""
        self.made += 1
        return f"{kind}-{self.made}"


def timed(rounds: int, work: Callable[[], object]) -> float:
    """Return how many seconds *work* takes: the median, after one that counts for nothing."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


def to_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def seconds_of(query: StreamingQuery) -> tuple[int, float]:
    """Wait for the end of *query*; return its rows, and the seconds of its batches."""
    query.awaitTermination()
    reports = [each for each in query.recentProgress if each["numInputRows"]]
    return (
        sum(each["numInputRows"] for each in reports),
        sum(each["batchDuration"] for each in reports) / 1000,
    )
