"""Hostile clients, and tenants without measure, beside a writer that behaves: its p99.

One bookie process; 2,000 hostile connections from 20 addresses of this machine, made by a process
of their own; a writer of 200 entries of 1 KB a second in an open loop, so that waiting counts.
Alone, while they do the same to a process that is no bookie (the control: what they take of the
machine), and beside them, in turn. Then two tenants: one appends as fast as it can, without and
with a quota. Figures are medians of all rounds, ratios those of the ratios of each round.

Attackers have machines of their own: where there are two processors or more, bookie and writer keep
to one of them, alone and beside, and attackers, the greedy tenant and what is no bookie to others.

    python -m benchmarks.hostile [--rounds 3] [--seconds 6] [--only KIND ...] [--share-processors]
"""

import argparse
import asyncio
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dlog.aio import Log
from dlog.local.cluster import LocalCluster
from ledger.client import LedgerClient
from ledger.ids import BookieIdentity, EntryId
from ledger.quorum import Quorum
from ledger.requests import ReadQuery
from ledger.security.documents import change_quotas
from ledger.security.quotas import Quota, Subject
from ledger.transport.framing import FrameKind, frame_header
from ledger.transport.handshake import (
    VERSION_MIN,
    Hello,
    Purpose,
    Welcome,
    encode_answer,
    encode_hello,
    hello_to,
)
from ledger.transport.messages import read_request

ADDRESSES = 20
RATE = 200
PAYLOAD = os.urandom(1000)
STORM_RATE = 1000
"""Connections a second that the storm makes: as many as one process of Python can, about."""
QUOTA_BYTES_S = 2_000_000

Attack = Callable[["Hostile", int], Awaitable[None]]


class Hostile:
    """Runs in a process of its own."""

    def __init__(self, address: str, meant: Hello, ledger_id: int, key: bytes) -> None:
        host, _, port = address.rpartition(":")
        self.host, self.port = host, int(port)
        self.meant, self.ledger_id, self.key = meant, ledger_id, key
        self.made = 0

    async def connected(self, at: int, hello: Purpose | None = None) -> socket.socket:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((f"127.0.0.{2 + at % ADDRESSES}", 0))
        await loop.sock_connect(sock, (self.host, self.port))
        self.made += 1
        if hello is not None:
            await loop.sock_sendall(sock, encode_hello(replace(self.meant, purpose=hello)))
            await loop.sock_recv(sock, 1)
        return sock

    async def silent(self, at: int) -> None:
        await self._until_ended(await self.connected(at))

    async def idle(self, at: int) -> None:
        await self._until_ended(await self.connected(at, Purpose.ASKS))

    async def half(self, at: int) -> None:
        sock = await self.connected(at, Purpose.ADDS)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, frame_header(FrameKind.ADD, 1, 500_000) + bytes(250_000))
        await self._until_ended(sock)

    async def slow(self, at: int) -> None:
        sock = await self.connected(at, Purpose.ASKS)
        query = ReadQuery(self.ledger_id, self.key, 0, 0, bytes_max=1_000_000)
        body = read_request(query)
        asked = [frame_header(FrameKind.READ, one, len(body)) + body for one in range(1, 11)]
        await asyncio.get_running_loop().sock_sendall(sock, b"".join(asked))
        await asyncio.sleep(3600)

    async def nonsense(self, at: int) -> None:
        sock = await self.connected(at)
        await asyncio.get_running_loop().sock_sendall(sock, b"\xff" * 1000)
        await self._until_ended(sock)

    async def storm(self, at: int) -> None:
        (await self.connected(at, Purpose.ASKS)).close()

    async def _until_ended(self, sock: socket.socket) -> None:
        with sock:
            while await asyncio.get_running_loop().sock_recv(sock, 65536):
                pass


KINDS: dict[str, Attack] = {
    "silent": Hostile.silent,
    "idle": Hostile.idle,
    "half a frame": Hostile.half,
    "slow readers": Hostile.slow,
    "nonsense": Hostile.nonsense,
    "storm": Hostile.storm,
}


async def attack(
    kind: str, address: str, meant: Hello, ledger_id: int, key: bytes, count: int
) -> None:
    """Keep *count* connections of *kind*, for ever: who is ended comes again a second later."""
    hostile = Hostile(address, meant, ledger_id, key)

    async def one(at: int) -> None:
        pause_s = count / STORM_RATE if kind in ("storm", "nonsense") else 1.0
        await asyncio.sleep(pause_s * at / count)
        while True:
            with suppress(OSError):
                await KINDS[kind](hostile, at)
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(one(at) for at in range(count)))


async def sink() -> None:
    """Listen, and say on which port: greet whoever comes as a bookie does; take what is sent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read(65536)
            writer.write(encode_answer(Welcome(VERSION_MIN, "sink", "1")))
            while await reader.read(65536):
                pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def latencies(append: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    """Return how long appends took, in ms, each from when it was due."""
    loop = asyncio.get_running_loop()
    began, took = loop.time(), []

    async def one(due: float) -> None:
        await append()
        took.append((loop.time() - due) * 1000)

    tasks = []
    for at in range(int(seconds * RATE)):
        due = began + at / RATE
        await asyncio.sleep(max(0.0, due - loop.time()))
        tasks.append(asyncio.ensure_future(one(due)))
    await asyncio.gather(*tasks)
    return took


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def keep_apart() -> tuple[int, ...]:
    """Keep this process, and the bookies that it starts, to one processor; return the others."""
    ours, *theirs = sorted(os.sched_getaffinity(0))
    if theirs:
        os.sched_setaffinity(0, {ours})
    return tuple(theirs)


@asynccontextmanager
async def other(
    processors: Sequence[int], *arguments: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this program in another process meanwhile, on *processors*; empty: on ours."""
    if processors:
        arguments += ("--processors", *map(str, processors))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.hostile", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def beside(processors: Sequence[int], *arguments: str) -> AsyncIterator[list[str]]:
    """The same, once it is at it; yield what it prints, at the end."""
    said: list[str] = []
    async with other(processors, *arguments) as process:
        await asyncio.sleep(2.0)  # until it is at it
        yield said
        process.kill()
        assert process.stdout is not None
        said += (await process.stdout.read()).decode().split()
        await process.wait()


class Round(NamedTuple):
    """p99 of the writer, in ms, and the bookie's memory beside attackers, in MB."""

    alone: float
    control: float
    beside: float
    rss: float


async def hostile(options: argparse.Namespace, directory: Path) -> None:
    apart = options.apart
    async with LocalCluster(directory, bookies=1) as cluster:
        (bookie,) = cluster.bookies()
        ours = bookie.meant
        assert ours is not None, "a new cluster says who it is"
        client = await LedgerClient.connect(cluster.uri)
        large = await client.create(Quorum(1, 1, 1))
        await large.add(bytes(1_000_000))
        key = (await large.close()).access_key
        writer = await client.create(Quorum(1, 1, 1))

        async def append() -> EntryId:
            return await writer.add(PAYLOAD)

        async def attacked(kind: str, address: str) -> tuple[float, float]:
            meant = (bookie.name, ours.instance, ours.identity)
            said = (kind, address, *meant, str(large.ledger_id), key.hex())
            count = str(options.connections)
            async with beside(apart, "--attack", *said, "--connections", count):
                took = await latencies(append, options.seconds)
                rss = rss_mb(bookie.pid)
            await asyncio.sleep(1.0)  # until they are gone
            return p99(took), rss

        await latencies(append, 1.0)
        print(f"{'p99, ms, beside':16} {'alone':>6} {'control':>8} {'beside':>7}  ratios, RSS")
        async with other(apart, "--sink") as sinking:
            assert sinking.stdout is not None
            sink_port = (await sinking.stdout.readline()).decode().strip()
            for kind in options.only or KINDS:
                rounds = []
                for _ in range(options.rounds):
                    alone = p99(await latencies(append, options.seconds))
                    control, _ = await attacked(kind, f"127.0.0.1:{sink_port}")
                    rounds.append(Round(alone, control, *await attacked(kind, bookie.address)))
                tell(kind, rounds)
        await client.close()


def tell(kind: str, rounds: list[Round]) -> None:
    alone, control, beside, _ = (statistics.median(column) for column in zip(*rounds, strict=True))
    to_alone = statistics.median(each.beside / each.alone for each in rounds)
    to_control = statistics.median(each.beside / each.control for each in rounds)
    each_round = ", ".join(f"{each.beside / each.alone:.1f}" for each in rounds)
    print(
        f"{kind:16} {alone:6.1f} {control:8.1f} {beside:7.1f}  {to_alone:.1f}x alone "
        f"({each_round}), {to_control:.1f}x control, {max(each.rss for each in rounds):.0f} MB",
        flush=True,
    )


async def greedy(uri: str) -> None:
    """Append to the log `greedy` as fast as it can be, for ever; say how fast."""
    client = await LedgerClient.connect(uri)
    log = await Log.open("greedy", client=client)
    began, appended = time.monotonic(), 0
    while True:
        await log.append_many([PAYLOAD] * 500)
        appended += 500
        rate = appended * len(PAYLOAD) / (time.monotonic() - began) / 1e6
        print(f"{rate:.1f}", flush=True)


async def tenants(options: argparse.Namespace, directory: Path) -> None:
    async with LocalCluster(directory, bookies=1) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        settings = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
        await (await Log.open("greedy", client=client, settings=settings)).close()
        log = await Log.open("modest", client=client, settings=settings)

        async def append() -> object:
            return await log.append(PAYLOAD)

        await latencies(append, 1.0)
        quota = Quota(Subject.LOGS, "greedy", append_bytes_s=QUOTA_BYTES_S)
        for limited in (False, True):
            if limited:
                await change_quotas(client.store, lambda quotas: quotas.with_(quota), by="bench")
                await asyncio.sleep(1.0)
            how = "with" if limited else "without"
            for _ in range(options.rounds):
                alone = await latencies(append, options.seconds)
                async with beside(options.apart, "--greedy", cluster.uri) as said:
                    took = await latencies(append, options.seconds)
                await asyncio.sleep(1.0)
                print(
                    f"beside a tenant {how} a quota, at {said[-1]} MB/s: p99 "
                    f"{p99(alone):.1f} to {p99(took):.1f} ms, {p99(took) / p99(alone):.1f}x",
                    flush=True,
                )
        await log.close()
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--only", nargs="+", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "--share-processors", action="store_true", help="let all run on all of them"
    )
    parser.add_argument("--no-tenants", action="store_true")
    parser.add_argument("--no-hostile", action="store_true")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--attack", nargs=7, help=argparse.SUPPRESS)
    parser.add_argument("--sink", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--greedy", help=argparse.SUPPRESS)
    parser.add_argument("--processors", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processors:
        os.sched_setaffinity(0, options.processors)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.attack:
        kind, address, name, instance, identity, ledger_id, key = options.attack
        meant = hello_to(Purpose.ASKS, name, BookieIdentity(instance, identity))
        attacking = attack(
            kind, address, meant, int(ledger_id), bytes.fromhex(key), options.connections
        )
        asyncio.run(attacking)
    elif options.sink:
        asyncio.run(sink())
    elif options.greedy:
        asyncio.run(greedy(options.greedy))
    else:
        options.apart = () if options.share_processors else keep_apart()
        print("attackers on", "processors of their own" if options.apart else "ours")
        for skipped, work in (
            (options.no_hostile, hostile),
            (options.no_tenants, tenants),
        ):
            with tempfile.TemporaryDirectory(dir=options.directory) as name:
                if not skipped:
                    asyncio.run(work(options, Path(name)))


if __name__ == "__main__":
    main()
