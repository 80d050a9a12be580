"""Large messages in parts: pure, and between a client and a served bookie."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.entry import ENTRY_BYTES_MAX
from ledger.errors import BadMessage
from ledger.requests import ReadQuery, Status
from ledger.transport import parts as module
from ledger.transport.channel import open_channel
from ledger.transport.parts import PART_BYTES_MAX, Assembly, Budget, parts
from ledger.transport.stub import BookieStub
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.ledger.serving import BOOKIE, add, serving, transport_to, until
from tests.waiting import PATIENCE_S

MESSAGE = st.binary(max_size=60).map(lambda data: b"\x0d" + data)


@given(messages=st.lists(MESSAGE, max_size=10), size=st.integers(1, 20))
def test_what_was_cut_is_put_together_and_gives_its_room_back(
    messages: list[bytes], size: int
) -> None:
    budget = Budget(61)
    assembly = Assembly(budget, message_bytes_max=61)
    got = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_BYTES_MAX", size)
        for message in messages:
            for part in parts(message):
                assert len(part) <= size + 1
                assert assembly.is_under_way == (budget.left_bytes < 61)
                whole = assembly.add(part)
                if whole is not None:
                    got.append(whole)
    assert got == messages
    assert budget.left_bytes == 61


def test_all_streams_together_hold_no_more_than_the_budget() -> None:
    budget = Budget(100)
    one, other = (Assembly(budget, message_bytes_max=1000) for _ in range(2))
    assert one.add(b"\0" + bytes(60)) is None
    with pytest.raises(BadMessage, match="no room"):
        other.add(b"\0" + bytes(60))
    assert other.add(b"\1" + bytes(40)) == bytes(40)
    with pytest.raises(BadMessage, match="rest of another"):
        one.add(b"\x0dwhole")
    one.drop()
    assert other.add(b"\1" + bytes(60)) == bytes(60)
    with pytest.raises(BadMessage, match="more than 10 bytes"):
        Assembly(budget, message_bytes_max=10).add(b"\0" + bytes(11))


async def test_the_largest_entry_arrives_and_no_message_is_larger_than_a_part() -> None:
    storage = MemoryStorage()
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        run = run_of(0, payload=bytes(ENTRY_BYTES_MAX))
        assert await add(transport, run) is Status.OK
        assert await add(transport, run_of(1)) is Status.OK
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert answer.frames == run.frames
        channel = open_channel(bookie.address, connect_timeout_s=2.0)
        call = BookieStub(channel).add()
        await call.write(bytes(2 * PART_BYTES_MAX))
        assert (await call.code()).name == "RESOURCE_EXHAUSTED"
        await channel.close()


async def test_a_message_that_is_never_completed_does_not_keep_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.grpc._PART_S_MAX", 0.05)

    async with serving() as bookie, asyncio.timeout(PATIENCE_S):
        channel = open_channel(bookie.address, connect_timeout_s=2.0)
        call = BookieStub(channel).add()
        await call.write(b"\0" + bytes(1000))
        assert (await call.code()).name in ("INVALID_ARGUMENT", "CANCELLED")
        await channel.close()
        budget = bookie.server._parts
        assert budget.left_bytes == budget.bytes_max


async def test_the_streams_of_a_bookie_share_its_budget() -> None:
    async with serving() as bookie, asyncio.timeout(PATIENCE_S):
        budget = bookie.server._parts = Budget(1500)
        channel = open_channel(bookie.address, connect_timeout_s=2.0)
        first, second = BookieStub(channel).add(), BookieStub(channel).add()
        await first.write(b"\0" + bytes(1000))
        await until(lambda: budget.left_bytes == 500)
        await second.write(b"\0" + bytes(1000))
        assert (await second.code()).name == "INVALID_ARGUMENT"
        first.cancel()
        await until(lambda: budget.left_bytes == 1500)
        await channel.close()
