"""How each row is measured, of one system in one round."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchmarks.figures import percentile
from benchmarks.logs.promoting import promoted
from benchmarks.peers.clients import Client
from benchmarks.peers.jars import PeerMissing
from benchmarks.peers.systems import (
    AIO,
    BLOCKING,
    BOOKKEEPER,
    BUFFERED,
    CONFLUENT,
    IMMEDIATE,
    KAFKA,
    MANY,
    STANDBY,
    SYSTEMS,
    WHEN_EMPTY,
    Cluster,
)
from benchmarks.peers.usage import Usage

Measured = Mapping[str, float]
"""Metrics, in their units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    seconds: float = 2.0
    """For each rate and each latency."""
    warm_s: float = 12.0
    """Of appending before anything is measured, where servers are Java's; dlog is as quick after
    `seconds`, and would fill a disk. The first round of a row does not count either."""
    catch_up: int = 1_000_000
    catch_up_slow: int = 100_000
    """Of a system with an entry for each record."""
    written: int = 500_000
    logs: int = 1000
    """Of one client or of ten, each with `LOG_RATE` appends a second."""
    idle: int = 10_000
    tails: int = 100
    settle_s: float = 20.0
    """Until what was acknowledged is where it stays: BookKeeper flushes every 10 s."""


_TRIES: Final = 3

QUICK: Final = Sizes(
    seconds=0.3, warm_s=0.3, catch_up=5000, catch_up_slow=5000, written=5000, logs=20, idle=20,
    tails=5, settle_s=1.0,
)  # fmt: skip


@dataclass(slots=True)
class On:
    """A running cluster and what is there already."""

    cluster: Cluster
    sizes: Sizes
    made: int = 0
    filled: dict[str, str] = field(default_factory=dict)
    """What has a log to be caught up with."""

    def fresh(self) -> str:
        """Return a name that nothing had before."""
        self.made += 1
        return f"bench-{self.made}"

    async def forget(self, system: str) -> None:
        """End the client of *system*, which failed; the next one has nothing of what it left."""
        self.filled.pop(system, None)
        await self.cluster.forget(system)


async def warmed(on: On, systems: Iterable[str]) -> None:
    """Start what *systems* need, and have all of it work until Java has compiled what counts.

    A peer that fails has `_TRIES`, each with a client of its own: until its servers are warm, one
    of them may stand still for so long that a client gives up. Raises `PeerMissing`."""
    waiting = [each for each in systems if each != STANDBY]
    for each in waiting:
        await on.cluster.client(each)  # all servers take memory before any works
    for each in waiting:
        await _warmed_at_last(on, each)


async def _warmed_at_last(on: On, system: str) -> None:
    for left in reversed(range(_TRIES)):
        try:
            await _warmed(on, system)
            break
        except PeerMissing as error:
            if not left or SYSTEMS[system].servers == "dlog":
                raise
            print(f"bench-peers: {system} gets warm once more: {error}", file=sys.stderr)
            await on.forget(system)


async def _warmed(on: On, system: str) -> None:
    client = await on.cluster.client(system)
    seconds = on.sizes.seconds if SYSTEMS[system].servers == "dlog" else on.sizes.warm_s
    await client.ask("throughput", on.fresh(), 100, seconds)
    await client.ask("paced", on.fresh(), 100, 2000, seconds / 4)


async def throughput(on: On, system: str, seconds: float, *, size: int) -> Measured:
    client = await on.cluster.client(system)
    servers, own = on.cluster.pids(system), [client.pid]
    servers_before, own_before = Usage.of(servers), Usage.of(own)
    answer = await client.ask("throughput", on.fresh(), size, seconds)
    servers_after, own_after = Usage.of(servers), Usage.of(own)
    rate = {f"throughput-{size}": answer["records"] / answer["seconds"] / 1e3}
    if size != 100:
        return rate
    millions = answer["records"] / 1e6
    return rate | {
        "cpu-servers": (servers_after.cpu_s - servers_before.cpu_s) / millions,
        "cpu-client": (own_after.cpu_s - own_before.cpu_s) / millions,
        "rss-servers": servers_after.resident_bytes / 1e6,
        "rss-client": own_after.resident_bytes / 1e6,
    }


async def lone(on: On, system: str, seconds: float) -> Measured:
    client = await on.cluster.client(system)
    return _latencies("lone", await client.ask("lone", on.fresh(), 100, seconds))


async def paced(on: On, system: str, seconds: float, *, rate: int) -> Measured:
    client = await on.cluster.client(system)
    answer = await client.ask("paced", on.fresh(), 100, rate, seconds)
    return _latencies(f"open-{rate}", answer)


async def tailed(on: On, system: str, seconds: float) -> Measured:
    client = await on.cluster.client(system)
    return _latencies("tailed", await client.ask("tailed", on.fresh(), 100, 200, seconds))


def _latencies(name: str, answer: Mapping[str, list[int]]) -> Measured:
    times = answer["times_us"]
    return {f"{name}-p{each}": percentile(times, each) / 1e3 for each in (50, 99)}


async def catch_up(on: On, system: str, _: float) -> Measured:
    client = await on.cluster.client(system)
    slow = system in (BOOKKEEPER, WHEN_EMPTY)
    count = on.sizes.catch_up_slow if slow else on.sizes.catch_up
    if system not in on.filled:
        on.filled[system] = on.fresh()
        await client.ask("fill", on.filled[system], 100, count)
    answer = await client.ask("read", on.filled[system], count)
    return {"catch-up": count / answer["seconds"] / 1e6}


async def takeover(on: On, system: str, seconds: float) -> Measured:
    if system == STANDBY:
        parts = await promoted(await on.cluster.uri(), seconds)
        return {"takeover": sum(parts.values()) * 1e3}
    client, name = await on.cluster.client(system), on.fresh()
    if system == KAFKA:
        return {"takeover": await _failed_over(on, client, name) * 1e3}
    await client.ask("crash", name, 100, seconds / 3)
    answer = await client.ask("takeover", name)
    return {"takeover": answer["seconds"] * 1e3}


async def _failed_over(on: On, client: Client, name: str) -> float:
    """Return how long after the death of its leader a topic takes the next record."""
    brokers = await on.cluster.brokers()
    leader = (await client.ask("lead", name))["leader"]
    began = time.perf_counter()
    brokers.kill(leader)
    await client.ask("next", name)
    took = time.perf_counter() - began
    brokers.start(leader)
    return took


async def written(on: On, system: str, _: float) -> Measured:
    client = await on.cluster.client(system)
    servers, count = on.cluster.pids(system), on.sizes.written
    await asyncio.sleep(on.sizes.settle_s)  # what others left to be written
    before = Usage.of(servers)
    await client.ask("fill", on.fresh(), 100, count)
    await asyncio.sleep(on.sizes.settle_s)
    taken = Usage.of(servers).written_bytes - before.written_bytes
    return {"written": taken / (100 * count)}


LOG_RATE: Final = 20
ABREAST: Final = 16


async def many_logs(on: On, system: str, seconds: float, *, clients: int) -> Measured:
    """Each of `Sizes.logs` has `LOG_RATE` appends a second, by *clients* processes."""
    each = on.sizes.logs // clients
    asked = [
        (await on.cluster.client(system, number)).ask(
            "paced", on.fresh(), 100, each * LOG_RATE, seconds, each
        )
        for number in range(clients)
    ]
    answers = await asyncio.gather(*asked)
    times = [time for answer in answers for time in answer["times_us"]]
    return _latencies(f"logs-{clients}", {"times_us": times})


async def abreast(on: On, system: str, seconds: float) -> Measured:
    client = await on.cluster.client(system)
    answer = await client.ask("throughput", on.fresh(), 100, seconds, ABREAST)
    return {"abreast": answer["records"] / answer["seconds"] / 1e3}


async def many_tails(on: On, system: str, seconds: float) -> Measured:
    client = await on.cluster.client(system)
    asked = client.ask("tailed", on.fresh(), 100, 200, seconds, on.sizes.tails)
    return _latencies("tails", await asked)


async def idle(on: On, system: str, seconds: float) -> Measured:
    """What open logs cost that nobody appends to, of the client and of its servers."""
    client, name = await on.cluster.client(system), on.fresh()
    own, servers = [client.pid], on.cluster.pids(system)
    empty = Usage.of(own)
    opened = await client.ask("hold", name, on.sizes.idle)
    own_before, servers_before = Usage.of(own), Usage.of(servers)
    await asyncio.sleep(seconds)
    own_after, servers_after = Usage.of(own), Usage.of(servers)
    await client.ask("release", name)
    return {
        "idle-opening": opened["seconds"] / on.sizes.idle * 1e3,
        "idle-rss": (own_after.resident_bytes - empty.resident_bytes) / on.sizes.idle / 1e3,
        "idle-cpu": (own_after.cpu_s - own_before.cpu_s) / seconds * 100,
        "idle-cpu-servers": (servers_after.cpu_s - servers_before.cpu_s) / seconds * 100,
    }


_WRITERS: Final = (AIO, BLOCKING, MANY, KAFKA, CONFLUENT, BUFFERED, BOOKKEEPER, WHEN_EMPTY)
_PROMPT: Final = (AIO, BLOCKING, KAFKA, CONFLUENT, BUFFERED, IMMEDIATE, BOOKKEEPER, WHEN_EMPTY)


_SEVERAL: Final = (AIO, KAFKA, BUFFERED)


@dataclass(frozen=True, slots=True)
class Row:
    measure: Callable[[On, str, float], Awaitable[Measured]]
    """Measures a system for so many seconds."""
    systems: tuple[str, ...]
    warm: bool = True
    """Whether a round comes first that counts for nothing."""
    uncached: bool = True
    """Whether the system's memory has nothing of any files before each measurement."""


ROWS: Final[Mapping[str, Row]] = {
    "throughput-100": Row(partial(throughput, size=100), _WRITERS),
    "throughput-1000": Row(partial(throughput, size=1000), _WRITERS),
    "lone": Row(lone, _PROMPT),
    "open-2000": Row(partial(paced, rate=2000), _PROMPT),
    "open-20000": Row(partial(paced, rate=20_000), _PROMPT),
    "tailed": Row(tailed, _PROMPT),
    "catch-up": Row(
        catch_up, (AIO, BLOCKING, MANY, KAFKA, CONFLUENT, BUFFERED, WHEN_EMPTY), uncached=False
    ),
    "takeover": Row(takeover, (AIO, STANDBY, KAFKA, BUFFERED, WHEN_EMPTY)),
    "logs-1": Row(partial(many_logs, clients=1), _SEVERAL),
    "logs-10": Row(partial(many_logs, clients=10), _SEVERAL),
    "abreast": Row(abreast, _SEVERAL),
    "tails": Row(many_tails, _SEVERAL),
    "idle": Row(idle, (AIO,), warm=False),
    "written": Row(written, (AIO, KAFKA, BUFFERED, WHEN_EMPTY), warm=False),
}
