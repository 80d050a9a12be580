"""What all handles of the blocking API have in common."""

import asyncio

import pytest

from dlog.errors import LogClosed, UsedAfterFork
from dlog.sync.loop_thread import BlockingHandle, LoopThread, forks


class Opened:
    """Something of `dlog.aio` that cannot be closed in order."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1
        raise LogClosed("flights")


def test_the_error_of_the_block_is_not_hidden_by_that_of_the_close() -> None:
    opened = Opened()
    with pytest.raises(ZeroDivisionError), BlockingHandle(opened, LoopThread.get(), "flights"):
        _ = 1 / 0
    assert opened.closed == 1


def test_a_close_that_fails_is_reported_at_the_end_of_the_block() -> None:
    opened = Opened()
    with pytest.raises(LogClosed), BlockingHandle(opened, LoopThread.get(), "flights"):
        pass
    assert opened.closed == 1


def test_another_process_touches_nothing_and_is_given_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Opened()
    handle = BlockingHandle(opened, LoopThread.get(), "flights")
    with monkeypatch.context() as patch:
        patch.setattr(forks, "generation", forks.generation + 1)
        with pytest.raises(UsedAfterFork, match="'flights' was opened before"):
            handle.close()
    assert opened.closed == 0


def test_waiting_on_the_loop_for_the_loop_is_refused() -> None:
    opened, thread = Opened(), LoopThread.get()
    handle = BlockingHandle(opened, thread, "flights")

    async def close_there() -> None:
        handle.close()

    with pytest.raises(RuntimeError, match=r"use dlog\.aio"):
        asyncio.run_coroutine_threadsafe(close_there(), thread.loop).result(10)
    assert opened.closed == 0
