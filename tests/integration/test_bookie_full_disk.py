"""A bookie on a real file system that fills up: see `tests.integration.full_disk`.

The file system is a small tmpfs, mounted in a namespace of this user's own; no rights are needed
where the kernel allows those.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import PATIENCE_S

ROOT: Final = Path(__file__).parents[2]
SIZE: Final = "24m"
MOUNT: Final = f'mount -t tmpfs -o size={SIZE} none "$1" && shift && exec "$@"'

pytestmark = pytest.mark.integration


def in_namespace(mounted: Path, *command: str) -> list[str]:
    """Return *command* as it is run with a small file system at *mounted*."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh",
            str(mounted), *command]  # fmt: skip


def run(command: list[str], *, timeout_s: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    mounted = tmp_path / "small"
    mounted.mkdir()
    try:
        done = run(in_namespace(mounted, "true"), timeout_s=PATIENCE_S)
    except FileNotFoundError:
        pytest.skip("there is no unshare here, to mount a small file system without rights")
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    return mounted


def test_a_bookie_whose_disk_fills_up_keeps_every_promise_and_goes_on_with_space(
    small_disk: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    command = (sys.executable, "-m", "tests.integration.full_disk", str(small_disk), str(other))
    done = run(in_namespace(small_disk, *command), timeout_s=240)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
