"""Runs the demo: starts the roles, kills the leader half way, and judges the outcome.

Call: python -m examples.flights [--zookeeper] [--keep]
"""

import argparse
import asyncio
import sys
from pathlib import Path

from rich.console import Console

from examples.flights.command import command
from examples.flights.report import last_line, table
from examples.flights.run import run_demo


async def main(arguments: argparse.Namespace, console: Console) -> int:
    """Return the exit status of the demo."""

    async def demo(directory: Path) -> int:
        outcome = await run_demo(directory, zookeeper=arguments.zookeeper, console=console)
        console.print(table(outcome))
        print(last_line(outcome), flush=True)
        return 0 if outcome.exact else 1

    return await command(demo, name="flights", keep=arguments.keep, console=console)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--zookeeper", action="store_true", help="on a real ZooKeeper")
    parser.add_argument("--keep", action="store_true", help="keep the directory and its logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse(), Console(highlight=False, soft_wrap=True))))
