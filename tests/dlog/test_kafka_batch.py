"""Batches as Kafka's own clients encode them."""

import struct
import sys
from collections.abc import Sequence
from typing import Final

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from dlog import kafka_batch
from dlog.encoded_batch import placed
from dlog.envelope import decode_facts, new_cipher, seal, unseal
from dlog.errors import CodecMissing, DamagedBatch, InvalidHeaders
from dlog.headers import Headers, encode_headers
from dlog.kafka_batch import (
    NULL_VALUE,
    KafkaCodec,
    KafkaRecords,
    decode_records,
    has_right_crc,
    parse_kafka_header,
    with_place,
)
from dlog.position import Place
from dlog.recordbatch import (
    HEADER_BYTES,
    Codec,
    Flag,
    KafkaRecordBatch,
    decode_batch,
    encode_kafka,
    parse_header,
)

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]
"""Value, key, time, headers."""
NOW_MS: Final = 1_764_000_000_000
NAMES: Final = st.text(max_size=4) | st.just("n" * 300)
ROWS: Final = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=90),
        st.integers(0, 2**40),
        st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=90)), max_size=3),
    ),
    min_size=1,
    max_size=12,
)
SOME: Final[list[Row]] = [
    (b"value", b"key", NOW_MS, []),
    (None, None, NOW_MS + 5, [("a", b"1"), ("a", None)]),
    (b"", b"", NOW_MS - 7, []),
    (b"x" * 1000, b"k" * 100, NOW_MS, [("n" * 300, b"v" * 100)]),
]


def encoded(
    rows: Sequence[Row], codec: int = 0, producer: tuple[int, int, int] = (-1,) * 3
) -> bytes:
    """Return *rows* as aiokafka encodes them."""
    builder = DefaultRecordBatchBuilder(2, codec, False, *producer, 1 << 24)
    for slot, (value, key, time_ms, headers) in enumerate(rows):
        assert builder.append(slot, time_ms, key, value, headers) is not None
    return bytes(builder.build())


def entry(batch: bytes, **given: bytes) -> bytes:
    payload = encode_kafka(batch, parse_kafka_header(batch), appended_ms=NOW_MS, **given)
    return placed(payload, base_index=3, previous_txid=9)


def read(payload: bytes) -> list[Row]:
    batch = decode_batch(payload)
    return [
        (
            None if NULL_VALUE in record.headers else record.value,
            record.key,
            record.timestamp_ms,
            [pair for pair in record.headers.pairs() if pair[0] != NULL_VALUE],
        )
        for record in batch.records(Place(1, 0, 100))
    ]


@given(rows=ROWS, codec=st.sampled_from(KafkaCodec))
def test_native_readers_get_what_a_producer_of_kafka_sent(rows: list[Row], codec: int) -> None:
    batch = encoded(rows, codec)
    header = parse_kafka_header(batch)
    assert has_right_crc(batch, header)
    assert (header.codec, header.count, header.batch_bytes) == (codec, len(rows), len(batch))
    assert read(entry(batch)) == rows


@pytest.mark.parametrize(
    "codec", [KafkaCodec.NONE, KafkaCodec.GZIP, KafkaCodec.LZ4, KafkaCodec.ZSTD]
)
def test_batches_of_kafka_python_are_read(codec: KafkaCodec) -> None:
    builder = KafkaPythonBuilder(2, codec, False, 7, 2, 100, 1 << 20)
    for slot, (value, key, time_ms, headers) in enumerate(SOME):
        builder.append(slot, time_ms, key, value, headers)
    batch = bytes(builder.build())
    assert read(entry(batch)) == SOME
    header = parse_kafka_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 100)
    assert header.is_idempotent


def test_snappy_is_read_as_java_writes_it_and_as_one_block() -> None:
    from cramjam import snappy

    plain = encoded(SOME)
    data = plain[kafka_batch.HEADER_BYTES :]
    raw = bytes(snappy.compress_raw(data))
    half = [bytes(snappy.compress_raw(part)) for part in (data[:50], data[50:])]
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    framed += b"".join(struct.pack(">i", len(part)) + part for part in half)
    for records in (raw, framed):
        assert read(entry(with_records(plain, records, KafkaCodec.SNAPPY))) == SOME
    for cut in (framed[:-1], framed[: 16 + 2]):
        with pytest.raises(DamagedBatch, match=r"cut off|do not decompress"):
            read(entry(with_records(plain, cut, KafkaCodec.SNAPPY)))


def with_records(batch: bytes, records: bytes, codec: int) -> bytes:
    """Return *batch* with other *records*, compressed with *codec*."""
    header = bytearray(batch[: kafka_batch.HEADER_BYTES])
    struct.pack_into(">i", header, 8, len(header) + len(records) - 12)
    struct.pack_into(">h", header, 21, codec)
    whole = bytes(header) + records
    return whole[:17] + struct.pack(">I", crc32c(whole[21:])) + whole[21:]


@given(rows=ROWS)
def test_consumers_of_kafka_get_native_records(rows: list[Row]) -> None:
    headers = []
    for value, _, _, pairs in rows:
        native = [pair for pair in pairs if 0 < len(pair[0].encode()) < 256]
        if value is None:
            native.append((NULL_VALUE, b""))
        headers.append(Headers(encode_headers(native) or b""))
    records = KafkaRecords(
        values=[row[0] or b"" for row in rows],
        keys=[row[1] for row in rows],
        timestamps_ms=[row[2] for row in rows],
        headers=headers,
    )
    batch = with_place(records.encode(), 500, 7)
    theirs = DefaultRecordBatch(bytearray(batch))
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.next_offset) == (500, 500 + len(rows))
    for (value, key, time_ms, pairs), record in zip(rows, theirs, strict=True):
        kept = [pair for pair in pairs if 0 < len(pair[0].encode()) < 256]
        assert (record.value, record.key, record.timestamp) == (value, key, time_ms)
        assert record.headers == kept


def test_base_offset_and_epoch_are_written_without_another_checksum() -> None:
    batch = encoded(SOME)
    placed_batch = with_place(batch, 2**40, 9)
    header = parse_kafka_header(placed_batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 9)
    assert has_right_crc(placed_batch, header)
    assert DefaultRecordBatch(bytearray(placed_batch)).validate_crc()


def test_an_entry_tells_times_and_producers_without_decoding_a_record() -> None:
    batch = with_records(encoded(SOME), b"no records at all", KafkaCodec.NONE)
    found = decode_batch(entry(batch, producers=b"state"))
    assert isinstance(found, KafkaRecordBatch)
    assert (found.count, found.oldest_ms, found.newest_ms) == (4, NOW_MS, NOW_MS + 5)
    assert (bytes(found.kafka), bytes(found.producers)) == (with_place(batch, 0, 0), b"state")
    assert (found.appended_ms, found.header.last_txid) == (NOW_MS, 9)
    with pytest.raises(DamagedBatch):
        found.value_list()


@pytest.mark.parametrize("codec", KafkaCodec)
def test_records_that_are_none_are_damage_and_nothing_else(codec: KafkaCodec) -> None:
    batch = encoded(SOME, codec)
    header = parse_kafka_header(batch)
    for at in range(kafka_batch.HEADER_BYTES, len(batch)):
        for change in (1, 0x80, 0xFF):
            bad = bytearray(batch)
            bad[at] ^= change
            try:
                decode_records(bytes(bad), header)
            except DamagedBatch:
                continue


@pytest.mark.parametrize("codec", [c for c in KafkaCodec if c is not KafkaCodec.NONE])
def test_a_batch_that_expands_beyond_the_bound_is_refused(
    codec: KafkaCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = encoded([(b"a" * 100_000, None, NOW_MS, [])], codec)
    assert len(batch) < 10_000
    monkeypatch.setattr(kafka_batch, "RECORDS_BYTES_MAX", 50_000)
    with pytest.raises(DamagedBatch, match="more than 50000 bytes"):
        decode_records(batch, parse_kafka_header(batch))


def test_an_unknown_codec_is_damage_and_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = with_records(encoded(SOME), b"", 7)
    with pytest.raises(DamagedBatch, match="codec 7"):
        read(entry(batch))
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(CodecMissing, match="cramjam"):
        read(entry(with_records(encoded(SOME), b"\x05", 2)))


def test_a_record_of_kafka_is_appended_natively_only_if_it_can_be_stored() -> None:
    records = [*decode_batch(entry(encoded(SOME))).records(Place(1, 0, 0))]
    assert encode_headers(records[1].headers) is not None
    with pytest.raises(InvalidHeaders):
        encode_headers(records[3].headers)


@pytest.mark.parametrize(
    ("at", "change", "reason"),
    [
        (5, b"\x01", "with codec 1"),
        (6, b"\x08", "flags 0x208"),
        (8, b"\x05", "4 records in an entry of 5"),
        (8, b"\x01\x00\x20\x00", "records of Kafka"),
        (40, b"\x09", "another time"),
        (24, b"\x08", "do not add up"),
        (HEADER_BYTES, b"\x09", "newest time"),
        (HEADER_BYTES + 16 + 16, b"\x01", "format 1"),
        (HEADER_BYTES + 16 + 11, b"\x70", "Kafka batch of"),
        (HEADER_BYTES + 16 + 8, b"\x80", "shorter than its header"),
    ],
)
def test_an_entry_whose_header_is_not_that_of_its_batch_is_refused(
    at: int, change: bytes, reason: str
) -> None:
    payload = bytearray(entry(encoded(SOME)))
    payload[at : at + len(change)] = change
    with pytest.raises(DamagedBatch, match=reason):
        decode_batch(bytes(payload))


def test_a_batch_of_kafka_is_sealed_whole_and_tells_its_times_without_a_key() -> None:
    cipher = new_cipher(bytes(32))
    batch = encoded(SOME, KafkaCodec.LZ4)
    sealed = seal(
        entry(batch, producers=b"state"),
        cipher,
        incarnation="a",
        ledger_id=1,
        entry_id=3,
        salt=bytes(8),
        codec=Codec.ZSTD,
    )
    header = parse_header(sealed)
    assert (header.flags, header.codec) == (Flag.KAFKA | Flag.ENCRYPTED, Codec.NONE)
    opened = unseal(sealed, cipher, incarnation="a", ledger_id=1, entry_id=3)
    assert isinstance(opened, KafkaRecordBatch)
    assert (bytes(opened.kafka), bytes(opened.producers)) == (with_place(batch, 0, 0), b"state")
    facts = decode_facts(sealed)
    assert (facts.oldest_ms, facts.newest_ms, facts.count) == (NOW_MS, NOW_MS + 5, 4)
    assert list(facts.timestamps_ms()) == [NOW_MS] * 4
