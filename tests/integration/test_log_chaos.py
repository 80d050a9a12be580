"""The whole log under trouble with real processes, shortly; `make chaos` does it for long.

Here on the embedded metadata store, and on a ZooKeeper of one server: the ensemble of three is
left to `make chaos`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from dlog.local.zookeeper import dying_with_parent
from tests.integration.chaos.history import History, Seen, seen_by
from tests.waiting import alive, wait_until

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 8
DEADLINE_S: Final = 400
SKIPPED: Final = 5


def chaos(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.integration.chaos", *arguments]
    return dying_with_parent(command, os.getpid())


@pytest.mark.integration
@pytest.mark.timeout(DEADLINE_S + 30)
@pytest.mark.parametrize(
    "zookeepers",
    ["0", pytest.param("1", marks=[pytest.mark.zookeeper, pytest.mark.long("chaos")])],
)
def test_every_acknowledged_record_is_found_by_every_reader_once_and_in_order(
    zookeepers: str,
) -> None:
    seed = os.environ.get("DLOG_TEST_CHAOS_SEED", "1")
    arguments = ("--seconds", str(SECONDS), "--seed", seed, "--zookeepers", zookeepers)
    done = subprocess.run(
        chaos(*arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "longest write outage" in done.stdout


@pytest.mark.integration
def test_nothing_is_left_when_a_run_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        chaos("--seconds", "60", "--zookeepers", "0"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "readers run" in line:
                break
        mine = [pid for pid in processes(tmp_path) if pid != run.pid]
        assert len(mine) >= 4 + 3 + 3, "bookies, writers, readers"
        run.send_signal(signal.SIGKILL)
        run.wait()
    wait_until(lambda: not any(alive(pid) for pid in mine), f"none of {mine} lives on")


def processes(directory: Path) -> list[int]:
    """Return the processes whose temporary files would go to *directory*."""
    wanted = f"TMPDIR={directory}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended, or is not ours
    return found


def history(*records: bytes) -> History:
    told = History()
    for offset, record in enumerate(records):
        told.told(offset, record, epoch=1)
    return told


def seen(*records: bytes) -> Seen:
    return Seen(dict(enumerate(records)), [], len(records))


def test_a_whole_history_passes_with_records_that_nobody_acknowledged_and_gaps_of_trims() -> None:
    told = history(b"w.1:0", b"w.1:1")
    told.truncated_before = 1
    trimmed = Seen({1: b"w.1:1", 2: b"w.1:3"}, [(0, 1)], 3)
    told.check({"a": seen(b"w.1:0", b"w.1:1", b"w.1:3"), "b": trimmed}, 3)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (seen(b"w.1:0"), "read up to 1"),
        (seen(b"w.1:0", b"w.2:0"), "was acknowledged"),
        (seen(b"w.1:0", b"w.1:1", b"w.1:1"), "is at offsets 1 and 2"),
        (Seen({1: b"w.1:1"}, [(0, 1)], 2), "is gone"),
        (seen(b"w.1:0", b"w.1:1", b"w.3:5", b"w.3:4"), "stands behind"),
    ],
    ids=["lost", "other", "doubled", "trimmed too far", "out of order"],
)
def test_a_broken_promise_is_found(found: Seen, reason: str) -> None:
    told = history(b"w.1:0", b"w.1:1")
    with pytest.raises(AssertionError, match=reason):
        told.check({"a": found}, 2)


def test_two_epochs_that_acknowledge_through_each_other_are_found() -> None:
    told = history(b"w.1:0", b"w.1:1")
    told.told(2, b"w.2:0", epoch=2)
    told.told(3, b"w.1:2", epoch=1)
    with pytest.raises(AssertionError, match="epoch 1 acknowledged offset 3, epoch 2 2"):
        told.check({}, 4)


def test_what_a_reader_skips_is_found(tmp_path: Path) -> None:
    path = tmp_path / "reader"
    path.write_bytes(b"0 w.1:0\ntrimmed 1 4\n4 w.1:4\n")
    assert seen_by(path) == Seen({0: b"w.1:0", 4: b"w.1:4"}, [(1, 4)], 5)
    path.write_bytes(b"0 w.1:0\n2 w.1:2\n")
    with pytest.raises(AssertionError, match="got 2, 1 was next"):
        seen_by(path)
