"""What a bookie has, counted at each checkpoint: a start that finds less has lost something.

Two kinds of files. In each ledger directory a *roll*: the ids of all ledgers that have an index
file there. Each flush appends a batch to it after index files were written, even if none is new, so
that an older state of the directory is shorter; a start rewrites it. In the main directory the
*census*: how far each roll and each journal had come, replaced after each checkpoint and before the
marks move. So what is not in them is still in the journals.

Invariants:
    a ledger is in the roll only after its index file is durable, and before a mark moves beyond
        what is in it
    each flush has a batch in the roll of every directory that it wrote to, before a mark moves
    each batch of a roll is checksummed together with all before it, so a roll that is shorter or
        another one than the census says is found
    each batch says what of the redo file is needed beside the index files, so that is found, too
    what is found missing is remembered (`bookie.loss.limbo`) before roll and census are
        rewritten
"""

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from sys import byteorder
from typing import Final, Self

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.disk.port import Disk, DiskFull
from bookie.errors import CensusDamaged
from bookie.index.format import DIRECTORY as INDEX
from bookie.index.redo import RedoPlace
from bookie.journal.format import Mark

VERSION: Final = 1
PATH: Final = "census"
ROLL_PATH: Final = f"{INDEX}/roll"
TEMPORARY_SUFFIX: Final = ".tmp"

_MAGIC: Final = b"DLOGCENS"
_HEADER: Final = Struct("<8sIIQII")  # magic, version, limbo, number, ledger directories, journals
_PLACE: Final = Struct("<QIxxxx")  # batch, chain
_JOURNAL: Final = Struct("<qqq")  # newest file, end of its records, its size
_CRC: Final = Struct("<I")
_ROLL_MAGIC: Final = b"DLOGROLL"
_ROLL_HEADER: Final = Struct("<8sIIQ")  # magic, version, 0, number of the first batch
_BATCH_1: Final = Struct("<III")  # chain, removed?, ids
_BATCH: Final = Struct("<IIIQQI")  # chain, removed?, ids; of the redo file: first, last, chain
_ROLL_VERSION: Final = 2

assert byteorder == "little", "columns are written as they are in memory"


@dataclass(frozen=True, slots=True, order=True)
class RollPlace:
    """How far a roll has come."""

    batch: int = 0
    chain: int = 0
    """Checksum of the batch and of all before it in the file."""


@dataclass(frozen=True, slots=True)
class Census:
    """What was durable at one moment."""

    number: int
    """Grows by one with each."""
    rolls: tuple[RollPlace, ...]
    """Of each ledger directory."""
    journals: tuple[Mark, ...]
    """Up to where each journal was durable."""
    sizes: tuple[int, ...] = ()
    """How long the newest file of each journal was at least."""
    limbo: bool = False
    """Whether the bookie knows of a loss: then the file that says so is there."""

    def encode(self) -> bytes:
        body = b"".join(
            (
                _HEADER.pack(
                    _MAGIC, VERSION, self.limbo, self.number, len(self.rolls), len(self.journals)
                ),
                *(_PLACE.pack(place.batch, place.chain) for place in self.rolls),
                *(
                    _JOURNAL.pack(mark.journal_id, mark.offset, size_bytes)
                    for mark, size_bytes in zip(self.journals, self.sizes, strict=True)
                ),
            )
        )
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError`."""
        if len(data) < _HEADER.size + _CRC.size:
            raise ValueError("it is cut short")
        body = data[: -_CRC.size]
        if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
            raise ValueError("its checksum differs")
        magic, version, limbo, number, rolls, journals = _HEADER.unpack_from(body)
        if magic != _MAGIC or version != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
        places_end = _HEADER.size + rolls * _PLACE.size
        if len(body) != places_end + journals * _JOURNAL.size:
            raise ValueError("it is longer or shorter than it says")
        places = _PLACE.iter_unpack(body[_HEADER.size : places_end])
        ends = [*_JOURNAL.iter_unpack(body[places_end : places_end + journals * _JOURNAL.size])]
        return cls(
            number,
            tuple(RollPlace(*place) for place in places),
            tuple(Mark(journal_id, offset) for journal_id, offset, _ in ends),
            tuple(size_bytes for _, _, size_bytes in ends),
            bool(limbo),
        )


def read_census(disk: Disk) -> Census | None:
    """Return the newest one, None if there is none. Raises `CensusDamaged`, `OSError`."""
    data = read_file(disk, PATH)
    try:
        return None if data is None else Census.decode(data)
    except ValueError as error:
        raise CensusDamaged(disk.describe(PATH), 0, str(error)) from error


def write_census(disk: Disk, census: Census) -> None:
    """Replace it, durably. Raises `OSError`; after `DiskFull` nothing is changed."""
    replace_file(disk, PATH, [census.encode()])


def read_file(disk: Disk, path: str) -> bytes | None:
    """Return all of a file, None if it is not there."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def replace_file(disk: Disk, path: str, pieces: Sequence[bytes]) -> None:
    """Put *pieces* in place of what is there, as one durable step."""
    temporary = path + TEMPORARY_SUFFIX
    try:
        file = disk.create(temporary)
        try:
            file.write(pieces, 0)
            file.sync()
        finally:
            file.close()
    except DiskFull:
        with suppress(OSError):
            disk.remove(temporary)
        raise
    disk.rename(temporary, path)
    disk.sync_directory(path.rpartition("/")[0])


class Roll:
    """The ids of the ledgers that have an index file in one directory; see the module's docstring.

    Written by one thread at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._end = 0
        self.place = RollPlace()
        """How far it has come, durably."""
        self.redo = RedoPlace()
        """What of the redo file is needed, as its last batch says."""

    def load(self, expected: RollPlace | None) -> tuple[dict[int, None], str]:
        """Return the ledgers that are in it, and what is wrong with it; "" for nothing.

        *expected*: how far it had come at the last census, None if there was none."""
        data = read_file(self._disk, ROLL_PATH)
        path = self._disk.describe(ROLL_PATH)
        there, problem, seen = dict[int, None](), "", RollPlace()
        if data is not None and len(data) >= _ROLL_HEADER.size:
            magic, version, _, first = _ROLL_HEADER.unpack_from(data)
            if magic == _ROLL_MAGIC and version in (VERSION, _ROLL_VERSION):
                layout = _BATCH_1 if version == VERSION else _BATCH
                there, problem, seen = self._read(data, first, expected, layout)
        self.place = seen
        if expected is not None and seen.batch < expected.batch:
            problem = f"{path} is shorter than at the last checkpoint"
            self.place = expected  # what is written next is newer than both
        return there, problem

    def write(self, ledger_ids: Iterable[int], redo: RedoPlace) -> None:
        """Start it over with these ledgers, durably."""
        ids = array("q", sorted(ledger_ids)).tobytes()
        header = _ROLL_HEADER.pack(_ROLL_MAGIC, _ROLL_VERSION, 0, self.place.batch + 1)
        batch, chain = _batch(crc32c(header), ids, redo, removed=False)
        replace_file(self._disk, ROLL_PATH, [header, batch, ids])
        self._end = len(header) + len(batch) + len(ids)
        self.place = RollPlace(self.place.batch + 1, chain)

    def append(self, ledger_ids: Iterable[int], redo: RedoPlace, *, removed: bool = False) -> None:
        """Note that these ledgers are in the index, or are not any more, and what of the redo file
        is needed from now on, durably.

        Raises `OSError`; after `DiskFull` it may be done again."""
        if not self._end:
            self.write(() if removed else ledger_ids, redo)
            return
        ids = array("q", ledger_ids).tobytes()
        batch, chain = _batch(self.place.chain, ids, redo, removed=removed)
        file = self._disk.open(ROLL_PATH)
        try:
            file.write([batch, ids], self._end)
            file.sync()
        finally:
            file.close()
        self._end += len(batch) + len(ids)
        self.place = RollPlace(self.place.batch + 1, chain)

    def _read(
        self, data: bytes, first: int, expected: RollPlace | None, layout: Struct
    ) -> tuple[dict[int, None], str, RollPlace]:
        """Take the batches of *data* up to the first that is not whole."""
        there: dict[int, None] = {}
        problem = ""
        at, number, chain = _ROLL_HEADER.size, first, crc32c(data[: _ROLL_HEADER.size])
        seen = RollPlace()
        while at + layout.size <= len(data):
            crc, removed, count, *redo = layout.unpack_from(data, at)
            ids_at = at + layout.size
            ids = data[ids_at : ids_at + 8 * count]
            chain = _chained(chain, data[at + _CRC.size : ids_at], ids)
            if len(ids) != 8 * count or chain != crc:
                break  # never finished, or damaged: then the census knows of more
            self.redo = RedoPlace(*redo)
            seen = RollPlace(number, crc)
            if expected is not None and number == expected.batch and seen != expected:
                problem = f"{self._disk.describe(ROLL_PATH)} is another one than was written"
            column = array("q", ids)
            if removed:
                for ledger_id in column:
                    there.pop(ledger_id, None)
            else:
                there.update(dict.fromkeys(column))
            at, number = ids_at + len(ids), number + 1
        self._end = at if seen.batch else 0
        return there, problem, seen


def _batch(chain: int, ids: bytes, redo: RedoPlace, *, removed: bool) -> tuple[bytes, int]:
    """Return the head of a batch that follows *chain*, and the chain after it."""
    count = len(ids) // 8
    rest = _BATCH.pack(0, removed, count, redo.first, redo.last, redo.chain)[_CRC.size :]
    crc = _chained(chain, rest, ids)
    return _CRC.pack(crc) + rest, crc


def _chained(chain: int, rest: bytes, ids: bytes) -> int:
    return int(extend(extend(crc32c(_CRC.pack(chain)), rest), ids))
