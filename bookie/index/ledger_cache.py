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
from collections.abc import Container
from typing import Final

from bookie.index.blocks import Blocks
from bookie.index.format import PAGE_BYTES, check_page, new_page, page_offset

_PAGE_COST_BYTES: Final = PAGE_BYTES + 300
_DIRTY_SHARE: Final = 4
"""Of the pages, one of so many may be dirty: a flush holds them twice, and their headers."""
_Place = tuple[int, int]


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
