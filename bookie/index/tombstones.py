"""The deleted ledgers of one ledger directory: none of them ever comes back (rules 70, 73).

Ids are never used again, so a ledger that was deleted stays so. Without this memory a writer
that is still alive, or the journal at the next start, would re-create it.

A second file of the same kind remembers the fences of ledgers that were evicted (`FENCES_PATH`).
Those may come back, by repair, and then take no writer's add: they are CLOSED, and a
writer that was deposed long ago may have slept since.

Each writing of a file is an *edition*: a number and the checksum of what it says. The roll
(`bookie.loss.census`) has the edition that is durable, so that a start misses a file that is gone,
is older or another one. A file also says which edition the roll had when it was written: a crash
between both leaves a file that is newer, and known.

Kept as ranges of ids without a gap. There are at most `RANGES_MAX`; beyond it the lowest
ids are forgotten. That does no harm to what anybody was promised: a ledger that was
deleted long ago could be re-created here, and the next collection would delete it again. Of
fences: it takes writers that slept while so many ledgers went, at an ack quorum of such bookies.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import le, lt
from struct import Struct
from sys import byteorder
from typing import Final, Self

from google_crc32c import value as crc32c

from bookie.disk.port import Disk
from bookie.errors import IndexDamaged
from bookie.index.format import DIRECTORY

VERSION: Final = 2
_VERSION_1: Final = 1
"""Had no editions."""
PATH: Final = f"{DIRECTORY}/tombstones"
FENCES_PATH: Final = f"{DIRECTORY}/fences"
TEMPORARY_SUFFIX: Final = ".tmp"
RANGES_MAX: Final = 1 << 18
"""4 MiB on disk and in memory."""

_MAGIC: Final = b"DLOGTOMB"
_HEADER: Final = Struct("<8sIII")  # magic, version, ranges, CRC32C of the ranges
_EDITIONS: Final = Struct("<QQI")  # number, number that was counted, its checksum
_CRC: Final = Struct("<I")
_RANGE_BYTES: Final = 16

assert byteorder == "little", "columns are written as they are in memory"

_Ranges = tuple["array[int]", "array[int]"]
"""First and last id of each range, ascending."""


@dataclass(frozen=True, slots=True)
class Edition:
    """Which writing of a file; that without a number is no file, or one of version 1."""

    number: int = 0
    crc: int = 0


NO_EDITION: Final = Edition()


class Tombstones:
    """See the module's docstring. Asked from any thread; added to by one at a time."""

    def __init__(
        self, disk: Disk, ranges: _Ranges, *, path: str = PATH, counted: Edition = NO_EDITION
    ) -> None:
        self._disk = disk
        self._ranges = ranges
        self._path = path
        self.edition = counted
        """What the file is, durably."""
        self._before = counted
        """What was counted when it was written."""
        self._counted = counted

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
        ranges, edition, before = _decode(data, disk.describe(path))
        found = cls(disk, ranges, path=path, counted=edition)
        found._before = before
        return found

    @classmethod
    def none(cls, disk: Disk, *, path: str = PATH, counted: Edition = NO_EDITION) -> Self:
        """Return it without any ledger, whatever the file says; it is not written. *counted*: the
        edition that the roll has, which the next one follows."""
        return cls(disk, (array("q"), array("q")), path=path, counted=counted)

    def difference(self, counted: Edition) -> str:
        """Return why this is not the edition that was *counted*, nor the one behind it; "" if it
        is one of them."""
        path = self._disk.describe(self._path)
        if counted in (self.edition, self._before):
            return ""
        if not self.edition.number:
            return f"{path} is gone"
        return f"{path} is an older one, or another bookie's"

    def count(self, counted: Edition) -> None:
        """Take note that the roll has this edition, durably."""
        self._counted = counted

    def __contains__(self, ledger_id: int) -> bool:
        firsts, lasts = self._ranges
        at = bisect_right(firsts, ledger_id) - 1
        return at >= 0 and ledger_id <= lasts[at]

    def __len__(self) -> int:
        """Return how many ids are in it."""
        firsts, lasts = self._ranges
        return sum(lasts) - sum(firsts) + len(firsts)

    @property
    def highest(self) -> int:
        """Return the highest id that is in it, -1 if there is none."""
        _, lasts = self._ranges
        return lasts[-1] if lasts else -1

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
        number = max(self.edition.number, self._counted.number) + 1
        data, edition = _encode(ranges, number, self._counted)
        file = self._disk.create(temporary)
        try:
            file.write([data], 0)
            file.sync()
        except OSError:
            file.close()
            with suppress(OSError):
                self._disk.remove(temporary)
            raise
        file.close()
        self._disk.rename(temporary, self._path)
        self._disk.sync_directory(DIRECTORY)
        self.edition, self._before = edition, self._counted


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


def _encode(ranges: _Ranges, number: int, counted: Edition) -> tuple[bytes, Edition]:
    firsts, lasts = ranges
    body = firsts.tobytes() + lasts.tobytes()
    header = _HEADER.pack(_MAGIC, VERSION, len(firsts), crc32c(body))
    header += _EDITIONS.pack(number, counted.number, counted.crc)
    crc = crc32c(header)
    return header + _CRC.pack(crc) + body, Edition(number, crc)


def _decode(data: bytes, path: str) -> tuple[_Ranges, Edition, Edition]:
    """Return what a file says, which edition it is, and which was counted before it."""
    if len(data) < _HEADER.size:
        raise IndexDamaged(path, 0, "its header is not whole")
    magic, version, count, crc = _HEADER.unpack_from(data)
    header_bytes = _HEADER.size + (_EDITIONS.size if version == VERSION else 0)
    header, body = data[:header_bytes], data[header_bytes + _CRC.size :]
    header_crc = crc32c(header)
    if (
        len(data) < header_bytes + _CRC.size
        or _CRC.unpack_from(data, header_bytes)[0] != header_crc
    ):
        raise IndexDamaged(path, 0, "its header is not whole")
    if magic != _MAGIC or version not in (_VERSION_1, VERSION):
        raise IndexDamaged(path, 0, f"not a file of deleted ledgers of version {VERSION}")
    if len(body) != count * _RANGE_BYTES or crc32c(body) != crc:
        raise IndexDamaged(path, len(header), "the checksum of its ranges differs")
    half = count * _RANGE_BYTES // 2
    firsts, lasts = array("q", body[:half]), array("q", body[half:])
    ascend = all(map(le, firsts, lasts)) and all(map(lt, lasts, firsts[1:]))
    if not ascend or (firsts and firsts[0] < 0):
        raise IndexDamaged(path, len(header), "its ranges are no ascending ids")
    if version == _VERSION_1:
        return (firsts, lasts), NO_EDITION, NO_EDITION
    number, *counted = _EDITIONS.unpack_from(header, _HEADER.size)
    return (firsts, lasts), Edition(number, header_crc), Edition(*counted)
