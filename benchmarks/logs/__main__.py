"""How fast logs are on three bookie processes of this machine, and what many of them cost.

    python -m benchmarks.logs [--only SECTION ...] [--dir DIR] [--json FILE] [--quick]

First the disk of DIR is measured, and again before and after each section; see `benchmarks.disk`
for R and F, in which all else is given. Where it changed much meanwhile, aims given in it are not
judged. What the bookies wrote to files meanwhile is given beside the shares of R/6. Each section
has a new cluster, whose metadata store is the embedded one. Prints a table, and keeps the same
as JSON in FILE and as a drawing beside it. `appends.md` shows where the time of an append goes.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from benchmarks import ledger
from benchmarks.command import parsed, parser_of, tell
from benchmarks.disk import measure_disk
from benchmarks.logs.asking import metrics
from benchmarks.logs.bench import QUICK, Bench, Sizes
from benchmarks.logs.growing import many_logs, many_segments, many_writers
from benchmarks.logs.promoting import promotion
from benchmarks.logs.speed import appends, catch_up, imports, latency
from benchmarks.logs.taking_over import takeover

SECTIONS: Final[dict[str, Callable[[Bench, ledger.Bench], Awaitable[None]]]] = {
    "latency": latency,
    "appends": appends,
    "catch-up": catch_up,
    "takeover": takeover,
    "promotion": promotion,
    "writers": many_writers,
    "segments": many_segments,
    "logs": many_logs,
    "metrics": metrics,
    "imports": imports,
}


async def measure(options: argparse.Namespace) -> Bench:
    sizes = QUICK if options.quick else Sizes()
    disk = measure_disk(options.dir, sizes.seconds / 2)
    bench = Bench(options.dir, disk, disk.table(), sizes)
    wanted = options.only or list(SECTIONS)
    for together in [wanted] if options.quick else [[name] for name in wanted]:
        with bench.place() as place:
            async with ledger.running(place) as (cluster, client):
                label, first = " and ".join(together), len(bench.figures)
                bench.begin(label, sizes.seconds / 4)
                on = ledger.Bench(cluster, client, bench.disk, sizes.seconds, [])
                for name in together:
                    await SECTIONS[name](bench, on)
                bench.end(label, sizes.seconds / 4, first)
    return bench


def arguments() -> argparse.Namespace:
    return parsed(parser_of("logs", __doc__, SECTIONS))


def main() -> None:
    options = arguments()
    bench = asyncio.run(measure(options))
    tell(bench, asdict(bench.sizes), options.json)


if __name__ == "__main__":
    main()
