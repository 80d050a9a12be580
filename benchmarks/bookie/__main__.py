"""How fast one bookie is, and what it costs, compared with what its disk gives.

    python -m benchmarks.bookie [--only SECTION] [--dir DIR] [--json FILE] [--quick]

One client process, one bookie process, on one machine. First the disk of DIR is measured, see
`benchmarks.disk` for R and F; all else is told in them. Prints a table, and keeps the same as
JSON in FILE and as a drawing beside it.
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
    "restart": restart,
    "ledgers": many_ledgers,
}


async def measure(options: argparse.Namespace) -> Bench:
    sizes = QUICK if options.quick else Sizes()
    disk = measure_disk(options.dir, sizes.seconds / 2)
    bench = Bench(options.dir, disk, sizes, disk.table())
    for name, section in SECTIONS.items():
        if options.only in (None, name):
            load = os.getloadavg()[0]
            print(f"{datetime.now(UTC):%H:%M:%S} {name}; load {load:.2f}", file=sys.stderr)
            await section(bench)
    return bench


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
