"""Is what dlog answers linearizable? `make linearizable`: histories, judged by Porcupine.

Histories come from the simulator of logs, one or two a seed, and from a run of `make chaos`, real
processes under real trouble; both with observers. A third is that of a replicated bank, under the
same trouble. Then known bugs are put in one at a time: each has to be found, else a checker that
finds nothing in honest histories says nothing. The exit status is 1 if a history is not
linearizable, was not decided in time, or if a bug is not found; 2 without Go.

Call: python -m tests.linearizable [--seeds 0:400] [--seconds 60] [--seed 1]
                                   [--only simulator|chaos|bank|mutations]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from typing import Final

from tests.linearizable.checker import BUILT, ROOT, CheckerMissing, Verdict, build, judge
from tests.linearizable.mutations import BUGS, SEEDS_MAX, find
from tests.linearizable.simulation import simulate

SIMULATOR: Final = "simulator"
CHAOS: Final = "chaos"
BANK: Final = "bank"
MUTATIONS: Final = "mutations"
_SEEDS_AT_ONCE: Final = 50


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        build()
    except CheckerMissing as missing:
        print(f"make linearizable: {missing}", file=sys.stderr)
        return 2
    parts: dict[str, Callable[[], bool]] = {
        SIMULATOR: lambda: _judge_simulations(options.seeds, options.jobs),
        CHAOS: lambda: _judge_chaos(options.seconds, options.seed, options.zookeepers),
        BANK: lambda: _judge_chaos(options.seconds, options.seed, options.zookeepers, "--bank"),
        MUTATIONS: lambda: _judge_mutations(options.jobs),
    }
    broken = [name for name, part in parts.items() if options.only in {None, name} and not part()]
    if broken:
        print(f"not as promised: {', '.join(broken)}")
    return 1 if broken else 0


def _judge_simulations(seeds: range, jobs: int) -> bool:
    began = time.monotonic()
    verdicts: list[Verdict] = []
    ended_early = 0
    for first in range(seeds.start, seeds.stop, _SEEDS_AT_ONCE):
        batch = range(first, min(first + _SEEDS_AT_ONCE, seeds.stop))
        lines = []
        for seed, (operations, broken) in zip(batch, _simulated(batch, jobs), strict=True):
            lines += operations
            if broken:
                ended_early += 1
                print(f"seed {seed} ended early, its history is judged up to there: {broken}")
        verdicts += _judged(lines)
    return _report(f"simulator, seeds {seeds.start} to {seeds.stop - 1}", verdicts, began) and (
        not ended_early
    )


def _simulated(seeds: range, jobs: int) -> Iterator[tuple[list[str], str]]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(simulate, seeds)


def _judge_chaos(seconds: float, seed: str, zookeepers: int, *kind: str) -> bool:
    began = time.monotonic()
    record = BUILT / f"{kind[0][2:] if kind else CHAOS}-{seed}.jsonl"
    record.unlink(missing_ok=True)
    module = [sys.executable, "-m", "tests.integration.chaos", "--record", str(record)]
    options = ["--seconds", str(seconds), "--seed", seed, "--zookeepers", str(zookeepers)]
    done = subprocess.run([*module, *kind, *options], cwd=ROOT, check=False)
    if done.returncode:
        print(f"chaos: the run itself failed, with status {done.returncode}")
        return False
    what = "replicas of a bank" if kind else "real processes"
    return _report(f"{what}, seed {seed}", _judged(record.read_text().splitlines()), began)


def _judge_mutations(jobs: int) -> bool:
    """See that the checker finds each of `BUGS`."""
    print("bugs put in one at a time: seeds until the checker found it")
    missed = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for name, found in zip(BUGS, pool.map(find, BUGS), strict=True):
            seeds = "NOT FOUND" if found is None else str(found.seed + 1)
            print(f"  {BUGS[name]:34} {name.replace('_', ' '):56} {seeds:>9}", flush=True)
            if found is None:
                missed.append(name)
    print(f"{len(BUGS)} bugs, {len(missed)} not found in {SEEDS_MAX} seeds {' '.join(missed)}")
    return not missed


def _judged(lines: Iterable[str]) -> list[Verdict]:
    """Judge, and keep and show what is wrong."""
    kept = list(lines)
    verdicts = judge(kept)
    for verdict in verdicts:
        if verdict.linearizable:
            continue
        path = BUILT / f"{verdict.history}.jsonl"
        mark = f'"history": "{verdict.history}"'
        path.write_text("".join(f"{line}\n" for line in kept if mark in line))
        what = "not linearizable" if verdict.result == "Illegal" else "not decided in time"
        print(f"{verdict.history}: {what}: {path}, drawn in {verdict.drawing}")
        print(*(f"  {line}" for line in verdict.story), sep="\n", flush=True)
    return verdicts


def _report(source: str, verdicts: list[Verdict], began: float) -> bool:
    wrong = [verdict for verdict in verdicts if not verdict.linearizable]
    print(
        f"{source}: {len(verdicts)} histories, "
        f"{sum(verdict.operations for verdict in verdicts)} operations, "
        f"{sum(verdict.unknown for verdict in verdicts)} of them without an outcome; "
        f"{len(wrong)} not linearizable; {time.monotonic() - began:.0f} s, "
        f"{sum(verdict.seconds for verdict in verdicts):.1f} s of it in the checker",
        flush=True,
    )
    return bool(verdicts) and not wrong


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make linearizable")
    parser.add_argument("--seeds", type=_range, default=range(400), metavar="A:B")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the real processes")
    parser.add_argument("--seed", default="1", help="of the real processes")
    parser.add_argument("--zookeepers", type=int, choices=(0, 1, 3), default=0)
    parser.add_argument("--only", choices=(SIMULATOR, CHAOS, BANK, MUTATIONS))
    parser.add_argument("--jobs", type=int, default=cpu_count() or 1)
    return parser.parse_args(arguments)


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


if __name__ == "__main__":
    sys.exit(main())
