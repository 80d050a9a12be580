"""A query under trouble, shortly; `make chaos-spark` does it for long. How logs are compared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.local.zookeeper import dying_with_parent
from tests.integration.chaos_spark.plan import differences, value_of

ROOT = Path(__file__).parents[2]
DEADLINE_S = 500


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([0, 1, 2], []),
        ([0, 2], ["1 missing"]),
        ([0, 1, 1, 2, 0], ["2 repeated"]),
        ([0, 1, 2, 7], ["1 strange"]),
        ([0, 2, 1], ["out of order at offset 2"]),
    ],
)
def test_whatever_differs_between_two_logs_is_said(rows: list[int], wrong: list[str]) -> None:
    assert differences([value_of(row) for row in rows], 3) == wrong


@pytest.mark.long("chaos-spark")
@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.timeout(DEADLINE_S + 30)
def test_each_row_is_there_once_whoever_is_killed() -> None:
    seed = os.environ.get("DLOG_TEST_CHAOS_SEED", "1")
    command = [sys.executable, "-m", "tests.integration.chaos_spark"]
    done = subprocess.run(
        dying_with_parent([*command, "--seconds", "6", "--seed", seed], os.getpid()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "each once and in order" in done.stdout
