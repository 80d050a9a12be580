"""Shows that the tests of drivers and servers find bugs: `python -m tests.mutants`.

Prints for each mutant the test that fails with it. The exit status is 1 if one did not, or if one
fails without any mutant, which says that the machine is too busy, or the tests are wrong.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count

from tests.mutants import MUTANTS
from tests.mutants.judging import Outcome, fail_without, judge


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    chosen = [
        each
        for each in MUTANTS.values()
        if not options.only or any(word in each.name + each.file for word in options.only)
    ]
    missed = 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        without = pool.submit(fail_without, [each.test for each in chosen])
        print(f"{'file':32} | {'mutant':66} | caught by", flush=True)
        for mutant, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
            caught = verdict.outcome is Outcome.CAUGHT
            missed += not caught
            by = mutant.test.rpartition("::")[2] if caught else verdict.outcome.value
            print(f"{mutant.file:32} | {mutant.name:66} | {by}", flush=True)
            if options.verbose or not caught:
                print(f"    {verdict.took_s:.1f} s: {verdict.said}", flush=True)
        failing = without.result()
    print(f"{len(chosen)} mutants, {missed} not caught")
    if failing:
        print(f"without a mutant these tests do not pass:\n{failing}")
    return 1 if missed or failing else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="of a mutant's name or file")
    parser.add_argument("--jobs", type=int, default=cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="print why the tests failed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
