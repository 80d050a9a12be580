"""Appends 100 B records for a profiler: `py-spy record -o benchmarks/appends.svg -- python -m
benchmarks.profile_appends`.

    python -m benchmarks.profile_appends [--seconds 5] [--directory DIR] [--mode aio|many|threads]

What the flame graph in `appends.svg` showed when it was made is described in `appends.md`.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from benchmarks.disk import DiskFigures
from benchmarks.ledger import (
    Bench,
    aio_appends,
    aio_appends_many,
    in_thread,
    running,
    sync_appends,
)

SIZE = 100
NO_DISK = DiskFigures(1.0, 1.0, 1.0, 1.0, 1.0)
"""Rates alone are wanted here, not their ratio to the disk."""


async def main(directory: Path, seconds: float, mode: str) -> float:
    with tempfile.TemporaryDirectory(dir=directory) as place:
        async with running(Path(place)) as (cluster, client):
            bench = Bench(cluster, client, NO_DISK, seconds, [])
            match mode:
                case "aio":
                    return await aio_appends(bench, "profiled", SIZE)
                case "many":
                    return await aio_appends_many(bench, "profiled", SIZE)
                case _:
                    return await in_thread(sync_appends, cluster.uri, "profiled", SIZE, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--mode", choices=("aio", "many", "threads"), default="aio")
    options = parser.parse_args()
    per_s = asyncio.run(main(options.directory, options.seconds, options.mode))
    print(f"{per_s:,.0f} records/s")
