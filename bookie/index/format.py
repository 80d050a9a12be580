"""The bytes of an index file: a header and pages, all of one size; see docs/formats.md.

A page says for 127 entries where they lie in the entry logs. The header says what the ledger
is and which pages exist, so that a page that is missing, zeroed or another one's is damage and
never a "no such entry".
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.errors import IndexDamaged

VERSION: Final = 1
DIRECTORY: Final = "index"
SUFFIX: Final = ".index"
PAGE_BYTES: Final = 2048
PAGE_ENTRIES: Final = 127
ENTRY_ID_MAX: Final = 10**12 - 1
"""Beyond it an index file would be larger than file systems allow."""
KEY_BYTES_MAX: Final = 64
EXTENTS_MAX: Final = 100

_MAGIC: Final = b"DLOGINDX"
_HEADER: Final = Struct("<8sIIqqHHI")
_EXTENT: Final = Struct("<qq")
_CRC: Final = Struct("<I")
_FENCED: Final = 1
_PAGE: Final = Struct("<IIq")
_PAGE_SEED: Final = Struct("<q")
SLOT: Final = Struct("<IIq")
SLOTS_AT: Final = _PAGE.size

Extents = tuple[tuple[int, int], ...]
"""Pages that exist, as ascending (first, last), with at least one missing page between."""


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """What is on disk of a ledger, besides its entries."""

    ledger_id: int
    key: bytes
    fenced: bool = False
    lac_proof: bytes = b""
    last_entry: int = -1
    extents: Extents = ()

    def has_page(self, page: int) -> bool:
        at = bisect_right(self.extents, (page, ENTRY_ID_MAX)) - 1
        return at >= 0 and page <= self.extents[at][1]

    def pages(self, first: int, last: int) -> Iterator[int]:
        """Yield the pages that exist and may say something of the entries first..last."""
        first, last = first // PAGE_ENTRIES, last // PAGE_ENTRIES
        for begin, end in self.extents:
            yield from range(max(first, begin), min(last, end) + 1)


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
    assert len(header.key) <= KEY_BYTES_MAX
    assert len(header.extents) <= EXTENTS_MAX
    body = b"".join(
        (
            _HEADER.pack(
                _MAGIC, VERSION, _FENCED if header.fenced else 0,
                header.ledger_id, header.last_entry,
                len(header.key), len(header.lac_proof), len(header.extents),
            ),
            header.key,
            header.lac_proof,
            *(_EXTENT.pack(first, last) for first, last in header.extents),
        )
    )  # fmt: skip
    body = body.ljust(PAGE_BYTES - _CRC.size, b"\0")
    return body + _CRC.pack(crc32c(body))


def decode_header(data: bytes, ledger_id: int, path: str) -> LedgerHeader:
    """Raises `IndexDamaged`."""
    if len(data) != PAGE_BYTES:
        raise IndexDamaged(path, len(data), "the file ends within its header")
    body = data[: -_CRC.size]
    if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
        raise IndexDamaged(path, 0, "the checksum of the header differs")
    magic, version, flags, ledger, last_entry, key_bytes, lac_bytes, extents = _HEADER.unpack_from(
        body
    )
    if magic != _MAGIC or version != VERSION:
        raise IndexDamaged(path, 0, f"not an index file of version {VERSION}")
    if ledger != ledger_id:
        raise IndexDamaged(path, 0, f"it is the index of ledger {ledger}")
    lac_at = _HEADER.size + key_bytes
    extents_at = lac_at + lac_bytes
    extents_end = extents_at + extents * _EXTENT.size
    if extents_end > len(body):
        raise IndexDamaged(path, 0, "its fields are longer than the header")
    return LedgerHeader(
        ledger,
        body[_HEADER.size : lac_at],
        bool(flags & _FENCED),
        body[lac_at:extents_at],
        last_entry,
        tuple((first, last) for first, last in _EXTENT.iter_unpack(body[extents_at:extents_end])),
    )


def new_page() -> bytearray:
    return bytearray(PAGE_BYTES)


def seal_page(page: bytearray, ledger_id: int, number: int) -> bytes:
    """Return the bytes to write for *page*."""
    _PAGE.pack_into(page, 0, 0, VERSION, number)
    crc = extend(crc32c(_PAGE_SEED.pack(ledger_id)), bytes(page[_CRC.size :]))
    _CRC.pack_into(page, 0, crc)
    return bytes(page)


def check_page(data: bytes, ledger_id: int, number: int, path: str) -> None:
    """Raises `IndexDamaged`."""
    at = page_offset(number)
    if len(data) != PAGE_BYTES:
        raise IndexDamaged(path, at + len(data), f"the file ends within page {number}")
    crc, version, found = _PAGE.unpack_from(data)
    if crc != extend(crc32c(_PAGE_SEED.pack(ledger_id)), data[_CRC.size :]):
        raise IndexDamaged(path, at, f"the checksum of page {number} differs")
    if version != VERSION or found != number:
        raise IndexDamaged(path, at, f"page {found} of version {version} instead of {number}")


def with_page(extents: Extents, page: int) -> Extents:
    """Return *extents* with *page* in them."""
    at = bisect_right(extents, (page, ENTRY_ID_MAX))
    if at and page <= extents[at - 1][1]:
        return extents
    first = last = page
    begin = end = at
    if at and extents[at - 1][1] == page - 1:
        begin, first = at - 1, extents[at - 1][0]
    if at < len(extents) and extents[at][0] == page + 1:
        end, last = at + 1, extents[at][1]
    return (*extents[:begin], (first, last), *extents[end:])


def smallest_gap(extents: Extents) -> tuple[int, int]:
    """Return first and last of the fewest missing pages between two extents."""
    gaps = [(a[1] + 1, b[0] - 1) for a, b in pairwise(extents)]
    return min(gaps, key=lambda gap: gap[1] - gap[0])
