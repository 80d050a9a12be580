"""Entries, and the batches of records in them."""

from typing import Any, Final

from dlog.archive.object_format import (
    TRAILER_BYTES,
    ArchivedSegment,
    ObjectEncoder,
    ObjectEntry,
    footer_range,
    parse_footer,
)
from dlog.columns import Columns
from dlog.errors import BatchTooNew, DamagedBatch, MalformedObject
from dlog.headers import decode_headers, encode_headers
from dlog.kafka.errors import DamagedGroupRecord, GroupRecordTooNew
from dlog.kafka.protocol.consumer_group_events import Assignor, subscribed_topics
from dlog.kafka.protocol.group_offsets import (
    GroupChange,
    GroupOffsets,
    decode_change,
    encode_change,
)
from dlog.kafka.protocol.producer_state import ProducerBatch, ProducerState
from dlog.kafka_batch import KafkaCodec, KafkaColumns, decode_records, parse_kafka_header
from dlog.manifest import Sealed
from dlog.position import Place
from dlog.receipts import Receipt
from dlog.recordbatch import Codec, RecordBatch, decode_batch, encode_batch, encode_kafka
from ledger.entry import (
    HEADER_BYTES,
    Bad,
    check_frames,
    parse_header,
    verify_frame,
    verify_proof,
)
from ledger.errors import DamagedEntry
from ledger.ids import EntryId, LedgerId
from tests.dlog.kafka.produced import batch_of
from tests.fuzz.target import Target, crc
from tests.fuzz.targets.samples import AUTHENTIC, FRAMES
from tests.kept.messages import GROUP_CHANGES


def _frame_sealed(data: bytes) -> bytes:
    """Let both checksums of a frame be right."""
    payload = data[HEADER_BYTES : HEADER_BYTES + int.from_bytes(data[4:8], "little")]
    head = data[: HEADER_BYTES - 8] + crc(payload)
    return head + crc(head) + data[HEADER_BYTES:]


def _frames_of(data: bytes) -> Any:
    """Take *data* as the frames of a run whose columns its first bytes are."""
    count = data[0] % 4 if data else 0
    lengths = [int.from_bytes(data[1 + 2 * at : 3 + 2 * at], "little") for at in range(count)]
    checked = check_frames(7, range(count), lengths, data[1 + 2 * count :])
    if isinstance(checked, Bad):
        raise ValueError(checked.reason)  # noqa: TRY004 - of what was checked
    return checked


def _object(data: bytes) -> list[list[ObjectEntry]]:
    """Read all of an object."""
    end = data[-TRAILER_BYTES:]
    where = footer_range(end, len(data))
    index = parse_footer(data[where.start : where.stop], end, len(data))
    blocks = []
    for block in range(index.blocks):
        within = index.range_of(block)
        entries = index.entries_in(block, data[within.start : within.stop])
        blocks.append(entries)
        for entry in entries:
            index.verify(entry)
    return blocks


def _footer_sealed(data: bytes) -> bytes:
    """Let the checksum of an object's footer be right."""
    end = len(data) - TRAILER_BYTES
    if end < 0:
        return data
    begin = max(0, end - int.from_bytes(data[end : end + 4], "little"))
    return data[: end + 4] + crc(data[begin:end]) + data[end + 8 :]


def _batch(data: bytes) -> RecordBatch:
    batch = decode_batch(data)
    list(batch.records(Place(1, 0, 0)))
    batch.check_headers()
    return batch


def _kafka_records(data: bytes) -> KafkaColumns:
    return decode_records(data, parse_kafka_header(data))


def _use_batch(batch: RecordBatch) -> None:
    batch.key_list()
    batch.timestamps_ms()
    batch.txid_list()


def _subscription(data: bytes) -> set[str]:
    topics = subscribed_topics([Assignor("range", data)])
    if topics is None:
        raise ValueError("its topics cannot be read")
    return topics


def _use_change(change: GroupChange) -> None:
    """Replay it twice, and write what it says anew."""
    state = GroupOffsets()
    state.apply(change)
    state.apply(change)
    for again in state.snapshot():
        encode_change(again)


def _encoded_object() -> bytes:
    sealed = Sealed(EntryId(len(FRAMES) - 1), len(FRAMES), 9, 1, 2, 1000, 2000)
    encoder = ObjectEncoder(
        ArchivedSegment(
            incarnation="i",
            log="orders",
            number=3,
            ledger_id=LedgerId(7),
            first_offset=5,
            sealed=sealed,
            created_ms=9,
            custom={"key": b"wrapped"},
        )
    )
    parts = [encoder.begin(), *map(encoder.add, FRAMES), encoder.end()]
    return b"".join(filter(None, parts))


OBJECT: Final = _encoded_object()
RECORDS: Final = Columns.of(
    [
        b"plain",
        (b"value", b"key", 5, 1_700_000_000_000, encode_headers({"trace": b"1"})),
        (b"", None, None, None, None),
    ]
)
BATCHES: Final = tuple(
    encode_batch(
        records, base_index=0, base_timestamp_ms=1_700_000_000_000, codec=codec, receipt=receipt
    )
    for codec in Codec
    for records in (RECORDS, Columns.of([b"x" * 40] * 9))
    for receipt in (None, Receipt(b"o" * 16, 3))
)
KAFKA_BATCHES: Final = tuple(
    batch_of(b"one", b"", b"three" * 40, producer=7, epoch=1, sequence=5, codec=codec)
    for codec in KafkaCodec
)
PRODUCERS: Final = ProducerState.rebuild(
    None, [ProducerBatch(7, 1, 0, 3, 20, 0), ProducerBatch(7, 1, 3, 2, 23, 0)]
).encode(now_ms=0)
KAFKA_ENTRIES: Final = tuple(
    encode_kafka(batch, parse_kafka_header(batch), appended_ms=0, producers=producers)
    for batch in KAFKA_BATCHES
    for producers in (b"", PRODUCERS)
)
ENTRIES: Final = (
    Target(
        "entry-header",
        parse_header,
        (FRAMES[0], AUTHENTIC),
        refuses=DamagedEntry,
        seal=_frame_sealed,
    ),
    Target(
        "entry",
        lambda data: verify_frame(data, 7, 0),
        (FRAMES[0], AUTHENTIC),
        refuses=DamagedEntry,
        seal=_frame_sealed,
    ),
    Target(
        "entry-proof",
        lambda data: verify_proof(data, 7, None),
        (FRAMES[1],),
        refuses=DamagedEntry,
        seal=_frame_sealed,
    ),
    Target(
        "entries",
        _frames_of,
        (
            bytes([2])
            + b"".join(len(frame).to_bytes(2, "little") for frame in FRAMES[:2])
            + b"".join(FRAMES[:2]),
        ),
        refuses=ValueError,
    ),
    Target(
        "batch",
        _batch,
        (*BATCHES, *KAFKA_ENTRIES),
        refuses=(DamagedBatch, BatchTooNew),
        use=_use_batch,
    ),
    Target("kafka-batch", _kafka_records, KAFKA_BATCHES, refuses=DamagedBatch),
    Target("producer-snapshot", ProducerState.decode, (PRODUCERS,), refuses=DamagedBatch),
    Target("object", _object, (OBJECT,), refuses=MalformedObject, seal=_footer_sealed),
    Target(
        "headers",
        decode_headers,
        (encode_headers({"a": b"1", "b": b""}) or b"",),
        refuses=DamagedBatch,
    ),
    Target(
        "kafka-group-record",
        lambda data: decode_change(data, log="offsets", offset=0),
        tuple(encode_change(change) for change in GROUP_CHANGES.values()),
        refuses=(DamagedGroupRecord, GroupRecordTooNew),
        use=_use_change,
    ),
    Target(
        "kafka-subscription",
        _subscription,
        (b"\0\1\0\0\0\1\0\6orders\xff\xff\xff\xff",),
        refuses=ValueError,
    ),
)
