"""How often a candidate may ask again, and how it waits for the first of several things."""

import asyncio
from collections.abc import Coroutine
from typing import Final

PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0


async def first_of(*waits: Coroutine[object, object, object], timeout_s: float) -> None:
    """Return when one of *waits* has ended, or after *timeout_s*. Raises what it raised.

    The others are cancelled, and have ended when this returns."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(
            tasks, timeout=max(timeout_s, 0.0), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done and not task.cancelled():
            task.result()
