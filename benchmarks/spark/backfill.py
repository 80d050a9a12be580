"""A backfill: a query of many batches takes all of a large log, and its processes stay small."""

import os
import threading
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from benchmarks.spark.bench import Bench, Running, streamed
from benchmarks.spark.reading import fill

VALUE_BYTES: Final = 100
_EVERY_S: Final = 0.2
_KINDS: Final = {
    "JVM": b"java",
    "a worker": b"pyspark.daemon",
    "the source": b"python_streaming_source_runner",
}


def backfill(bench: Bench, on: Running) -> None:
    count, per_trigger = bench.sizes.backfill
    log = on.fresh("backfill")
    fill(on.uri, log, VALUE_BYTES, count)
    reader = on.spark.readStream.format("dlog").option("uri", on.uri)
    frame = reader.option("maxRecordsPerTrigger", per_trigger).load(log)
    with Peaks() as peaks:
        files = {"path": str(on.directory / on.fresh("parquet"))}
        rows, seconds = streamed(on, frame, "parquet", files)
    assert rows == count, f"{rows} of {count} rows"
    name = f"backfill to parquet, {count:,} of {VALUE_BYTES} B, {per_trigger:,} a batch"
    bench.figures.append(Figure(f"{name}: dlog", rows / seconds / 1e3, "k rows/s"))
    for kind, size in peaks.bytes.items():
        bench.figures.append(Figure(f"{name}: {kind} at most", size / 1e6, "MB"))


class Peaks:
    """The largest resident memory of any process of each kind below this one, meanwhile."""

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(_KINDS, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peaks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            for kind, size in _sizes():
                self.bytes[kind] = max(self.bytes[kind], size)


def _sizes() -> list[tuple[str, int]]:
    """Return the kind and resident memory of each process of Spark below this one."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    pages: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            commands[int(path.name)] = (path / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        parents[int(path.name)], pages[int(path.name)] = int(stat[1]), int(stat[21])

    def is_below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    page = os.sysconf("SC_PAGE_SIZE")
    return [
        (kind, pages[pid] * page)
        for pid, command in commands.items()
        for kind, marked in _KINDS.items()
        if (marked in command if kind != "JVM" else command.split(b"\0")[0].endswith(marked))
        and is_below(pid)
    ]
