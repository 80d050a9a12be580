"""Where one entry is: in memory, in a journal, in an entry log; and what is damaged there."""

from dataclasses import replace

import pytest

from bookie.disk.port import DiskFile
from bookie.index.format import path_of as index_path_of
from bookie.storage.engine import BookieStorage
from bookie.storage.entry_trace import EntryStatus
from ledger.requests import Status
from tests.bookie.promises import KEY, SMALL, frame_of, run_of
from tests.simulation.disk import SimDisk

LEDGER = 7
KEEPING = replace(SMALL, recent_bytes_max=1 << 20)
"""What a checkpoint wrote stays in memory for those who tail."""


def stored(disk: SimDisk, *entries: int) -> BookieStorage:
    storage = BookieStorage.open(disk, KEEPING)
    for entry in entries:
        status, _ = storage.add(run_of(LEDGER, entry))
        assert status is Status.OK
        storage.commit()
    return storage


def places(storage: BookieStorage, entry: int) -> list[str]:
    return [copy.place for copy in storage.trace(LEDGER, entry).copies]


def opened(disk: SimDisk, path: str) -> DiskFile:
    return disk.open(path.removeprefix(disk.describe("")).lstrip("/"))


def test_an_entry_is_in_memory_and_in_the_journal_until_a_checkpoint_writes_it() -> None:
    disk = SimDisk(0)
    storage = stored(disk, 0, 1, 2)
    found = storage.trace(LEDGER, 1)
    assert (found.ledger, found.fenced, found.last_entry) == (EntryStatus.HERE, False, 2)
    memory, journal = found.copies
    assert (memory.place, memory.path, memory.damage) == ("memory", "", "")
    assert (journal.place, journal.damage) == ("journal", "")
    assert journal.size_bytes == memory.size_bytes == len(frame_of(LEDGER, 1))
    assert frame_of(LEDGER, 1) in opened(disk, journal.path).read(1 << 10, journal.offset)
    assert storage.trace(LEDGER, 2).copies[1].offset > journal.offset
    storage.checkpoint()
    assert places(storage, 1) == ["memory", "entry log"]
    storage.close()
    storage = BookieStorage.open(disk, KEEPING)
    [log] = storage.trace(LEDGER, 1).copies
    assert (log.place, log.damage) == ("entry log", "")
    found_there = opened(disk, log.path).read(log.size_bytes, log.offset)
    assert found_there == frame_of(LEDGER, 1)
    storage.close()


def test_what_is_in_a_later_file_of_the_journal_is_found_there() -> None:
    storage = stored(SimDisk(0), *range(40))
    paths = {storage.trace(LEDGER, entry).copies[1].path for entry in range(40)}
    assert len(paths) > 2
    storage.close()


def test_what_is_not_here_is_said_and_what_was_deleted() -> None:
    storage = stored(SimDisk(0), 0, 1)
    assert places(storage, 9) == []
    assert places(storage, -1) == []
    assert storage.trace(8, 0).ledger is EntryStatus.ABSENT
    storage.fence(LEDGER, KEY)
    storage.commit()
    assert storage.trace(LEDGER, 0).fenced
    for directory in storage.ledger_directories:
        directory.bury([8])
    assert storage.trace(8, 0).ledger is EntryStatus.DELETED
    storage.close()


def test_one_that_may_have_lost_something_does_not_say_no_for_sure() -> None:
    disk = SimDisk(0)
    stored(disk, 0, 1).close()
    storage = BookieStorage.open(disk, KEEPING, doubt="files are gone")
    assert "files are gone" in storage.trace(LEDGER, 9).doubts
    storage.close()


@pytest.mark.parametrize("what", ["entry log", "index"])
def test_a_damaged_copy_is_named_with_its_place(what: str) -> None:
    disk = SimDisk(0)
    storage = stored(disk, 0, 1)
    storage.checkpoint()
    storage.close()
    storage = BookieStorage.open(disk, KEEPING)
    [whole] = storage.trace(LEDGER, 1).copies
    storage.close()
    storage = BookieStorage.open(disk, KEEPING)  # and no page of the index is in memory
    if what == "entry log":
        file, at = opened(disk, whole.path), whole.offset + whole.size_bytes - 1
    else:
        file = disk.open(index_path_of(LEDGER))
        at = file.size() - 1
    file.write([bytes([file.read(1, at)[0] ^ 1])], at)
    [damaged] = storage.trace(LEDGER, 1).copies
    assert damaged.place == what
    assert damaged.damage
    storage.close()


def test_a_damaged_record_of_the_journal_is_named() -> None:
    disk = SimDisk(0)
    storage = stored(disk, 0, 1)
    _, journal = storage.trace(LEDGER, 1).copies
    file = opened(disk, journal.path)
    at = file.read(1 << 10, 0).index(frame_of(LEDGER, 1)) + 50
    file.write([bytes([file.read(1, at)[0] ^ 1])], at)
    memory, damaged = storage.trace(LEDGER, 1).copies
    assert not memory.damage
    assert damaged == replace(journal, size_bytes=0, damage="the checksum of the record differs")
    storage.close()


def test_a_log_that_is_gone_is_damage() -> None:
    disk = SimDisk(0)
    storage = stored(disk, 0)
    storage.checkpoint()
    storage.close()
    storage = BookieStorage.open(disk, KEEPING)
    [log] = storage.trace(LEDGER, 0).copies
    disk.remove(log.path.removeprefix(disk.describe("")).lstrip("/"))
    [gone] = storage.trace(LEDGER, 0).copies
    assert (gone.place, gone.damage) == ("entry log", "the file is gone")
    storage.close()
