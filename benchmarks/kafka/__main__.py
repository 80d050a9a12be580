"""dlog's Kafka gateway beside Kafka, with the same clients: `make bench-kafka`.

    python -m benchmarks.kafka [--only ROW ...] [--beside SYSTEM ...] [--rounds N] [--quick]
                               [--dir DIR]

Three brokers of Kafka, whose topics are synced before an acknowledgement (`flush.messages=1`), and
two gateways above three bookies: three copies of which two are acknowledged, each. In each round
every system is measured once, in turns, after one round that counts for nothing. Clients are
confluent-kafka and Kafka's own in Java, idempotent, and know nothing of what they talk to. Prints a
table; all figures go to `build/bench/kafka.json`. `benchmarks/kafka.md` is written by hand from
them. Without Java and Kafka's jars, which come through Maven, the gateway is measured alone.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.figures import percentile
from benchmarks.kafka.servers import Brokers, Gateways, Servers, brokers_version
from benchmarks.peers import kafka
from benchmarks.peers.clients import Client
from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.java import class_path, compiled, executable
from benchmarks.peers.systems import KAFKA_VERSION
from benchmarks.peers.usage import Usage
from dlog.local.zookeeper import ManagedZooKeeper

KAFKA, GATEWAY = "Kafka", "gateway"
KAFKA_JAVA, GATEWAY_JAVA = "Kafka, Java client", "gateway, Java client"
SYSTEMS: Final = (GATEWAY, KAFKA, GATEWAY_JAVA, KAFKA_JAVA)
PRODUCERS: Final = (1, 4, 16)
RATES: Final = (1000, 10_000)
FETCHED: Final = {100: 1_000_000, 1000: 200_000}
_KEPT: Final = Path("build/bench/kafka.json")
_PATIENCE_S: Final = 60.0
_JAVA_FLAGS: Final = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC")
_CONFLUENT: Final = (
    "acks=all", "enable.idempotence=true", "linger.ms=0", "batch.size=1048576",
    "batch.num.messages=100000", "queue.buffering.max.messages=1000000",
    "consumer.queued.min.messages=1000000", "consumer.fetch.queue.backoff.ms=10",
)  # fmt: skip
_JAVA: Final = (
    "acks=all", "enable.idempotence=true", "linger.ms=0", "batch.size=1048576",
    "buffer.memory=67108864",
)  # fmt: skip

Measured = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    seconds: float = 2.0
    warm_s: float = 8.0
    """Of the first round, which counts for nothing: Java compiles what is used."""
    takeovers: int = 3
    fetched: float = 1.0
    """Part of `FETCHED`."""


QUICK: Final = Sizes(seconds=0.3, warm_s=0.3, takeovers=1, fetched=0.005)


@dataclass(slots=True)
class Bench:
    directory: Path
    sizes: Sizes
    stack: AsyncExitStack
    made: int = 0
    filled: dict[tuple[str, int], str] = field(default_factory=dict)
    """Topics to be read, by system and size of their records."""
    _servers: dict[str, Servers] = field(default_factory=dict)
    _clients: dict[tuple[str, int], Client] = field(default_factory=dict)

    def fresh(self) -> str:
        self.made += 1
        return f"bench-{self.made}"

    async def servers(self, system: str) -> Servers:
        """Return what *system* runs on; it is started if it is not there. Raises `PeerMissing`."""
        kind = GATEWAY if system.startswith(GATEWAY) else KAFKA
        if kind not in self._servers:
            if kind == KAFKA:
                brokers = Brokers(self.directory / "kafka")
                self._servers[kind] = await self.stack.enter_async_context(brokers)
            else:
                zookeeper = ManagedZooKeeper(self.directory / "zookeeper")
                self.stack.push_async_callback(zookeeper.stop)
                uri = (await zookeeper.start()).uri("/dlog")
                gateways = Gateways(self.directory, uri)
                self._servers[kind] = await self.stack.enter_async_context(gateways)
        return self._servers[kind]

    async def client(self, system: str, number: int = 0) -> Client:
        key = system, number
        if key not in self._clients:
            servers = await self.servers(system)
            topic = [f"topic.{each}" for each in servers.topic.split(",") if each]
            if system.endswith("Java client"):
                jars = fetched(kafka.artifacts(KAFKA_VERSION))
                path = class_path(jars, compiled("KafkaPeer", jars))
                command = [str(executable()), *_JAVA_FLAGS, "-cp", path, "KafkaPeer"]
                command += [servers.bootstrap, *_JAVA, *topic]
            else:
                command = [sys.executable, "-m", "benchmarks.peers.confluent"]
                command += [servers.bootstrap, *_CONFLUENT, *topic]
            log = self.directory / f"client-{system.replace(' ', '-').replace(',', '')}.log"
            client = await Client.start(system, command, log)
            self.stack.push_async_callback(client.stop)
            self._clients[key] = client
        return self._clients[key]


async def produced(
    bench: Bench, system: str, seconds: float, *, size: int, producers: int
) -> Measured:
    """Append as fast as it goes; each producer is a process, and has a topic."""
    clients = [await bench.client(system, number) for number in range(producers)]
    servers = await bench.servers(system)
    before = Usage.of(servers.pids).cpu_s
    asked = [client.ask("throughput", bench.fresh(), size, seconds) for client in clients]
    answers = await asyncio.gather(*asked)
    records = sum(answer["records"] for answer in answers)
    rate = sum(answer["records"] / answer["seconds"] for answer in answers)
    figures = {"k records/s": rate / 1e3, "MB/s": rate * size / 1e6}
    if size == 100:
        used = Usage.of(servers.pids).cpu_s - before
        figures["s of the servers' processor per million"] = used / records * 1e6
    return figures


async def paced(bench: Bench, system: str, seconds: float, *, rate: int) -> Measured:
    client = await bench.client(system)
    return _latencies(await client.ask("paced", bench.fresh(), 100, rate, seconds))


async def end_to_end(bench: Bench, system: str, seconds: float) -> Measured:
    client = await bench.client(system)
    return _latencies(await client.ask("tailed", bench.fresh(), 100, 200, seconds))


def _latencies(answer: Mapping[str, Any]) -> Measured:
    return {f"ms p{each}": percentile(answer["times_us"], each) / 1e3 for each in (50, 99)}


async def fetched_again(bench: Bench, system: str, _: float, *, size: int) -> Measured:
    """Read a topic from its beginning, which others filled before; counted from the first records
    on, which take the client's time to find the leader."""
    client, count = await bench.client(system), int(FETCHED[size] * bench.sizes.fetched)
    if (system, size) not in bench.filled:
        bench.filled[system, size] = bench.fresh()
        await client.ask("fill", bench.filled[system, size], size, count)
    answer = await client.ask("read", bench.filled[system, size], count)
    first, first_s = answer.get("first", 0), answer.get("first_s", 0.0)
    if first >= count:  # a quick run: all came at once
        first, first_s = 0, 0.0
    rate = (count - first) / (answer["seconds"] - first_s)
    found = {"s to the first": first_s} if first else {}
    return {"k records/s": rate / 1e3, "MB/s": rate * size / 1e6, **found}


async def takeover(bench: Bench, system: str, _: float) -> Measured:
    """Kill what leads a topic; time until the next record of a running producer is acknowledged."""
    servers = await bench.servers(system)
    times = [
        await asyncio.to_thread(_taken_over, servers, bench.fresh())
        for _ in range(bench.sizes.takeovers)
    ]
    return {"ms": median(times) * 1e3, "ms at most": max(times) * 1e3}


def _taken_over(servers: Servers, topic: str) -> float:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    where: dict[str, Any] = {"bootstrap.servers": servers.bootstrap}
    config = dict(each.split("=") for each in servers.topic.split(",") if each)
    admin = AdminClient(where)
    admin.create_topics([NewTopic(topic, 1, 3, config=config)])[topic].result(_PATIENCE_S)
    producer = Producer(
        where | {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "retry.backoff.ms": 20}
    )
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer.produce(topic, b"before", on_delivery=delivered)
    assert not producer.flush(_PATIENCE_S)
    found = producer.list_topics(topic, timeout=_PATIENCE_S)
    leader = found.brokers[found.topics[topic].partitions[0].leader]
    began = time.perf_counter()
    servers.kill(leader.port)
    producer.produce(topic, b"after", on_delivery=delivered)
    assert not producer.flush(_PATIENCE_S), "nothing led the topic again"
    took = time.perf_counter() - began
    servers.revive()
    if failed:
        raise PeerMissing(f"a record was not acknowledged: {failed[0]}")
    return took


Row = Callable[[Bench, str, float], Awaitable[Measured]]
ROWS: Final[Mapping[str, Row]] = {
    **{
        f"produce {size} B, {count} producer{'s' if count > 1 else ''}": partial(
            produced, size=size, producers=count
        )
        for size in FETCHED
        for count in PRODUCERS
    },
    **{f"produce at {rate:,}/s": partial(paced, rate=rate) for rate in RATES},
    "produce until consumed, 200/s": end_to_end,
    **{f"fetch {size} B": partial(fetched_again, size=size) for size in FETCHED},
    "takeover": takeover,
}
CONFLUENT_ONLY: Final = ("takeover",)
"""Rows that this process measures itself."""


def systems_of(row: str, wanted: list[str]) -> list[str]:
    def fits(system: str) -> bool:
        java = system.endswith("Java client")
        return not java or (row not in CONFLUENT_ONLY and not row.endswith("16 producers"))

    return [system for system in wanted if fits(system)]


async def measure(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    sizes = QUICK if options.quick else Sizes()
    figures: dict[str, dict[str, list[Measured]]] = {}
    missing: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        bench = Bench(place, sizes, stack)
        for name in options.only or ROWS:
            systems = systems_of(name, options.beside or list(SYSTEMS))
            for number in range(options.rounds + 1):
                turn = systems[number % len(systems) :] + systems[: number % len(systems)]
                for system in turn:
                    if system in missing:
                        continue
                    seconds = sizes.seconds if number else sizes.warm_s
                    try:
                        measured = await ROWS[name](bench, system, seconds)
                    except PeerMissing as error:
                        print(f"bench-kafka: {system}: {error}", file=sys.stderr)
                        if system.startswith(GATEWAY):
                            raise
                        missing[system] = str(error)
                        continue
                    if number:
                        figures.setdefault(name, {}).setdefault(system, []).append(measured)
                        print(f"{name}: {system}: {shown(measured)}", file=sys.stderr, flush=True)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "beside": brokers_version(),
        "figures": figures,
        "missing": missing,
    }


def shown(measured: Measured) -> str:
    return ", ".join(f"{value:.4g} {name}" for name, value in measured.items())


def table(outcome: Mapping[str, Any]) -> str:
    """Return medians of all rounds, and the gateway's in relation to Kafka's with one client."""
    lines = ["| row | figure | " + " | ".join(SYSTEMS) + " | gateway / Kafka | Java: the same |"]
    lines.append("|" + "---|" * (len(SYSTEMS) + 4))
    figures: Mapping[str, Mapping[str, list[Measured]]] = outcome["figures"]
    for row, by_system in figures.items():
        for name in dict.fromkeys(key for rounds in by_system.values() for key in rounds[0]):
            medians = {
                system: median([each[name] for each in rounds])
                for system, rounds in by_system.items()
            }
            cells = [f"{medians[each]:.4g}" if each in medians else "" for each in SYSTEMS]
            for ours, theirs in ((GATEWAY, KAFKA), (GATEWAY_JAVA, KAFKA_JAVA)):
                both = ours in medians and medians.get(theirs)
                cells.append(f"{medians[ours] / medians[theirs]:.2f}" if both else "")
            lines.append(f"| {row} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kafka",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=list(ROWS), action="append", help="a row; repeat it")
    parser.add_argument("--beside", choices=SYSTEMS, action="append", help="a system; repeat it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="very little, to see that it works")
    parser.add_argument("--dir", type=Path, help="on the disk to be used; default: a temporary one")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        outcome = asyncio.run(measure(options, Path(place)))
    _KEPT.parent.mkdir(parents=True, exist_ok=True)
    _KEPT.write_text(json.dumps(outcome, indent=2) + "\n")
    print(table(outcome))
    for system, reason in outcome["missing"].items():
        print(f"not measured: {system}: {reason}")


if __name__ == "__main__":
    main()
