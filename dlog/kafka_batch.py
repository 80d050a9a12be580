"""Kafka's record batch (format 2), byte for byte: its header, its records as columns.

A batch that a producer of Kafka encoded is stored as it came (`dlog.recordbatch`, flag KAFKA), and
is decoded where native readers need its records. Records of native entries are encoded here for
consumers of Kafka.

    i64 base offset, i32 bytes that follow, i32 leader epoch, i8 magic (2), u32 CRC-32C of the rest,
    i16 attributes, i32 last offset delta, i64 base timestamp, i64 max timestamp,
    i64 producer id, i16 producer epoch, i32 base sequence, i32 count, then the records,
    compressed together; all integers big endian

The checksum leaves out base offset and leader epoch: a server writes them and computes nothing.

What Kafka has and native records have not: a value may be null, and headers may be more, or have
longer names. A null value is an empty one here, and such a record has the header `NULL_VALUE`; a
record that is appended with that header and an empty value is a null value to consumers of Kafka.
"""

import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, assert_never

from google_crc32c import value as crc32c

from dlog.errors import CodecMissing, DamagedBatch
from dlog.headers import Headers, Pairs
from dlog.position import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
MAGIC: Final = 2
RECORDS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the records of one batch after decompression; no reader takes memory for more."""
NULL_VALUE: Final = "kafka.null-value"
"""Name of the header of a record whose value is null for Kafka."""
NO_PRODUCER: Final = -1

_OVERHEAD: Final = 12
"""Base offset and the field of the length, which counts neither."""
_CRC_AT, _CRC_FROM = 17, 21
_CODEC_MASK, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_PLACE: Final = struct.Struct(">qii")
_CRC: Final = struct.Struct(">I")
_XERIAL: Final = b"\x82SNAPPY\x00"
"""Snappy as Java writes it: blocks, each with its size; others write one block alone."""
_XERIAL_BYTES: Final = 16

Buffer = bytes | memoryview


class KafkaCodec(IntEnum):
    """How the records of a batch are compressed. On the wire: keep the numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True)
class KafkaBatchHeader:
    """The header of a batch, as it stands there."""

    base_offset: int
    batch_bytes: int
    """Of the whole batch, header included."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    newest_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> int:
        """Of `KafkaCodec`, if it is one that is known."""
        return self.attributes & _CODEC_MASK

    @property
    def has_append_time(self) -> bool:
        """Whether all records have `newest_timestamp_ms` as their time."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id != NO_PRODUCER


def parse_kafka_header(batch: Buffer) -> KafkaBatchHeader:
    """Return the header of the batch that *batch* begins with. Raises `DamagedBatch` if there is
    not even a header, or its size is none."""
    if len(batch) < HEADER_BYTES:
        raise DamagedBatch(f"{len(batch)} bytes are shorter than the header of a Kafka batch")
    base, size, *fields = HEADER.unpack_from(batch)
    if size < HEADER_BYTES - _OVERHEAD:
        raise DamagedBatch(f"a Kafka batch of {size} bytes is shorter than its header")
    return KafkaBatchHeader(base, size + _OVERHEAD, *fields)


def has_right_crc(batch: bytes, header: KafkaBatchHeader) -> bool:
    """Whether the checksum of *batch*, which has this *header*, is right."""
    return int(crc32c(batch[_CRC_FROM:])) == header.crc


def with_place(batch: Buffer, base_offset: int, leader_epoch: int) -> bytes:
    """Return *batch* at its place in a log, as consumers get it."""
    size = len(batch) - _OVERHEAD
    return _PLACE.pack(base_offset, size, leader_epoch) + batch[_PLACE.size :]


def check_stored(batch: Buffer, count: int, base_ms: int) -> KafkaBatchHeader:
    """Return the header of *batch*, which an entry holds that says it has *count* records from
    *base_ms* on. Raises `DamagedBatch`; the records are not looked at."""
    header = parse_kafka_header(batch)
    if header.magic != MAGIC:
        raise DamagedBatch(f"a Kafka batch of format {header.magic}, where only {MAGIC} is kept")
    if header.batch_bytes != len(batch):
        raise DamagedBatch(f"a Kafka batch of {header.batch_bytes} bytes in {len(batch)}")
    if header.count != count or header.last_offset_delta != count - 1:
        raise DamagedBatch(f"a Kafka batch of {header.count} records in an entry of {count}")
    if header.base_timestamp_ms != base_ms:
        raise DamagedBatch("a Kafka batch of another time than its entry says")
    return header


class KafkaHeaders(Headers):
    """Headers as Kafka stores them, decoded when somebody looks; checked before."""

    __slots__ = ()

    def pairs(self) -> Pairs:
        if self._pairs is None:
            self._pairs = _pairs_of(self.encoded)
        return self._pairs


_PLAIN, _NULL = b"\0", b"\1"
"""Stands before the headers of a record, in their column: its value is not null, or is."""


def _pairs_of(encoded: bytes) -> Pairs:
    pairs: list[tuple[str, bytes | None]] = []
    count, at = _varint(encoded, 1)
    for _ in range(count):
        size, at = _varint(encoded, at)
        name, at = encoded[at : at + size].decode(errors="replace"), at + size
        size, at = _varint(encoded, at)
        if size < 0:
            pairs.append((name, None))
        else:
            pairs.append((name, encoded[at : at + size]))
            at += size
    if encoded[:1] == _NULL:
        pairs.append((NULL_VALUE, b""))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class KafkaColumns:
    """The records of a batch, column by column, as `dlog.recordbatch.RecordBatch` has them."""

    value_offsets: memoryview
    values: memoryview
    time_deltas: memoryview | None
    key_offsets: memoryview | None
    key_validity: memoryview | None
    keys: memoryview | None
    headers_offsets: memoryview | None
    """Of `headers`: of `KafkaHeaders`."""
    headers: memoryview | None

    @property
    def decoded_bytes(self) -> int:
        columns = (self.values, self.keys, self.headers, self.time_deltas)
        return sum(column.nbytes for column in columns if column is not None)


def decode_records(batch: Buffer, header: KafkaBatchHeader) -> KafkaColumns:
    """Return the records of *batch*. Raises `DamagedBatch`, `CodecMissing`."""
    data = bytes(_decompressed(memoryview(batch)[HEADER_BYTES:], header.codec))
    try:
        return _columns_of(data, header)
    except (IndexError, OverflowError) as error:
        raise DamagedBatch("the records of a Kafka batch end in the middle of one") from error


class _Blobs:
    """A column of byte strings that is being put together."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.append = self.pieces.append

    def column(self) -> tuple[memoryview, memoryview]:
        ends = array("i", [0])
        end = 0
        for piece in self.pieces:
            end += len(piece)
            ends.append(end)
        return memoryview(ends.tobytes()), memoryview(b"".join(self.pieces))


def _columns_of(  # noqa: PLR0912, PLR0915 - one loop over all bytes, without a call for most
    data: bytes, header: KafkaBatchHeader
) -> KafkaColumns:
    values, keys, headers = _Blobs(), _Blobs(), _Blobs()
    deltas: list[int] = []
    absent: list[int] = []
    """Records without a key."""
    has_headers = False
    varint = _varint
    end = at = 0
    for slot in range(header.count):
        size = data[at]
        if size < 0x80:
            at += 1
            size = (size >> 1) ^ -(size & 1)
        else:
            size, at = varint(data, at)
        at, end = at + 1, at + size  # behind the attributes, which mean nothing yet
        byte = data[at]
        if byte < 0x80:
            deltas.append((byte >> 1) ^ -(byte & 1))
            at += 1
        else:
            delta, at = varint(data, at, 70)
            deltas.append(delta)
        offset, at = varint(data, at)
        size = data[at]
        if size < 0x80:
            at += 1
            size = (size >> 1) ^ -(size & 1)
        else:
            size, at = varint(data, at)
        if size < 0:
            absent.append(slot)
            keys.append(b"")
        else:
            keys.append(data[at : at + size])
            at += size
        size = data[at]
        if size < 0x80:
            at += 1
            size = (size >> 1) ^ -(size & 1)
        else:
            size, at = varint(data, at)
        values.append(data[at : at + size] if size > 0 else b"")
        at += max(size, 0)
        if offset != slot or at >= end or end > len(data):
            raise DamagedBatch(f"record {slot} of a Kafka batch is none")
        if data[at] == 0 and at + 1 == end and size >= 0:
            headers.append(b"")
        else:
            has_headers = True
            _check_headers(data, at, end, slot)
            headers.append((_PLAIN if size >= 0 else _NULL) + data[at:end])
        at = end
    if at != len(data):
        raise DamagedBatch(f"{len(data) - at} bytes follow the records of a Kafka batch")
    value_offsets, value_column = values.column()
    key_offsets = key_validity = key_column = headers_offsets = headers_column = None
    if len(absent) < header.count:
        key_offsets, key_column = keys.column()
        if absent:
            key_validity = memoryview(_bitmap(header.count, absent))
    if has_headers:
        headers_offsets, headers_column = headers.column()
    return KafkaColumns(
        value_offsets,
        value_column,
        _times(deltas, header),
        key_offsets,
        key_validity,
        key_column,
        headers_offsets,
        headers_column,
    )


def _times(deltas: list[int], header: KafkaBatchHeader) -> memoryview | None:
    if header.has_append_time:
        deltas = [header.newest_timestamp_ms - header.base_timestamp_ms] * header.count
    if not any(deltas):
        return None
    least = header.base_timestamp_ms + min(deltas)
    most = header.base_timestamp_ms + max(deltas)
    if not TIMESTAMP_MS_MIN <= least <= most <= TIMESTAMP_MS_MAX:
        raise DamagedBatch("a record of a Kafka batch has a time outside of the years 1 to 9999")
    return memoryview(array("q", deltas).tobytes()).cast("q")


def _bitmap(count: int, absent: Sequence[int]) -> bytes:
    bits = (1 << count) - 1
    for slot in absent:
        bits ^= 1 << slot
    return bits.to_bytes((count + 7) // 8, "little")


def _check_headers(data: bytes, at: int, end: int, slot: int) -> None:
    count, at = _varint(data, at)
    if not 0 <= count <= end - at:
        raise DamagedBatch(f"record {slot} of a Kafka batch has {count} headers")
    for _ in range(count):
        size, at = _varint(data, at)
        if not 0 <= size <= end - at:
            raise DamagedBatch(f"record {slot} of a Kafka batch has a header without a name")
        size, at = _varint(data, at + size)
        if not -1 <= size <= end - at:
            raise DamagedBatch(f"record {slot} of a Kafka batch has a header that is none")
        at += max(size, 0)
    if at != end:
        raise DamagedBatch(f"record {slot} of a Kafka batch is longer than it says")


def _varint(data: Buffer, at: int, bits_max: int = 35) -> tuple[int, int]:
    """Return the zigzag number at *at*, and where it ends. Raises `DamagedBatch`, `IndexError`."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift >= bits_max:
            raise DamagedBatch("a number in a Kafka batch has too many bytes")


# Compression.


def _decompressed(records: memoryview, codec: int) -> Buffer:
    """Return *records* as they were before compression. Raises `DamagedBatch`, `CodecMissing`."""
    try:
        known = KafkaCodec(codec)
    except ValueError:
        raise DamagedBatch(f"codec {codec} of a Kafka batch is not known") from None
    match known:
        case KafkaCodec.NONE:
            return records
        case KafkaCodec.GZIP:
            return _gunzipped(records)
        case KafkaCodec.SNAPPY:
            return _unsnapped(records)
        case KafkaCodec.LZ4:
            return _from_lz4(records)
        case KafkaCodec.ZSTD:
            return _from_zstd(records)
        case _:
            assert_never(known)


def _gunzipped(records: memoryview) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    with _damage(zlib.error):
        data = stream.decompress(records, RECORDS_BYTES_MAX + 1)
    _check_end(data, is_whole=stream.eof, unused=stream.unused_data)
    return data


def _from_lz4(records: memoryview) -> bytes:
    with _library("lz4", KafkaCodec.LZ4):
        import lz4.frame
    stream = lz4.frame.LZ4FrameDecompressor()
    with _damage(RuntimeError, EOFError, MemoryError):
        data = bytes(stream.decompress(records, max_length=RECORDS_BYTES_MAX + 1))
    _check_end(data, is_whole=stream.eof, unused=stream.unused_data or b"")
    return data


def _from_zstd(records: memoryview) -> bytes:
    with _library("zstandard", KafkaCodec.ZSTD):
        import zstandard
    with _damage(zstandard.ZstdError, MemoryError):
        reader = zstandard.ZstdDecompressor().stream_reader(records)
        data = reader.read(RECORDS_BYTES_MAX + 1)
    _check_end(data, is_whole=True, unused=b"")
    return data


def _unsnapped(records: memoryview) -> bytes:
    if bytes(records[: len(_XERIAL)]) != _XERIAL:
        return _unsnapped_block(records, RECORDS_BYTES_MAX)
    blocks: list[bytes] = []
    at, room = _XERIAL_BYTES, RECORDS_BYTES_MAX
    while at < len(records):
        if len(records) - at < _CRC.size:
            raise DamagedBatch("the records of a Kafka batch do not decompress: they are cut off")
        (size,) = _CRC.unpack_from(records, at)
        at += _CRC.size
        if size > len(records) - at:
            raise DamagedBatch("the records of a Kafka batch do not decompress: they are cut off")
        blocks.append(_unsnapped_block(records[at : at + size], room))
        room -= len(blocks[-1])
        at += size
    return b"".join(blocks)


def _unsnapped_block(block: memoryview, bytes_max: int) -> bytes:
    with _library("cramjam", KafkaCodec.SNAPPY):
        from cramjam import DecompressionError, snappy
    size = shift = 0
    for byte in block[:5]:  # how long the block is afterwards
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > bytes_max:
        raise DamagedBatch(_too_large())
    with _damage(DecompressionError, ValueError):
        return bytes(snappy.decompress_raw(block))


def _check_end(data: bytes, *, is_whole: bool, unused: bytes) -> None:
    if len(data) > RECORDS_BYTES_MAX:
        raise DamagedBatch(_too_large())
    if not is_whole or unused:
        raise DamagedBatch("the records of a Kafka batch do not decompress: they are cut off")


def _too_large() -> str:
    return f"the records of a Kafka batch have more than {RECORDS_BYTES_MAX} bytes"


@contextmanager
def _damage(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise DamagedBatch(f"the records of a Kafka batch do not decompress: {error}") from error


@contextmanager
def _library(package: str, codec: KafkaCodec) -> Iterator[None]:
    """Import what *codec* needs of *package* in here."""
    try:
        yield
    except ImportError as error:
        raise CodecMissing(codec.name.lower(), package) from error


# Encoding.


def _encoded_varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """Encoded numbers; those that were asked for, as long as there are few."""

    KEPT_MAX: Final = 1 << 16

    def __missing__(self, number: int) -> bytes:
        encoded = _encoded_varint(number)
        if len(self) < self.KEPT_MAX:
            self[number] = encoded
        return encoded


_varints: Final = _Varints()
_NO_BYTES: Final = _encoded_varint(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRecords:
    """Records to be encoded, column by column, as `dlog.recordbatch.RecordBatch` returns them."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    timestamps_ms: Sequence[int]
    headers: Sequence[Headers] | None = None

    def encode(self) -> bytes:
        """Return one batch of all, neither compressed nor at a place."""
        base_ms = self.timestamps_ms[0]
        varints = _varints
        keys = self.keys or [None] * len(self.values)
        parts: list[bytes] = []
        for slot, (value, key, time_ms) in enumerate(
            zip(self.values, keys, self.timestamps_ms, strict=True)
        ):
            tail, is_null = b"\0", False
            if self.headers is not None and self.headers[slot]:
                tail, is_null = _encoded_headers(self.headers[slot], value)
            record = b"".join(
                (
                    b"\0",
                    varints[time_ms - base_ms],
                    varints[slot],
                    _NO_BYTES if key is None else varints[len(key)] + key,
                    _NO_BYTES if is_null else varints[len(value)] + value,
                    tail,
                )
            )
            parts += (varints[len(record)], record)
        return _whole(parts, len(self.values), base_ms, max(self.timestamps_ms))


def _encoded_headers(headers: Headers, value: bytes) -> tuple[bytes, bool]:
    """Return *headers* as Kafka has them, and whether the *value* beside them is null there."""
    pairs = headers.pairs()
    is_null = not value and (NULL_VALUE, b"") in pairs
    if is_null:
        pairs = tuple(pair for pair in pairs if pair != (NULL_VALUE, b""))
    parts = [_varints[len(pairs)]]
    for name, header in pairs:
        named = name.encode()
        parts += (_varints[len(named)], named)
        if header is None:
            parts.append(_NO_BYTES)
        else:
            parts += (_varints[len(header)], header)
    return b"".join(parts), is_null


def _whole(parts: Sequence[bytes], count: int, base_ms: int, newest_ms: int) -> bytes:
    size = HEADER_BYTES - _OVERHEAD + sum(map(len, parts))
    fields = (0, count - 1, base_ms, newest_ms, NO_PRODUCER, -1, -1, count)
    batch = b"".join((HEADER.pack(0, size, 0, MAGIC, 0, *fields), *parts))
    crc = _CRC.pack(crc32c(batch[_CRC_FROM:]))
    return b"".join((batch[:_CRC_AT], crc, batch[_CRC_FROM:]))
