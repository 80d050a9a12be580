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

from benchmarks.command import parsed, parser_of, tell
from benchmarks.disk import measure_disk
from benchmarks.repair.bench import QUICK, SIZES, Bench
from benchmarks.repair.moving import beside, calls, speed
from benchmarks.repair.passes import passes

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
    parser = parser_of("repair", __doc__, SECTIONS)
    parser.set_defaults(json=None)  # it depends on the store
    add = parser.add_argument
    add("--store", choices=list(SIZES), default="zookeeper", help="the metadata store")
    add("--ledgers", type=int, nargs="+", help="how many there are while passes are measured")
    return parsed(parser)


def main() -> None:
    options = arguments()
    bench = asyncio.run(measure(options))
    path = options.json or Path("build") / f"bench-repair-{options.store}.json"
    tell(bench, {**asdict(bench.sizes), "store": bench.store}, path)


if __name__ == "__main__":
    main()
