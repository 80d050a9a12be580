"""A light future behaves like the one of the standard library."""

import asyncio
import concurrent.futures
import threading

import pytest

from dlog.errors import LogClosed
from dlog.position import DLSN, RecordId
from dlog.protocol.pending_batch import PendingBatch
from dlog.sync.append_queue import AppendFuture
from dlog.sync.loop_thread import LoopThread
from tests.waiting import PATIENCE_S, wait_until

ID = RecordId(7, DLSN(1, 2, 3))


def waiting() -> tuple[AppendFuture, PendingBatch]:
    """Return the future of a record that the loop has not seen yet, and its batch."""
    batch = PendingBatch()
    return AppendFuture(batch, 1), batch


def pending() -> tuple[AppendFuture, PendingBatch]:
    future, batch = waiting()
    outcome = PendingBatch()
    batch.moved_to(outcome, 2)
    return future, outcome


def resolve(outcome: PendingBatch) -> None:
    outcome.confirm(4, 1, 2)


def resolved_from_another_thread(batch: PendingBatch) -> threading.Thread:
    """Place and settle, in any order with what the caller does meanwhile."""

    def work() -> None:
        outcome = PendingBatch()
        batch.moved_to(outcome, 2)
        resolve(outcome)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_result_set_before_is_returned_at_once() -> None:
    future, outcome = pending()
    assert not future.done()
    resolve(outcome)
    assert future.done()
    assert future.result(timeout=0) == ID
    assert future.exception(timeout=0) is None


def test_a_thread_that_waits_is_woken() -> None:
    future, batch = waiting()
    thread = resolved_from_another_thread(batch)
    assert future.result(timeout=PATIENCE_S) == ID
    thread.join()


def test_callbacks_run_on_one_thread_in_the_order_of_the_log() -> None:
    """Also one that is added after its record was confirmed, while those before it are called."""
    called: list[tuple[str, str]] = []
    done, first_runs, may_end = threading.Event(), threading.Event(), threading.Event()

    def first(_: object) -> None:
        first_runs.set()
        assert may_end.wait(PATIENCE_S)
        called.append(("first", threading.current_thread().name))

    def second(_: object) -> None:
        called.append(("second", threading.current_thread().name))
        done.set()

    batch, outcome = PendingBatch(), PendingBatch()
    AppendFuture(batch, 0).add_done_callback(first)
    batch.moved_to(outcome, 0)
    LoopThread.get().loop.call_soon_threadsafe(outcome.confirm, 4, 1, 2)
    assert first_runs.wait(PATIENCE_S)
    later = AppendFuture(batch, 1)
    assert later.done()
    later.add_done_callback(second)
    may_end.set()
    assert done.wait(PATIENCE_S)
    assert called == [("first", "dlog"), ("second", "dlog")]


def test_an_error_is_raised_and_told() -> None:
    future = AppendFuture.refused(LogClosed("x"))
    with pytest.raises(LogClosed):
        future.result()
    assert isinstance(future.exception(), LogClosed)


def test_it_cannot_be_cancelled_and_what_was_told_first_stays() -> None:
    future, outcome = pending()
    assert not future.cancel()
    resolve(outcome)
    outcome.fail(lambda _: LogClosed("x"))
    outcome.confirm(9, 9, 9)
    assert future.result() == ID


def test_an_unresolved_one_times_out() -> None:
    with pytest.raises(TimeoutError):
        waiting()[0].result(timeout=0)


def test_callbacks_added_before_and_after_are_called_once() -> None:
    called: list[str] = []
    future, outcome = pending()
    future.add_done_callback(lambda _: called.append("before"))
    resolve(outcome)
    future.add_done_callback(lambda _: called.append("after"))
    wait_until(lambda: called == ["before", "after"], "both are called")


def test_a_callback_added_before_the_append_was_sent_is_called_once() -> None:
    called: list[str] = []
    future, batch = waiting()
    outcome = PendingBatch()
    future.add_done_callback(lambda _: called.append("before"))
    batch.moved_to(outcome, 2)
    assert called == []
    resolve(outcome)
    wait_until(lambda: called == ["before"], "it is called")
    assert future.result(timeout=0) == ID


def test_the_standard_library_can_wait_for_many() -> None:
    pairs = [waiting() for _ in range(50)]
    threads = [resolved_from_another_thread(batch) for _, batch in pairs]
    found = concurrent.futures.wait([future for future, _ in pairs], timeout=PATIENCE_S)
    assert (len(found.done), len(found.not_done)) == (50, 0)
    for thread in threads:
        thread.join()


async def test_asyncio_can_await_one() -> None:
    future, batch = waiting()
    thread = resolved_from_another_thread(batch)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.wrap_future(future) == ID
    thread.join()


@pytest.mark.slow
def test_waiting_and_resolving_at_the_same_moment_never_misses() -> None:
    for _ in range(2000):
        future, batch = waiting()
        thread = resolved_from_another_thread(batch)
        assert future.result(timeout=PATIENCE_S) == ID
        thread.join()
