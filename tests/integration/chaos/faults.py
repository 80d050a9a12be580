"""What may happen to a run: drawn by a seed, made, and undone.

A function of the seed are the faults and how long each stays; processes keep their own time.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from bookie.autorecovery.status import autorecovery_status
from dlog.local.bookie_process import BookieProcess
from ledger.metastore import open_store
from tests.integration.chaos.ensemble import Ensemble, Server
from tests.integration.chaos.places import Place
from tests.integration.chaos.processes import Cluster, Member


class Stage(Protocol):
    """What faults act on."""

    cluster: Cluster
    ensemble: Ensemble | None
    writers: list[Member]
    readers: list[Member]
    helpers: list[Member]

    def leader(self) -> Member | None: ...
    async def start_writer(self, writer: Member) -> None: ...
    async def start_reader(self, reader: Member) -> None: ...
    async def start_helper(self, helper: Member) -> None: ...
    async def usurp(self) -> None: ...


@dataclass(slots=True)
class Fault:
    kind: str
    begin: float
    end: float = 0.0
    resumed: float = 0.0
    """When the next append was acknowledged."""
    outage: float = 0.0
    """The longest time without an acknowledgement that begins, or is, in between."""


Making = AbstractAsyncContextManager[str]
"""Inside, the fault is on; it tells whom it hit."""
Maker = Callable[[Stage, Random], Making]


@asynccontextmanager
async def cut(place: Place, name: str) -> AsyncIterator[str]:
    await place.cut()
    try:
        yield name
    finally:
        await place.heal()


@asynccontextmanager
async def stopped(pid_signal: Callable[[signal.Signals], None], name: str) -> AsyncIterator[str]:
    pid_signal(signal.SIGSTOP)
    try:
        yield name
    finally:
        pid_signal(signal.SIGCONT)


def signal_to(process: BookieProcess | Server, number: signal.Signals) -> None:
    if process.running:
        os.kill(process.pid, number)


def _writer(stage: Stage, random: Random, *, leading: bool) -> Member:
    leader = stage.leader()
    if leading and leader is not None:
        return leader
    return random.choice([each for each in stage.writers if each is not leader])


def kill_writer(*, leading: bool) -> Maker:
    @asynccontextmanager
    async def making(stage: Stage, random: Random) -> AsyncIterator[str]:
        writer = _writer(stage, random, leading=leading)
        await writer.kill()
        yield writer.life
        await stage.start_writer(writer)

    return making


def stop_leader(stage: Stage, random: Random) -> Making:
    writer = _writer(stage, random, leading=True)
    return stopped(writer.signal, writer.life)


def cut_leader(stage: Stage, random: Random) -> Making:
    writer = _writer(stage, random, leading=True)
    return cut(writer.place, writer.life)


@asynccontextmanager
async def resign(stage: Stage, random: Random) -> AsyncIterator[str]:
    writer = _writer(stage, random, leading=True)
    writer.tell("resign")
    yield writer.life


@asynccontextmanager
async def usurp(stage: Stage, random: Random) -> AsyncIterator[str]:
    await stage.usurp()
    yield "the log, by one who is no leader"


@asynccontextmanager
async def kill_bookie(stage: Stage, random: Random) -> AsyncIterator[str]:
    index = random.randrange(len(stage.cluster.processes))
    stage.cluster.kill_bookie(index)
    yield f"bookie-{index}"
    await stage.cluster.restart_bookie(index)


@asynccontextmanager
async def kill_all_bookies(stage: Stage, random: Random) -> AsyncIterator[str]:
    every = range(len(stage.cluster.processes))
    for index in every:
        stage.cluster.kill_bookie(index)
    yield "all"
    await asyncio.gather(*map(stage.cluster.restart_bookie, every))


def stop_bookie(stage: Stage, random: Random) -> Making:
    process = random.choice(stage.cluster.processes)
    return stopped(lambda number: signal_to(process, number), process.name)


def cut_bookie(stage: Stage, random: Random) -> Making:
    place = random.choice(stage.cluster.places)
    return cut(place, place.name)


def zookeeper(mode: str, how: str) -> Maker:
    @asynccontextmanager
    async def making(stage: Stage, random: Random) -> AsyncIterator[str]:
        assert stage.ensemble is not None
        server = await stage.ensemble.of_mode(mode)
        if server is None:
            yield "nobody"
            return
        match how:
            case "kill":
                server.kill()
                yield server.place.name
                await server.start()
            case "stop":
                async with stopped(lambda number: signal_to(server, number), "") as _:
                    yield server.place.name
            case _:
                async with cut(server.place, "") as _:
                    yield server.place.name

    return making


@asynccontextmanager
async def kill_reader(stage: Stage, random: Random) -> AsyncIterator[str]:
    reader = random.choice(stage.readers)
    await reader.kill()
    yield reader.life
    await stage.start_reader(reader)


def stop_reader(stage: Stage, random: Random) -> Making:
    reader = random.choice(stage.readers)
    return stopped(reader.signal, reader.life)


def cut_reader(stage: Stage, random: Random) -> Making:
    reader = random.choice(stage.readers)
    return cut(reader.place, reader.life)


@asynccontextmanager
async def kill_helper(stage: Stage, random: Random) -> AsyncIterator[str]:
    helper = random.choice(stage.helpers)
    await helper.kill()
    yield helper.life
    await stage.start_helper(helper)


@asynccontextmanager
async def kill_auditor(stage: Stage, random: Random) -> AsyncIterator[str]:
    """Kill the helper that is elected; any other one if nobody is."""
    store = await open_store(stage.cluster.uri)
    try:
        auditor = (await autorecovery_status(store)).auditor
    finally:
        await store.close()
    elected = [each for each in stage.helpers if auditor.endswith(f":{each.pid}")]
    helper = random.choice(elected or stage.helpers)
    await helper.kill()
    yield f"{helper.life}, {'elected' if elected else 'not elected'}"
    await stage.start_helper(helper)


def stop_helper(stage: Stage, random: Random) -> Making:
    helper = random.choice(stage.helpers)
    return stopped(helper.signal, helper.life)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Lines of faults, side by side: what stops appends, what befalls readers and helpers."""

    appends: dict[str, Maker] = field(default_factory=dict)
    readers: dict[str, Maker] = field(default_factory=dict)
    helpers: dict[str, Maker] = field(default_factory=dict)


def together(kind: str, other: str) -> bool:
    """Return True iff two faults may be on at once: not two of bookies, for instance."""
    return _whose(kind) != _whose(other)


def _whose(kind: str) -> str:
    return next(
        (each for each in ("ZooKeeper", "bookie", "reader", "helper") if each in kind), "writer"
    )


def kinds(*, zookeepers: int, cuts: bool) -> Kinds:
    """Return the faults that are possible."""
    found = Kinds(
        {
            "kill the leader": kill_writer(leading=True),
            "kill a standby": kill_writer(leading=False),
            "stop the leader": stop_leader,
            "resign": resign,
            "take the log": usurp,
            "kill a bookie": kill_bookie,
            "kill all bookies": kill_all_bookies,
            "stop a bookie": stop_bookie,
        },
        {"kill a reader": kill_reader, "stop a reader": stop_reader},
        {
            "kill the helper that audits": kill_auditor,
            "kill a helper": kill_helper,
            "stop a helper": stop_helper,
        },
    )
    if zookeepers:
        found.appends["kill ZooKeeper's leader"] = zookeeper("leader", "kill")
        found.appends["stop ZooKeeper's leader"] = zookeeper("leader", "stop")
    if cuts:
        found.appends["cut the leader off"] = cut_leader
        found.appends["cut a bookie off"] = cut_bookie
        found.readers["cut a reader off"] = cut_reader
    if zookeepers > 1:
        found.appends["kill ZooKeeper's follower"] = zookeeper("follower", "kill")
    if cuts and zookeepers:
        found.appends["cut ZooKeeper's leader off"] = zookeeper("leader", "cut")
    return found
