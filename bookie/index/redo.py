"""The redo file: what index files are to say, durable before they say it.

Index blocks are written in place, and a crash may tear such a write, together with entries in
that block that were durable long ago. And each index file costs a sync of its own. So all blocks
of a flush go to this file first, as one batch, with one sync. From then on they count: whoever
reads a block asks here before the index file (`bookie.index.ledger_cache`), and a start reads all
of this file again. They are put in place later, oldest first; when none waits any more, the file is
begun anew.

Invariants:
    a block is found here from the sync of its batch until it is in place, durably
    batches are numbered on and on; each is checksummed together with all before it in the file,
        so a file that is shorter, older or another one than the roll says is found
    who removes an index file lets a batch say that what is here of its ledger does not count any
        more, or a start would bring the file back

That a batch is whole is no proof that it is on the disk: a killed process leaves behind what it
wrote and did not sync, and a sync that failed leaves blocks that the system takes for clean. What
the roll does not name was perhaps never synced; it is written again before anything rests on it
(`confirm`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Final

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.disk.port import Disk, DiskFile, DiskFull
from bookie.errors import IndexDamaged
from bookie.index.format import DIRECTORY, PAGE_BYTES, decode_header, page_offset

VERSION: Final = 2
PATH: Final = f"{DIRECTORY}/redo"
TEMPORARY_SUFFIX: Final = ".tmp"
_MAGIC: Final = b"DLOGREDO"
_HEADER: Final = Struct("<8sIIQ")  # magic, version, zero, number of the first batch
_CRC: Final = Struct("<I")
_HEADER_BYTES: Final = _HEADER.size + _CRC.size
_BATCH: Final = Struct("<IIQQ")  # chain, blocks, number, bytes of the blocks
_CHAIN_BYTES: Final = 4
_BLOCK: Final = Struct("<qqI")  # ledger, offset in its index file or -1, bytes that follow
_GONE: Final = -1
_TAIL_BYTES: Final = 4
"""Of a block; what is before is kept without the zeros at its end."""
_LENGTH_BITS: Final = 12
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1
_COPY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes that belong at one place of the index file of a ledger."""

    ledger_id: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RedoPlace:
    """The batches that are needed: *first* to *last*, none if that is less."""

    first: int = 1
    last: int = 0
    chain: int = 0
    """Checksum of the last and of all before it in the file."""


class Redo:
    """See the module's docstring. Written by one thread at a time, read by any."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._file: DiskFile | None = None
        self._end = 0
        self._first, self._last, self._chain = 1, 0, 0
        self._is_spent = False
        """Whether nothing may be appended: the file is damaged."""
        self._waiting: dict[int, dict[int, int]] = {}
        """Of each ledger, oldest first: where each of its blocks lies in this file, and its
        length in the lower bits."""
        self.blocks = 0
        """How many blocks wait."""

    @property
    def place(self) -> RedoPlace:
        return RedoPlace(self._first, self._last, self._chain)

    @property
    def size_bytes(self) -> int:
        return self._end

    @property
    def is_spent(self) -> bool:
        """Whether all that waits has to be put in place before anything is appended."""
        return self._is_spent

    def __len__(self) -> int:
        """Return how many ledgers have blocks that wait."""
        return len(self._waiting)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._waiting

    def __iter__(self) -> Iterator[int]:
        return iter(self._waiting)

    def block(self, ledger_id: int, offset: int) -> bytes | None:
        """Return the block that belongs at *offset* of an index file, if it waits for that.
        Raises `OSError`."""
        if ledger_id not in self._waiting:
            return None
        with self._lock:  # it is not begun anew meanwhile
            position = self._waiting.get(ledger_id, {}).get(offset)
            return None if position is None else self._read(position)

    def oldest(self, ledgers_max: int) -> list[int]:
        """Return the ledgers that have waited longest."""
        return list(islice(self._waiting, ledgers_max))

    def images(self, ledger_id: int) -> list[Image]:
        """Return all that waits of a ledger, ascending. Raises `OSError`."""
        with self._lock:
            return [
                Image(ledger_id, offset, self._read(position))
                for offset, position in sorted(self._waiting.get(ledger_id, {}).items())
            ]

    def load(self, needed: RedoPlace | None = None, *, looks_only: bool = False) -> None:
        """Take what is in the file. Raises `IndexDamaged` if something that is *needed* is not
        there, and `OSError`; what is there was taken all the same.

        Afterwards what was taken is durable, unless one *looks_only*."""
        needed = RedoPlace() if needed is None else needed
        self.close()
        self._waiting.clear()
        self.blocks = 0
        unsure_from = self._load(needed)
        if self._last < needed.last:
            at, self._is_spent = self._end, True
            self._last = needed.last
            if needed.first <= needed.last:
                reason = f"batch {needed.last}, which index files lack, is not whole in it"
                raise IndexDamaged(self._disk.describe(PATH), at, reason)
            self._waiting.clear()  # an older file: what was in it was put in place since
            self.blocks = 0
        elif unsure_from is not None and not looks_only:
            assert self._file is not None
            confirm(self._file, unsure_from, self._end)

    def append(self, images: Sequence[Image], gone: Iterable[int] = ()) -> None:
        """Add a batch, durably: *images*, and that what was here of ledgers that are *gone* does
        not count. Raises `OSError`; after `DiskFull` it may be done again."""
        if self._file is None or self._is_spent:
            self.begin()
        assert self._file is not None
        gone = list(gone)
        buffers: list[bytes] = [_BLOCK.pack(ledger_id, _GONE, 0) for ledger_id in gone]
        at = self._end + _BATCH.size + _BLOCK.size * len(gone)
        positions = []
        for image in images:
            data = _packed(image.data)
            buffers += (_BLOCK.pack(image.ledger_id, image.offset, len(data)), data)
            positions.append((at + _BLOCK.size) << _LENGTH_BITS | len(data))
            at += _BLOCK.size + len(data)
        body = b"".join(buffers)
        count = len(gone) + len(images)
        head = _BATCH.pack(0, count, self._last + 1, len(body))[_CHAIN_BYTES:]
        chain = _chained(self._chain, head, body)
        self._file.write([_CRC.pack(chain), head, body], self._end)
        self._file.sync()
        with self._lock:
            self._forget(gone)
            for image, position in zip(images, positions, strict=True):
                self._keep(image.ledger_id, image.offset, position)
            self._end, self._last, self._chain = at, self._last + 1, chain

    def put_in_place(self, ledger_ids: Iterable[int]) -> None:
        """Take note that all that waited of these ledgers is in place, durably. When nothing
        waits any more, the file is begun anew; if there is no space for that, later. Raises
        `OSError`."""
        with self._lock:
            self._forget(ledger_ids)
        if not self._waiting:
            self.clear()

    def strike(self, ledger_ids: Iterable[int]) -> None:
        """Let nothing count any more that is here of these ledgers, durably. Raises `OSError`;
        after `DiskFull` a start may bring back what was here."""
        ledger_ids = list(ledger_ids)
        with self._lock:
            self._forget(ledger_ids)
        if self._end > _HEADER_BYTES:
            self.append((), gone=ledger_ids)

    def drop(self, ledger_ids: Iterable[int]) -> None:
        """Forget what is here of these ledgers; a start finds it again."""
        with self._lock:
            self._forget(ledger_ids)

    def clear(self) -> None:
        """Begin the file anew, if there is space and anything in it. Requires that nothing
        waits."""
        assert not self._waiting
        if self._end > _HEADER_BYTES or self._is_spent:
            with suppress(DiskFull):
                self.begin()

    def begin(self) -> None:
        """Put an empty file in the place of what is there, durably. Requires that nothing waits.
        Raises `OSError`; after `DiskFull` nothing is changed."""
        assert not self._waiting
        temporary = PATH + TEMPORARY_SUFFIX
        header = _HEADER.pack(_MAGIC, VERSION, 0, self._last + 1)
        chain = crc32c(header)
        try:
            file = self._disk.create(temporary)
            try:
                file.write([header, _CRC.pack(chain)], 0)
                file.sync()
            finally:
                file.close()
        except DiskFull:
            with suppress(OSError):
                self._disk.remove(temporary)
            raise
        self._disk.rename(temporary, PATH)
        self._disk.sync_directory(DIRECTORY)
        with self._lock:
            self.close()
            self._file = self._disk.open(PATH)
            self._end, self._first, self._chain = _HEADER_BYTES, self._last + 1, chain
            self._is_spent = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _load(self, needed: RedoPlace) -> int | None:
        """Take all batches up to the first that is not whole; return from which byte on they may
        not be durable."""
        try:
            self._file = self._disk.open(PATH)
        except FileNotFoundError:
            return None
        data = self._file.read(_HEADER_BYTES, 0)
        if not _is_whole(data):
            self.close()
            return None
        first = _HEADER.unpack_from(data)[3]
        (chain,) = _CRC.unpack_from(data, _HEADER.size)
        self._first, self._last, self._chain = first, first - 1, chain
        self._end = unsure_from = _HEADER_BYTES
        size_bytes = self._file.size()
        while self._load_batch(self._file, size_bytes):
            if self._last == needed.last:
                if self._chain != needed.chain:  # it is another file than there was
                    self._last -= 1
                    break
                unsure_from = self._end
        return unsure_from

    def _load_batch(self, file: DiskFile, size_bytes: int) -> bool:
        """Take the next batch; return whether it is whole."""
        head = file.read(_BATCH.size, self._end)
        if len(head) < _BATCH.size:
            return False
        crc, count, number, body_bytes = _BATCH.unpack(head)
        begin = self._end + _BATCH.size
        if number != self._last + 1 or body_bytes > size_bytes - begin:
            return False
        body = file.read(body_bytes, begin)
        chain = _chained(self._chain, head[_CHAIN_BYTES:], body)
        blocks = _blocks(body, count) if chain == crc else None
        if blocks is None:
            return False
        for ledger_id, offset, length, at in blocks:
            if offset == _GONE:
                self._forget((ledger_id,))
            else:
                self._keep(ledger_id, offset, (begin + at) << _LENGTH_BITS | length)
        self._end, self._last, self._chain = begin + body_bytes, number, chain
        return True

    def _read(self, position: int) -> bytes:
        assert self._file is not None
        data = self._file.read(position & _LENGTH_MASK, position >> _LENGTH_BITS)
        return _unpacked(data)

    def _keep(self, ledger_id: int, offset: int, position: int) -> None:
        of_ledger = self._waiting.setdefault(ledger_id, {})
        self.blocks += offset not in of_ledger
        of_ledger[offset] = position

    def _forget(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self.blocks -= len(self._waiting.pop(ledger_id, ()))


def confirm(file: DiskFile, start: int, end: int) -> None:
    """Make durable what was read from *start* to *end* just now, by writing the same bytes again:
    each sector stays as it is or becomes what it should be."""
    if start == end:
        return
    for at in range(start, end, _COPY_BYTES):
        file.write([file.read(min(_COPY_BYTES, end - at), at)], at)
    file.sync()


def is_all(ledger_id: int, block: Callable[[int], bytes | None]) -> bool:
    """Whether the blocks of a ledger that wait are a whole index file; *block* returns the one at
    an offset.

    If its file is not there, and they are not, it was lost. Of some of its blocks it would become
    a damaged file, which hides that it is gone: what is gone is missed (`bookie.loss.census`)."""
    try:
        header = decode_header(block(0) or b"", ledger_id, "", lambda at: block(at) or b"")
    except IndexDamaged:
        return False
    return all(
        block(page_offset(page)) is not None
        for first, last in header.extents
        for page in range(first, last + 1)
    )


def _is_whole(data: bytes) -> bool:
    """Whether *data* is a whole header."""
    header = data[: _HEADER.size]
    if len(data) < _HEADER_BYTES or not header.startswith(_MAGIC + _CRC.pack(VERSION)):
        return False
    return bool(_CRC.unpack_from(data, len(header))[0] == crc32c(header))


def _blocks(body: bytes, count: int) -> list[tuple[int, int, int, int]] | None:
    """Return ledger, offset, length and place in *body* of *count* blocks; None if there are none
    such."""
    found = []
    at = 0
    for _ in range(min(count, len(body) // _BLOCK.size + 1)):
        if at + _BLOCK.size > len(body):
            return None
        ledger_id, offset, length = _BLOCK.unpack_from(body, at)
        at += _BLOCK.size
        is_block = offset >= 0 and _TAIL_BYTES <= length <= PAGE_BYTES
        if not is_block and (offset, length) != (_GONE, 0):
            return None
        found.append((ledger_id, offset, length, at))
        at += length
    return found if at == len(body) else None


def _packed(block: bytes) -> bytes:
    """Return *block* without most of its zeros; few are full."""
    assert len(block) == PAGE_BYTES
    return block[:-_TAIL_BYTES].rstrip(b"\0") + block[-_TAIL_BYTES:]


def _unpacked(data: bytes) -> bytes:
    return data[:-_TAIL_BYTES].ljust(PAGE_BYTES - _TAIL_BYTES, b"\0") + data[-_TAIL_BYTES:]


def _chained(chain: int, head: bytes, body: bytes) -> int:
    return int(extend(extend(crc32c(_CRC.pack(chain)), head), body))
