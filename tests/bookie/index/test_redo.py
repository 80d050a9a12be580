"""The redo file: blocks count from its sync on, until they are in place; what is gone is missed."""

import random
from dataclasses import replace
from functools import partial

import pytest

from bookie.disk.port import DiskFull
from bookie.errors import IndexDamaged
from bookie.index.format import PAGE_BYTES, PAGE_ENTRIES, LedgerHeader, path_of
from bookie.index.ledger_index import LedgerIndex
from bookie.index.redo import PATH, Image, Redo, RedoPlace
from bookie.tools.index_files import IndexFiles
from tests.bookie.index.test_index import ids, new_index, put
from tests.bookie.promises import KEY
from tests.simulation.disk import Loss, PowerLost, SimDisk


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_directory("index")
    disk.sync_directory("")
    return disk


def loaded(disk: SimDisk, needed: RedoPlace | None = None) -> Redo:
    redo = Redo(disk)
    redo.load(needed)
    return redo


def block(byte: int, length: int = PAGE_BYTES) -> bytes:
    return bytes([byte]) * length + bytes(PAGE_BYTES - length)


def test_a_block_comes_back_byte_for_byte_however_full_it_is() -> None:
    redo = loaded(new_disk())
    lot = random.Random(0)
    blocks = [bytes(PAGE_BYTES), block(7), block(1, 3), lot.randbytes(PAGE_BYTES)]
    blocks += [bytes(at) + b"\x01" + bytes(PAGE_BYTES - at - 1) for at in (0, 2043, 2044, 2047)]
    redo.append([Image(1, PAGE_BYTES * at, data) for at, data in enumerate(blocks)])
    assert [redo.block(1, PAGE_BYTES * at) for at in range(len(blocks))] == blocks
    assert redo.block(1, PAGE_BYTES * 99) is redo.block(2, 0) is None
    assert redo.size_bytes < 3 * PAGE_BYTES + 1000, "zeros take no room"


def test_the_newest_batch_counts_also_after_a_crash() -> None:
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1)), Image(2, 0, block(2))])
    redo.append([Image(1, 0, block(3)), Image(1, PAGE_BYTES, block(4))])
    place = redo.place
    disk.crash(Loss.LOST)
    again = loaded(disk, place)
    assert (len(again), again.blocks) == (2, 3)
    assert [image.data for image in again.images(1)] == [block(3), block(4)]
    assert again.oldest(1) == [1]
    assert again.place == place


def test_what_is_in_place_waits_no_more_and_an_empty_file_is_begun_anew() -> None:
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1)), Image(2, 0, block(2))])
    redo.put_in_place([1])
    assert (list(redo), redo.blocks, redo.block(1, 0)) == ([2], 1, None)
    assert list(loaded(disk)) == [1, 2], "only memory knows; to write them again does no harm"
    redo.put_in_place([2])
    assert redo.size_bytes == len(disk.content(PATH)) < 100
    assert not loaded(disk, redo.place)
    redo.append([Image(3, 0, block(3))])
    assert redo.place.first == redo.place.last == 2, "batches are numbered on"


def test_a_ledger_that_is_struck_does_not_come_back() -> None:
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1)), Image(2, 0, block(2))])
    redo.put_in_place([1])
    redo.strike([1, 77])
    disk.crash(Loss.LOST)
    again = loaded(disk, redo.place)
    assert list(again) == [2]
    again.append([Image(1, 0, block(5))])
    assert loaded(disk).block(1, 0) == block(5), "it was made once more"


def test_every_byte_of_what_is_needed_damaged_or_cut_refuses_the_start() -> None:
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1, 40)), Image(2, 0, block(2, 20))])
    redo.append([Image(1, PAGE_BYTES, block(3, 30))])
    place, needed_bytes = redo.place, redo.size_bytes
    redo.append([Image(3, 0, block(4, 50))])
    for at in range(len(disk.content(PATH))):
        for cut in (False, True):
            damaged = disk.copy()
            if cut:
                damaged.cut(PATH, at)
            else:
                damaged.damage(PATH, at, bytes([disk.content(PATH)[at] ^ 4]))
            if at < needed_bytes:
                with pytest.raises(IndexDamaged, match="batch 2"):
                    loaded(damaged, place)
            else:
                assert list(loaded(damaged, place)) == [1, 2], "it was never finished"
    disk.lose(PATH)
    with pytest.raises(IndexDamaged, match="batch 2"):
        loaded(disk, place)


def test_an_older_redo_file_is_refused_while_it_is_needed_and_not_believed_otherwise() -> None:
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1))])
    older = disk.content(PATH)
    redo.put_in_place([1])
    nothing = redo.place
    redo.append([Image(1, 0, block(2))])
    needed = redo.place
    disk.cut(PATH, 0)
    disk.damage(PATH, 0, older)
    with pytest.raises(IndexDamaged, match="batch 2"):
        loaded(disk, needed)
    assert list(loaded(disk, RedoPlace(nothing.last + 2, nothing.last + 1))) == []
    with pytest.raises(IndexDamaged):
        loaded(disk, replace(nothing, first=1, chain=nothing.chain ^ 1))


def test_what_an_earlier_batch_of_the_same_file_left_behind_is_not_taken_for_the_next() -> None:
    """A torn batch is written over by a shorter one."""
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1))])
    place = redo.place
    redo.append([Image(5, 0, block(5)), Image(6, 0, block(6))])
    redo.append([Image(7, 0, block(7))])
    third = redo.size_bytes
    disk.damage(PATH, 2200, b"\xff\xff")  # in the second
    again = loaded(disk, place)
    assert list(again) == [1]
    again.append([Image(8, 0, block(8)), Image(9, 0, block(9))])  # as long as the second was
    assert again.size_bytes < third == len(disk.content(PATH))
    assert list(loaded(disk, place)) == [1, 8, 9]


def test_a_batch_that_was_written_elsewhere_is_not_the_next() -> None:
    """Its chain says nothing of its number: a checksum may be right by chance."""
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1))])
    end, redo._last = redo.size_bytes, 7
    redo.append([Image(2, 0, block(2))])
    assert redo.size_bytes > end
    again = loaded(disk)
    assert (list(again), again.size_bytes) == ([1], end)


def test_a_batch_that_finds_no_space_changes_nothing() -> None:
    disk = new_disk()
    redo = loaded(disk)
    redo.append([Image(1, 0, block(1))])
    place = redo.place
    disk.capacity_bytes = disk.used_bytes() + 100
    with pytest.raises(DiskFull):
        redo.append([Image(2, 0, block(2))])
    assert (redo.place, list(redo)) == (place, [1])
    redo.put_in_place([1])
    disk.capacity_bytes = None
    redo.append([Image(2, 0, block(2))])
    assert list(loaded(disk, redo.place)) == ([1, 2] if redo.place.first == 1 else [2])


# Under an index.


def test_a_flush_makes_no_index_file_and_all_is_found_at_once_and_after_a_start() -> None:
    disk = SimDisk(0)
    index = new_index(disk)
    header = put(index, LedgerHeader(1, KEY), 64, 0, 1, 300)
    index.flush()
    assert list(index.written) == [1]
    for again in (index, new_index(disk)):
        assert path_of(1) not in disk.files()
        assert again.recover() == [1]
        assert again.has_file(1)
        assert again.load(1) == header
        assert ids(again, header) == [0, 1, 300]
    assert IndexFiles(disk, None).ledgers() == [1]


def test_blocks_are_put_in_place_the_oldest_first_and_some_at_a_time() -> None:
    disk = SimDisk(0)
    index = new_index(disk)
    headers = [put(index, LedgerHeader(at, KEY), 64, at, at + 200) for at in range(20)]
    index.flush()
    put(index, headers[0], 900, 5)
    index.flush()
    for done in range(0, 20, 6):
        assert sum(path.endswith(".index") for path in disk.files()) == done
        index.put_in_place(6)
        assert [ids(index, header)[0] for header in headers] == list(range(20))
    assert not index.redo
    assert len(disk.content(PATH)) < 100
    disk.crash(Loss.LOST)
    again = new_index(disk)
    assert sorted(again.recover()) == list(range(20))
    assert ids(again, again.load(0)) == [0, 5, 200]


def test_to_put_in_place_ends_between_two_rounds_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.index.ledger_index._ROUND_LEDGERS", 3)
    index = new_index(SimDisk(0))
    for at in range(10):
        put(index, LedgerHeader(at, KEY), 64, at)
    index.flush()
    answers = iter((False, False, True))
    index.put_in_place(is_over=partial(next, answers))
    assert list(index.redo) == [6, 7, 8, 9]


def test_a_crash_while_blocks_are_put_in_place_takes_nothing() -> None:
    """From power loss and from a kill, after which the power fails, too."""
    for loss in (*Loss, None):
        for step in range(1, 40):
            disk = SimDisk(step)
            index = new_index(disk)
            headers = [put(index, LedgerHeader(at, KEY), 64, 0) for at in (1, 2, 257)]
            index.flush()
            index.put_in_place(1)
            headers = [put(index, header, 500, 1, 200) for header in headers]
            index.flush()
            place = index.redo.place
            disk.crash_at = disk.operations + step
            try:
                index.put_in_place()
            except PowerLost:
                if loss is not None:
                    disk.crash(loss)
                else:
                    disk.kill()
                    again = new_index(disk)
                    again.recover(place)
                    again.put_in_place()
                    disk.crash(Loss.LOST)
            disk.heal()
            again = new_index(disk)
            assert sorted(again.recover(place)) == [1, 2, 257]
            assert [ids(again, header) for header in headers] == [[0, 1, 200]] * 3


def test_a_start_makes_no_lost_file_again_of_a_part_of_it() -> None:
    """It would be damaged then, and nobody would see that it was lost."""
    disk = SimDisk(0)
    index = new_index(disk)
    header = put(index, LedgerHeader(1, KEY), 64, 0, PAGE_ENTRIES)
    index.flush()
    index.put_in_place()
    put(index, header, 5000, PAGE_ENTRIES + 1)
    index.flush()
    disk.remove(path_of(1))
    assert new_index(disk).recover() == []
    assert IndexFiles(disk, None).ledgers() == [], (
        "the check before a start sees what the start will"
    )


def test_an_end_of_another_kind_is_refused_by_nobody_but_a_start() -> None:
    """Who rebuilds the index leaves an empty file, whatever was in it."""
    disk = SimDisk(0)
    index = new_index(disk)
    put(index, LedgerHeader(1, KEY), 64, 0)
    index.flush()
    needed = index.redo.place
    disk.damage(PATH, 60, b"\xff\xff")
    assert IndexFiles(disk, None).ledgers() == []
    with pytest.raises(IndexDamaged):
        new_index(disk).recover(needed)
    other = LedgerIndex(disk, cache_bytes=0, files_max=4)
    other.finish(needed)
    other.close()
    assert new_index(disk).recover(needed) == []
