"""A test that ends its process is told as failed, once, and all tests behind it still run."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import os

def test_before(): pass

def test_ends_its_process():
    with open({ran!r}, "a") as file:
        file.write("once ")
    os._exit(1)

def test_behind(): pass
"""


@pytest.mark.integration
@pytest.mark.parametrize("processes", [1, 2])
def test_a_test_that_ends_its_process_is_not_run_again(tmp_path: Path, processes: int) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.schedule"]\n')
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    for name in "acd":
        (tmp_path / f"test_{name}.py").write_text("def test_passes(): pass")
    (tmp_path / "test_b.py").write_text(TESTS.format(ran=str(ran)))
    command = [sys.executable, "-m", "pytest", "-n", str(processes), "--dist", "loadfile"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert ran.read_text() == "once "
