"""The nemeses of Jepsen on real processes, shortly, and what they rest on; `make chaos-jepsen` does
it for long."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bookie.disk.port import Disk, RealDisk
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from tests.integration.chaos import page_cache
from tests.integration.chaos.jepsen_stage import JepsenStage
from tests.integration.chaos.launcher import LAUNCHER, LOOK_S, Clock, set_clock
from tests.integration.chaos.page_cache import LIES, CachedDisk
from tests.integration.chaos.places import Places
from tests.integration.chaos.stage import Plan
from tests.integration.test_log_chaos import ROOT, SKIPPED, chaos

DEADLINE_S: Final = 600


@pytest.fixture(autouse=True)
def nothing_is_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "WRITTEN_BACK", 0.0)


def written(disk: Disk, path: str, data: bytes) -> None:
    file = disk.create(path)
    file.write([data], 0)
    file.sync()
    file.close()


def content(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    data = file.read(file.size(), 0)
    file.close()
    return data


def after_power_failure(disk: CachedDisk) -> CachedDisk:
    """Return what the next process finds; the one before is not heard any more."""
    if disk._lock is not None:
        os.close(disk._lock)
    return CachedDisk(disk.root)


def test_the_process_itself_reads_what_it_wrote_wherever_it_is(tmp_path: Path) -> None:
    disk = CachedDisk(tmp_path)
    disk.make_directory("a")
    file = disk.create("a/f")
    file.write([b"x" * 5000], 10)
    file.sync()
    file.write([b"hello", memoryview(b" world")], 4090)
    file.preallocate(9000)
    assert file.size() == 9000
    assert file.read(20, 4088) == b"xxhello worldxxxxxxx"
    assert file.read(10, 0) == bytes(10)
    assert file.read(100, 8950) == bytes(50)
    disk.rename("a/f", "a/g")
    assert disk.list("a") == ["g"]
    assert content(disk, "a/g")[4090:4095] == b"hello"
    with pytest.raises(FileNotFoundError):
        disk.open("a/f")
    disk.remove("a/g")
    assert disk.list("a") == []
    assert file.read(5, 4090) == b"hello"
    file.close()


def test_what_was_not_synced_is_gone_with_the_power(tmp_path: Path) -> None:
    disk = CachedDisk(tmp_path)
    file = disk.create("f")
    file.write([b"synced"], 0)
    file.sync()
    disk.sync_directory("")
    file.write([b"cached"], 0)
    file.write([b"longer"], 6)
    assert file.read(12, 0) == b"cachedlonger"
    assert content(after_power_failure(disk), "f") == b"synced"


def test_a_page_may_be_written_back_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "WRITTEN_BACK", 1.0)
    disk = CachedDisk(tmp_path)
    written(disk, "f", b"synced")
    disk.sync_directory("")
    disk.open("f").write([b"cached"], 0)
    assert content(after_power_failure(disk), "f") == b"cached"


def test_names_are_there_once_their_directory_is_synced(tmp_path: Path) -> None:
    disk = CachedDisk(tmp_path)
    for name in ("kept", "moved", "removed"):
        written(disk, name, name.encode())
    disk.sync_directory("")
    written(disk, "new", b"new")
    disk.rename("moved", "elsewhere")
    disk.remove("removed")
    assert disk.list("") == ["elsewhere", "kept", "new"]
    later = after_power_failure(disk)
    assert later.list("") == ["kept", "moved", "removed"]
    written(later, "tmp", b"twice")
    later.rename("tmp", "kept")
    later.remove("removed")
    later.sync_directory("")
    last = after_power_failure(later)
    assert last.list("") == ["kept", "moved"]
    assert content(last, "kept") == b"twice"
    assert content(last, "moved") == b"moved"


def test_a_process_that_ends_in_order_leaves_all_that_it_wrote(tmp_path: Path) -> None:
    disk = CachedDisk(tmp_path)
    disk.lock()
    disk.create("f").write([b"cached"], 0)
    disk.unlock()
    assert content(RealDisk(tmp_path), "f") == b"cached"


def test_a_file_is_the_same_one_over_renames_and_restarts(tmp_path: Path) -> None:
    disk = CachedDisk(tmp_path)
    written(disk, "tmp", b"a")
    before = disk.open("tmp").identity()
    disk.rename("tmp", "f")
    disk.sync_directory("")
    assert RealDisk(tmp_path).open("f").identity() == before
    assert after_power_failure(disk).open("f").identity() == before


def test_the_storage_of_a_bookie_starts_after_a_power_failure(tmp_path: Path) -> None:
    disk = CachedDisk(tmp_path)
    for _ in range(3):
        BookieStorage.open(disk, StorageConfig())  # and never closed
        disk = after_power_failure(disk)
    BookieStorage.open(disk, StorageConfig()).close()


def test_a_clock_is_wrong_by_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path / "clock", right_ns=lambda: 7_000_000_000)
    assert clock.time() == 7.0
    set_clock(tmp_path / "clock", -3600.0)
    monkeypatch.setattr("time.monotonic", lambda moment=clock._look_at + LOOK_S: moment)
    assert clock.time() == -3593.0
    assert clock.time_ns() == -3593_000_000_000


@pytest.mark.integration
def test_all_that_a_process_asks_for_the_time_of_day_is_wrong(tmp_path: Path) -> None:
    set_clock(tmp_path / "clock", 1e9)
    (tmp_path / "asks.py").write_text("import sys, time; print(time.time_ns(), *sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, "-m", LAUNCHER, str(tmp_path / "clock"), "asks", "one", "two"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    now, *arguments = done.stdout.split()
    assert int(now) > 2_700_000_000 * 1_000_000_000
    assert arguments == ["one", "two"]


def test_lost_doubled_moved_and_unknown_records_are_counted(tmp_path: Path) -> None:
    stage = JepsenStage(Plan(seconds=1, seed="1"), tmp_path, Places(apart=False), "")
    stage._answers = [(1.0, 0, "w.1:0"), (1.0, 1, "w.1:1"), (1.0, 2, "w.1:2"), (1.0, 3, "w.1:3")]
    stage._found = ["w.1:0", "w.1:2", "w.1:1", "w.1:1"]
    stage._unknown, stage._unanswered = [2.0], {"w.1:9": 3.0}
    (reckoning,) = stage.reckon().values()
    assert reckoning.acknowledged == 4
    assert reckoning.lost == 1  # 3
    assert reckoning.duplicated == 1  # 1
    assert reckoning.reordered == 2  # 1 and 2
    assert reckoning.unknown == 2


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        chaos("--jepsen", "--zookeepers", "0", *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout)
    print(done.stdout)
    return done


@pytest.mark.long("chaos-jepsen")
@pytest.mark.integration
@pytest.mark.timeout(DEADLINE_S + 30)
@pytest.mark.parametrize(
    ("nemesis", "said"),
    [
        ("power failure of all bookies", "full replication again within"),
        ("the same entry rots on 3 of 3", "damaged on everywhere: a typed error"),
    ],
)
def test_power_failures_and_flipped_bits_lose_no_acknowledged_record(
    nemesis: str, said: str
) -> None:
    done = run("--seconds", "5", "--only", nemesis)
    assert done.returncode == 0, done.stdout
    assert f"nemesis: {nemesis}" in done.stdout
    assert said in done.stdout


@pytest.mark.integration
@pytest.mark.timeout(DEADLINE_S + 30)
@pytest.mark.skipif("DLOG_TEST_JEPSEN" not in os.environ, reason="it waits: make chaos-jepsen")
def test_a_power_failure_finds_bookies_that_acknowledge_before_they_sync() -> None:
    """They know that they may have lost something, so the log is not opened, and nothing is lost in
    silence."""
    done = run("--seconds", "5", "--only", "power failure of all bookies", **{LIES: "1"})
    assert done.returncode != 0, done.stdout
    assert "RecoveryFailed" in done.stdout
    assert "not read to its end" in done.stdout
