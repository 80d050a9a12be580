"""How fast Spark reads and writes logs, and how soon it has what was appended.

    python -m benchmarks.spark [--only SECTION ...] [--dir DIR] [--json FILE] [--rounds N]
                               [--without-kafka] [--quick]

One warm session on two cores beside a cluster of three bookie processes. Each rate is given as a
share of what the same session does with the same rows out of memory, or into nothing, by a source
or sink that is written in Python too: what Spark itself costs. Where Maven and Java are on the
machine, Kafka's connector is measured in turn with it, beside three brokers. Prints a table, and
keeps the same as JSON in FILE and as a drawing beside it.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.command import parsed, parser_of, tell
from benchmarks.disk import measure_disk
from benchmarks.peers.jars import PeerMissing
from benchmarks.peers.kafka import KafkaCluster
from benchmarks.spark.backfill import backfill
from benchmarks.spark.bench import QUICK, Bench, Running, Sizes
from benchmarks.spark.kafka import connector
from benchmarks.spark.latency import latency
from benchmarks.spark.memory import DiscardSink, MemorySource
from benchmarks.spark.reading import source, stream
from benchmarks.spark.writing import sink, sink_stream
from dlog.demo.spark import session
from dlog.local.cluster import LocalCluster

SECTIONS: Final[dict[str, Callable[[Bench, Running], None]]] = {
    "source": source,
    "stream": stream,
    "sink": sink,
    "sink-stream": sink_stream,
    "latency": latency,
    "backfill": backfill,
}


def measure(options: argparse.Namespace) -> Bench:
    sizes = QUICK if options.quick else Sizes(rounds=options.rounds)
    disk = measure_disk(options.dir, sizes.seconds / 2)
    bench = Bench(options.dir, disk, disk.table(), sizes)
    loop = asyncio.new_event_loop()
    with bench.place() as place, ExitStack() as stack:
        kafka = None if options.without_kafka else _kafka(place / "kafka", stack)
        cluster = LocalCluster(place / "cluster")
        loop.run_until_complete(cluster.__aenter__())
        try:
            spark = session(place / "spark", name="bench")
            spark.dataSource.register(MemorySource)
            spark.dataSource.register(DiscardSink)
            running = Running(spark, cluster.uri, place, kafka)
            for name in options.only or SECTIONS:
                bench.begin(name, sizes.seconds / 4)
                SECTIONS[name](bench, running)
            spark.stop()
        finally:
            loop.run_until_complete(cluster.__aexit__(None, None, None))
            loop.close()
    return bench


def _kafka(directory: Path, stack: ExitStack) -> KafkaCluster | None:
    """Start Kafka, and have the session find its connector; None, and a sentence, without it."""
    try:
        jars = connector()
        kafka = stack.enter_context(KafkaCluster(directory))
    except PeerMissing as error:
        print(f"Kafka is left out: {error}", file=sys.stderr)
        return None
    class_path = ":".join(map(str, jars))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {class_path} pyspark-shell"
    return kafka


def arguments() -> argparse.Namespace:
    parser = parser_of("spark", __doc__, SECTIONS)
    add = parser.add_argument
    add("--rounds", type=int, default=Sizes().rounds, help="of each measurement, in turns")
    add("--without-kafka", action="store_true", help="do not look for it")
    return parsed(parser)


def main() -> None:
    options = arguments()
    bench = measure(options)
    tell(bench, asdict(bench.sizes), options.json)


if __name__ == "__main__":
    main()
