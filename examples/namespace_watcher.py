"""Watches a namespace: tails every log that is there, and each new one as soon as it is made.

dlog up                                    # a cluster, in another terminal
python -m examples.namespace_watcher eu/   # every log whose name begins so, until Ctrl-C
echo hello | dlog log append eu/orders     # a new log: its first record is printed, too
"""

import argparse
import asyncio
import sys

from dlog import LogError
from dlog.aio import Log
from dlog.aio.admin import watch_logs


async def follow(log: str, uri: str | None) -> None:
    """Print the records of *log*, those too that were appended before it was noticed."""
    try:
        async with Log.tail(log, uri=uri, start="start") as reader:
            async for record in reader:
                print(f"{log} {record.offset} {record.value.decode(errors='replace')}", flush=True)
    except LogError as error:  # of this log only: deleted, trimmed under our feet
        print(f"stopped {log}: {error}", file=sys.stderr)


async def run(prefix: str, uri: str | None) -> None:
    tails: dict[str, asyncio.Task[None]] = {}
    async with watch_logs(prefix=prefix, uri=uri) as watch, asyncio.TaskGroup() as tasks:
        print(f"watching logs that begin with {prefix!r}", flush=True)
        async for change in watch:  # what is there already comes first, as added
            print(f"{change.kind} {change.log}", flush=True)
            if change.kind == "added":
                tails[change.log] = tasks.create_task(follow(change.log, uri))
            else:
                tails.pop(change.log).cancel()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prefix", nargs="?", default="", help="default: every log")
    parser.add_argument("--uri", help="of the namespace; default: DLOG_URI, else the local one")
    given = parser.parse_args()
    try:
        asyncio.run(run(given.prefix, given.uri))
    except KeyboardInterrupt:
        return 130
    except LogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
