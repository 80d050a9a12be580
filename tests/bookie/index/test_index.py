"""Index files: pages, header, cache, and every kind of damage to them."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import IndexDamaged
from bookie.index import format as fmt
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import LedgerIndex, Location
from bookie.pieces import Piece, whole
from ledger.entry import Checked, check_frames
from tests.bookie.promises import KEY, run_of
from tests.simulation.disk import Loss, PowerLost, SimDisk


def new_index(disk: SimDisk, *, cache_bytes: int = 1 << 20) -> LedgerIndex:
    disk.make_directory(fmt.DIRECTORY)
    disk.sync_directory("")
    index = LedgerIndex(disk, cache_bytes=cache_bytes, files_max=2)
    index.recover()
    return index


def piece_of(ledger_id: int, *entries: int) -> Piece:
    run = run_of(ledger_id, *entries)
    checked = check_frames(ledger_id, run.entries, run.lengths, run.frames)
    assert isinstance(checked, Checked)
    return whole(checked)


def put(index: LedgerIndex, header: LedgerHeader, offset: int, *entries: int) -> LedgerHeader:
    return index.put(header, [piece_of(header.ledger_id, *entries)], [(1, offset)])


def locations(index: LedgerIndex, header: LedgerHeader) -> list[Location]:
    return [
        location
        for page in header.pages(0, fmt.ENTRY_ID_MAX)
        for location in index.page_locations(header, page)
    ]


def ids(index: LedgerIndex, header: LedgerHeader) -> list[int]:
    return [location.entry_id for location in locations(index, header)]


def test_a_header_comes_back_as_it_was() -> None:
    header = LedgerHeader(7, KEY, True, b"p" * 112, 12345, ((0, 3), (9, 9)))
    data = fmt.encode_header(header)
    assert len(data) == fmt.PAGE_BYTES
    assert fmt.decode_header(data, 7, "x") == header
    largest = LedgerHeader(2**62, b"k" * 64, True, b"p" * 112, 1, ((1, 2),) * fmt.EXTENTS_MAX)
    assert fmt.decode_header(fmt.encode_header(largest), 2**62, "x") == largest
    assert fmt.encode_header(largest)[8] == 1


def test_what_was_flushed_is_found_after_a_crash() -> None:
    disk = SimDisk(0)
    index = new_index(disk)
    header = put(index, LedgerHeader(300, KEY, True), 64, 0, 1, 126, 127, 1000)
    assert header.last_entry == 1000
    index.flush()
    disk.crash(Loss.LOST)
    again = new_index(disk)
    assert again.recover() == [300]
    assert again.load(300) == header
    piece = piece_of(300, 0, 1, 126, 127, 1000)
    found = locations(again, header)
    assert [location.entry_id for location in found] == [0, 1, 126, 127, 1000]
    assert [location.length for location in found] == list(piece.lengths)
    assert [location.offset - 64 for location in found] == list(piece.run.starts[:-1])


def test_a_later_place_of_an_entry_replaces_an_earlier_one() -> None:
    index = new_index(SimDisk(0))
    header = put(index, LedgerHeader(1, KEY), 64, 5, 6)
    index.flush()
    header = index.put(header, [piece_of(1, 6)], [(2, 99)])
    assert [tuple(place)[:3] for place in locations(index, header)] == [(5, 1, 64), (6, 2, 99)]


def test_the_cache_stays_within_its_bounds_and_dirty_pages_are_not_lost() -> None:
    """A hundred ledgers of three pages through a cache of four pages."""
    disk = SimDisk(0)
    index = new_index(disk, cache_bytes=4 * 2400)
    headers = [LedgerHeader(ledger_id, KEY) for ledger_id in range(100)]
    headers = [put(index, header, 64, 0, 200, 300) for header in headers]
    index.flush()
    assert all(ids(index, header) == [0, 200, 300] for header in headers)
    assert len(index.cache) <= 4
    assert len(index._blocks.files._open) <= 2


def test_a_flush_begins_long_before_dirty_pages_fill_the_cache() -> None:
    index = new_index(SimDisk(0), cache_bytes=1 << 18)
    most = 0
    for ledger_id in range(2 * index.cache.pages_max):
        put(index, LedgerHeader(ledger_id, KEY), 0, 1)
        most = max(most, len(index.cache.dirty_pages()))
    assert 1 < most <= index.cache.pages_max / 4


@pytest.mark.parametrize("stretches", [99, 100, 101, 227, 228, 1000])
def test_a_scattered_ledger_takes_a_page_for_each_stretch_and_no_more(stretches: int) -> None:
    """Extents that have no room in the header are behind the last page."""
    disk = SimDisk(0)
    index = new_index(disk, cache_bytes=1 << 16)
    header = LedgerHeader(1, KEY)
    entries = [127 * 3 * n for n in range(stretches)]
    header = put(index, header, 64, *entries)
    index.flush()
    assert len(header.extents) == stretches
    disk.crash(Loss.LOST)
    index = new_index(disk)
    assert index.recover() == [1]
    assert index.load(1) == header
    assert ids(index, header) == entries
    header = put(index, index.load(1), 64, 1, 127 * 4 * stretches)
    index.flush()
    assert new_index(disk).load(1) == header
    assert ids(new_index(disk), header) == sorted([*entries, 1, 127 * 4 * stretches])


def test_every_damaged_byte_of_the_pages_with_extents_is_told() -> None:
    disk = SimDisk(0)
    index = new_index(disk)
    header = put(index, LedgerHeader(1, KEY), 64, *range(0, 127 * 2 * 110, 127 * 2))
    index.flush()
    index.put_in_place()
    ((number, _),) = fmt.overflow(header)
    at = fmt.page_offset(number)
    for offset in (*range(at, at + 400, 7), at + fmt.PAGE_BYTES - 1):
        damaged = disk.copy()
        damaged.damage(fmt.path_of(1), offset, bytes([disk.content(fmt.path_of(1))[offset] ^ 1]))
        with pytest.raises(IndexDamaged):
            new_index(damaged).load(1)


@pytest.mark.slow
def test_a_crash_in_any_flush_of_a_scattered_ledger_leaves_what_was_or_what_is() -> None:
    """The pages behind the last one are written over as the ledger grows."""
    before = [127 * 2 * n for n in range(130)]
    after = range(before[-1] + 1, before[-1] + 127 * 40)
    for loss in Loss:
        for crash_at in range(1, 60):
            disk = SimDisk(crash_at)
            index = new_index(disk, cache_bytes=1 << 15)
            header = put(index, LedgerHeader(1, KEY), 64, *before)
            index.flush()
            disk.crash_at = disk.operations + crash_at
            try:
                put(index, header, 64, *after)
                index.flush()
                done = True
            except PowerLost:
                done = False
            disk.crash(loss)
            index = new_index(disk)
            index.recover()
            found = ids(index, index.load(1))
            assert found[: len(before)] == before
            assert found[len(before) :] == [*after][: len(found) - len(before)]
            assert not done or found[-1] == after[-1]


@given(st.lists(st.integers(0, 30), max_size=30))
def test_extents_name_exactly_the_pages_that_were_added(pages: list[int]) -> None:
    extents: fmt.Extents = ()
    for page in pages:
        extents = fmt.joined(extents, ((page, page),))
    one_by_one: list[tuple[int, int]] = []
    for page in pages:
        there = {page - 1, page, page + 1} & set(pages[: pages.index(page)])
        assert fmt.touches(one_by_one, page, page) or not there
        fmt.insert(one_by_one, page, page)
    assert tuple(one_by_one) == extents
    header = LedgerHeader(1, KEY, extents=extents)
    assert [page for page in range(40) if header.has_page(page)] == sorted(set(pages))
    assert list(header.pages(0, 127 * 40)) == sorted(set(pages))
    assert all(a[1] + 1 < b[0] for a, b in pairwise(extents))


def test_every_damaged_byte_of_an_index_file_is_told_and_never_a_no() -> None:
    disk = SimDisk(0)
    index = new_index(disk)
    header = put(index, LedgerHeader(1, KEY, True), 64, 0, 1, 200)
    index.flush()
    index.put_in_place()
    path = fmt.path_of(1)
    content = disk.content(path)
    assert len(content) == 3 * fmt.PAGE_BYTES
    for at in range(0, len(content), 7):
        for damage in ("flipped", "cut", "zeroed"):
            damaged = disk.copy()
            if damage == "cut":
                damaged.cut(path, at)
            elif damage == "zeroed":
                damaged.damage(path, at - at % 512, bytes(512))
            else:
                damaged.damage(path, at, bytes([content[at] ^ 0x10]))
            if damaged.content(path) == content:
                continue
            again = new_index(damaged)  # the redo file has nothing that would heal it
            try:
                assert again.load(1) == header
                found = locations(again, header)
            except IndexDamaged:
                continue
            pytest.fail(f"{damage} at {at} went unnoticed: {found}")


def test_a_page_of_another_ledger_or_place_is_damage() -> None:
    disk = SimDisk(0)
    index = new_index(disk)
    header = put(index, LedgerHeader(1, KEY), 64, 0, 200)
    other = put(index, LedgerHeader(257, KEY), 64, 0)
    index.flush()
    index.put_in_place()
    first = disk.content(fmt.path_of(1))[fmt.PAGE_BYTES : 2 * fmt.PAGE_BYTES]
    disk.damage(fmt.path_of(1), 2 * fmt.PAGE_BYTES, first)
    disk.damage(fmt.path_of(257), fmt.PAGE_BYTES, first)
    again = new_index(disk)
    for broken in (header, other):
        with pytest.raises(IndexDamaged):
            locations(again, broken)


def test_a_page_that_cannot_be_read_is_told_as_damage() -> None:
    disk = SimDisk(0)
    index = new_index(disk)
    header = put(index, LedgerHeader(1, KEY), 64, 0)
    index.flush()
    again = new_index(disk)
    disk.fail("read", "index/redo")
    with pytest.raises(IndexDamaged, match="Input/output error"):
        locations(again, header)
    index.put_in_place()
    again = new_index(disk)
    disk.fail("read", "index/0")
    with pytest.raises(IndexDamaged, match="Input/output error"):
        locations(again, header)


def test_a_flush_that_a_crash_tears_is_finished_or_never_was() -> None:
    """The page has an entry that is there for long; no crash in the next flush may take it."""
    for seed in range(40):
        disk = SimDisk(seed)
        index = new_index(disk)
        header = put(index, LedgerHeader(1, KEY), 64, 0, 1)
        index.flush()
        put(index, header, 5000, 2, 3)
        disk.crash_at = disk.operations + 1 + seed % 4  # write and sync, there and in place
        with suppress(PowerLost):
            index.flush()
            index.put_in_place()
        disk.crash(Loss.TORN)
        again = new_index(disk)
        again.recover()
        assert ids(again, again.load(1)) in ([0, 1], [0, 1, 2, 3])
