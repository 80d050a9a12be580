"""The benchmark of the console runs from end to end; what it measures is not judged here."""

import subprocess
import sys
from pathlib import Path

import pytest

PROMISED = (
    "the first page shows the bookies, after the start",
    "Logs knows them all, after the start",
    "Ledgers knows them all, after the start",
    "Logs, its last page, p99",
    "a log that is written, p50",
    "processor while nobody looks",
    "first page while a bookie is away, p99",
    "memory",
)


@pytest.mark.integration
@pytest.mark.long("bench-console")
def test_a_run_of_few_logs_tells_every_figure_and_leaves_nothing(tmp_path: Path) -> None:
    few = ("--logs", "60", "--ledgers", "130", "--seconds", "0.1")
    command = [sys.executable, "-m", "benchmarks.console", *few, "--dir", str(tmp_path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    for wanted in PROMISED:
        assert any(line.startswith(wanted) for line in run.stdout.splitlines()), wanted
    assert not list(tmp_path.iterdir())
