"""How Spark's processes reach a cluster: real bookies, no Spark."""

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Generator, Iterator

import pytest

from dlog import Log
from dlog.errors import NoSuchLog, Trimmed
from dlog.local.cluster import LocalCluster
from dlog.spark.access import Access, forget_shared_access, shared_access
from dlog.spark.plan import LogRange
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"))
    try:
        loop.run_until_complete(cluster.__aenter__())
        yield cluster.uri
        loop.run_until_complete(cluster.__aexit__(None, None, None))
    finally:
        loop.close()


@pytest.fixture
def access(uri: str) -> Iterator[Access]:
    made = Access(uri)
    yield made
    made.close()


def write(uri: str, log: str, first: int, count: int) -> None:
    with Log.open(log, uri=uri) as writer:
        for row in range(first, first + count):
            writer.append(b"%d" % row)


def whole(access: Access, log: str) -> LogRange:
    tail = access.tails([log], after={}, wait_s=0.0)[log]
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


def test_waiting_for_news_ends_with_the_news(uri: str, access: Access) -> None:
    write(uri, "news", 0, 1)
    access.tails(["news"], after={}, wait_s=0.0)
    appending = threading.Thread(target=write, args=(uri, "news", 1, 1))
    appending.start()
    tail = access.tails(["news"], after={"news": 1}, wait_s=60.0)["news"]
    appending.join()
    assert tail.next_offset == 2


def test_waiting_in_vain_ends_in_time(uri: str, access: Access) -> None:
    write(uri, "silence", 0, 1)
    write(uri, "silence too", 0, 1)
    logs = ["silence", "silence too"]
    began = time.monotonic()
    tails = access.tails(logs, after={"silence": 1, "silence too": 1}, wait_s=0.2)
    assert 0.2 <= time.monotonic() - began < PATIENCE_S
    assert [tails[log].next_offset for log in logs] == [1, 1]


def test_a_log_that_is_not_there_is_an_error(access: Access) -> None:
    with pytest.raises(NoSuchLog):
        access.tails(["nowhere"], after={}, wait_s=0.0)


def test_a_range_of_another_incarnation_is_not_read(uri: str, access: Access) -> None:
    write(uri, "other", 0, 3)
    with pytest.raises(NoSuchLog):
        values(access, LogRange("other", "before", 0, 3))


def test_a_range_that_was_trimmed_is_an_error(uri: str, access: Access) -> None:
    write(uri, "trimmed", 0, 10)
    piece = whole(access, "trimmed")
    with Log.open("trimmed", uri=uri) as writer:
        writer.truncate(before=5)
    with pytest.raises(Trimmed):
        values(access, piece)


def test_a_read_that_is_given_up_leaves_the_access_usable(uri: str, access: Access) -> None:
    write(uri, "partly", 0, 10)
    piece = whole(access, "partly")
    reading = access.read(piece)
    next(reading)
    assert isinstance(reading, Generator)
    reading.close()
    assert len(values(access, piece)) == 10


def test_tasks_of_one_process_share_a_connection_until_it_is_forgotten(uri: str) -> None:
    first = shared_access(uri)
    assert shared_access(uri) is first
    forget_shared_access(uri)
    assert shared_access(uri) is not first
    forget_shared_access(uri)


def test_a_forked_process_makes_a_connection_of_its_own(uri: str) -> None:
    inherited = shared_access(uri)
    inherited.tails([], after={}, wait_s=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what is tested
        child = os.fork()
    if child == 0:
        os._exit(0 if shared_access(uri) is not inherited else 1)
    assert os.waitpid(child, 0)[1] == 0
    forget_shared_access(uri)
