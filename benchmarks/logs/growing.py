"""What it costs that there are many: logs written at once, logs, segments of one log.

Rolling a log 10,000 times would take most of an hour, so manifests of many segments are written
as they are after so many rolls: with segments of which only the last two have ledgers. What is
measured with them is real (open, append, roll, tail at the end): it looks at no others.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks import archive, ledger
from benchmarks.figures import percentile
from benchmarks.logs.bench import RECORD_BYTES, Bench
from benchmarks.loops import lone_times
from dlog.aio import Log
from dlog.aio.admin import create_log, list_logs
from dlog.aio.read.segments import stamp
from dlog.aio.store import ManifestNode
from dlog.manifest import OPEN_SEGMENTS_MAX, Manifest, Sealed, Segment
from ledger.ids import EntryId, LedgerId
from ledger.log_events import now_ms

_AT_ONCE: Final = 16
_BURST: Final = 10
_NO_LEDGER: Final = 1 << 40
_RECORDS: Final = 1000
_TIMED_LOGS: Final = 50


async def many_writers(bench: Bench, on: ledger.Bench) -> None:
    """Write many logs from one process, in turn: a few records to each, then to the next."""
    count = bench.sizes.logs_written
    name, payload = f"{count:,} logs written by one process", bytes(RECORD_BYTES)
    started = time.perf_counter()
    logs: list[Log] = []
    sockets, threads = _sockets(), threading.active_count()
    for numbers in _groups(count):
        opening = (Log.open(f"writer {number}", uri=on.cluster.uri) for number in numbers)
        logs += await asyncio.gather(*opening)
    bench.note(f"{name}: open each", (time.perf_counter() - started) / count * 1e3, "ms")
    appended, turns, started = 0, 0, time.perf_counter()
    while not turns or time.perf_counter() < started + bench.sizes.seconds:
        for log in logs:
            for _ in range(_BURST):
                log.append_async(payload)
        await asyncio.gather(*[log.flush() for log in logs])
        appended, turns = appended + count * _BURST, turns + 1
    took = time.perf_counter() - started
    bench.note(f"{name}: appends of 100 B", appended / took, "/s")
    bench.duration(f"{name}: {_BURST} records to each, all confirmed", took / turns)
    times = await lone_times(logs[count // 2], RECORD_BYTES, bench.sizes.seconds)
    bench.latency(f"{name}: lone append to one", times)
    bench.note(f"{name}: memory of that process", _resident_bytes() / 1e6, "MB")
    bench.note(f"{name}: sockets for them", _sockets() - sockets, "")
    bench.note(f"{name}: threads for them", threading.active_count() - threads, "")
    bench.note(f"{name}: sessions", len({id(log.writer.node.store) for log in logs}), "")
    for numbers in _groups(count):
        await asyncio.gather(*[logs[number].close() for number in numbers])


async def many_logs(bench: Bench, on: ledger.Bench) -> None:
    """Create, list, open and write with more and more logs there."""
    for fewer, count in pairwise((0, *bench.sizes.logs)):
        label = f"{count:,} logs"
        for numbers in _groups(max(0, count - fewer - _TIMED_LOGS), fewer):
            creating = (create_log(f"one of {number}", client=on.client) for number in numbers)
            await asyncio.gather(*creating)
        rest = range(max(fewer, count - _TIMED_LOGS), count)
        times = [await _timed(_creating(on, number)) for number in rest]
        bench.latency(f"{label}: create one more", times)
        times = [await _timed(lambda: list_logs(client=on.client)) for _ in _samples(bench)]
        bench.duration(f"{label}: list all", percentile(times, 50))
        await _open_and_append(bench, on, f"one of {count // 2}", label)


async def many_segments(bench: Bench, on: ledger.Bench) -> None:
    """Open, append, roll and tail with more and more segments in the manifest."""
    for count in bench.sizes.segments:
        name, label = f"of {count} segments", f"{count:,} segments"
        manifest = await _with_segments(on, name, count)
        bench.note(f"{label}: manifest", len(manifest.encode(name)) / 1e3, "KB")
        await _open_and_append(bench, on, name, label)
        async with await Log.open(name, client=on.client) as log:
            times = [await _timed(_rolling(log)) for _ in _samples(bench)]
        rolled = percentile(times, 50)
        bench.duration(f"{label}: roll", rolled)
        bench.note(f"{label}: roll, for each of 1,000,000 records", rolled, "us")
        times = [await _timed(_tailing(on, name)) for _ in _samples(bench)]
        bench.duration(f"{label}: begin to tail at the end", percentile(times, 50))
    with bench.place() as objects:
        for count in bench.sizes.archived:
            await archive.opening(bench, on.client, f"file://{objects}", count)


async def _with_segments(on: ledger.Bench, name: str, count: int) -> Manifest:
    """Make a log as after *count* rolls, a minute and 1,000 records each."""
    await create_log(name, client=on.client)
    node = ManifestNode(on.client.store, name)
    manifest, version = await node.read()
    began_ms = now_ms() - count * 60_000
    segments = [_sealed_segment(number, began_ms) for number in range(1, count + 1)]
    for index in range(max(0, count - OPEN_SEGMENTS_MAX), count):  # a takeover recovers these
        number = segments[index].number
        custom = stamp(name, manifest.incarnation, number)
        writer = await on.client.create(manifest.settings.quorum, custom=custom)
        await writer.close()
        first, txid = segments[index].created_ms, segments[index].number * _RECORDS
        real = replace(
            segments[index], ledger_id=writer.ledger_id, sealed=Sealed.empty(txid, first)
        )
        segments[index] = real
    end = segments[-OPEN_SEGMENTS_MAX].first_offset
    segments[-1] = replace(segments[-1], first_offset=end)
    grown = replace(manifest, segments=tuple(segments), next_segment=count + 1, epoch=1)
    await node.write(grown, version)
    return grown


def _sealed_segment(number: int, began_ms: int) -> Segment:
    at_ms, txid = began_ms + number * 60_000, number * _RECORDS
    entries, size = _RECORDS // 10, _RECORDS * RECORD_BYTES
    sealed = Sealed(
        EntryId(entries - 1), _RECORDS, size, txid - _RECORDS + 1, txid, at_ms, at_ms + 59_000
    )
    ledger_id = LedgerId(_NO_LEDGER + 3 * number)
    return Segment(number, ledger_id, at_ms, (number - 1) * _RECORDS, sealed)


async def _open_and_append(bench: Bench, on: ledger.Bench, name: str, label: str) -> None:
    times = []
    for _ in _samples(bench):
        started = time.perf_counter()
        log = await Log.open(name, client=on.client)
        times.append(time.perf_counter() - started)
        await log.append(bytes(RECORD_BYTES))
        await log.close()
    bench.duration(f"{label}: open one", percentile(times, 50))
    async with await Log.open(name, client=on.client) as log:
        bench.latency(
            f"{label}: lone append", await lone_times(log, RECORD_BYTES, bench.sizes.seconds / 2)
        )


def _creating(on: ledger.Bench, number: int) -> Callable[[], Awaitable[None]]:
    return lambda: create_log(f"one of {number}", client=on.client)


def _rolling(log: Log) -> Callable[[], Awaitable[None]]:
    async def roll() -> None:
        await log.append(bytes(RECORD_BYTES))  # an empty segment is not rolled
        await log.roll()

    return roll


def _tailing(on: ledger.Bench, name: str) -> Callable[[], Awaitable[None]]:
    async def tail() -> None:
        async with await Log.tail(name, client=on.client, start="end"):
            pass

    return tail


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def _samples(bench: Bench) -> range:
    return range(bench.sizes.samples)


def _groups(count: int, first: int = 0) -> Iterator[range]:
    """Yield *count* numbers from *first* on, as many together as are worked on at once."""
    end = first + count
    for start in range(first, end, _AT_ONCE):
        yield range(start, min(end, start + _AT_ONCE))


def _sockets() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            count += descriptor.readlink().name.startswith("socket:")
    return count


def _resident_bytes() -> int:
    """Return how much memory this process has resident now."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
