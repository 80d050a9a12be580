"""Reads an entry log from its first frame on, without index: for collection and offline tools.

Every byte is checked. A scan ends at the first place that is not a whole frame and says so;
what is behind it may still be named by the index, so nobody may take it for gone.
"""

from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from bookie.disk.port import Disk, DiskFile
from bookie.entrylog.format import HEADER_BYTES, path_of
from ledger.entry import HEADER_BYTES as FRAME_HEADER_BYTES
from ledger.entry import Bad, Checked, check_frames, peek

CHUNK_BYTES: Final = 2 * 1024 * 1024


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
