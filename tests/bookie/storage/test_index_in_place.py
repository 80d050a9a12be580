"""Checkpoints make the redo file durable, and put the index in place later, some at a time."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import pytest

from bookie.errors import IndexDamaged
from bookie.index.format import path_of
from bookie.index.redo import PATH
from bookie.storage.config import StorageConfig
from bookie.tools.check import check
from ledger.requests import Status
from tests.bookie.promises import KEY, SMALL, Promises
from tests.simulation.disk import Loss, PowerLost, SimDisk

LATE = replace(SMALL, index_in_place_ledgers=3, index_cache_bytes=1 << 20)


def added(disk: SimDisk, ledgers: Iterable[int], config: StorageConfig = LATE) -> Promises:
    promises = Promises(disk, config)
    promises.open()
    for ledger_id in ledgers:
        assert promises.add(ledger_id, 0, 1) is Status.OK
    promises.commit()
    return promises


def in_place(disk: SimDisk) -> int:
    return sum(path.endswith(".index") for path in disk.files())


def test_a_checkpoint_puts_a_few_ledgers_in_place_and_those_after_it_go_on() -> None:
    disk = SimDisk(0)
    promises = added(disk, range(10))
    for there in (3, 6, 9, 10, 10):
        promises.checkpoint()  # after the first there is nothing else to do
        assert in_place(disk) == there
        promises.check()
    assert len(disk.content(PATH)) < 100
    disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def test_what_waits_is_served_by_the_next_start_and_put_in_place_by_it() -> None:
    disk = SimDisk(0)
    promises = added(disk, range(10))
    promises.fence(4)
    promises.commit()
    promises.checkpoint()
    promises.storage.close()
    assert check(promises.directories).damages == []
    promises.open()
    assert in_place(disk) == 3
    promises.check()
    promises.add(8, 200)
    promises.commit()
    for _ in range(4):
        promises.checkpoint()
    assert in_place(disk) == 10
    promises.check()


def test_a_redo_file_with_too_much_in_it_is_put_in_place_at_once() -> None:
    for config in (
        replace(LATE, index_redo_bytes_max=1000),
        replace(LATE, index_redo_blocks_max=15),
    ):
        disk = SimDisk(0)
        promises = added(disk, range(10), config)
        promises.checkpoint()
        assert in_place(disk) == 10


def test_a_bookie_that_stops_leaves_it_to_the_next_start_also_then() -> None:
    disk = SimDisk(0)
    promises = added(disk, range(10), replace(LATE, index_redo_bytes_max=1000))
    promises.storage.hurry()
    promises.checkpoint()
    assert in_place(disk) == 3
    disk.crash(Loss.LOST)
    promises.open()
    promises.check()
    promises.checkpoint()
    assert in_place(disk) == 10, "there is time for it again"


@pytest.mark.parametrize("how", ["lost", "cut", "older"])
def test_a_start_without_what_only_the_redo_file_has_is_refused(how: str) -> None:
    disk = SimDisk(0)
    promises = added(disk, range(10))
    promises.checkpoint()
    older = disk.content(PATH)
    promises.add(9, 7)
    promises.commit()
    promises.checkpoint()
    promises.storage.close()
    disk.cut(PATH, 40 if how == "cut" else 0)
    if how == "older":
        disk.damage(PATH, 0, older)
    if how == "lost":
        disk.lose(PATH)
    with pytest.raises(IndexDamaged, match="which index files lack"):
        promises.open()
    [damage] = check(promises.directories).damages[:1]
    assert damage.path.endswith(PATH)


def test_a_redo_file_that_is_lost_when_all_is_in_place_is_not_missed() -> None:
    disk = SimDisk(0)
    promises = added(disk, range(3))
    promises.checkpoint()
    promises.storage.close()
    disk.lose(PATH)
    promises.open()
    promises.check()
    promises.add(1, 5)
    promises.commit()
    promises.checkpoint()
    disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def test_ledgers_that_wait_are_deleted_and_evicted_for_good() -> None:
    for loss in Loss:
        disk = SimDisk(0)
        promises = added(disk, range(10))
        promises.checkpoint()
        assert path_of(8) not in disk.files()
        assert promises.delete(1, 8)
        assert promises.evict(2, 9)
        promises.check()
        disk.crash(loss)
        promises.open()
        promises.check()
        assert promises.storage.ledger_ids() == [0, 3, 4, 5, 6, 7]
        assert promises.add(9, 0, 1, recovery=True) is Status.OK
        promises.commit()
        for _ in range(4):
            promises.checkpoint()
        assert in_place(disk) == 7
        promises.check()


def test_an_eviction_that_a_crash_cuts_short_leaves_all_of_a_ledger_or_nothing() -> None:
    """Part of it in its file, the newest in the redo file."""
    for loss in Loss:
        for step in range(1, 40):
            disk = SimDisk(step)
            promises = added(disk, range(3))
            promises.checkpoint()
            for ledger_id in (5, 6, 7, 2):
                promises.add(ledger_id, 10, 300)
            promises.commit()
            promises.checkpoint()
            disk.crash_at = disk.operations + step
            with suppress(PowerLost):
                promises.evict(2, 7)
            disk.crash(loss)
            disk.heal()
            promises.open()
            promises.check()


def test_programs_that_do_not_look_into_the_redo_file_refuse_the_mark() -> None:
    disk = SimDisk(0)
    promises = added(disk, range(10))
    promises.checkpoint()
    assert disk.content("journal/mark")[8] == 2
    assert promises.storage.lac(9, KEY).status is Status.OK
