"""The deleted ledgers of one ledger directory: none of them ever comes back (rules 70, 73).

Ids are never used again, so a ledger that was deleted stays so. Without this memory a writer
that is still alive, or the journal at the next start, would re-create it.

A second file of the same kind remembers the fences of ledgers that were evicted (`FENCES_PATH`).
Those may come back, by repair, and then take no writer's add: they are CLOSED, and a
writer that was deposed long ago may have slept since.

Kept as ranges of ids without a gap. There are at most `RANGES_MAX`; beyond it the lowest
ids are forgotten. That does no harm to what anybody was promised: a ledger that was
deleted long ago could be re-created here, and the next collection would delete it again. Of
fences: it takes writers that slept while so many ledgers went, at an ack quorum of such bookies.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from operator import le, lt
from struct import Struct
from sys import byteorder
from typing import Final, Self

from google_crc32c import value as crc32c

from bookie.disk.port import Disk
from bookie.errors import IndexDamaged
from bookie.index.format import DIRECTORY

VERSION: Final = 1
PATH: Final = f"{DIRECTORY}/tombstones"
FENCES_PATH: Final = f"{DIRECTORY}/fences"
TEMPORARY_SUFFIX: Final = ".tmp"
RANGES_MAX: Final = 1 << 18
"""4 MiB on disk and in memory."""

_MAGIC: Final = b"DLOGTOMB"
_HEADER: Final = Struct("<8sIII")  # magic, version, ranges, CRC32C of the ranges
_CRC: Final = Struct("<I")
_HEADER_BYTES: Final = _HEADER.size + _CRC.size
_RANGE_BYTES: Final = 16

assert byteorder == "little", "columns are written as they are in memory"

_Ranges = tuple["array[int]", "array[int]"]
"""First and last id of each range, ascending."""


class Tombstones:
    """See the module's docstring. Asked from any thread; added to by one at a time."""

    def __init__(self, disk: Disk, ranges: _Ranges, *, path: str = PATH) -> None:
        self._disk = disk
        self._ranges = ranges
        self._path = path

    @classmethod
    def load(cls, disk: Disk, *, path: str = PATH) -> Self:
        """Raises `IndexDamaged`."""
        try:
            file = disk.open(path)
        except FileNotFoundError:
            return cls.none(disk, path=path)
        try:
            data = file.read(file.size(), 0)
        finally:
            file.close()
        return cls(disk, _decode(data, disk.describe(path)), path=path)

    @classmethod
    def none(cls, disk: Disk, *, path: str = PATH) -> Self:
        """Return it without any ledger, whatever the file says; it is not written."""
        return cls(disk, (array("q"), array("q")), path=path)

    def __contains__(self, ledger_id: int) -> bool:
        firsts, lasts = self._ranges
        at = bisect_right(firsts, ledger_id) - 1
        return at >= 0 and ledger_id <= lasts[at]

    def __len__(self) -> int:
        """Return how many ids are in it."""
        firsts, lasts = self._ranges
        return sum(lasts) - sum(firsts) + len(firsts)

    def add(self, ledger_ids: Iterable[int]) -> None:
        """Remember *ledger_ids*, durably. Raises `OSError`; after `DiskFull` nothing is changed."""
        new = sorted(one for one in ledger_ids if one not in self)
        if not new:
            return
        firsts, lasts = _union(self._ranges, new)
        excess = max(0, len(firsts) - RANGES_MAX)
        ranges = firsts[excess:], lasts[excess:]
        self._write(ranges)
        self._ranges = ranges

    def write(self) -> None:
        """Let the file say, durably, what this does."""
        self._write(self._ranges)

    def _write(self, ranges: _Ranges) -> None:
        temporary = self._path + TEMPORARY_SUFFIX
        file = self._disk.create(temporary)
        try:
            file.write([_encode(ranges)], 0)
            file.sync()
        except OSError:
            file.close()
            with suppress(OSError):
                self._disk.remove(temporary)
            raise
        file.close()
        self._disk.rename(temporary, self._path)
        self._disk.sync_directory(DIRECTORY)


def _union(ranges: _Ranges, new: list[int]) -> _Ranges:
    """Return *ranges* with the ascending ids *new*, which are in none of them."""
    pairs = sorted([*zip(*ranges, strict=True), *((one, one) for one in dict.fromkeys(new))])
    firsts, lasts = array("q"), array("q")
    for first, last in pairs:
        if lasts and lasts[-1] + 1 == first:
            lasts[-1] = last
        else:
            firsts.append(first)
            lasts.append(last)
    return firsts, lasts


def _encode(ranges: _Ranges) -> bytes:
    firsts, lasts = ranges
    body = firsts.tobytes() + lasts.tobytes()
    header = _HEADER.pack(_MAGIC, VERSION, len(firsts), crc32c(body))
    return header + _CRC.pack(crc32c(header)) + body


def _decode(data: bytes, path: str) -> _Ranges:
    header, body = data[: _HEADER.size], data[_HEADER_BYTES:]
    if len(data) < _HEADER_BYTES or _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(header):
        raise IndexDamaged(path, 0, "its header is not whole")
    magic, version, count, crc = _HEADER.unpack(header)
    if magic != _MAGIC or version != VERSION:
        raise IndexDamaged(path, 0, f"not a file of deleted ledgers of version {VERSION}")
    if len(body) != count * _RANGE_BYTES or crc32c(body) != crc:
        raise IndexDamaged(path, _HEADER_BYTES, "the checksum of its ranges differs")
    half = count * _RANGE_BYTES // 2
    firsts, lasts = array("q", body[:half]), array("q", body[half:])
    ascend = all(map(le, firsts, lasts)) and all(map(lt, lasts, firsts[1:]))
    if not ascend or (firsts and firsts[0] < 0):
        raise IndexDamaged(path, _HEADER_BYTES, "its ranges are no ascending ids")
    return firsts, lasts
