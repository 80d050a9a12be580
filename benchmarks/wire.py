"""How many entries a second one client gets onto three bookie processes.

Client and servers are the real ones as far as the kind of server says:

    bookie   server and storage engine of a bookie, and its checkpoints
    server   server of a bookie, and a storage that appends to a file, fdatasync per group
    sockets  bare sockets, and the same storage

    python -m benchmarks.wire [--megabytes 100] [--directory DIR]
"""

import argparse
import asyncio
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.runs import runs_of
from bookie.disk.port import RealDisk
from bookie.server.core import Storage
from bookie.server.limits import ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.service import BookieService
from bookie.storage.add_lookup import Prepared
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.entry import HEADER_BYTES
from ledger.ids import BookieId
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.transport.sockets import SocketTransport

BOOKIES = 3
PENDING_RUNS_MAX = 64
Client = Callable[[list[int], list[AddRun]], Awaitable[None]]
_LENGTH = struct.Struct("<I")


class AppendingStorage:
    """Appends frames to one file; nothing is checked, indexed or read."""

    journals = 1
    read_only = False

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        self._queue: list[bytes | memoryview] = []
        self._ticket = 0

    @property
    def last_ticket(self) -> int:
        return self._ticket

    def is_ordinary(self, run: AddRun) -> bool:  # noqa: ARG002 - nothing is compared
        return True

    def is_new(self, ledger_id: int) -> bool:  # noqa: ARG002 - nothing is kept
        return True

    def needs_load(self, ledger_id: int) -> bool:  # noqa: ARG002 - nothing is kept
        return False

    def load(self, ledger_id: int) -> None:
        raise NotImplementedError

    def needs_disk(self, run: AddRun) -> bool:  # noqa: ARG002 - nothing is compared
        return False

    def prepare(self, run: AddRun) -> Prepared:
        raise NotImplementedError

    def add(self, run: AddRun, prepared: Prepared = None) -> tuple[Status, int]:  # noqa: ARG002
        with self._lock:
            self._queue.append(run.frames)
            self._ticket += 1
            return Status.OK, self._ticket

    def has_pending(self, journal: int = 0) -> bool:  # noqa: ARG002 - there is one
        return bool(self._queue)

    def commit(self, journal: int = 0) -> int:  # noqa: ARG002 - there is one
        with self._lock:
            queue, ticket = self._queue, self._ticket
            self._queue = []
        for first in range(0, len(queue), 512):
            os.writev(self._file, queue[first : first + 512])
        os.fdatasync(self._file)
        return ticket

    def fence(self, ledger_id: int, key: bytes) -> tuple[Status, int]:
        raise NotImplementedError

    def set_lac(self, run: AddRun) -> Status:
        raise NotImplementedError

    def read(self, query: ReadQuery) -> ReadAnswer:
        raise NotImplementedError

    def read_recent(self, query: ReadQuery) -> ReadAnswer | None:
        raise NotImplementedError

    def held(self, query: HeldQuery) -> HeldAnswer:
        raise NotImplementedError

    def lac(self, ledger_id: int, key: bytes) -> LacAnswer:
        raise NotImplementedError

    def checkpoint(self) -> None:
        pass

    def hurry(self) -> None:
        pass

    def delete(self, ledger_ids: Sequence[int]) -> None:
        raise NotImplementedError

    def offer(self, ledger_ids: Sequence[int]) -> int:
        raise NotImplementedError

    def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        os.close(self._file)


async def serve_bookie(storage: Storage, name: str) -> None:
    info = InfoAnswer(name, "start 1", "instance 1", read_only=False)
    server = BookieServer()
    port = server.bind("127.0.0.1", 0)
    await server.start(BookieService(storage, info, ServiceConfig()))
    print(port, flush=True)
    await asyncio.Event().wait()


async def serve_sockets(path: Path) -> None:
    """Take length-prefixed blobs, acknowledge each with its number when it is durable."""
    storage = AppendingStorage(path)
    loop = asyncio.get_running_loop()
    wake = threading.Event()
    durable = asyncio.Event()
    done = 0

    def committed(ticket: int) -> None:
        nonlocal done
        done = ticket
        durable.set()

    def journal() -> None:
        while True:
            wake.wait()
            wake.clear()
            while storage.has_pending():
                loop.call_soon_threadsafe(committed, storage.commit())

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def acknowledge() -> None:
            while True:
                await durable.wait()
                durable.clear()
                writer.write(_LENGTH.pack(done))

        acknowledging = asyncio.ensure_future(acknowledge())
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                frames = await reader.readexactly(length)
                storage.add(AddRun(0, b"", [], [], frames))
                wake.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            acknowledging.cancel()

    threading.Thread(target=journal, daemon=True).start()
    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def client_of_bookies(ports: list[int], runs: list[AddRun]) -> None:
    names = [BookieId(str(number)) for number in range(BOOKIES)]
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    transport = SocketTransport(addresses.get, timeout_s=20)
    failed: list[Status] = []

    async def write_to(bookie: BookieId) -> None:
        free = asyncio.Semaphore(PENDING_RUNS_MAX)

        def on_done(status: Status) -> None:
            if status is not Status.OK:
                failed.append(status)
            free.release()

        for run in runs:
            await free.acquire()
            transport.add(bookie, run, on_done)
        for _ in range(PENDING_RUNS_MAX):
            await free.acquire()

    await asyncio.gather(*[write_to(name) for name in names])
    await transport.close()
    if failed:
        raise SystemExit(f"{len(failed)} runs failed, the first with {failed[0].name}")


async def client_sockets(ports: list[int], runs: list[AddRun]) -> None:
    async def write_to(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = acked = 0
        while acked < len(runs):
            while sent < len(runs) and sent - acked < PENDING_RUNS_MAX:
                frames = runs[sent].frames
                writer.write(_LENGTH.pack(len(frames)) + frames)
                await writer.drain()
                sent += 1
            (ticket,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            acked = ticket
        writer.close()

    await asyncio.gather(*[write_to(port) for port in ports])


CLIENTS: Final[dict[str, Client]] = {
    "bookie": client_of_bookies,
    "server": client_of_bookies,
    "sockets": client_sockets,
}


def measure(
    kind: str,
    client: Client,
    runs: list[AddRun],
    directory: Path,
) -> float:
    """Return entries per second; each entry goes to all three bookies."""
    servers: list[subprocess.Popen[bytes]] = []
    ports: list[int] = []
    with tempfile.TemporaryDirectory(dir=directory) as files:
        try:
            for number in range(BOOKIES):
                command = [sys.executable, "-m", "benchmarks.wire", "--serve", kind]
                command += ["--directory", f"{files}/{number}"]
                servers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            for server in servers:
                assert server.stdout is not None
                ports.append(int(server.stdout.readline()))
            started = time.perf_counter()
            asyncio.run(_awaited(client(ports, runs)))
            return sum(len(run.entries) for run in runs) / (time.perf_counter() - started)
        finally:
            for server in servers:
                server.kill()
                server.wait()


async def _awaited(work: Awaitable[None]) -> None:
    await work


def serve(kind: str, path: Path) -> None:
    match kind:
        case "bookie":
            storage = BookieStorage.open(RealDisk(path), StorageConfig())
            asyncio.run(serve_bookie(storage, path.name))
        case "server":
            asyncio.run(serve_bookie(AppendingStorage(path), path.name))
        case _:
            asyncio.run(serve_sockets(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=["bookie", "server", "sockets"], help=argparse.SUPPRESS)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.directory)
        return
    print(f"{'wire':8} {'entry':>7} {'run':>8} {'entries/s':>11} {'MB/s':>7}")
    for entry_bytes in (100, 1024):
        for run_kib in (4, 64, 512):
            payload_bytes = entry_bytes - HEADER_BYTES
            count = arguments.megabytes * 1_000_000 // entry_bytes
            runs = list(runs_of(1, payload_bytes, count, run_bytes=run_kib * 1024))
            for kind, client in CLIENTS.items():
                rate = measure(kind, client, runs, arguments.directory)
                print(
                    f"{kind:8} {entry_bytes:5} B {run_kib:4} KiB {rate:11,.0f} "
                    f"{rate * entry_bytes / 1e6:7.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
