"""Doing one thing with many items, some at a time, and leaving nothing under way."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


async def for_each(
    items: Sequence[_Item], work: Callable[[_Item], Awaitable[None]], *, at_once: int
) -> None:
    """Await *work* of each of *items*, *at_once* of them at a time.

    When this ends, however it does, nothing of it goes on: the first error cancels the rest,
    waits for it, and is raised here; so does a cancellation."""
    waiting = iter(items)

    async def take() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(take())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
