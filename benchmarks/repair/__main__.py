"""How long audits and checks of very many ledgers take, and how fast a lost bookie is repaired.

    python -m benchmarks.repair [--only SECTION ...] [--store zookeeper|file] [--dir DIR]
                                [--ledgers N ...] [--json FILE] [--quick]

Each section has a new cluster of four bookie processes, on a real ZooKeeper or on the embedded
metadata store. First the disk of DIR is measured, and again before and after each section; see
`benchmarks.disk` for R and F. Prints a table, and keeps the same as JSON in FILE and as a drawing
beside it.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from benchmarks.disk import measure_disk
from benchmarks.figures import print_table
from benchmarks.repair.bench import QUICK, SIZES, Bench
from benchmarks.repair.moving import beside, calls, speed
from benchmarks.repair.passes import passes
from benchmarks.results import keep

SECTIONS: Final[dict[str, Callable[[Bench, Path], Awaitable[None]]]] = {
    "calls": calls,
    "speed": speed,
    "beside": beside,
    "passes": passes,
}


async def measure(options: argparse.Namespace) -> Bench:
    sizes = QUICK if options.quick else SIZES[options.store]
    if options.ledgers:
        sizes = replace(sizes, ledgers=tuple(sorted(options.ledgers)))
    disk = measure_disk(options.dir, sizes.seconds / 2)
    bench = Bench(options.dir, disk, disk.table(), sizes, options.store)
    for name in options.only or SECTIONS:
        first = len(bench.figures)
        bench.begin(name, sizes.seconds / 4)
        with bench.place() as place:
            await SECTIONS[name](bench, place)
        bench.end(name, sizes.seconds / 4, first)
    return bench


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.repair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", choices=list(SECTIONS), action="append", help="not all sections, but this one")
    add("--store", choices=list(SIZES), default="zookeeper", help="the metadata store")
    add("--ledgers", type=int, nargs="+", help="how many there are while passes are measured")
    add("--dir", type=Path, default=Path("build"), help="on the disk to be measured")
    add("--json", type=Path, help="where to keep it: build/bench-repair-STORE.json")
    add("--quick", action="store_true", help="very little of each, to see that it works")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    bench = asyncio.run(measure(options))
    print_table(bench.figures)
    path = options.json or Path("build") / f"bench-repair-{options.store}.json"
    keep(bench.figures, {**asdict(bench.sizes), "store": bench.store}, path)


if __name__ == "__main__":
    main()
