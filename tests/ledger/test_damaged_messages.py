"""Damage between client and bookie: no effect there, and no answer here."""

import asyncio

import pytest

from ledger.requests import LacQuery, ReadQuery, Status
from ledger.transport.messages import batch_message
from ledger.wire import bookie_pb2 as pb
from tests.bookie.runs import KEY, run_of
from tests.ledger.damaging import Damage, between, flipped, replaced, unharmed
from tests.ledger.serving import BOOKIE, Answers, add, add_until_ok, serving, transport_to
from tests.waiting import PATIENCE_S

_OTHER_KEY = bytes([KEY[0] ^ 1]) + KEY[1:]
_FLAGS = b"\x22\x01\x00"
"""Column 4 of a batch of one run: no flag is set."""
_RECOVERY_FLAGS = b"\x22\x01\x01"


@pytest.mark.parametrize(
    "damage",
    [replaced(KEY, _OTHER_KEY), flipped(0), flipped(1), flipped(3, 7), lambda _: b""],
    ids=["key", "tag", "crc", "crc's last", "all of it"],
)
async def test_a_damaged_first_add_makes_no_ledger_and_can_be_repeated(damage: Damage) -> None:
    async with (
        serving() as bookie,
        between(bookie.address) as middleman,
        transport_to(middleman.address) as transport,
    ):
        middleman.to_bookie = damage
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert bookie.storage.ledgers == {}
        middleman.to_bookie = unharmed
        await add_until_ok(transport, run_of(0))
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert (answer.status, list(answer.entries)) == (Status.OK, [0])


async def test_damage_that_sets_the_recovery_flag_does_not_open_a_fence() -> None:
    damage = replaced(_FLAGS, _RECOVERY_FLAGS)
    envelope = pb.Checked.FromString(damage(batch_message([run_of(1)])))
    assert pb.AddBatch.FromString(envelope.message).flags == [1], "it would be one"
    async with (
        serving() as bookie,
        between(bookie.address) as middleman,
        transport_to(middleman.address) as transport,
    ):
        assert await add(transport, run_of(0)) is Status.OK
        assert (await transport.read_lac(BOOKIE, LacQuery(7, KEY, fence=True))).fenced
        middleman.to_bookie = damage
        assert await add(transport, run_of(1)) is Status.UNREACHABLE
        assert list(bookie.storage.ledgers[7]) == [0]


async def test_damage_between_batches_loses_no_ack_of_those_before() -> None:
    async with (
        serving() as bookie,
        between(bookie.address) as middleman,
        transport_to(middleman.address, batch_bytes_max=1) as transport,
    ):
        middleman.to_bookie = _each(unharmed, unharmed, flipped(1))
        answers = Answers()
        for number in range(4):
            transport.add(BOOKIE, run_of(number), answers.expect(str(number)))
        await answers.wait(4)
        assert list(bookie.storage.ledgers[7]) == [0, 1]
    assert [status for _, status in answers.got] == [
        Status.OK, Status.OK, Status.UNREACHABLE, Status.UNREACHABLE,
    ]  # fmt: skip


@pytest.mark.parametrize("at", [1, -1], ids=["crc", "last byte"])
async def test_a_damaged_ack_acknowledges_nothing(at: int) -> None:
    async with (
        serving() as bookie,
        between(bookie.address) as middleman,
        transport_to(middleman.address) as transport,
    ):
        middleman.to_client = flipped(at)
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert list(bookie.storage.ledgers[7]) == [0], "the outcome is unknown, not a no"
        middleman.to_client = unharmed
        await add_until_ok(transport, run_of(0))


async def test_damage_does_not_make_an_ok_of_a_refusal() -> None:
    fenced, ok = (b"\x1a\x01" + bytes([status]) for status in (Status.FENCED, Status.OK))
    async with (
        serving() as bookie,
        between(bookie.address) as middleman,
        transport_to(middleman.address) as transport,
    ):
        assert (await transport.read_lac(BOOKIE, LacQuery(7, KEY, fence=True))).fenced
        middleman.to_client = replaced(fenced, ok)
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        middleman.to_client = unharmed
        async with asyncio.timeout(PATIENCE_S):
            while (  # noqa: ASYNC110 - of a back-off
                status := await add(transport, run_of(0))
            ) is Status.UNREACHABLE:
                await asyncio.sleep(0.01)
        assert status is Status.FENCED


@pytest.mark.parametrize("at", [0, 1, 6, -1], ids=["tag", "crc", "length", "last byte"])
async def test_a_damaged_answer_is_none(at: int) -> None:
    async with (
        serving() as bookie,
        between(bookie.address) as middleman,
        transport_to(middleman.address) as transport,
    ):
        middleman.to_client = flipped(at)
        for ledger_id in (7, 8):
            answer = await transport.read(BOOKIE, ReadQuery(ledger_id, KEY, 0, 9))
            assert (answer.status, answer.considered) == (Status.UNREACHABLE, -1)
            lac = await transport.read_lac(BOOKIE, LacQuery(ledger_id, KEY))
            assert lac.status is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None
        middleman.to_client = unharmed
        assert await transport.info(BOOKIE) is not None


async def test_a_damaged_request_fences_nothing_and_gets_no_answer() -> None:
    async with (
        serving() as bookie,
        between(bookie.address) as middleman,
        transport_to(middleman.address) as transport,
    ):
        assert await add(transport, run_of(0)) is Status.OK
        middleman.to_bookie = flipped(-1)
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0, fence=True))
        assert answer.status is Status.UNREACHABLE
        lac = await transport.read_lac(BOOKIE, LacQuery(7, KEY, fence=True))
        assert lac.status is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None
        assert bookie.storage.fenced == set()


def test_an_answer_that_went_astray_is_none() -> None:
    async def scenario() -> None:
        async with (
            serving() as bookie,
            between(bookie.address) as middleman,
            transport_to(middleman.address) as transport,
        ):
            assert await add(transport, run_of(0)) is Status.OK
            passed: list[bytes] = []

            def astray(message: bytes) -> bytes:
                passed.append(message)
                return passed[0]

            middleman.to_client = astray
            assert (await transport.read(BOOKIE, ReadQuery(8, KEY, 0, 0))).status is (
                Status.NO_SUCH_LEDGER
            )
            assert (await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is (
                Status.UNREACHABLE
            )

    asyncio.run(scenario())


def _each(*damages: Damage) -> Damage:
    """Do to each message what is said of it, and nothing to those behind."""
    coming = iter(damages)
    return lambda message: next(coming, unharmed)(message)  # noqa: PLW0108 - each time another
