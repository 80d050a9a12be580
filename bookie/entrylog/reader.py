"""Reads entries back from entry logs, through the index, and checks every byte of them.

Whatever is not as it was written ends the answer before it: damage is reported as damage and
never as a "no such entry" (rule 58). A log that is gone may have been compacted after the index
was asked, so the index is asked again; if it still names that place, it is damage.
Safe to be used from any thread.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Disk
from bookie.entrylog.format import damage_marker_of, path_of
from bookie.errors import EntryLogDamaged, IndexDamaged
from bookie.index.format import PAGE_ENTRIES, LedgerHeader
from bookie.index.ledger_index import LedgerIndex, Location
from bookie.pieces import FoundPieces, Piece, whole
from ledger.entry import Bad, check_frames

_PAGES_MAX: Final = 4096
"""Index pages that one read looks at, at most; then it says how far it came."""
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
_LOOKUPS_MAX: Final = 4
"""What is not where the index says even then is damage."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the disk has; *damage* says why it ends at `found.considered`."""

    found: FoundPieces
    damage: EntryLogDamaged | IndexDamaged | None = None


class EntryLogReader:
    """See the module's docstring."""

    def __init__(self, disk: Disk, index: LedgerIndex, *, files_max: int) -> None:
        self._disk = disk
        self._index = index
        self._files = FileCache(disk, files_max)

    def find(self, header: LedgerHeader, first: int, last: int, bytes_max: int) -> Stored:
        """Return the entries in first..last that are on disk, up to *bytes_max*, at least
        one."""
        pieces: list[Piece] = []
        left_bytes = bytes_max
        begin, gone = first, None
        for _ in range(_LOOKUPS_MAX):
            locations: list[Location] = []
            considered, damage = self._locate(header, begin, last, left_bytes, locations)
            gone = None
            for stretch in _stretches(locations):
                try:
                    piece, broken = self._read(header.ledger_id, stretch)
                except FileNotFoundError:
                    gone = stretch[0]
                    break
                if piece is not None:
                    pieces.append(piece)
                    left_bytes -= piece.size_bytes
                if broken is not None:
                    at = len(piece.entries) if piece else 0
                    return Stored(FoundPieces(pieces, stretch[at].entry_id - 1), broken)
            if gone is None:
                return Stored(FoundPieces(pieces, considered), damage)
            begin = gone.entry_id
        assert gone is not None
        path = self._disk.describe(path_of(gone.log_id))
        missing = EntryLogDamaged(path, gone.offset, "the file is gone")
        return Stored(FoundPieces(pieces, gone.entry_id - 1), missing)

    def forget(self, log_id: int) -> None:
        """Take note that the log was removed: its file is closed."""
        self._files.forget(path_of(log_id))

    def close(self) -> None:
        self._files.close()

    def _locate(
        self,
        header: LedgerHeader,
        first: int,
        last: int,
        bytes_max: int,
        locations: list[Location],
    ) -> tuple[int, IndexDamaged | None]:
        """Fill *locations*; return up to where that is the truth, and why no further."""
        size_bytes = 0
        considered = first - 1
        pages = header.pages(first, min(last, header.last_entry))
        for number in islice(pages, _PAGES_MAX):
            considered = max(considered, number * PAGE_ENTRIES - 1)
            try:
                for location in self._index.page_locations(header, number, from_entry=first):
                    if location.entry_id > last:
                        break
                    if locations and size_bytes + location.length > bytes_max:
                        return location.entry_id - 1, None
                    locations.append(location)
                    size_bytes += location.length
            except IndexDamaged as damage:
                return considered, damage
            considered = max(considered, min(last, (number + 1) * PAGE_ENTRIES - 1))
        return (considered if next(pages, None) is not None else last), None

    def _read(
        self, ledger_id: int, stretch: list[Location]
    ) -> tuple[Piece | None, EntryLogDamaged | None]:
        """Return the entries that lie together, whole up to where they are damaged.

        Raises `FileNotFoundError`."""
        _, log_id, offset, _ = stretch[0]
        entries = [location.entry_id for location in stretch]
        lengths = [location.length for location in stretch]
        path = path_of(log_id)
        try:
            with self._files.use(path) as file:
                data = file.read(sum(lengths), offset)
        except FileNotFoundError:
            raise
        except OSError as error:
            return None, EntryLogDamaged(self._disk.describe(path), offset, str(error))
        if len(data) < sum(lengths):
            data = data.ljust(sum(lengths), b"\xff")  # fails the checks where the file ends
        checked = check_frames(ledger_id, entries, lengths, data)
        if not isinstance(checked, Bad):
            return whole(checked), None
        good = max(0, checked.index)
        good_bytes = sum(lengths[:good])
        reason = checked.reason
        if data.startswith(damage_marker_of(ledger_id, entries[good]).view(), good_bytes):
            reason = f"entry {entries[good]} of ledger {ledger_id} is known to be damaged"
        damage = EntryLogDamaged(self._disk.describe(path), offset + good_bytes, reason)
        before = check_frames(ledger_id, entries[:good], lengths[:good], data[:good_bytes])
        return (None if isinstance(before, Bad) else whole(before)), damage


def _stretches(locations: Iterable[Location]) -> Iterator[list[Location]]:
    """Yield the locations in groups that lie together and may be read at once."""
    stretch: list[Location] = []
    start = end = log = -1
    for location in locations:
        _, log_id, offset, length = location
        if log_id != log or offset != end or end - start >= _READ_BYTES_MAX:
            if stretch:
                yield stretch
            stretch, start, log = [], offset, log_id
        stretch.append(location)
        end = offset + length
    if stretch:
        yield stretch
