"""What every example has in common: it explains itself, and is short enough to be read."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import TEST_S

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.integration
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_says_what_it_is_for_and_how_it_is_used(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=True,
    )
    assert f"python -m examples.{name}" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_read_in_two_minutes(name: str) -> None:
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 150
