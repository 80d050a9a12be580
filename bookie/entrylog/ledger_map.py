"""The ledger map: how much of which ledger is in an entry log, at the end of its file.

Garbage collection asks it what would be gained, without reading the log. Columns, not objects:
a log may hold a hundred thousand ledgers.

    footer   i64 ledger ids, ascending; u64 bytes of each; u64 entries of each; u32 sources
    trailer  64 bytes at the very end of the file, by which the footer is found

A map is true of the whole log (no ledger is missing in it), or it is not there. What a crash
tore off behind `frames_end` is in no map, and a frame that a map counts may be torn: the
index never names it.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from struct import Struct
from sys import byteorder
from typing import Final

from google_crc32c import value as crc32c

from bookie.disk.port import DiskFile
from bookie.entrylog.format import HEADER_BYTES, VERSION, owner_of

TRAILER_BYTES: Final = 64
LEDGERS_MAX: Final = 1 << 20
"""Ledgers in one log; then it is full, whatever its size."""
SOURCES_MAX: Final = 1 << 16

_MAGIC: Final = b"DLOGEMAP"
_TRAILER: Final = Struct("<8sIIqqqIII8x")  # and u32 CRC32C of what is before
_CRC: Final = Struct("<I")
_LEDGER_BYTES: Final = 24
_SOURCE_BYTES: Final = 4
_MERGE_AT: Final = 4096

assert byteorder == "little", "columns are written as they are in memory"


@dataclass(frozen=True, slots=True)
class LedgerMap:
    """What one log holds. Columns of one length; ledger ids ascend."""

    frames_end: int
    ledgers: "array[int]" = field(default_factory=lambda: array("q"))
    sizes_bytes: "array[int]" = field(default_factory=lambda: array("Q"))
    counts: "array[int]" = field(default_factory=lambda: array("Q"))
    """Entries of each."""
    sources: tuple[int, ...] = ()
    """The logs that compaction made this one from."""

    def __contains__(self, ledger_id: int) -> bool:
        at = bisect_left(self.ledgers, ledger_id)
        return at < len(self.ledgers) and self.ledgers[at] == ledger_id

    @property
    def size_bytes(self) -> int:
        """Bytes of all frames."""
        return sum(self.sizes_bytes)

    def live_bytes(self, is_live: Callable[[int], bool]) -> int:
        """Return the bytes of the ledgers that *is_live* says are."""
        return sum(compress(self.sizes_bytes, map(is_live, self.ledgers)))


class LedgerMapBuilder:
    """Counts what goes into a log, in little more memory than the map has on disk."""

    def __init__(self) -> None:
        self._ledgers = array("q")
        self._sizes_bytes = array("Q")
        self._counts = array("Q")
        self._merged = 0

    @property
    def is_full(self) -> bool:
        return len(self._ledgers) >= LEDGERS_MAX

    def add(self, ledger_id: int, size_bytes: int, count: int) -> None:
        """Count *count* entries of *size_bytes* together, markers among those of their ledger."""
        ledger_id = owner_of(ledger_id)
        if self._ledgers and self._ledgers[-1] == ledger_id:
            self._sizes_bytes[-1] += size_bytes
            self._counts[-1] += count
            return
        if len(self._ledgers) >= 2 * self._merged + _MERGE_AT:
            self._merge()
        self._ledgers.append(ledger_id)
        self._sizes_bytes.append(size_bytes)
        self._counts.append(count)

    def build(self, frames_end: int, sources: Sequence[int] = ()) -> LedgerMap:
        self._merge()
        columns = self._ledgers[:], self._sizes_bytes[:], self._counts[:]
        return LedgerMap(frames_end, *columns, tuple(sources))

    def _merge(self) -> None:
        """Leave one row per ledger, ascending."""
        ledgers, sizes_bytes, counts = array("q"), array("Q"), array("Q")
        for at in sorted(range(len(self._ledgers)), key=self._ledgers.__getitem__):
            if ledgers and ledgers[-1] == self._ledgers[at]:
                sizes_bytes[-1] += self._sizes_bytes[at]
                counts[-1] += self._counts[at]
            else:
                ledgers.append(self._ledgers[at])
                sizes_bytes.append(self._sizes_bytes[at])
                counts.append(self._counts[at])
        self._ledgers, self._sizes_bytes, self._counts = ledgers, sizes_bytes, counts
        self._merged = len(ledgers)


def encode_map(log_id: int, ledger_map: LedgerMap, offset: int) -> bytes:
    """Return footer and trailer, to be written at *offset*, at the end of the file."""
    assert len(ledger_map.sources) <= SOURCES_MAX
    assert HEADER_BYTES <= ledger_map.frames_end <= offset
    footer = b"".join(
        (
            ledger_map.ledgers.tobytes(),
            ledger_map.sizes_bytes.tobytes(),
            ledger_map.counts.tobytes(),
            array("I", ledger_map.sources).tobytes(),
        )
    )
    trailer = _TRAILER.pack(
        _MAGIC, VERSION, log_id, ledger_map.frames_end, offset, len(footer),
        len(ledger_map.ledgers), len(ledger_map.sources), crc32c(footer),
    )  # fmt: skip
    return b"".join((footer, trailer, _CRC.pack(crc32c(trailer))))


def read_map(file: DiskFile, log_id: int) -> LedgerMap | None:
    """Return the map at the end of *file*; None if there is no whole one of this log."""
    size_bytes = file.size()
    end = size_bytes - TRAILER_BYTES
    if end < HEADER_BYTES:
        return None
    data = file.read(TRAILER_BYTES, end)
    body = data[: _TRAILER.size]
    if len(data) != TRAILER_BYTES or _CRC.unpack_from(data, len(body))[0] != crc32c(body):
        return None
    magic, version, log, frames_end, offset, footer_bytes, ledgers, sources, crc = _TRAILER.unpack(
        body
    )
    if (magic, version, log) != (_MAGIC, VERSION, log_id):
        return None
    expected_bytes = ledgers * _LEDGER_BYTES + sources * _SOURCE_BYTES
    if footer_bytes != expected_bytes or offset + footer_bytes != end:
        return None
    if not HEADER_BYTES <= frames_end <= offset:
        return None
    footer = file.read(footer_bytes, offset)
    if len(footer) != footer_bytes or crc32c(footer) != crc:
        return None
    step = 8 * ledgers
    return LedgerMap(
        frames_end,
        array("q", footer[:step]),
        array("Q", footer[step : 2 * step]),
        array("Q", footer[2 * step : 3 * step]),
        tuple(array("I", footer[3 * step :])),
    )
