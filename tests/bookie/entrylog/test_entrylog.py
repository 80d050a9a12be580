"""Entry logs: what is written is scanned and counted, whatever a crash or a full disk left."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.port import DiskFull
from bookie.entrylog import ledger_map as maps
from bookie.entrylog.catalog import Batch, LogCatalog, LogInfo, ScanEnd, scan
from bookie.entrylog.format import (
    DIRECTORY,
    HEADER_BYTES,
    damage_marker_of,
    encode_header,
    log_of,
    path_of,
)
from bookie.entrylog.ledger_map import LedgerMap, LedgerMapBuilder, encode_map
from bookie.entrylog.writer import EntryLogWriter, LogFile, LogIds
from bookie.pieces import Piece, whole
from ledger.entry import Checked, check_frames
from tests.bookie.runs import run_of
from tests.simulation.disk import Loss, SimDisk

Rows = list[tuple[int, int, int]]
"""(ledger id, bytes, entries) as a map has them."""


def new_disk(seed: int = 0, *, capacity_bytes: int | None = None) -> SimDisk:
    disk = SimDisk(seed, capacity_bytes=capacity_bytes)
    disk.make_directory(DIRECTORY)
    disk.sync_directory("")
    return disk


def piece(ledger_id: int, *entries: int, payload: bytes = b"") -> Piece:
    run = run_of(*entries, ledger_id=ledger_id, payload=payload)
    checked = check_frames(ledger_id, run.entries, run.lengths, run.frames)
    assert isinstance(checked, Checked)
    return whole(checked)


def rows(ledger_map: LedgerMap) -> Rows:
    columns = (ledger_map.ledgers, ledger_map.sizes_bytes, ledger_map.counts)
    return list(zip(*columns, strict=True))


def counted(*pieces: Piece) -> Rows:
    counts: dict[int, tuple[int, int]] = {}
    for one in pieces:
        ledger_id = int.from_bytes(one.view()[8:16], "little", signed=True)
        size_bytes, count = counts.get(ledger_id, (0, 0))
        counts[ledger_id] = size_bytes + one.size_bytes, count + len(one.entries)
    return sorted((ledger_id, *count) for ledger_id, count in counts.items())


def scanned(disk: SimDisk, log_id: int, **arguments: int) -> tuple[list[Batch], ScanEnd]:
    batches, generator = [], scan(disk, log_id, **arguments)
    while True:
        try:
            batches.append(next(generator))
        except StopIteration as stop:
            return batches, stop.value


def entries_of(batches: list[Batch]) -> list[tuple[int, int, int, int]]:
    return [(batch.ledger_id, *entry) for batch in batches for entry in batch.entries()]


def written(*pieces: Piece, finish: bool = True) -> SimDisk:
    """Return a disk with log 1 of *pieces*, synced."""
    disk = new_disk()
    writer = EntryLogWriter(disk, log_bytes_max=1 << 20)
    writer.write(pieces)
    writer.sync()
    writer.close(finish=finish)
    return disk


PIECES = (piece(5, 0, 1, 2), piece(9, 7), piece(5, 3, 4), piece(5, 1), piece(2**62, 1))


# Maps.


def test_a_log_that_was_ended_in_order_says_what_is_in_it() -> None:
    disk = written(*PIECES)
    info = LogCatalog(disk).info(1)
    assert rows(info.ledger_map) == counted(*PIECES)
    assert info.is_sealed
    assert info.damage is None
    assert info.ledger_map.size_bytes == sum(one.size_bytes for one in PIECES)
    assert info.ledger_map.frames_end == HEADER_BYTES + info.ledger_map.size_bytes
    assert 9 in info.ledger_map
    assert 8 not in info.ledger_map
    assert info.ledger_map.live_bytes(lambda ledger_id: ledger_id == 9) == PIECES[1].size_bytes


def test_a_log_that_is_full_gets_its_map_before_the_next_one_begins() -> None:
    disk = new_disk()
    writer = EntryLogWriter(disk, log_bytes_max=200)
    first = piece(1, 0, payload=b"x" * 300)
    second = piece(2, 0)
    assert writer.write([first, second]) == [(1, HEADER_BYTES), (2, HEADER_BYTES)]
    assert writer.is_writing(1)  # it is not synced
    writer.sync()
    assert not writer.is_writing(1)
    assert writer.is_writing(2)
    disk.crash(Loss.LOST)
    assert rows(LogCatalog(disk).info(1).ledger_map) == counted(first)


def test_a_log_that_a_crash_ended_is_scanned_for_its_map() -> None:
    disk = written(*PIECES, finish=False)
    info = LogCatalog(disk).info(1)
    assert rows(info.ledger_map) == counted(*PIECES)
    assert not info.is_sealed
    assert info.damage is None


def test_sources_are_kept_in_the_map() -> None:
    disk = new_disk()
    log = LogFile(disk, 12)
    log.append(PIECES[0])
    log.finish([3, 4, 11])
    log.sync()
    log.close()
    assert LogCatalog(disk).info(12).ledger_map.sources == (3, 4, 11)


def test_every_damaged_byte_of_a_map_makes_it_none_and_the_log_is_scanned() -> None:
    disk = written(*PIECES)
    content = disk.content(path_of(1))
    frames_end = LogCatalog(disk).info(1).ledger_map.frames_end
    for at in range(frames_end, len(content)):
        for cut in (False, True):
            damaged = disk.copy()
            if cut:
                damaged.cut(path_of(1), at)
            else:
                damaged.damage(path_of(1), at, bytes([content[at] ^ 0x40]))
            info = LogCatalog(damaged).info(1)
            assert not info.is_sealed
            assert rows(info.ledger_map) == counted(*PIECES)
            assert info.ledger_map.frames_end == frames_end
            assert (info.damage is None) == (cut and at == frames_end)


def test_of_much_that_is_written_no_more_than_a_part_waits_for_the_sync_at_its_end() -> None:
    disk = new_disk()
    log = LogFile(disk, 1)
    disk.sync_directory(DIRECTORY)
    megabyte = bytes(1 << 20)
    for entry in range(10):
        log.append(piece(1, entry, payload=megabyte))
    log.close()
    disk.crash(Loss.LOST)
    assert len(disk.content(path_of(1))) > 10 * len(megabyte) - (5 << 20)


def test_a_sync_of_a_part_that_fails_ends_the_write() -> None:
    disk = new_disk()
    log = LogFile(disk, 1)
    much = [piece(1, entry, payload=bytes(1 << 20)) for entry in range(5)]
    disk.fail("sync", path_of(1))
    with pytest.raises(OSError, match="Input/output error"):
        list(map(log.append, much))


def test_what_a_sync_made_durable_is_not_synced_ahead_again() -> None:
    disk = new_disk()
    log = LogFile(disk, 1)
    operations = []
    for entry in range(10):
        before = disk.operations
        log.append(piece(1, entry, payload=bytes(1 << 20)))
        log.sync()
        operations.append(disk.operations - before)
    assert set(operations) == {2}, "a write and a sync"


def test_the_map_of_another_log_is_none() -> None:
    disk = written(*PIECES)
    other = LedgerMap(HEADER_BYTES)
    content = disk.content(path_of(1))
    disk.damage(path_of(1), len(content), encode_map(2, other, len(content)))
    assert not LogCatalog(disk).info(1).is_sealed


@given(st.lists(st.tuples(st.integers(-2, 6), st.integers(1, 50), st.integers(1, 5)), max_size=60))
def test_a_builder_counts_as_a_dictionary_would(added: Rows) -> None:
    builder = LedgerMapBuilder()
    expected: dict[int, tuple[int, int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "_MERGE_AT", 2)
        for ledger_id, size_bytes, count in added:
            builder.add(ledger_id, size_bytes, count)
            owner = ledger_id if ledger_id >= 0 else ~ledger_id
            before = expected.get(owner, (0, 0))
            expected[owner] = before[0] + size_bytes, before[1] + count
        assert len(builder._ledgers) <= 2 * len(expected) + 2
    assert rows(builder.build(HEADER_BYTES)) == sorted((k, *v) for k, v in expected.items())


@pytest.mark.parametrize("finished", [True, False])
def test_damage_markers_are_counted_with_the_ledger_that_they_are_of(finished: bool) -> None:
    """No ledger is made up from what no ledger can be called (#2103)."""
    disk = new_disk()
    log = LogFile(disk, 1)
    for one in (damage_marker_of(6, 0), PIECES[0]):
        log.append(one)
    if finished:
        log.finish()
    log.sync()
    log.close()
    (marker, *found) = rows(LogCatalog(disk).info(1).ledger_map)[::-1]
    assert marker == (6, 48, 1)
    assert found == counted(PIECES[0])


def test_a_log_holds_no_more_ledgers_than_its_map_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "LEDGERS_MAX", 3)
    writer = EntryLogWriter(new_disk(), log_bytes_max=1 << 20)
    places = writer.write([piece(ledger_id, 0) for ledger_id in range(5)])
    assert [log_id for log_id, _ in places] == [1, 1, 1, 2, 2]


# Damage.


def test_a_torn_tail_is_told_as_damage_until_the_log_is_sealed() -> None:
    disk = written(*PIECES, finish=False)
    frames = disk.content(path_of(1))
    torn = piece(5, 9).view()[:-3]
    disk.damage(path_of(1), len(frames), bytes(torn))
    catalog = LogCatalog(disk)
    info = catalog.info(1)
    assert info.damage is not None
    assert info.damage.offset == len(frames) == info.ledger_map.frames_end
    assert rows(info.ledger_map) == counted(*PIECES)
    catalog.seal(info)
    disk.crash(Loss.LOST)
    for one in (catalog, LogCatalog(disk)):
        info = one.info(1)
        assert info.is_sealed
        assert info.damage is None
        assert rows(info.ledger_map) == counted(*PIECES)
        assert info.ledger_map.frames_end == len(frames)
    batches, end = scanned(disk, 1, end=info.ledger_map.frames_end)
    assert end == ScanEnd(len(frames))
    assert counted(*(whole(batch.run) for batch in batches)) == counted(*PIECES)


def test_every_damaged_byte_of_a_frame_ends_the_scan_there() -> None:
    disk = written(*PIECES, finish=False)
    content = disk.content(path_of(1))
    everything = entries_of(scanned(disk, 1)[0])
    for at in range(HEADER_BYTES, len(content)):
        damaged = disk.copy()
        damaged.damage(path_of(1), at, bytes([content[at] ^ 0x04]))
        batches, end = scanned(damaged, 1)
        whole_before = [entry for entry in everything if entry[2] + entry[3] <= at]
        assert entries_of(batches) == whole_before
        assert end.reason
        assert end.offset == sum(e[3] for e in whole_before) + HEADER_BYTES
        info = LogCatalog(damaged).info(1)
        assert info.damage is not None
        assert info.ledger_map.frames_end == end.offset


@pytest.mark.parametrize("header", [encode_header(2), b"\x01" + encode_header(1)[1:], b"", b"DLO"])
def test_a_header_that_is_another_ones_is_never_touched_and_a_torn_one_is_damage(
    header: bytes,
) -> None:
    """#2264, #3901, #4544. What is behind either is not known."""
    disk = written(*PIECES)
    if len(header) < HEADER_BYTES:
        disk.cut(path_of(1), 0)
    disk.damage(path_of(1), 0, header)
    info = LogCatalog(disk).info(1)
    assert info.damage is not None
    assert info.ledger_map.frames_end == 0
    assert rows(info.ledger_map) == []
    assert info.is_foreign == (header == encode_header(2))


def test_what_cannot_be_read_is_damage_and_not_an_error() -> None:
    disk = written(*PIECES, finish=False)
    disk.fail("read", path_of(1))
    assert LogCatalog(disk).info(1).damage is not None
    disk.fail("read", path_of(1))
    assert scanned(disk, 1)[1].reason
    with pytest.raises(FileNotFoundError):
        LogCatalog(disk).info(2)


@given(st.integers(1, 400))
def test_a_scan_finds_the_same_whatever_it_reads_at_once(chunk_bytes: int) -> None:
    pieces = (*PIECES, piece(3, 0, payload=b"y" * 1000), piece(3, 1))
    disk = written(*pieces)
    end = LogCatalog(disk).info(1).ledger_map.frames_end
    batches, scan_end = scanned(disk, 1, end=end, chunk_bytes=chunk_bytes)
    assert scan_end == ScanEnd(end)
    assert entries_of(batches) == entries_of(scanned(disk, 1, end=end)[0])
    assert b"".join(batch.run.data for batch in batches) == b"".join(p.view() for p in pieces)


# Ids.


def test_ids_are_larger_than_those_of_all_files_and_never_given_twice() -> None:
    disk = new_disk()
    for name in (path_of(3), path_of(17, ".compacting"), f"{DIRECTORY}/notes.log"):
        disk.create(name).close()
    ids = LogIds(disk)
    assert [ids.take(), ids.take()] == [18, 19]
    catalog = LogCatalog(disk)
    assert catalog.log_ids() == [3]
    assert catalog.remove_unfinished() == [17]
    assert [log_of("0000001f.log"), log_of("1f.log"), log_of("zzzzzzzz.log")] == [31, None, None]


# A full disk.


def test_what_a_full_disk_cut_short_is_written_again_wholly_from_memory() -> None:
    """However far the first try came, the second one says where everything is."""
    pieces = [piece(n, *range(3), payload=b"z" * 500) for n in range(8)]
    for capacity_bytes in range(900, 18_000, 700):
        disk = new_disk(capacity_bytes=capacity_bytes)
        writer = EntryLogWriter(disk, log_bytes_max=4000)
        synced_bytes = 0
        try:
            writer.write(pieces[:1])
            writer.sync()
            synced_bytes = disk.used_bytes()
            writer.write(pieces[1:])
            writer.sync()
        except DiskFull:
            writer.abandon()
            assert disk.used_bytes() <= synced_bytes + 4200, "only log 1 may keep garbage"
        else:
            continue
        disk.capacity_bytes = None
        places = writer.write(pieces)
        writer.sync()
        assert len({log_id for log_id, _ in places}) > 1
        disk.crash(Loss.LOST)
        found: dict[tuple[int, int], bytes] = {}
        for log_id in {log_id for log_id, _ in places}:
            for batch in scanned(disk, log_id)[0]:
                found[log_id, batch.offset] = batch.run.data
        for one, place in zip(pieces, places, strict=True):
            assert found[place].startswith(one.view())


def test_nothing_is_appended_to_a_log_whose_end_was_given_up() -> None:
    disk = new_disk()
    writer = EntryLogWriter(disk, log_bytes_max=1 << 20)
    writer.write([PIECES[0]])
    writer.sync()
    writer.write([PIECES[1]])
    writer.abandon()
    assert not writer.is_writing(1)
    assert writer.write([PIECES[1]]) == [(2, HEADER_BYTES)]
    assert rows(LogCatalog(disk).info(1).ledger_map) == counted(PIECES[0])


def test_a_log_that_is_synced_goes_on_after_a_disk_was_full_elsewhere() -> None:
    writer = EntryLogWriter(new_disk(), log_bytes_max=1 << 20)
    writer.write([PIECES[0]])
    writer.sync()
    writer.abandon()
    assert writer.write([PIECES[1]])[0][0] == 1


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_shutdown_does_not_fail_because_a_map_cannot_be_written(operation: str) -> None:
    disk = new_disk()
    writer = EntryLogWriter(disk, log_bytes_max=1 << 20)
    writer.write(PIECES)
    writer.sync()
    disk.fail(operation, DIRECTORY, errno.ENOSPC)
    writer.close()
    assert rows(LogCatalog(disk).info(1).ledger_map) == counted(*PIECES)


def test_a_log_with_entries_that_are_not_synced_gets_no_map() -> None:
    disk = new_disk()
    writer = EntryLogWriter(disk, log_bytes_max=1 << 20)
    writer.write(PIECES)
    writer.close()
    info: LogInfo = LogCatalog(disk).info(1)
    assert not info.is_sealed
