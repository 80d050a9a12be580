"""Formats, group commit, roll, replay, and every kind of damage to journal and mark."""

import random
import zlib
from array import array

import pytest

from bookie.disk.port import Directories
from bookie.errors import FileDamaged, JournalDamaged, JournalFailed, JournalMissing, MarkDamaged
from bookie.journal import format as fmt
from bookie.journal.format import FILE_HEADER_BYTES, JournalMark, Record, RecordKind
from bookie.journal.journals import Journals
from bookie.journal.recovery import is_new, plan, replay
from bookie.journal.writer import begin, journal_ids, write_mark
from ledger.entry import Checked, check_frames
from tests.bookie.promises import KEY, run_of
from tests.simulation.disk import Loss, SimDisk


def entropy(count: int) -> bytes:
    return random.Random(zlib.crc32(b"%d" % count)).randbytes(count)


def add_record(*entries: int) -> Record:
    run = run_of(5, *entries)
    checked = check_frames(5, run.entries, run.lengths, run.frames)
    assert isinstance(checked, Checked)
    return Record(RecordKind.ADD, 5, KEY, checked.entries, array("I", run.lengths), checked.data)


def new_disk() -> SimDisk:
    disk = SimDisk(0)
    disk.make_directory(fmt.DIRECTORY)
    disk.sync_directory("")
    return disk


def new_journals(*disks: SimDisk, file_bytes_max: int = 1 << 20) -> Journals:
    headers = [
        begin(disk, 1, previous=None, preallocate_bytes=600, entropy=entropy) for disk in disks
    ]
    return Journals(
        Directories(disks[0], disks, disks),
        headers,
        file_bytes_max=file_bytes_max,
        preallocate_bytes=600,
        block_bytes=1,
        spares_max=0,
        entropy=entropy,
    )


def replayed(disk: SimDisk) -> list[tuple[RecordKind, list[int]]]:
    return [
        (record.kind, list(record.entries))
        for segment in plan(disk)
        for record in replay(disk, segment)
    ]


def test_records_come_back_as_they_were() -> None:
    for record in (
        add_record(1, 2, 9),
        Record(RecordKind.FENCE, 7, b""),
        Record(RecordKind.FENCE, 7, KEY),
    ):
        data = b"".join(fmt.encode_record(record, epoch=3, synced_to=64))
        assert fmt.decode_record(data) == record
    header = fmt.FileHeader(4, 2**64 - 1, 3, 999)
    assert fmt.decode_file_header(fmt.encode_file_header(header), "x") == header
    assert fmt.decode_mark(fmt.encode_mark(JournalMark(4, 99), 7), "x") == (JournalMark(4, 99), 7)


def test_one_commit_makes_all_that_queued_durable_with_one_sync() -> None:
    disk = new_disk()
    journals = new_journals(disk)
    tickets = [journals.add(add_record(entry)) for entry in range(10)]
    assert journals.has_pending(0)
    before = disk.operations
    assert journals.commit(0) == tickets[-1]
    assert disk.operations - before <= 3  # grow, write, sync
    assert not journals.has_pending(0)
    disk.crash(Loss.LOST)
    assert replayed(disk) == [(RecordKind.ADD, [entry]) for entry in range(10)]


def test_what_was_not_committed_is_not_there() -> None:
    disk = new_disk()
    journals = new_journals(disk)
    journals.add(add_record(1))
    journals.commit(0)
    journals.add(add_record(2))
    disk.crash(Loss.KEPT)
    assert replayed(disk) == [(RecordKind.ADD, [1])]


def test_a_full_file_is_followed_by_one_with_a_higher_id() -> None:
    disk = new_disk()
    journals = new_journals(disk, file_bytes_max=500)
    for entry in range(12):
        journals.add(add_record(entry))
        journals.commit(0)
    assert journal_ids(disk) == list(range(1, len(journal_ids(disk)) + 1))
    assert len(journal_ids(disk)) > 2
    assert replayed(disk) == [(RecordKind.ADD, [entry]) for entry in range(12)]
    journals.advance([JournalMark(3, FILE_HEADER_BYTES)])
    assert journal_ids(disk)[0] == 3
    assert replayed(disk)


@pytest.mark.parametrize("operation", ["write", "sync", "preallocate"])
def test_after_a_failure_nothing_is_ever_durable_again(operation: str) -> None:
    disk = new_disk()
    journals = new_journals(disk)
    for entry in range(20):
        journals.add(add_record(entry))
    disk.fail(operation, "journal/")
    with pytest.raises(JournalFailed, match=r"journal/0+1\.journal"):
        journals.commit(0)
    journals.add(add_record(50))
    with pytest.raises(JournalFailed):
        journals.commit(0)
    assert journals.durable == 0


def three_commits() -> tuple[SimDisk, list[int]]:
    """Return a disk with one file, and where the groups of its three commits end."""
    disk = new_disk()
    journals = new_journals(disk)
    ends = []
    for entry in (1, 3, 5):
        journals.add(add_record(entry))
        journals.add(add_record(entry + 1))
        journals.commit(0)
        ends.append(journals.positions()[0].offset)
    write_mark(disk, JournalMark(1, FILE_HEADER_BYTES))
    return disk, ends


def outcome(disk: SimDisk) -> int | type[FileDamaged]:
    """Return how many records come back, all of them right, or how it refused."""
    try:
        found = replayed(disk)
    except FileDamaged as damaged:
        return type(damaged)
    assert found == [(RecordKind.ADD, [entry]) for entry in range(1, len(found) + 1)]
    return len(found)


def test_every_byte_of_a_journal_flipped_is_found_or_was_never_needed() -> None:
    """Damage before the last commit refuses. In the last commit it cannot be told from a
    write that was torn; then the records before it come back."""
    disk, ends = three_commits()
    path = fmt.path_of(1)
    whole = disk.content(path)
    for at in range(len(whole)):
        damaged = disk.copy()
        damaged.damage(path, at, bytes([whole[at] ^ 0x55]))
        if at < ends[1]:
            assert outcome(damaged) is JournalDamaged
        elif at < ends[2]:
            assert outcome(damaged) in (4, 5)
        else:
            assert outcome(damaged) == 6


def test_a_journal_cut_at_every_byte_gives_a_prefix_or_refuses() -> None:
    disk, ends = three_commits()
    path = fmt.path_of(1)
    for size in range(len(disk.content(path))):
        damaged = disk.copy()
        damaged.cut(path, size)
        if size < FILE_HEADER_BYTES:
            assert outcome(damaged) is JournalDamaged
        else:
            found = outcome(damaged)
            assert isinstance(found, int)
            assert found >= 2 * sum(end <= size for end in ends)


def test_a_zeroed_sector_in_what_was_synced_refuses() -> None:
    disk, ends = three_commits()
    for at in range(FILE_HEADER_BYTES, ends[1], 40):
        damaged = disk.copy()
        damaged.damage(fmt.path_of(1), at, bytes(80))
        assert outcome(damaged) is JournalDamaged


def test_damage_in_an_older_file_refuses_up_to_its_last_byte() -> None:
    disk = new_disk()
    journals = new_journals(disk, file_bytes_max=300)
    ends = {}
    for entry in range(1, 7):
        journals.add(add_record(entry))
        journals.commit(0)
        ends[journals.positions()[0].journal_id] = journals.positions()[0].offset
    assert len(ends) > 1
    assert outcome(disk) == 6
    cut = disk.copy()
    cut.cut(fmt.path_of(1), ends[1] - 1)
    with pytest.raises(JournalDamaged, match=rf"0+1\.journal is damaged at byte {ends[1] - 1}"):
        replayed(cut)
    for at in range(ends[1]):
        damaged = disk.copy()
        damaged.damage(fmt.path_of(1), at, bytes([disk.content(fmt.path_of(1))[at] ^ 1]))
        assert outcome(damaged) is JournalDamaged


def test_every_byte_of_the_mark_flipped_or_cut_refuses() -> None:
    disk, _ = three_commits()
    whole = disk.content(fmt.MARK_PATH)
    for at in range(len(whole)):
        flipped = disk.copy()
        flipped.damage(fmt.MARK_PATH, at, bytes([whole[at] ^ 1]))
        assert outcome(flipped) is MarkDamaged
        cut = disk.copy()
        cut.cut(fmt.MARK_PATH, at)
        assert outcome(cut) is MarkDamaged


def test_a_mark_of_another_journal_that_fits_refuses() -> None:
    """It would hide the records before it, which are in no index yet."""
    disk, ends = three_commits()
    assert outcome(disk) == 6
    other = new_disk()
    begin(other, 1, previous=None, preallocate_bytes=600, entropy=lambda count: b"\7" * count)
    write_mark(other, JournalMark(1, ends[1]))
    disk.damage(fmt.MARK_PATH, 0, other.content(fmt.MARK_PATH))
    assert outcome(disk) is MarkDamaged
    disk.damage(
        fmt.MARK_PATH, 0, fmt.encode_mark(JournalMark(1, ends[1]), 0)
    )  # as older programs wrote
    assert [entries for _, entries in replayed(disk)] == [[5], [6]]


def test_a_journal_that_is_not_there_refuses() -> None:
    disk = new_disk()
    assert is_new(disk)
    journals = new_journals(disk, file_bytes_max=200)
    for entry in range(6):
        journals.add(add_record(entry))
        journals.commit(0)
    write_mark(disk, JournalMark(2, FILE_HEADER_BYTES))
    assert not is_new(disk)
    for missing in (2, 3):  # the one that the mark names, and one in the middle
        damaged = disk.copy()
        damaged.remove(fmt.path_of(missing))
        assert outcome(damaged) is JournalMissing
    lost_mark = disk.copy()
    lost_mark.remove(fmt.MARK_PATH)
    lost_mark.remove(fmt.path_of(1))
    assert outcome(lost_mark) is JournalMissing


def test_left_overs_of_another_file_are_no_records() -> None:
    """A reused block may hold whole records; their epoch is another one."""
    disk, ends = three_commits()
    foreign = b"".join(fmt.encode_record(add_record(99), epoch=12345, synced_to=ends[2]))
    disk.damage(fmt.path_of(1), ends[2], foreign)
    assert outcome(disk) == 6


def test_random_bytes_in_place_of_a_journal_give_a_typed_error() -> None:
    lot = random.Random(3)
    for _ in range(200):
        disk, _ = three_commits()
        size = len(disk.content(fmt.path_of(1)))
        at = lot.randrange(size)
        disk.damage(fmt.path_of(1), at, lot.randbytes(lot.randint(1, 300)))
        assert outcome(disk) in (0, 1, 2, 3, 4, 5, 6, JournalDamaged)
