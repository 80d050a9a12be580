"""What a bookie has, counted at each checkpoint: a start that finds less has lost something.

Two kinds of files. In each ledger directory a *roll*: the ids of all ledgers that have an index
file there, and which edition of it is the newest. Each flush appends a batch to it after index
files were written, so that an older state of the directory is shorter, and an older index file
another one than the roll says; a start rewrites it, and so does a batch that finds it too long. A
second roll, beside index and entry logs, has the logs and where the frames of each end: an index
can be rebuilt from them, if all are there. In the main directory the
*census*: how far each roll and each journal had come, replaced after each checkpoint and before the
marks move. So what is not in them is still in the journals.

Invariants:
    a ledger is in the roll, with an edition, only after that index is durable, and before a mark
        moves beyond what is in it
    each flush has a batch in the roll of every directory that it wrote to, before a mark moves
    each batch of a roll is checksummed together with all before it, so a roll that is shorter or
        another one than the census says is found
    each batch says what of the redo file is needed beside the index files, and which tombstones
        and fences are the newest, so that is found, too
    an entry log is in the roll from its first flush on, as far as it was durable then, and until
        just before it is removed
    what is found missing is remembered (`bookie.loss.limbo`) before roll and census are
        rewritten
"""

import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from struct import Struct
from sys import byteorder
from typing import Final, Self

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.disk.port import Disk, DiskFull
from bookie.errors import CensusDamaged
from bookie.index.format import DIRECTORY as INDEX
from bookie.index.redo import RedoPlace
from bookie.index.tombstones import NO_EDITION, Edition
from bookie.journal.format import JournalMark
from bookie.loss.limbo import Limbo, LimboPhase
from ledger.log_events import get_logger

VERSION: Final = 2
_VERSION_1: Final = 1
"""Had no rolls of entry logs."""
PATH: Final = "census"
ROLL_PATH: Final = f"{INDEX}/roll"
LOGS_PATH: Final = "roll"
TEMPORARY_SUFFIX: Final = ".tmp"
_MAGIC: Final = b"DLOGCENS"
_HEADER: Final = Struct("<8sIIQII")  # magic, version, limbo, number, ledger directories, journals
_PLACE: Final = Struct("<QIxxxx")  # batch, chain
_JOURNAL: Final = Struct("<qqq")  # newest file, end of its records, its size
_CRC: Final = Struct("<I")
_ROLL_MAGIC: Final = b"DLOGROLL"
_ROLL_HEADER: Final = Struct("<8sIIQ")  # magic, version, 0, number of the first batch
_BATCH_2: Final = Struct("<IIIQQI")  # chain, removed?, ids; of the redo file: first, last, chain
_BATCH: Final = Struct("<IIIQQIQIQII")  # and of tombstones, fences: number, checksum; logs
_ID_BYTES: Final = 8
_EDITION_BYTES: Final = 8
_LEDGER_BYTES: Final = _ID_BYTES + _EDITION_BYTES
_LOG_BYTES: Final = 16  # id, end
_ROLL_VERSION: Final = 4
_BATCHES: Final = {2: _BATCH_2, _ROLL_VERSION: _BATCH}
_SLACK_BYTES: Final = 1024 * 1024
"""A roll that is longer than twice what it has to say, and this, is rewritten."""
LIMBO_PATH: Final = "limbo"
_log = get_logger(__name__)
assert byteorder == "little", "columns are written as they are in memory"


@dataclass(frozen=True, slots=True, order=True)
class RollPlace:
    """How far a roll has come."""

    batch: int = 0
    chain: int = 0
    """Checksum of the batch and of all before it in the file."""


@dataclass(frozen=True, slots=True)
class Rolls:
    """How far those of one ledger directory have come."""

    index: RollPlace | None = None
    logs: RollPlace | None = None
    """None: nobody counted, or a program that did not know it."""


@dataclass(frozen=True, slots=True)
class Census:
    """What was durable at one moment."""

    number: int
    """Grows by one with each."""
    rolls: tuple[Rolls, ...]
    """Of each ledger directory."""
    journals: tuple[JournalMark, ...]
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
                *(
                    _PLACE.pack(place.batch, place.chain)
                    for rolls in self.rolls
                    for place in (rolls.index or RollPlace(), rolls.logs or RollPlace())
                ),
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
        if magic != _MAGIC or version not in (_VERSION_1, VERSION):
            raise ValueError(f"it is not of version {VERSION}")
        has_logs = version == VERSION
        places_end = _HEADER.size + rolls * _PLACE.size * (1 + has_logs)
        if len(body) != places_end + journals * _JOURNAL.size:
            raise ValueError("it is longer or shorter than it says")
        places = [RollPlace(*p) for p in _PLACE.iter_unpack(body[_HEADER.size : places_end])]
        of_logs = places[1::2] if has_logs else [None] * rolls
        ends = [*_JOURNAL.iter_unpack(body[places_end : places_end + journals * _JOURNAL.size])]
        return cls(
            number,
            tuple(map(Rolls, places[:: 1 + has_logs], of_logs)),
            tuple(JournalMark(journal_id, offset) for journal_id, offset, _ in ends),
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


def counted_rolls(disk: Disk, at: int) -> Rolls:
    """Return how far the rolls of ledger directory *at* had come by the census; neither is known
    if that is gone or damaged, which the next start reports. Raises `OSError`."""
    try:
        census = read_census(disk)
    except CensusDamaged:
        return Rolls()
    return Rolls() if census is None else census.rolls[at]


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


@dataclass(frozen=True, slots=True)
class Needed:
    """What is needed of other files of a ledger directory."""

    redo: RedoPlace
    tombstones: Edition
    fences: Edition


NOTHING: Final = Needed(RedoPlace(), NO_EDITION, NO_EDITION)


class Roll:
    """The ids of the ledgers that have an index file in one directory, and the editions of these,
    or the entry logs that are there; see the module's docstring.

    Written by one thread at a time; `editions` may be read by any, one at a time."""

    def __init__(self, disk: Disk, path: str = ROLL_PATH) -> None:
        self._disk = disk
        self._path = path
        self._end = 0
        self.place = RollPlace()
        """How far it has come, durably."""
        self.needed = NOTHING
        """As its last batch says."""
        self.logs: dict[int, int] = {}
        """Entry logs that are there, and how far each was durable at least."""
        self.editions: dict[int, int] = {}
        """Ledgers that are in it, each with the edition of its index; 0 if that is not known."""

    def load(self, expected: RollPlace | None) -> str:
        """Take what is in it; return what is wrong with it, "" for nothing. Editions of a roll with
        which something is wrong are not known.

        *expected*: how far it had come at the last census, None if there was none."""
        data = read_file(self._disk, self._path)
        path = self._disk.describe(self._path)
        self.editions = {}
        problem, seen = "", RollPlace()
        if data is not None and len(data) >= _ROLL_HEADER.size:
            magic, version, _, first = _ROLL_HEADER.unpack_from(data)
            if magic == _ROLL_MAGIC and version in _BATCHES:
                problem, seen = self._read(data, first, expected, version)
        self.place = seen
        if expected is not None and seen.batch < expected.batch:
            problem = f"{path} is shorter than at the last checkpoint"
            self.place = expected  # what is written next is newer than both
        if problem:
            self.editions = dict.fromkeys(self.editions, 0)
        return problem

    def write(self, editions: Mapping[int, int] | None = None, needed: Needed = NOTHING) -> None:
        """Start it over with these ledgers and its `logs`, durably. Raises `OSError`; after
        `DiskFull` nothing is changed."""
        editions = {} if editions is None else editions
        header = _ROLL_HEADER.pack(_ROLL_MAGIC, _ROLL_VERSION, 0, self.place.batch + 1)
        ids = array("q", sorted(editions))
        batch, crc = _batch(
            crc32c(header), ids, array("Q", map(editions.__getitem__, ids)), needed, self.logs
        )
        replace_file(self._disk, self._path, [header, batch])
        self._take(len(header) + len(batch), crc, needed, {})
        self.editions = dict(editions)

    def append(
        self,
        editions: Mapping[int, int] | None = None,
        needed: Needed = NOTHING,
        *,
        removed: Iterable[int] = (),
        logs: Mapping[int, int] | None = None,
    ) -> None:
        """Note of which *editions* the index of these ledgers is, or which are *removed*, what of
        other files is needed from now on, and how far these *logs* are, 0: not there any more;
        durably.

        Raises `OSError`; after `DiskFull` it may be done again."""
        logs = {} if logs is None else logs
        editions = {} if editions is None else editions
        gone = array("q", removed)
        assert not (gone and editions), "a batch adds or removes"
        least_bytes = _LEDGER_BYTES * len(self.editions) + _LOG_BYTES * len(self.logs)
        if not self._end or self._end > 2 * least_bytes + _SLACK_BYTES:
            try:
                self._rewrite(editions, needed, gone, logs)
            except DiskFull:
                if not self._end:
                    raise
            else:
                return
        ids = array("q", editions) or gone
        column = array("Q", editions.values()) or array("Q", bytes(_EDITION_BYTES * len(gone)))
        batch, crc = _batch(self.place.chain, ids, column, needed, logs, removed=bool(gone))
        file = self._disk.open(self._path)
        try:
            file.write([batch], self._end)
            file.sync()
        finally:
            file.close()
        self._take(self._end + len(batch), crc, needed, logs)
        self._note(editions, gone)

    def _rewrite(
        self,
        editions: Mapping[int, int],
        needed: Needed,
        gone: Iterable[int],
        logs: Mapping[int, int],
    ) -> None:
        before = self.logs, self.editions
        self.logs, self.editions = dict(self.logs), dict(self.editions)
        self._learn(logs.items())
        self._note(editions, gone)
        try:
            self.write(self.editions, needed)
        except OSError:
            self.logs, self.editions = before
            raise

    def _note(self, editions: Mapping[int, int], gone: Iterable[int]) -> None:
        self.editions.update(editions)
        for ledger_id in gone:
            self.editions.pop(ledger_id, None)

    def _take(self, end: int, crc: int, needed: Needed, logs: Mapping[int, int]) -> None:
        self._end, self.place = end, RollPlace(self.place.batch + 1, crc)
        self.needed = needed
        self._learn(logs.items())

    def _learn(self, logs: Iterable[tuple[int, int]]) -> None:
        for log_id, end in logs:
            if end:
                self.logs[log_id] = end
            else:
                self.logs.pop(log_id, None)

    def _read(
        self, data: bytes, first: int, expected: RollPlace | None, version: int
    ) -> tuple[str, RollPlace]:
        """Take the batches of *data* up to the first that is not whole."""
        layout = _BATCHES[version]
        ledger_bytes = _LEDGER_BYTES if layout is _BATCH else _ID_BYTES
        problem = ""
        at, number, before = _ROLL_HEADER.size, first, crc32c(data[: _ROLL_HEADER.size])
        seen = RollPlace()
        while at + layout.size <= len(data):
            crc, removed, count, *rest = layout.unpack_from(data, at)
            ids_at = at + layout.size
            editions_at, logs_at = ids_at + _ID_BYTES * count, ids_at + ledger_bytes * count
            end = logs_at + (_LOG_BYTES * rest.pop() if layout is _BATCH else 0)
            before = int(extend(crc32c(_CRC.pack(before)), data[at + _CRC.size : end]))
            if end > len(data) or before != crc:
                break  # never finished, or damaged: then the census knows of more
            redo, tombstones, fences = rest[:3], rest[3:5], rest[5:]
            self.needed = Needed(RedoPlace(*redo), Edition(*tombstones), Edition(*fences))
            logs = array("q", data[logs_at:end])
            self._learn(zip(logs[::2], logs[1::2], strict=True))
            seen = RollPlace(number, crc)
            if expected is not None and number == expected.batch and seen != expected:
                problem = f"{self._disk.describe(self._path)} is another one than was written"
            ids = array("q", data[ids_at:editions_at])
            editions = array("Q", data[editions_at:logs_at] or bytes(_EDITION_BYTES * count))
            if removed:
                self._note({}, ids)
            else:
                self._note(dict(zip(ids, editions, strict=True)), ())
            at, number = end, number + 1
        self._end = at if seen.batch else 0
        return problem, seen


def _batch(
    before: int,
    ids: "array[int]",
    editions: "array[int]",
    needed: Needed,
    logs: Mapping[int, int],
    *,
    removed: bool = False,
) -> tuple[bytes, int]:
    """Return a batch that follows the chain *before*, and the chain after it."""
    redo, tombstones, fences = needed.redo, needed.tombstones, needed.fences
    head = _BATCH.pack(
        0, removed, len(ids), redo.first, redo.last, redo.chain,
        tombstones.number, tombstones.crc, fences.number, fences.crc, len(logs),
    )  # fmt: skip
    ends = array("q", chain.from_iterable(logs.items()))
    rest = b"".join((head[_CRC.size :], ids.tobytes(), editions.tobytes(), ends.tobytes()))
    crc = int(extend(crc32c(_CRC.pack(before)), rest))
    return _CRC.pack(crc) + rest, crc


class Accounts:
    """What a bookie's main directory says of all that it has: the newest census, and limbo.

    Invariants:
        a loss is remembered, durably, before anything is written that would hide it
        a census says that there is a limbo only after its file is durable, and no more before the
            file is removed: who deletes the file alone does not end it
    `census` and `limbo` may be read by any thread.

    Raises `OSError` where the disk fails.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self.limbo: Limbo | None = None
        self.census: Census | None = None
        """The newest; None before the first."""
        self.losses: list[str] = []
        """What is wrong with these files themselves."""
        self.on_census: Callable[[Census], None] | None = None
        """Called with each one when it is durable, on the thread that made it so."""
        self._number = 0
        self._load()

    def lost(self, reasons: Sequence[str]) -> None:
        """Remember that something may be lost, durably; nothing, if there are no *reasons*."""
        if not reasons:
            return
        reason = "; ".join(dict.fromkeys(reasons))
        _log.error("bookie_may_have_lost_data", reason=reason)
        with self._lock:
            self._keep(Limbo(reason) if self.limbo is None else self.limbo.again(reason))

    def restored(self, reason: str) -> None:
        """Remember that the metadata store is older than it was, durably."""
        _log.error("metadata_store_was_restored", reason=reason)
        with self._lock:
            before = Limbo(reason, lost=False) if self.limbo is None else self.limbo
            self._keep(before.restored(reason))

    def count(
        self, rolls: Iterable[Rolls], journals: Sequence[JournalMark], sizes: Sequence[int]
    ) -> None:
        """Replace the census: all that *rolls*, *journals* and *sizes* say is durable."""
        with self._lock:
            limbo = self.limbo is not None
            self._count(
                Census(self._number + 1, tuple(rolls), tuple(journals), tuple(sizes), limbo)
            )

    def judged(self, change: Callable[[Limbo], Limbo]) -> None:
        """Let the limbo become what *change* makes of it, durably; nothing, if there is none."""
        with self._lock:
            before = self.limbo
            if before is None:
                return
            after = change(before)
            if after == before:
                return
            is_over = after.phase is LimboPhase.OVER and not (after.before or after.floor)
            if is_over and self.census is not None:
                self._count(replace(self.census, number=self._number + 1, limbo=False))
                self.limbo = None
                self._disk.remove(LIMBO_PATH)
                self._disk.sync_directory("")
            else:
                self._keep(after)

    def _load(self) -> None:
        try:
            self.census = read_census(self._disk)
        except CensusDamaged as damage:
            self.losses.append(f"{damage.path} is damaged: {damage.reason}")
        if self.census is not None:
            self._number = self.census.number
        data = read_file(self._disk, LIMBO_PATH)
        path = self._disk.describe(LIMBO_PATH)
        if data is not None:
            try:
                self.limbo = Limbo.decode(data)
            except ValueError as error:
                self.losses.append(f"{path} is damaged: {error}")
        elif self.census is not None and self.census.limbo:
            self.losses.append(f"{path} is gone, which said what may be lost")

    def _keep(self, limbo: Limbo) -> None:
        replace_file(self._disk, LIMBO_PATH, [limbo.encode()])
        self.limbo = limbo

    def _count(self, census: Census) -> None:
        write_census(self._disk, census)
        self.census, self._number = census, census.number
        if self.on_census is not None:
            self.on_census(census)
