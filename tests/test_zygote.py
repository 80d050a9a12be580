"""A process that is forked from a zygote is what executing Python would have made."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, alive, wait_until
from tests.zygote import ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux"),
]

DLOG = (sys.executable, "-m", "dlog.cli")
EXECUTED = (sys.executable, "-X", "utf8", "-m", "dlog.cli")
"""A flag that no zygote has."""


def is_copy(pid: int) -> bool:
    return b"tests.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()


def up(directory: Path) -> list[str]:
    """Return a command that shows lines once it runs, until it is ended."""
    return [*DLOG, "up", "--bookies", "1", "--dir", str(directory)]


def test_it_has_the_parent_session_mask_and_streams_that_were_asked_for(tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}  # a session of Spark leaves another one
    before = os.umask(0o027)
    try:
        process = subprocess.Popen(
            up(tmp_path), stdout=subprocess.PIPE, env=variables, start_new_session=True
        )
    finally:
        os.umask(before)
    with process:
        try:
            assert process.stdout is not None
            assert b"bookie" in process.stdout.readline()
            pid = process.pid
            assert is_copy(pid)
            status = Path(f"/proc/{pid}/status").read_text()
            assert f"\nPPid:\t{os.getpid()}\n" in status
            assert "\nUmask:\t0027\n" in status
            assert os.getsid(pid) == pid
            assert Path(f"/proc/{pid}/cwd").readlink() == ROOT
            pipe = Path(f"/proc/self/fd/{process.stdout.fileno()}").readlink()
            assert Path(f"/proc/{pid}/fd/1").readlink() == pipe
        finally:
            process.kill()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("uri", ["nothing", "file:///nowhere"])
def test_its_arguments_variables_output_and_status_are_those_of_the_program(uri: str) -> None:
    variables = {"PATH": os.environ["PATH"], "DLOG_URI": uri}
    copied, executed = (
        subprocess.run(
            [*command, "log", "show", "absent"], env=variables, capture_output=True, check=False
        )
        for command in (DLOG, EXECUTED)
    )
    assert copied.returncode == executed.returncode > 0
    assert copied.stderr == executed.stderr
    assert uri.encode() in copied.stderr


def test_bookies_that_are_to_die_with_this_process_die_with_it_and_not_with_the_zygote(
    tmp_path: Path,
) -> None:
    """`dlog up` is the zygote's copy and starts bookies itself; it dies here of SIGKILL."""
    with subprocess.Popen(up(tmp_path), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"bookie" in process.stdout.readline()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            bookies = [int(pid) for pid in children.read_text().split()]
            assert bookies
        finally:
            process.kill()
    wait_until(lambda: not any(map(alive, bookies)), "its bookies have died")


def test_another_package_of_the_name_in_the_working_directory_is_run(tmp_path: Path) -> None:
    (tmp_path / "bookie.py").write_text("print('another one')")
    run = subprocess.run(
        [sys.executable, "-m", "bookie"], cwd=tmp_path, capture_output=True, check=True
    )
    assert run.stdout == b"another one\n"
