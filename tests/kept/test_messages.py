"""What the first release sent and put into entries is read by this version, and written so too."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dlog.archive.object_format import TRAILER_BYTES, footer_range, parse_footer
from dlog.envelope import unseal
from dlog.errors import NotLeader
from dlog.kafka.protocol.group_offsets import decode_change
from dlog.kafka.protocol.producer_state import ProducerBatch, ProducerState
from dlog.position import NO_TXID
from dlog.protocol import forward_message
from dlog.protocol.client_table import ClientTable
from dlog.protocol.command import decode
from dlog.protocol.snapshot import check_snapshot, read_snapshot
from dlog.recordbatch import VERSION, KafkaRecordBatch, RecordBatch, decode_batch
from ledger.entry import (
    Checked,
    Digest,
    authenticate,
    check_frames,
    mac_key,
    payload_of,
    verify_frame,
    verify_proof,
    verify_whole,
)
from ledger.requests import Status
from ledger.transport import messages
from ledger.transport.framing import (
    HEADER_BYTES,
    SCRATCH_BYTES,
    Budget,
    Frame,
    FrameKind,
    FrameReader,
)
from ledger.transport.handshake import decode_answer, decode_hello
from ledger.transport.operator import order_answer, order_of
from tests.kept import messages as written

KEPT = {name: bytes.fromhex(value) for name, value in json.loads(written.KEPT.read_text()).items()}
BATCHES = [name for name in KEPT if name.startswith("batch")]


def received(name: str) -> Frame:
    """Return the frame under *name* as a connection receives it."""
    data = KEPT[name]
    reader = FrameReader(
        memoryview(bytearray(SCRATCH_BYTES)), body_bytes_max=1 << 20, budget=Budget()
    )
    reader.room()[: len(data)] = data
    (frame,) = reader.take(len(data))
    assert frame.number == 17
    return frame


def body(name: str, kind: FrameKind) -> bytes:
    frame = received(name)
    assert frame.kind == kind
    return bytes(frame.body)


def test_a_greeting_is_understood() -> None:
    assert decode_hello(KEPT["hello"]) == written.HELLO
    assert decode_answer(KEPT["welcome"]) == written.WELCOME
    assert decode_answer(KEPT["refusal"]) == written.REFUSAL


def test_a_greeting_that_says_who_is_meant_is_understood() -> None:
    assert decode_hello(KEPT["hello, version 2"]) == written.HELLO_2
    assert decode_answer(KEPT["welcome, version 2"]) == written.WELCOME_2
    assert decode_answer(KEPT["refusal, version 2"]) == written.REFUSAL_2


def test_an_order_is_understood() -> None:
    order = body("ORDER", FrameKind.ORDER)
    assert order_of(order) == ("set_read_only", written.ORDER)
    assert order_answer(body("answer to ORDER", FrameKind.ANSWER), order) == written.ORDER_REPLY


def test_adds_and_their_acknowledgements_are_understood() -> None:
    runs = messages.batch_runs(body("ADD", FrameKind.ADD))
    for run, wanted in zip(runs, written.RUNS, strict=True):
        said = replace(
            run, entries=list(run.entries), lengths=list(run.lengths), frames=bytes(run.frames)
        )
        assert said == wanted
    acked = messages.ack_values(body("ADDED", FrameKind.ADDED))
    assert acked == (1, 2, [Status.OK, Status.FENCED], 30, False)


def test_questions_and_answers_are_understood() -> None:
    read, lac = body("READ", FrameKind.READ), body("READ_LAC", FrameKind.READ_LAC)
    held, info = body("READ_HELD", FrameKind.READ_HELD), body("INFO", FrameKind.INFO)
    assert messages.read_query(read) == written.READ
    assert messages.lac_query(lac) == written.LAC_QUERY
    assert messages.held_query(held) == written.HELD
    messages.check_info_request(info)
    answer = messages.read_answer(body("answer to READ", FrameKind.ANSWER), read)
    assert (answer.status, list(answer.entries), bytes(answer.frames)) == (
        Status.OK,
        [3],
        written.FRAME,
    )
    assert (answer.considered, answer.lac_proof, answer.fenced) == (9, written.LAC, True)
    known = messages.lac_answer(body("answer to READ_LAC", FrameKind.ANSWER), lac)
    assert known == written.LAC_ANSWER
    found = messages.held_answer(body("answer to READ_HELD", FrameKind.ANSWER), held)
    assert (list(found.ranges()), found.considered, found.listed) == ([(0, 3), (5, 6)], 8, 9)
    assert messages.info_answer(body("answer to INFO", FrameKind.ANSWER), info) == written.INFO


def test_what_replicas_say_to_each_other_is_understood() -> None:
    assert forward_message.decode_hello(KEPT["hello to a leader"]) == "a" * 16
    assert forward_message.decode_answer(KEPT["welcome of a leader"]) == ""
    refusal = forward_message.decode_answer(KEPT["refusal of a leader"])
    assert refusal == "here is a replica of another log"
    command = body("COMMAND", FrameKind.COMMAND)
    assert forward_message.decode_command(command) == written.FORWARDED
    replies = [
        forward_message.decode_reply(
            body(name, FrameKind.ANSWER), log="accounts", request=written.REQUEST
        )
        for name in ("answer to COMMAND", "answer to COMMAND, an error")
    ]
    assert replies[0] == {"balance": 5}
    assert isinstance(replies[1], NotLeader)
    assert (replies[1].leader, replies[1].address, replies[1].epoch) == ("app-1", "http://a", 5)


def test_records_of_replicas_are_understood() -> None:
    for name, said in (
        ("command", written.ENVELOPE),
        ("command without a request", written.ALONE),
        ("mark of a leader", written.LEADER),
        ("digest", written.DIGEST),
    ):
        assert decode(KEPT[name], log="accounts", offset=1) == said


def test_records_of_consumer_groups_are_understood() -> None:
    for name, change in written.GROUP_CHANGES.items():
        assert decode_change(KEPT[name], log="_kafka/offsets-0", offset=1) == change


def test_a_segment_in_object_storage_is_read() -> None:
    kept = KEPT["object"]
    end = kept[-TRAILER_BYTES:]
    footer = footer_range(end, len(kept))
    index = parse_footer(kept[footer.start : footer.stop], end, len(kept))
    assert index.segment == written.ARCHIVED
    block = index.range_of(0)
    (entry,) = index.entries_in(0, kept[block.start : block.stop])
    assert (entry.entry_id, bytes(entry.payload), entry.length) == (0, b"payload", 7)
    assert index.verify(entry).ledger_id == written.ARCHIVED.ledger_id


def test_a_snapshot_is_read() -> None:
    kept = KEPT["snapshot"]
    assert check_snapshot(BytesIO(kept), len(kept)) == written.SNAPSHOT
    header, table, state = read_snapshot(BytesIO(kept), len(kept))
    assert (header, state.read()) == (written.SNAPSHOT, written.STATE)
    clients = ClientTable.decode(table)
    assert clients.find(written.REQUEST) == written.clients().find(written.REQUEST)
    assert b"".join(clients.encode()) == b"".join(written.clients().encode())


@pytest.mark.parametrize("kind", FrameKind)
def test_every_kind_of_frame_is_kept(kind: FrameKind) -> None:
    kept = [name for name in KEPT if name == kind.name or name.startswith("answer to")]
    assert kind in {received(name).kind for name in kept}
    if kind in (FrameKind.CANCEL, FrameKind.NOT_KNOWN):
        assert len(KEPT[kind.name]) == HEADER_BYTES


@pytest.mark.parametrize("version", ["", ", version 2"])
def test_entries_are_read_and_authenticated(version: str) -> None:
    mac = mac_key(written.PASSWORD)
    frame = KEPT["entry with HMAC" + version]
    header = verify_frame(frame, 7, 3)
    assert isinstance(check_frames(7, [3], [len(frame)], frame), Checked)
    assert verify_whole(frame, 7, 3, Digest.HMAC_SHA256) == header
    assert authenticate(frame, header, mac)
    assert bytes(payload_of(frame, header)) == b"payload"
    assert (header.last_add_confirmed, header.length) == (2, 100)
    plain = KEPT["entry with CRC"]
    assert authenticate(plain, verify_frame(plain, 7, 4), None)
    assert verify_proof(KEPT["explicit LAC" + version], 7, mac).last_add_confirmed == 4


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_says_what_it_said(name: str) -> None:
    batch: RecordBatch
    is_kafka = name.startswith("batch 6")
    if name.startswith("batch 4") or name.endswith("encrypted"):
        cipher = AESGCM(written.CIPHER_KEY)
        batch = unseal(KEPT[name], cipher, incarnation="a" * 16, ledger_id=7, entry_id=3)
    else:
        batch = decode_batch(KEPT[name])
    assert batch.value_list() == list(written.VALUES)
    assert batch.key_list() == list(written.KEYS)
    assert batch.txid_list() == (None if is_kafka else list(written.TXIDS))
    assert list(batch.timestamps_ms()) == list(written.TIMESTAMPS_MS)
    header = batch.header
    first_txid = NO_TXID if is_kafka else 5
    assert (header.base_index, header.first_txid, header.last_txid) == (3, first_txid, 9)
    if name != "batch 1":
        headers = batch.headers_list()
        assert headers is not None
        wanted = written.PAIRS if name.startswith(("batch 5", "batch 6")) else (("h", b"v"),)
        assert headers[0].pairs() == wanted
    if name not in ("batch 1", "batch 2"):
        assert batch.receipt == written.RECEIPT
    if is_kafka:
        assert isinstance(batch, KafkaRecordBatch)
        assert batch.appended_ms == written.APPENDED_MS
        assert bytes(batch.producers) == KEPT["snapshot of producers"]


def test_a_snapshot_of_producers_says_what_it_said() -> None:
    state = ProducerState.decode(KEPT["snapshot of producers"])
    assert state.encode(now_ms=written.APPENDED_MS) == KEPT["snapshot of producers"]
    assert state.duplicate_of(ProducerBatch(7, 1, 0, 3, 0, 0), now_ms=written.APPENDED_MS) == 20
    assert state.duplicate_of(ProducerBatch(7, 1, 3, 2, 0, 0), now_ms=written.APPENDED_MS) == 23


def test_every_version_and_codec_of_a_batch_is_kept() -> None:
    assert {KEPT[name][4] for name in BATCHES} == set(range(1, VERSION + 1))
    assert {KEPT[name][5] for name in BATCHES} == {0, 1, 2}


def test_bytes_are_written_as_the_first_release_wrote_them() -> None:
    now = written.values()
    assert {name: value.hex() for name, value in now.items()} == {
        name: KEPT[name].hex() for name in now
    }
    assert set(KEPT) == {*now, *written.compressed()}


def test_what_is_kept_is_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    assert written.keep(path, {"a": b"1"}) == ["a"]
    assert written.keep(path, {"a": b"1", "b": b"2"}) == ["b"]
    before = path.read_bytes()
    with pytest.raises(ValueError, match="a would be changed"):
        written.keep(path, {"a": b"2", "c": b"3"})
    assert path.read_bytes() == before
