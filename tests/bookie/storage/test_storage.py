"""What a storage answers: adds, fences, reads, LACs, limits, errors."""

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from bookie.disk.port import Directories, RealDisk
from bookie.entrylog.reader import EntryLogReader
from bookie.errors import IndexDamaged, JournalDamaged, JournalMissing, StorageFailed
from bookie.index.format import LedgerHeader, directory_of
from bookie.index.ledger_index import LedgerIndex
from bookie.journal import format as journal_format
from bookie.journal.writer import journal_ids
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from bookie.storage.memtable import Memtable
from ledger.entry import Checked, encode_lac, parse_header, verify_frame
from ledger.errors import HandleClosed
from ledger.requests import AddRun, LacAnswer, ReadQuery, Status
from tests.bookie.promises import EVERYTHING, KEY, SMALL, Promises, entries_of, frame_of, run_of
from tests.simulation.disk import Loss, SimDisk


def new_storage(disk: SimDisk | None = None, config: StorageConfig = SMALL) -> BookieStorage:
    return BookieStorage.open(disk or SimDisk(0), config)


def query(
    ledger_id: int, first: int, last: int = EVERYTHING, bytes_max: int = 1 << 20
) -> ReadQuery:
    return ReadQuery(ledger_id, KEY, first, last, bytes_max)


def explicit_lac(ledger_id: int, lac: int, key: bytes = KEY) -> AddRun:
    frame = encode_lac(ledger_id=ledger_id, last_add_confirmed=lac, length=lac)
    return AddRun(ledger_id, key, (-1,), (len(frame),), frame, explicit_lac=True)


def lac_of(answer: LacAnswer) -> int:
    return parse_header(answer.lac_proof).last_add_confirmed


def test_entries_are_read_from_memory_and_from_disk_alike() -> None:
    storage = new_storage()
    assert storage.add(run_of(1, *range(0, 300, 3)))[0] is Status.OK
    for _ in range(2):
        answer = storage.read(query(1, 4, 200))
        assert list(answer.entries) == list(range(6, 200, 3))
        assert answer.considered == 200
        for entry_id, frame in answer.each():
            verify_frame(frame, 1, entry_id)
        assert storage.read(query(1, 4, 5)).entries == storage.read(query(1, 400)).entries
        storage.checkpoint()


def test_an_answer_holds_at_least_one_entry_and_not_more_than_asked_for() -> None:
    storage = new_storage()
    storage.add(run_of(1, 0, 1, 2, 3))
    two = len(frame_of(1, 0)) + len(frame_of(1, 1))
    for _ in range(2):
        assert list(storage.read(query(1, 0, bytes_max=1)).entries) == [0]
        assert storage.read(query(1, 0, bytes_max=1)).considered == 0
        assert list(storage.read(query(1, 0, bytes_max=two)).entries) == [0, 1]
        assert storage.read(query(1, 2, bytes_max=0)).considered == 2
        storage.checkpoint()


def test_memory_and_disk_are_merged_entry_by_entry() -> None:
    """A repair fills holes below what is on disk already."""
    storage = new_storage()
    storage.add(run_of(1, 0, 2, 4, 6, 300))
    storage.checkpoint()
    storage.add(run_of(1, 1, 3, 301))
    for first in range(3):
        assert list(storage.read(query(1, first)).entries) == [
            e for e in (0, 1, 2, 3, 4, 6, 300, 301) if e >= first
        ]
    assert list(entries_of(storage, 1)) == [0, 1, 2, 3, 4, 6, 300, 301]


def test_reads_of_what_is_not_there_say_so() -> None:
    storage = new_storage()
    assert storage.read(query(1, 0)).status is Status.NO_SUCH_LEDGER
    assert storage.lac(1, KEY) == LacAnswer(Status.NO_SUCH_LEDGER)
    storage.add(run_of(1, 5))
    answer = storage.read(query(1, 0, 3))
    assert (answer.status, list(answer.entries), answer.considered) == (Status.OK, [], 3)
    assert storage.read(query(1, 3, 2)).status is Status.BAD_REQUEST
    assert storage.read(query(1, -1, 2)).status is Status.BAD_REQUEST


def test_recent_entries_are_answered_without_the_disk() -> None:
    storage = new_storage()
    storage.add(run_of(1, 0, 1))
    answer = storage.read_recent(query(1, 0))
    assert answer == storage.read(query(1, 0))
    storage.checkpoint()
    assert storage.read_recent(query(1, 1)) is None
    assert storage.read_recent(query(1, 2)) == storage.read(query(1, 2))
    absent = storage.read_recent(query(9, 0))
    assert absent is not None
    assert absent.status is Status.NO_SUCH_LEDGER


def test_a_ledger_that_was_not_used_for_long_needs_the_disk() -> None:
    storage = new_storage()
    for ledger_id in range(10):
        storage.add(run_of(ledger_id, 0))
    storage.checkpoint()
    assert storage.read_recent(query(0, 5)) is None
    assert storage.read(query(0, 0)).status is Status.OK
    assert storage.ledger_ids() == list(range(10))
    assert len(storage._ledgers) <= SMALL.ledgers_in_memory_max


def test_the_same_add_again_is_fine_and_other_bytes_are_a_conflict() -> None:
    storage = new_storage()
    for _ in range(2):
        status, ticket = storage.add(run_of(1, 0, 1, 2))
        assert status is Status.OK
        assert storage.commit() >= ticket
        assert storage.add(run_of(1, 1, salt=1)) == (Status.CONFLICT, 0)
        assert storage.add(run_of(1, 2, 3, salt=1)) == (Status.CONFLICT, 0)
        assert list(entries_of(storage, 1)) == [0, 1, 2]
        storage.checkpoint()  # from here on they are on disk
    assert storage.add(run_of(1, 1, 2, 3))[0] is Status.OK
    assert list(entries_of(storage, 1)) == [0, 1, 2, 3]


def test_what_an_add_needs_of_the_disk_is_told_and_looked_up_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = new_storage(config=replace(SMALL, ledgers_in_memory_max=1))
    run = run_of(1, 0, 1, 2)
    assert not storage.needs_disk(run)
    storage.add(run)
    assert not storage.needs_disk(run)
    storage.checkpoint()
    assert storage.needs_disk(run)
    assert not storage.needs_disk(run_of(1, 3))
    again = storage.prepare(run_of(1, 1, 2, 3))
    other = storage.prepare(run_of(1, 2, salt=1))
    for ledger_id in range(2, 6):
        storage.add(run_of(ledger_id, 0))
    with monkeypatch.context() as patch:
        patch.delattr(EntryLogReader, "find")
        patch.delattr(LedgerIndex, "load")
        assert storage.add(run_of(1, 1, 2, 3), again)[0] is Status.OK
        assert storage.add(run_of(1, 2, salt=1), other) == (Status.CONFLICT, 0)
    storage.checkpoint()
    assert storage.needs_load(1)
    assert storage.needs_disk(run_of(1, 9))
    storage.load(1)
    assert not storage.needs_load(1)
    assert not storage.needs_load(77)
    assert storage.add(run_of(1, 2, 3), again)[0] is Status.OK  # out of date: looked up anew
    assert list(entries_of(storage, 1)) == [0, 1, 2, 3]


def test_a_repeated_add_waits_for_the_first() -> None:
    storage = new_storage()
    _, first = storage.add(run_of(1, 0))
    _, second = storage.add(run_of(1, 0))
    assert second >= first
    assert storage.commit() >= second
    assert not storage.has_pending()


def test_an_add_is_checked_before_it_is_taken() -> None:
    storage = new_storage()
    run = run_of(1, 0, 1)
    frames = bytearray(run.frames)
    frames[60] ^= 1
    assert storage.add(replace(run, frames=bytes(frames))) == (Status.DAMAGED, 0)
    assert storage.add(replace(run, ledger_id=2)) == (Status.DAMAGED, 0)
    assert storage.add(replace(run, entries=(1, 2))) == (Status.DAMAGED, 0)
    assert storage.add(replace(run, lengths=(1, 2))) == (Status.BAD_REQUEST, 0)
    assert storage.add(AddRun(1, KEY, (), (), b"")) == (Status.BAD_REQUEST, 0)
    assert storage.add(replace(run, key=b"k" * 65)) == (Status.BAD_REQUEST, 0)
    assert storage.add(run_of(1, 10**12)) == (Status.BAD_REQUEST, 0)
    assert storage.add(explicit_lac(1, 3)) == (Status.BAD_REQUEST, 0)
    assert storage.ledger_ids() == []
    assert not storage.has_pending()


def test_the_first_key_is_the_ledgers_key_in_this_life_and_the_next() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0))
    storage.fence(2, KEY)
    storage.commit()
    for _ in range(2):
        for ledger_id in (1, 2):
            wrong = replace(run_of(ledger_id, 1, recovery=True), key=b"wrong")
            assert storage.add(wrong) == (Status.WRONG_KEY, 0)
            assert storage.fence(ledger_id, b"wrong") == (Status.WRONG_KEY, 0)
            assert storage.set_lac(explicit_lac(ledger_id, 1, b"wrong")) is Status.WRONG_KEY
            assert storage.lac(ledger_id, b"wrong").status is Status.WRONG_KEY
            assert storage.read(ReadQuery(ledger_id, b"", 0, 1)).status is Status.WRONG_KEY
        disk.crash(Loss.LOST)
        storage = new_storage(disk)


def test_a_fence_refuses_normal_adds_and_lets_recovery_pass() -> None:
    storage = new_storage()
    storage.add(run_of(1, 0))
    storage.fence(1, KEY)
    assert storage.add(run_of(1, 1)) == (Status.FENCED, 0)
    assert storage.add(run_of(1, 0)) == (Status.FENCED, 0)
    assert storage.set_lac(explicit_lac(1, 0)) is Status.FENCED
    assert storage.add(run_of(1, 1, recovery=True))[0] is Status.OK
    assert storage.read(query(1, 0)).fenced
    assert storage.lac(1, KEY).fenced


def test_a_second_fence_waits_for_the_first() -> None:
    storage = new_storage()
    durable = storage.commit()
    status, ticket = storage.fence(1, KEY)
    assert (status, storage.fence(1, KEY)) == (Status.OK, (Status.OK, ticket))
    assert ticket > durable
    storage.add(run_of(1, 0, recovery=True))
    assert storage.fence(1, KEY) == (Status.OK, ticket)
    assert storage.commit() > ticket


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_fence_outlives_crashes_checkpoints_and_eviction(checkpoint: bool) -> None:
    """Also that of a ledger that nothing was ever added to (rule 35)."""
    promises = Promises(SimDisk(0))
    promises.open()
    promises.add(1, 0)
    promises.commit()
    for ledger_id in (1, 2):
        promises.fence(ledger_id)
    promises.commit()
    if checkpoint:
        promises.storage.checkpoint()
    for ledger_id in range(10, 20):
        promises.add(ledger_id, 0)
    promises.commit()
    if checkpoint:
        promises.storage.checkpoint()
        promises.check()
    promises.disk.crash(Loss.LOST)
    promises.open()
    assert sorted(promises.fenced) == [1, 2]
    promises.check()


def test_a_record_read_from_disk_never_undoes_a_fence_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. an add reads the header of a ledger from disk; 2. the ledger is fenced, flushed and
    forgotten again; 3. the add must not go by what it has read."""
    storage = new_storage()
    for ledger_id in range(1, 5):
        storage.add(run_of(ledger_id, 0))
    storage.checkpoint()
    load = storage._holdings.ledger_directories[0].index.load
    met: list[int] = []

    def load_slowly(ledger_id: int) -> LedgerHeader:
        stored = load(ledger_id)
        if not met:
            met.append(ledger_id)
            storage.fence(1, KEY)
            for other in range(5, 9):
                storage.add(run_of(other, 0))
            storage.checkpoint()
            assert storage._ledgers.get(1) is None
        return stored

    monkeypatch.setattr(storage._holdings.ledger_directories[0].index, "load", load_slowly)
    assert storage.add(run_of(1, 1)) == (Status.FENCED, 0)
    assert met == [1]


def test_the_highest_lac_is_proven_from_entries_or_an_explicit_one() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0, 1, 2))
    assert lac_of(storage.lac(1, KEY)) == 1
    assert storage.set_lac(explicit_lac(1, 2)) is Status.OK
    assert storage.set_lac(explicit_lac(1, 0)) is Status.OK
    storage.add(run_of(1, 3))
    assert lac_of(storage.lac(1, KEY)) == 2
    assert parse_header(storage.read(query(1, 0)).lac_proof).last_add_confirmed == 2
    assert storage.set_lac(explicit_lac(1, 3)) is Status.OK
    assert storage.lac(1, KEY).last_entry == 3
    storage.commit()
    storage.checkpoint()
    disk.crash(Loss.LOST)
    storage = new_storage(disk)
    assert lac_of(storage.lac(1, KEY)) == 3
    assert storage.lac(1, KEY).last_entry == 3


def test_an_explicit_lac_that_was_never_flushed_leaves_that_of_the_last_entry() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0, 1, 2))
    storage.commit()
    storage.set_lac(explicit_lac(1, 2))
    disk.crash(Loss.LOST)
    assert lac_of(new_storage(disk).lac(1, KEY)) == 1


def test_an_explicit_lac_of_an_unknown_ledger_is_kept_and_a_damaged_one_is_not() -> None:
    storage = new_storage()
    assert storage.set_lac(explicit_lac(1, 7)) is Status.OK
    assert lac_of(storage.lac(1, KEY)) == 7
    run = explicit_lac(2, 7)
    assert storage.set_lac(replace(run, frames=bytes(run.frames[:-1]) + b"x")) is Status.DAMAGED
    assert storage.ledger_ids() == [1]


def test_a_full_memtable_refuses_adds_and_keeps_a_share_for_recovery() -> None:
    storage = new_storage(config=replace(SMALL, memtable_bytes_max=3000))
    taken = 0
    while (outcome := storage.add(run_of(1, taken)))[0] is Status.OK and taken < 100:
        taken += 1
    assert outcome == (Status.TOO_MANY_REQUESTS, 0)
    assert storage.add(run_of(1, taken, recovery=True))[0] is Status.OK
    assert storage.fence(2, KEY)[0] is Status.OK
    storage.checkpoint()
    assert storage.add(run_of(1, taken + 1))[0] is Status.OK
    assert len(entries_of(storage, 1)) == taken + 2


def test_a_replay_larger_than_the_memtable_is_flushed_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    class Weighed(Memtable):
        def add(self, ledger_id: int, run: Checked, new: Sequence[int] | None = None) -> None:
            super().add(ledger_id, run, new)
            sizes.append(self.size_bytes)

    disk = SimDisk(0)
    promises = Promises(disk)
    promises.open()
    for turn in range(40):
        promises.add(turn % 3, turn * 10, turn * 10 + 1)
        promises.commit()
    disk.crash(Loss.LOST)
    promises.config = replace(SMALL, memtable_bytes_max=2000)
    monkeypatch.setattr("bookie.storage.replay.Memtable", Weighed)
    promises.open()
    promises.check()
    assert len(journal_ids(disk)) == 1
    assert 2000 <= max(sizes) < 4000, "one run more than the bound"


def test_a_checkpoint_lets_old_journals_go_and_an_idle_one_does_nothing() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    for entry in range(60):
        storage.add(run_of(1, entry))
        storage.commit()
    assert len(journal_ids(disk)) > 3
    storage.checkpoint()
    assert len(journal_ids(disk)) == 1
    before = disk.operations
    storage.checkpoint()
    assert disk.operations == before


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failed_commit_every_call_raises(operation: str) -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0))
    disk.fail(operation, "journal/")
    with pytest.raises(StorageFailed, match="Nothing more is acknowledged"):
        storage.commit()
    for call in (
        storage.commit,
        storage.checkpoint,
        lambda: storage.add(run_of(1, 1)),
        lambda: storage.fence(1, KEY),
        lambda: storage.read(query(1, 0)),
        lambda: storage.lac(1, KEY),
    ):
        with pytest.raises(StorageFailed):
            call()


def test_after_any_failed_step_of_a_checkpoint_a_restart_has_everything() -> None:
    for operation in ("create", "write", "sync", "rename", "sync_directory", "make_directory"):
        for path in ("entrylog", "index", "journal"):
            promises = Promises(SimDisk(0))
            promises.open()
            promises.add(1, *range(20))
            promises.fence(2)
            promises.commit()
            promises.disk.fail(operation, path)
            try:
                promises.storage.checkpoint()
            except StorageFailed:
                with pytest.raises(StorageFailed):
                    promises.storage.commit()
            promises.disk.crash(Loss.LOST)
            promises.disk._failing.clear()
            promises.open()
            promises.check()


def fill_up(promises: Promises) -> int:
    """Add until an add is refused; return the entry that was."""
    for entry in range(1000):
        status = promises.add(1, entry)
        if status is not Status.OK:
            assert status is Status.READ_ONLY
            return entry
        promises.commit()
    raise AssertionError("a disk of 20,000 bytes took a thousand entries")


def test_a_full_disk_refuses_adds_and_takes_fences_and_recovery_adds() -> None:
    config = replace(SMALL, memtable_bytes_max=1 << 20)
    promises = Promises(SimDisk(0, capacity_bytes=20_000), config)
    promises.open()
    refused = fill_up(promises)
    assert promises.storage.read_only
    assert "no room for its journal" in promises.storage.troubles[0]
    assert promises.add(1, refused + 1, recovery=True) is Status.OK
    promises.fence(2)
    promises.commit()
    assert not promises.storage.has_pending()
    promises.check()
    promises.storage.checkpoint()
    assert "a checkpoint found no space" in promises.storage.troubles[1]
    promises.check()
    promises.disk.crash(Loss.LOST)
    with pytest.raises(StorageFailed, match="No space left"):
        promises.open()
    promises.disk.crash(Loss.LOST)
    promises.disk.capacity_bytes = None
    promises.open()
    promises.check()


def test_a_killed_bookie_starts_on_a_disk_that_has_no_room_for_a_second_journal() -> None:
    config = replace(SMALL, journal_preallocate_bytes=100_000)
    promises = Promises(SimDisk(0), config)
    promises.open()
    promises.add(1, *range(20))
    promises.fence(2)
    promises.commit()
    promises.disk.kill()
    promises.disk.capacity_bytes = promises.disk.used_bytes() + 20_000
    promises.open()
    assert not promises.storage.read_only
    promises.check()
    promises.config = replace(config, journal_preallocate_bytes=130_000)
    promises.disk.kill()
    promises.open()
    assert promises.storage.read_only
    promises.fence(3)  # there is room for this, also now
    promises.commit()
    assert 3 in promises.fenced
    promises.disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def test_recovery_adds_leave_room_for_fences_on_a_full_disk() -> None:
    """Rule 36: a bookie whose disk is full can be fenced."""
    config = replace(SMALL, memtable_bytes_max=1 << 20, journal_preallocate_bytes=256 * 1024)
    promises = Promises(SimDisk(0, capacity_bytes=450_000), config)
    promises.open()
    entry = 0
    while promises.add(1, *range(entry, entry + 100)) is Status.OK:
        promises.commit()
        entry += 100
    assert promises.storage.read_only
    while promises.add(1, *range(entry, entry + 100), recovery=True) is Status.OK:
        entry += 100
    promises.commit()
    assert promises.add(1, *range(entry, entry + 100), recovery=True) is Status.TOO_MANY_REQUESTS
    for ledger_id in range(2, 200):
        promises.fence(ledger_id)
    promises.commit()
    assert len(promises.fenced) == 198
    promises.check()


def test_a_storage_takes_adds_again_when_there_is_space() -> None:
    config = replace(SMALL, memtable_bytes_max=1 << 20)
    promises = Promises(SimDisk(0, capacity_bytes=20_000), config)
    promises.open()
    refused = fill_up(promises)
    promises.storage.checkpoint()
    promises.disk.capacity_bytes = None
    promises.commit()
    promises.storage.checkpoint()
    assert promises.storage.troubles == ()
    assert promises.add(1, refused) is Status.OK
    promises.commit()
    promises.check()
    promises.disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def test_a_batch_that_the_disk_has_no_space_for_waits_and_is_not_acknowledged() -> None:
    config = replace(SMALL, memtable_bytes_max=1 << 20)
    promises = Promises(SimDisk(0, capacity_bytes=12_000), config)
    promises.open()
    promises.add(1, *range(200))
    promises.commit()
    assert promises.stored == {}
    assert promises.storage.has_pending()
    assert promises.add(2, 0) is Status.READ_ONLY
    promises.disk.capacity_bytes = None
    promises.commit()
    assert list(promises.stored[1]) == list(range(200))
    promises.disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def several() -> tuple[Directories, list[SimDisk]]:
    disks = [SimDisk(seed) for seed in range(5)]
    return Directories(disks[0], tuple(disks[:2]), tuple(disks[2:])), disks


def test_ledgers_are_spread_over_all_directories_and_survive_a_crash() -> None:
    directories, disks = several()
    storage = BookieStorage.open(directories, SMALL)
    for ledger_id in range(12):
        assert storage.add(run_of(ledger_id, 0, 1))[0] is Status.OK
    assert storage.has_pending(0)
    assert storage.has_pending(1)
    assert storage.commit(1) == 0  # a ticket of the other journal comes before all
    assert storage.commit(0) == 12
    storage.add(run_of(12, 0))
    assert storage.commit(1) == 12
    assert storage.commit(0) == 13
    storage.checkpoint()
    assert storage.add(run_of(13, 7))[0] is Status.OK
    storage.commit(1)
    for disk in disks:
        disk.crash(Loss.LOST)
    storage = BookieStorage.open(directories, SMALL)
    assert storage.ledger_ids() == list(range(14))
    for ledger_id in range(12):
        assert list(entries_of(storage, ledger_id)) == [0, 1]
    assert list(entries_of(storage, 13)) == [7]
    for at, disk in enumerate(disks[2:]):
        found = [ledger for ledger in range(14) if directories.ledger_directory_of(ledger) == at]
        assert found == sorted(LedgerIndex(disk, cache_bytes=1, files_max=1).recover())


def test_one_bad_ledger_directory_of_several_makes_the_bookie_read_only() -> None:
    directories, disks = several()
    storage = BookieStorage.open(directories, SMALL)
    for ledger_id in range(6):
        storage.add(run_of(ledger_id, 0))
    for journal in range(2):
        storage.commit(journal)
    disks[3].fail("sync", "entrylog/")
    storage.checkpoint()
    assert storage.read_only
    assert "a checkpoint failed" in storage.troubles[0]
    assert storage.add(run_of(1, 1)) == (Status.READ_ONLY, 0)
    assert storage.add(run_of(1, 1, recovery=True))[0] is Status.OK
    assert storage.fence(2, KEY)[0] is Status.OK
    storage.checkpoint()  # nothing is tried again: what a failed sync left is not known
    for ledger_id in range(6):
        assert 0 in entries_of(storage, ledger_id)
    for disk in disks:
        disk.crash(Loss.LOST)
    storage = BookieStorage.open(directories, SMALL)
    for ledger_id in range(6):
        assert list(entries_of(storage, ledger_id)) == [0]


def test_a_journal_that_is_not_there_beside_others_refuses_the_start() -> None:
    directories, disks = several()
    storage = BookieStorage.open(directories, SMALL)
    storage.add(run_of(1, 0))
    storage.commit(1)
    storage.close()
    for name in disks[0].list("journal"):
        disks[0].remove(f"journal/{name}")
    with pytest.raises(JournalMissing):
        BookieStorage.open(directories, SMALL)


def test_a_file_with_a_name_of_its_own_refuses_the_start_and_ends_no_running_bookie() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0))
    storage.commit()
    storage.checkpoint()
    strays = [f"{journal_format.DIRECTORY}/{name}.journal" for name in ("copy", "1")]
    for stray in strays:
        disk.create(stray)
    for entry_id in range(1, 40):  # files are begun and removed beside them
        storage.add(run_of(1, entry_id))
        storage.commit()
        storage.checkpoint()
    assert list(storage.read(query(1, 0)).entries) == list(range(40))
    storage.close()
    for stray in strays:
        with pytest.raises(JournalDamaged, match="a name that no journal has"):
            new_storage(disk)
        disk.remove(stray)
    new_storage(disk).close()
    disk.create(f"{directory_of(1)}/copy of 1.index")
    with pytest.raises(IndexDamaged, match="no index file has such a name"):
        new_storage(disk)


def test_readers_close_behind_the_writer_are_answered_from_memory() -> None:
    storage = new_storage(config=replace(SMALL, recent_bytes_max=1 << 20))
    storage.add(run_of(1, 0, 1))
    storage.checkpoint()
    storage.add(run_of(1, 2, 3))
    storage.checkpoint()
    storage.add(run_of(1, 4))
    answer = storage.read_recent(query(1, 2))
    assert answer is not None
    assert list(answer.entries) == [2, 3, 4]
    assert answer == storage.read(query(1, 2))
    assert storage.read_recent(query(1, 1)) is None
    assert list(storage.read(query(1, 1)).entries) == [1, 2, 3, 4]
    assert storage.add(run_of(1, 3, salt=1)) == (Status.CONFLICT, 0)


def ahead(read_cache_bytes: int = 1 << 20) -> BookieStorage:
    """Return a storage with a ledger on disk whose reader has followed it for two reads."""
    config = replace(SMALL, read_cache_bytes=read_cache_bytes, read_ahead_bytes=1 << 20)
    storage = new_storage(config=config)
    storage.add(run_of(1, *range(0, 400, 2)))
    storage.checkpoint()
    first = 0
    for _ in range(2):
        answer = storage.read(query(1, first, bytes_max=500))
        assert answer.entries
        first = answer.considered + 1
    assert first < 100
    return storage


def test_what_is_read_one_range_after_the_other_is_read_ahead() -> None:
    storage = ahead()
    answer = storage.read_recent(query(1, 100, bytes_max=500))
    assert answer is not None
    assert answer == storage.read(query(1, 100, bytes_max=500))
    assert list(answer.entries) == list(range(100, answer.considered + 1, 2))
    rest = storage.read_recent(query(1, 100))
    assert rest is not None
    assert list(rest.entries) == list(range(100, 400, 2))
    assert rest.considered == EVERYTHING


def test_an_entry_that_is_repaired_after_it_was_read_ahead_is_not_denied() -> None:
    """Rule 58."""
    storage = ahead()
    assert storage.read_recent(query(1, 100, 110)) is not None
    storage.add(run_of(1, 101, 105, recovery=True))
    for _ in range(2):
        assert list(storage.read(query(1, 100, 106)).entries) == [100, 101, 102, 104, 105, 106]
        storage.checkpoint()


def test_reading_ahead_takes_no_more_memory_than_it_may() -> None:
    assert ahead(0).read_recent(query(1, 100, 110)) is None
    assert ahead(1000).read_recent(query(1, 100, 110)) is None  # what was read is larger


def test_the_status_says_what_is_where() -> None:
    directories, disks = several()
    storage = BookieStorage.open(directories, replace(SMALL, recent_bytes_max=1 << 20))
    for ledger_id in range(6):
        storage.add(run_of(ledger_id, *range(40)))
    before = storage.status()
    assert before.active_bytes > 6 * 40 * 60
    for journal in range(2):
        storage.commit(journal)
    assert all(one.mark < one.end for one in storage.status().journals)
    storage.checkpoint()
    assert storage.status().recent_bytes == before.active_bytes
    disks[4].fail("sync", "entrylog/")
    storage.add(run_of(2, 40))
    storage.checkpoint()
    after = storage.status()
    assert after.ledgers == 6
    assert (after.recent_bytes, after.flushing_bytes > 0) == (0, True)
    for was, now in zip(before.journals, after.journals, strict=True):
        assert was.end < now.end == now.mark
        assert now.files >= 1
        assert now.size_bytes >= now.end.offset
    assert [bool(one.failure) for one in after.ledger_directories] == [False, False, True]
    pages = after.caches[0]
    assert (pages.name, pages.used > 0, pages.used <= pages.at_most) == ("index pages", True, True)


def test_a_deleted_ledger_is_gone_for_good() -> None:
    """Rule 70, #4462: not even a fence or a recovery add makes it again, nor the journal."""
    directories, disks = several()
    storage = BookieStorage.open(directories, SMALL)
    for ledger_id in range(1, 7):
        storage.add(run_of(ledger_id, 0, 1))
    storage.checkpoint()
    for ledger_id in range(1, 7):
        storage.add(run_of(ledger_id, 2))
    for journal in range(2):
        storage.commit(journal)
    storage.delete([2, 3, 99])
    for turn in range(2):
        assert storage.ledger_ids() == [1, 4, 5, 6]
        for ledger_id in (2, 3):
            for run in (run_of(ledger_id, 5), run_of(ledger_id, 5, recovery=True)):
                assert storage.add(run) == (Status.NO_SUCH_LEDGER, 0)
            assert storage.fence(ledger_id, KEY) == (Status.NO_SUCH_LEDGER, 0)
            assert storage.set_lac(explicit_lac(ledger_id, 3)) is Status.NO_SUCH_LEDGER
            assert storage.read(query(ledger_id, 0)).status is Status.NO_SUCH_LEDGER
            assert storage.lac(ledger_id, KEY).status is Status.NO_SUCH_LEDGER
        assert storage.add(run_of(99, 0))[0] is Status.OK  # it was not here: nothing is known
        for ledger_id in (1, 4, 5, 6):
            assert list(entries_of(storage, ledger_id)) == [0, 1, 2]
        if turn == 0:
            for disk in disks:
                disk.crash(Loss.LOST)
            storage = BookieStorage.open(directories, SMALL)


def test_a_deletion_between_two_tries_of_a_checkpoint_is_not_undone() -> None:
    """#1757: the flush must not write the ledger's index again."""
    disk = SimDisk(0)
    storage = BookieStorage.open(disk, replace(SMALL, journal_spares_max=0))
    for ledger_id in range(1, 4):
        storage.add(run_of(ledger_id, 0))
    storage.commit()
    disk.fail("write", "index/redo", errno.ENOSPC)
    storage.checkpoint()
    assert storage.read_only
    storage.delete([2])
    storage.checkpoint()
    assert not storage.read_only
    assert storage.ledger_ids() == [1, 3]
    storage.close()
    assert BookieStorage.open(disk, SMALL).ledger_ids() == [1, 3]


def test_a_checkpoint_that_finds_no_space_takes_that_of_the_journals_spares() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    for entry in range(60):
        storage.add(run_of(1, entry))
        storage.commit()
    storage.checkpoint()
    storage.add(run_of(1, 60))
    storage.commit()
    disk.fail("write", "index/redo", errno.ENOSPC)
    storage.checkpoint()
    assert not storage.read_only
    assert not any(name.endswith(".spare") for name in disk.list("journal"))
    assert storage.status().journals[0].mark == storage.status().journals[0].end


def test_a_closed_storage_says_so_and_its_directory_is_free() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0))
    storage.commit()
    storage.close()
    storage.close()
    with pytest.raises(HandleClosed):
        storage.add(run_of(1, 1))
    disk.lock_as_another()
    assert list(entries_of(new_storage(disk), 1)) == [0]


def test_entries_without_a_journal_are_refused() -> None:
    """An emptied journal directory is no new bookie."""
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0))
    storage.commit()
    storage.checkpoint()
    storage.close()
    for name in disk.list("journal"):
        disk.remove(f"journal/{name}")
    with pytest.raises(JournalMissing, match="there is no journal"):
        new_storage(disk)
    disk.lock_as_another()  # and the lock is free again


@pytest.mark.slow
@pytest.mark.parametrize("ledgers", [1, 5])
def test_adds_commits_checkpoints_and_reads_run_beside_each_other(
    tmp_path_factory: pytest.TempPathFactory, ledgers: int
) -> None:
    """Readers see each entry from the moment its add was taken, without a gap."""
    disk = RealDisk(tmp_path_factory.mktemp("bookie"))
    config = replace(SMALL, memtable_bytes_max=1 << 26, index_cache_bytes=20_000)
    storage = BookieStorage.open(disk, config)
    added = [0] * ledgers
    stop = threading.Event()
    errors: list[BaseException] = []

    def repeat(call: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                call()
        except BaseException as error:
            errors.append(error)
            raise

    def read() -> None:
        for ledger_id in range(ledgers):
            last = added[ledger_id] - 1
            if last < 0:
                continue
            for first in (0, last // 2, max(0, last - 20)):
                answer = storage.read(query(ledger_id, first, last, bytes_max=3000))
                assert answer.status is Status.OK
                assert list(answer.entries) == list(range(first, answer.considered + 1))
                assert answer.entries

    threads = [
        threading.Thread(target=repeat, args=(call,), daemon=True)
        for call in (storage.commit, storage.checkpoint, read, read)
    ]
    for thread in threads:
        thread.start()
    for turn in range(150):
        for ledger_id in range(ledgers):
            first = turn * 8
            status, _ = storage.add(run_of(ledger_id, *range(first, first + 8)))
            assert status is Status.OK
            added[ledger_id] = first + 8
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not errors
    storage.commit()
    storage.close()
    storage = BookieStorage.open(disk, config)
    for ledger_id in range(ledgers):
        assert list(entries_of(storage, ledger_id)) == list(range(150 * 8))
    storage.close()


def on_a_full_disk(left_bytes: int) -> Promises:
    """What is in the journals is more than the disk has room for."""
    promises = Promises(SimDisk(0))
    promises.config = replace(SMALL, memtable_bytes_max=16 * 1024)
    promises.open()
    promises.add(1, *range(40))
    promises.fence(2)
    promises.commit()
    promises.checkpoint()
    for ledger_id in (1, 3, 4):
        promises.add(ledger_id, *range(40, 120))
        promises.commit()
    promises.fence(3)
    promises.commit()
    promises.storage.close()
    promises.disk.capacity_bytes = promises.disk.used_bytes() + left_bytes
    return promises


def test_a_start_on_a_full_disk_serves_what_is_in_the_journals() -> None:
    promises = on_a_full_disk(left_bytes=6000)
    for _ in range(3):
        promises.open()
        assert promises.storage.read_only
        promises.check()
        assert promises.add(1, 120) in {Status.READ_ONLY, Status.TOO_MANY_REQUESTS}
        promises.storage.checkpoint()
        assert promises.storage.read_only
        promises.check()
        promises.storage.close()
    promises.open()
    promises.disk.capacity_bytes = None
    promises.checkpoint()
    promises.commit()
    assert not promises.storage.troubles
    assert promises.add(1, 120) is Status.OK
    promises.commit()
    promises.storage.close()
    promises.open()
    promises.check()


@pytest.mark.parametrize("loss", Loss)
def test_power_lost_after_a_start_on_a_full_disk_loses_nothing(loss: Loss) -> None:
    promises = on_a_full_disk(left_bytes=6000)
    promises.open()
    promises.disk.crash(loss)
    promises.open()
    promises.check()
    promises.disk.capacity_bytes = None
    promises.checkpoint()
    promises.disk.crash(loss)
    promises.open()
    promises.check()
    assert not promises.storage.read_only


def test_a_start_on_a_disk_without_any_space_is_refused_and_changes_nothing() -> None:
    promises = on_a_full_disk(left_bytes=0)
    with pytest.raises(StorageFailed, match="No space left"):
        promises.open()
    promises.disk.capacity_bytes = None
    promises.open()
    promises.check()
