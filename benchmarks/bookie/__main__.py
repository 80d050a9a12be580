"""How fast one bookie is, and what it costs, compared with what its disk gives.

    python -m benchmarks.bookie [--only SECTION] [--dir DIR] [--json FILE] [--quick]

One client process, one bookie process, on one machine. First the disk of DIR is measured, and
again before each section; see `benchmarks.disk` for R and F, in which all else is given. Prints
a table, and keeps the same as JSON in FILE and as a drawing beside it.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.bookie.adding import client_throughput, latency, throughput
from benchmarks.bookie.behind import catch_up
from benchmarks.bookie.bench import QUICK, Bench, Sizes
from benchmarks.bookie.closed import closed_ledgers
from benchmarks.bookie.compacting import compaction
from benchmarks.bookie.ledgers import many_ledgers
from benchmarks.bookie.restarting import restart
from benchmarks.disk import measure_disk
from benchmarks.figures import print_table
from benchmarks.results import keep

SECTIONS: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "throughput": throughput,
    "client": client_throughput,
    "latency": latency,
    "catch-up": catch_up,
    "compaction": compaction,
    "restart": restart,
    "ledgers": many_ledgers,
    "closed": closed_ledgers,
}


async def measure(options: argparse.Namespace) -> Bench:
    sizes = QUICK if options.quick else Sizes()
    disk = measure_disk(options.dir, sizes.seconds / 2)
    bench = Bench(options.dir, disk, disk.table(), sizes)
    for name, section in SECTIONS.items():
        if options.only in (None, name):
            bench.begin(name, sizes.seconds / 4)
            await section(bench)
    return bench


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
    keep(bench.figures, asdict(bench.sizes), options.json)


if __name__ == "__main__":
    main()
