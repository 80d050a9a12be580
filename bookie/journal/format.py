"""The bytes of journal files and of the mark; see docs/formats.md.

A file is a header and records. Each record carries the file's random *epoch*, so no left-over
of another file, or of an earlier life of this one, passes for one, and *synced_to*: how much of
this file was durable before the record was written. The latter distinguishes a torn tail from
damage: a record that is not whole was never promised, unless some later record says that the bytes
there had been synced.
"""

import sys
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final, Literal

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.errors import JournalDamaged, MarkDamaged

VERSION: Final = 1
MARK_VERSION: Final = 2
DIRECTORY: Final = "journal"
MARK_PATH: Final = f"{DIRECTORY}/mark"
FILE_SUFFIX: Final = ".journal"
SPARE_SUFFIX: Final = ".spare"
"""Of a file that the mark has left behind, kept to be written again."""
FILE_HEADER_BYTES: Final = 64
RECORD_BYTES_MAX: Final = 256 * 1024 * 1024

_FILE_MAGIC: Final = b"DLOGJRNL"
_MARK_MAGIC: Final = b"DLOGMARK"
_FILE_HEADER: Final = Struct("<8sIIqQqqIQ")  # and u32 CRC32C of what is before
_MARK: Final = Struct("<8sIIqq")  # magic, version, tag, file, offset; and u32 CRC32C
_CRC: Final = Struct("<I")
_COUNTED: Final = 1
_RECYCLED: Final = 2
_RECORD: Final = Struct("<IIQqBBHIq")
_RECORD_LEAD: Final = Struct("<II")  # length, CRC32C of what follows
_RECORD_REST: Final = Struct("<QqBBHIq")
RECORD_HEADER_BYTES: Final = _RECORD.size
EPOCH_AT: Final = 8
"""Where in a record its epoch stands."""
_CRC_FROM: Final = _RECORD_LEAD.size
_IS_BIG_ENDIAN: Final = sys.byteorder == "big"


class RecordKind(IntEnum):
    """Persisted: keep the numbers."""

    ADD = 1
    FENCE = 2
    NEXT = 3
    """The last of a file: the one after it is there, and may have promises in it."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    journal_id: int
    epoch: int
    previous_id: int
    """The file before this one; 0 for none."""
    previous_end: int
    """Where the records of that one end, known when this file was made: what is behind
    was never promised."""
    allocated_bytes: int = 0
    """How much was taken ahead when it was made, durably; 0 in files of older versions."""
    is_counted: bool = False
    """Whether there was a census (`bookie.loss.census`) when it was made."""
    is_recycled: bool = False
    """Whether it was another file before: behind its records are those of that one."""


@dataclass(frozen=True, slots=True, order=True)
class JournalMark:
    """All records before this place are in entry logs, and in index or redo files (BookKeeper's
    LastLogMark)."""

    journal_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """Says on its own what to do again, access key included (rule 35)."""

    kind: RecordKind
    ledger_id: int
    key: bytes = field(repr=False)
    entries: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("I"))
    frames: bytes = b""


@dataclass(frozen=True, slots=True)
class RecordHeader:
    length: int
    crc: int
    epoch: int
    synced_to: int
    kind: int
    room_bytes: int
    """By so much at least the file was longer than `synced_to`, durably; 0: not known."""
    key_bytes: int
    count: int
    ledger_id: int


def path_of(journal_id: int) -> str:
    return f"{DIRECTORY}/{journal_id:016x}{FILE_SUFFIX}"


def journal_of(name: str) -> int | None:
    """Return the journal file that is called *name*; None if it is none."""
    try:
        journal_id = int(name.removesuffix(FILE_SUFFIX), 16)
    except ValueError:
        return None
    return journal_id if path_of(journal_id) == f"{DIRECTORY}/{name}" else None


def spare_of(journal_id: int) -> str:
    """Return the path that the journal file has as a spare."""
    return f"{DIRECTORY}/{journal_id:016x}{SPARE_SUFFIX}"


def encode_file_header(header: FileHeader) -> bytes:
    body = _FILE_HEADER.pack(
        _FILE_MAGIC, VERSION, FILE_HEADER_BYTES,
        header.journal_id, header.epoch, header.previous_id, header.previous_end,
        _COUNTED * header.is_counted | _RECYCLED * header.is_recycled, header.allocated_bytes,
    )  # fmt: skip
    return body + _CRC.pack(crc32c(body))


def decode_file_header(data: bytes, path: str) -> FileHeader:
    """Raises `JournalDamaged`."""
    if len(data) < FILE_HEADER_BYTES:
        raise JournalDamaged(path, len(data), "the file ends within its header")
    body = data[: _FILE_HEADER.size]
    (
        magic, version, _, journal_id, epoch, previous_id, previous_end, flags, allocated_bytes,
    ) = _FILE_HEADER.unpack(body)  # fmt: skip
    if _CRC.unpack_from(data, _FILE_HEADER.size)[0] != crc32c(body):
        raise JournalDamaged(path, 0, "the checksum of the header differs")
    if magic != _FILE_MAGIC or version != VERSION:
        raise JournalDamaged(path, 0, f"not a journal file of version {VERSION}")
    return FileHeader(
        journal_id,
        epoch,
        previous_id,
        previous_end,
        allocated_bytes,
        bool(flags & _COUNTED),
        bool(flags & _RECYCLED),
    )


def encode_record(
    record: Record, epoch: int, synced_to: int, *, room_bytes: int = 0
) -> list[bytes]:
    """Return the record in pieces to be written one after the other; frames uncopied."""
    key, entries, lengths, frames = record.key, record.entries, record.lengths, record.frames
    if _IS_BIG_ENDIAN:
        entries, lengths = _swapped(entries), _swapped(lengths)
    columns = b"".join((key, entries.tobytes(), lengths.tobytes()))
    rest = _RECORD_REST.pack(
        epoch, synced_to, record.kind, room_bytes.bit_length(), len(key), len(entries),
        record.ledger_id,
    ) + columns  # fmt: skip
    length = _RECORD_LEAD.size + len(rest) + len(frames)
    return [_RECORD_LEAD.pack(length, extend(crc32c(rest), frames)) + rest, frames]


def size_of(record: Record) -> int:
    """Return the bytes of the encoded record."""
    columns_bytes = len(record.key) + 12 * len(record.entries)
    return RECORD_HEADER_BYTES + columns_bytes + len(record.frames)


def decode_record_header(data: bytes | memoryview) -> RecordHeader | None:
    """Return what *data* says, right or not; None if it is too short."""
    if len(data) < RECORD_HEADER_BYTES:
        return None
    (
        length, crc, epoch, synced_to, kind, room_bits, key_bytes, count, ledger_id,
    ) = _RECORD.unpack_from(data)  # fmt: skip
    room_bytes = 1 << (room_bits - 1) if room_bits else 0
    return RecordHeader(
        length, crc, epoch, synced_to, kind, room_bytes, key_bytes, count, ledger_id
    )


def decode_record(data: bytes | memoryview) -> Record | str:
    """Return the record that *data*, its whole length, holds, or why it is none. Its frames are
    copied once."""
    header = decode_record_header(data)
    if header is None or header.length != len(data):
        return "the record is cut short"
    count = header.count
    entries_at = RECORD_HEADER_BYTES + header.key_bytes
    lengths_at = entries_at + 8 * count
    frames_at = lengths_at + 4 * count
    columns, frames = bytes(data[_CRC_FROM:frames_at]), bytes(data[frames_at:])
    if extend(crc32c(columns), frames) != header.crc:
        return "the checksum of the record differs"
    if header.kind not in RecordKind._value2member_map_ or frames_at > len(data):
        return f"unknown kind {header.kind}, or columns longer than the record"
    lengths = _from_bytes("I", data[lengths_at:frames_at])
    if frames_at + sum(lengths) != len(data):
        return "lengths and record do not fit"
    return Record(
        RecordKind(header.kind),
        header.ledger_id,
        bytes(data[RECORD_HEADER_BYTES:entries_at]),
        _from_bytes("q", data[entries_at:lengths_at]),
        lengths,
        frames,
    )


def tag_of(epoch: int) -> int:
    """Return by what a mark knows the file that it names again; never 0."""
    return epoch & 0xFFFFFFFF or 1


def encode_mark(mark: JournalMark, tag: int) -> bytes:
    """*tag*: of the file that the mark names; a mark of another bookie has another one."""
    body = _MARK.pack(_MARK_MAGIC, MARK_VERSION, tag, mark.journal_id, mark.offset)
    return body + _CRC.pack(crc32c(body))


def decode_mark(data: bytes, path: str) -> tuple[JournalMark, int]:
    """Return the mark, and the tag of the file that it names, 0 if it does not say that. Raises
    `MarkDamaged`."""
    if len(data) != _MARK.size + _CRC.size:
        raise MarkDamaged(path, len(data), f"{len(data)} bytes are no mark")
    body = data[: _MARK.size]
    magic, version, tag, journal_id, offset = _MARK.unpack(body)
    if _CRC.unpack_from(data, _MARK.size)[0] != crc32c(body):
        raise MarkDamaged(path, 0, "the checksum differs")
    if magic != _MARK_MAGIC or version != MARK_VERSION:
        raise MarkDamaged(path, 0, f"not a mark of version {MARK_VERSION}")
    return JournalMark(journal_id, offset), tag


def _swapped(column: "array[int]") -> "array[int]":
    column = column[:]
    column.byteswap()
    return column


def _from_bytes(typecode: Literal["q", "I"], data: bytes | memoryview) -> "array[int]":
    column = array(typecode)
    column.frombytes(data)
    if _IS_BIG_ENDIAN:
        column.byteswap()
    return column
