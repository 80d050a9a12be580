"""The redo file: what is about to be written over in index files, durable beforehand.

Index pages are written in place, and a crash may tear such a write, together with entries in
that page that were durable long ago. So all pages of a flush go to this file first; a start
writes them to their places again if the file is whole. If it is not, no page was touched.

That the file is whole is no proof that it is on the disk: a killed process leaves behind what it
wrote and did not sync, and a sync that failed leaves pages that the system takes for clean. So
it is written again before anything rests on it (`confirm`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.disk.port import Disk
from bookie.errors import IndexDamaged
from bookie.index.format import DIRECTORY, PAGE_BYTES, decode_header, page_offset

VERSION: Final = 1
PATH: Final = f"{DIRECTORY}/redo"
_MAGIC: Final = b"DLOGREDO"
_HEADER: Final = Struct("<8sIII")  # magic, version, images, CRC32C of the images
_CRC: Final = Struct("<I")
_HEADER_BYTES: Final = _HEADER.size + _CRC.size
_IMAGE: Final = Struct("<qq")


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes that belong at one place of the index file of a ledger."""

    ledger_id: int
    offset: int
    data: bytes


def write(disk: Disk, images: Sequence[Image]) -> None:
    """Replace the redo file, durably. Requires that its images are all in place and synced."""
    _write(disk, images)


def confirm(disk: Disk, images: Sequence[Image]) -> None:
    """Make durable what was read as *images* just now, by writing the same bytes again: each
    sector stays as it is or becomes what it should be."""
    if images:
        _write(disk, images)


def _write(disk: Disk, images: Sequence[Image]) -> None:
    crc = 0
    buffers: list[bytes | memoryview] = []
    for image in images:
        assert len(image.data) == PAGE_BYTES
        head = _IMAGE.pack(image.ledger_id, image.offset)
        crc = extend(extend(crc, head), image.data)
        buffers += (head, image.data)
    header = _HEADER.pack(_MAGIC, VERSION, len(images), crc)
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        file = disk.create(PATH)
        disk.sync_directory(DIRECTORY)
    try:
        file.write([header + _CRC.pack(crc32c(header)), *buffers], 0)
        file.sync()
    finally:
        file.close()


def read(disk: Disk) -> Iterator[Image]:
    """Yield the images of the redo file; nothing if it is not there or not whole."""
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return
    try:
        data = file.read(_HEADER_BYTES, 0)
        if len(data) < _HEADER_BYTES:
            return
        header = data[: _HEADER.size]
        magic, version, count, crc_expected = _HEADER.unpack(header)
        if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(header):
            return
        if magic != _MAGIC or version != VERSION:
            return
        body = file.read(count * (_IMAGE.size + PAGE_BYTES), _HEADER_BYTES)
    finally:
        file.close()
    if len(body) != count * (_IMAGE.size + PAGE_BYTES) or crc32c(body) != crc_expected:
        return
    for at in range(0, len(body), _IMAGE.size + PAGE_BYTES):
        ledger_id, offset = _IMAGE.unpack_from(body, at)
        yield Image(ledger_id, offset, body[at + _IMAGE.size : at + _IMAGE.size + PAGE_BYTES])


def placeable(images: Sequence[Image], is_there: Callable[[int], bool]) -> list[Image]:
    """Return those of *images* that are to be written to their places again: of files that are
    there, and of those that they are all of.

    Any other file was lost since. Of some of its pages it would become a damaged file, which hides
    that it is gone: what is gone is missed (`bookie.loss.census`), and then written again."""
    of_ledger: dict[int, dict[int, bytes]] = {}
    for image in images:
        of_ledger.setdefault(image.ledger_id, {})[image.offset] = image.data
    lost = {
        ledger_id
        for ledger_id, blocks in of_ledger.items()
        if not is_there(ledger_id) and not _is_all(ledger_id, blocks)
    }
    return [image for image in images if image.ledger_id not in lost]


def _is_all(ledger_id: int, blocks: dict[int, bytes]) -> bool:
    """Whether these *blocks* are a whole index file."""
    try:
        header = decode_header(blocks.get(0, b""), ledger_id, "", lambda at: blocks.get(at, b""))
    except IndexDamaged:
        return False
    count = sum(last - first + 1 for first, last in header.extents)
    return count < len(blocks) and all(
        page_offset(page) in blocks
        for first, last in header.extents
        for page in range(first, last + 1)
    )


def clear(disk: Disk) -> None:
    """Leave nothing to be done again, durably. Requires that all images are in place and synced.

    Who removes index files comes here first, or the next start would make them again."""
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return
    try:
        file.write([bytes(_HEADER_BYTES)], 0)
        file.sync()
    finally:
        file.close()
