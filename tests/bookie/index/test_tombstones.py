"""Deleted ledgers are remembered, through crashes and damage; and how the index forgets them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.port import DiskFull
from bookie.errors import IndexDamaged
from bookie.index import format as fmt
from bookie.index import tombstones
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import LedgerIndex
from bookie.index.tombstones import PATH, Tombstones
from tests.bookie.entrylog.test_entrylog import piece
from tests.bookie.runs import KEY
from tests.simulation.disk import Loss, PowerLost, SimDisk


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_directory(fmt.DIRECTORY)
    disk.sync_directory("")
    return disk


def new_index(disk: SimDisk) -> LedgerIndex:
    index = LedgerIndex(disk, cache_bytes=1 << 20, files_max=4)
    index.recover()
    return index


def put(index: LedgerIndex, ledger_id: int, *entries: int, place: tuple[int, int]) -> LedgerHeader:
    try:
        header = index.newest(ledger_id)
    except IndexDamaged:
        header = LedgerHeader(ledger_id, KEY)
    return index.put(header, [piece(ledger_id, *entries)], [place])


def places(index: LedgerIndex, ledger_id: int) -> dict[int, tuple[int, int]]:
    header = index.newest(ledger_id)
    return {
        location.entry_id: (location.log_id, location.offset)
        for page in header.pages(0, fmt.ENTRY_ID_MAX)
        for location in index.page_locations(header, page)
    }


# The set of deleted ledgers.


@given(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=8))
def test_it_has_exactly_what_was_added_also_after_a_restart(added: list[list[int]]) -> None:
    disk = new_disk()
    stones = Tombstones.load(disk)
    expected: set[int] = set()
    for some in added:
        stones.add(some)
        expected |= set(some)
        disk.crash(Loss.LOST)
        stones = Tombstones.load(disk)
        assert {one for one in range(-1, 42) if one in stones} == expected
        assert len(stones) == len(expected)
    assert len(stones._ranges[0]) == sum(one - 1 not in expected for one in expected)


def test_whatever_an_interrupted_add_leaves_the_ones_before_are_there() -> None:
    steps = 0
    for loss in Loss:
        for step in range(1, 6):
            disk = new_disk(step)
            Tombstones.load(disk).add([1, 2, 9])
            disk.crash_at = disk.operations + step
            try:
                Tombstones.load(disk).add([3, 4])
            except PowerLost:
                steps += 1
                disk.crash(loss)
                stones = Tombstones.load(disk)
                assert all(one in stones for one in (1, 2, 9))
                assert (3 in stones) == (4 in stones)
                stones.add([3])
                assert 3 in Tombstones.load(disk)
    assert steps == 5 * len(Loss)


def test_a_full_disk_leaves_it_as_it_was() -> None:
    disk = new_disk()
    stones = Tombstones.load(disk)
    stones.add([1])
    disk.capacity_bytes = disk.used_bytes() + 10
    with pytest.raises(DiskFull):
        stones.add([5])
    assert 5 not in stones
    disk.capacity_bytes = None
    assert 1 in Tombstones.load(disk)
    stones.add([5])
    assert 5 in Tombstones.load(disk)


def test_every_damaged_byte_is_told() -> None:
    disk = new_disk()
    Tombstones.load(disk).add([1, 2, 70])
    content = disk.content(PATH)
    for at in range(len(content)):
        damaged, cut = disk.copy(), disk.copy()
        damaged.damage(PATH, at, bytes([content[at] ^ 1]))
        cut.cut(PATH, at)
        for broken in (damaged, cut):
            with pytest.raises(IndexDamaged):
                Tombstones.load(broken)


def test_above_the_bound_the_lowest_ids_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "RANGES_MAX", 2)
    stones = Tombstones.load(new_disk())
    stones.add([1, 5, 6, 9])
    assert [one for one in range(12) if one in stones] == [5, 6, 9]


# What the index does about them.


def test_a_ledger_that_was_removed_does_not_come_back_by_the_redo_file() -> None:
    disk = new_disk()
    index = new_index(disk)
    put(index, 1, 0, 1, place=(1, 64))
    put(index, 2, 0, place=(1, 900))
    index.flush()
    index.remove([1, 77])
    disk.kill()
    again = new_index(disk)
    assert again.recover() == [2]
    assert places(again, 2) == {0: (1, 900)}


def test_a_removal_that_a_crash_cuts_short_can_be_done_again_and_hurts_no_other() -> None:
    for loss in Loss:
        step, done = 0, False
        while not done:
            step += 1
            disk = new_disk(step)
            index = new_index(disk)
            for ledger_id in (1, 2, 257):
                put(index, ledger_id, 0, 200, place=(1, 64 * ledger_id))
            index.flush()
            disk.crash_at = disk.operations + step
            try:
                index.remove([1, 257])
                done = True
            except PowerLost:
                pass
            disk.crash(loss)
            index = new_index(disk)
            assert places(index, 2)[0] == (1, 128)
            index.remove([1, 257])
            assert index.recover() == [2]
        assert step > 4


def test_nothing_of_a_removed_ledger_stays_in_memory_or_is_flushed() -> None:
    """#1757: also not what was put before and never flushed."""
    disk = new_disk()
    index = new_index(disk)
    put(index, 1, 0, place=(1, 64))
    index.flush()
    put(index, 1, 1, place=(1, 300))
    put(index, 2, 1, place=(1, 600))
    index.remove([1])
    index.flush()
    assert index.recover() == [2]
    assert not [path for path in disk.files() if path == fmt.path_of(1)]
    with pytest.raises(IndexDamaged):
        index.load(1)


def test_a_flush_that_found_no_space_is_finished_before_the_next_one_begins() -> None:
    """Its redo file is the only whole copy of pages that it may have torn."""
    tried = full = 0
    for seed in range(40):
        for step in range(1, 14):
            disk = new_disk(seed)
            index = new_index(disk)
            for ledger_id in (1, 2):
                put(index, ledger_id, 0, place=(1, 64 * ledger_id))
            index.flush()
            disk.capacity_bytes = disk.used_bytes() + 1000 * (seed % 5)
            put(index, 1, 1, place=(2, 64))
            put(index, 7, 1, place=(2, 900))
            try:
                index.flush()
                index.put_in_place()
            except DiskFull:
                full += 1
            disk.capacity_bytes = None
            put(index, 2, 5, 300, place=(2, 2000))
            disk.crash_at = disk.operations + step
            try:
                index.flush()
                index.put_in_place()
            except PowerLost:
                tried += 1
                disk.crash(Loss.TORN)
                again = new_index(disk)
                assert places(again, 1)[0] == (1, 64)
                assert places(again, 2)[0] == (1, 128)
            else:
                disk.crash(Loss.LOST)
                assert set(places(new_index(disk), 7)) == {1}
                assert set(places(new_index(disk), 2)) == {0, 5, 300}
    assert tried > 300
    assert full > 300


def test_a_file_made_by_a_killed_flush_is_there_for_sure_after_the_next_start() -> None:
    """A kill loses nothing yet; the power loss after the restart must not either."""
    for step in range(1, 12):
        disk = new_disk()
        index = new_index(disk)
        put(index, 1, 0, place=(1, 64))
        disk.crash_at = disk.operations + step
        try:
            index.flush()
        except PowerLost:
            disk.kill()
            index = new_index(disk)
            if index.recover() == []:
                continue
            put(index, 2, 0, place=(1, 640))
            index.flush()  # the redo file does not say it any more
            disk.crash(Loss.LOST)
            assert new_index(disk).recover() == [1, 2]
            assert places(new_index(disk), 1) == {0: (1, 64)}


# Moving.


def test_only_entries_that_still_lie_in_a_source_are_moved() -> None:
    disk = new_disk()
    index = new_index(disk)
    put(index, 1, 0, 1, 130, place=(3, 64))
    put(index, 1, 2, place=(4, 64))
    put(index, 1, 3, place=(9, 64))
    index.flush()
    header = index.newest(1)
    copied = piece(1, 0, 1, 2, 3, 4, 130)
    starts = list(copied.run.starts)
    assert index.move(header, copied, (7, 1000), frozenset({3, 4})) == 4
    index.flush()
    disk.crash(Loss.LOST)
    assert places(new_index(disk), 1) == {
        0: (7, 1000), 1: (7, 1000 + starts[1]), 2: (7, 1000 + starts[2]),
        3: (9, 64), 130: (7, 1000 + starts[5]),
    }  # fmt: skip


def test_an_entry_of_another_length_is_not_moved() -> None:
    index = new_index(new_disk())
    header = put(index, 1, 0, place=(3, 64))
    with pytest.raises(IndexDamaged, match="another length"):
        index.move(header, piece(1, 0, payload=b"longer than it was"), (7, 64), frozenset({3}))


def test_the_index_says_what_lies_at_a_place_and_behind_it() -> None:
    index = new_index(new_disk())
    header = put(index, 1, 0, 1, 130, place=(3, 64))
    offsets = [64, 64, 64 + piece(1, 0, 1).size_bytes, 64]
    assert index.still_at(header, 3, [0, 1, 130, 999], offsets) == [0, 2]
    assert index.still_at(header, 4, [0], [64]) == []
    last = offsets[2]
    assert [[one.entry_id for one in some] for some in index.named(header, 3, 0)] == [[0, 1], [130]]
    assert [[one.entry_id for one in some] for some in index.named(header, 3, last)] == [[130]]
    assert not [*index.named(header, 3, last + 1), *index.named(header, 4, 0)]
