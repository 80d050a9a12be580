"""Writes `messages_1.json`: messages and entries as the first release makes them.

    python -m tests.kept.messages

The file is kept for ever: what stands in it every later version must read. Names can be added, by
the same command; it refuses to change what is kept. What is written in another way gets a new name.
"""

import json
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

from dlog.archive.object_format import ArchivedSegment, ObjectEncoder
from dlog.columns import Columns
from dlog.encoded_batch import placed
from dlog.envelope import seal
from dlog.errors import NotLeader
from dlog.headers import Headers, HeadersGiven, encode_headers
from dlog.kafka.protocol.consumer_group_events import Assignor, StoredGeneration, StoredMember
from dlog.kafka.protocol.group_offsets import (
    CommittedOffset,
    GenerationChange,
    GroupChange,
    GroupRemoval,
    OffsetsChange,
    OffsetsRemoval,
    encode_change,
)
from dlog.kafka.protocol.producer_state import ProducerBatch, ProducerState
from dlog.kafka_batch import KafkaRecords, parse_kafka_header
from dlog.manifest import Sealed
from dlog.protocol.client_table import ClientTable, encode_result
from dlog.protocol.command import (
    CommandEnvelope,
    LeaderMark,
    Origin,
    RequestId,
    StateDigest,
    encode_command,
    encode_digest,
    encode_mark,
)
from dlog.protocol.forward_message import (
    ForwardedCommand,
    encode_refusal,
    encode_reply,
    encode_welcome,
)
from dlog.protocol.forward_message import encode_command as encode_forwarded
from dlog.protocol.forward_message import (
    encode_hello as encode_forward_hello,
)
from dlog.protocol.snapshot import SnapshotHeader, write_snapshot
from dlog.receipts import Receipt
from dlog.recordbatch import Codec, encode_batch, encode_kafka
from ledger.entry import access_key, encode_frame, encode_lac, mac_key
from ledger.ids import BookieIdentity, EntryId, LedgerId
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.transport import messages as made
from ledger.transport.framing import FrameKind, frame_header
from ledger.transport.handshake import (
    Hello,
    Purpose,
    Refusal,
    Welcome,
    encode_answer,
    encode_hello,
)
from ledger.transport.operator import order_message, order_reply
from ledger.wire import bookie_pb2 as pb

KEPT: Final = Path(__file__).with_name("messages_1.json")
PASSWORD: Final = b"password"
KEY: Final = access_key(PASSWORD)
FRAME_2: Final = encode_frame(
    ledger_id=7,
    entry_id=3,
    last_add_confirmed=2,
    length=100,
    payload=b"payload",
    mac=mac_key(PASSWORD),
)
LAC_2: Final = encode_lac(ledger_id=7, last_add_confirmed=4, length=107, mac=mac_key(PASSWORD))
PLAIN_FRAME: Final = encode_frame(
    ledger_id=7, entry_id=4, last_add_confirmed=3, length=107, payload=b"payload"
)
FRAME, LAC = (
    bytes.fromhex(json.loads(KEPT.read_text())[name])
    for name in ("entry with HMAC", "explicit LAC")
)
"""Of version 1, which is not written any more."""
ARCHIVED: Final = ArchivedSegment(
    incarnation="a" * 16,
    log="orders",
    number=3,
    ledger_id=LedgerId(7),
    first_offset=500,
    sealed=Sealed(EntryId(0), 1, 7, 1, 2, 1_764_000_000_000, 1_764_000_000_001),
    created_ms=1_764_000_000_000,
    archived_ms=1_764_000_000_002,
    custom={"dlog.log": b"orders"},
)
OBJECT_FRAME: Final = encode_frame(
    ledger_id=7, entry_id=0, last_add_confirmed=-1, length=7, payload=b"payload"
)
RUNS: Final = (
    AddRun(7, KEY, [3], [len(FRAME)], FRAME),
    AddRun(7, KEY, [-1], [len(LAC)], LAC, explicit_lac=True),
    AddRun(8, KEY, [3], [len(FRAME)], FRAME, recovery=True),
)
READ: Final = ReadQuery(7, KEY, 3, 9, bytes_max=1000, fence=True, wait_ms=50, repairs=True)
READ_ANSWER: Final = ReadAnswer(
    Status.OK, [3], [len(FRAME)], FRAME, considered=9, lac_proof=LAC, fenced=True
)
LAC_QUERY: Final = LacQuery(7, KEY, fence=True)
LAC_ANSWER: Final = LacAnswer(Status.OK, lac_proof=LAC, fenced=True, last_entry=4)
HELD: Final = HeldQuery(7, KEY, 0, 9, ranges_max=5)
HELD_ANSWER: Final = HeldAnswer(Status.OK, [0, 5], [3, 6], considered=8, listed=9)
INFO: Final = InfoAnswer("b0", "incarnation", "instance", read_only=True)
HELLO: Final = Hello(Purpose.ADDS, "b0", 1, 1)
WELCOME: Final = Welcome(1, "b0", "incarnation")
REFUSAL: Final = Refusal("here is bookie b1")
IDENTITY: Final = BookieIdentity("instance", "identity", 7)
HELLO_2: Final = Hello(Purpose.ADDS, "b0", 2, 2, IDENTITY)
WELCOME_2: Final = Welcome(2, "b0", "incarnation", IDENTITY)
REFUSAL_2: Final = Refusal("here is bookie b1", is_another=True)
ORDER: Final = pb.SetReadOnlyRequest(read_only=True)
ORDER_REPLY: Final = pb.OrderReply(set_read_only=pb.SetReadOnlyReply(read_only=True))
VALUES: Final = (b"one", b"", b"three" * 40)
KEYS: Final = (b"k", None, b"")
TXIDS: Final = (5, None, 9)
TIMESTAMPS_MS: Final = (1000, 1001, 1_000_000_000_000)
HEADERS: Final = {"h": b"v"}
PAIRS: Final = (("h", b"v"), ("n", None), ("h", b""))
RECEIPT: Final = Receipt(bytes(range(16)), 12)
CIPHER_KEY: Final = bytes(range(32))
REQUEST: Final = RequestId("client-7", 42)
ENVELOPE: Final = CommandEnvelope(b"pay alice 5", 3, Origin(bytes(range(16)), 7), REQUEST)
ALONE: Final = CommandEnvelope(b"pay bob 5", 3, Origin(bytes(range(16)), 8), None)
LEADER: Final = LeaderMark(5, "app-1", "http://app-1:8000", "tls:app-1:41001")
DIGEST: Final = StateDigest(100, b"digest")
MEMBER: Final = StoredMember(
    member_id="app-1-5f",
    instance_id="app-1",
    client_id="app",
    client_host="10.0.0.1",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    assignors=(Assignor("range", b"topics"),),
    assignment=b"partitions",
)
GENERATION: Final = StoredGeneration(
    generation=7,
    protocol_type="consumer",
    protocol="range",
    leader_id="app-1-5f",
    is_assigned=True,
    members=(MEMBER,),
)
GROUP_CHANGES: Final[Mapping[str, GroupChange]] = {
    "group, generation": GenerationChange("billing", GENERATION, 1_764_000_000_000),
    "group, offsets": OffsetsChange(
        "billing", {("orders", 3): CommittedOffset(42, -1, "here", 1_764_000_000_000)}
    ),
    "group, offsets removed": OffsetsRemoval("billing", (("orders", 3),)),
    "group, removed": GroupRemoval("billing"),
}
FORWARDED: Final = ForwardedCommand(REQUEST, b"pay alice 5", 3, 1500)
SNAPSHOT: Final = SnapshotHeader(
    log="accounts",
    incarnation="a" * 16,
    offset=100,
    txid=9,
    epoch=5,
    leader="app-1",
    address="http://app-1:8000",
    endpoint="tls:app-1:41001",
    version=3,
    written_ms=1_764_000_000_000,
)
STATE: Final = b"the application's state"


def values() -> Mapping[str, bytes]:
    """Return what this version writes, apart from what a compressor makes."""
    read, lac, held, info = (
        made.read_request(READ),
        made.lac_request(LAC_QUERY),
        made.held_request(HELD),
        made.info_request(),
    )
    order = order_message("set_read_only", ORDER)
    bodies = {
        FrameKind.ADD: made.batch_message(RUNS),
        FrameKind.ADDED: made.ack_message(1, 2, [Status.OK, Status.FENCED], held_ms=30),
        FrameKind.READ: read,
        FrameKind.READ_LAC: lac,
        FrameKind.READ_HELD: held,
        FrameKind.INFO: info,
        FrameKind.CANCEL: b"",
        FrameKind.NOT_KNOWN: b"",
        FrameKind.ORDER: order,
        FrameKind.COMMAND: encode_forwarded(FORWARDED),
    }
    answers = {
        "answer to READ": b"".join(made.read_reply(READ_ANSWER, read)),
        "answer to READ_LAC": made.lac_reply(LAC_ANSWER, lac),
        "answer to READ_HELD": made.held_reply(HELD_ANSWER, held),
        "answer to INFO": made.info_reply(INFO, info),
        "answer to ORDER": order_reply(ORDER_REPLY, order),
        "answer to COMMAND": encode_reply({"balance": 5}),
        "answer to COMMAND, an error": encode_reply(NotLeader("accounts", "app-1", "http://a", 5)),
    }
    return {
        "hello": encode_hello(HELLO),
        "welcome": encode_answer(WELCOME),
        "refusal": encode_answer(REFUSAL),
        "hello, version 2": encode_hello(HELLO_2),
        "welcome, version 2": encode_answer(WELCOME_2),
        "refusal, version 2": encode_answer(REFUSAL_2),
        **{f"{kind.name}": framed(kind, body) for kind, body in bodies.items()},
        **{name: framed(FrameKind.ANSWER, body) for name, body in answers.items()},
        "entry with HMAC": FRAME,
        "entry with CRC": PLAIN_FRAME,
        "explicit LAC": LAC,
        "entry with HMAC, version 2": FRAME_2,
        "explicit LAC, version 2": LAC_2,
        "hello to a leader": encode_forward_hello("a" * 16),
        "welcome of a leader": encode_welcome(),
        "refusal of a leader": encode_refusal("here is a replica of another log"),
        "command": encode_command(ENVELOPE),
        "command without a request": encode_command(ALONE),
        "mark of a leader": encode_mark(LEADER),
        "digest": encode_digest(DIGEST),
        "snapshot": snapshot(),
        **{name: encode_change(change) for name, change in GROUP_CHANGES.items()},
        "object": archived_object(),
        "batch 1": batch(Codec.NONE),
        "batch 2": batch(Codec.NONE, headers=HEADERS),
        "batch 3": _full(Codec.NONE),
        "batch 4": sealed(Codec.NONE),
        "batch 5": batch(Codec.NONE, headers=PAIRS, receipt=RECEIPT),
        "batch 5, encrypted": sealed(Codec.NONE, PAIRS),
        "batch 6": kafka_batch(),
        "batch 6, encrypted": _sealed(kafka_batch(), Codec.NONE),
        "snapshot of producers": PRODUCERS.encode(now_ms=APPENDED_MS),
    }


def compressed() -> Mapping[str, bytes]:
    """Return batches as a compressor makes them: another version of it may make other bytes."""
    batches = {f"batch 3, {codec.name}": _full(codec) for codec in (Codec.ZSTD, Codec.LZ4)}
    return batches | {"batch 4, ZSTD": sealed(Codec.ZSTD)}


APPENDED_MS: Final = 1_764_000_000_000


def _producers() -> ProducerState:
    state = ProducerState()
    for batch in (
        ProducerBatch(7, 1, 0, 3, 20, APPENDED_MS - 2),
        ProducerBatch(7, 1, 3, 2, 23, APPENDED_MS - 1),
    ):
        state.add(batch)
    return state


PRODUCERS: Final = _producers()


def kafka_batch() -> bytes:
    """Return a batch of Kafka's with a snapshot of producers, at its place."""
    headers = [Headers(encode_headers(PAIRS) or b""), Headers(b""), Headers(b"")]
    records = KafkaRecords(values=VALUES, keys=KEYS, timestamps_ms=TIMESTAMPS_MS, headers=headers)
    encoded = records.encode()
    payload = encode_kafka(
        encoded,
        parse_kafka_header(encoded),
        appended_ms=APPENDED_MS,
        producers=PRODUCERS.encode(now_ms=APPENDED_MS),
    )
    return placed(payload, base_index=3, previous_txid=9, receipt=RECEIPT)


def clients() -> ClientTable:
    table = ClientTable()
    table.put(REQUEST, encode_result({"balance": 5}))
    table.put(RequestId("client-7", 43), encode_result(b"bytes"))
    return table


def snapshot() -> bytes:
    out = BytesIO()
    write_snapshot(out, SNAPSHOT, clients().encode(), lambda stream: stream.write(STATE))
    return out.getvalue()


def archived_object() -> bytes:
    encoder = ObjectEncoder(ARCHIVED)
    blocks = [encoder.begin(), encoder.add(OBJECT_FRAME), encoder.end()]
    return b"".join(filter(None, blocks))


def _full(codec: Codec) -> bytes:
    return batch(codec, headers=HEADERS, receipt=RECEIPT)


def sealed(codec: Codec, headers: HeadersGiven = HEADERS) -> bytes:
    """Return an encrypted batch; there is no chance in it."""
    return _sealed(batch(Codec.NONE, headers=headers, receipt=RECEIPT), codec)


def _sealed(payload: bytes, codec: Codec) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return seal(
        payload,
        AESGCM(CIPHER_KEY),
        incarnation="a" * 16,
        ledger_id=7,
        entry_id=3,
        salt=bytes(8),
        codec=codec,
    )


def framed(kind: FrameKind, body: bytes) -> bytes:
    return frame_header(kind, 17, len(body)) + body


def batch(
    codec: Codec,
    *,
    headers: HeadersGiven | None = None,
    receipt: Receipt | None = None,
) -> bytes:
    records = Columns(
        values=list(VALUES),
        keys=list(KEYS),
        txids=list(TXIDS),
        timestamps_ms=list(TIMESTAMPS_MS),
        headers=None if headers is None else [encode_headers(headers), None, None],
    )
    return encode_batch(
        records, base_index=3, base_timestamp_ms=1000, previous_txid=4, codec=codec, receipt=receipt
    )


def keep(path: Path, written: Mapping[str, bytes]) -> list[str]:
    """Add what is not kept in *path* yet; return the names of that.

    Raises `ValueError` if something kept would be changed: nothing is written then."""
    kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    told = {name: value.hex() for name, value in written.items()}
    changed = [name for name in told if kept.get(name, told[name]) != told[name]]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} would be changed; what is kept stays: give what is new a name"
        )
    new = [name for name in told if name not in kept]
    kept |= {name: told[name] for name in new}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return new


if __name__ == "__main__":
    there = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    more = {name: value for name, value in compressed().items() if name not in there}
    try:
        made_now = keep(KEPT, {**values(), **more})
    except ValueError as error:
        sys.exit(str(error))
    sys.stdout.write(f"kept: {', '.join(made_now) or 'nothing new'}\n")
