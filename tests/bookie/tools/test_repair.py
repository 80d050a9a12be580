"""A damaged copy of an entry: a recovery gives it back, and until then it is never denied."""

import pytest

from bookie.collector.collection import DirectoryCollection
from bookie.disk.port import Directories
from bookie.entrylog.catalog import LogScan
from bookie.entrylog.format import owner_of
from bookie.tools.check import check
from bookie.tools.rebuild import rebuild
from bookie.tools.rebuild_plan import StoreLedgers
from ledger.requests import ReadQuery, Status
from tests.bookie.promises import COLLECTOR, KEY, Promises, entries_of, run_of
from tests.simulation.disk import Loss, SimDisk

LOG = "entrylog/00000001.log"


def with_damage(*damaged: int) -> Promises:
    """Return a bookie that has the entries 0 to 9 of ledger 1 on disk, some of them damaged, and
    ledger 2, both in one log that is not the newest."""
    promises = Promises(SimDisk(1))
    promises.open()
    promises.add(1, *range(10))
    promises.add(2, *range(10))
    promises.commit()
    promises.checkpoint()
    promises.storage.close()
    promises.open()
    promises.add(3, 0)
    promises.commit()
    promises.checkpoint()
    promises.checkpoint()
    for entry_id in damaged:
        at = promises.disk.content(LOG).index(b"1/%d/0 " % entry_id)
        promises.disk.damage(LOG, at, b"X")
    return promises


def status_of(promises: Promises, entry_id: int) -> Status:
    answer = promises.storage.read(ReadQuery(1, KEY, entry_id, entry_id))
    if answer.status is Status.OK:
        assert bytes(answer.frames) == promises.sent[1][entry_id]
    return answer.status


def compact(promises: Promises) -> list[str]:
    """Compact whatever is not all live; return what was told about it."""
    (directory,) = promises.storage.ledger_directories
    collection = DirectoryCollection(directory, COLLECTOR, promises.storage.ledger_ids)
    for _ in collection.run(0.99):
        pass
    return [str(damage) for damage in collection.report.damages]


@pytest.mark.parametrize("entries", [(5,), (4, 5, 6), (3, 4, 5, 6, 7)])
@pytest.mark.parametrize("when", ["in memory", "on disk", "after a crash", "after a kill"])
def test_a_recovery_add_replaces_a_damaged_copy(entries: tuple[int, ...], when: str) -> None:
    promises = with_damage(5)
    assert status_of(promises, 5) is Status.IO_ERROR
    assert promises.add(1, *entries, recovery=True) is Status.OK
    assert status_of(promises, 5) is Status.OK
    promises.commit()
    if when == "on disk":
        promises.checkpoint()
        promises.checkpoint()
    elif when == "after a crash":
        promises.disk.crash(Loss.LOST)
        promises.open()
    elif when == "after a kill":
        promises.disk.kill()
        promises.open()
    promises.check()
    assert not compact(promises)
    promises.check()


def test_of_several_damaged_copies_those_that_are_not_given_back_stay_damaged() -> None:
    promises = with_damage(2, 5, 8)
    assert promises.add(1, 5, recovery=True) is Status.OK
    assert promises.add(1, 2, recovery=True) is Status.OK
    storage = promises.storage
    answer = storage.read(ReadQuery(1, KEY, 0, 9))
    assert (list(answer.entries), answer.considered) == (list(range(8)), 7)
    assert storage.read(ReadQuery(1, KEY, 8, 9)).status is Status.IO_ERROR
    one_by_one = storage.read(ReadQuery(1, KEY, 5, 9, bytes_max=1))
    assert (list(one_by_one.entries), one_by_one.considered) == ([5], 5)


def test_a_writers_add_does_not_replace_a_damaged_copy() -> None:
    """Nobody can say any more that these are the bytes that were acknowledged."""
    promises = with_damage(5)
    assert promises.add(1, 5) is Status.IO_ERROR
    assert promises.add(1, 4, 5, 6) is Status.IO_ERROR
    assert status_of(promises, 5) is Status.IO_ERROR


def test_a_recovery_add_of_other_bytes_than_a_whole_copy_is_refused_beside_a_damaged_one() -> None:
    promises = with_damage(5)
    status, _ = promises.storage.add(run_of(1, 4, 5, recovery=True, salt=1))
    assert status is Status.CONFLICT


def test_an_entry_on_an_index_page_that_is_damaged_cannot_be_given_back() -> None:
    promises = with_damage()
    index = "index/01/0000000000000001.index"
    promises.disk.damage(index, 2048 + 100, b"XX")
    promises.storage.close()
    promises.open()
    assert status_of(promises, 5) is Status.IO_ERROR
    assert promises.add(1, 5, recovery=True) is Status.IO_ERROR


@pytest.mark.parametrize("repaired", ["before", "after"])
def test_a_damaged_frame_does_not_keep_its_log_for_ever(repaired: str) -> None:
    promises = with_damage(5)
    if repaired == "before":
        promises.add(1, 5, recovery=True)
        promises.commit()
        promises.checkpoint()
    promises.delete(2)
    told = compact(promises)
    assert LOG not in promises.disk.files()
    if repaired == "after":
        assert len(told) == 1
        for loss in Loss:
            assert status_of(promises, 5) is Status.IO_ERROR
            promises.disk.crash(loss)
            promises.open()
        assert promises.add(1, 5, recovery=True) is Status.OK
        promises.commit()
    promises.check()
    promises.checkpoint()
    promises.check()


def test_a_damage_marker_is_told_by_a_check_and_survives_a_rebuild_of_the_index() -> None:
    promises = with_damage(5)
    promises.delete(2)
    compact(promises)
    promises.storage.close()
    directories = Directories.single(promises.disk)
    findings = check(directories)
    (damage,) = findings.damages
    assert "entry 5 of ledger 1" in str(damage)
    for path in promises.disk.files():
        if path.endswith(".index") or path == "index/redo":
            promises.disk.remove(path)
    rebuild(directories, StoreLedgers({1: KEY, 3: KEY}, frozenset({1, 3})))
    promises.open()
    assert status_of(promises, 5) is Status.IO_ERROR
    assert status_of(promises, 6) is Status.OK
    assert promises.add(1, 5, recovery=True) is Status.OK
    promises.commit()
    promises.checkpoint()
    promises.storage.close()
    rebuild(directories, StoreLedgers({1: KEY, 3: KEY}, frozenset({1, 3})))
    promises.open()
    assert sorted(entries_of(promises.storage, 1)) == list(range(10))


def test_the_damage_marker_of_a_deleted_ledger_goes_with_it() -> None:
    promises = with_damage(5)
    promises.delete(2)
    compact(promises)
    promises.add(4, *range(10))
    promises.commit()
    promises.checkpoint()
    promises.delete(1)
    promises.storage.close()
    promises.open()
    promises.add(4, 11)
    promises.commit()
    promises.checkpoint()
    compact(promises)
    logs = [path for path in promises.disk.files() if path.endswith(".log")]
    owners = {
        owner_of(batch.ledger_id)
        for path in logs
        for batch in LogScan(promises.disk, int(path[-12:-4], 16))
    }
    assert owners == {3, 4}
