"""Waiting for conditions with a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool], what: str, *, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.005)


async def eventually(
    condition: Callable[[], Awaitable[bool]], what: str, *, timeout_s: float = 10.0
) -> None:
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.005)
