"""Runs seeds: `python -m tests.simulation --seed 7` or `--seeds 0:1000`.

Those of ledgers, with `--logs` of logs, with `--repair` of repair, with `--replicas` of replicas.

Prints what was covered; over 1,000 seeds or more it fails if something of `coverage` never
happened. For a seed that breaks something its step, the broken invariant, its
last events and the command that shows it again. The exit status is 1 then.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from typing import Final

from tests.simulation.coverage import SEEDS_MIN, missing
from tests.simulation.logs.coverage import missing_of_logs
from tests.simulation.repair.coverage import missing_of_repair
from tests.simulation.replicas.coverage import missing_of_replicas
from tests.simulation.scenarios_of_seeds import LEDGERS, LOGS, REPAIR, REPLICAS, SCENARIOS
from tests.simulation.stepping import Outcome, SimulationError

MISSING: Final = {
    LEDGERS: missing,
    LOGS: missing_of_logs,
    REPAIR: missing_of_repair,
    REPLICAS: missing_of_replicas,
}
TERMINAL_S: Final = 0.2
LINES_S: Final = 10.0
"""Time between two reports of progress, to a terminal and to a file."""


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.trace:
        return _show(options.seeds[0], options.scenario)
    began = time.monotonic()
    marks: Counter[str] = Counter()
    worlds: Counter[str] = Counter()
    failures = []
    steps = 0
    seeds = options.seeds
    progress = _Progress(len(seeds))
    run = SCENARIOS[options.scenario].attempt
    for count, outcome in enumerate(_outcomes(seeds, options.jobs, run), 1):
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
    never = MISSING[options.scenario](marks) if len(seeds) >= SEEDS_MIN and not failures else []
    for thing in never:
        print(f"never happened in {len(seeds)} seeds: {thing}")
    return 1 if failures or never else 0


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
    seeds: range, jobs: int, run: Callable[[int], Outcome | SimulationError]
) -> Iterator[Outcome | SimulationError]:
    if jobs == 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=8)
        finally:
            pool.shutdown(cancel_futures=True)


def _show(seed: int, scenario: str) -> int:
    """Print every event of one seed."""
    simulation = SCENARIOS[scenario](seed, keep_trace=True)
    try:
        simulation.run()
    except SimulationError as error:
        print(*simulation.scheduler.trace.tail, sep="\n")
        print(f"seed {seed} broke at step {error.step}: {error.broken}")
        return 1
    print(*simulation.scheduler.trace.tail, sep="\n")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=_one, dest="seeds", metavar="N")
    which.add_argument("--seeds", type=_many, metavar="A:B", help="A included, B not")
    parser.set_defaults(scenario=LEDGERS)
    scenario = parser.add_mutually_exclusive_group()
    for name, what in (
        (LOGS, "logs on ledgers, not ledgers alone"),
        (REPAIR, "ledgers repaired"),
        (REPLICAS, "replicas of a state machine"),
    ):
        scenario.add_argument(
            f"--{name}", dest="scenario", action="store_const", const=name, help=what
        )
    parser.add_argument("--trace", action="store_true", help="print every event of the first seed")
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


if __name__ == "__main__":
    sys.exit(main())
