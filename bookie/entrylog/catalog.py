"""What entry logs a ledger directory has, and what is in each: for garbage collection and offline
tools.

The map at a log's end says it. Where there is none, the log was not ended in order; then it
is scanned, once, and the map is kept in memory until `seal` writes it behind the log.

A scan reads from the first frame on, without index, and checks every byte. It ends at the first
place that is not a whole frame and says so; what is behind it may still be named by the index, so
nobody may take it for gone. Such a log is *damaged* until the catalog's user has asked the index
whether it names anything there; only then may it be sealed. Used by one thread at a time.
"""

from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from bookie.disk.port import Disk, DiskFile
from bookie.entrylog.format import (
    DIRECTORY,
    HEADER_BYTES,
    UNFINISHED_SUFFIX,
    is_header_of,
    is_whole_header,
    logs_of,
    path_of,
)
from bookie.entrylog.ledger_map import LedgerMap, LedgerMapBuilder, encode_map, read_map
from bookie.errors import EntryLogDamaged
from ledger.entry import HEADER_BYTES as FRAME_HEADER_BYTES
from ledger.entry import Bad, Checked, check_frames, peek

CHUNK_BYTES: Final = 2 * 1024 * 1024
_REBUILT_MAX: Final = 64
"""Maps in memory that are not on disk; above it the oldest is scanned for again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole frames of one ledger that follow each other, ids ascending, from *offset* on."""

    ledger_id: int
    offset: int
    run: Checked

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Yield (entry id, offset, length) of each."""
        starts = self.run.starts
        for at, entry_id in enumerate(self.run.entries):
            yield entry_id, self.offset + starts[at], starts[at + 1] - starts[at]


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Every frame before *offset* is whole; *reason* says why no further, "" at the end."""

    offset: int
    reason: str = ""


Scan = Generator[Batch, None, ScanEnd]


def scan(
    disk: Disk, log_id: int, *, end: int | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Scan:
    """Yield all frames up to *end*, by default up to the end of the file; return where it ended.

    The header is the caller's to check. Raises `FileNotFoundError`, nothing else: what cannot be
    read ends the scan."""
    file = disk.open(path_of(log_id))
    try:
        return (yield from _scan(file, end, chunk_bytes))
    finally:
        file.close()


class LogScan:
    """A scan to loop over, once; `end` says afterwards where it ended."""

    def __init__(self, disk: Disk, log_id: int, *, end: int | None = None) -> None:
        self.end = ScanEnd(HEADER_BYTES)
        self._scan = scan(disk, log_id, end=end)

    def __iter__(self) -> Iterator[Batch]:
        self.end = yield from self._scan


def _scan(file: DiskFile, end: int | None, chunk_bytes: int) -> Scan:
    offset = HEADER_BYTES
    chunk_bytes = wanted_bytes = max(chunk_bytes, FRAME_HEADER_BYTES)
    try:
        end = file.size() if end is None else end
        while offset < end:
            data = file.read(min(wanted_bytes, end - offset), offset)
            stretches = list(_stretches(data))
            for at, ledger_id, entries, lengths in stretches:
                last = at + sum(lengths)
                checked = check_frames(ledger_id, entries, lengths, data[at:last])
                if isinstance(checked, Bad):
                    good = max(0, checked.index)
                    last = at + sum(lengths[:good])
                    before = check_frames(ledger_id, entries[:good], lengths[:good], data[at:last])
                    if isinstance(before, Checked):
                        yield Batch(ledger_id, offset + at, before)
                    return ScanEnd(offset + last, checked.reason)
                yield Batch(ledger_id, offset + at, checked)
            used = sum(sum(lengths) for _, _, _, lengths in stretches)
            offset += used
            wanted_bytes = chunk_bytes
            if used == 0:
                frame = peek(data, 0)
                if frame is None:
                    return ScanEnd(offset, "no frame begins here")
                _, _, frame_bytes = frame
                if offset + frame_bytes > end or len(data) >= frame_bytes:
                    return ScanEnd(offset, f"the file ends within a frame of {frame_bytes} bytes")
                wanted_bytes = frame_bytes  # larger than a chunk
    except OSError as error:
        return ScanEnd(offset, str(error))
    return ScanEnd(offset)


def _stretches(data: bytes) -> Iterator[tuple[int, int, "array[int]", "array[int]"]]:
    """Yield (start, ledger, entries, lengths) of frames that lie in *data* wholly, as far as their
    headers say: they are not checked yet."""
    at = start = 0
    ledger_before, entry_before = -1, -1
    entries, lengths = array("q"), array("I")
    while (frame := peek(data, at)) is not None:
        ledger_id, entry_id, frame_bytes = frame
        if at + frame_bytes > len(data):
            break
        if entries and (ledger_id != ledger_before or entry_id <= entry_before):
            yield start, ledger_before, entries, lengths
            start, entries, lengths = at, array("q"), array("I")
        entries.append(entry_id)
        lengths.append(frame_bytes)
        ledger_before, entry_before = ledger_id, entry_id
        at += frame_bytes
    if entries:
        yield start, ledger_before, entries, lengths


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One log and what is in it."""

    log_id: int
    size_bytes: int
    ledger_map: LedgerMap
    """Of a damaged log: of what was found before the damage."""
    is_sealed: bool = True
    """Whether the map is on disk."""
    damage: EntryLogDamaged | None = None
    """Why nothing is known from `ledger_map.frames_end` on. The index may name entries there."""
    is_foreign: bool = False
    """Whether it is a whole file of another log, program or version: never to be touched."""


class LogCatalog:
    """See the module's docstring. Logs that are still written to must not be asked for."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._rebuilt: dict[int, LogInfo] = {}

    def log_ids(self) -> list[int]:
        """Return all logs, ascending; without what compaction has not finished."""
        return logs_of(self._disk.list(DIRECTORY))

    def remove_unfinished(self) -> list[int]:
        """Remove what an interrupted compaction left; for the start. Returns the ids."""
        unfinished = logs_of(self._disk.list(DIRECTORY), UNFINISHED_SUFFIX)
        for log_id in unfinished:
            self._disk.remove(path_of(log_id, UNFINISHED_SUFFIX))
        return unfinished

    def info(self, log_id: int) -> LogInfo:
        """Return what is in the log. Raises `FileNotFoundError`, nothing else."""
        known = self._rebuilt.get(log_id)
        if known is not None:
            return known
        path = path_of(log_id)
        file = self._disk.open(path)
        size_bytes = 0
        try:
            size_bytes = file.size()
            header = file.read(HEADER_BYTES, 0)
            if not is_header_of(log_id, header):
                reason = "its header is not whole"
                if foreign := is_whole_header(header):
                    reason = "its header names another log, program or version"
                return self._damaged(log_id, size_bytes, 0, reason, foreign=foreign)
            ledger_map = read_map(file, log_id)
        except OSError as error:
            return self._damaged(log_id, size_bytes, 0, str(error))
        finally:
            file.close()
        if ledger_map is not None:
            return LogInfo(log_id, size_bytes, ledger_map)
        return self._rebuild(log_id, size_bytes)

    def seal(self, info: LogInfo) -> None:
        """Write the map of *info* behind the log, durably; it is the truth from now on.

        Requires that the index names nothing from `frames_end` on, if the log is damaged.
        Raises `OSError`."""
        assert not info.is_foreign
        if info.is_sealed or info.ledger_map.frames_end < HEADER_BYTES:
            return
        file = self._disk.open(path_of(info.log_id))
        try:
            offset = file.size()
            file.write([encode_map(info.log_id, info.ledger_map, offset)], offset)
            file.sync()
        finally:
            file.close()
        self.forget(info.log_id)

    def forget(self, log_id: int) -> None:
        """Take note that the log is not there any more, or has changed."""
        self._rebuilt.pop(log_id, None)

    def _rebuild(self, log_id: int, size_bytes: int) -> LogInfo:
        builder = LedgerMapBuilder()
        batches = LogScan(self._disk, log_id, end=size_bytes)
        for batch in batches:
            builder.add(batch.ledger_id, len(batch.run.data), len(batch.run.entries))
        end = batches.end
        damage = None
        if end.reason:
            damage = EntryLogDamaged(self._disk.describe(path_of(log_id)), end.offset, end.reason)
        ledger_map = builder.build(end.offset)
        info = LogInfo(log_id, size_bytes, ledger_map, is_sealed=False, damage=damage)
        while len(self._rebuilt) >= _REBUILT_MAX:
            del self._rebuilt[next(iter(self._rebuilt))]
        self._rebuilt[log_id] = info
        return info

    def _damaged(
        self, log_id: int, size_bytes: int, offset: int, reason: str, *, foreign: bool = False
    ) -> LogInfo:
        damage = EntryLogDamaged(self._disk.describe(path_of(log_id)), offset, reason)
        return LogInfo(log_id, size_bytes, LedgerMap(offset), False, damage, is_foreign=foreign)
