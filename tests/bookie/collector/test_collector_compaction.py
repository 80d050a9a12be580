"""Compaction: power is lost at every step, nothing live is lost and nothing deleted comes back."""

import errno
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from bookie.collector import compaction
from bookie.disk.port import DiskFull
from bookie.entrylog.catalog import LogCatalog, LogInfo, LogScan
from bookie.entrylog.format import DIRECTORY, HEADER_BYTES, encode_header, path_of
from bookie.index import format as index_format
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import LedgerIndex
from tests.bookie.collector.collecting import Collecting
from tests.simulation.disk import Loss, PowerLost, SimDisk


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step after each batch of entries."""
    monkeypatch.setattr(compaction, "_STEP_BYTES", 1)


def filled(disk: SimDisk | None = None, *, log_bytes_max: int = 1000) -> Collecting:
    """Return a directory with some logs of four ledgers, all of them live."""
    world = Collecting(disk or SimDisk(0), log_bytes_max=log_bytes_max)
    for turn in range(4):
        first = 10 * turn
        world.flush({n: range(first, first + 3) for n in (1, 2, 3, 4)})
    return world


def infos(world: Collecting) -> list[LogInfo]:
    """Return what is in the logs that are finished."""
    catalog = LogCatalog(world.disk)
    return [catalog.info(log_id) for log_id in catalog.log_ids()[:-1]]


def workload(world: Collecting) -> Iterator[None]:
    """Flushes, deletions, collections, and a start without a crash."""
    for turn in range(3):
        first = 10 * turn
        world.flush({n: range(first, first + 3) for n in (1, 2, 3, 4 + turn)})
        yield
    world.delete(2, 99)
    yield
    with closing(world.steps()) as steps:
        for at, _ in enumerate(steps):
            if at == 4:
                world.flush({1: [200], 3: [1, 210]})  # one entry again, beside the compaction
    yield
    world.delete(5)
    with closing(world.steps()) as steps:
        for at, _ in enumerate(steps):
            if at == 6:
                world.delete(3)
    yield
    world.directory.close()
    world.open()
    world.flush({1: [300], 9: [0]})
    world.collect()
    world.collect()


@pytest.mark.slow
def test_power_lost_at_any_operation_loses_nothing_live_and_brings_nothing_back() -> None:
    disk = SimDisk(0)
    world = Collecting(disk)
    for _ in workload(world):
        world.check()
    world.check()
    operations = disk.operations
    assert operations > 150
    tried = 0
    for loss in Loss:
        for at in range(1, operations + 1):
            disk = SimDisk(at)
            disk.crash_at = disk.operations + at
            world = Collecting.__new__(Collecting)
            try:
                world.__init__(disk)  # type: ignore[misc]
                for _ in workload(world):
                    pass
            except PowerLost:
                tried += 1
            disk.crash(loss)
            world.open()
            world.check()
            world.flush({1: [900]})
            world.collect()
            world.check()
            disk.crash(Loss.LOST)
            world.open()
            world.check()
            world.flush({1: [901]})
            world.collect()
            world.check()
            assert not [name for name in world.logs() if not name.endswith(".log")]
    print(f"{tried} crash points")
    assert tried == operations * len(Loss)


@pytest.mark.slow
def test_a_crash_in_what_finishes_an_interrupted_compaction_is_finished_as_well() -> None:
    """Twice in a row, at every pair of places around the rename, the moves and the removals."""
    for first in range(1, 40):
        for second in range(1, 25, 3):
            disk = SimDisk(first * second)
            world = filled(disk)
            world.delete(2, 3)
            disk.crash_at = disk.operations + first
            for _ in range(2):
                try:
                    world.collect()
                    disk.crash_at = None
                    break
                except PowerLost:
                    disk.crash(Loss.TORN)
                    world.open()
                    world.check()
                    disk.crash_at = disk.operations + second
            else:
                disk.crash_at = None
                disk.crash(Loss.TORN)
                world.open()
            world.collect()
            world.check()
            assert world.log_bytes() < 1.7 * world.stored_bytes()


def test_logs_with_nothing_live_go_without_being_copied_except_the_newest() -> None:
    world = filled()
    world.directory.close()
    world.open()
    logs = world.logs()
    assert len(logs) > 5
    world.delete(1, 2, 3, 4)
    world.collect(0.0)
    assert world.logs() == logs[-1:]
    assert world.collection.report.logs_removed == len(logs) - 1
    assert world.collection.report.moved_bytes == 0
    assert world.collection.report.freed_bytes > 0
    world.check()


def test_a_log_that_is_being_written_is_left_alone() -> None:
    world = filled(log_bytes_max=1 << 20)
    world.delete(1, 2, 3, 4)
    world.flush({5: [0]})
    world.collect()
    assert len(world.logs()) == 1
    world.check()


def test_logs_with_little_left_are_put_together_and_read_as_before() -> None:
    world = filled()
    world.delete(1, 3, 4)
    before = world.log_bytes()
    world.collect()
    world.check()
    report = world.collection.report
    assert report.damages == ()
    assert report.moved_bytes == world.stored_bytes()
    assert before - world.log_bytes() == pytest.approx(report.freed_bytes, abs=400)
    assert world.log_bytes() < 1.6 * world.stored_bytes()
    world.collect()
    assert world.collection.report.logs_removed == 0, "what was compacted is compact"


def test_logs_that_are_full_enough_are_left_alone() -> None:
    world = filled()
    world.delete(1, 2)
    shares = {
        info.log_id: info.ledger_map.live_bytes(lambda one: one > 2) / info.ledger_map.size_bytes
        for info in infos(world)
    }
    assert any(0 < share < 0.5 for share in shares.values())
    world.collect(0.5)
    files = world.disk.files()
    assert {n for n in shares if path_of(n) in files} == {n for n in shares if shares[n] >= 0.5}
    world.check()


def test_a_reader_in_the_middle_of_a_compaction_finds_everything_at_every_step() -> None:
    world = filled()
    world.delete(2, 3)
    for _ in world.steps():
        world.check()
    world.check()


def test_a_run_that_is_stopped_leaves_nothing_half_done() -> None:
    for stop_at in range(1, 40):
        world = filled()
        world.delete(2, 3)
        steps = world.steps()
        for _ in range(stop_at):
            if next(steps, None) is None:
                break
        steps.close()
        assert not [name for name in world.logs() if not name.endswith(".log")]
        world.check()
        world.collect()
        world.check()
        assert world.log_bytes() < 1.7 * world.stored_bytes()


def test_logs_that_were_removed_are_closed_and_do_not_come_back() -> None:
    world = filled()
    world.delete(2, 3)
    world.check()  # which opens them
    world.collect()
    logs = world.logs()
    assert [
        path for path in world.directory.reader._files._open if path not in world.disk.files()
    ] == []
    world.disk.crash(Loss.LOST)
    assert world.logs() == logs


def test_ledgers_that_are_deleted_in_the_middle_of_a_compaction_are_no_damage() -> None:
    for at in range(1, 40):
        world = filled()
        world.delete(2)
        for step, _ in enumerate(world.steps(), 1):
            if step == at:
                world.delete(1, 4)
        assert world.collection.report.damages == ()
        world.check()
        world.collect()
        world.check()
        assert world.log_bytes() < 2 * world.stored_bytes()


# Damage.


def test_a_new_log_that_cannot_be_read_back_takes_no_log_with_it() -> None:
    """What was copied is read again before anything is removed."""
    world = filled()
    world.delete(2, 3)
    logs = set(world.logs())
    for _ in world.steps():
        new = set(world.logs()) - logs
        if any(name.endswith(".log") for name in new):
            damage(world, int(max(new)[:8], 16), HEADER_BYTES + 60)
            logs |= new
            break
    world.directory.close()
    world.open()
    world.check()
    before = world.logs()
    world.collect(0.0)
    assert len(world.collection.report.damages) == 1
    assert world.logs() == before
    world.check()


def damage(world: Collecting, log_id: int, offset: int) -> None:
    content = world.disk.content(path_of(log_id))
    world.disk.damage(path_of(log_id), offset, bytes([content[offset] ^ 1]))


def told(world: Collecting) -> list[int]:
    return [error.offset for error in world.collection.report.damages]


def lost_entries(world: Collecting) -> dict[int, list[int]]:
    """Check that what was stored is there or known to be damaged; return what is damaged."""
    lost: dict[int, list[int]] = {}
    for ledger_id, frames in sorted(world.stored.items()):
        for entry_id in frames:
            header = world.headers[ledger_id]
            found = world.directory.reader.find(header, entry_id, entry_id, 1)
            if found.damage is not None:
                lost.setdefault(ledger_id, []).append(entry_id)
            else:
                assert [bytes(one.view()) for one in found.found.pieces] == [frames[entry_id]]
    return lost


def test_a_damaged_entry_gets_a_damage_marker_and_its_log_goes_with_all_that_is_whole_moved() -> (
    None
):
    """#2264, #3901, #4544: it stalls nobody, and it is never a "no such entry" (rule 58)."""
    world = filled()
    world.delete(2, 3)
    hurt = next(info for info in infos(world) if 1 in info.ledger_map and 2 in info.ledger_map)
    damage(world, hurt.log_id, HEADER_BYTES + 20)
    world.collect()
    assert told(world) == [HEADER_BYTES]
    assert path_of(hurt.log_id) not in world.disk.files()
    world.open()
    assert lost_entries(world) == {1: [0]}
    found = world.directory.reader.find(world.headers[1], 0, 9, 1 << 20)
    assert "entry 0 of ledger 1 is known to be damaged" in str(found.damage)


def test_a_damage_marker_is_moved_on_by_compactions_until_the_entry_is_there_again() -> None:
    world = filled()
    world.delete(2)
    damage(world, 1, HEADER_BYTES + 20)
    world.collect(0.99)
    ((first_log, _),) = in_logs(world)[~1]
    world.delete(3)
    world.flush({5: range(8)})
    world.collect(0.99)
    ((second_log, _),) = in_logs(world)[~1]
    assert second_log != first_log
    assert lost_entries(world) == {1: [0]}
    world.flush({1: [0]})
    world.delete(4)
    world.flush({7: [0]})
    world.collect(0.99)
    assert ~1 not in in_logs(world)
    world.check()


def in_logs(world: Collecting) -> dict[int, list[tuple[int, int]]]:
    """Return the places of all frames by the ledger id that they name."""
    found: dict[int, list[tuple[int, int]]] = {}
    for log_id in LogCatalog(world.disk).log_ids():
        for batch in LogScan(world.disk, log_id):
            found.setdefault(batch.ledger_id, []).append((log_id, batch.offset))
    return found


@pytest.mark.slow
def test_power_lost_while_a_damaged_log_is_emptied_loses_nothing_else() -> None:
    for loss in Loss:
        for crash_at in range(1, 40):
            world = filled(SimDisk(crash_at))
            world.delete(2)
            damage(world, 1, HEADER_BYTES + 20)
            world.disk.crash_at = world.disk.operations + crash_at
            with suppress(PowerLost):
                world.collect(0.99)
            world.disk.crash(loss)
            world.open()
            assert lost_entries(world) == {1: [0]}
            world.collect(0.99)
            assert lost_entries(world) == {1: [0]}
            assert path_of(1) not in world.disk.files()


def test_what_cannot_be_read_is_not_given_up() -> None:
    world = filled()
    world.delete(2)
    before = path_of(1)
    damage(world, 1, HEADER_BYTES + 20)
    world.disk.go_bad("read", before)
    world.collect(0.99)
    assert before in world.disk.files()
    assert world.collection.report.damages
    world.disk.heal_bad()
    assert lost_entries(world) == {1: [0]}


def test_a_log_of_which_most_reads_as_damaged_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then it is rather the reading that is to be doubted."""
    monkeypatch.setattr(compaction, "_MARKERS_MIN", 1)
    world = filled()
    world.delete(2)
    size_bytes = len(world.disk.content(path_of(1)))
    world.disk.damage(path_of(1), HEADER_BYTES, bytes(size_bytes - 300 - HEADER_BYTES))
    world.collect(0.99)
    assert path_of(1) in world.disk.files()
    assert "most of what is needed is damaged" in str(world.collection.report.damages)


def test_a_damaged_log_in_which_nothing_is_needed_behind_the_damage_is_compacted() -> None:
    world = filled()
    hurt = next(i for i in infos(world) if [*LogScan(world.disk, i.log_id)][-1].ledger_id == 4)
    world.delete(4)
    damage(world, hurt.log_id, hurt.ledger_map.frames_end - 1)
    world.collect()
    assert world.collection.report.damages == ()
    assert path_of(hurt.log_id) not in world.disk.files()
    world.check()


@pytest.mark.parametrize("seals", [True, False])
def test_a_log_that_a_crash_tore_is_collected_once_the_index_shows_that_nothing_is_missing(
    seals: bool,
) -> None:
    world = filled(log_bytes_max=1 << 20)
    world.directory.logs.close(finish=False)
    end = len(world.disk.content(path_of(1)))
    world.disk.damage(path_of(1), end, b"torn" * 20)
    world.open()
    world.flush({1: [99]})
    if not seals:
        world.disk.capacity_bytes = world.disk.used_bytes()
    world.collect(0.0)
    info = LogCatalog(world.disk).info(1)
    assert info.is_sealed == seals
    world.disk.capacity_bytes = None
    world.check()
    world.delete(2, 3)
    world.collect()
    assert path_of(1) not in world.disk.files()
    world.check()


@pytest.mark.parametrize("share", [0.0, 0.99])
def test_a_log_without_map_that_is_damaged_is_kept_until_it_is_worth_to_be_emptied(
    share: float,
) -> None:
    """Whatever its ledgers are: a scan that ends early proves nothing about the rest."""
    world = filled(log_bytes_max=1 << 20)
    world.directory.logs.close(finish=False)
    damage(world, 1, HEADER_BYTES + 3)
    world.open()
    world.flush({9: [0]})
    world.delete(2)
    world.collect(share)
    assert (path_of(1) in world.disk.files()) == (share == 0.0)
    assert told(world)[0] == HEADER_BYTES
    assert lost_entries(world) == {1: [0]}
    world.delete(1, 3, 4)
    world.collect(0.0)
    assert path_of(1) not in world.disk.files(), "now nobody needs it"
    world.check()


def test_a_log_of_another_version_or_id_is_never_touched() -> None:
    world = filled()
    world.delete(1, 2, 3, 4)
    world.disk.damage(path_of(1), 0, encode_header(77))
    world.collect()
    assert path_of(1) in world.disk.files()
    assert path_of(2) not in world.disk.files()
    assert "another log" in str(world.collection.report.damages[0])


def test_a_damaged_index_keeps_the_logs_that_it_may_name() -> None:
    world = filled()
    world.delete(2, 3)
    path = index_format.path_of(1)
    world.disk.damage(path, index_format.PAGE_BYTES + 30, b"\xff")
    world.open()
    holding = [info.log_id for info in infos(world) if 1 in info.ledger_map]
    world.collect()
    files = world.disk.files()
    assert all(path_of(log_id) in files for log_id in holding)
    assert world.collection.report.damages
    del world.stored[1]
    world.check()


def test_entries_that_only_look_live_are_not_copied() -> None:
    """Written twice, as after a crash: only the copy that the index names is live."""
    world = filled()
    world.flush({1: range(3), 3: range(3)})
    world.delete(2)
    world.collect()
    world.check()
    assert path_of(1) not in world.disk.files()
    for ledger_id in (1, 3):
        copies = [
            entry
            for log_id in LogCatalog(world.disk).log_ids()
            for batch in LogScan(world.disk, log_id)
            for entry in batch.run.entries
            if batch.ledger_id == ledger_id and entry < 3
        ]
        assert copies == [0, 1, 2]


def test_a_torn_log_is_kept_while_an_index_that_may_need_it_cannot_be_read() -> None:
    world = filled(log_bytes_max=1 << 20)
    world.directory.logs.close(finish=False)
    damage(world, 1, HEADER_BYTES + 3)
    world.open()
    world.flush({9: [0]})
    world.delete(1, 2, 4)
    path = index_format.path_of(3)
    world.disk.damage(path, index_format.PAGE_BYTES + 30, b"\xff")
    world.collect()
    assert path_of(1) in world.disk.files()
    assert world.collection.report.damages


def test_a_ledger_that_is_deleted_while_it_is_looked_up_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = filled()
    world.delete(2)
    honest = LedgerIndex.newest

    def newest(index: LedgerIndex, ledger_id: int) -> LedgerHeader:
        if ledger_id == 1 and 1 in world.headers:
            world.delete(1)
        return honest(index, ledger_id)

    monkeypatch.setattr(LedgerIndex, "newest", newest)
    world.collect()
    assert 1 in world.deleted
    assert world.collection.report.damages == ()
    world.check()


# A full disk, a broken disk.


def test_a_disk_too_full_to_copy_suspends_compaction_but_not_removal() -> None:
    world = filled()
    world.delete(2, 3, 4)
    world.limited(reserve_bytes=9000)
    world.disk.capacity_bytes = world.disk.used_bytes() + 8000
    logs = len(world.logs())
    world.collect()
    assert world.collection.report.suspended
    assert world.collection.report.moved_bytes == 0
    assert world.collection.report.logs_removed > 0
    assert len(world.logs()) < logs
    world.disk.capacity_bytes = None
    world.collect()
    assert not world.collection.report.suspended
    assert world.collection.report.moved_bytes > 0
    world.check()


def test_a_disk_that_gets_full_while_copying_loses_nothing() -> None:
    for room in range(0, 6000, 250):
        world = filled()
        world.delete(2, 3)
        world.disk.capacity_bytes = world.disk.used_bytes() + room
        steps = world.steps()
        try:
            for _ in steps:
                pass
        except DiskFull:
            world.disk.capacity_bytes = None
            assert world.directory.failure is None
            assert not [name for name in world.logs() if not name.endswith(".log")]
            world.check()
        world.disk.capacity_bytes = None
        world.collect()
        world.check()
        world.disk.crash(Loss.LOST)
        world.open()
        world.check()


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory", "remove"])
def test_an_error_of_the_disk_is_the_end_of_the_directory_and_loses_nothing(operation: str) -> None:
    for loss in Loss:
        world = filled()
        world.delete(2, 3)
        world.disk.fail(operation, "")
        with pytest.raises(OSError, match="Input/output"):
            world.collect()
        assert world.directory.failure is not None
        world.check()
        with pytest.raises(OSError, match="Input/output"):
            world.collect()
        world.disk.heal()
        world.disk.crash(loss)
        world.open()
        world.check()
        world.collect()
        world.check()


def test_a_log_that_cannot_be_opened_ends_the_run_and_not_the_directory() -> None:
    """As for want of file descriptors: nothing that was written is in doubt."""
    for opened in range(1, 30):
        world = filled()
        world.delete(2, 3)
        steps = world.steps()
        for _ in range(opened):
            next(steps, None)
        world.disk.fail("open", DIRECTORY, errno.EMFILE)
        with suppress(OSError):
            for _ in steps:
                pass
        world.disk.heal()
        assert world.directory.failure is None
        world.check()
        world.collect()
        world.check()
        assert world.log_bytes() < 1.7 * world.stored_bytes()


def test_what_an_index_that_was_lost_named_stays_until_the_ledger_is_deleted() -> None:
    world = filled()
    logs = {one.log_id: 2 in one.ledger_map for one in infos(world)}
    world.directory.close()
    world.disk.lose(index_format.path_of(2))
    world.may_be_lost = frozenset({2, 3})
    world.open()
    del world.stored[2]
    world.delete(1, 4)
    world.collect()
    assert [log for log in logs if logs[log]] == [log for log in logs if is_there(world, log)]
    world.check()
    world.flush({2: range(100, 103)})  # as a recovery does: it has an index again, of the tail
    world.collect()
    assert [log for log in logs if logs[log]] == [log for log in logs if is_there(world, log)]
    world.check()
    world.delete(2)
    world.collect()
    assert not any(is_there(world, log) for log in logs)
    world.check()


def is_there(world: Collecting, log_id: int) -> bool:
    return log_id in LogCatalog(world.disk).log_ids()
