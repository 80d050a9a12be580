"""What is measured, in the order of the table, and what dlog is to reach beside which peer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.peers.systems import (
    AIO,
    BLOCKING,
    BOOKKEEPER,
    BUFFERED,
    CONFLUENT,
    IMMEDIATE,
    KAFKA,
    MANY,
    WHEN_EMPTY,
)


@dataclass(frozen=True, slots=True)
class Metric:
    title: str
    unit: str
    more_is_better: bool = False


METRICS: Final[Mapping[str, Metric]] = {
    "throughput-100": Metric("One writer, 100 B", "k records/s", more_is_better=True),
    "throughput-1000": Metric("One writer, 1 KB", "k records/s", more_is_better=True),
    "cpu-servers": Metric("CPU of the servers, 100 B at full speed", "s per million records"),
    "cpu-client": Metric("CPU of the client, 100 B at full speed", "s per million records"),
    "rss-servers": Metric("Memory of the three servers, resident, after that", "MB"),
    "rss-client": Metric("Memory of the client, resident, after that", "MB"),
    "lone-p50": Metric("Lone append of 100 B, p50", "ms"),
    "lone-p99": Metric("Lone append of 100 B, p99", "ms"),
    "open-2000-p50": Metric("2,000 appends/s, p50", "ms"),
    "open-2000-p99": Metric("2,000 appends/s, p99", "ms"),
    "open-20000-p50": Metric("20,000 appends/s, p50", "ms"),
    "open-20000-p99": Metric("20,000 appends/s, p99", "ms"),
    "tailed-p50": Metric("Append until tailed, 200/s, p50", "ms"),
    "tailed-p99": Metric("Append until tailed, 200/s, p99", "ms"),
    "catch-up": Metric("Catch-up, 100 B", "M records/s", more_is_better=True),
    "takeover": Metric("Takeover, until the first record of the new owner", "ms"),
    "logs-1-p50": Metric("1,000 logs, 20 appends/s each, one client, p50", "ms"),
    "logs-1-p99": Metric("1,000 logs, 20 appends/s each, one client, p99", "ms"),
    "logs-10-p50": Metric("1,000 logs, 20 appends/s each, ten clients, p50", "ms"),
    "logs-10-p99": Metric("1,000 logs, 20 appends/s each, ten clients, p99", "ms"),
    "abreast": Metric("16 writers of 16 logs, 100 B", "k records/s", more_is_better=True),
    "tails-p50": Metric("Append until each of 100 tails has it, 200/s, p50", "ms"),
    "tails-p99": Metric("Append until each of 100 tails has it, 200/s, p99", "ms"),
    "idle-opening": Metric("10,000 open logs: opening, each", "ms"),
    "idle-rss": Metric("10,000 open logs: memory of the client, each", "KB"),
    "idle-cpu": Metric("10,000 open logs: processor of the idle client", "% of a core"),
    "idle-cpu-servers": Metric("10,000 open logs: processor of the servers", "% of a core"),
    "written": Metric("Written to files by the servers, per byte of 100 B records", "bytes"),
}


@dataclass(frozen=True, slots=True)
class Aim:
    metric: str
    ours: str
    bound: float
    """Of dlog/peer: at least, where more is better; else at most."""
    peers: Sequence[str]
    best: bool = False
    """Whether the best of *peers* counts alone."""


_SYNCED: Final = (KAFKA, CONFLUENT, BUFFERED, IMMEDIATE, BOOKKEEPER, WHEN_EMPTY)
AIMS: Final[Sequence[Aim]] = (
    Aim("throughput-100", AIO, 1.3, (KAFKA, BUFFERED)),
    Aim("throughput-100", BLOCKING, 1.3, (CONFLUENT,)),
    Aim("throughput-100", BLOCKING, 1.0, (KAFKA,)),
    Aim("throughput-100", MANY, 1.8, _SYNCED, best=True),
    Aim("throughput-1000", AIO, 1.2, _SYNCED),
    Aim("lone-p50", AIO, 1.0, (IMMEDIATE,)),
    Aim("lone-p50", AIO, 1.3, (WHEN_EMPTY,)),
    Aim("lone-p99", AIO, 1.0, _SYNCED),
    Aim("open-2000-p50", AIO, 1.0, _SYNCED),
    Aim("open-2000-p99", AIO, 1.0, _SYNCED),
    Aim("open-20000-p50", AIO, 1.0, _SYNCED),
    Aim("open-20000-p99", AIO, 1.0, _SYNCED),
    Aim("tailed-p50", AIO, 1.0, _SYNCED),
    Aim("logs-1-p50", AIO, 1.0, (BUFFERED,)),
    Aim("logs-1-p99", AIO, 1.0, (BUFFERED,)),
    Aim("logs-10-p50", AIO, 1.0, (BUFFERED,)),
    Aim("logs-10-p99", AIO, 1.0, (BUFFERED,)),
    Aim("catch-up", AIO, 1.0, (CONFLUENT,)),
    Aim("catch-up", MANY, 1.0, (KAFKA,)),
    Aim("cpu-servers", AIO, 0.7, _SYNCED, best=True),
)
