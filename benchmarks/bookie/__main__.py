"""How fast one bookie is, and what it costs, compared with what its disk gives.

    python -m benchmarks.bookie [--only SECTION ...] [--dir DIR] [--json FILE] [--quick]

One client process, one bookie process, on one machine. First the disk of DIR is measured, and
again before each section; see `benchmarks.disk` for R and F, in which all else is given. Prints
a table, and keeps the same as JSON in FILE and as a drawing beside it.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from benchmarks.bookie.adding import client_throughput, latency, throughput
from benchmarks.bookie.behind import catch_up
from benchmarks.bookie.bench import QUICK, Bench, Sizes
from benchmarks.bookie.closed import closed_ledgers
from benchmarks.bookie.compacting import compaction
from benchmarks.bookie.ledgers import many_ledgers
from benchmarks.bookie.restarting import restart
from benchmarks.command import parsed, parser_of, tell
from benchmarks.disk import measure_disk

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
    for name in options.only or SECTIONS:
        bench.begin(name, sizes.seconds / 4)
        await SECTIONS[name](bench)
    return bench


def arguments() -> argparse.Namespace:
    return parsed(parser_of("bookie", __doc__, SECTIONS))


def main() -> None:
    options = arguments()
    bench = asyncio.run(measure(options))
    tell(bench, asdict(bench.sizes), options.json)


if __name__ == "__main__":
    main()
