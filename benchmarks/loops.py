"""The loops by which everything here appends to logs and reads them: written once, so that figures
of different benchmarks are of the same thing."""

import asyncio
import time
from collections import deque
from typing import Final

from dlog import Log
from dlog.aio import Log as AioLog
from dlog.aio import Reader as AioReader
from dlog.position import RecordId, RecordIds

BURST_BYTES: Final = 1024 * 1024
BURST_MAX: Final = 1000
WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Bytes of records in flight: as many as the clients of peers have, and as a log sends
(`dlog.protocol.packer.SENT_BYTES_MAX`)."""
LONE_MAX: Final = 2000

Rate = tuple[int, float]
"""Records, and the seconds from the first call until all were confirmed."""


def per_s(rate: Rate) -> float:
    records, seconds = rate
    return records / seconds


def burst_of(size: int) -> int:
    return max(1, min(BURST_MAX, BURST_BYTES // size))


def window_of(size: int) -> int:
    """Return how many bursts may be in flight."""
    return WINDOW_BYTES // (size * burst_of(size)) + 1


async def appended(log: AioLog, size: int, seconds: float) -> Rate:
    payload, burst = bytes(size), burst_of(size)
    pending: deque[asyncio.Future[RecordId]] = deque()
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        for _ in range(burst - 1):
            log.append_async(payload)
        pending.append(log.append_async(payload))
        count += burst
        await (pending.popleft() if len(pending) >= window_of(size) else asyncio.sleep(0))
    await log.flush()
    return count, time.perf_counter() - started


async def appended_many(log: AioLog, size: int, seconds: float) -> Rate:
    """As `appended`, with one call and one future per burst."""
    burst = [bytes(size)] * burst_of(size)
    pending: deque[asyncio.Future[RecordIds]] = deque()
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        pending.append(log.append_many_async(burst))
        count += len(burst)
        await (pending.popleft() if len(pending) >= window_of(size) else asyncio.sleep(0))
    await log.flush()
    return count, time.perf_counter() - started


def appended_blocking(log: Log, size: int, seconds: float) -> Rate:
    payload, burst = bytes(size), burst_of(size)
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        for _ in range(burst):
            log.append_async(payload)  # blocks while very much is pending
        count += burst
    log.flush()
    return count, time.perf_counter() - started


async def filled(log: AioLog, size: int, count: int) -> None:
    """Append *count* records and wait until they are confirmed."""
    pending: deque[asyncio.Future[RecordIds]] = deque()
    while count:
        burst = min(count, burst_of(size))
        pending.append(log.append_many_async([bytes(size)] * burst))
        count -= burst
        if len(pending) >= window_of(size):
            await pending.popleft()
    await log.flush()


async def lone_times(log: AioLog, size: int, seconds: float) -> list[float]:
    """Return how long appends took, one at a time."""
    payload, times = bytes(size), list[float]()
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end and len(times) < LONE_MAX:
        await log.append(payload)
        times.append(time.perf_counter() - began)
    return times


def lone_times_blocking(log: Log, size: int, seconds: float) -> list[float]:
    payload, times = bytes(size), list[float]()
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end and len(times) < LONE_MAX:
        log.append(payload)
        times.append(time.perf_counter() - began)
    return times


async def chunks_read(reader: AioReader) -> Rate:
    """Read to the end, as chunks."""
    count, started = 0, time.perf_counter()
    async for chunk in reader.read_batches():
        count += chunk.take
    return count, time.perf_counter() - started


async def records_read(reader: AioReader) -> Rate:
    """As `chunks_read`, with an object for each record, whose payload is looked at."""
    count, started = 0, time.perf_counter()
    while batch := await reader.read_batch():
        for record in batch:
            count += bool(record.value)
    return count, time.perf_counter() - started
