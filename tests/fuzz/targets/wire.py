"""Messages and frames between clients and bookies."""

import json
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from google_crc32c import extend as crc32c_extend

from dlog.errors import NotLeader
from dlog.kafka.gateway import OFFERED, OFFERED_WITH_SASL
from dlog.kafka.protocol.sasl import CheckToken, SaslConnection, SaslRefusal
from dlog.kafka.protocol.scram import ScramFailed
from dlog.kafka.tokens import TokenRefused, check_token, parse_keys
from dlog.kafka.wire import BadRequest, decode_request
from dlog.protocol import forward_message
from dlog.protocol.command import RequestId
from dlog.protocol.forward_message import ForwardedCommand
from ledger.errors import BadMessage, TooManyPending
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
from ledger.transport import envelope, messages
from ledger.transport.connection import new_scratch
from ledger.transport.envelope import decode_envelope, encode_head
from ledger.transport.framing import HEADER_BYTES as FRAME_HEADER_BYTES
from ledger.transport.framing import Budget, FrameKind, FrameReader, frame_header
from ledger.transport.handshake import (
    Hello,
    Purpose,
    Refusal,
    Welcome,
    decode_answer,
    decode_hello,
    encode_answer,
    encode_hello,
)
from ledger.wire import bookie_pb2 as pb
from tests.dlog.kafka.test_sasl import EC, EVERY, KEYS, NOW, SETTINGS, USERS, token
from tests.dlog.kafka.test_wire import request_frame
from tests.fuzz.target import Target, crc, sealed_at_end
from tests.fuzz.targets.samples import FRAMES, KEY


def _wire(
    name: str,
    kind: type[Message],
    parse: Callable[[bytes], Any],
    *seeds: bytes,
    request: bytes = b"",
) -> Target:
    """A message with a checksum. Fuzzed are its body and its frames: u16 bytes of the body,
    the body, the frames."""

    def seal(data: bytes) -> bytes:
        size = int.from_bytes(data[:2], "little")
        body, rest = data[2 : 2 + size], data[2 + size :]
        covered = envelope._LENGTH.pack(len(rest)) + request + body
        head_crc = crc32c_extend(envelope._CRC_OF_NAME[kind], covered)
        return encode_head(head_crc, body, len(rest)) + rest

    def opened(seed: bytes) -> bytes:
        _, body, rest = decode_envelope(seed)
        return len(body).to_bytes(2, "little") + body + bytes(rest)

    return Target(f"wire-{name}", parse, tuple(map(opened, seeds)), refuses=BadMessage, seal=seal)


def _read_frames(data: bytes) -> list[object]:
    """Take *data* as a connection does, in pieces whose sizes its first byte says."""
    scratch = new_scratch()
    reader = FrameReader(scratch, body_bytes_max=1 << 16, budget=Budget(1 << 17))
    taken: list[object] = []
    step, at = max(1, data[0]) if data else 1, 1
    try:
        while at < len(data):
            room = reader.room()
            size = min(step, len(room), len(data) - at)
            room[:size] = data[at : at + size]
            taken += reader.take(size)
            at += size
    finally:
        reader.drop()
    return taken


def _frames_sealed(data: bytes) -> bytes:
    """Let the checksum of the first frame's header be right."""
    head = data[1 : FRAME_HEADER_BYTES - 3]
    return data[:1] + head + crc(head) + data[FRAME_HEADER_BYTES + 1 :]


RUN: Final = AddRun(7, KEY, [0, 1, 2], [*map(len, FRAMES)], b"".join(FRAMES))
LAST_RUN: Final = AddRun(8, KEY, [0], [len(FRAMES[0])], FRAMES[0], recovery=True)
READ: Final = messages.read_request(ReadQuery(7, KEY, 0, 9))
LAC: Final = messages.lac_request(LacQuery(7, KEY))
HELD: Final = messages.held_request(HeldQuery(7, KEY, 0, 99))
INFO: Final = messages.info_request()
READ_ANSWER: Final = ReadAnswer(
    Status.OK, [0, 1, 2], [*map(len, FRAMES)], b"".join(FRAMES), considered=9
)
FORWARDED: Final = ForwardedCommand(RequestId("client", 7), b"payload", 3, 1500)


def _parse_reply(data: bytes) -> object:
    return forward_message.decode_reply(data, log="log", request=FORWARDED.request)


def _sealed_at_start(data: bytes) -> bytes:
    """Let the first four bytes be the CRC-32C of all behind them."""
    return crc(data[4:]) + data[4:]


TOKEN_KEYS: Final = parse_keys(json.dumps(KEYS).encode())


def authenticated(data: bytes) -> SaslConnection:
    """Take a mechanism and messages, with NUL between them, as a connection does; no proof of them
    is one. Refused is what does not get as far as a last message."""
    connection = SaslConnection(EVERY)
    mechanism, *messages = data.split(b"\0")
    result: object = connection.handshake(mechanism.decode(errors="replace"))
    for number, message in enumerate(messages):
        if not isinstance(result, SaslRefusal | CheckToken):
            result = connection.message(message, find=USERS.find, nonce="MORE")
        if isinstance(result, SaslRefusal) and number == 0:
            raise ScramFailed(result.reason)
    assert not connection.identity, "without a proof"
    return connection


REPLICAS: Final = (
    Target(
        "kafka-request",
        lambda data: decode_request(data, OFFERED | OFFERED_WITH_SASL),
        tuple(
            request_frame(api, version, {})
            for api, versions in sorted((OFFERED | OFFERED_WITH_SASL).items())
            for version in versions
        ),
        refuses=BadRequest,
    ),
    Target(
        "kafka-sasl",
        authenticated,
        tuple(
            b"\0".join((mechanism.encode(), *messages))
            for mechanism, messages in (
                ("SCRAM-SHA-256", (b"n,a=alice,n=alice,r=nonce", b"c=biws,r=nonceMORE,p=AAAA")),
                ("SCRAM-SHA-512", (b"y,,n=b=2Cb,r=nonce", b"c=eSws,r=nonceMORE,x=y,p=AAAA")),
                ("OAUTHBEARER", (b"n,,\x01host=h\x01auth=Bearer a.b.c\x01\x01",)),
            )
        ),
        refuses=ScramFailed,
    ),
    Target(
        "kafka-token",
        lambda data: check_token(data.decode(errors="replace"), TOKEN_KEYS, SETTINGS, NOW),
        (token().encode(), token(EC, "ES256").encode()),
        refuses=TokenRefused,
    ),
    Target("kafka-token-keys", parse_keys, (json.dumps(KEYS).encode(),), refuses=ValueError),
    Target(
        "forward-hello",
        forward_message.decode_hello,
        (forward_message.encode_hello("life"),),
        refuses=BadMessage,
        seal=sealed_at_end,
    ),
    Target(
        "forward-welcome",
        forward_message.decode_answer,
        (forward_message.encode_welcome(), forward_message.encode_refusal("no")),
        refuses=BadMessage,
        seal=sealed_at_end,
    ),
    Target(
        "forward-command",
        forward_message.decode_command,
        (forward_message.encode_command(FORWARDED),),
        refuses=BadMessage,
        seal=_sealed_at_start,
    ),
    Target(
        "forward-reply",
        _parse_reply,
        tuple(
            map(
                forward_message.encode_reply,
                (
                    b"bytes",
                    {"a": [1, None]},
                    NotLeader("log", "a", "http://a", 7),
                    TooManyPending(7, 9),
                    forward_message.Denied(),
                    forward_message.Failed("no"),
                ),
            )
        ),
        refuses=BadMessage,
        seal=_sealed_at_start,
    ),
)
WIRE: Final = (
    *REPLICAS,
    Target(
        "wire-frames",
        _read_frames,
        (
            b"\x40" + frame_header(FrameKind.READ, 1, 8) + b"question",
            b"\x07" + frame_header(FrameKind.ADD, 1, 300) + bytes(300),
            b"\xff" + frame_header(FrameKind.CANCEL, 1, 0) * 2,
        ),
        refuses=BadMessage,
        seal=_frames_sealed,
    ),
    Target(
        "wire-hello",
        decode_hello,
        (encode_hello(Hello(Purpose.ADDS, "b-1")),),
        refuses=BadMessage,
        seal=sealed_at_end,
    ),
    Target(
        "wire-welcome",
        decode_answer,
        (encode_answer(Welcome(1, "b-1", "life")), encode_answer(Refusal("no"))),
        refuses=BadMessage,
        seal=sealed_at_end,
    ),
    Target(
        "wire-envelope",
        decode_envelope,
        (messages.batch_message([RUN]), READ),
        refuses=DecodeError,
    ),
    _wire("add", pb.AddBatch, messages.batch_runs, messages.batch_message([RUN, LAST_RUN])),
    _wire("ack", pb.AddAck, messages.ack_values, messages.ack_message(1, 2, [Status.OK])),
    _wire("read", pb.ReadRequest, messages.read_query, READ),
    _wire("read-lac", pb.ReadLacRequest, messages.lac_query, LAC),
    _wire("read-held", pb.ReadHeldRequest, messages.held_query, HELD),
    _wire(
        "read-reply",
        pb.ReadReply,
        lambda data: list(messages.read_answer(data, READ).each()),
        b"".join(messages.read_reply(READ_ANSWER, READ)),
        request=READ,
    ),
    _wire(
        "read-lac-reply",
        pb.ReadLacReply,
        lambda data: messages.lac_answer(data, LAC),
        messages.lac_reply(LacAnswer(Status.OK, FRAMES[1]), LAC),
        request=LAC,
    ),
    _wire(
        "read-held-reply",
        pb.ReadHeldReply,
        lambda data: messages.held_answer(data, HELD),
        messages.held_reply(HeldAnswer(Status.OK, [0, 5], [3, 9], considered=20, listed=20), HELD),
        request=HELD,
    ),
    _wire(
        "info-reply",
        pb.InfoReply,
        lambda data: messages.info_answer(data, INFO),
        messages.info_reply(InfoAnswer("b-1", "life", "i", read_only=False), INFO),
        request=INFO,
    ),
)
