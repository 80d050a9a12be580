"""Space kept for a start: taken where there is some, given up where a start needs it."""

import errno
from collections.abc import Iterable

import pytest

from bookie.disk.port import Directories
from bookie.disk.watch import PATH, RESERVE_BYTES, Reserve
from tests.simulation.disk import Loss, SimDisk


def disks(*free_bytes: int) -> list[SimDisk]:
    return [SimDisk(0, capacity_bytes=free) for free in free_bytes]


def reserve_of(disks: Iterable[SimDisk]) -> Reserve:
    main, *ledgers = disks
    return Reserve(Directories(main, (main,), tuple(ledgers) or (main,)))


def test_each_directory_has_its_space_taken_durably() -> None:
    both = disks(10 * RESERVE_BYTES, 10 * RESERVE_BYTES)
    reserve_of(both).keep()
    for disk in both:
        disk.crash(Loss.LOST)
        assert disk.usage().free_bytes == 9 * RESERVE_BYTES
        assert disk.files() == [PATH]


def test_it_is_given_up_only_where_there_is_too_little_for_a_start() -> None:
    full, empty = disks(10 * RESERVE_BYTES, 10 * RESERVE_BYTES)
    reserve = reserve_of((full, empty))
    reserve.keep()
    full.capacity_bytes = full.used_bytes() + RESERVE_BYTES - 1
    empty.capacity_bytes = empty.used_bytes() + RESERVE_BYTES
    assert reserve.give_up() == {0}
    assert full.files() == []
    assert full.usage().free_bytes == 2 * RESERVE_BYTES - 1
    assert empty.files() == [PATH]


@pytest.mark.parametrize(
    ("free_bytes", "kept_bytes"),
    [
        (2 * RESERVE_BYTES, RESERVE_BYTES),
        (2 * RESERVE_BYTES - 1, RESERVE_BYTES // 2),
        (RESERVE_BYTES // 2, RESERVE_BYTES // 4),
        (100_000, 0),
        (0, 0),
    ],
)
def test_of_little_space_half_is_kept_for_the_start_after(free_bytes: int, kept_bytes: int) -> None:
    (disk,) = disks(free_bytes)
    reserve = reserve_of([disk])
    reserve.keep()
    assert disk.used_bytes() == kept_bytes
    reserve.give_up()
    assert disk.usage().free_bytes >= kept_bytes


def test_it_is_taken_again_once_there_is_space() -> None:
    (disk,) = disks(0)
    reserve = reserve_of([disk])
    reserve.keep()
    disk.capacity_bytes = 4 * RESERVE_BYTES
    reserve.keep()
    reserve.keep()
    assert disk.used_bytes() == RESERVE_BYTES


@pytest.mark.parametrize("operation", ["create", "sync", "sync_directory", "remove"])
def test_a_disk_that_fails_is_reported_by_what_needs_it(operation: str) -> None:
    (disk,) = disks(10 * RESERVE_BYTES)
    reserve = reserve_of([disk])
    disk.fail(operation, number=errno.EIO)
    reserve.keep()
    disk.capacity_bytes = disk.used_bytes()
    reserve.give_up()
