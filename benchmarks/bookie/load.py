"""Ways to load a bookie: as fast as it goes, or with so many adds in flight."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.bookie.bench import BOOKIE
from benchmarks.runs import runs_of
from ledger.requests import AddRun, Status
from ledger.transport.sockets import SocketTransport

RUN_BYTES: Final = 64 * 1024
PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
PENDING_RUNS_MAX: Final = 4096
_REFUSED_PAUSE_S: Final = 0.005


class AddFailed(Exception):
    """The bookie answered an add with something else than yes or "later"."""


@dataclass(frozen=True, slots=True)
class Pumped:
    seconds: float
    entries: int
    payload_bytes: int
    refused: int
    """How often a run was answered with TOO_MANY_REQUESTS, and sent again."""

    @property
    def bytes_per_s(self) -> float:
        return self.payload_bytes / self.seconds

    @property
    def entries_per_s(self) -> float:
        return self.entries / self.seconds


class Pump:
    """Sends runs as fast as the bookie takes them; what it refuses is sent again."""

    def __init__(self, transport: SocketTransport) -> None:
        self._transport = transport
        self._pending_runs = self._pending_bytes = self._refused = 0
        self._failed: Status | None = None
        self._room = asyncio.Event()

    async def all(self, runs: Iterable[AddRun], *, payload_bytes: int) -> Pumped:
        """Send *runs*, whose entries are of *payload_bytes*; return once all are durable."""
        entries = 0
        started = time.perf_counter()
        for run in runs:
            while (
                self._pending_bytes >= PENDING_BYTES_MAX or self._pending_runs >= PENDING_RUNS_MAX
            ):
                await self._progress()
            self._pending_runs += 1
            self._pending_bytes += len(run.frames)
            self._send(run)
            entries += len(run.entries)
        while self._pending_runs:
            await self._progress()
        took = time.perf_counter() - started
        return Pumped(took, entries, entries * payload_bytes, self._refused)

    async def _progress(self) -> None:
        self._room.clear()
        await self._room.wait()
        if self._failed is not None:
            raise AddFailed(self._failed.name)

    def _send(self, run: AddRun) -> None:
        def done(status: Status) -> None:
            if status is Status.TOO_MANY_REQUESTS:
                self._refused += 1
                asyncio.get_running_loop().call_later(_REFUSED_PAUSE_S, self._send, run)
                return
            if status is not Status.OK:
                self._failed = status
            self._pending_runs -= 1
            self._pending_bytes -= len(run.frames)
            self._room.set()

        self._transport.add(BOOKIE, run, done)


async def add_times(
    transport: SocketTransport, ledger_id: int, payload_bytes: int, in_flight: int, seconds: float
) -> list[float]:
    """Return how long each add took with *in_flight* single entries always on their way.

    What the bookie refuses until it has room is sent again, and its time goes on."""
    loop = asyncio.get_running_loop()
    end = time.perf_counter() + seconds
    runs = _single_runs(ledger_id, payload_bytes)
    times: list[float] = []
    over: asyncio.Future[None] = loop.create_future()
    open_count = 0

    def start() -> None:
        nonlocal open_count
        run = next(runs)
        started = time.perf_counter()
        open_count += 1

        def done(status: Status) -> None:
            nonlocal open_count
            if status is Status.TOO_MANY_REQUESTS:
                loop.call_later(_REFUSED_PAUSE_S, transport.add, BOOKIE, run, done)
                return
            open_count -= 1
            now = time.perf_counter()
            if status is not Status.OK:
                if not over.done():
                    over.set_exception(AddFailed(status.name))
                return
            times.append(now - started)
            if now < end:
                start()
            elif not open_count and not over.done():
                over.set_result(None)

        transport.add(BOOKIE, run, done)

    for _ in range(in_flight):
        start()
    await over
    return times


def _single_runs(ledger_id: int, payload_bytes: int) -> Iterator[AddRun]:
    return runs_of(ledger_id, payload_bytes, 1 << 40, run_bytes=1)
