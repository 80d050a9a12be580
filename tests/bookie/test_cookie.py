"""A cookie is read as it was written, or not at all."""

import errno

import pytest

from bookie.cookie import PATH, Cookie, read_cookie, write_cookie
from bookie.disk import DiskFull
from bookie.errors import CookieDamaged, StorageFailed
from tests.simulation.disk import Loss, PowerLost, SimDisk

COOKIE = Cookie("b:1", "instance", "0123", "host:1", "main, journal 0 of 1", "main, journal 0 of 1")
OTHER = Cookie("b:1", "instance", "0123", "host:2", "main, journal 0 of 1", "main, journal 0 of 1")

VERSION_1 = bytes.fromhex(
    "444c4f47434f4f4b4d7e233108011203623a311a08696e7374616e636522146d61696e2c206a6f75726e616c"
    "2030206f6620312a04303132333206686f73743a313a146d61696e2c206a6f75726e616c2030206f662031"
)
"""`COOKIE` as the first version wrote it; every later one must read it."""


def test_a_cookie_is_read_as_it_was_written() -> None:
    disk = SimDisk(0)
    assert read_cookie(disk) is None
    write_cookie(disk, COOKIE)
    assert read_cookie(disk) == COOKIE
    write_cookie(disk, OTHER)
    disk.crash(Loss.LOST)
    assert read_cookie(disk) == OTHER
    assert disk.list("") == [PATH]


def test_a_cookie_of_the_first_version_is_read() -> None:
    disk = SimDisk(0)
    disk.create(PATH).write([VERSION_1], 0)
    assert read_cookie(disk) == COOKIE
    write_cookie(disk, COOKIE)
    assert disk.content(PATH) == VERSION_1, "the format changed: raise its version"


def test_the_place_and_the_address_are_no_part_of_what_a_cookie_says_of_the_whole() -> None:
    assert COOKIE.is_same(OTHER)
    assert COOKIE.is_same(COOKIE.at("ledger 3 of 4"))
    assert not COOKIE.is_same(Cookie("b:1", "instance", "0123", "host:1", "main"))


def test_every_damaged_byte_of_a_cookie_is_told() -> None:
    disk = SimDisk(0)
    write_cookie(disk, COOKIE)
    content = disk.content(PATH)
    for at in range(len(content)):
        changes = [bytes([content[at] ^ 1]), bytes([content[at] ^ 0xFF])]
        zeros = bytes(len(content) - at)
        if content[at:] != zeros:
            changes.append(zeros)
        if content[at]:
            changes.append(b"\0")
        damaged = [disk.copy() for _ in changes]
        for copy, change in zip(damaged, changes, strict=True):
            copy.damage(PATH, at, change)
        damaged.append(disk.copy())
        damaged[-1].cut(PATH, at)
        for copy in damaged:
            with pytest.raises(CookieDamaged, match="cookie is damaged"):
                read_cookie(copy)
    disk.damage(PATH, len(content), b"\0")
    with pytest.raises(CookieDamaged):
        read_cookie(disk)


def test_a_cookie_that_is_replaced_is_the_old_or_the_new_one_after_a_crash() -> None:
    operation, crashed = 0, True
    while crashed:
        operation += 1
        crashed = False
        for loss in Loss:
            disk = SimDisk(operation)
            write_cookie(disk, COOKIE)
            disk.crash_at = disk.operations + operation
            try:
                write_cookie(disk, OTHER)
            except PowerLost:
                crashed = True
            disk.crash(loss)
            assert read_cookie(disk) in ((COOKIE, OTHER) if crashed else (OTHER,))
    assert operation > 4


@pytest.mark.parametrize("operation", ["create", "write", "rename"])
def test_a_cookie_stays_if_there_is_no_space_for_another(operation: str) -> None:
    disk = SimDisk(0)
    write_cookie(disk, COOKIE)
    disk.fail(operation, "", errno.ENOSPC)
    with pytest.raises(DiskFull):
        write_cookie(disk, OTHER)
    assert read_cookie(disk) == COOKIE
    assert disk.list("") == [PATH]


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_disk_that_cannot_be_read_is_not_one_without_a_cookie(operation: str) -> None:
    disk = SimDisk(0)
    write_cookie(disk, COOKIE)
    disk.fail(operation, PATH, errno.EIO)
    with pytest.raises(StorageFailed, match=r"reading .*cookie failed: .*Input/output error"):
        read_cookie(disk)
