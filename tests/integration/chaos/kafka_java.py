"""Kafka's own verifiable client of the name, in the place of this process, which dies with its
parent: ``python -m tests.integration.chaos.kafka_java MAIN ARGUMENT...``; the jars are those of the
benchmarks.
"""

import os
import sys
from typing import Final

from benchmarks.peers.jars import fetched
from benchmarks.peers.java import class_path, executable
from benchmarks.peers.kafka import VERSION, artifacts

FLAGS: Final = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def main() -> None:
    name, *arguments = sys.argv[1:]
    java = str(executable())
    jars = class_path(fetched(artifacts(VERSION)))
    os.execv(java, [java, *FLAGS, "-cp", jars, f"org.apache.kafka.tools.{name}", *arguments])


if __name__ == "__main__":
    main()
