"""Segments in object storage: `make bench-archive`.

    python -m benchmarks.archive [--megabytes 400] [--rate BYTES_PER_S] [--segments 1000 1000000]
        [--directory DIR]

Three bookies and a directory as object storage, on this machine: what is measured is dlog's own
work, and no network. Prints one line for each figure; all of them go to `build/bench/archive.json`.
`benchmarks/archive.md` is written by hand from them. Logs of many segments are written as they are
after so many rolls: index objects with lines, and a manifest; what opens them is the real thing.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from benchmarks.figures import percentile
from dlog.aio import Log
from dlog.aio.admin import archive_log, create_log, update_settings
from dlog.aio.read.chunks import read_range
from dlog.aio.store import ManifestNode
from dlog.archive import segment_index
from dlog.archive.segment_index import view_at, write_index
from dlog.local.cluster import LocalCluster
from dlog.manifest import Location, Manifest, Sealed, Segment, SegmentRun, StoredObject
from dlog.protocol.segment_index import RUN_SEGMENTS, WriteIndex, index_name
from dlog.settings import LogSettings
from ledger import LedgerClient
from ledger.ids import EntryId, LedgerId

ROOT: Final = Path(__file__).parents[1]
RECORD_BYTES: Final = 1000
SEGMENT_BYTES: Final = 64 << 20
IN_FLIGHT: Final = 2000
ROUND_S: Final = 1.0
PACE_S: Final = 0.002
LEAST_APPENDS: Final = 20
"""A round that was cut short has fewer, and does not count."""
SAMPLES: Final = 7
_RECORDS: Final = 1000
_NO_LEDGER: Final = 1 << 40


class Notes(Protocol):
    def note(self, name: str, value: float, unit: str) -> None: ...


class Figures:
    def __init__(self) -> None:
        self.rows: dict[str, float] = {}

    def note(self, name: str, value: float, unit: str) -> None:
        self.rows[f"{name} ({unit})"] = value
        print(f"{name:62} {value:12,.2f} {unit}", flush=True)


async def main(options: argparse.Namespace) -> None:
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="bench-archive-") as directory:
        async with LocalCluster(Path(directory) / "cluster", bookies=3) as cluster:
            client = await LedgerClient.connect(cluster.uri)
            try:
                storage = f"file://{directory}/objects"
                await bytes_through(figures, client, storage, options.megabytes, options.rate)
                for count in options.segments:
                    await opening(figures, client, storage, count)
            finally:
                await client.close()
    place = ROOT / "build" / "bench" / "archive.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    place.write_text(json.dumps({**about, **figures.rows}, indent=1))


async def bytes_through(
    figures: Figures, client: LedgerClient, storage: str, megabytes: int, rate: int
) -> None:
    """Archive a log of *megabytes*, and read it before and after."""
    settings = LogSettings(archive=storage, local_keep_s=1e6, roll_bytes=SEGMENT_BYTES)
    await create_log("bytes", settings=settings, client=client)
    await create_log("beside", client=client)
    draw = random.Random(1)
    payloads = [draw.randbytes(RECORD_BYTES // 2) + bytes(RECORD_BYTES // 2) for _ in range(64)]
    count = megabytes * 1_000_000 // RECORD_BYTES
    async with await Log.open("bytes", client=client) as log:
        for at in range(count):
            log.append_async(payloads[at % len(payloads)])
            if at % IN_FLIGHT == 0:
                await log.flush()
        await log.flush()
    size = count * RECORD_BYTES / 1e6
    local = [await _read(client, count) for _ in range(3)]
    figures.note("reading from bookies", size / median(local), "MB/s")
    stored_bytes = await appends_beside_archiving(figures, client, size, rate)
    figures.note("bytes in objects, for each byte of records", stored_bytes / size / 1e6, "")
    await update_settings("bytes", {"local_keep_s": 0}, client=client)
    began = time.perf_counter()
    released = await archive_log("bytes", client=client)
    assert released.released, "its ledgers are gone"
    figures.note("verifying and letting go", size / (time.perf_counter() - began), "MB/s")
    through = [await _read(client, count) for _ in range(3)]
    figures.note("reading through objects", size / median(through), "MB/s")
    figures.note("reading through, by local", median(local) / median(through), "times")


async def appends_beside_archiving(
    figures: Figures, client: LedgerClient, size: float, rate: int
) -> int:
    """Archive *size* megabytes in a process of its own, which stands still every other round, and
    append in all rounds; return how many bytes were stored.

    Rounds alternate, so whatever else the machine does meets both kinds. Each pair of neighbors
    gives one ratio, and their median is what archiving costs."""
    archiving = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dlog.cli", "archiver", "run", "--once", "--json"),
        *("--rate", str(rate)),
        env={**os.environ, "DLOG_URI": client.store.uri, "DLOG_AUDIT": "off"},
        stdout=asyncio.subprocess.PIPE,
    )
    ended = asyncio.create_task(archiving.communicate())
    manifest, _ = await ManifestNode(client.store, "bytes").read()
    folder = Path(manifest.storage.removeprefix("file://"))
    while not ended.done() and not await asyncio.to_thread(_has_objects, folder):  # noqa: ASYNC110
        await asyncio.sleep(PACE_S)
    began_cpu_s, took = _cpu_s(archiving.pid), 0.0
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    async with await Log.open("beside", client=client) as log:
        while not ended.done():
            archiving.send_signal(signal.SIGSTOP)
            alone.append(await _appends(log, ended))
            archiving.send_signal(signal.SIGCONT)
            began = time.perf_counter()
            beside.append(await _appends(log, ended))
            took += time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    (report,) = json.loads((await ended)[0])["reports"]
    assert not report["failures"], report["failures"]
    for name, rounds in (("nothing", alone), ("archiving", beside)):
        times = [each for some in rounds for each in some]
        for percent in (50, 99):
            label = f"lone append of 100 B, {name} beside: p{percent}"
            figures.note(label, percentile(times, percent) * 1e3, "ms")
    pairs = [(a, b) for a, b in zip(alone, beside, strict=True) if len(b) >= LEAST_APPENDS]
    figures.note("rounds of each kind", len(pairs), "")
    for percent in (50, 99):
        ratios = [percentile(b, percent) / percentile(a, percent) for a, b in pairs]
        label = f"p{percent} of appends, archiving beside by alone: median of rounds"
        figures.note(label, median(ratios), "times")
        figures.note(f"p{percent} of appends: least of the rounds", min(ratios), "times")
        figures.note(f"p{percent} of appends: most of the rounds", max(ratios), "times")
    figures.note("archiving, with the appends beside it", size / took, "MB/s")
    cpu_s = used.ru_utime + used.ru_stime - began_cpu_s
    figures.note("archiving, for each second of processor of its process", size / cpu_s, "MB/s")
    return int(report["bytes"])


def _has_objects(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _cpu_s(pid: int) -> float:
    """Return how much of a processor the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _read(client: LedgerClient, count: int) -> float:
    """Read the whole log; return how long it took."""
    began, records = time.perf_counter(), 0
    async for chunk in read_range(client, "bytes", 0, count):
        records += len(chunk)
    assert records == count
    return time.perf_counter() - began


async def _appends(log: Log, ended: "asyncio.Task[tuple[bytes, bytes]]") -> list[float]:
    """Append one record after the other for one round, or until *ended*."""
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while time.perf_counter() < end and not ended.done():
        began = time.perf_counter()
        await log.append(bytes(100))
        times.append(time.perf_counter() - began)
        await asyncio.sleep(PACE_S)
    return times


async def opening(figures: Notes, client: LedgerClient, storage: str, count: int) -> None:
    """Open, append, and look for offsets in a log of *count* segments."""
    name, label = f"of {count} segments", f"{count:,} archived segments"
    manifest = await _with_segments(client, storage, name, count)
    figures.note(f"{label}: manifest", len(manifest.encode(name)) / 1e3, "KB")
    opened: list[float] = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        log = await Log.open(name, client=client)
        opened.append(time.perf_counter() - began)
        await log.append(bytes(100))
        await log.close()
    figures.note(f"{label}: open", median(opened) * 1e3, "ms")
    manifest, _ = await ManifestNode(client.store, name).read()
    draw = random.Random(2)

    async def seek() -> None:
        segment_index.forget_indexes()
        await view_at(name, manifest, draw.randrange(count * _RECORDS))

    figures.note(f"{label}: find a segment by its offset", await _timed(seek) * 1e3, "ms")
    await log_end(figures, client, name, label)


async def log_end(figures: Notes, client: LedgerClient, name: str, label: str) -> None:
    async def tail() -> None:
        async with await Log.tail(name, client=client, start="end"):
            pass

    figures.note(f"{label}: begin to tail at the end", await _timed(tail) * 1e3, "ms")


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    times: list[float] = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        await work()
        times.append(time.perf_counter() - began)
    return median(times)


async def _with_segments(client: LedgerClient, storage: str, name: str, count: int) -> Manifest:
    """Make a log as it is after *count* segments were archived, a minute and 1,000 records each."""
    await create_log(name, settings=LogSettings(archive=storage), client=client)
    async with await Log.open(name, client=client) as log:
        await log.append(bytes(100))
    node = ManifestNode(client.store, name)
    manifest, version = await node.read()
    (last,) = manifest.segments
    assert last.sealed is not None, "it was closed"
    runs: list[SegmentRun] = []
    began_ms = last.created_ms - count * 60_000
    for first in range(1, count + 1, RUN_SEGMENTS):
        numbers = range(first, min(first + RUN_SEGMENTS, count + 1))
        segments = tuple(_archived(number, began_ms, manifest.storage) for number in numbers)
        runs.append(await _run(manifest, name, segments))
    end = runs[-1].end_offset
    listed = replace(
        last,
        number=count + 1,
        first_offset=end,
        sealed=replace(last.sealed, last_txid=count * _RECORDS),
    )
    grown = replace(
        manifest,
        runs=tuple(runs),
        segments=(listed,),
        next_segment=count + 2,
        epoch=count + 1,
    )
    await node.write(grown, version)
    return grown


async def _run(manifest: Manifest, name: str, segments: Sequence[Segment]) -> SegmentRun:
    listed = tuple(segments)
    index = await write_index(WriteIndex(manifest, name, index_name(listed, "bench"), listed))
    first, last = listed[0], listed[-1]
    assert first.first_offset is not None
    assert last.sealed is not None
    return SegmentRun(
        index=index,
        first_number=first.number,
        last_number=last.number,
        segments=len(listed),
        first_offset=first.first_offset,
        records=_RECORDS * len(listed),
        bytes=_RECORDS * RECORD_BYTES * len(listed),
        last_txid=last.sealed.last_txid,
        newest_ms=last.sealed.last_timestamp_ms,
        aged_ms=last.sealed.last_timestamp_ms,
    )


def _archived(number: int, began_ms: int, storage: str) -> Segment:
    at_ms, txid, size = began_ms + number * 60_000, number * _RECORDS, _RECORDS * RECORD_BYTES
    stored = StoredObject(f"{number}-{number & 0xFFFFFFFF:08x}", size, storage)
    return Segment(
        number,
        LedgerId(_NO_LEDGER + 3 * number),
        at_ms,
        (number - 1) * _RECORDS,
        Sealed(EntryId(99), _RECORDS, size, txid - _RECORDS + 1, txid, at_ms, at_ms + 59_000),
        Location(on_bookies=False, object=stored),
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archive")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rate", type=int, default=0, help="of the archiver, as its --rate")
    parser.add_argument("--segments", type=int, nargs="*", default=[1000, 10_000, 1_000_000])
    parser.add_argument("--directory", type=Path, default=None)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(main(parse()))
