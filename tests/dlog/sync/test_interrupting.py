"""Calls of the synchronous API that are interrupted (Ctrl-C) just when their result is there."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dlog import Log, LogClosed, admin
from dlog.aio.port import Ledgers
from dlog.sync.loop_thread import LoopThread
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import PATIENCE_S, settled, until


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which the next call that waits is interrupted at its end."""
    cluster = FakeCluster()

    async def connect(_: str | None) -> Ledgers:
        return cluster.client(MemoryStore("memory://interrupts", "interrupts"))

    for module in ("log", "read.handles", "namespace_connection"):
        monkeypatch.setattr(f"dlog.aio.{module}.connect", connect)
    monkeypatch.setattr("dlog.aio.admin.connect", connect)
    run = LoopThread.run

    def interrupt_next() -> None:
        def interrupted(self: LoopThread, work: Coroutine[Any, Any, Any], **names: Any) -> Any:
            monkeypatch.setattr(LoopThread, "run", run)
            run(self, work, **names)
            raise KeyboardInterrupt

        monkeypatch.setattr(LoopThread, "run", interrupted)

    return interrupt_next


def test_what_a_call_does_on_the_loop_ends_when_its_thread_is_interrupted() -> None:
    cancelled = threading.Event()
    caller = threading.get_ident()

    async def work() -> None:
        await until(lambda: sys._current_frames()[caller].f_code.co_name == "wait", "it waits")
        signal.pthread_kill(caller, signal.SIGUSR1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)  # as Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            LoopThread.get().run(work())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(PATIENCE_S)


def test_every_append_resolves_if_closing_is_interrupted_while_appends_are_queued(
    interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.protocol.accumulator.PENDING_BYTES_ROOM", 1)
    monkeypatch.setattr("dlog.sync.append_queue._BATCH_CHARGE_MAX", 1)  # one record each
    log = Log.open("queued")
    log.append(b"a")
    thread = LoopThread.get()
    monkeypatch.setattr("dlog.protocol.log_writer.Writing._send", lambda _: [])
    futures = [log.append_async(b"b") for _ in range(10)]
    closing = asyncio.run_coroutine_threadsafe(log._close(None), thread.loop)

    async def cancel() -> None:
        await settled()
        closing.cancel()  # as LoopThread.run does when its thread is interrupted

    thread.run(cancel())
    for future in futures:
        assert isinstance(future.exception(PATIENCE_S), LogClosed)


def test_records_that_were_read_are_the_next_calls(interrupt: Callable[[], None]) -> None:
    with Log.open("records") as log:
        log.append(b"a")
        log.append(b"b")
    with Log.tail("records", follow=False) as reader:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        assert reader.position == 0
        assert [record.value for record in reader] == [b"a", b"b"]
    with Log.tail_many(["records"], follow=False) as many:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            next(many)
        assert many.positions == {"records": 0}
        assert [record.value for _, record in many] == [b"a", b"b"]


def test_chunks_that_were_read_are_the_next_calls(interrupt: Callable[[], None]) -> None:
    with Log.open("log") as log:
        log.append(b"a")
        log.append(b"b")
    with Log.tail("log", follow=False) as reader:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            next(reader.read_batches())
        assert reader.position == 0
        assert [chunk.begin for chunk in reader.read_batches()] == [0, 1]


def test_changes_that_were_seen_are_the_next_calls(interrupt: Callable[[], None]) -> None:
    admin.create_log("watched")
    with admin.watch_logs(prefix="watched") as watch:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            next(watch)
        admin.create_log("watched later")
        assert next(watch) == ("added", "watched")
        assert next(watch) == ("added", "watched later")
    admin.delete_log("watched")
    admin.delete_log("watched later")
