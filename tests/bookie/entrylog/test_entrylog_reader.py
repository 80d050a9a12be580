"""Reading from entry logs while compaction moves entries and removes logs."""

import pytest

from bookie.disk.file_cache import FileCache
from bookie.disk.port import DiskFile
from bookie.entrylog.format import DIRECTORY, path_of
from bookie.entrylog.reader import EntryLogReader
from bookie.entrylog.writer import EntryLogWriter
from bookie.index import format as index_format
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import LedgerIndex, Location
from bookie.pieces import Piece
from tests.bookie.entrylog.test_entrylog import piece
from tests.bookie.runs import KEY
from tests.simulation.disk import SimDisk


class Storage:
    """Index, logs and reader on one disk."""

    def __init__(self) -> None:
        self.disk = SimDisk(0)
        for directory in (DIRECTORY, index_format.DIRECTORY):
            self.disk.make_directory(directory)
        self.index = LedgerIndex(self.disk, cache_bytes=1 << 20, files_max=8)
        self.logs = EntryLogWriter(self.disk, log_bytes_max=1)  # each piece its own log
        self.reader = EntryLogReader(self.disk, self.index, files_max=8)
        self.header = LedgerHeader(1, KEY)

    def put(self, *pieces: Piece) -> None:
        places = self.logs.write(pieces)
        self.logs.sync()
        self.header = self.index.put(self.header, pieces, places)
        self.index.flush()

    def read(self, bytes_max: int = 1 << 20) -> tuple[list[int], int, str]:
        stored = self.reader.find(self.header, 0, 99, bytes_max)
        entries = [e for found in stored.found.pieces for e in found.entries]
        return entries, stored.found.considered, str(stored.damage or "")


def test_an_entry_whose_log_is_gone_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the move comes between the lookup and the reading, nothing is missed."""
    storage = Storage()
    storage.put(piece(1, 0, 1), piece(1, 2, 3), piece(1, 4, 5))
    honest = LedgerIndex.page_locations
    moves = iter([2, 3])

    def then_move(
        index: LedgerIndex, header: LedgerHeader, number: int, *, from_entry: int
    ) -> list[Location]:
        found = list(honest(index, header, number, from_entry=from_entry))
        log_id = next(moves, None)
        if log_id is not None:
            first = 2 * log_id - 2
            storage.put(piece(1, first, first + 1))
            storage.disk.remove(path_of(log_id))
            storage.reader.forget(log_id)
        return found

    monkeypatch.setattr(LedgerIndex, "page_locations", then_move)
    assert storage.read() == ([0, 1, 2, 3, 4, 5], 99, "")


def test_a_place_that_is_gone_and_still_named_is_damage() -> None:
    storage = Storage()
    storage.put(piece(1, 0, 1), piece(1, 2, 3))
    storage.disk.remove(path_of(2))
    entries, considered, damage = storage.read()
    assert (entries, considered) == ([0, 1], 1)
    assert "the file is gone" in damage


def test_an_entry_that_moves_for_ever_is_told_and_not_looked_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = Storage()
    storage.put(piece(1, 0))
    honest = LedgerIndex.page_locations
    log_id = 0

    def then_move(
        index: LedgerIndex, header: LedgerHeader, number: int, *, from_entry: int
    ) -> list[Location]:
        nonlocal log_id
        found = list(honest(index, header, number, from_entry=from_entry))
        log_id += 1
        storage.put(piece(1, 0))
        storage.disk.remove(path_of(log_id))
        return found

    monkeypatch.setattr(LedgerIndex, "page_locations", then_move)
    entries, considered, damage = storage.read()
    assert (entries, considered) == ([], -1)
    assert damage


def test_a_file_that_is_forgotten_stays_open_for_who_uses_it_and_no_longer() -> None:
    disk = SimDisk(0)
    for _ in range(2):
        disk.create("a").close()
    files = FileCache(disk, 4)
    opened: list[DiskFile] = []
    with files.use("a") as file:
        opened.append(file)
        files.forget("a")
        disk.remove("a")
        assert file.read(1, 0) == b""
        disk.create("a").close()
        with files.use("a") as other:
            assert other is not file
            opened.append(other)
    with pytest.raises(AssertionError, match="closed"):
        opened[0].read(1, 0)
    opened[1].read(1, 0)
    files.forget("a")
    files.forget("a")
    with pytest.raises(AssertionError, match="closed"):
        opened[1].read(1, 0)
    files.close()
