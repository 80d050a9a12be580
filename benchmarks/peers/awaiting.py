"""dlog's asyncio API as a client of the benchmark.

    python -m benchmarks.peers.awaiting URI one|many

*one*: a call and a future for each record, an object for each record that is read. *many*: a call
for up to 1,000 records, and chunks.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from typing import Final

from benchmarks import loops
from benchmarks.ledger import BOOKIES, PATIENT
from benchmarks.peers.commands import (
    FIRST,
    PATIENCE_S,
    Answer,
    burst_and_tick,
    mark_of,
    marked,
    serve_async,
    told,
)
from dlog.aio import Log, Reader
from ledger import LedgerClient

_MONOTONIC: Final = 1
_LATER_S: Final = 0.02
_OPENING_MAX: Final = 50


class Awaiting:
    def __init__(self, client: LedgerClient, *, many: bool) -> None:
        self._client = client
        self._append = loops.appended_many if many else loops.appended
        self._read = loops.chunks_read if many else loops.records_read
        self._held = AsyncExitStack()

    async def _open(self, name: str) -> Log:
        return await Log.open(name, client=self._client)

    async def _begun(self, name: str) -> Log:
        log = await self._open(name)
        await log.append(FIRST)
        return log

    async def _several(self, name: str, logs: float, stack: AsyncExitStack) -> list[Log]:
        """Open logs of *name*, `_OPENING_MAX` at a time; *stack* closes them."""
        if logs == 1:
            return [await stack.enter_async_context(await self._begun(name))]
        opening = asyncio.Semaphore(_OPENING_MAX)

        async def opened(number: int) -> Log:
            async with opening:
                return await self._begun(f"{name}-{number}")

        found = await asyncio.gather(*map(opened, range(int(logs))))
        stack.push_async_callback(_closed, found)
        return found

    async def throughput(self, name: str, size: float, seconds: float, logs: float = 1) -> Answer:
        async with AsyncExitStack() as stack:
            opened = await self._several(name, logs, stack)
            rates = await asyncio.gather(*[self._append(log, int(size), seconds) for log in opened])
        return _rated((sum(count for count, _ in rates), max(took for _, took in rates)))

    async def fill(self, name: str, size: float, count: float) -> Answer:
        async with await self._open(name) as log:
            began = time.perf_counter()
            await loops.filled(log, int(size), int(count))
            return _rated((int(count), time.perf_counter() - began))

    async def crash(self, name: str, size: float, seconds: float) -> Answer:
        log = await self._begun(name)
        rate = await self._append(log, int(size), seconds)
        await log.abandon()
        return _rated(rate)

    async def takeover(self, name: str) -> Answer:
        began = time.perf_counter()
        async with await self._open(name) as log:
            await log.append(bytes(100))
            return {"seconds": time.perf_counter() - began}

    async def lone(self, name: str, size: float, seconds: float) -> Answer:
        async with await self._begun(name) as log:
            return told(await loops.lone_times(log, int(size), seconds))

    async def paced(
        self, name: str, size: float, rate: float, seconds: float, logs: float = 1
    ) -> Answer:
        times = [0.0] * int(rate * seconds)
        payload = bytes(int(size))

        def confirmed(index: int, due: float, future: asyncio.Future[object]) -> None:
            future.result()
            times[index] = time.perf_counter() - due

        def append(index: int, due: float) -> None:
            log = opened[index % len(opened)]
            log.append_async(payload).add_done_callback(partial(confirmed, index, due))

        async with AsyncExitStack() as stack:
            opened = await self._several(name, logs, stack)
            await _send(rate, len(times), append)
            await asyncio.gather(*[log.flush() for log in opened])
        return told(times)

    async def tailed(
        self, name: str, size: float, rate: float, seconds: float, tails: float = 1
    ) -> Answer:
        dues = [0.0] * int(rate * seconds)

        def append(index: int, due: float) -> None:
            dues[index] = due
            log.append_async(marked(int(size), index))

        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(await self._begun(name))
            begun, reading = list[asyncio.Event](), list[asyncio.Future[list[float]]]()
            for _ in range(int(tails)):
                tail = await Log.tail(name, client=self._client, start="end")
                reader = await stack.enter_async_context(tail)
                begun.append(asyncio.Event())
                reading.append(asyncio.ensure_future(_tail(reader, dues, begun[-1])))
            while not all(each.is_set() for each in begun):
                log.append_async(marked(int(size), -1))
                await asyncio.sleep(_LATER_S)
            await _send(rate, len(dues), append)
            async with asyncio.timeout(PATIENCE_S):
                return told([*chain.from_iterable(await asyncio.gather(*reading))])

    async def hold(self, name: str, logs: float) -> Answer:
        began = time.perf_counter()
        await self._several(name, logs, self._held)
        return {"seconds": time.perf_counter() - began}

    async def release(self, name: str) -> Answer:
        await self._held.aclose()
        return {"released": name}

    async def read(self, name: str, count: float) -> Answer:
        began = time.perf_counter()
        async with await Log.tail(name, client=self._client, follow=False) as reader:
            found, _ = await self._read(reader)
            took = time.perf_counter() - began
        assert found == count, f"{found} records in {name}, not {count}"
        return {"seconds": took}


async def _closed(logs: Sequence[Log]) -> None:
    for at in range(0, len(logs), _OPENING_MAX):
        await asyncio.gather(*[log.close() for log in logs[at : at + _OPENING_MAX]])


def _rated(rate: loops.Rate) -> Answer:
    return {"records": rate[0], "seconds": rate[1]}


async def _tail(reader: Reader, dues: list[float], began: asyncio.Event) -> list[float]:
    times: list[float] = []
    async for record in reader:
        now, index = time.perf_counter(), mark_of(record.value)
        if index < 0:
            began.set()
            continue
        times.append(now - dues[index])
        if len(times) == len(dues):
            break
    return times


async def _send(rate: float, count: int, send: Callable[[int, float], None]) -> None:
    """Call *send* with each index and when it is due. The loop's own timers may be late by a
    millisecond."""
    burst, tick_s = burst_and_tick(rate)
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    timer = _timer()
    due, index = time.perf_counter() + tick_s, 0

    def tick() -> None:
        nonlocal due, index
        os.read(timer, 8)
        while index < count and due <= time.perf_counter():
            for _ in range(burst):
                send(index, due)
                index += 1
            due += tick_s
        if index >= count and not done.done():
            done.set_result(None)

    loop.add_reader(timer, tick)
    _begin(timer, tick_s)
    try:
        await done
    finally:
        loop.remove_reader(timer)
        os.close(timer)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _timer() -> int:
    """Return a descriptor that can be read when a timer has run out (Linux)."""
    timer: int = _LIBC.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return timer


def _begin(timer: int, every_s: float) -> None:
    every_ns = int(every_s * 1e9)
    when = (ctypes.c_long * 4)(0, every_ns, 0, every_ns)
    if _LIBC.timerfd_settime(timer, 0, when, None) < 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")


async def main(uri: str, kind: str) -> None:
    client = await LedgerClient.connect(uri, PATIENT)
    await client.bookies.wait_for(BOOKIES, 60)
    awaiting = Awaiting(client, many=kind == "many")
    names = (
        "throughput", "fill", "crash", "takeover", "lone", "paced", "tailed", "read",
        "hold", "release",
    )  # fmt: skip
    await serve_async({name: getattr(awaiting, name) for name in names})
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
