"""How fast one bookie is, and what it costs, compared with what its disk gives.

    python -m benchmarks.bookie [--only SECTION] [--dir DIR] [--json FILE] [--quick]

One client process, one bookie process, on one machine. First the disk of DIR is measured, and
again before each section; see `benchmarks.disk` for R and F, in which all else is told. Prints
a table, and keeps the same as JSON in FILE and as a drawing beside it.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.bookie.adding import client_throughput, latency, throughput
from benchmarks.bookie.behind import catch_up
from benchmarks.bookie.bench import QUICK, Bench, Sizes
from benchmarks.bookie.compacting import compaction
from benchmarks.bookie.ledgers import many_ledgers
from benchmarks.bookie.plot import svg
from benchmarks.bookie.restarting import restart
from benchmarks.disk import measure_disk
from benchmarks.figures import print_table

SECTIONS: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "throughput": throughput,
    "client": client_throughput,
    "latency": latency,
    "catch-up": catch_up,
    "compaction": compaction,
    "restart": restart,
    "ledgers": many_ledgers,
}


async def measure(options: argparse.Namespace) -> Bench:
    sizes = QUICK if options.quick else Sizes()
    disk = measure_disk(options.dir, sizes.seconds / 2)
    bench = Bench(options.dir, disk, sizes, disk.table())
    for name, section in SECTIONS.items():
        if options.only in (None, name):
            # A disk that others use too is another disk a minute later.
            bench.disk = measure_disk(options.dir, sizes.seconds / 4)
            _tell(name, bench)
            await section(bench)
    return bench


def _tell(name: str, bench: Bench) -> None:
    """Say what is measured next, and under which conditions."""
    rate, sync_s, load = bench.disk.bytes_per_s, bench.disk.sync_s, os.getloadavg()[0]
    disk = f"R {rate / 1e6:,.0f} MB/s, F {sync_s * 1e3:.3f} ms"
    print(f"{datetime.now(UTC):%H:%M:%S} {name}: {disk}, load {load:.2f}", file=sys.stderr)
    bench.note(f"R before {name}", rate / 1e6, "MB/s")
    bench.note(f"F before {name}", sync_s * 1e3, "ms")


def keep(bench: Bench, path: Path) -> None:
    """Write *path* as JSON, and a drawing beside it."""
    told = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load_after": os.getloadavg()[0],
        "sizes": asdict(bench.sizes),
        "figures": [asdict(figure) for figure in bench.figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")
    path.with_suffix(".svg").write_text(svg(bench.figures))
    print(f"kept as {path} and {path.with_suffix('.svg')}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bookie",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", choices=list(SECTIONS), help="measure one section only")
    add("--dir", type=Path, default=Path("build"), help="on the disk to be measured")
    add("--json", type=Path, default=Path("build/bench-bookie.json"), help="where to keep it")
    add("--quick", action="store_true", help="very little of each, to see that it works")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    bench = asyncio.run(measure(options))
    print_table(bench.figures)
    keep(bench, options.json)


if __name__ == "__main__":
    main()
