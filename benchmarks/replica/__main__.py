"""Replicated state machines beside each other: `make bench-replica`.

    python -m benchmarks.replica [--seconds 5] [--rounds 3] [--takeovers 10] [--megabytes 200]
                                 [--node-megabytes 20] [--only SYSTEM ...] [--directory DIR]

Three nodes each of dlog (on three bookies), PySyncObj and hashicorp/raft, measured in turns, one at
a time. Peers that are not installed are left out: PySyncObj is a package, hashicorp/raft needs Go.
Then what dlog alone is asked: applied commands beside raw appends of the same process, and how a
new replica catches up. The table is printed, and all figures go to
`build/bench/replica.json`. `benchmarks/replica.md` is written by hand from them.
"""

import argparse
import asyncio
import importlib.util
import json
import math
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Final

from benchmarks.replica.nodes import CATCH_UP_S, PAYLOAD, Counter
from dlog import Command, SnapshotPolicy, StateMachine
from dlog.aio import Log, Replica
from dlog.local.cluster import LocalCluster
from ledger import LedgerClient

ROOT: Final = Path(__file__).parents[2]
GO_NODE: Final = ROOT / "build" / "bench" / "hashicorp-node"
NODES: Final = 3
CLIENTS: Final = (1, 16, 256)
PATIENCE_S: Final = 120.0
RECORD_BYTES: Final = 1000
SYSTEMS: Final = ("dlog", "PySyncObj", "PySyncObj, flushJournal", "hashicorp/raft")


@dataclass(slots=True)
class Figures:
    """Of one system."""

    rates: dict[int, list[float]] = field(default_factory=dict)
    """Commands a second, by clients, a figure for each round."""
    p50_ms: dict[int, list[float]] = field(default_factory=dict)
    p99_ms: dict[int, list[float]] = field(default_factory=dict)
    takeovers_s: list[float] = field(default_factory=list)
    caught_up_s: float = math.nan
    """From the start of a third node that has nothing until it has applied all that two have."""
    failures: list[str] = field(default_factory=list)


class Node:
    def __init__(self, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def said(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._command} ended: {self._log.read_text()[-2000:]}")
        said: dict[str, Any] = json.loads(line)
        return said

    async def run(self, clients: int, seconds: float) -> dict[str, Any]:
        return await self.ask(f"run {clients} {seconds}", "ran", PATIENCE_S + seconds)

    async def ask(self, line: str, answer: str, timeout_s: float) -> dict[str, Any]:
        """Write *line*; return what it says with *answer* in it."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        async with asyncio.timeout(timeout_s):
            while answer not in (said := await self.said()):
                pass
        return said

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()


async def leader_of(nodes: list[Node]) -> Node:
    """Return the first that says that it leads."""
    saying = {asyncio.create_task(_leads(node)): node for node in nodes}
    done, rest = await asyncio.wait(saying, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    assert done, "nobody leads"
    task = done.pop()
    task.result()
    return saying[task]


async def _leads(node: Node) -> None:
    while not (await node.said()).get("leads"):
        pass


@asynccontextmanager
async def running(
    system: str, directory: Path, uri: str, started: int = NODES
) -> AsyncIterator[list[Node]]:
    directory.mkdir(parents=True)  # noqa: ASYNC240 - nothing else is under way
    python = [sys.executable, "-m", "benchmarks.replica.nodes"]
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(NODES)]
    nodes = []
    for number in range(NODES):
        own = directory / str(number)
        own.mkdir()
        others = [each for each in addresses if each != addresses[number]]
        if system == "dlog":
            command = [*python, "dlog", uri, directory.name]
        elif system == "hashicorp/raft":
            command = [str(GO_NODE), str(number), str(own), *addresses]
        else:
            kind = "pysyncobj-sync" if "flush" in system else "pysyncobj"
            command = [*python, kind, str(own), addresses[number], *others]
        nodes.append(Node(command, directory / f"{number}.log"))
    try:
        for node in nodes[:started]:
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            await node.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def measure(system: str, directory: Path, uri: str, seconds: float, into: Figures) -> None:
    async with running(system, directory, uri) as nodes:
        leader = await leader_of(nodes)
        for clients in CLIENTS:
            await leader.run(clients, seconds / 4)
            ran = await leader.run(clients, seconds)
            into.rates.setdefault(clients, []).append(ran["ran"] / ran["seconds"])
            into.p50_ms.setdefault(clients, []).append(ran["p50"] * 1e3)
            into.p99_ms.setdefault(clients, []).append(ran["p99"] * 1e3)


async def take_over(system: str, directory: Path, uri: str, count: int, into: Figures) -> None:
    """From a leader's kill -9 to the first command that its successor has applied."""
    async with running(system, directory, uri) as nodes:
        leader = await leader_of(nodes)
        for _ in range(count):
            await leader.run(1, 0.5)
            await asyncio.sleep(1.0)  # the one that was started again has caught up
            began = time.perf_counter()
            await leader.kill()
            successor = await leader_of([node for node in nodes if node is not leader])
            into.takeovers_s.append(time.perf_counter() - began)
            await leader.start()
            leader = successor


async def catch_up_a_node(
    system: str, directory: Path, uri: str, megabytes: float, into: Figures
) -> None:
    count = int(megabytes * 1e6) // RECORD_BYTES
    async with running(system, directory, uri, NODES - 1) as nodes:
        leader = await leader_of(nodes[:-1])
        await leader.ask(f"fill {count}", "filled", CATCH_UP_S)
        began = time.perf_counter()
        await nodes[-1].start()
        await nodes[-1].ask(f"applied {count}", "applied", CATCH_UP_S)
        into.caught_up_s = time.perf_counter() - began


class Records(StateMachine):
    """Keeps the last thousands of commands: a state of *megabytes*."""

    def __init__(self, megabytes: float) -> None:
        self._most = int(megabytes * 1e6) // RECORD_BYTES
        self.records: dict[int, bytes] = {}

    def apply(self, command: Command) -> object:
        self.records[command.offset % self._most] = command.payload
        return None

    def snapshot(self, out: BinaryIO) -> None:
        out.writelines(self.records.values())

    def restore(self, source: BinaryIO) -> None:
        self.records.clear()
        while payload := source.read(RECORD_BYTES):
            self.records[len(self.records)] = payload


async def beside_appends(uri: str, seconds: float) -> dict[str, float]:
    """Return microseconds of processor that one process with 256 clients needs for an append, a
    command, one with a request id of one client, and of as many clients; in turns."""
    client = await LedgerClient.connect(uri)
    names = [f"client-{number}" for number in range(CLIENTS[-1])]
    async with (
        await Log.open("raw", client=client) as log,
        Replica.open("applied", Counter(), client=client) as replica,
    ):
        await replica.wait_role("leader")
        numbers = iter(range(10**9))

        def request() -> Any:
            number = next(numbers)
            return replica.submit(PAYLOAD, request_id=(names[number % len(names)], number))

        calls: dict[str, Any] = {
            "appends": lambda: log.append(PAYLOAD),
            "submits": lambda: replica.submit(PAYLOAD),
            "requests": lambda: replica.submit(PAYLOAD, request_id=("client", next(numbers))),
            "clients": request,
        }
        costs_us: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(15):
            for name, call in calls.items():
                costs_us[name].append(await _cost_us(call, seconds / 5))
    await client.close()
    return {name: median(costs) for name, costs in costs_us.items()}


async def _cost_us(call: Any, seconds: float) -> float:
    count, ends, began = 0, time.perf_counter() + seconds, time.process_time()

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < ends:
            await call()
            count += 1

    await asyncio.gather(*(one() for _ in range(CLIENTS[-1])))
    return (time.process_time() - began) / count * 1e6


async def catch_up(uri: str, directory: Path, megabytes: float) -> dict[str, float]:
    """Return how long a new replica needs for so much of a log, and for a snapshot of it."""
    took: dict[str, float] = {}
    policy = SnapshotPolicy(every_records=10**9, every_bytes="1TB")
    snapshots = f"file://{directory}"
    count = int(megabytes * 1e6) // RECORD_BYTES
    async with Replica.open(
        "caught up",
        Records(megabytes),
        uri=uri,
        snapshots=snapshots,
        policy=policy,
        lease_s=PATIENCE_S,  # a machine with other work may not renew a short one in time
    ) as leader:
        await leader.wait_role("leader")
        payload = bytes(RECORD_BYTES)
        for _ in range(0, count, 1000):
            await asyncio.gather(*(leader.submit(payload) for _ in range(1000)))
        took["log"] = await _caught_up(uri, None, megabytes)
        await leader.snapshot()
        took["snapshot"] = await _caught_up(uri, snapshots, megabytes)
    return took


async def _caught_up(uri: str, snapshots: str | None, megabytes: float) -> float:
    began = time.perf_counter()
    async with Replica.open("caught up", Records(megabytes), uri=uri, snapshots=snapshots) as new:
        await new.read(lambda state: len(state.records), timeout_s=CATCH_UP_S)
        return time.perf_counter() - began


def available(only: list[str]) -> list[str]:
    """Return the systems that can be measured here, and build what is to be built."""
    missing: dict[str, str] = {}
    if importlib.util.find_spec("pysyncobj") is None:
        missing |= dict.fromkeys(SYSTEMS[1:3], "PySyncObj is not installed")
    if shutil.which("go") is None:
        missing["hashicorp/raft"] = "there is no Go"
    else:
        GO_NODE.parent.mkdir(parents=True, exist_ok=True)
        source = Path(__file__).parent / "hashicorp"
        build = ["go", "build", "-mod=readonly", "-o", str(GO_NODE), "."]
        built = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
        if built.returncode:
            missing["hashicorp/raft"] = built.stderr.strip()
    wanted = [system for system in SYSTEMS if not only or system in only]
    for system in wanted:
        if system in missing:
            print(f"left out: {system}: {missing[system]}", file=sys.stderr)
    return [system for system in wanted if system not in missing]


def table(result: dict[str, Any]) -> str:
    figures: dict[str, Figures] = result["systems"]
    lines = ["| | " + " | ".join(figures) + " |", "|---|" + "---:|" * len(figures)]

    def row(name: str, cells: list[str]) -> None:
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    for clients in CLIENTS:
        plural = "s" if clients > 1 else ""
        cells = [f"{median(each.rates[clients]):,.0f}" for each in figures.values()]
        row(f"commands/s, {clients} client{plural}", cells)
        cells = [
            f"{median(each.p50_ms[clients]):,.1f} / {median(each.p99_ms[clients]):,.1f}"
            for each in figures.values()
        ]
        row(f"their p50 / p99, ms, {clients} client{plural}", cells)
    cells = [
        f"{median(each.takeovers_s) * 1e3:,.0f} / {max(each.takeovers_s) * 1e3:,.0f}"
        if each.takeovers_s
        else "none"
        for each in figures.values()
    ]
    row("takeover after kill -9, median / most, ms", cells)
    cells = [f"{each.caught_up_s:,.1f}" for each in figures.values()]
    row(f"a new node has applied {result['node_megabytes']:g} MB after, s", cells)
    beside, caught = result["beside"], result["caught_up"]
    failures = [f"{name}, {each}." for name, of in figures.items() for each in of.failures]
    lines += [
        "",
        *failures,
        "dlog alone, 256 callers in one process, by its processor: "
        f"{beside['appends']:.1f} us a raw append, "
        + ", ".join(
            f"{beside[name]:.1f} {what} ({beside['appends'] / beside[name]:.2f})"
            for name, what in (
                ("submits", "a command"),
                ("requests", "one with a request id"),
                ("clients", "one of 256 clients"),
            )
        )
        + f". A new replica has applied "
        f"{result['megabytes']:g} MB of commands of 1 KB after {caught['log']:.1f} s from the log, "
        f"and after {caught['snapshot']:.1f} s from a snapshot of that size.",
    ]
    return "\n".join(lines)


async def main(options: argparse.Namespace) -> dict[str, Any]:
    figures = {system: Figures() for system in available(options.only)}
    began = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        place = stack.enter_context(
            tempfile.TemporaryDirectory(dir=options.directory, ignore_cleanup_errors=True)
        )
        cluster = LocalCluster(Path(place) / "cluster", bookies=3)
        await stack.enter_async_context(cluster)
        for number in range(options.rounds):
            for system, into in figures.items():
                directory = Path(place) / f"{number}-{system.replace('/', '-')}"
                print(f"{datetime.now(UTC):%H:%M:%S} {directory.name}", file=sys.stderr)
                await measure(system, directory, cluster.uri, options.seconds, into)
        for system, into in figures.items():
            directory = Path(place) / f"taken-over-{system.replace('/', '-')}"
            print(f"{datetime.now(UTC):%H:%M:%S} {directory.name}", file=sys.stderr)
            try:
                await take_over(system, directory, cluster.uri, options.takeovers, into)
            except (AssertionError, TimeoutError) as error:
                into.failures.append(f"after {len(into.takeovers_s)} takeovers: {error!r}")
        for system, into in figures.items():
            directory = Path(place) / f"caught-up-{system.replace('/', '-')}"
            print(f"{datetime.now(UTC):%H:%M:%S} {directory.name}", file=sys.stderr)
            try:
                size = options.node_megabytes
                await catch_up_a_node(system, directory, cluster.uri, size, into)
            except (AssertionError, TimeoutError) as error:
                into.failures.append(f"a new node: {error!r}")
        beside = await beside_appends(cluster.uri, options.seconds)
        caught_up = await catch_up(cluster.uri, Path(place) / "snapshots", options.megabytes)
    return {
        "systems": figures,
        "beside": beside,
        "caught_up": caught_up,
        "megabytes": options.megabytes,
        "node_megabytes": options.node_megabytes,
        "load": [began, os.getloadavg()[0]],
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-replica")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--takeovers", type=int, default=10)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--node-megabytes", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=[])
    parser.add_argument("--directory", default=None)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    outcome = asyncio.run(main(parse()))
    print(table(outcome))
    kept = outcome | {"systems": {name: asdict(f) for name, f in outcome["systems"].items()}}
    (ROOT / "build" / "bench").mkdir(parents=True, exist_ok=True)
    (ROOT / "build" / "bench" / "replica.json").write_text(json.dumps(kept, indent=1))
