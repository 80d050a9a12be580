"""Batches as a producer of Kafka sends them."""

from typing import Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from google_crc32c import value as crc32c

from dlog.kafka_batch import HEADER_BYTES

NOW_MS: Final = 1_764_000_000_000


def batch_of(
    *values: bytes,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    time_ms: int = NOW_MS,
) -> bytes:
    """Return a batch of *values*, the first at *time_ms* and each a millisecond later."""
    builder = DefaultRecordBatchBuilder(2, codec, False, producer, epoch, sequence, 1 << 24)
    for slot, value in enumerate(values):
        builder.append(slot, time_ms + slot, b"key", value, [("h", b"1")])
    return bytes(builder.build())


def lying(batch: bytes, *, count: int | None = None, records: bytes | None = None) -> bytes:
    """Return *batch* with another number of records in its header, or other bytes for them, and a
    right checksum: what a broken producer sends, or one that means harm."""
    head, body = bytearray(batch[:HEADER_BYTES]), batch[HEADER_BYTES:]
    if count is not None:
        head[23:27] = (count - 1).to_bytes(4, "big")
        head[57:61] = count.to_bytes(4, "big")
    body = body if records is None else records
    head[8:12] = (HEADER_BYTES + len(body) - 12).to_bytes(4, "big")
    covered = bytes(head[21:]) + body
    head[17:21] = int(crc32c(covered)).to_bytes(4, "big")
    return bytes(head) + body


def fetched(data: bytes) -> list[tuple[int, bytes | None]]:
    """Return offset and value of each record as a consumer of Kafka gets them, and check that its
    batches are whole and have right checksums."""
    records: list[tuple[int, bytes | None]] = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        batch = DefaultRecordBatch(bytearray(data[:size]))
        assert batch.validate_crc()
        records += [(record.offset, record.value) for record in batch]
        data = data[size:]
    return records


def epochs_of(data: bytes) -> list[int]:
    """Return the leader epoch of each batch."""
    epochs = []
    while data:
        epochs.append(int.from_bytes(data[12:16], "big", signed=True))
        data = data[12 + int.from_bytes(data[8:12], "big") :]
    return epochs
