"""Replicas of a bank under trouble with real processes, shortly; `make chaos-replica` for long."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from dlog.local.zookeeper import dying_with_parent

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 10
BUG_SECONDS: Final = 90
"""At most: a run ends with the first promise that is broken."""
DEADLINE_S: Final = 500

pytestmark = [pytest.mark.integration, pytest.mark.timeout(DEADLINE_S + 30)]


def run(*options: str) -> tuple[int, str]:
    seed = os.environ.get("DLOG_TEST_CHAOS_SEED", "1")
    module = [sys.executable, "-m", "tests.integration.chaos", "--bank", "--zookeepers", "0"]
    done = subprocess.run(
        dying_with_parent([*module, "--seed", seed, *options], os.getpid()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    print(done.stdout)
    return done.returncode, done.stdout


def test_each_request_has_one_effect_and_reads_are_linearizable_whatever_is_killed() -> None:
    status, said = run("--seconds", str(SECONDS))
    assert status == 0, said
    assert "0 promises broken" in said


@pytest.mark.parametrize(
    "bug",
    [
        "reads_without_a_barrier",
        pytest.param("leaves_requests_out_of_snapshots", marks=pytest.mark.long("chaos-replica")),
    ],
)
def test_a_known_bug_of_replicas_breaks_a_promise(bug: str) -> None:
    status, said = run("--seconds", str(BUG_SECONDS), "--bug", bug)
    assert status == 1
    assert "BROKE" in said
