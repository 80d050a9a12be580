"""What is said before the first frame: pure, and to a served bookie."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.server.limits import ClientLimits
from ledger.errors import BadMessage
from ledger.ids import BookieIdentity
from ledger.transport.handshake import (
    HANDSHAKE_BYTES_MAX,
    Answer,
    Hello,
    Purpose,
    Refusal,
    Welcome,
    answer_to,
    decode_answer,
    decode_hello,
    encode_answer,
    encode_hello,
    farewell,
    hello_to,
    why_not_meant,
)
from tests.ledger.by_hand import connected, greeted, refusal
from tests.ledger.serving import BOOKIE, serving
from tests.waiting import PATIENCE_S

OURS = BookieIdentity("cluster x", "data 1", 3)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
IDENTITIES = st.builds(BookieIdentity, TEXTS, TEXTS, st.integers(0, 2**64 - 1))
VERSIONS = st.integers(0, 2**16 - 1)
HELLOS = st.builds(
    Hello, st.sampled_from(Purpose), TEXTS, VERSIONS, VERSIONS, st.none() | IDENTITIES
)
ANSWERS = (
    st.builds(Welcome, st.just(1), TEXTS, TEXTS)
    | st.builds(Welcome, st.just(2), TEXTS, TEXTS, IDENTITIES)
    | st.builds(Refusal, TEXTS, st.booleans())
)

HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@given(hello=HELLOS)
def test_a_hello_is_understood_when_it_is_whole_and_not_before(hello: Hello) -> None:
    data = encode_hello(hello)
    assert decode_hello(data) == hello
    assert all(decode_hello(data[:end]) is None for end in range(len(data)))
    assert len(data) <= HANDSHAKE_BYTES_MAX


@given(answer=ANSWERS)
def test_an_answer_is_understood_when_it_is_whole_and_not_before(answer: Answer) -> None:
    data = encode_answer(answer)
    assert decode_answer(data) == answer
    assert all(decode_answer(data[:end]) is None for end in range(len(data)))
    assert len(data) <= HANDSHAKE_BYTES_MAX


@given(data=st.binary(max_size=HANDSHAKE_BYTES_MAX))
def test_any_bytes_are_a_handshake_part_of_one_or_refused(data: bytes) -> None:
    for decode in (decode_hello, decode_answer):
        for received in (data, b"DLOGWIRE" + data):
            with suppress(BadMessage):
                decode(received)


@given(at=st.integers(8, 15 + len(BOOKIE) + 4), bit=st.integers(0, 7))
def test_a_hello_with_a_bit_changed_means_nothing(at: int, bit: int) -> None:
    damaged = bytearray(encode_hello(Hello(Purpose.ADDS, BOOKIE)))
    damaged[at] ^= 1 << bit
    with suppress(BadMessage):
        assert decode_hello(bytes(damaged)) is None, "its name may have become longer"


def test_more_than_a_hello_is_refused_before_it_was_answered() -> None:
    with pytest.raises(BadMessage, match="more follows"):
        decode_hello(encode_hello(Hello(Purpose.ADDS, BOOKIE)) + b"x")


def answered(hello: Hello) -> Answer:
    return answer_to(hello, bookie=BOOKIE, incarnation="start 1", identity=OURS)


def test_the_bookie_that_is_meant_welcomes_with_the_highest_version_that_both_speak() -> None:
    assert answered(Hello(Purpose.ADDS, BOOKIE, 1, 1)) == Welcome(1, BOOKIE, "start 1")
    assert answered(Hello(Purpose.ADDS, BOOKIE, 1, 9, OURS)) == Welcome(2, BOOKIE, "start 1", OURS)


@pytest.mark.parametrize(
    ("meant", "reason"),
    [
        (replace(OURS, instance="cluster y"), "bookie b1 of cluster cluster y was meant"),
        (replace(OURS, identity="data 2"), "the one with data data 2 was meant"),
        (replace(OURS, life=4), "start 4 was meant: another process has its data now"),
    ],
)
def test_a_bookie_of_the_same_name_is_not_taken_for_the_one_that_is_meant(
    meant: BookieIdentity, reason: str
) -> None:
    for purpose in Purpose:
        hello = hello_to(purpose, BOOKIE, meant)
        answer = answered(hello)
        assert isinstance(answer, Refusal), answer
        assert answer.is_another
        assert answer.reason.startswith("here is ")
        assert reason in answer.reason
        said = why_not_meant(hello, Welcome(2, BOOKIE, "start 1", OURS))
        assert said == answer.reason, "both ends compare"


def test_who_is_meant_in_this_life_or_one_before_is_welcome() -> None:
    for life in (0, 2, 3):
        hello = hello_to(Purpose.ADDS, BOOKIE, replace(OURS, life=life))
        answer = answered(hello)
        assert answer == Welcome(2, BOOKIE, "start 1", OURS)
        assert why_not_meant(hello, answer) is None


def test_who_does_not_say_who_it_is_is_not_believed_where_somebody_is_meant() -> None:
    hello = hello_to(Purpose.ASKS, BOOKIE, OURS)
    reason = why_not_meant(hello, Welcome(1, BOOKIE, "start 1"))
    assert reason == "bookie b1 does not say which cluster it is of; update it"
    assert isinstance(answered(Hello(Purpose.ASKS, BOOKIE, 2, 2)), Refusal)


def test_another_bookie_is_not_taken_for_the_one_that_is_meant() -> None:
    for purpose in Purpose:
        answer = answered(Hello(purpose, "b2"))
        assert answer == Refusal("here is bookie b1, and b2 was meant", is_another=True)
        whoever = answered(Hello(purpose, ""))
        assert isinstance(whoever, Welcome if purpose is Purpose.ORDERS else Refusal)


def test_a_client_that_speaks_other_versions_is_told_who_is_to_be_updated() -> None:
    assert answered(Hello(Purpose.ADDS, BOOKIE, 3, 4)) == Refusal(
        "bookie b1 speaks versions 1 to 2 of the wire and its client versions 3 to 4; update it"
    )
    assert answered(Hello(Purpose.ADDS, BOOKIE, 0, 0)) == Refusal(
        "bookie b1 speaks versions 1 to 2 of the wire and its client version 0; update its client"
    )


@pytest.mark.parametrize(
    ("said", "spoken"),
    [
        (HTTP_2, "the other end speaks HTTP/2, as gRPC does"),
        (TLS, "the other end speaks TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "the other end speaks HTTP;"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the other end speaks something else"),
    ],
)
async def test_a_stranger_is_shown_out_with_a_line_in_the_log(
    said: bytes, spoken: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as bookie:
        async with connected(bookie.address) as peer:
            peer.writer.write(said)
            assert await peer.rest() == farewell(said)
        assert spoken in caplog.text
        assert "version 0.1.0 of dlog or later is needed there" in caplog.text
        async with greeted(bookie.address):
            pass


def test_a_client_that_speaks_grpc_is_told_what_it_needs_in_its_own_words() -> None:
    said = farewell(HTTP_2)
    assert said[3] == 4, "SETTINGS"
    goaway = said[9:]
    assert goaway[3] == 7, "GOAWAY"
    assert int.from_bytes(goaway[:3], "big") == len(goaway) - 9
    assert goaway.endswith(b"the wire of dlog; version 0.1.0 of dlog or later is needed")
    with pytest.raises(BadMessage, match="bookies of dlog before its own wire"):
        decode_answer(said)


async def test_strangers_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as bookie:
        for _ in range(50):
            async with connected(bookie.address) as peer:
                peer.writer.write(TLS)
                await peer.rest()
    assert caplog.text.count("speaks TLS") < 50


async def test_who_says_nothing_is_shown_out_and_who_says_it_slowly_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    limits = ClientLimits(handshake_s_max=0.05)
    async with serving(limits=limits) as bookie, asyncio.timeout(PATIENCE_S):
        async with connected(bookie.address) as silent, connected(bookie.address) as slow:
            slow.writer.write(b"DLOG")
            assert await silent.rest() == b""
            assert await slow.rest() == b""
        assert not bookie.server.connections


async def test_who_is_refused_is_told_why() -> None:
    async with serving() as bookie:
        reason = await refusal(bookie.address, Hello(Purpose.ASKS, "b2"))
        assert reason == "here is bookie b1, and b2 was meant"
        reason = await refusal(bookie.address, Hello(Purpose.ADDS, BOOKIE, 7, 8))
        assert reason.endswith("update it")


async def test_above_its_level_a_bookie_refuses_who_does_not_say_which_is_meant() -> None:
    async with serving() as bookie:
        bookie.server.refuse_unidentified()
        reason = await refusal(bookie.address, Hello(Purpose.ASKS, BOOKIE))
        assert reason == (
            "bookie b1 speaks version 2 of the wire and its client version 1; update its client"
        )


async def test_a_bookie_names_itself_and_its_start() -> None:
    async with serving() as bookie, connected(bookie.address) as peer:
        answer = await peer.greet(Hello(Purpose.ASKS, BOOKIE))
        assert answer == Welcome(1, BOOKIE, "start 1")
