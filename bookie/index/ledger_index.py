"""The index of all ledgers: finds entries in entry logs, and is flushed at checkpoints.

Invariants:
    what it points to was synced before it points there (rule 67; the caller's duty)
    a flush is all or nothing, whatever tears (`bookie.index.redo`)
    the header of a ledger reaches the disk together with the pages it names, and says which
        edition of the index that is, and which one was counted before (`bookie.loss.census`)
    a block is in the redo file, durably, until it is in its index file, durably
Writing (`put`, `flush`, `put_in_place`, `move`, `remove`) is done by one thread at a time; reading
by any. After `DiskFull` each of them may be called again; after another error nothing may be
written any more.
"""

from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from itertools import chain, compress, count, repeat
from operator import sub
from struct import Struct
from sys import byteorder
from typing import Final, NamedTuple

from bookie.disk.port import Disk, DiskFile, DiskFull
from bookie.errors import IndexDamaged
from bookie.index.format import (
    DIRECTORY,
    PAGE_BYTES,
    PAGE_ENTRIES,
    SLOT,
    SLOTS_AT,
    SUFFIX,
    LedgerHeader,
    directory_of,
    encode_header,
    joined,
    ledger_of,
    overflow,
    page_offset,
    path_of,
    seal_page,
)
from bookie.index.ledger_cache import Blocks, LedgerCache
from bookie.index.redo import Image, RedoPlace
from bookie.pieces import Piece

assert byteorder == "little", "slots are written as they are in memory"

_DIRECTORY_CHARACTERS: Final = 2
_FILES_AT_ONCE: Final = 64
"""Written, then synced together."""
_SLOTS_AT_WORD: Final = SLOTS_AT // 8
"""A slot is two words of eight bytes: log and length, offset."""
_ROUND_LEDGERS: Final = 4096
"""Put in place, and then their directories synced together."""


class Location(NamedTuple):
    """Where an entry lies. A tuple: there is one for each entry read."""

    entry_id: int
    log_id: int
    offset: int
    length: int


class LedgerIndex:
    """See the module's docstring."""

    def __init__(
        self,
        disk: Disk,
        *,
        cache_bytes: int,
        files_max: int,
        counted: Callable[[int], int] = lambda _ledger_id: 0,
    ) -> None:
        """*counted* returns the edition that the roll has of a ledger's index; 0: none."""
        self._disk = disk
        self._blocks = Blocks(disk, files_max=files_max, counted=counted)
        self.redo = self._blocks.redo
        self.cache = LedgerCache(self._blocks, bytes_max=cache_bytes)
        self._headers: dict[int, LedgerHeader] = {}
        self._directories: dict[str, None] = {}
        self._new_names: dict[str, None] = {}
        """Directories with files that are not there for sure."""
        self.edition = 0
        """Of what is written from now on."""
        self.written: dict[int, int] = {}
        """Ledgers whose index was written, and its edition; until somebody counts them, and
        empties it."""
        self._in_place: dict[int, int] = {}
        """Of ledgers that wait in the redo file: the edition that the index file itself is of, 0 if
        that is not known. One that is not here has what was written last."""

    def recover(self, needed: RedoPlace | None = None) -> list[int]:
        """Take what the redo file has, and see that it has what is *needed*; return all ledgers.

        Raises `IndexDamaged` for what is called like an index file and is none: it may be one
        that was renamed, and its ledger would be denied; and for a redo file that lacks
        something."""
        self.redo.load(needed)
        found: dict[int, None] = {}
        for directory in self._disk.list(DIRECTORY):
            if len(directory) == _DIRECTORY_CHARACTERS:
                self._list(f"{DIRECTORY}/{directory}", found)
        self._doubt_names()
        self._in_place = self._blocks.drop_lost()
        found.update(dict.fromkeys(self.redo))
        if self.redo.is_spent:
            self.put_in_place()
        return list(found)

    def finish(self, needed: RedoPlace | None) -> None:
        """Put in place what the redo file has, whatever it lacks, and leave it empty, durably;
        for a start of another kind."""
        with suppress(IndexDamaged):
            self.redo.load(needed)
        self._doubt_names()
        self._blocks.drop_lost()
        self.put_in_place()
        self.redo.begin()

    def load(self, ledger_id: int) -> LedgerHeader:
        """Return what is on disk of a ledger. Raises `IndexDamaged`, also if it is not of the
        edition that was counted."""
        return self._blocks.header(ledger_id)

    def has_file(self, ledger_id: int) -> bool:
        """Whether anything of a ledger was ever written, and is not gone."""
        return self._blocks.has(ledger_id)

    def page_locations(
        self, header: LedgerHeader, number: int, *, from_entry: int = 0
    ) -> Iterator[Location]:
        """Yield where the entries of page *number* lie, ascending, from *from_entry* on. Raises
        `IndexDamaged` before the first."""
        if not header.has_page(number):
            return
        page = self.cache.page(header.ledger_id, number)
        first = max(number * PAGE_ENTRIES, from_entry)
        slots = page[SLOTS_AT + (first - number * PAGE_ENTRIES) * SLOT.size :]
        for entry_id, (log_id, length, offset) in enumerate(SLOT.iter_unpack(slots), first):
            if length:
                yield Location(entry_id, log_id, offset, length)

    def held(self, header: LedgerHeader, number: int) -> list[tuple[int, int]]:
        """Return the ranges of ids that page *number*, which exists, names. Raises
        `IndexDamaged`."""
        page = self.cache.page(header.ledger_id, number, keep=False)
        first = number * PAGE_ENTRIES
        lengths = [length for _, length, _ in SLOT.iter_unpack(page[SLOTS_AT:])]
        if all(lengths):
            return [(first, first + PAGE_ENTRIES - 1)]
        ranges: list[tuple[int, int]] = []
        for entry_id in compress(count(first), lengths):
            if ranges and ranges[-1][1] == entry_id - 1:
                ranges[-1] = ranges[-1][0], entry_id
            else:
                ranges.append((entry_id, entry_id))
        return ranges

    def put(
        self, header: LedgerHeader, pieces: Sequence[Piece], places: Sequence[tuple[int, int]]
    ) -> LedgerHeader:
        """Let the index say that *pieces*, ascending, lie at *places*; return the ledger's new
        header.

        Flushes by itself when the cache is full of dirty pages, also half way: what was put by
        then is named. Raises `IndexDamaged`."""
        new: list[int] = []
        for piece, (log_id, offset) in zip(pieces, places, strict=True):
            header = self._put_piece(header, piece, log_id, offset, new)
        header = self._name(header, new)
        if self.cache.is_full:
            self.flush()
        return header

    def flush(self) -> None:
        """Make everything that was put durable."""
        headers = [self._of_edition(header) for header in self._headers.values()]
        images = [
            Image(header.ledger_id, offset, block)
            for header in headers
            for offset, block in _header_blocks(header)
        ]
        images += (
            Image(ledger_id, page_offset(number), seal_page(page, ledger_id, number))
            for (ledger_id, number), page in self.cache.dirty_pages().items()
        )
        if not images:
            return
        self.redo.append(images)
        self.cache.flushed()
        self._headers.clear()
        for header in headers:
            self.written[header.ledger_id] = header.edition
            self._in_place[header.ledger_id] = header.in_place

    def put_in_place(
        self, ledgers_max: int | None = None, *, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Write what waits in the redo file to index files, durably: of the *ledgers_max* that
        have waited longest, or of all, until it *is_over*."""
        left = len(self.redo) if ledgers_max is None else min(ledgers_max, len(self.redo))
        while left > 0 and not is_over():
            some = self.redo.oldest(min(left, _ROUND_LEDGERS))
            self._write_in_place(some)
            self.redo.put_in_place(some)
            self._forget_in_place(some)
            left -= len(some)
        if not self.redo:
            self.redo.clear()

    def newest(self, ledger_id: int) -> LedgerHeader:
        """Return what `put` said last of a ledger, or what is on disk. Raises `IndexDamaged`.

        While a flush is under way, what it reads from disk may be half written."""
        return self._headers.get(ledger_id) or self.load(ledger_id)

    def still_at(
        self, header: LedgerHeader, log_id: int, entries: Sequence[int], offsets: Sequence[int]
    ) -> list[int]:
        """Return the indexes of the *entries* that lie in *log_id* at their *offsets*, as far as
        the index knows. Raises `IndexDamaged`."""
        found = []
        number, page = -1, None
        for index, entry_id in enumerate(entries):
            wanted, slot = divmod(entry_id, PAGE_ENTRIES)
            if wanted != number:
                number, page = wanted, self._page(header, wanted)
            if page is not None:
                log, _, offset = SLOT.unpack_from(page, SLOTS_AT + slot * SLOT.size)
                if log == log_id and offset == offsets[index]:
                    found.append(index)
        return found

    def named(
        self, header: LedgerHeader, log_id: int, first_offset: int
    ) -> Iterator[list[Location]]:
        """Yield the entries that lie in *log_id* from *first_offset* on, those of a page together,
        if there are any. Raises `IndexDamaged`."""
        for number in header.pages(0, header.last_entry):
            here = [
                location
                for location in self.page_locations(header, number)
                if location.log_id == log_id and location.offset >= first_offset
            ]
            if here:
                yield here

    def move(
        self,
        header: LedgerHeader,
        piece: Piece,
        place: tuple[int, int],
        sources: Container[int],
        *,
        markers: bool = False,
    ) -> int:
        """Let the entries of *piece* lie at *place*, except those that do not lie in one of
        *sources* now: those are elsewhere for good reasons. Returns how many were moved.

        That it is the same log is enough: whatever place in a log the index names for an entry,
        the same bytes are there, or, if they are damaged, *piece* is of *markers*. Durable after
        `flush`. Raises `IndexDamaged`."""
        log_id, start = place
        starts = piece.run.starts
        number, page, dirty = -1, None, None
        moved = 0
        for index in range(piece.begin, piece.end):
            wanted, slot = divmod(piece.run.entries[index], PAGE_ENTRIES)
            if wanted != number:
                number, page, dirty = wanted, self._page(header, wanted), None
            if page is None:
                continue
            at = SLOTS_AT + slot * SLOT.size
            log, length, _ = SLOT.unpack_from(page, at)
            if not length or log not in sources:
                continue
            new_length = starts[index + 1] - starts[index]
            if length != new_length and not markers:
                path = self._disk.describe(path_of(header.ledger_id))
                reason = f"entry {piece.run.entries[index]} has another length than in its log"
                raise IndexDamaged(path, page_offset(number) + at, reason)
            if dirty is None:
                dirty = page = self.cache.dirty(header.ledger_id, number, exists=True)
            offset = start + starts[index] - starts[piece.begin]
            SLOT.pack_into(dirty, at, log_id, new_length, offset)
            moved += 1
        if self.cache.is_full:
            self.flush()
        return moved

    def remove(self, ledger_ids: Iterable[int]) -> None:
        """Remove all that is here of these ledgers; it is fine if nothing is.

        The caller sees to it that nothing of them is put any more. The names are not synced, which
        takes long for many ledgers: after the next start this is called again, or `sync_names`
        now."""
        gone = dict.fromkeys(ledger_ids)
        for ledger_id in gone:
            with suppress(FileNotFoundError):
                self._disk.remove(path_of(ledger_id))
        for ledger_id in gone:  # only now: a reader may have opened or read one meanwhile
            self._blocks.files.forget(path_of(ledger_id))
            self._headers.pop(ledger_id, None)
            self.written.pop(ledger_id, None)
        self._forget_in_place(gone)
        self.cache.remove(gone)
        with suppress(DiskFull):  # as with the names
            self.redo.strike(gone)

    def settle(self, ledger_ids: Iterable[int]) -> None:
        """Put in place what waits of these ledgers, and leave nothing in the redo file from which
        a start would make their files again, durably."""
        ledger_ids = list(ledger_ids)
        self._write_in_place([one for one in ledger_ids if one in self.redo])
        self.redo.strike(ledger_ids)
        self._forget_in_place(ledger_ids)

    def sync_names(self, ledger_ids: Iterable[int]) -> None:
        """Make it durable that files of these ledgers were removed."""
        for directory in dict.fromkeys(map(directory_of, ledger_ids)):
            self._disk.sync_directory(directory)

    def close(self) -> None:
        self._blocks.close()

    def _page(self, header: LedgerHeader, number: int) -> bytes | bytearray | None:
        """Return a page for reading; None if there is none."""
        return self.cache.page(header.ledger_id, number) if header.has_page(number) else None

    def _list(self, directory: str, found: dict[int, None]) -> None:
        """Add the ledgers with a file in *directory*."""
        for name in self._disk.list(directory):
            ledger_id = ledger_of(name)
            if ledger_id is not None:
                found[ledger_id] = None
            elif name.endswith(SUFFIX):
                path = self._disk.describe(f"{directory}/{name}")
                raise IndexDamaged(path, 0, "no index file has such a name")

    def _doubt_names(self) -> None:
        """A file of a ledger that waits may have been made by a process that was killed."""
        directories = set(self._disk.list(DIRECTORY))
        for directory in dict.fromkeys(map(directory_of, self.redo)):
            if directory.rpartition("/")[2] in directories:
                self._new_names[directory] = None

    def _of_edition(self, header: LedgerHeader) -> LedgerHeader:
        """Return *header* as the next flush writes it."""
        ledger_id = header.ledger_id
        counted = self._blocks.counted(ledger_id)
        newest = self.written.get(ledger_id, counted)
        in_place = self._in_place.get(ledger_id, newest)
        return replace(header, edition=self.edition, counted=counted, in_place=in_place)

    def _forget_in_place(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self._in_place.pop(ledger_id, None)

    def _put_piece(
        self, header: LedgerHeader, piece: Piece, log_id: int, offset: int, new: list[int]
    ) -> LedgerHeader:
        """*new* are pages that the header does not name yet; more are appended."""
        entries, starts = piece.run.entries, piece.run.starts
        moved = offset - starts[piece.begin]
        has_gaps = piece.last - piece.first >= piece.end - piece.begin
        number, page = -1, bytearray()
        index = piece.begin
        while index < piece.end:
            wanted, slot = divmod(entries[index], PAGE_ENTRIES)
            if wanted != number:
                if self.cache.is_full:
                    last = entries[index - 1] if index > piece.begin else header.last_entry
                    header = self._name(header, new, last)
                    self.flush()
                number = wanted
                exists = header.has_page(number) or new[-1:] == [number]
                page = self.cache.dirty(header.ledger_id, number, exists=exists)
                if not exists:
                    new.append(number)
            at = SLOTS_AT + slot * SLOT.size
            start = starts[index]
            if has_gaps:
                SLOT.pack_into(page, at, log_id, starts[index + 1] - start, start + moved)
                index += 1
                continue
            count = min(piece.end - index, PAGE_ENTRIES - slot)
            _fill_slots(page, slot, log_id, starts[index : index + count + 1], moved)
            index += count
        return replace(header, last_entry=max(header.last_entry, piece.last))

    def _name(self, header: LedgerHeader, new: list[int], last: int = -1) -> LedgerHeader:
        """Return the header with the pages *new* and entries up to *last*; the next flush writes
        it."""
        last = max(header.last_entry, last)
        extents = joined(header.extents, ((page, page) for page in new)) if new else header.extents
        new.clear()
        header = self._headers[header.ledger_id] = replace(header, last_entry=last, extents=extents)
        return header

    def _write_in_place(self, ledger_ids: Sequence[int]) -> None:
        """Write what waits of these ledgers to their files, durably."""
        for ledger_id in ledger_ids:
            self._in_place[ledger_id] = 0  # a full disk may end this half way
        for start in range(0, len(ledger_ids), _FILES_AT_ONCE):
            with ExitStack() as in_use:
                files = []
                for ledger_id in ledger_ids[start : start + _FILES_AT_ONCE]:
                    file = self._open(ledger_id, in_use)
                    _write_images(file, self.redo.images(ledger_id))
                    files.append(file)
                self._disk.sync_files(files)
        for directory in self._new_names:
            self._disk.sync_directory(directory)
        self._new_names.clear()

    def _open(self, ledger_id: int, in_use: ExitStack) -> DiskFile:
        """Open the file of a ledger; make it if it is not there, and note in which directory."""
        path = path_of(ledger_id)
        try:
            return in_use.enter_context(self._blocks.files.use(path))
        except FileNotFoundError:
            directory = directory_of(ledger_id)
            self._make_directory(directory)
            self._new_names[directory] = None
            self._disk.create(path).close()
            return in_use.enter_context(self._blocks.files.use(path))

    def _make_directory(self, directory: str) -> None:
        if directory in self._directories:
            return
        self._disk.make_directory(directory)
        self._disk.sync_directory(DIRECTORY)
        self._directories[directory] = None


def _header_blocks(header: LedgerHeader) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of a header by their offsets."""
    yield 0, encode_header(header)
    for number, page in overflow(header):
        yield page_offset(number), page


def _fill_slots(page: bytearray, slot: int, log_id: int, bounds: "array[int]", moved: int) -> None:
    """Let the slots from *slot* on say that entries lie between *bounds*, all *moved* in their
    log. Entries of one length, which is what most writers send, are written as two columns."""
    count = len(bounds) - 1
    begin, end, length = bounds[0], bounds[-1], bounds[1] - bounds[0]
    if end - begin == count * length and bounds == array("q", range(begin, end + 1, length)):
        first, last = _SLOTS_AT_WORD + 2 * slot, _SLOTS_AT_WORD + 2 * (slot + count)
        offsets = array("q", range(begin + moved, end + moved, length))
        with memoryview(page).cast("q") as words:
            words[first:last:2] = memoryview(array("q", (log_id | length << 32,)) * count)
            words[first + 1 : last : 2] = memoryview(offsets)
        return
    lengths = map(sub, bounds[1:], bounds)
    values = zip(repeat(log_id), lengths, map(moved.__add__, bounds), strict=False)
    at = SLOTS_AT + slot * SLOT.size
    _slots(count).pack_into(page, at, *chain.from_iterable(values))


@cache
def _slots(count: int) -> Struct:
    """Return the layout of *count* slots side by side; there are no more than fit in a page."""
    return Struct("<" + SLOT.format.removeprefix("<") * count)


def _write_images(file: DiskFile, images: Sequence[Image]) -> None:
    """Write images of one file, those that lie together at once. Does not sync."""
    start = images[0].offset
    together: list[bytes | memoryview] = []
    for image in images:
        if image.offset != start + len(together) * PAGE_BYTES:
            file.write(together, start)
            start, together = image.offset, []
        together.append(image.data)
    file.write(together, start)
