"""Batches as a producer of Kafka sends them."""

from typing import Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

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
