"""How Spark's processes reach a cluster: real bookies, no Spark."""

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import cast

import pytest

from dlog import Log, aio
from dlog.admin import (
    consumer_info,
    delete_consumer,
    delete_log,
    list_consumers,
    rename_log,
    reset_consumer,
    truncate_log,
)
from dlog.errors import NoSuchLog
from dlog.position import Timestamp, Txid
from dlog.spark import access as spark_access
from dlog.spark.access import Access, end_of, forget_shared_access, shared_access
from dlog.spark.errors import LogDeleted, RecordsTrimmed
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import StreamPosition, name_of, namesake
from dlog.spark.plan import LogEnd, LogRange
from dlog.spark.selection import Selection
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def access(uri: str) -> Iterator[Access]:
    made = Access(Namespace(uri))
    yield made
    made.close()


def write(uri: str, log: str, first: int, count: int) -> None:
    with Log.open(log, uri=uri) as writer:
        for row in range(first, first + count):
            writer.append(b"%d" % row)


def whole(access: Access, log: str) -> LogRange:
    tail = access.ends(Selection((log,)))[log]
    return LogRange(log, tail.incarnation, tail.first_offset, tail.next_offset)


def values(access: Access, piece: LogRange) -> list[bytes]:
    return [value for batch in access.read(piece) for value in batch["value"].to_pylist()]


def test_a_range_is_read_exactly_across_segments(uri: str, access: Access) -> None:
    write(uri, "ranges", 0, 5)
    write(uri, "ranges", 5, 5)  # opening again begins a segment
    piece = whole(access, "ranges")
    assert values(access, piece) == [b"%d" % row for row in range(10)]
    part = LogRange("ranges", piece.incarnation, 3, 7)
    assert values(access, part) == [b"3", b"4", b"5", b"6"]
    offsets = [offset for batch in access.read(part) for offset in batch["offset"].to_pylist()]
    assert offsets == [3, 4, 5, 6]


def test_a_range_that_is_read_no_further_leaves_nothing_running(
    uri: str, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues: list[asyncio.Queue[object]] = []

    class Queue(asyncio.Queue[object]):
        def __init__(self, maxsize: int = 0) -> None:
            super().__init__(maxsize)
            queues.append(self)

    for first in range(0, 20, 5):
        write(uri, "abandoned", first, 5)
    piece = whole(access, "abandoned")
    monkeypatch.setattr(spark_access, "READS_AHEAD_MAX", 1)
    monkeypatch.setattr(asyncio, "Queue", Queue)
    reading = cast("Generator[object, None, None]", access.read(piece))
    next(reading)
    wait_until(lambda: any(queue.full() for queue in queues), "it reads ahead")
    reading.close()
    wait_until(lambda: not access.run(tasks_named("Access._read_into")), "it ends")


async def tasks_named(name: str) -> list[str]:
    running = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [each for each in running if each == name]


def reaching(log: str, next_offset: int) -> Callable[[dict[str, LogEnd]], bool]:
    return lambda tails: log in tails and tails[log].next_offset >= next_offset


def look(access: Access, selection: Selection, **following: str) -> dict[str, LogEnd]:
    return access.tails(selection, following=following, enough=lambda _: True, wait_s=0.0)


def wait_for(
    access: Access,
    selection: Selection,
    enough: Callable[[dict[str, LogEnd]], bool],
    **following: str,
) -> dict[str, LogEnd]:
    """Ask as a query does, again and again, until there is *enough*."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        tails = access.tails(selection, following=following, enough=enough, wait_s=1.0)
        if enough(tails):
            return tails
        assert time.monotonic() < deadline, tails


def test_waiting_for_news_ends_with_the_news(uri: str, access: Access) -> None:
    write(uri, "news", 0, 1)
    write(uri, "no news", 0, 1)
    selection = Selection(("news", "no news"))
    look(access, selection)
    appending = threading.Thread(target=write, args=(uri, "news", 1, 1))
    appending.start()
    began = time.monotonic()
    tails = access.tails(selection, following={}, enough=reaching("news", 2), wait_s=60.0)
    appending.join()
    assert tails["news"].next_offset == 2
    assert time.monotonic() - began < PATIENCE_S


def test_waiting_in_vain_ends_in_time(uri: str, access: Access) -> None:
    write(uri, "silence", 0, 1)
    write(uri, "silence too", 0, 1)
    selection = Selection(("silence", "silence too"))
    began = time.monotonic()
    tails = access.tails(selection, following={}, enough=lambda _: False, wait_s=0.2)
    assert 0.2 <= time.monotonic() - began < PATIENCE_S
    assert {log: tail.next_offset for log, tail in tails.items()} == {
        "silence": 1,
        "silence too": 1,
    }


def test_a_log_that_is_not_there_has_no_tail_and_no_end(access: Access) -> None:
    assert look(access, Selection(("nowhere",))) == {}
    with pytest.raises(NoSuchLog):
        access.ends(Selection(("nowhere",)))
    assert access.ends(Selection(("nowhere",)), following={}) == {}


def test_the_end_of_a_log_has_what_was_just_acknowledged(uri: str, access: Access) -> None:
    with Log.open("acknowledged", uri=uri) as writer:
        for row in range(20):
            writer.append(b"%d" % row)
            ends = access.ends(Selection(("acknowledged",)))
            assert ends["acknowledged"].next_offset == row + 1


async def test_the_end_of_a_log_is_not_what_bookies_tell_late() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await aio.Log.open("late", client=client) as log:
        await log.append(b"0")
        ledger = cluster.ledgers[LedgerId(1)]
        ledger.silence()
        await log.append(b"1")

        async def told_soon(*_: object) -> None:
            ledger.silent = False
            ledger.tell()

        cluster.before("read", told_soon)
        tail, _ = await end_of(client, "late", None)
        assert tail.next_offset == 2


def test_logs_of_a_pattern_are_found_while_they_are_watched(uri: str, access: Access) -> None:
    selection = Selection(pattern="match/.*")
    assert look(access, selection) == {}
    write(uri, "match/1", 0, 1)
    write(uri, "no match/1", 0, 1)
    assert list(wait_for(access, selection, reaching("match/1", 1))) == ["match/1"]
    write(uri, "match/2", 0, 2)
    tails = wait_for(access, selection, reaching("match/2", 2))
    assert list(tails) == ["match/1", "match/2"]
    assert list(access.ends(selection)) == ["match/1", "match/2"]
    delete_log("match/1", uri=uri)
    wait_for(access, selection, lambda tails: "match/1" not in tails)


def test_a_log_that_is_renamed_is_watched_and_read_under_its_old_name(
    uri: str, access: Access
) -> None:
    write(uri, "before", 0, 3)
    piece = whole(access, "before")
    selection = Selection(("before",))
    look(access, selection)
    rename_log("before", "after", uri=uri)
    write(uri, "after", 3, 2)
    write(uri, "before", 0, 1)  # another one takes the name
    following = {"before": piece.incarnation}
    tail = wait_for(access, selection, reaching("before", 5), **following)["before"]
    assert tail.incarnation == piece.incarnation
    assert access.ends(selection, following=following)["before"].next_offset == 5
    rows = values(access, LogRange("before", piece.incarnation, 0, 5))
    assert rows == [b"%d" % row for row in range(5)]


@pytest.mark.parametrize("selection", [Selection(("named",)), Selection(pattern="matched.*")])
def test_a_log_that_takes_the_name_of_a_renamed_one_is_found_beside_it(
    uri: str, access: Access, selection: Selection
) -> None:
    log = selection.names[0] if selection.names else "matched"
    write(uri, log, 0, 3)
    piece = whole(access, log)
    following = {log: piece.incarnation}
    wait_for(access, selection, reaching(log, 3), **following)
    rename_log(log, f"{log} then", uri=uri)
    write(uri, f"{log} then", 3, 1)  # news, by which a poll that waits learns of the new name
    assert namesakes(wait_for(access, selection, reaching(log, 4), **following)) == []
    write(uri, log, 0, 2)
    found = wait_for(access, selection, lambda tails: bool(namesakes(tails)), **following)
    (key,) = namesakes(found)
    assert found[log].incarnation == piece.incarnation
    assert key == namesake(log, found[key].incarnation)
    ends = access.ends(selection, following=following)
    assert (ends[log].next_offset, ends[key].next_offset) == (4, 2)
    following[key] = found[key].incarnation
    assert namesakes(access.ends(selection, following=following)) == [key]
    assert namesakes(wait_for(access, selection, reaching(key, 2), **following)) == [key]
    write(uri, log, 2, 1)
    wait_for(access, selection, reaching(key, 3), **following)


def namesakes(tails: dict[str, LogEnd]) -> list[str]:
    return [key for key in tails if name_of(key) != key]


def test_a_log_that_is_deleted_and_made_again_while_it_is_watched_is_another_one(
    uri: str, access: Access
) -> None:
    write(uri, "remade", 0, 3)
    selection = Selection(("remade",))
    first = look(access, selection)["remade"]
    delete_log("remade", uri=uri)
    following = {"remade": first.incarnation}
    wait_for(access, selection, lambda tails: not tails, **following)
    write(uri, "remade", 0, 1)
    second = wait_for(access, selection, bool, **following)["remade"]
    assert second.incarnation != first.incarnation
    assert second.next_offset <= 1


def test_a_time_or_a_txid_is_found(uri: str, access: Access) -> None:
    with Log.open("places", uri=uri) as writer:
        for row in range(10):
            writer.append(b"", txid=100 + row, timestamp_ms=1_000 + 10 * row)
            if row == 4:
                writer.roll()
    incarnation = whole(access, "places").incarnation
    for place, offset in (
        (Timestamp(1_030), 3),
        (Timestamp(1_041), 5),
        (Txid(107), 7),
        (Txid(0), 0),
        (Txid(110), 10),
        (Timestamp(2_000), 10),
    ):
        assert access.seek("places", incarnation, place) == offset, place


def test_a_range_of_another_incarnation_is_not_read(uri: str, access: Access) -> None:
    write(uri, "other", 0, 3)
    with pytest.raises(LogDeleted):
        values(access, LogRange("other", "before", 0, 3))


def test_a_range_that_was_trimmed_is_an_error(uri: str, access: Access) -> None:
    write(uri, "trimmed", 0, 10)
    piece = whole(access, "trimmed")
    with Log.open("trimmed", uri=uri) as writer:
        writer.truncate(before=5)
    with pytest.raises(RecordsTrimmed, match="failOnDataLoss") as raised:
        values(access, piece)
    assert (raised.value.next_offset, raised.value.records_gone) == (0, 5)


def read_with_losses(access: Access, piece: LogRange) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Return what is read of *piece*, and what of it was said to be gone."""
    gone: list[tuple[int, int]] = []
    batches = access.read(piece, on_gone=lambda _, first, end: gone.append((first, end)))
    return [value for batch in batches for value in batch["value"].to_pylist()], gone


def test_who_accepts_losses_reads_what_is_left(uri: str, access: Access) -> None:
    write(uri, "losing", 0, 10)
    piece = whole(access, "losing")
    assert read_with_losses(access, piece) == ([b"%d" % row for row in range(10)], [])
    truncate_log("losing", before=5, uri=uri)
    assert read_with_losses(access, piece) == ([b"%d" % row for row in range(5, 10)], [(0, 5)])
    part = LogRange("losing", piece.incarnation, 1, 4)
    assert read_with_losses(access, part) == ([], [(1, 4)])
    delete_log("losing", uri=uri)
    write(uri, "losing", 0, 10)
    assert read_with_losses(access, piece) == ([], [(0, 10)])


def test_consumers_are_made_and_moved_forward_and_never_back(uri: str, access: Access) -> None:
    write(uri, "consumed", 0, 10)
    incarnation = whole(access, "consumed").incarnation

    def move(offset: int) -> tuple[int, int]:
        access.move("query", {"consumed": StreamPosition(incarnation, offset)})
        found = consumer_info("query", "consumed", uri=uri)
        return found.position, found.lag

    assert move(4) == (4, 6)
    assert move(7) == (7, 3)
    assert move(2) == (7, 3)
    reset_consumer("query", "consumed", 1, uri=uri)
    assert move(8) == (8, 2)  # the query has processed them, whoever says otherwise
    delete_consumer("query", "consumed", uri=uri)
    assert move(9) == (9, 1)
    rename_log("consumed", "consumed then", uri=uri)
    access.move("query", {"consumed": StreamPosition(incarnation, 10)})
    assert consumer_info("query", "consumed then", uri=uri).position == 10


def test_consumers_of_two_logs_that_were_found_under_one_name_are_both_moved(
    uri: str, access: Access
) -> None:
    write(uri, "twice", 0, 5)
    first = whole(access, "twice").incarnation
    rename_log("twice", "twice then", uri=uri)
    write(uri, "twice", 0, 3)
    second = whole(access, "twice").incarnation
    positions = {
        "twice": StreamPosition(first, 4),
        namesake("twice", second): StreamPosition(second, 2),
    }
    assert access.move("query", positions)
    assert consumer_info("query", "twice then", uri=uri).position == 4
    assert consumer_info("query", "twice", uri=uri).position == 2


def test_a_consumer_that_another_process_has_for_itself_is_left_alone(
    uri: str, access: Access
) -> None:
    write(uri, "busy", 0, 10)
    incarnation = whole(access, "busy").incarnation
    with Log.consumer("query", "busy", uri=uri, exclusive=True) as consumer:
        access.move("query", {"busy": StreamPosition(incarnation, 5)})
        assert consumer_info("query", "busy", uri=uri).position == 0
        next(consumer)
        assert consumer.commit() == 1
    access.move("query", {"busy": StreamPosition(incarnation, 5)})
    assert consumer_info("query", "busy", uri=uri).position == 5


def test_a_consumer_of_a_log_that_is_gone_troubles_nobody(uri: str, access: Access) -> None:
    write(uri, "vanished", 0, 3)
    incarnation = whole(access, "vanished").incarnation
    delete_log("vanished", uri=uri)
    access.move("query", {"vanished": StreamPosition(incarnation, 2)})
    write(uri, "vanished", 0, 3)
    access.move("query", {"vanished": StreamPosition(incarnation, 2)})
    assert list_consumers("vanished", uri=uri) == []


def test_a_read_that_is_given_up_leaves_the_access_usable(uri: str, access: Access) -> None:
    write(uri, "partly", 0, 10)
    piece = whole(access, "partly")
    reading = access.read(piece)
    next(reading)
    assert isinstance(reading, Generator)
    reading.close()
    assert len(values(access, piece)) == 10


def test_tasks_of_one_process_share_a_connection_until_it_is_forgotten(uri: str) -> None:
    first = shared_access(Namespace(uri))
    assert shared_access(Namespace(uri)) is first
    forget_shared_access(Namespace(uri))
    assert shared_access(Namespace(uri)) is not first
    forget_shared_access(Namespace(uri))


def test_a_forked_process_makes_a_connection_of_its_own(uri: str) -> None:
    inherited = shared_access(Namespace(uri))
    inherited.ends(Selection(pattern="none"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what is tested
        child = os.fork()
    if child == 0:
        os._exit(0 if shared_access(Namespace(uri)) is not inherited else 1)
    assert os.waitpid(child, 0)[1] == 0
    forget_shared_access(Namespace(uri))
