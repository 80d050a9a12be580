"""The record batch: many records as columns in one entry of a ledger, byte for byte.

    header   64 bytes, little endian:
             4s magic "DLRB", u8 version, u8 codec, u16 flags,
             u32 count, u32 body bytes, u32 stored bytes (body after compression),
             u32 value bytes, u32 key bytes, u32 headers bytes,
             i64 base index, i64 base timestamp, i64 first txid, i64 last txid
    body     columns in this order, each begins at a multiple of 8 in the body:
             value offsets    i32[count + 1], first is 0, never decreasing (as Arrow's)
             timestamps       i32[count] (TIMES) or i64[count] (TIMES and WIDE_TIMES),
                              milliseconds after the base timestamp
             txids            i64[count] (TXIDS), NO_TXID where a record has none
             key offsets      i32[count + 1] (KEYS)
             key validity     bit i set iff record i has a key (KEYS and KEY_NULLS), as Arrow's
             headers offsets  i32[count + 1] (HEADERS)
             values           value bytes
             keys             key bytes
             headers          headers bytes, each record's as in `dlog.headers`; none is empty
             receipt          16s origin, i64 number (RECEIPT)

or, of a batch that a producer of Kafka encoded (KAFKA, and RECEIPT and ENCRYPTED at most; never
compressed once more):

             newest timestamp i64, of its records
             append time      i64, milliseconds since 1970 when it was appended
             batch            value bytes, as in `dlog.kafka_batch`, base offset and leader epoch 0
             producers        headers bytes: state of producers before it (`dlog.kafka`), or none
             receipt          as above

A batch is of version 6 iff it is Kafka's, else of version 5 iff one of its records has a header
name twice or a null value (PAIRS), else of version 4 iff it is encrypted (`dlog.envelope` has how
its body is then), else of version 3 iff it has a receipt, else of version 2 iff one of its records
has headers, else of version 1: the same without what it lacks. So nothing costs a byte where it is
not, and an older program reads all that it can.

*receipt* is of the last unit that a sink committed in the segment up to here (`dlog.receipts`), so
the last batch of a segment alone has it.

*base index* is the first record's index in its segment: a batch knows nothing of the log's
offsets, so a segment can be written before its first offset is known. *first txid* is the
first txid in this batch; *last txid* is the last one in this batch or anywhere before it in
the log, so the last batch alone has it. Either is `NO_TXID` if there is none.

Decoding gives views of the buffer and touches no record; the two offset columns are checked
whole, so whoever follows them stays inside the buffer. All sizes of a header are checked against
each other before any memory is taken, so an entry costs no more than `BODY_BYTES_MAX`, whatever
it says of itself.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, chain, islice, pairwise, repeat
from operator import itemgetter
from typing import Any, ClassVar, Final, Self, assert_never

from dlog.columns import Columns
from dlog.errors import BatchEncrypted, BatchTooNew, CodecMissing, DamagedBatch
from dlog.headers import NO_HEADERS, Headers, are_paired, decode_headers
from dlog.kafka_batch import (
    KafkaBatchHeader,
    KafkaHeaders,
    check_stored,
    decode_records,
    with_place,
)
from dlog.position import NO_TXID, Place, Record, new_record
from dlog.receipts import Receipt
from ledger.entry import ENTRY_BYTES_MAX

VERSION: Final = 6
"""Newest one; what a batch does not need makes it older."""
MAGIC: Final = b"DLRB"
HEADER: Final = struct.Struct("<4sBBHIIIIIIqqqq")
HEADER_BYTES: Final = HEADER.size
RECEIPT: Final = struct.Struct("<16sq")
KAFKA_TIMES: Final = struct.Struct("<qq")
KAFKA_RECORDS_MAX: Final = 1 << 20
"""In a batch of Kafka's."""
BODY_BYTES_MAX: Final = ENTRY_BYTES_MAX - HEADER_BYTES
"""Largest body, also before compression: whatever is appended would fit into an entry as it is."""
LZ4_RATIO_MAX: Final = 255
"""Bytes that one byte of an LZ4 block can stand for, at most."""
ZSTD_LEVEL: Final = 1
"""Of a log whose settings name none: what is fast enough to stand in the way of each append."""
ZSTD_LEVEL_MAX: Final = 19
"""zstd has three more, for which a writer, and readers as well, need memory by the hundred MiB."""

_NUMPY_BYTES_MIN: Final = 1024
"""Columns from so much on are checked by numpy, 40 times as fast, where the process has loaded it
anyway; to import it for this would cost more."""
Buffer = bytes | memoryview

INT32_MAX: Final = 2**31 - 1
INT32_MIN: Final = -(2**31)


class Codec(IntEnum):
    """How a body is compressed. Persisted: keep the numbers."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2


class Flag:
    """Which optional columns a body has. Persisted: keep the numbers.

    Plain numbers: each operation on an `IntFlag` takes a microsecond, and an entry takes twenty."""

    TIMES: Final = 1
    WIDE_TIMES: Final = 2
    TXIDS: Final = 4
    KEYS: Final = 8
    KEY_NULLS: Final = 16
    HEADERS: Final = 32
    RECEIPT: Final = 64
    ENCRYPTED: Final = 128
    PAIRS: Final = 256
    """Some record's headers have a name twice or a null value: none is a column more."""
    KAFKA: Final = 512
    """A batch of Kafka's, as its producer encoded it."""


_ALL_FLAGS: Final = 0x3FF
_WITH_KAFKA: Final = Flag.KAFKA | Flag.RECEIPT | Flag.ENCRYPTED


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What the header alone says; enough to seek."""

    codec: Codec
    flags: int
    count: int
    body_bytes: int
    stored_bytes: int
    value_bytes: int
    key_bytes: int
    headers_bytes: int
    base_index: int
    base_timestamp_ms: int
    first_txid: int
    last_txid: int

    @property
    def records_bytes(self) -> int:
        """Bytes of all values, keys and headers."""
        return self.value_bytes + self.key_bytes + self.headers_bytes

    @property
    def end_index(self) -> int:
        """Index in the segment of the record after the last one."""
        return self.base_index + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """What is known of a batch without any key: no value, key or header of a record."""

    header: BatchHeader
    time_deltas: memoryview | None
    """Typed "i" or "q"."""
    txids: memoryview | None
    """Typed "q"."""
    receipt: Receipt | None = None
    """Of the last unit in its segment up to here."""

    @property
    def count(self) -> int:
        return self.header.count

    def timestamps_ms(self) -> Sequence[int]:
        """Return each record's timestamp."""
        base = self.header.base_timestamp_ms
        if self.time_deltas is None:
            return [base] * self.count
        return [base + delta for delta in self.time_deltas.tolist()]

    @property
    def oldest_ms(self) -> int:
        """The first timestamp; of a batch of Kafka's, that of its first record."""
        return min(self.timestamps_ms())

    @property
    def newest_ms(self) -> int:
        """The last timestamp."""
        return max(self.timestamps_ms())

    def txid_list(self) -> list[int | None] | None:
        """Return the txids, or None if no record has one."""
        if self.txids is None:
            return None
        return [None if txid == NO_TXID else txid for txid in self.txids.tolist()]

    def known(self, place: Place, slot: int) -> Record:
        """Return what is known of the record in *slot*."""
        delta = 0 if self.time_deltas is None else self.time_deltas[slot]
        txid = NO_TXID if self.txids is None else self.txids[slot]
        return Record(
            place.first_offset + slot,
            place,
            self.header.base_timestamp_ms + delta,
            None if txid == NO_TXID else txid,
            None,
            b"",
            NO_HEADERS,
        )

    def check_headers(self) -> None:
        """Look at the headers of all records, as far as they can be read. Raises `DamagedBatch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaFacts(BatchFacts):
    """What is known of a batch of Kafka's without any key."""

    newest_timestamp_ms: int
    appended_ms: int

    @property
    def oldest_ms(self) -> int:
        return self.header.base_timestamp_ms

    @property
    def newest_ms(self) -> int:
        return self.newest_timestamp_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch(BatchFacts):
    """A decoded batch: its columns as buffers. Columns that are not there are None."""

    HEADERS: ClassVar[type[Headers]] = Headers
    value_offsets: memoryview
    """int32[count + 1], as bytes."""
    values: memoryview
    key_offsets: memoryview | None
    """int32[count + 1], as bytes."""
    key_validity: memoryview | None
    """Bitmap, least significant bit first; None: every record has a key."""
    keys: memoryview | None
    headers_offsets: memoryview | None
    """int32[count + 1], as bytes."""
    headers: memoryview | None

    def value(self, slot: int) -> bytes:
        return _piece(self.value_offsets, self.values, slot)

    def known(self, place: Place, slot: int) -> Record:
        return self.record(place, slot)

    def record(self, place: Place, slot: int) -> Record:
        """Return the record in *slot*, and touch no other."""
        header = self.header
        delta = 0 if self.time_deltas is None else self.time_deltas[slot]
        txid = NO_TXID if self.txids is None else self.txids[slot]
        key = headers = None
        if self.key_offsets is not None and self.keys is not None:
            bits = self.key_validity
            if bits is None or bits[slot >> 3] >> (slot & 7) & 1:
                key = _piece(self.key_offsets, self.keys, slot)
        if self.headers_offsets is not None and self.headers is not None:
            headers = _piece(self.headers_offsets, self.headers, slot)
        return Record(
            place.first_offset + slot,
            place,
            header.base_timestamp_ms + delta,
            None if txid == NO_TXID else txid,
            key,
            self.value(slot),
            self.HEADERS(headers) if headers else NO_HEADERS,
        )

    def value_list(self) -> list[bytes]:
        """Return the values as bytes objects."""
        return _cut(self.value_offsets, self.values)

    def key_list(self) -> list[bytes | None] | None:
        """Return the keys, or None if no record has one."""
        if self.key_offsets is None or self.keys is None:
            return None
        keys: list[bytes | None] = list(_cut(self.key_offsets, self.keys))
        if self.key_validity is not None:
            bits = self.key_validity
            return [k if bits[i >> 3] >> (i & 7) & 1 else None for i, k in enumerate(keys)]
        return keys

    def headers_list(self) -> list[Headers] | None:
        """Return each record's headers, or None if no record has any."""
        if self.headers_offsets is None or self.headers is None:
            return None
        encoded = _cut(self.headers_offsets, self.headers)
        return [self.HEADERS(each) if each else NO_HEADERS for each in encoded]

    @property
    def decoded_bytes(self) -> int:
        """Bytes of memory that its columns take."""
        return self.header.body_bytes

    def decode(self) -> None:
        """Decode what is decoded late otherwise. Raises `DamagedBatch`, `CodecMissing`."""

    def check_headers(self) -> None:
        """Look at the headers of all records. Raises `DamagedBatch`."""
        paired = False
        for headers in self.headers_list() or ():
            decode_headers(headers.encoded)
            paired = paired or are_paired(headers.encoded)
        if paired != bool(self.header.flags & Flag.PAIRS):
            raise DamagedBatch("its flags do not tell which headers it has")

    def records(self, place: Place, *, skip: int = 0, take: int | None = None) -> Iterator[Record]:
        """Return an iterator of the records in the slots from *skip* on, *take* of them or all."""
        end = self.count if take is None else skip + take
        first_offset = place.first_offset
        keys: Iterable[bytes | None] = self.key_list() or repeat(None)
        txids: Iterable[int | None] = self.txid_list() or repeat(None)
        headers: Iterable[Headers] = self.headers_list() or repeat(NO_HEADERS)
        columns = zip(
            range(first_offset, first_offset + self.count),
            repeat(place),
            self.timestamps_ms(),
            txids,
            keys,
            self.value_list(),
            headers,
            strict=False,
        )
        return map(new_record, islice(columns, skip, end))


class KafkaRecordBatch(RecordBatch):
    """A batch of Kafka's: its records are decoded once a column of theirs is looked at, which then
    raises `DamagedBatch` if they are none, and `CodecMissing`. Until then it costs nothing that
    grows with them."""

    HEADERS: ClassVar[type[Headers]] = KafkaHeaders

    kafka: memoryview
    """The batch as its producer encoded it, base offset and leader epoch 0."""
    kafka_header: KafkaBatchHeader
    appended_ms: int
    """When it was appended, by the clock of its server; milliseconds since 1970."""
    producers: memoryview
    """The state of producers before it, if it has that."""

    @classmethod
    def of(cls, header: BatchHeader, body: memoryview, receipt: Receipt | None) -> Self:
        """Return the batch of *body*, of the size that *header* says. Raises `DamagedBatch`."""
        batch = cls.__new__(cls)
        newest_ms, appended_ms = KAFKA_TIMES.unpack_from(body)
        end = KAFKA_TIMES.size + header.value_bytes
        kafka = body[KAFKA_TIMES.size : end]
        kafka_header = check_stored(kafka, header.count, header.base_timestamp_ms)
        if kafka_header.newest_timestamp_ms != newest_ms:
            raise DamagedBatch("a Kafka batch of another newest time than its entry says")
        begin = end + -end % 8
        known = {
            "header": header,
            "txids": None,
            "receipt": receipt,
            "kafka": kafka,
            "kafka_header": kafka_header,
            "appended_ms": appended_ms,
            "producers": body[begin : begin + header.headers_bytes],
        }
        for name, value in known.items():
            object.__setattr__(batch, name, value)
        return batch

    def __getattr__(self, name: str) -> Any:
        # Columns are slots that are empty until one of them is looked at.
        if name not in _KAFKA_COLUMNS:
            raise AttributeError(name)
        columns = decode_records(self.kafka, self.kafka_header)
        for column in _KAFKA_COLUMNS:
            object.__setattr__(self, column, getattr(columns, column))
        return getattr(self, name)

    @property
    def oldest_ms(self) -> int:
        return self.header.base_timestamp_ms

    @property
    def newest_ms(self) -> int:
        return self.kafka_header.newest_timestamp_ms

    @property
    def decoded_bytes(self) -> int:
        columns = (self.values, self.keys, self.headers, self.time_deltas)
        own = sum(column.nbytes for column in columns if column is not None)
        return own + self.header.body_bytes

    def decode(self) -> None:
        self.value_offsets  # noqa: B018 - as `__getattr__` says

    def check_headers(self) -> None:
        self.decode()  # which checks them


_KAFKA_COLUMNS: Final = (
    "value_offsets",
    "values",
    "time_deltas",
    "key_offsets",
    "key_validity",
    "keys",
    "headers_offsets",
    "headers",
)


def encode_kafka(
    batch: bytes, header: KafkaBatchHeader, *, appended_ms: int, producers: bytes = b""
) -> bytes:
    """Return the batch with no place of *batch*, which has this *header* and nothing behind it.

    *producers* is the state of producers before it, if it is to have that. Its records are not
    looked at. Requires that it fits into BODY_BYTES_MAX."""
    times = KAFKA_TIMES.pack(header.newest_timestamp_ms, appended_ms)
    blobs: list[tuple[int, Iterable[Buffer]]] = [(len(batch), [with_place(batch, 0, 0)])]
    if producers:
        blobs.append((len(producers), [producers]))
    return assemble(
        Flag.KAFKA,
        header.count,
        [times],
        blobs,
        base_index=0,
        base_timestamp_ms=header.base_timestamp_ms,
        first_txid=NO_TXID,
        last_txid=NO_TXID,
    )


def encode_batch(
    records: Columns,
    *,
    base_index: int,
    base_timestamp_ms: int,
    previous_txid: int = NO_TXID,
    codec: Codec = Codec.NONE,
    codec_level: int = 0,
    receipt: Receipt | None = None,
) -> bytes:
    """Return the batch of *records*. One without a timestamp has *base_timestamp_ms*.

    *previous_txid* is the last txid in the log before this batch. *codec_level*: of zstd, up to
    ZSTD_LEVEL_MAX; 0 for ZSTD_LEVEL. It is not stored: readers need not know it."""
    values, keys, txids = records.values, records.keys, records.txids
    assert values, "an entry holds at least one record"
    flags = 0
    columns: list[Buffer] = []
    value_bytes = _add_offsets(columns, values)
    if records.timestamps_ms is not None:
        flags |= _add_times(columns, records.timestamps_ms, base_timestamp_ms)
    first_txid, last_txid = NO_TXID, previous_txid
    if txids is not None:
        sparse = array("q", [NO_TXID if txid is None else txid for txid in txids])
        columns.append(sparse.tobytes())
        present = [txid for txid in txids if txid is not None]
        if present:
            first_txid, last_txid = present[0], present[-1]
        flags |= Flag.TXIDS
    blobs: list[tuple[int, Iterable[Buffer]]] = [(value_bytes, values)]
    if keys is not None:
        present_keys = [b"" if key is None else key for key in keys]
        key_bytes = _add_offsets(columns, present_keys)
        flags |= Flag.KEYS
        if None in keys:
            columns.append(_bitmap(keys))
            flags |= Flag.KEY_NULLS
        blobs.append((key_bytes, present_keys))
    if records.headers is not None and any(records.headers):
        present_headers = [each or b"" for each in records.headers]
        if any(map(are_paired, present_headers)):
            flags |= Flag.PAIRS
        headers_bytes = _add_offsets(columns, present_headers)
        flags |= Flag.HEADERS
        blobs.append((headers_bytes, present_headers))
    return assemble(
        flags,
        len(values),
        columns,
        blobs,
        base_index=base_index,
        base_timestamp_ms=base_timestamp_ms,
        first_txid=first_txid,
        last_txid=last_txid,
        codec=codec,
        codec_level=codec_level,
        receipt=receipt,
    )


def assemble(  # noqa: PLR0913 - all that a header says
    flags: int,
    count: int,
    columns: Sequence[Buffer],
    blobs: Sequence[tuple[int, Iterable[Buffer]]],
    *,
    base_index: int,
    base_timestamp_ms: int,
    first_txid: int,
    last_txid: int,
    codec: Codec = Codec.NONE,
    codec_level: int = 0,
    receipt: Receipt | None = None,
) -> bytes:
    """Return the batch of *count* records with these *columns* of numbers and these *blobs*, in the
    order of the body: values, then keys and headers as *flags* say, each with its bytes."""
    sizes = [*map(itemgetter(0), blobs)]
    value_bytes, *others = sizes
    key_bytes = others.pop(0) if flags & Flag.KEYS else 0
    headers_bytes = others.pop(0) if others else 0
    if receipt is not None:
        flags |= Flag.RECEIPT
        blobs = [*blobs, (RECEIPT.size, [RECEIPT.pack(receipt.origin, receipt.number)])]
    parts: list[Buffer] = []
    body_bytes = 0
    for column in columns:
        padding = -len(column) % 8
        parts += (column, bytes(padding))
        body_bytes += len(column) + padding
    for size, blob in blobs:
        padding = -body_bytes % 8
        parts.append(bytes(padding))
        parts += blob
        body_bytes += padding + size
    stored_bytes = body_bytes
    if codec is not Codec.NONE:  # what is not compressed is not joined either
        parts = [compress(b"".join(parts), codec, codec_level)]
        stored_bytes = len(parts[0])
    header = HEADER.pack(
        MAGIC, version_of(flags), codec, flags,
        count, body_bytes, stored_bytes, value_bytes, key_bytes, headers_bytes,
        base_index, base_timestamp_ms, first_txid, last_txid,
    )  # fmt: skip
    return b"".join((header, *parts))


def parse_header(payload: bytes | memoryview) -> BatchHeader:
    """Return the header at the start of *payload*. Raises `DamagedBatch`, `BatchTooNew`."""
    if len(payload) < HEADER_BYTES:
        raise DamagedBatch(f"{len(payload)} bytes are shorter than a header")
    fields = HEADER.unpack_from(payload)
    magic, version, codec, flags, count, body, stored, value, key, headers = fields[:10]
    if magic == MAGIC and version > VERSION:
        raise BatchTooNew(version, VERSION)
    if magic != MAGIC:
        raise DamagedBatch(f"it begins with {bytes(payload[:8]).hex()}")
    if codec not in Codec._value2member_map_ or flags & ~_ALL_FLAGS:
        raise DamagedBatch(f"unknown codec {codec} or flags {flags:#x}")
    if flags & Flag.KAFKA and (flags & ~_WITH_KAFKA or codec or count > KAFKA_RECORDS_MAX):
        raise DamagedBatch(f"{count} records of Kafka with codec {codec} and flags {flags:#x}")
    if version != version_of(flags):
        raise DamagedBatch(f"format version {version} with flags {flags:#x}")
    if count == 0 or body > BODY_BYTES_MAX:
        raise DamagedBatch(f"{count} records of {body} bytes are not possible")
    if body != _body_bytes(count, flags, value, key, headers):
        raise DamagedBatch(f"the columns of {count} records do not add up to {body} bytes")
    if fields[10] < 0:
        raise DamagedBatch(f"base index {fields[10]} is negative")
    return BatchHeader(Codec(codec), flags, count, body, stored, value, key, headers, *fields[10:])


def decode_batch(payload: bytes | memoryview) -> RecordBatch:
    """Return the batch that *payload* is, as views of it.

    Raises `DamagedBatch`, `BatchTooNew`, and `BatchEncrypted`: then open it first."""
    header = parse_header(payload)
    if header.flags & Flag.ENCRYPTED:
        raise BatchEncrypted
    stored = memoryview(payload)[HEADER_BYTES:]
    if len(stored) != header.stored_bytes:
        raise DamagedBatch(f"body of {len(stored)} bytes instead of {header.stored_bytes}")
    return batch_from_body(header, decompress(stored, header.codec, header.body_bytes))


def batch_from_body(header: BatchHeader, body: memoryview) -> RecordBatch:
    """Return the batch with this *header*, which was checked, and this *body*, as it was before
    compression and encryption. Raises `DamagedBatch`."""
    if len(body) != header.body_bytes:
        raise DamagedBatch(f"body of {len(body)} bytes instead of {header.body_bytes}")
    if header.flags & Flag.KAFKA:
        return KafkaRecordBatch.of(header, body, _receipt_in(header, body))
    # Columns are taken as the header says: it was checked that they fill the body.
    columns = _Columns(body)
    count, flags = header.count, header.flags
    value_offsets = columns.take(4 * (count + 1))
    _check_offsets(value_offsets, header.value_bytes, "value")
    time_deltas = txids = key_offsets = key_validity = keys = headers_offsets = headers = None
    if flags & Flag.TIMES:
        wide = bool(flags & Flag.WIDE_TIMES)
        time_deltas = columns.take((8 if wide else 4) * count).cast("q" if wide else "i")
    if flags & Flag.TXIDS:
        txids = columns.take(8 * count).cast("q")
    if flags & Flag.KEYS:
        key_offsets = columns.take(4 * (count + 1))
        _check_offsets(key_offsets, header.key_bytes, "key")
        if flags & Flag.KEY_NULLS:
            key_validity = columns.take((count + 7) // 8)
    if flags & Flag.HEADERS:
        headers_offsets = columns.take(4 * (count + 1))
        _check_offsets(headers_offsets, header.headers_bytes, "headers")
    receipt = None
    values = columns.take(header.value_bytes)
    if flags & Flag.KEYS:
        keys = columns.take(header.key_bytes)
    if flags & Flag.HEADERS:
        headers = columns.take(header.headers_bytes)
    if flags & Flag.RECEIPT:
        receipt = _receipt(columns.take(RECEIPT.size))
    return RecordBatch(
        header=header,
        value_offsets=value_offsets,
        values=values,
        time_deltas=time_deltas,
        txids=txids,
        key_offsets=key_offsets,
        key_validity=key_validity,
        keys=keys,
        headers_offsets=headers_offsets,
        headers=headers,
        receipt=receipt,
    )


def kafka_facts(header: BatchHeader, body: memoryview) -> KafkaFacts:
    """Return what a body says of a batch of Kafka's whose blobs cannot be read."""
    newest_ms, appended_ms = KAFKA_TIMES.unpack_from(body)
    return KafkaFacts(
        header=header,
        time_deltas=None,
        txids=None,
        receipt=_receipt_in(header, body),
        newest_timestamp_ms=newest_ms,
        appended_ms=appended_ms,
    )


class _Columns:
    """Takes column after column from a body, each aligned to 8."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._end = 0

    def take(self, size: int) -> memoryview:
        start = self._end + -self._end % 8
        self._end = start + size
        assert self._end <= len(self._body), "parse_header added up all columns"
        return self._body[start : self._end]


def version_of(flags: int) -> int:
    """Return the oldest version of a batch that has these *flags*."""
    if flags & Flag.KAFKA:
        return 6
    if flags & Flag.PAIRS:
        return 5
    if flags & Flag.ENCRYPTED:
        return 4
    if flags & Flag.RECEIPT:
        return 3
    return 2 if flags & Flag.HEADERS else 1


def _body_bytes(
    count: int, flags: int, value_bytes: int, key_bytes: int, headers_bytes: int
) -> int | None:
    """Return how long a body of these columns is; None if they contradict each other."""
    if (headers_bytes or flags & Flag.PAIRS) and not flags & (Flag.HEADERS | Flag.KAFKA):
        return None
    if flags & Flag.KAFKA and key_bytes:
        return None
    padded = _numbers(count, flags) + _blobs(flags, value_bytes, key_bytes, headers_bytes)
    if flags & Flag.RECEIPT:
        padded.append(RECEIPT.size)
    return _laid_out(padded)


def blobs_of(header: BatchHeader) -> tuple[int, int]:
    """Return where in a body its values, keys and headers begin, and where they end: what is
    before them, and behind them from the next multiple of 8 on, tells nothing of them but sizes."""
    begin = _laid_out([*_numbers(header.count, header.flags), 0])
    blobs = _blobs(header.flags, header.value_bytes, header.key_bytes, header.headers_bytes)
    return begin, begin + _laid_out(blobs)


def _numbers(count: int, flags: int) -> list[int]:
    """Return the bytes of the columns of numbers, in order."""
    if flags & Flag.KAFKA:
        return [KAFKA_TIMES.size]
    sizes = [4 * (count + 1)]
    if flags & Flag.TIMES:
        sizes.append((8 if flags & Flag.WIDE_TIMES else 4) * count)
    if flags & Flag.TXIDS:
        sizes.append(8 * count)
    if flags & Flag.KEYS:
        sizes.append(4 * (count + 1))
        if flags & Flag.KEY_NULLS:
            sizes.append((count + 7) // 8)
    if flags & Flag.HEADERS:
        sizes.append(4 * (count + 1))
    return sizes


def _blobs(flags: int, value_bytes: int, key_bytes: int, headers_bytes: int) -> list[int]:
    sizes = [value_bytes]
    if flags & Flag.KEYS:
        sizes.append(key_bytes)
    if flags & Flag.HEADERS or (flags & Flag.KAFKA and headers_bytes):
        sizes.append(headers_bytes)
    return sizes


def _laid_out(sizes: list[int]) -> int:
    """Return where columns end that stand behind each other, each at a multiple of 8."""
    *padded, last = sizes
    return sum(size + -size % 8 for size in padded) + last


def _receipt_in(header: BatchHeader, body: memoryview) -> Receipt | None:
    """Return the receipt at the end of *body*, if it has one."""
    return _receipt(body[-RECEIPT.size :]) if header.flags & Flag.RECEIPT else None


def _receipt(column: memoryview) -> Receipt:
    origin, number = RECEIPT.unpack(column)
    try:
        return Receipt(origin, number)
    except ValueError as error:
        raise DamagedBatch(f"its receipt: {error}") from error


def _add_offsets(columns: list[Buffer], values: Sequence[bytes]) -> int:
    offsets = array("i", accumulate(map(len, values), initial=0))
    columns.append(offsets.tobytes())
    return offsets[-1]


def _add_times(columns: list[Buffer], timestamps_ms: Sequence[int | None], base_ms: int) -> int:
    deltas = [0 if time is None else time - base_ms for time in timestamps_ms]
    if not any(deltas):
        return 0
    if min(deltas) < INT32_MIN or max(deltas) > INT32_MAX:
        columns.append(array("q", deltas).tobytes())
        return Flag.TIMES | Flag.WIDE_TIMES
    columns.append(array("i", deltas).tobytes())
    return Flag.TIMES


def _bitmap(keys: Sequence[bytes | None]) -> bytes:
    bits = "".join("0" if key is None else "1" for key in reversed(keys))
    return int(bits, 2).to_bytes((len(keys) + 7) // 8, "little")


def _piece(offsets: memoryview, column: memoryview, slot: int) -> bytes:
    start, end = offsets.cast("i")[slot : slot + 2]
    return column[start:end].tobytes()


def _cut(offsets: memoryview, column: memoryview) -> list[bytes]:
    ends = offsets.cast("i").tolist()
    size = ends[1]
    if size and ends[-1] == size * (len(ends) - 1) and ends == [*range(0, ends[-1] + 1, size)]:
        # All of one size, as records often are: three times as fast.
        return [*chain.from_iterable(struct.iter_unpack(f"{size}s", column))]
    whole = column.tobytes()
    return [whole[start:end] for start, end in pairwise(ends)]


def _check_offsets(offsets: memoryview, size: int, what: str) -> None:
    from_buffer = getattr(sys.modules.get("numpy"), "frombuffer", None)
    if from_buffer is not None and len(offsets) >= _NUMPY_BYTES_MIN:
        ends = from_buffer(offsets, "<i4")
        ascend = bool((ends[1:] >= ends[:-1]).all())
    else:
        ends = offsets.cast("i").tolist()
        ascend = ends == sorted(ends)
    if ends[0] != 0 or ends[-1] != size or not ascend:
        raise DamagedBatch(f"its {what} offsets do not ascend from 0 to {size}")


def check_codec(codec: Codec) -> None:
    """Raise `CodecMissing` if batches cannot be compressed so here."""
    compress(b"", codec, 0)


def compress(body: bytes, codec: Codec, level: int) -> bytes:
    """Return *body* compressed; *level* as in `encode_batch`. Raises `CodecMissing`."""
    match codec:
        case Codec.NONE:
            return body
        case Codec.ZSTD:
            with _library("zstandard", codec):
                import zstandard
            return zstandard.ZstdCompressor(level=level or ZSTD_LEVEL).compress(body)
        case Codec.LZ4:
            with _library("lz4", codec):
                import lz4.block
            return bytes(lz4.block.compress(body, store_size=False))
        case _:
            assert_never(codec)


def decompress(stored: memoryview, codec: Codec, size: int) -> memoryview:
    """Return the *size* bytes that were compressed, and never take memory for more.

    Raises `DamagedBatch`, `CodecMissing`. Without a codec it returns *stored*, of any size."""
    match codec:
        case Codec.NONE:
            return stored
        case Codec.ZSTD:
            return _decompress_zstd(stored, size)
        case Codec.LZ4:
            return _decompress_lz4(stored, size)
        case _:
            assert_never(codec)


def _decompress_zstd(stored: memoryview, body_bytes: int) -> memoryview:
    with _library("zstandard", Codec.ZSTD):
        import zstandard
    try:
        if zstandard.get_frame_parameters(stored).content_size != body_bytes:
            raise DamagedBatch("its compressed body is of another size")
        return memoryview(zstandard.ZstdDecompressor().decompress(stored))
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamagedBatch(f"its body does not decompress: {error}") from error


def _decompress_lz4(stored: memoryview, body_bytes: int) -> memoryview:
    with _library("lz4", Codec.LZ4):
        import lz4.block

    if body_bytes > LZ4_RATIO_MAX * len(stored):
        raise DamagedBatch("its compressed body is of another size")
    try:
        return memoryview(lz4.block.decompress(stored, uncompressed_size=body_bytes))
    except (lz4.block.LZ4BlockError, MemoryError) as error:
        raise DamagedBatch(f"its body does not decompress: {error}") from error


@contextmanager
def _library(package: str, codec: Codec) -> Iterator[None]:
    """Import what *codec* needs of *package* in here; an error names what is not there.

    Both packages come with dlog; but a log without compression works where they do not."""
    try:
        yield
    except ImportError as error:
        raise CodecMissing(codec.name.lower(), package) from error
