"""Format of an object that holds one sealed segment.

    magic      8 bytes
    blocks     whole entries, each as bookies stored it, about 512 KiB together
    footer     a message `ObjectFooter`: whose entries these are, and where each block ends
    trailer    bytes of the footer, its CRC32C, magic: 16 bytes

Entries keep their checksums, authentication codes and encryption. Blocks and footer have checksums
of their own, so a reader knows each byte that it uses to be right. The index is sparse: entries
name their length, so a block is walked from its start. An object has at least these two magics and
a footer, also of a segment without entries.

Bounds: a footer is read only up to `FOOTER_BYTES_MAX`, and nothing is allocated by what it says
before its lengths add up to the size of the object.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Self

from google.protobuf.message import DecodeError
from google_crc32c import value

from dlog.errors import MalformedObject
from dlog.manifest import Sealed, Segment
from dlog.protocol.object_owner import ObjectOwner
from dlog.wire import archive_pb2 as pb
from ledger.entry import HEADER_BYTES, Digest, Header, parse_header, payload_of, verify_whole
from ledger.errors import DamagedEntry
from ledger.ids import NO_ENTRY, EntryId, LedgerId

FORMAT_VERSION: Final = 1
MAGIC: Final = b"dlogseg1"
END_MAGIC: Final = b"dlogend1"
BLOCK_BYTES: Final = 512 * 1024
"""A block is closed as soon as it has as many, so it is larger by one entry at most."""
FOOTER_BYTES_MAX: Final = 16 << 20
_TRAILER: Final = struct.Struct("<II8s")
TRAILER_BYTES: Final = _TRAILER.size
LEAST_BYTES: Final = len(MAGIC) + TRAILER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedSegment:
    """Whose entries an object holds, as the manifest said when it was written."""

    incarnation: str
    log: str
    """The name of the log then; for people."""
    number: int
    ledger_id: LedgerId
    first_offset: int
    sealed: Sealed
    created_ms: int
    archived_ms: int = 0
    digest: Digest = Digest.CRC32C
    custom: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def entries(self) -> int:
        return self.sealed.last_entry + 1

    def check_ends(self, last_entry: EntryId | None) -> None:
        """Raise `MalformedObject` unless *last_entry* is the last one of a copy."""
        if last_entry != self.sealed.last_entry:
            raise MalformedObject(f"it ends at entry {last_entry}, not {self.sealed.last_entry}")

    def check_is(self, segment: Segment) -> None:
        """Raise `MalformedObject` unless these are the entries of *segment*."""
        for what, here, listed in (
            ("segment", self.number, segment.number),
            ("ledger", self.ledger_id, segment.ledger_id),
            ("first offset", self.first_offset, segment.first_offset),
            ("end", self.sealed, segment.sealed),
        ):
            if here != listed:
                raise MalformedObject(f"its {what} is {here}, not {listed}")


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One entry of an object."""

    entry_id: EntryId
    payload: memoryview
    length: int
    """Payload bytes of this entry and all before it in its ledger."""
    frame: memoryview
    """All of it, as bookies stored it."""


class ObjectEncoder:
    """Encodes the object of *segment* from its entries, given in order from the first one on."""

    def __init__(self, segment: ArchivedSegment) -> None:
        self.segment = segment
        self._open: list[bytes | memoryview] = []
        self._open_bytes = 0
        self._block_bytes: list[int] = []
        self._block_entries: list[int] = []
        self._block_crcs: list[int] = []
        self._entries = 0
        self.bytes = 0
        """Encoded so far, as returned by `begin`, `add` and `end`."""

    def begin(self) -> bytes:
        """Return the bytes before the first entry."""
        return self._counted(MAGIC)

    def add(self, frame: bytes | memoryview) -> bytes | None:
        """Take the next entry, which was verified; return a block if one is full."""
        self._open.append(frame)
        self._open_bytes += len(frame)
        self._entries += 1
        return self._close() if self._open_bytes >= BLOCK_BYTES else None

    def end(self) -> bytes:
        """Return the rest. Requires that all entries were added.

        Raises `MalformedObject` if there are fewer or more than the segment has, or so many blocks
        that no reader would take the footer."""
        if self._entries != self.segment.entries:
            raise MalformedObject(f"{self._entries} entries instead of {self.segment.entries}")
        rest = self._close() if self._open else b""
        footer = _encode_footer(
            self.segment, self._block_bytes, self._block_entries, self._block_crcs
        )
        if len(footer) > FOOTER_BYTES_MAX:
            raise MalformedObject(f"a footer of {len(footer)} bytes is over {FOOTER_BYTES_MAX}")
        trailer = _TRAILER.pack(len(footer), value(footer), END_MAGIC)
        return rest + self._counted(footer + trailer)

    def index(self) -> "ObjectIndex":
        """Return the index of what was encoded. Requires that `end` was called."""
        return ObjectIndex.of(
            self.segment, self._block_bytes, self._block_entries, self._block_crcs
        )

    def _close(self) -> bytes:
        block = b"".join(self._open)
        self._block_bytes.append(len(block))
        self._block_entries.append(len(self._open))
        self._block_crcs.append(_crc(block))
        self._open, self._open_bytes = [], 0
        return self._counted(block)

    def _counted(self, data: bytes) -> bytes:
        self.bytes += len(data)
        return data


@dataclass(frozen=True, slots=True)
class ObjectIndex:
    """What a footer says: whose entries there are, and where."""

    segment: ArchivedSegment
    starts: "array[int]"
    """Where each block begins, and where the last one ends."""
    firsts: "array[int]"
    """First entry of each block, and the one after the last."""
    crcs: "array[int]"

    @classmethod
    def of(
        cls,
        segment: ArchivedSegment,
        block_bytes: Sequence[int],
        block_entries: Sequence[int],
        block_crcs: Sequence[int],
    ) -> Self:
        return cls(
            segment,
            array("q", accumulate(block_bytes, initial=len(MAGIC))),
            array("q", accumulate(block_entries, initial=0)),
            array("I", block_crcs),
        )

    @property
    def blocks(self) -> int:
        return len(self.crcs)

    def block_of(self, entry: int) -> int:
        """Return the block that has *entry*. Requires that one does."""
        assert 0 <= entry < self.segment.entries, "the segment has no such entry"
        return bisect_right(self.firsts, entry) - 1

    def range_of(self, block: int) -> range:
        """Return which bytes of the object are *block*."""
        return range(self.starts[block], self.starts[block + 1])

    def entries_in(self, block: int, data: bytes) -> list[ObjectEntry]:
        """Return the entries of *block*, whose bytes are *data*, without a copy.

        Raises `MalformedObject` unless they are what was written."""
        if _crc(data) != self.crcs[block] or len(data) != len(self.range_of(block)):
            raise MalformedObject(f"block {block} is not what was written: its checksum differs")
        ledger_id, entries = self.segment.ledger_id, list[ObjectEntry]()
        view, at = memoryview(data), 0
        for entry_id in range(self.firsts[block], self.firsts[block + 1]):
            try:
                header = parse_header(view[at : at + HEADER_BYTES])
            except DamagedEntry as error:
                raise MalformedObject(f"block {block}, entry {entry_id}: {error}") from error
            frame = view[at : at + header.frame_bytes]
            whose = (header.ledger_id, header.entry_id, len(frame))
            if whose != (ledger_id, entry_id, header.frame_bytes):
                raise MalformedObject(f"block {block} has another entry in place of {entry_id}")
            entries.append(
                ObjectEntry(EntryId(entry_id), payload_of(frame, header), header.length, frame)
            )
            at += len(frame)
        if at != len(data):
            raise MalformedObject(f"block {block} has {len(data) - at} bytes after its last entry")
        return entries

    def verify(self, entry: ObjectEntry) -> Header:
        """Return the header of *entry* once all that can be known of it without the ledger's secret
        is right. Raises `MalformedObject`."""
        segment = self.segment
        try:
            return verify_whole(entry.frame, segment.ledger_id, entry.entry_id, segment.digest)
        except DamagedEntry as error:
            raise MalformedObject(str(error)) from error


def footer_range(end: bytes, object_bytes: int) -> range:
    """Return which bytes of an object are its footer; *end* are its last `TRAILER_BYTES`.

    Raises `MalformedObject`."""
    if len(end) != TRAILER_BYTES or object_bytes < LEAST_BYTES:
        raise MalformedObject(f"{object_bytes} bytes are no segment")
    footer_bytes, _, magic = _TRAILER.unpack(end)
    if magic != END_MAGIC:
        raise MalformedObject("it does not end as a segment does")
    if footer_bytes > min(FOOTER_BYTES_MAX, object_bytes - LEAST_BYTES):
        raise MalformedObject(f"a footer of {footer_bytes} bytes does not fit")
    stop = object_bytes - TRAILER_BYTES
    return range(stop - footer_bytes, stop)


def parse_footer(footer: bytes, end: bytes, object_bytes: int) -> ObjectIndex:
    """Return what *footer* says, with *end* and *object_bytes* as of `footer_range`.

    Raises `MalformedObject`."""
    blocks_stop = footer_range(end, object_bytes).start
    _, crc, _ = _TRAILER.unpack(end)
    if value(footer) != crc:
        raise MalformedObject("the checksum of its footer differs")
    try:
        node = pb.ObjectFooter.FromString(footer)
    except DecodeError as error:
        raise MalformedObject(f"its footer: {error}") from error
    if node.version != FORMAT_VERSION:
        raise MalformedObject(
            f"format version {node.version}; this dlog reads {FORMAT_VERSION}: upgrade it"
        )
    columns = (node.block_bytes, node.block_entries, node.block_crc)
    if len({len(column) for column in columns}) != 1:
        raise MalformedObject("its columns of blocks differ in length")
    if any(count <= 0 for column in columns[:2] for count in column):
        raise MalformedObject("a block is empty")
    if len(MAGIC) + sum(node.block_bytes) != blocks_stop:
        raise MalformedObject("its blocks are not as long as the object")
    if node.last_entry < NO_ENTRY or sum(node.block_entries) != node.last_entry + 1:
        raise MalformedObject("its blocks do not have the entries of the segment")
    try:
        digest = Digest(node.digest)
    except ValueError:
        raise MalformedObject(f"unknown digest {node.digest}") from None
    return ObjectIndex.of(_segment_of(node, digest), *columns)


def encode_segment(segment: ArchivedSegment) -> bytes:
    """Return what says whose entries a local copy has: a footer without blocks."""
    return _encode_footer(segment, (), (), ())


def parse_segment(data: bytes) -> ArchivedSegment:
    """Return what the metadata of a local copy say. Raises `MalformedObject`."""
    try:
        node = pb.ObjectFooter.FromString(data)
        if node.version == FORMAT_VERSION:
            return _segment_of(node, Digest(node.digest))
    except (DecodeError, ValueError) as error:
        raise MalformedObject(f"the metadata of a copy: {error}") from error
    raise MalformedObject(f"a copy has version {node.version}; this dlog reads {FORMAT_VERSION}")


def encode_owner(owner: ObjectOwner) -> bytes:
    """Return the bytes of a mark; the same ones for the same mark."""
    node = pb.ObjectOwner(version=FORMAT_VERSION, token=owner.token, places=owner.places)
    return node.SerializeToString(deterministic=True)


def parse_owner(data: bytes) -> ObjectOwner:
    """Return what a mark says. Raises `MalformedObject`."""
    try:
        node = pb.ObjectOwner.FromString(data)
    except DecodeError as error:
        raise MalformedObject(f"the mark of its owner: {error}") from error
    if node.version != FORMAT_VERSION or not node.token:
        raise MalformedObject(
            f"the mark of its owner has version {node.version}; this dlog reads {FORMAT_VERSION}"
        )
    return ObjectOwner(node.token, tuple(node.places))


def _crc(data: bytes) -> int:
    return int(value(data))


def _segment_of(node: pb.ObjectFooter, digest: Digest) -> ArchivedSegment:
    return ArchivedSegment(
        incarnation=node.incarnation,
        log=node.log,
        number=node.segment,
        ledger_id=LedgerId(node.ledger),
        first_offset=node.first_offset,
        sealed=Sealed(
            EntryId(node.last_entry),
            node.records,
            node.payload_bytes,
            node.first_txid,
            node.last_txid,
            node.first_timestamp_ms,
            node.last_timestamp_ms,
        ),
        created_ms=node.created_ms,
        archived_ms=node.archived_ms,
        digest=digest,
        custom=dict(node.custom),
    )


def _encode_footer(
    segment: ArchivedSegment,
    block_bytes: Sequence[int],
    block_entries: Sequence[int],
    block_crcs: Sequence[int],
) -> bytes:
    sealed = segment.sealed
    node = pb.ObjectFooter(
        version=FORMAT_VERSION,
        incarnation=segment.incarnation,
        log=segment.log,
        segment=segment.number,
        ledger=segment.ledger_id,
        first_offset=segment.first_offset,
        last_entry=sealed.last_entry,
        records=sealed.records,
        payload_bytes=sealed.bytes,
        first_txid=sealed.first_txid,
        last_txid=sealed.last_txid,
        first_timestamp_ms=sealed.first_timestamp_ms,
        last_timestamp_ms=sealed.last_timestamp_ms,
        created_ms=segment.created_ms,
        archived_ms=segment.archived_ms,
        digest=segment.digest,
        custom=segment.custom,
        block_bytes=block_bytes,
        block_entries=block_entries,
        block_crc=block_crcs,
    )
    return node.SerializeToString(deterministic=True)
