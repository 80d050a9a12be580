"""The index files of one ledger directory as a start would find them: the redo file laid on top.

Reads only. Small files of many ledgers are opened and closed one by one; the last pages that
were looked at stay in memory.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from bookie.disk.port import Disk
from bookie.errors import IndexDamaged
from bookie.index.format import (
    DIRECTORY,
    PAGE_ENTRIES,
    SLOT,
    SLOTS_AT,
    LedgerHeader,
    check_page,
    ledger_of,
    page_offset,
    path_of,
)
from bookie.index.ledger_cache import Blocks
from bookie.index.ledger_index import Location
from bookie.loss.census import Roll, RollPlace

_DIRECTORY_CHARACTERS: Final = 2
_FILES_MAX: Final = 64
_PAGES_MAX: Final = 4096
_HEADERS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Stray:
    """A file in the index that is none of it."""

    path: str
    reason: str


class IndexFiles:
    """See the module's docstring."""

    def __init__(self, disk: Disk, counted: RollPlace | None) -> None:
        """*counted*: how far the roll had come at the last census, None if that is not known."""
        self._disk = disk
        self._roll = Roll(disk)
        self._roll.load(counted)
        self.needed = self._roll.needed
        """Files that the roll of indexes needs."""
        self._blocks = Blocks(disk, files_max=_FILES_MAX, counted=self.edition_of)
        self.redo_damage: IndexDamaged | None = None
        """Why a start refuses the redo file, if it does."""
        self._load_redo()
        self._pages: OrderedDict[tuple[int, int], list[Location]] = OrderedDict()
        self._headers: OrderedDict[int, LedgerHeader | IndexDamaged] = OrderedDict()
        self.strays: list[Stray] = []
        self._here = self._list()

    def edition_of(self, ledger_id: int) -> int:
        """Return which edition of a ledger's index the roll counted last; 0: none."""
        return self._roll.editions.get(ledger_id, 0)

    def ledgers(self) -> list[int]:
        return list(self._here)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._here

    def path(self, ledger_id: int) -> str:
        return self._disk.describe(path_of(ledger_id))

    def header(self, ledger_id: int) -> LedgerHeader:
        """Raises `IndexDamaged`."""
        found = self._headers.get(ledger_id)
        if found is None:
            try:
                found = self._blocks.header(ledger_id)
            except IndexDamaged as damage:
                found = damage
            self._headers[ledger_id] = found
            while len(self._headers) > _HEADERS_MAX:
                self._headers.popitem(last=False)
        if isinstance(found, IndexDamaged):
            raise found
        return found

    def locations(self, header: LedgerHeader, number: int) -> list[Location]:
        """Return where the entries of page *number* lie, ascending. Raises `IndexDamaged`."""
        place = (header.ledger_id, number)
        found = self._pages.get(place)
        if found is not None:
            self._pages.move_to_end(place)
            return found
        page = self._blocks.read(header.ledger_id, page_offset(number))
        check_page(page, header.ledger_id, number, self.path(header.ledger_id))
        first = number * PAGE_ENTRIES
        found = [
            Location(first + slot, log_id, offset, length)
            for slot, (log_id, length, offset) in enumerate(SLOT.iter_unpack(page[SLOTS_AT:]))
            if length
        ]
        self._pages[place] = found
        while len(self._pages) > _PAGES_MAX:
            self._pages.popitem(last=False)
        return found

    def location(self, header: LedgerHeader, entry_id: int) -> Location | None:
        """Return where an entry lies; None if the index has no such entry. Raises
        `IndexDamaged`."""
        number = entry_id // PAGE_ENTRIES
        if not header.has_page(number):
            return None
        found = self.locations(header, number)
        at = bisect_left(found, (entry_id,))
        return found[at] if at < len(found) and found[at].entry_id == entry_id else None

    def pages(self, header: LedgerHeader) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in header.extents)

    def close(self) -> None:
        self._blocks.close()

    def _load_redo(self) -> None:
        try:
            self._blocks.redo.load(self.needed.redo, looks_only=True)
        except IndexDamaged as damage:
            self.redo_damage = damage
        self._blocks.drop_lost()

    def _list(self) -> dict[int, None]:
        found = dict.fromkeys(self._blocks.redo)
        for path in index_paths(self._disk):
            name = path.rpartition("/")[2]
            ledger_id = ledger_of(name)
            if ledger_id is not None and path_of(ledger_id) == path:
                found[ledger_id] = None
            else:
                self.strays.append(Stray(self._disk.describe(path), _why_stray(name)))
        return dict.fromkeys(sorted(found))


def index_paths(disk: Disk) -> Iterator[str]:
    """Yield all files where index files are."""
    for directory in disk.list(DIRECTORY):
        if len(directory) == _DIRECTORY_CHARACTERS:
            for name in disk.list(f"{DIRECTORY}/{directory}"):
                yield f"{DIRECTORY}/{directory}/{name}"


def _why_stray(name: str) -> str:
    if ledger_of(name) is not None:
        return "the index file of another place: nobody looks for it here"
    return "not an index file"
