"""Runs seeds of any workload: `python -m tests.simulation --seed 7` or `--seeds 0:1000`.

Those of ledgers, with `--logs` of logs, with `--repair` of repair, with `--replicas` of replicas,
with `--partitions` of partitions of Kafka.

Prints what was covered; over 1,000 seeds or more it fails if something that a workload requires
never happened. For a seed that breaks something: its step, the broken invariant, its last events,
and the command that shows it again. Then the first such seed of each kind is made smaller, and
told as a story. The exit status is 1 then.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from os import cpu_count
from typing import Final

from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.kernel.shrinking import SHRINK_S, shrink
from tests.simulation.kernel.simulation import LEDGERS, Outcome, Simulation, SimulationError
from tests.simulation.kernel.story import tell

SEEDS_MIN: Final = 1000
"""A run of so many seeds has to cover everything."""
TERMINAL_S: Final = 0.2
LINES_S: Final = 10.0
"""Time between two reports of progress, to a terminal and to a file."""


Workloads = Mapping[str, type[Simulation]]
"""By name."""


def main(workloads: Workloads, arguments: list[str] | None = None) -> int:
    options = _parse(workloads, arguments)
    workload, seeds = workloads[options.workload], options.seeds
    if options.trace:
        return _trace(workload, seeds[0], options.changes)
    began = time.monotonic()
    marks: Counter[str] = Counter()
    worlds: Counter[str] = Counter()
    failures: list[SimulationError] = []
    steps = 0
    progress = _Progress(len(seeds))
    for count, outcome in enumerate(_outcomes(workload, seeds, options), 1):
        if isinstance(outcome, SimulationError):
            failures.append(outcome)
            progress.clear()
            print(outcome, flush=True)
            if len(failures) >= options.failures_max:
                break
            continue
        steps += outcome.steps
        marks.update(outcome.marks)
        worlds.update(outcome.marks.keys())
        if len(seeds) == 1:
            print(f"trace {outcome.trace}")
        else:
            progress.show(count, len(failures))
    progress.clear()
    took_s = time.monotonic() - began
    for thing, times in sorted(marks.items()):
        print(f"  {thing:34} {times:9} times, in {worlds[thing]:6} seeds")
    print(
        f"{len(seeds)} seeds, {len(failures)} broken, {steps} steps, {took_s:.1f} s, "
        f"{len(seeds) / took_s:.0f} seeds/s"
    )
    _tell(workload, failures, options.changes, options.shrink_s)
    never = workload.missing(marks) if len(seeds) >= SEEDS_MIN and not failures else []
    for thing in never:
        print(f"never happened in {len(seeds)} seeds: {thing}")
    return 1 if failures or never else 0


def _tell(
    workload: type[Simulation], failures: list[SimulationError], changes: Changes, seconds: float
) -> None:
    """Print the story of the first failure of each kind, made smaller."""
    for failure in {each.kind: each for each in reversed(failures)}.values():
        print()
        print(tell(shrink(workload, failure, changes, seconds=seconds)), flush=True)


class _Progress:
    """Shows how far a run is: in place on a terminal, else as a line now and then."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._in_place = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()

    def show(self, count: int, broken: int) -> None:
        now = time.monotonic()
        if now - self._shown < (TERMINAL_S if self._in_place else LINES_S):
            return
        self._shown = now
        rate = count / (now - self._began)
        line = f"{count}/{self._seeds} seeds, {broken} broken, {rate:.0f} seeds/s"
        start, end = ("\r", "\x1b[K") if self._in_place else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._in_place:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _outcomes(
    workload: type[Simulation], seeds: range, options: argparse.Namespace
) -> Iterator[Outcome | SimulationError]:
    run = partial(workload.attempt, changes=options.changes)
    if options.jobs == 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=8)
        finally:
            pool.shutdown(cancel_futures=True)


def _trace(workload: type[Simulation], seed: int, changes: Changes) -> int:
    """Print every event of one seed."""
    simulation = workload(seed, changes=changes, keep_trace=True)
    try:
        simulation.run()
    except SimulationError as error:
        print(*simulation.scheduler.trace.tail, sep="\n")
        print(f"seed {seed} broke at step {error.step}: {error.broken}")
        return 1
    print(*simulation.scheduler.trace.tail, sep="\n")
    return 0


def _parse(workloads: Workloads, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=_one, dest="seeds", metavar="N")
    which.add_argument("--seeds", type=_many, metavar="A:B", help="A included, B not")
    parser.set_defaults(workload=LEDGERS)
    workload = parser.add_mutually_exclusive_group()
    for name in workloads:
        workload.add_argument(f"--{name}", dest="workload", action="store_const", const=name)
    parser.add_argument("--trace", action="store_true", help="print every event of the first seed")
    parser.add_argument(
        "--changes",
        type=Changes.parse,
        default=UNCHANGED,
        metavar="TEXT",
        help="change the drawn world, as a failure that was made smaller says",
    )
    parser.add_argument(
        "--shrink-s",
        type=float,
        default=SHRINK_S,
        metavar="SECONDS",
        help="how long to make a failing seed smaller, at most; 0: not at all",
    )
    parser.add_argument("--jobs", type=int, default=cpu_count() or 1)
    parser.add_argument("--failures-max", type=int, default=5, help="stop after so many")
    return parser.parse_args(arguments)


def _one(text: str) -> range:
    return range(int(text), int(text) + 1)


def _many(text: str) -> range:
    first, _, end = text.partition(":")
    seeds = range(int(first), int(end))
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} names no seed; say for example 0:100")
    return seeds
