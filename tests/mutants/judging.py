"""Runs the test that a mutant names, with it, in a process of its own.

A module of its own: what other processes are to run must not be in `__main__`.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from tempfile import TemporaryFile
from typing import Final

from tests.mutants.mutant import ROOT, VARIABLE, Mutant
from tests.waiting import PATIENCE_VARIABLE

PATIENCE_S: Final = 10.0
"""How long a test waits for what ought to happen: with a mutant it mostly does not."""
TEST_S_MAX: Final = 40.0
"""A test that takes longer says nothing about the mutant."""
PROCESS_S_MAX: Final = 120.0
"""The same for its process, whose threads may outlive it."""
ALL_S_MAX: Final = 600.0
"""How long all tests together may take."""
_OUT_OF_TIME: Final = ("Failed: Timeout (>", "asyncio.timeout(WITHIN")
"""What pytest-timeout says, and where `tests.coroutines` cancels. A test that ends so says nothing
of the mutant: on a machine that stands still it would end so too. A test that is to notice that
something never comes has a deadline of its own, `PATIENCE_S`, and fails with a sentence; that it
does not do so without the mutant is looked at in the same run."""
_FAILED: Final = re.compile(r"=+ (.*, )?[1-9]\d* failed\b.* in .*=+$")
"""How pytest sums up; what loops and threads left behind may be printed after it."""


class Outcome(Enum):
    CAUGHT = "caught"
    MISSED = "NOT CAUGHT"
    HANGS = "HANGS"
    BROKEN = "DOES NOT RUN"
    """It has no place any more, or what it makes of the code cannot be imported."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    said: str
    """Of a test that failed: the first line of why. Else all that pytest said."""
    took_s: float


def judge(mutant: Mutant) -> Verdict:
    """Run the test that has to fail with *mutant*."""
    began = time.monotonic()
    try:
        mutant.source()
    except ValueError as error:
        return Verdict(Outcome.BROKEN, str(error), 0.0)
    described = {VARIABLE: json.dumps(asdict(mutant))}
    arguments = ["-p", "tests.mutants.plugin", mutant.test]
    status, said = _pytest(arguments, described, timeout_s=PROCESS_S_MAX)
    outcome = _outcome(status, said)
    if outcome is Outcome.CAUGHT:
        said = next((line for line in said.splitlines() if line.startswith("E  ")), "")[1:].strip()
    return Verdict(outcome, said, time.monotonic() - began)


def fail_without(tests: Sequence[str]) -> str:
    """Run *tests* without any mutant; return what pytest says if one fails, or nothing."""
    status, said = _pytest(list(dict.fromkeys(tests)), {}, timeout_s=ALL_S_MAX)
    return "" if status == 0 else said


def _outcome(status: int | None, said: str) -> Outcome:
    if status is None or any(sign in said for sign in _OUT_OF_TIME):
        return Outcome.HANGS
    if status == 0:
        return Outcome.MISSED
    failed = any(_FAILED.match(line) for line in said.splitlines())
    return Outcome.CAUGHT if status == 1 and failed else Outcome.BROKEN


def _pytest(
    arguments: list[str], environment: dict[str, str], *, timeout_s: float
) -> tuple[int | None, str]:
    """Return its status, None if it had to be killed, and what it printed."""
    command = [sys.executable, "-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider"]
    limits = ["-o", f"timeout={TEST_S_MAX:g}", "--timeout-method=signal"]
    patience = {PATIENCE_VARIABLE: f"{PATIENCE_S:g}"}
    with TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, *limits, *arguments],
            cwd=ROOT,
            env={**os.environ, **patience, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        return status, output.read()
