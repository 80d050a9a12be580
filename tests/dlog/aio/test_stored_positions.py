"""A position that an application stored, and what became of its log meanwhile."""

import json
import pickle

import pytest

from dlog import LogRecreated, OffsetOutOfRange, Position
from dlog.aio import Log
from dlog.aio.admin import delete_log, rename_log
from dlog.position import DLSN
from ledger.errors import InvalidValue
from ledger.ids import NO_ENTRY
from tests.dlog.fake_ledgers import FakeCluster


async def read(cluster: FakeCluster, count: int, **options: object) -> tuple[list[int], Position]:
    async with await Log.tail("log", client=cluster.client(), **options) as reader:  # type: ignore[arg-type]
        offsets = [(await anext(reader)).offset for _ in range(count)]
        return offsets, reader.position


async def write(cluster: FakeCluster, count: int, name: str = "log") -> None:
    async with await Log.open(name, client=cluster.client()) as log:
        await log.append_many([b"x"] * count)


def test_a_position_is_its_offset_and_comes_back_from_its_text() -> None:
    position = Position(120, "6f3a-1")
    assert position == 120
    assert position + 1 == 121
    assert position.offset == 120
    assert str(position) == f"{position}" == "120@6f3a-1"
    again = Position.parse(str(position))
    assert (again, again.incarnation) == (120, "6f3a-1")
    pickled = pickle.loads(pickle.dumps(position))
    assert (pickled, pickled.incarnation) == (120, "6f3a-1")
    assert json.dumps({"at": position}) == '{"at": 120}'
    assert Position.parse("7").incarnation is None
    assert str(Position(7)) == "7"


@pytest.mark.parametrize("text", ["", "x", "-1", "5@", "5@a b", "@abc", str(2**63), "٣", "5@a@b"])
def test_another_text_is_no_position(text: str) -> None:
    with pytest.raises(ValueError, match="no position"):
        Position.parse(text)


async def test_reading_continues_at_a_stored_position_also_of_a_renamed_log() -> None:
    cluster = FakeCluster()
    await write(cluster, 10)
    _, position = await read(cluster, 4)
    assert (await read(cluster, 2, start=position))[0] == [4, 5]
    assert (await read(cluster, 2, start=str(position)))[0] == [4, 5]
    await rename_log("log", "other", client=cluster.client())
    async with await Log.tail("other", start=position, client=cluster.client()) as reader:
        assert (await anext(reader)).offset == 4


@pytest.mark.parametrize("how", ["deleted", "renamed"])
async def test_a_position_of_another_log_of_that_name_is_refused(how: str) -> None:
    cluster = FakeCluster()
    await write(cluster, 10)
    _, position = await read(cluster, 4)
    if how == "deleted":
        await delete_log("log", client=cluster.client())
    else:
        await rename_log("log", "old", client=cluster.client())
    await write(cluster, 20)
    for start in (position, str(position)):
        with pytest.raises(LogRecreated, match=r"position 4@\w+ is of another log") as refused:
            await read(cluster, 1, start=start)
        assert not refused.value.retryable
    with pytest.raises(LogRecreated):
        async with await Log.tail_many(["log"], start={"log": position}, client=cluster.client()):
            pass
    assert (await read(cluster, 1, start=int(position)))[0] == [4], "a number says nothing"


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("follow", [True, False])
async def test_a_start_beyond_the_end_is_refused_with_the_valid_range(
    follow: bool, is_open: bool
) -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    await log.append_many([b"x"] * 10)
    await log.truncate(before=3)
    if not is_open:
        await log.close()
    for start in (11, 10**6, DLSN(1, 0, 11)):
        with pytest.raises(OffsetOutOfRange, match="offsets 3 to 10 can be read from") as refused:
            await read(cluster, 0, start=start, follow=follow)
        assert (refused.value.first_offset, refused.value.end_offset) == (3, 10)
        assert not refused.value.retryable
    assert await read(cluster, 0, start=10, follow=follow) == ([], 10)
    await log.close()


async def test_a_start_beyond_the_end_is_waited_for_if_that_is_asked_for() -> None:
    cluster = FakeCluster()
    async with await Log.open("log", client=cluster.client()) as log:
        await log.append_many([b"x"] * 10)
        async with await Log.tail(
            "log", start=12, beyond_end="wait", client=cluster.client()
        ) as reader:
            await log.append_many([b"y"] * 5)
            assert (await anext(reader)).offset == 12
    with pytest.raises(InvalidValue, match="raise or wait"):
        await Log.tail("log", beyond_end="skip", client=cluster.client())  # type: ignore[arg-type]


async def test_where_the_end_is_not_certain_a_start_is_taken() -> None:
    """The writer is gone, and its last entries are not confirmed: some of them may be records."""
    cluster = FakeCluster()
    await write(cluster, 10)
    log = await Log.open("log", client=cluster.client())
    await log.append_many([b"x"] * 5)
    ledger = cluster.ledger(max(log.writer.own_ledgers))
    ledger.silence()
    ledger.told = NO_ENTRY
    await log.writer.abandon()
    assert (await read(cluster, 0, start=15))[1] == 15
