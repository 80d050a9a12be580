"""Batches that were encoded before it was known where they go: joined, placed, measured.

A task of Spark encodes its rows, and a writer appends the batch as it is. The columns are checked
whole, as readers check them: an entry that cannot be read would block every reader for good. No
record becomes an object on the way.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from dlog.errors import DamagedBatch
from dlog.headers import are_paired
from dlog.position import NO_TXID
from dlog.receipts import Receipt
from dlog.recordbatch import (
    HEADER,
    HEADER_BYTES,
    INT32_MAX,
    INT32_MIN,
    MAGIC,
    RECEIPT,
    BatchHeader,
    Buffer,
    Codec,
    Flag,
    RecordBatch,
    assemble,
    batch_from_body,
    compress,
    parse_header,
    version_of,
)

_PLACED: Final = Flag.ENCRYPTED | Flag.RECEIPT
"""Flags of a batch that has its place already."""


def parse_encoded(payload: bytes | memoryview) -> BatchHeader:
    """Return the header of *payload*, a batch without a place: neither compressed nor encrypted,
    and without a receipt. Raises `DamagedBatch`, `BatchTooNew`."""
    header = parse_header(payload)
    if header.codec is not Codec.NONE or header.flags & _PLACED:
        raise DamagedBatch("it is compressed or encrypted, or has a receipt: it has its place")
    return header


def decode_encoded(payload: bytes) -> RecordBatch:
    """Return the columns of *payload*, a batch without a place, as views of it. The records of a
    batch of Kafka's are not looked at.

    Raises `DamagedBatch`, also if its header does not tell its txids or which headers it has, and
    `BatchTooNew`."""
    batch = batch_from_body(parse_encoded(payload), memoryview(payload)[HEADER_BYTES:])
    if batch.header.flags & Flag.KAFKA:
        if (batch.header.first_txid, batch.header.last_txid) != (NO_TXID, NO_TXID):
            raise DamagedBatch("its header tells of txids, which Kafka's records have not")
        return batch
    txids = [txid for txid in batch.txid_list() or () if txid is not None]
    told = (batch.header.first_txid, batch.header.last_txid)
    if txids and told != (txids[0], txids[-1]):
        raise DamagedBatch(f"its header tells of txids {told[0]} to {told[1]}, and has others")
    if batch.headers is not None:
        encoded = (headers.encoded for headers in batch.headers_list() or ())
        if any(map(are_paired, encoded)) != bool(batch.header.flags & Flag.PAIRS):
            raise DamagedBatch("its flags do not tell which headers it has")
    return batch


def placed(
    payload: bytes | memoryview,
    *,
    base_index: int,
    previous_txid: int,
    codec: Codec = Codec.NONE,
    codec_level: int = 0,
    receipt: Receipt | None = None,
    header: BatchHeader | None = None,
) -> bytes:
    """Return the batch *payload* as it is at this place of a ledger, with *receipt*. One of Kafka's
    has the codec of its producer alone.

    *codec_level* is as in `encode_batch`. *header*: what `parse_encoded` returned, if it did.
    Raises `DamagedBatch`, `BatchTooNew`."""
    header = header or parse_encoded(payload)
    if header.flags & Flag.KAFKA:
        codec = Codec.NONE
    body: list[Buffer] = [memoryview(payload)[HEADER_BYTES:]]
    body_bytes, flags = header.body_bytes, header.flags
    if receipt is not None:
        padding = -body_bytes % 8
        body += (bytes(padding), RECEIPT.pack(receipt.origin, receipt.number))
        body_bytes += padding + RECEIPT.size
        flags |= Flag.RECEIPT
    stored_bytes = body_bytes
    if codec is not Codec.NONE:
        body = [compress(b"".join(body), codec, codec_level)]
        stored_bytes = len(body[0])
    last_txid = previous_txid if header.first_txid == NO_TXID else header.last_txid
    packed = HEADER.pack(
        MAGIC, version_of(flags), codec, flags,
        header.count, body_bytes, stored_bytes,
        header.value_bytes, header.key_bytes, header.headers_bytes,
        base_index, header.base_timestamp_ms, header.first_txid, last_txid,
    )  # fmt: skip
    return b"".join((packed, *body))


def joined(batches: Sequence[RecordBatch]) -> bytes:
    """Return one batch of the records of all *batches*, in order. They have no place, none is
    Kafka's, and their records fit into one entry."""
    base_ms = batches[0].header.base_timestamp_ms
    columns: list[Buffer] = [_ends((batch.count, batch.value_offsets) for batch in batches)]
    blobs = [_blob([batch.values for batch in batches])]
    flags = _add_times(columns, batches, base_ms)
    if any(batch.txids is not None for batch in batches):
        columns.append(b"".join(map(_txids, batches)))
        flags |= Flag.TXIDS
    if any(batch.keys is not None for batch in batches):
        columns.append(_ends((batch.count, batch.key_offsets) for batch in batches))
        flags |= Flag.KEYS
        if any(batch.keys is None or batch.key_validity is not None for batch in batches):
            columns.append(_validity(batches))
            flags |= Flag.KEY_NULLS
        blobs.append(_blob([batch.keys or b"" for batch in batches]))
    if any(batch.headers is not None for batch in batches):
        columns.append(_ends((batch.count, batch.headers_offsets) for batch in batches))
        flags |= Flag.HEADERS
        for batch in batches:
            flags |= batch.header.flags & Flag.PAIRS
        blobs.append(_blob([batch.headers or b"" for batch in batches]))
    with_txids = [batch.header for batch in batches if batch.header.first_txid != NO_TXID]
    return assemble(
        flags,
        sum(batch.count for batch in batches),
        columns,
        blobs,
        base_index=0,
        base_timestamp_ms=base_ms,
        first_txid=with_txids[0].first_txid if with_txids else NO_TXID,
        last_txid=with_txids[-1].last_txid if with_txids else NO_TXID,
    )


def largest_record_bytes(batch: RecordBatch) -> int:
    """Return the bytes of the largest record in *batch*: value, key and headers together."""
    sizes = [0] * batch.count
    for offsets in (batch.value_offsets, batch.key_offsets, batch.headers_offsets):
        if offsets is not None:
            ends = offsets.cast("i").tolist()
            sizes = [size + ends[at + 1] - ends[at] for at, size in enumerate(sizes)]
    return max(sizes)


def _blob(pieces: Sequence[Buffer]) -> tuple[int, Iterable[Buffer]]:
    return sum(map(len, pieces)), pieces


def _ends(parts: Iterable[tuple[int, memoryview | None]]) -> bytes:
    """Return the offsets of blobs behind each other: each of so many strings, with its offsets;
    without any, all of its strings are empty."""
    ends = [0]
    for count, offsets in parts:
        base = ends.pop()
        own = [0] * (count + 1) if offsets is None else offsets.cast("i").tolist()
        ends += [base + end for end in own] if base else own
    return array("i", ends).tobytes()


def _add_times(columns: list[Buffer], batches: Sequence[RecordBatch], base_ms: int) -> int:
    """Add the column of times after *base_ms*, if it takes one; return its flags."""
    deltas: list[int] = []
    extremes: set[int] = set()
    for batch in batches:
        shift = batch.header.base_timestamp_ms - base_ms
        if batch.time_deltas is None:
            deltas += [shift] * batch.count
            extremes.add(shift)
        else:
            own = [shift + delta for delta in batch.time_deltas.tolist()]
            deltas += own
            extremes |= {min(own), max(own)}
    if extremes == {0}:
        return 0
    if min(extremes) < INT32_MIN or max(extremes) > INT32_MAX:
        columns.append(array("q", deltas).tobytes())
        return Flag.TIMES | Flag.WIDE_TIMES
    columns.append(array("i", deltas).tobytes())
    return Flag.TIMES


def _txids(batch: RecordBatch) -> bytes:
    if batch.txids is None:
        return array("q", [NO_TXID]).tobytes() * batch.count
    return batch.txids.tobytes()


def _validity(batches: Sequence[RecordBatch]) -> bytes:
    """Return the bitmap of which records have a key, of all *batches* behind each other."""
    bits = count = 0
    for batch in batches:
        if batch.keys is None:
            own = 0
        elif batch.key_validity is None:
            own = (1 << batch.count) - 1
        else:
            own = int.from_bytes(batch.key_validity, "little") & ((1 << batch.count) - 1)
        bits |= own << count
        count += batch.count
    return bits.to_bytes((count + 7) // 8, "little")
