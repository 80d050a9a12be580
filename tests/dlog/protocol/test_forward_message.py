"""What replicas say to each other when one forwards commands, as bytes; numbers of requests."""

from random import Random

import pytest
from google_crc32c import value as crc32c

from dlog.errors import (
    ApplyFailed,
    CommandOutcomeUnknown,
    ForwardRefused,
    InvalidResult,
    NotLeader,
    RecordTooLarge,
    RequestForgotten,
)
from dlog.protocol.client_table import REQUESTS_MAX
from dlog.protocol.command import RequestId
from dlog.protocol.forward_message import (
    Denied,
    Failed,
    ForwardedCommand,
    RequestNumbers,
    decode_answer,
    decode_command,
    decode_hello,
    decode_reply,
    encode_command,
    encode_hello,
    encode_refusal,
    encode_reply,
    encode_welcome,
)
from dlog.wire import replica_pb2 as pb
from ledger.errors import BadMessage, LogError, TooManyPending

REQUEST = RequestId("client", 7)
COMMAND = ForwardedCommand(REQUEST, b"payload", 3, 1500)


def test_a_greeting_is_understood_once_it_is_whole() -> None:
    hello, refusal = encode_hello("life"), encode_refusal("another log")
    for greeting, decode in ((hello, decode_hello), (refusal, decode_answer)):
        for length in range(len(greeting)):
            assert decode(greeting[:length]) is None
    assert decode_hello(hello) == "life"
    assert decode_answer(refusal) == "another log"
    assert decode_answer(encode_refusal("")) == "no reason was given"
    assert decode_answer(encode_refusal("x" * 10_000)) == "x" * 512
    assert decode_answer(encode_welcome()) == ""


@pytest.mark.parametrize(
    "received",
    [
        b"GET / HT",
        b"\x16\x03\x01",
        encode_hello("life")[:-1] + b"?",
        encode_hello("life") + b"more",
        encode_refusal("version 0"),
        b"DLOGCMDS\x01\x00\xff\xff",
    ],
)
def test_a_greeting_of_anything_else_is_refused(received: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_hello(received)


def test_commands_and_replies_are_read_as_they_were_written() -> None:
    assert decode_command(encode_command(COMMAND)) == COMMAND
    replies = [
        b"bytes",
        None,
        {"sum": [1, 2.5, "three"]},
        Denied(),
        Failed("it is broken"),
    ]
    for reply in replies:
        assert decode_reply(encode_reply(reply), log="log", request=REQUEST) == reply


@pytest.mark.parametrize(
    "error",
    [
        NotLeader("log", "a", "http://a", 7),
        CommandOutcomeUnknown("log", "nobody knows"),
        TooManyPending(7, 9),
        RecordTooLarge("log", 7, 9),
        RequestForgotten("log", "client", 7, 9),
        InvalidResult("{1}", "a set"),
        ForwardRefused("log", "a", "of a newer version"),
    ],
)
def test_an_error_arrives_as_it_was_raised(error: LogError) -> None:
    arrived = decode_reply(encode_reply(error), log="log", request=REQUEST)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)


def test_an_error_that_is_not_known_arrives_as_its_text() -> None:
    error = ApplyFailed("log", 3, ValueError("no"))
    assert decode_reply(encode_reply(error), log="log", request=REQUEST) == Failed(str(error)[:512])


@pytest.mark.parametrize(
    "error",
    [
        Failed("file \udcff"),
        ApplyFailed("log", 3, ValueError("file \udcff")),
        InvalidResult("file \udcff", "no"),
        CommandOutcomeUnknown("log", "file \udcff"),
    ],
)
def test_a_text_that_is_not_unicode_arrives_with_a_question_mark(error: object) -> None:
    arrived = decode_reply(encode_reply(error), log="log", request=REQUEST)
    assert "file ?" in str(arrived)


def body(message: pb.ForwardedCommand | pb.ForwardReply) -> bytes:
    encoded = message.SerializeToString()
    return int(crc32c(encoded)).to_bytes(4, "little") + encoded


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"\0\0\0",
        encode_command(COMMAND)[:-1],
        encode_command(COMMAND)[:4] + b"\xff" * 10,
        body(pb.ForwardedCommand(client="", number=1)),
        body(pb.ForwardedCommand(client="c", number=-1)),
        body(pb.ForwardedCommand(client="c", number=1, version=2**16)),
    ],
)
def test_a_command_that_is_none_is_refused(received: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_command(received)


@pytest.mark.parametrize(
    "reply",
    [
        pb.ForwardReply(error="NotLeader", texts=["a"], numbers=[1]),
        pb.ForwardReply(error="TooManyPending"),
        pb.ForwardReply(error="of later versions"),
        pb.ForwardReply(error="failed"),
        pb.ForwardReply(result=b"?"),
        pb.ForwardReply(),
    ],
)
def test_a_reply_that_is_none_is_refused(reply: pb.ForwardReply) -> None:
    with pytest.raises(BadMessage):
        decode_reply(body(reply), log="log", request=REQUEST)


def test_no_number_is_given_that_would_let_one_be_forgotten_that_is_open() -> None:
    random = Random(1)
    numbers = RequestNumbers("replica-x")
    given: set[RequestId] = set()
    open_requests: list[RequestId] = []
    largest: dict[str, int] = {}
    for _ in range(5000):
        if open_requests and random.random() < 0.45:
            numbers.release(open_requests.pop(random.randrange(len(open_requests))))
            continue
        request = numbers.take()
        assert request not in given
        given.add(request)
        open_requests.append(request)
        largest[request.client] = request.number
        for each in open_requests:
            assert largest[each.client] - each.number < REQUESTS_MAX
    assert len(largest) <= 1 + len(open_requests)


def test_commands_one_after_the_other_take_one_client() -> None:
    numbers = RequestNumbers("replica-x")
    for number in range(3 * REQUESTS_MAX):
        request = numbers.take()
        assert request == RequestId("replica-x-0", number)
        numbers.release(request)
