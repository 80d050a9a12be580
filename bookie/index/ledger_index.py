"""The index of all ledgers: finds entries in entry logs, and is flushed at checkpoints.

Invariants:
    what it points to was synced before it points there (rule 67; the caller's duty)
    a flush is all or nothing, whatever tears (`bookie.index.redo`)
    the header of a ledger reaches the disk together with the pages it names
    what the redo file says is in place before the redo file says something else
Writing (`put`, `flush`, `move`, `remove`) is done by one thread at a time; reading by any. After
`DiskFull` each of them may be called again; after another error nothing may be written any more.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain, compress, count, groupby, islice, repeat
from operator import attrgetter, sub
from struct import Struct
from typing import Final, NamedTuple

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Disk, DiskFile
from bookie.errors import IndexDamaged
from bookie.index import redo
from bookie.index.format import (
    DIRECTORY,
    PAGE_BYTES,
    PAGE_ENTRIES,
    SLOT,
    SLOTS_AT,
    SUFFIX,
    LedgerHeader,
    decode_header,
    directory_of,
    encode_header,
    joined,
    ledger_of,
    overflow,
    page_offset,
    path_of,
    seal_page,
)
from bookie.index.ledger_cache import LedgerCache
from bookie.index.redo import Image
from bookie.pieces import Piece

_DIRECTORY_CHARACTERS: Final = 2
_FILES_AT_ONCE: Final = 64
"""Written, then synced together."""


class Location(NamedTuple):
    """Where an entry lies. A tuple: there is one for each entry read."""

    entry_id: int
    log_id: int
    offset: int
    length: int


class LedgerIndex:
    """See the module's docstring."""

    def __init__(self, disk: Disk, *, cache_bytes: int, files_max: int) -> None:
        self._disk = disk
        self._files = FileCache(disk, files_max)
        self.cache = LedgerCache(disk, self._files, bytes_max=cache_bytes)
        self._headers: dict[int, LedgerHeader] = {}
        self._directories: dict[str, None] = {}
        self._new_names: dict[str, None] = {}
        """Directories with files that are not there for sure."""
        self._in_place = True
        """Whether all that the redo file says is where it belongs."""
        self.made: list[int] = []
        """Ledgers whose files were made since somebody emptied it."""

    def recover(self) -> list[int]:
        """Finish the flush that a crash may have interrupted; return all ledgers.

        Raises `IndexDamaged` for what is called like an index file and is none: it may be one
        that was renamed, and its ledger would be denied."""
        self.finish()
        found = []
        for directory in self._disk.list(DIRECTORY):
            if len(directory) == _DIRECTORY_CHARACTERS:
                for name in self._disk.list(f"{DIRECTORY}/{directory}"):
                    ledger_id = ledger_of(name)
                    if ledger_id is not None:
                        found.append(ledger_id)
                    elif name.endswith(SUFFIX):
                        path = self._disk.describe(f"{DIRECTORY}/{directory}/{name}")
                        raise IndexDamaged(path, 0, "no index file has such a name")
        return found

    def load(self, ledger_id: int) -> LedgerHeader:
        """Return what is on disk of a ledger. Raises `IndexDamaged`."""
        path = path_of(ledger_id)
        try:
            with self._files.use(path) as file:
                read = partial(file.read, PAGE_BYTES)
                return decode_header(read(0), ledger_id, self._disk.describe(path), read)
        except FileNotFoundError:
            raise IndexDamaged(self._disk.describe(path), 0, "the file is gone") from None
        except OSError as error:
            raise IndexDamaged(self._disk.describe(path), 0, str(error)) from error

    def has_file(self, ledger_id: int) -> bool:
        """Whether anything of a ledger was ever written, and is not gone."""
        return self._files.has(path_of(ledger_id))

    def page_locations(self, header: LedgerHeader, number: int) -> Iterator[Location]:
        """Yield where the entries of page *number* lie, ascending. Raises `IndexDamaged`."""
        if not header.has_page(number):
            return
        page = self.cache.page(header.ledger_id, number)
        first = number * PAGE_ENTRIES
        for slot, (log_id, length, offset) in enumerate(SLOT.iter_unpack(page[SLOTS_AT:])):
            if length:
                yield Location(first + slot, log_id, offset, length)

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
        images = [
            Image(ledger_id, offset, block)
            for ledger_id, header in self._headers.items()
            for offset, block in _header_blocks(header)
        ]
        images += (
            Image(ledger_id, page_offset(number), seal_page(page, ledger_id, number))
            for (ledger_id, number), page in self.cache.dirty_pages().items()
        )
        if not images:
            return
        if not self._in_place:
            self.finish()
        redo.write(self._disk, images)
        self._in_place = False
        self._write_in_place(images)
        self.cache.flushed()
        self._headers.clear()

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
        graves: bool = False,
    ) -> int:
        """Let the entries of *piece* lie at *place*, except those that do not lie in one of
        *sources* now: those are elsewhere for good reasons. Returns how many were moved.

        That it is the same log is enough: whatever place in a log the index names for an entry,
        the same bytes are there, or, if they are damaged, *piece* is of *graves*. Durable after
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
            if length != new_length and not graves:
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
        self.settle()
        for ledger_id in gone:
            with suppress(FileNotFoundError):
                self._disk.remove(path_of(ledger_id))
        for ledger_id in gone:  # only now: a reader may have opened or read one meanwhile
            self._files.forget(path_of(ledger_id))
            self._headers.pop(ledger_id, None)
        self.cache.remove(gone)

    def settle(self) -> None:
        """Leave nothing of a flush for the next start to do again, durably."""
        if not self._in_place:
            self.finish()
        redo.clear(self._disk)

    def sync_names(self, ledger_ids: Iterable[int]) -> None:
        """Make it durable that files of these ledgers were removed."""
        for directory in dict.fromkeys(map(directory_of, ledger_ids)):
            self._disk.sync_directory(directory)

    def close(self) -> None:
        self._files.close()

    def _page(self, header: LedgerHeader, number: int) -> bytes | bytearray | None:
        """Return a page for reading; None if there is none."""
        return self.cache.page(header.ledger_id, number) if header.has_page(number) else None

    def finish(self) -> None:
        """Put in place what the redo file says, durably, whatever of it is there already; but make
        no file again that is lost."""
        images = list(redo.read(self._disk))
        redo.confirm(self._disk, images)
        images = redo.placeable(images, self.has_file)
        directories = set(self._disk.list(DIRECTORY))
        for image in images:
            directory = directory_of(image.ledger_id)
            if directory.rpartition("/")[2] in directories:  # its file may not be there for sure
                self._new_names[directory] = None
        self._write_in_place(images)

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
            bounds = starts[index : index + count + 1]
            lengths = map(sub, bounds[1:], bounds)
            offsets = map(moved.__add__, bounds)
            values = chain.from_iterable(zip(repeat(log_id), lengths, offsets, strict=False))
            _slots(count).pack_into(page, at, *values)
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

    def _write_in_place(self, images: Sequence[Image]) -> None:
        """Write *images* to their files, durably."""
        ordered = sorted(images, key=attrgetter("ledger_id", "offset"))
        by_ledger = groupby(ordered, key=attrgetter("ledger_id"))
        while some := list(islice(((i, list(group)) for i, group in by_ledger), _FILES_AT_ONCE)):
            with ExitStack() as in_use:
                files = []
                for ledger_id, of_file in some:
                    file = self._open(ledger_id, in_use)
                    _write_images(file, of_file)
                    files.append(file)
                self._disk.sync_files(files)
        for directory in self._new_names:
            self._disk.sync_directory(directory)
        self._new_names.clear()
        self._in_place = True

    def _open(self, ledger_id: int, in_use: ExitStack) -> DiskFile:
        """Open the file of a ledger; make it if it is not there, and note in which directory."""
        path = path_of(ledger_id)
        try:
            return in_use.enter_context(self._files.use(path))
        except FileNotFoundError:
            directory = directory_of(ledger_id)
            self._make_directory(directory)
            self._new_names[directory] = None
            self._disk.create(path).close()
            self.made.append(ledger_id)
            return in_use.enter_context(self._files.use(path))

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
