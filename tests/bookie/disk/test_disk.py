"""What both disks have in common, and what only the simulated one does: forget."""

import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from bookie.disk.port import Disk, DiskFull, DiskUsage, RealDisk, RealFile
from bookie.errors import DirectoryInUse
from tests.simulation.disk import Loss, PowerLost, SimDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "real":
        return RealDisk(tmp_path / "data")
    return SimDisk(0)


def test_files_are_written_and_read_at_any_place(disk: Disk) -> None:
    disk.make_directory("a/b")
    file = disk.create("a/b/c")
    file.write([b"hello", memoryview(b" world")], 3)
    file.write([b"x"] * 2000, 100)
    file.sync()
    assert file.read(11, 3) == b"hello world"
    assert file.read(3, 0) == bytes(3)
    assert file.read(5000, 100) == b"x" * 2000
    assert file.size() == 2100
    file.preallocate(3000)
    file.preallocate(10)
    assert file.size() == 3000
    assert file.read(1000, 2100) == bytes(900)
    file.close()
    again = disk.open("a/b/c")
    assert again.read(5, 3) == b"hello"
    assert again.path == "a/b/c"
    again.close()


def test_space_that_a_file_does_not_have_yet_is_taken_within_it_too(tmp_path: Path) -> None:
    """A copy of a file may have holes where the file had zeros."""
    path = tmp_path / "f"
    with path.open("wb") as sparse:
        sparse.truncate(1 << 20)
        sparse.write(b"begin")
    assert path.stat().st_blocks * 512 < 1 << 20
    file = RealDisk(tmp_path).open("f")
    file.preallocate(1 << 20)
    assert file.read(6, 0) == b"begin\0"
    assert file.size() == 1 << 20
    file.close()
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_names_are_listed_renamed_and_removed(disk: Disk) -> None:
    disk.make_directory("d")
    disk.make_directory("d")
    for name in ("two", "one"):
        disk.create(f"d/{name}").close()
    assert disk.list("d") == ["one", "two"]
    disk.rename("d/one", "d/two")
    disk.sync_directory("d")
    assert disk.list("d") == ["two"]
    disk.remove("d/two")
    assert disk.list("d") == disk.list("nowhere") == []
    for missing in ("d/two", "nowhere/file"):
        with pytest.raises(FileNotFoundError):
            disk.open(missing)
    assert "d" in disk.list("")


def test_creating_a_file_that_is_there_empties_it(disk: Disk) -> None:
    file = disk.create("f")
    file.write([b"old"], 0)
    file.close()
    file = disk.create("f")
    assert file.size() == 0
    file.close()


@pytest.mark.integration
def test_a_directory_belongs_to_one_bookie_at_a_time(tmp_path: Path) -> None:
    """Another process is told which process holds it; when that is gone it is free."""
    first = RealDisk(tmp_path)
    first.lock()
    first.lock()
    program = "import sys; from bookie.disk.port import RealDisk; RealDisk(sys.argv[1]).lock()"
    other = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert other.returncode != 0
    assert "DirectoryInUse: another bookie (process " in other.stderr
    with pytest.raises(DirectoryInUse):
        RealDisk(tmp_path).lock()
    first.unlock()
    second = RealDisk(tmp_path)
    second.lock()
    second.unlock()


def test_the_simulated_disk_loses_what_was_not_synced() -> None:
    disk = SimDisk(0)
    file = disk.create("f")
    disk.sync_directory("")
    file.write([b"synced"], 0)
    file.sync()
    file.write([b"unsynced"], 6)
    disk.create("g").close()
    disk.crash(Loss.LOST)
    assert disk.list("") == ["f"]
    assert disk.content("f") == b"synced"


def test_the_simulated_disk_may_keep_some_sectors_of_a_write() -> None:
    seen = set()
    for seed in range(50):
        disk = SimDisk(seed)
        file = disk.create("f")
        disk.sync_directory("")
        file.preallocate(1024)
        file.sync()
        file.write([b"a" * 512, b"b" * 512], 0)
        disk.crash(Loss.TORN)
        seen.add((disk.content("f")[:1], disk.content("f")[-1:]))
    assert seen == {(b"\0", b"\0"), (b"a", b"\0"), (b"\0", b"b"), (b"a", b"b")}


def test_the_simulated_disk_forgets_directories_that_were_not_synced() -> None:
    disk = SimDisk(0)
    disk.make_directory("a/b")
    disk.sync_directory("")
    disk.create("a/b/f").close()
    disk.sync_directory("a/b")
    disk.crash(Loss.LOST)
    assert disk.list("") == ["a"]
    assert disk.list("a") == []


def test_the_simulated_disk_fails_and_fills_up_and_stops_as_it_was_told() -> None:
    disk = SimDisk(0, capacity_bytes=100)
    file = disk.create("f")
    disk.fail("sync", "f", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    with pytest.raises(DiskFull, match="No space left"):
        file.write([bytes(101)], 0)
    disk.crash_at = disk.operations + 2
    file.write([bytes(10)], 0)
    with pytest.raises(PowerLost):
        file.sync()
    with pytest.raises(PowerLost):
        disk.list("")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_told_apart_from_a_broken_disk_but_not_by_a_sync(number: int) -> None:
    disk = SimDisk(0)
    disk.fail("make_directory", "d", number)
    with pytest.raises(DiskFull):
        disk.make_directory("d")
    disk.fail("create", "f", number)
    with pytest.raises(DiskFull):
        disk.create("f")
    file = disk.create("f")
    disk.fail("preallocate", "f", number)
    with pytest.raises(DiskFull):
        file.preallocate(10)
    disk.fail("rename", "g", number)
    with pytest.raises(DiskFull):
        disk.rename("f", "g")
    disk.fail("sync", "f", number)
    with pytest.raises(OSError) as told:  # noqa: PT011 - its type is what is tested
        file.sync()
    assert not isinstance(told.value, DiskFull)
    disk.fail("sync_directory", "", number)
    with pytest.raises(OSError) as told:  # noqa: PT011
        disk.sync_directory("")
    assert not isinstance(told.value, DiskFull)
    file.close()


def test_the_simulated_disk_has_the_space_it_was_given() -> None:
    disk = SimDisk(0, capacity_bytes=100)
    file = disk.create("f")
    assert disk.usage() == DiskUsage(100, 100)
    file.write([bytes(30)], 0)
    assert disk.usage() == DiskUsage(100, 70)
    assert disk.usage().used_share == pytest.approx(0.3)
    with pytest.raises(DiskFull):
        file.preallocate(101)
    disk.capacity_bytes = 10
    assert disk.usage() == DiskUsage(10, 0)
    assert disk.usage().used_share == 1
    assert SimDisk(0).usage().used_share == 0
    assert DiskUsage(0, 0).used_share == 1


def test_a_real_disk_tells_the_space_of_its_file_system(tmp_path: Path) -> None:
    usage = RealDisk(tmp_path).usage()
    assert 0 <= usage.free_bytes <= usage.total_bytes
    assert usage.total_bytes > 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the file that is always full")
def test_a_real_file_tells_that_there_is_no_space() -> None:
    file = RealFile("full", os.open("/dev/full", os.O_RDWR))
    with pytest.raises(DiskFull, match="No space left on device: 'full'"):
        file.write([b"x"], 0)
    file.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_real_disk_tells_no_space_whatever_it_was_needed_for(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    file = disk.create("f")

    def full(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    for name in ("open", "posix_fallocate", "mkdir", "rename", "pwritev", "fdatasync"):
        monkeypatch.setattr(os, name, full)
    for needs_space in (
        partial(file.write, [b"x"], 0),
        partial(file.preallocate, 10),
        partial(disk.create, "g"),
        partial(disk.make_directory, "d"),
        partial(disk.rename, "f", "g"),
    ):
        with pytest.raises(DiskFull) as told:
            needs_space()
        assert told.value.errno == number
    with pytest.raises(OSError) as failed:  # noqa: PT011
        file.sync()
    assert not isinstance(failed.value, DiskFull)
    monkeypatch.undo()
    file.close()


def test_other_errors_of_a_real_disk_stay_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = RealDisk(tmp_path).create("f")
    monkeypatch.setattr(os, "pwritev", broken)
    with pytest.raises(OSError, match="Input/output error") as told:
        file.write([b"x"], 0)
    assert not isinstance(told.value, DiskFull)
    file.close()
