"""Async tests as plain functions, each on a loop of its own and never for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps

TEST_S = 90.0


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def within_time() -> None:
            async with asyncio.timeout(TEST_S):
                await test(*args, **kwargs)

        asyncio.run(within_time())

    return run
