"""The synchronous facade, on ledgers in memory that live on its loop thread."""

import asyncio
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from itertools import chain, count
from traceback import extract_tb

import pytest

import dlog
from dlog import Log, LogClosed, LostOwnership, Record, RecordId, RecordTooLarge, TxidOutOfOrder
from dlog.aio.port import Ledgers
from dlog.errors import (
    InvalidHeaders,
    InvalidPosition,
    LogSealed,
    UnexpectedOffset,
    UsedAfterFork,
)
from dlog.position import DLSN, Place
from dlog.protocol import pending_batch
from dlog.protocol.pending_batch import RECORD_CHARGE
from dlog.settings import LogSettings
from dlog.sync import append_queue
from dlog.sync.loop_thread import LoopThread
from ledger.errors import LogError
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import PATIENCE_S, wait_until

_numbers = count()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster that every `Log.open` and `Log.tail` connects to, on the facade's own loop."""
    cluster = FakeCluster()
    name = f"sync-{next(_numbers)}"

    async def connect(_: str | None, *, alone: bool = False) -> Ledgers:
        return cluster.client(MemoryStore(f"memory://{name}", name))

    monkeypatch.setattr("dlog.aio.log.connect", connect)
    monkeypatch.setattr("dlog.aio.read.handles.connect", connect)
    return cluster


def test_a_log_is_written_and_read_without_asyncio(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        assert log.append(b"a", key=b"k", txid=3, timestamp_ms=5) == RecordId(0, DLSN(1, 0, 0))
        assert (log.last_offset, log.last_txid, log.epoch, log.name) == (0, 3, 1, "log")
        log.roll()
        log.append(b"b")
    with Log.tail("log", follow=False) as reader:
        assert next(reader) == Record(0, Place(1, 0, 0), 5, 3, b"k", b"a")
        assert reader.position == 1
        assert [record.value for record in reader] == [b"b"]
        assert reader.at_end


def test_a_log_is_sealed_and_truncated_without_asyncio(cluster: FakeCluster) -> None:
    log = Log.open("log")
    for value in (b"a", b"b", b"c"):
        log.append_async(value)
    log.truncate(before=1)
    log.seal()
    log.close()
    assert [record.value for record in Log.tail("log")] == [b"b", b"c"]
    with pytest.raises(LogSealed):
        Log.open("log")


def test_futures_resolve_in_order(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_queue, "_BATCH_CHARGE_MAX", 3 * RECORD_CHARGE)
    with Log.open("log") as log:
        futures = [log.append_async(b"%d" % i) for i in range(1000)]
        log.flush()
        assert all(future.done() for future in futures)
        assert [future.result().offset for future in futures] == list(range(1000))


def test_a_flush_returns_when_all_is_confirmed_that_the_writer_had_no_room_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", 1)
    monkeypatch.setattr(append_queue, "_BATCH_CHARGE_MAX", 1)  # one record each
    with Log.open("log") as log:
        futures = [log.append_async(b"%d" % i) for i in range(100)]
        log.flush()
        assert all(future.done() for future in futures)


@contextmanager
def filled(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Yield a log whose writer has no room, so that what is appended gathers; then let it go on."""
    monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", 1)
    cluster.hold()
    with Log.open("log", settings=LogSettings(record_bytes_max=5)) as log:
        log.append_async(b"fills")
        wait_until(lambda: not log._queue._queue, "the loop has taken it")
        yield log
        LoopThread.get().loop.call_soon_threadsafe(cluster.release)


def test_records_that_gather_while_others_wait_get_the_ids_of_their_places(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(cluster, monkeypatch) as log:
        monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", 10_000)
        monkeypatch.setattr(append_queue, "_BATCH_CHARGE_MAX", 3 * RECORD_CHARGE)
        futures = [log.append_async(b"%d" % i) for i in range(3)]
        futures.append(log.append_async(b"3", key=b"k", txid=9))
        futures += [log.append_async(b"%d" % i) for i in range(4, 7)]
    assert [future.result().offset for future in futures] == list(range(1, 8))
    with Log.tail("log", follow=False) as reader:
        records = list(reader)[1:]
    assert [(r.offset, r.dlsn) for r in records] == [future.result() for future in futures]
    assert [record.value for record in records] == [b"%d" % i for i in range(7)]
    assert [(r.key, r.txid) for r in records] == [(None, None)] * 3 + [(b"k", 9)] + [
        (None, None)
    ] * 3


def test_one_record_that_is_refused_takes_none_with_it_that_was_gathered_beside_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(cluster, monkeypatch) as log:
        good, bad, late = (log.append_async(each) for each in (b"good", b"too long", b"late"))
    assert good.result().offset == 1
    assert isinstance(bad.exception(), RecordTooLarge)
    assert late.result().offset == 2


def test_only_the_append_that_expects_an_offset_is_refused_for_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(cluster, monkeypatch) as log:
        before = log.append_async(b"1")
        right = log.append_async(b"2", expected_offset=2)
        wrong = log.append_async(b"w", expected_offset=7)
        after = log.append_async(b"3")
    assert [each.result().offset for each in (before, right, after)] == [1, 2, 3]
    assert isinstance(wrong.exception(), UnexpectedOffset)


def test_the_queue_goes_on_after_a_thread_that_was_interrupted_on_its_way_through_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Log.open("log") as log:
        with monkeypatch.context() as patch:
            patch.setattr(append_queue, "AppendFuture", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append_async(b"0")  # it was put
        assert log.append(b"1").offset == 1
        with log._queue._lock:
            log._queue._enqueue(pending_batch.PendingBatch())  # it was about to be put
        assert log.append(b"2").offset == 2


def test_appends_from_many_threads_are_each_kept_once_and_in_each_threads_order(
    cluster: FakeCluster,
) -> None:
    offsets: dict[int, list[int]] = {}

    def work(log: Log, number: int) -> None:
        futures = [log.append_async(b"%d" % number) for _ in range(500)]
        offsets[number] = [future.result().offset for future in futures]

    with Log.open("log") as log:
        threads = [threading.Thread(target=work, args=(log, i)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(got == sorted(got) for got in offsets.values())
    assert sorted(chain.from_iterable(offsets.values())) == list(range(4000))
    with Log.tail("log", follow=False) as reader:
        for record in reader:
            assert record.offset in offsets[int(record.value)]


def test_refusals_come_through_the_future_and_type_errors_at_once(cluster: FakeCluster) -> None:
    with Log.open("log", settings=LogSettings(record_bytes_max=5)) as log:
        assert isinstance(log.append_async(b"123456").exception(), RecordTooLarge)
        log.append(b"a", txid=5)
        with pytest.raises(TxidOutOfOrder):
            log.append(b"b", txid=4)
        with pytest.raises(TypeError):
            log.append_async("text")  # type: ignore[arg-type]


def test_a_calling_thread_waits_while_too_much_is_queued(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 2 * (50 + RECORD_CHARGE)
    monkeypatch.setattr(append_queue, "QUEUED_BYTES_MAX", bound)
    monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", bound)
    monkeypatch.setattr(append_queue, "_BATCH_CHARGE_MAX", 1)  # one record each
    cluster.hold()
    log = Log.open("log")
    done: list[Future[RecordId]] = []
    started = threading.Event()

    def work() -> None:
        started.set()
        done.extend(log.append_async(b"x" * 50) for _ in range(10))

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    thread.join(0.05)  # it cannot end: six appends fill both bounds
    assert thread.is_alive()
    LoopThread.get().loop.call_soon_threadsafe(cluster.release)
    thread.join()
    log.close()
    assert [future.result().offset for future in done] == list(range(10))


def test_headers_are_appended_and_read_by_every_blocking_call(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        log.append(b"0", headers={"n": b"0"})
        log.append_async(b"1", headers={"n": b"1"}).result()
        log.append_many([b"2", b"3"], headers=[{"n": b"2"}, None])
        log.append_many_async([b"4"], headers=[{"n": b"4"}]).result()
        many = {str(n): b"" for n in range(65)}
        for refused in (
            lambda: log.append(b"5", headers=many),
            lambda: log.append_async(b"5", headers=many),
            lambda: log.append_many([b"5"], headers=[many]),
            lambda: log.append_many_async([b"5"], headers=[many]),
        ):
            with pytest.raises(InvalidHeaders, match="give a record 64 at most"):
                refused()
    wrote = [{"n": b"0"}, {"n": b"1"}, {"n": b"2"}, {}, {"n": b"4"}]
    assert [record.headers for record in Log.last("log", 10)] == wrote
    with Log.tail_many(["log"], follow=False) as reader:
        assert [record.headers for _, record in reader] == wrote
    with Log.tail("log", follow=False) as one:
        assert [record.headers for record in one] == wrote


def test_keys_and_headers_count_while_they_are_queued(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", 1)
    cluster.hold()
    log = Log.open("log")
    log.append_async(b"fills the room")
    wait_until(lambda: not log._queue._queue, "the loop has taken it")
    log.append_async(b"xx", key=b"key", headers={"name": b"value"})
    log.append_many_async([b"xx", b"x"], headers=[None, {"name": b"value"}])
    assert log._queue._queued_bytes == (2 + 3 + 14 + 2 + 1 + 14) + 3 * RECORD_CHARGE
    LoopThread.get().loop.call_soon_threadsafe(cluster.release)
    log.close()
    with Log.tail("log", follow=False) as reader:
        headers = [dict(record.headers) for record in reader]
    assert headers == [{}, {"name": b"value"}, {}, {"name": b"value"}]


def test_an_append_cannot_be_taken_back(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        future = log.append_async(b"a")
        assert not future.cancel()
        assert future.result().offset == 0


def test_append_after_close_is_refused(cluster: FakeCluster) -> None:
    log = Log.open("log")
    log.close()
    log.close()
    with pytest.raises(LogClosed):
        log.append(b"a")


def test_nothing_is_appended_once_closing_has_begun(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", 1)
    cluster.hold()
    log = Log.open("log")
    futures = [log.append_async(b"%d" % i) for i in range(3)]
    closing = threading.Thread(target=log.close)
    closing.start()
    wait_until(lambda: log._queue._closed, "it is being closed, and waits for room")
    late, many = log.append_async(b"late"), log.append_many_async([b"late"])
    LoopThread.get().loop.call_soon_threadsafe(cluster.release)
    closing.join()
    assert [future.result().offset for future in futures] == [0, 1, 2]
    assert isinstance(late.exception(PATIENCE_S), LogClosed)
    assert isinstance(many.exception(PATIENCE_S), LogClosed)
    assert Log.end_of("log") == 3


def test_a_lost_log_says_so(cluster: FakeCluster) -> None:
    old = Log.open("log")
    with Log.open("log") as new:
        with pytest.raises(dlog.LogError):
            old.append(b"zombie")
        with pytest.raises(LostOwnership):
            old.append(b"later")
        assert old.is_lost
        assert new.append(b"a").offset == 0
    with pytest.raises(LostOwnership):
        old.close()


@pytest.mark.parametrize(
    "refused",
    [
        lambda log: log.append(b"never"),
        lambda log: log.append_async(b"never").result(PATIENCE_S),
        lambda log: log.append_many([b"never"]),
        lambda log: log.flush(),
    ],
    ids=["append", "future", "many", "flush"],
)
def test_whoever_appends_again_and_again_to_a_lost_log_costs_no_memory(
    cluster: FakeCluster, refused: Callable[[Log], object]
) -> None:
    lost = Log.open("log")
    with Log.open("log") as log:
        log.append(b"a")
        with pytest.raises(LogError):
            lost.append(b"never")
        for _ in range(100):
            with pytest.raises(LostOwnership) as caught:
                refused(lost)
            assert len(extract_tb(caught.value.__traceback__)) < 15
    with pytest.raises(LostOwnership):
        lost.close()


def test_what_is_queued_is_appended_before_the_log_is_closed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", 1)
    monkeypatch.setattr(append_queue, "_BATCH_CHARGE_MAX", 1)  # one record each
    log = Log.open("log")
    futures = [log.append_async(b"%d" % i) for i in range(100)]
    log.close()
    assert [future.result().offset for future in futures] == list(range(100))


def test_the_end_of_a_with_block_raises_what_closing_raises(cluster: FakeCluster) -> None:
    with pytest.raises(LostOwnership):
        lose_within(Log.open("log"))


def lose_within(old: Log) -> None:
    with old:
        Log.open("log").close()
        assert wait([old.append_async(b"zombie")], PATIENCE_S).done


def fail_within(old: Log) -> None:
    with old:
        Log.open("log").close()
        raise KeyError


def test_the_error_in_a_with_block_is_not_hidden_by_closing(cluster: FakeCluster) -> None:
    with pytest.raises(KeyError):
        fail_within(Log.open("log"))


def test_records_batches_and_chunks_may_be_mixed_while_reading(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        log.append_many([b"%d" % number for number in range(6)])
        log.append_many([b"6", b"7"])
    with Log.tail("log", follow=False) as reader:
        assert next(reader).value == b"0"
        chunk = next(reader.read_batches())
        assert (chunk.begin, chunk.end, reader.position) == (1, 6, 6)
        assert next(reader).value == b"6"
        assert [record.value for record in reader.read_batch()] == [b"7"]
        assert reader.at_end
        assert not list(reader.read_batches())
        assert not list(reader)


def test_a_batch_with_a_time_limit_may_be_empty(cluster: FakeCluster) -> None:
    with Log.open("log") as log, Log.tail("log") as reader:
        assert not reader.read_batch(timeout_s=0.01)
        log.append(b"a")
        assert [record.value for record in reader.read_batch()] == [b"a"]


def test_chunks_are_read_without_asyncio(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        for i in range(3):
            log.append(b"%d" % i)
        with Log.tail("log", stop=3) as reader:
            assert [chunk.begin for chunk in reader.read_batches()] == [0, 1, 2]


def test_truncation(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        log.append(b"a")
        log.append(b"b")
        log.truncate(before=1)
        with Log.tail("log", follow=False) as reader:
            assert [record.offset for record in reader] == [1]


@pytest.mark.integration
def test_a_handle_from_before_a_fork_is_refused_and_a_new_one_works(cluster: FakeCluster) -> None:
    log = Log.open("log")
    log.append(b"a")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # no pytest in here: report and leave
        verdict = b"nothing"
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(PATIENCE_S))  # a child that hangs says nothing, and goes
        try:
            try:
                log.append(b"b")
            except UsedAfterFork:
                thread = LoopThread.get()
                verdict = b"refused" if thread.pid == os.getpid() else b"old thread"
        finally:
            os.write(writing, verdict)
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"refused"
    os.close(reading)
    log.close()


def test_calling_it_on_its_own_loop_is_an_error_not_a_deadlock(cluster: FakeCluster) -> None:
    log = Log.open("log")

    async def inside() -> None:
        log.flush()

    with pytest.raises(RuntimeError, match=r"use dlog\.aio"):
        asyncio.run_coroutine_threadsafe(inside(), LoopThread.get().loop).result(PATIENCE_S)
    log.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.append(b"b"),
        lambda log: log.append_many([b"b"]),
        Log.flush,
        Log.roll,
        lambda log: log.truncate(before=0),
        Log.seal,
        Log.close,
    ],
    ids=["append", "append_many", "flush", "roll", "truncate", "seal", "close"],
)
def test_a_call_that_waits_is_no_deadlock_in_a_futures_callback_while_appends_are_pending(
    cluster: FakeCluster, call: Callable[[Log], object]
) -> None:
    log = Log.open("log")
    cluster.hold()
    future = log.append_async(b"a")

    async def inside() -> None:
        call(log)

    with pytest.raises(RuntimeError, match=r"use dlog\.aio"):
        asyncio.run_coroutine_threadsafe(inside(), LoopThread.get().loop).result(PATIENCE_S)
    LoopThread.get().loop.call_soon_threadsafe(cluster.release)
    assert future.result().offset == 0
    assert log.append(b"c").offset == 1, "the call did nothing"
    log.close()


def test_all_that_was_acknowledged_is_read_up_to_a_barrier(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        for i in range(3):
            log.append(b"%d" % i)
        assert Log.end_of("log") == 3
        with Log.tail("log") as reader:
            assert [int(r.value) for r in reader.read_until(reader.barrier())] == [0, 1, 2]
            log.append(b"3")
            assert next(reader).value == b"3"


def test_several_logs_are_read_as_one_stream(cluster: FakeCluster) -> None:
    with Log.open("a") as a, Log.open("b") as b:
        for log in (a, b):
            for i in range(3):
                log.append(b"%d" % i)
        with Log.tail_many(["a", "b"], follow=False) as many:
            assert sorted((log, record.offset) for log, record in many) == [
                (log, offset) for log in "ab" for offset in range(3)
            ]
            assert many.at_end
            assert many.positions == {"a": 3, "b": 3}
        with Log.tail_many(["a"], start=2) as many:
            many.add("b", start="end")
            assert many.logs == ("a", "b")
            assert many.remove("a") == 2
            b.append(b"3")
            batch = many.read_batch()
            assert batch is not None
            assert (batch[0], [record.offset for record in batch[1]]) == ("b", [3])
            assert many.read_batch(timeout_s=0.001) is None
            assert not many.at_end
        assert [record.value for record in Log.last("b", 2)] == [b"2", b"3"]


def test_a_named_consumer_goes_on_where_it_committed(cluster: FakeCluster) -> None:
    with Log.open("log") as log:
        log.append_many([b"%d" % i for i in range(5)])  # one entry, so they are read at once
        with Log.consumer("view", "log", exclusive=True) as consumer:
            assert (consumer.name, consumer.committed, consumer.skipped) == ("view", 0, 0)
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
            with pytest.raises(InvalidPosition):
                consumer.commit(4)  # the facade holds it, the application has not seen it
            assert consumer.commit() == 3
            assert consumer.lag() == 2
        with Log.consumer("view", "log", follow=False) as consumer:
            assert consumer.epoch == 3
            assert [record.offset for record in consumer] == [3, 4]
