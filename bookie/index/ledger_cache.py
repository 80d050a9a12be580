"""The ledger cache: index pages in memory, dirty ones until the next flush, others by LRU.

Dirty pages belong to the one thread that writes (the sync thread). Readers see a dirty page
before it is on disk, which is fine: the entry logs it points to are synced already (rule 67).

Invariants:
    a page is dirty or clean, never both; a dirty page is never evicted
    a clean page is what is on disk
Pages are read from disk with the lock held, so a page read before a flush can never
replace the one that the flush wrote.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Container
from functools import partial
from typing import Final

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Disk
from bookie.errors import IndexDamaged
from bookie.index.format import (
    PAGE_BYTES,
    LedgerHeader,
    check_page,
    decode_header,
    new_page,
    page_offset,
    path_of,
)
from bookie.index.redo import Redo, is_all

_READS_MAX: Final = 1000
"""Of one header; each is undone only by a checkpoint that counts the ledger meanwhile."""
_PAGE_COST_BYTES: Final = PAGE_BYTES + 300
_DIRTY_SHARE: Final = 4
"""Of the pages, one of so many may be dirty: a flush holds them twice, and their headers."""
_Place = tuple[int, int]


class Blocks:
    """Reads blocks of index files, the redo file laid on top, and sees that both are the newest.

    Asked from any thread.
    """

    def __init__(
        self, disk: Disk, *, files_max: int, counted: Callable[[int], int] = lambda _ledger_id: 0
    ) -> None:
        """*counted* returns the edition that the roll has of a ledger's index; 0: none."""
        self.counted = counted
        self._disk = disk
        self.files = FileCache(disk, files_max)
        self.redo = Redo(disk)

    def read(self, ledger_id: int, offset: int) -> bytes:
        """Return the block at *offset*, shorter if the file ends there. Raises `IndexDamaged`."""
        try:
            waiting = self.redo.block(ledger_id, offset)
            if waiting is not None:
                return waiting
            with self.files.use(path_of(ledger_id)) as file:
                return file.read(PAGE_BYTES, offset)
        except FileNotFoundError:
            raise IndexDamaged(self.describe(ledger_id), 0, "the file is gone") from None
        except OSError as error:
            raise IndexDamaged(self.describe(ledger_id), offset, str(error)) from error

    def header(self, ledger_id: int) -> LedgerHeader:
        """Return what is on disk of a ledger. Raises `IndexDamaged`, also if it is not of the
        edition that was counted."""
        path = self.describe(ledger_id)
        read = partial(self.read, ledger_id)
        for _ in range(_READS_MAX):
            counted = self.counted(ledger_id)
            header = decode_header(read(0), ledger_id, path, read)
            if header.is_of(counted):
                return header
            if self.counted(ledger_id) == counted:
                break
        raise IndexDamaged(path, 0, "it is an older one, or another bookie's")

    def in_place(self, ledger_id: int) -> int:
        """Return which edition the index file itself is; 0 if it is not there, or does not say."""
        try:
            with self.files.use(path_of(ledger_id)) as file:
                return decode_header(file.read(PAGE_BYTES, 0), ledger_id, "").edition
        except (OSError, IndexDamaged):
            return 0

    def drop_lost(self) -> dict[int, int]:
        """Let nothing wait for an index file that is lost, nor for one in whose place is another:
        what is gone is missed, what is older is found to be so. Return what is in place of the
        others."""
        found: dict[int, int] = {}
        for ledger_id in list(self.redo):
            block = partial(self.redo.block, ledger_id)
            has_file = self.files_has(ledger_id)
            found[ledger_id] = in_place = self.in_place(ledger_id) if has_file else 0
            data = block(0)
            fits = not in_place or data is None or _may_lie_over(data, ledger_id, in_place)
            if not (fits and has_file) and not is_all(ledger_id, block):
                self.redo.drop((ledger_id,))
                del found[ledger_id]
        return found

    def has(self, ledger_id: int) -> bool:
        """Whether anything of a ledger was ever written, and is not gone."""
        return ledger_id in self.redo or self.files_has(ledger_id)

    def files_has(self, ledger_id: int) -> bool:
        """Whether the ledger has an index file."""
        return self.files.has(path_of(ledger_id))

    def describe(self, ledger_id: int) -> str:
        return self._disk.describe(path_of(ledger_id))

    def close(self) -> None:
        self.redo.close()
        self.files.close()


def _may_lie_over(data: bytes, ledger_id: int, in_place: int) -> bool:
    try:
        return decode_header(data, ledger_id, "").may_lie_over(in_place)
    except IndexDamaged:
        return True  # it is damage, and found when it is read


class LedgerCache:
    """Pages by (ledger id, page number). See the module's docstring."""

    def __init__(self, blocks: Blocks, *, bytes_max: int) -> None:
        self._blocks = blocks
        self.pages_max = max(1, bytes_max // _PAGE_COST_BYTES)
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._dirty: dict[_Place, bytearray] = {}
        self._clean: OrderedDict[_Place, bytes] = OrderedDict()

    @property
    def is_full(self) -> bool:
        """Whether the dirty pages fill their share of it; then it is time to flush."""
        return len(self._dirty) * _DIRTY_SHARE >= self.pages_max

    def __len__(self) -> int:
        """Return the number of pages in memory."""
        return len(self._dirty) + len(self._clean)

    def page(self, ledger_id: int, number: int, *, keep: bool = True) -> bytes | bytearray:
        """Return a page that exists, for reading. Raises `IndexDamaged`.

        Without *keep*, a page that is not in memory is not put there: whoever goes through all
        ledgers once would drive out what readers need."""
        with self._lock:
            dirty = self._dirty.get((ledger_id, number))
            return dirty or self._load(ledger_id, number, keep=keep)

    def dirty(self, ledger_id: int, number: int, *, exists: bool) -> bytearray:
        """Return a page to be changed, a new one unless it *exists*. Raises `IndexDamaged`."""
        place = (ledger_id, number)
        with self._lock:
            page = self._dirty.get(place)
            if page is None:
                page = bytearray(self._load(ledger_id, number)) if exists else new_page()
                self._clean.pop(place, None)
                self._dirty[place] = page
            return page

    def dirty_pages(self) -> dict[_Place, bytearray]:
        """Return all dirty pages, a ledger's together, in order of their numbers."""
        return {place: self._dirty[place] for place in sorted(self._dirty)}

    def flushed(self) -> None:
        """Take note that all dirty pages are on disk as they are in memory."""
        with self._lock:
            for place, page in self._dirty.items():
                self._keep(place, bytes(page))
            self._dirty.clear()

    def remove(self, ledger_ids: Container[int]) -> None:
        """Forget all pages of these ledgers, also dirty ones: their files are gone."""
        with self._lock:
            for pages in (self._dirty, self._clean):
                for place in [place for place in pages if place[0] in ledger_ids]:
                    del pages[place]

    def _load(self, ledger_id: int, number: int, *, keep: bool = True) -> bytes:
        place = (ledger_id, number)
        page = self._clean.get(place)
        if page is not None:
            self.hits += 1
        else:
            self.misses += 1
            page = self._blocks.read(ledger_id, page_offset(number))
            check_page(page, ledger_id, number, self._blocks.describe(ledger_id))
            if not keep:
                return page
        self._keep(place, page)
        return page

    def _keep(self, place: _Place, page: bytes) -> None:
        self._clean[place] = page
        self._clean.move_to_end(place)
        while len(self._clean) + len(self._dirty) > self.pages_max and len(self._clean) > 1:
            self._clean.popitem(last=False)
