"""Shows that the simulator finds known bugs: `python -m tests.simulation.mutations`.

Prints for each mutation how many seeds it took and which invariant caught it, or which test
fails with it where no simulator draws it. The exit status is 1 if one was not caught: that is a
hole in the simulator, or in the test.
"""

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count

from tests.simulation.mutations import MUTATIONS
from tests.simulation.mutations.judging import SEEDS_MAX, Verdict, judge


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    names = options.only or list(MUTATIONS)
    print(f"{'mutation':50} | {'reference':28} | seeds needed | caught by", flush=True)
    missed = []
    for verdict in _verdicts(names, options.seeds_max, options.jobs):
        mutation = MUTATIONS[verdict.name]
        seeds = "-" if verdict.seeds is None else str(verdict.seeds)
        print(
            f"{mutation.name.replace('_', ' '):50} | {mutation.reference:28} | {seeds:>12} | "
            f"{verdict.caught_by}",
            flush=True,
        )
        if options.verbose:
            print(f"    {verdict.took_s:.1f} s: {verdict.story}", flush=True)
        if not verdict.caught:
            missed.append(verdict.name)
    print(f"{len(names)} mutations, {len(missed)} not caught {' '.join(missed)}")
    return 1 if missed else 0


def _verdicts(names: list[str], seeds_max: int, jobs: int) -> Iterator[Verdict]:
    if jobs == 1 or len(names) == 1:
        for name in names:
            yield judge(name, seeds_max)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(judge, names, [seeds_max] * len(names))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(MUTATIONS))
    parser.add_argument("--seeds-max", type=int, default=SEEDS_MAX)
    parser.add_argument("--jobs", type=int, default=cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="print what was found")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
