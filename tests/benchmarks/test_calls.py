"""A lone append makes no more Python calls than were recorded."""

import subprocess
import sys

import pytest

from benchmarks.calls import RECORDED, grown


@pytest.mark.integration
def test_a_lone_append_makes_hardly_more_calls_than_were_recorded() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls"],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("recorded:") == RECORDED.read_text(encoding="utf-8").count(":")


@pytest.mark.parametrize(("figure", "grows"), [(100.0, False), (109.0, False), (111.0, True)])
def test_a_count_that_has_grown_by_a_tenth_is_reported(figure: float, *, grows: bool) -> None:
    wrong = grown({"calls": figure}, {"calls": 100.0})

    assert wrong == (["calls: 111, and 100 were recorded"] if grows else [])
