"""Fuzzes each parser for a time: `python -m tests.fuzz [--seconds 60] [--jobs 2] [TARGET ...]`.

Guided by coverage where Atheris is installed (`pip install atheris`), by chance otherwise. What is
found is kept in `tests/fuzz/corpus`, where `make test` tries it from then on, and the exit code
is 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom

from tests.fuzz.mutating import BYTES_MAX, mutants
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.schemas import SCHEMAS

MEMORY_MB = 2048
"""Who needs more for `BYTES_MAX` was led to by them."""
ONE_S = 10
"""No input may take longer."""


def main(argv: Sequence[str] | None = None) -> int:
    by_name = {target.name: target for target in (*TARGETS, *SCHEMAS)}
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help="by default all: " + ", ".join(by_name)
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="(%(default)s)")
    given = parser.parse_args(argv)
    for name in given.targets:
        if name not in by_name:
            parser.error(f"there is no target {name}")
    chosen = [by_name[name] for name in given.targets or by_name]
    is_guided = find_spec("atheris") is not None
    print(
        f"{len(chosen)} parsers, {given.seconds:g} s each, "
        + ("by coverage" if is_guided else "by chance")
    )
    fuzz = guided if is_guided else by_chance
    with ThreadPoolExecutor(given.jobs) as pool:
        found = [*pool.map(lambda target: fuzz(target, given.seconds), chosen)]
    return int(any(found))


def guided(target: Target, seconds: float) -> bool:
    """Return whether something was found, by Atheris, in a process of its own."""
    deadline = time.monotonic() + seconds
    tries = 0
    found: list[bytes] = []
    with tempfile.TemporaryDirectory() as scratch:
        seeds, crashes = Path(scratch, "seeds"), Path(scratch, "crashes")
        seeds.mkdir()
        for at, seed in enumerate((*target.seeds, *target.kept)):
            (seeds / str(at)).write_bytes(seed)
        while not found and (left_s := deadline - time.monotonic()) > 0:
            shutil.rmtree(crashes, ignore_errors=True)
            crashes.mkdir()
            options = [f"-max_total_time={max(1, round(left_s))}", f"-artifact_prefix={crashes}/"]
            done = atheris_with(target, *options, "-print_final_stats=1", str(seeds))
            said = done.stderr.rpartition("stat::number_of_executed_units:")[2].split("\n")[0]
            tries += int(said.strip() or 0)
            suspects = sorted(crashes.iterdir())
            if done.returncode and not suspects:
                raise RuntimeError(f"{target.name}: {done.stderr[-2000:]}")
            # Who took too long may have been held up by the machine: then he is quick by himself.
            found = [
                suspect.read_bytes()
                for suspect in suspects
                if atheris_with(target, str(suspect)).returncode
            ]
    return report(target, found, str(tries))


def atheris_with(target: Target, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable, "-m", "tests.fuzz.guided", target.name, f"-max_len={BYTES_MAX}",
        f"-timeout={ONE_S}", f"-rss_limit_mb={MEMORY_MB}", "-verbosity=0", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False)


def by_chance(target: Target, seconds: float) -> bool:
    """Return whether something was found, by mutants of what is known."""
    deadline = time.monotonic() + seconds
    tries = 0
    known = [*target.seeds, *target.kept]
    while time.monotonic() < deadline:
        for data in mutants(known, str(SystemRandom().random()), 1000):
            tries += 1
            began = time.monotonic()
            try:
                target.try_with(data)
            except Exception:  # noqa: BLE001 - that is what is looked for
                return report(target, [data], str(tries))
            if time.monotonic() - began > ONE_S:
                return report(target, [data], str(tries))
    return report(target, [], str(tries))


def report(target: Target, found: Sequence[bytes], tries: str) -> bool:
    print(
        f"{target.name:24} {tries:>10} tries",
        *(f"FOUND {target.keep(data)}" for data in found),
        flush=True,
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
