"""Runs the pipeline, kills its driver and a bookie, and judges the outcome.

Call: python -m examples.lakehouse [--records N] [--rate N] [--seed N] [--plot FILE] [--keep]
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from dlog.demo.supervisor import command
from examples.lakehouse.moments import Moment
from examples.lakehouse.plot import svg
from examples.lakehouse.report import last_line
from examples.lakehouse.run import Course, run_lakehouse
from examples.lakehouse.source import RECORDS

_RECORDS_MIN: Final = 5000


async def main(arguments: argparse.Namespace, console: Console) -> int:
    """Return the exit status: 0 iff every number is right."""
    course = Course(
        records=arguments.records,
        rate=arguments.rate,
        per_trigger=max(1, arguments.records // 20),
        kills=tuple(Moment),
        seed=arguments.seed,
    )

    async def demo(directory: Path) -> int:
        outcome = await run_lakehouse(directory, course, console)
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        arguments.plot.write_text(svg(outcome), encoding="utf-8")
        console.print(f"the worst hour, with its mean delay in minutes: {outcome.worst}")
        console.print(f"rates and lag over time: {arguments.plot}")
        print(last_line(outcome), flush=True)
        return 0 if outcome.exact else 1

    return await command(demo, name="lakehouse", keep=arguments.keep, console=console)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.lakehouse", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help="departures, from the first")
    parser.add_argument("--rate", type=float, default=5000.0, help="departures a second, at most")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--plot", type=Path, default=Path("build/lakehouse.svg"))
    parser.add_argument("--keep", action="store_true", help="keep the directory and its logs")
    given = parser.parse_args()
    if not _RECORDS_MIN <= given.records <= RECORDS:
        parser.error(f"--records is from {_RECORDS_MIN} (else it is over too soon) to {RECORDS}")
    if given.rate < 1:
        parser.error("--rate is at least 1 a second")
    return given


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse(), Console(highlight=False, soft_wrap=True))))
