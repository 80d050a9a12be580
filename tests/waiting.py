"""Waiting for what ought to happen, with more patience than a busy machine needs.

A deadline is only there to end a test that has failed. One that passes costs the same
however long it is, so it outlasts a machine that stands still for many seconds.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 30.0
"""How long a test waits for what ought to happen at once."""
SESSION_S: Final = 60.0
"""A session that shall not end by itself, however long the machine stands still."""
TEST_S: Final = 240.0
"""For what ends by itself, however slowly: less than a test has (`timeout` of pytest), so that the
test fails, and not the process that runs it."""
TURNS_MAX: Final = 100_000
"""Turns of an event loop after which it is busy for ever."""


async def until(
    condition: Callable[[], bool], what: str = "it came true", *, timeout_s: float = PATIENCE_S
) -> None:
    """Wait on the event loop until *condition* holds; fail the test if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.002)


async def ended(work: Awaitable[T], what: str = "it ended", *, timeout_s: float = PATIENCE_S) -> T:
    """Return what *work* returns; fail the test, and cancel it, if it does not end."""
    patience = asyncio.timeout(timeout_s)
    try:
        async with patience:
            return await work
    except TimeoutError:
        if not patience.expired():
            raise
        raise AssertionError(f"not within {timeout_s} s: {what}") from None


async def settled() -> None:
    """Run the event loop until nothing is ready: then nothing more happens before a clock, a
    socket or a thread makes it happen."""
    loop = asyncio.get_running_loop()
    ready = loop._ready  # type: ignore[attr-defined] # asyncio has no other way to ask
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if not ready:
            return
    raise AssertionError(f"still busy after {TURNS_MAX} turns of the loop")


async def eventually(
    condition: Callable[[], Awaitable[bool]],
    what: str = "it came true",
    *,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Wait on the event loop until *condition*, which has to be awaited, holds."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():  # noqa: ASYNC110 - any condition, not only an event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}") from None


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S) -> None:
    """Wait on this thread until *condition* holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Return True iff the process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
