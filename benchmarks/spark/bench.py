"""What the measurements of Spark share: sizes, results, a warm session beside a cluster."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from benchmarks.figures import Figure
from benchmarks.peers.kafka import KafkaCluster
from benchmarks.results import Results

LIMIT: Final = "memory"
"""The way of a measurement that the others are compared with."""
OURS: Final = "dlog"
KAFKA: Final = "Kafka"
PLAIN: Final = "one plain process beside an idle Spark"
"""What the machine, its disk and the bookies give to whoever has them for himself."""
_KAFKA_AIM: Final = 1.5

Reader = TypeVar("Reader", DataFrameReader, DataStreamReader)
Way = Callable[[], tuple[int, float]]
"""Does it once; returns rows and seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    records: tuple[tuple[int, int], ...] = ((100, 2_000_000), (1000, 500_000))
    """(bytes of a value, how many)."""
    rounds: int = 3
    """Of each, in turn, after `warm_rounds`; the median counts."""
    warm_rounds: int = 1
    """They count for nothing."""
    per_trigger: int = 250_000
    kafka_writes: int = 4
    """Kafka writes one row of so many: what is synced takes it long, and a rate is a rate."""
    warm_s: float = 5.0
    """Before latency counts."""
    latency_s: float = 20.0
    latency_per_s: int = 1000
    backfill: tuple[int, int] = (20_000_000, 1_000_000)
    """(records, how many in a batch)."""
    seconds: float = 2.0
    """For the disk."""


QUICK: Final = Sizes(
    records=((100, 2_000),),
    rounds=1,
    warm_rounds=0,
    per_trigger=1000,
    warm_s=0.5,
    latency_s=1.0,
    backfill=(5_000, 2_500),
    seconds=0.1,
)


@dataclass(slots=True)
class Bench(Results):
    sizes: Sizes

    def compare(self, name: str, ways: Mapping[str, Way], *, aim: float) -> None:
        """Measure each of *ways* in turn, and report rows a second: of `LIMIT`, ours as a share of
        that, and of others beside ours."""
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(self.sizes.warm_rounds + self.sizes.rounds):
            for way, work in ways.items():
                rows, seconds = work()
                if number >= self.sizes.warm_rounds:
                    rates[way].append(rows / seconds)
        ours, limit = median(rates[OURS]), median(rates[LIMIT])
        for way, found in rates.items():
            shown = f"{name}: {way}"
            spread = (min(found) / 1e3, max(found) / 1e3)
            share = median(found) / limit
            aim_shown, met = (f">= {aim:g} limits", share >= aim) if way == OURS else ("", None)
            rate = median(found) / 1e3
            self.figures.append(
                Figure(shown, rate, "k rows/s", share, "limits", aim_shown, met, spread)
            )
        if KAFKA in rates:
            against = ours / median(rates[KAFKA])
            self.at_least(f"{name}: dlog against Kafka", against, "times", _KAFKA_AIM)


@dataclass(slots=True)
class Running:
    spark: SparkSession
    uri: str
    directory: Path
    kafka: KafkaCluster | None = None
    """None: it is left out."""
    made: int = 0

    def fresh(self, kind: str) -> str:
        """Return a name that nothing had before."""
        self.made += 1
        return f"{kind}-{self.made}"


def made(reader: Reader, value_bytes: int, rows: int, partitions: int | None = None) -> Reader:
    """Return *reader* set to rows out of memory."""
    reader = reader.format("memory-rows").option("rows", rows).option("valueBytes", value_bytes)
    return reader if partitions is None else reader.option("partitions", partitions)


def streamed(
    on: Running, frame: DataFrame, target: str, options: Mapping[str, str]
) -> tuple[int, float]:
    """Write *frame* to *target* until it ends; see `seconds_of`."""
    writer: DataStreamWriter = frame.writeStream.format(target).options(**options)
    writer = writer.option("checkpointLocation", str(on.directory / on.fresh("checkpoint")))
    return seconds_of(writer.trigger(availableNow=True).start())


def timed(rows: int, work: Callable[[], object]) -> tuple[int, float]:
    """Do *work* with *rows*; return them, and its seconds."""
    began = time.perf_counter()
    work()
    return rows, time.perf_counter() - began


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
