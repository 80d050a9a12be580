"""What both disks have in common, and what only the simulated one does: forget."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.disk import Disk, RealDisk
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


def test_a_directory_belongs_to_one_bookie_at_a_time(tmp_path: Path) -> None:
    """Another process is told which process holds it; when that is gone it is free."""
    first = RealDisk(tmp_path)
    first.lock()
    first.lock()
    program = "import sys; from bookie.disk import RealDisk; RealDisk(sys.argv[1]).lock()"
    other = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
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
    with pytest.raises(OSError, match="No space left"):
        file.write([bytes(101)], 0)
    disk.crash_at = disk.operations + 2
    file.write([bytes(10)], 0)
    with pytest.raises(PowerLost):
        file.sync()
    with pytest.raises(PowerLost):
        disk.list("")
