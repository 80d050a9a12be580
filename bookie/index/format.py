"""The bytes of an index file: a header and pages, all of one size; see docs/formats.md.

A page says for 127 entries where they lie in the entry logs. The header says what the ledger
is and which pages exist, so that a page that is missing, zeroed or another one's is damage and
never a "no such entry". It also says which *edition* of the file it is: a random number for each
writing, which the roll has too (`bookie.loss.census`), so a file that is older, or another
bookie's, is damage as well. Where it has no room for all extents, the first of them are in pages of
their own behind the last page (`overflow`); they are written whenever the header is, so together
they are as good as one block.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import count, islice
from os import urandom
from struct import Struct
from typing import Final

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.errors import IndexDamaged

VERSION: Final = 1
OVERFLOW_VERSION: Final = 2
"""Of a header whose extents are not all in it, and of the pages with the others."""
DIRECTORY: Final = "index"
SUFFIX: Final = ".index"
PAGE_BYTES: Final = 2048
PAGE_ENTRIES: Final = 127
ENTRY_ID_MAX: Final = 10**12 - 1
"""Beyond it an index file would be larger than file systems allow."""
KEY_BYTES_MAX: Final = 64
EXTENTS_MAX: Final = 100
"""In the header itself."""
STRETCHES_MAX: Final = 1 << 16
"""Extents of one ledger to which adds may bring it. A bookie holds one stretch of ids for each
fragment that names it, or for each time that it was away: an ensemble has at most 64 bookies, so
it has an entry on each page of a fragment."""

_MAGIC: Final = b"DLOGINDX"
_HEADER: Final = Struct("<8sIIqqHHI")
_EXTENT: Final = Struct("<qq")
_EDITIONS: Final = Struct("<QQQ")  # this one, the one counted before, the one in place before
_CRC: Final = Struct("<I")
_FENCED: Final = 1
_PAGE: Final = Struct("<IIq")
_PAGE_SEED: Final = Struct("<q")
SLOT: Final = Struct("<IIq")
SLOTS_AT: Final = _PAGE.size
PAGE_EXTENTS: Final = (PAGE_BYTES - SLOTS_AT) // _EXTENT.size

Extents = tuple[tuple[int, int], ...]
"""Pages that exist, as ascending (first, last), with at least one missing page between."""


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """What is on disk of a ledger, apart from its entries."""

    ledger_id: int
    key: bytes = field(repr=False)
    fenced: bool = False
    lac_proof: bytes = b""
    last_entry: int = -1
    extents: Extents = ()
    edition: int = field(default=0, compare=False)
    """Of this writing; 0: not known, it is of a program without editions."""
    counted: int = field(default=0, compare=False)
    """The edition that the roll had then; 0: none."""
    in_place: int = field(default=0, compare=False)
    """The edition that the index file itself had then; 0: none, or not known."""

    def is_of(self, counted: int) -> bool:
        """Whether the file is of the edition that the roll has now, or of the one that a crash kept
        from it."""
        return not counted or counted in (self.edition, self.counted)

    def may_lie_over(self, in_place: int) -> bool:
        """Whether an index file of this edition is one that this header was to be written to."""
        return not self.in_place or in_place in (self.edition, self.in_place)

    def has_page(self, page: int) -> bool:
        at = bisect_right(self.extents, (page, ENTRY_ID_MAX)) - 1
        return at >= 0 and page <= self.extents[at][1]

    def pages(self, first: int, last: int) -> Iterator[int]:
        """Yield the pages that exist and may say something of the entries first..last."""
        first, last = first // PAGE_ENTRIES, last // PAGE_ENTRIES
        begin_at = max(0, bisect_right(self.extents, (first, ENTRY_ID_MAX)) - 1)
        for begin, end in islice(self.extents, begin_at, None):
            if begin > last:
                return
            yield from range(max(first, begin), min(last, end) + 1)


def new_edition(entropy: Callable[[int], bytes] = urandom) -> int:
    """Return an edition that no index file has."""
    return int.from_bytes(entropy(8), "little") or 1


def directory_of(ledger_id: int) -> str:
    return f"{DIRECTORY}/{ledger_id & 0xFF:02x}"


def path_of(ledger_id: int) -> str:
    return f"{directory_of(ledger_id)}/{ledger_id:016x}{SUFFIX}"


def ledger_of(name: str) -> int | None:
    """Return the ledger of the file of that name, None if it is no index file."""
    try:
        ledger_id = int(name.removesuffix(SUFFIX), 16)
    except ValueError:
        return None
    return ledger_id if f"{ledger_id:016x}{SUFFIX}" == name else None


def page_offset(page: int) -> int:
    return PAGE_BYTES * (page + 1)


def encode_header(header: LedgerHeader) -> bytes:
    """Return the header; what has no room in it is in `overflow`."""
    assert len(header.key) <= KEY_BYTES_MAX
    own = header.extents[-EXTENTS_MAX:]
    version = VERSION if len(own) == len(header.extents) else OVERFLOW_VERSION
    body = b"".join(
        (
            _HEADER.pack(
                _MAGIC, version, _FENCED if header.fenced else 0,
                header.ledger_id, header.last_entry,
                len(header.key), len(header.lac_proof), len(header.extents),
            ),
            header.key,
            header.lac_proof,
            *(_EXTENT.pack(first, last) for first, last in own),
            _EDITIONS.pack(header.edition, header.counted, header.in_place),
        )
    )  # fmt: skip
    body = body.ljust(PAGE_BYTES - _CRC.size, b"\0")
    return body + _CRC.pack(crc32c(body))


def overflow(header: LedgerHeader) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of the pages with the extents that have no room in the header."""
    rest = header.extents[:-EXTENTS_MAX]
    for number, begin in zip(_overflow_numbers(header.extents), count(0, PAGE_EXTENTS)):
        page = new_page()
        for at, extent in enumerate(rest[begin : begin + PAGE_EXTENTS]):
            _EXTENT.pack_into(page, SLOTS_AT + at * _EXTENT.size, *extent)
        yield number, _seal(page, header.ledger_id, number, OVERFLOW_VERSION)


def _overflow_numbers(extents: Extents, *, total: int | None = None) -> range:
    """Return the pages that the first of *total* extents take, behind the last of all pages."""
    rest = max(0, (len(extents) if total is None else total) - EXTENTS_MAX)
    behind = extents[-1][1] + 1 if extents else 0
    return range(behind, behind + -(-rest // PAGE_EXTENTS))


def decode_header(
    data: bytes,
    ledger_id: int,
    path: str,
    read_block: Callable[[int], bytes] | None = None,
) -> LedgerHeader:
    """Return what *data* says, and the other blocks that it needs: *read_block* returns the one at
    an offset; without it only the extents in *data* are returned. Raises `IndexDamaged`."""
    if len(data) != PAGE_BYTES:
        raise IndexDamaged(path, len(data), "the file ends within its header")
    body = data[: -_CRC.size]
    if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
        raise IndexDamaged(path, 0, "the checksum of the header differs")
    magic, version, flags, ledger, last_entry, key_bytes, lac_bytes, extents = _HEADER.unpack_from(
        body
    )
    if magic != _MAGIC or version not in (VERSION, OVERFLOW_VERSION):
        raise IndexDamaged(path, 0, f"not an index file of version {VERSION} or {OVERFLOW_VERSION}")
    if ledger != ledger_id:
        raise IndexDamaged(path, 0, f"it is the index of ledger {ledger}")
    lac_at = _HEADER.size + key_bytes
    extents_at = lac_at + lac_bytes
    extents_end = extents_at + min(extents, EXTENTS_MAX) * _EXTENT.size
    if extents_end + _EDITIONS.size > len(body):
        raise IndexDamaged(path, 0, "its fields are longer than the header")
    own: Extents = tuple(_EXTENT.iter_unpack(body[extents_at:extents_end]))
    rest: list[tuple[int, int]] = []
    if read_block is not None:
        for number in _overflow_numbers(own, total=extents):
            page = read_block(page_offset(number))
            check_page(page, ledger_id, number, path, version=OVERFLOW_VERSION)
            rest += _EXTENT.iter_unpack(page[SLOTS_AT:])
    return LedgerHeader(
        ledger,
        body[_HEADER.size : lac_at],
        bool(flags & _FENCED),
        body[lac_at:extents_at],
        last_entry,
        (*rest[: extents - len(own)], *own),
        *_EDITIONS.unpack_from(body, extents_end),
    )


def new_page() -> bytearray:
    return bytearray(PAGE_BYTES)


def seal_page(page: bytearray, ledger_id: int, number: int) -> bytes:
    """Return the bytes to write for *page*."""
    return _seal(page, ledger_id, number, VERSION)


def _seal(page: bytearray, ledger_id: int, number: int, version: int) -> bytes:
    _PAGE.pack_into(page, 0, 0, version, number)
    crc = extend(crc32c(_PAGE_SEED.pack(ledger_id)), bytes(page[_CRC.size :]))
    _CRC.pack_into(page, 0, crc)
    return bytes(page)


def check_page(
    data: bytes, ledger_id: int, number: int, path: str, *, version: int = VERSION
) -> None:
    """Raises `IndexDamaged`."""
    at = page_offset(number)
    if len(data) != PAGE_BYTES:
        raise IndexDamaged(path, at + len(data), f"the file ends within page {number}")
    crc, version_found, found = _PAGE.unpack_from(data)
    if crc != extend(crc32c(_PAGE_SEED.pack(ledger_id)), data[_CRC.size :]):
        raise IndexDamaged(path, at, f"the checksum of page {number} differs")
    if version_found != version or found != number:
        reason = f"page {found} of version {version_found} instead of {number}"
        raise IndexDamaged(path, at, reason)


def joined(extents: Extents, more: Iterable[tuple[int, int]]) -> Extents:
    """Return *extents* with *more*, ascending, in them."""
    found: list[tuple[int, int]] = []
    for first, last in merge(extents, more):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def touches(extents: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether the pages first..last overlap one of *extents*, or lie beside it."""
    at = bisect_right(extents, (last + 1, ENTRY_ID_MAX)) - 1
    return at >= 0 and extents[at][1] >= first - 1


def insert(extents: list[tuple[int, int]], first: int, last: int) -> None:
    """Put the pages first..last into *extents*, in place."""
    end = bisect_right(extents, (last + 1, ENTRY_ID_MAX))
    begin = end
    while begin and extents[begin - 1][1] >= first - 1:
        begin -= 1
        first = min(first, extents[begin][0])
        last = max(last, extents[begin][1])
    extents[begin:end] = [(first, last)]


def extents_of(entries: Sequence[int]) -> Extents:
    """Return the pages of ascending *entries*, at least one."""
    first, last = entries[0] // PAGE_ENTRIES, entries[-1] // PAGE_ENTRIES
    if first == last or entries[-1] - entries[0] == len(entries) - 1:
        return ((first, last),)
    pages = dict.fromkeys(entry_id // PAGE_ENTRIES for entry_id in entries)
    return joined((), ((page, page) for page in pages))
