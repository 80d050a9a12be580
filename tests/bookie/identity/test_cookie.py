"""A cookie is read as it was written, or not at all."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from bookie.disk.port import DiskFull, RealDisk
from bookie.errors import CookieDamaged, StorageFailed
from bookie.identity.cookie import PATH, Cookie, read_cookie, read_cookie_file, write_cookie
from tests.simulation.disk import Loss, PowerLost, SimDisk

COOKIE = Cookie("b:1", "instance", "0123", "host:1", "main, journal 0 of 1", "main, journal 0 of 1")
OTHER = Cookie("b:1", "instance", "0123", "host:2", "main, journal 0 of 1", "main, journal 0 of 1")

FULL = replace(
    COOKIE,
    life=3, token="t3", clean=True, tries=("t4", "t5"), file="1f/2a", system="boot/10",
    doubt="why", checkpoint=9, census=b"census", limbo="limbo", retired_ms=17, retired_why="gone",
)  # fmt: skip
VERSION_2 = bytes.fromhex(
    "08021203623a311a08696e7374616e636522146d61696e2c206a6f75726e616c2030206f6620312a04303132"
    "333206686f73743a313a146d61696e2c206a6f75726e616c2030206f66203140034a02743350015a0274345a"
    "027435620531662f32616a07626f6f742f31307203776879780982010663656e7375738a01056c696d626f90"
    "01119a0104676f6e65"
)
"""`FULL` as the second version writes it, without magic and checksum."""


def test_a_cookie_is_read_as_it_was_written() -> None:
    disk = SimDisk(0)
    assert read_cookie(disk) is None
    write_cookie(disk, COOKIE)
    assert read_cookie(disk) == COOKIE
    write_cookie(disk, OTHER)
    disk.crash(Loss.LOST)
    assert read_cookie(disk) == OTHER
    assert disk.list("") == [PATH]


def test_the_format_is_what_it_was() -> None:
    assert FULL.encode() == VERSION_2, "the format changed: raise its version"
    assert Cookie.decode(VERSION_2) == FULL


def test_a_cookie_says_which_file_it_is_in_and_a_copy_of_it_says_so_too() -> None:
    disk = SimDisk(0)
    write_cookie(disk, COOKIE)
    found = read_cookie_file(disk)
    assert found is not None
    assert found[0].file == found[1]
    disk.crash(Loss.LOST)
    assert read_cookie_file(disk.copy()) == found, "a snapshot of the device"
    copied = read_cookie_file(disk.copy(by_files=True))
    assert copied is not None
    assert copied[0].file == found[1] != copied[1]


def test_the_place_and_the_address_are_no_part_of_what_a_cookie_says_of_the_whole() -> None:
    assert COOKIE.is_same(OTHER)
    assert COOKIE.is_same(replace(COOKIE, place="ledger 3 of 4", life=7, token="t"))
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


def test_what_is_no_cookie_is_told_although_its_checksum_is_right() -> None:
    disk, body = SimDisk(0), b"\x08\x63"
    disk.create(PATH).write([b"DLOGCOOK", crc32c(body).to_bytes(4, "little"), body], 0)
    with pytest.raises(CookieDamaged, match="not a cookie of version 2"):
        read_cookie(disk)


def test_no_file_of_a_cookie_stays_open(tmp_path: Path) -> None:
    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    disk, before = RealDisk(tmp_path), files()
    write_cookie(disk, COOKIE)
    assert read_cookie(disk) == COOKIE
    assert files() == before


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_disk_that_cannot_be_read_is_not_one_without_a_cookie(operation: str) -> None:
    disk = SimDisk(0)
    write_cookie(disk, COOKIE)
    disk.fail(operation, PATH, errno.EIO)
    with pytest.raises(StorageFailed, match=r"reading .*cookie failed: .*Input/output error"):
        read_cookie(disk)
