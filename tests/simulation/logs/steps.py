"""Shows at which step of a takeover each process is, so that a run knows where it was stopped."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dlog.aio.write.takeover_driver import TakeoverDriver
from ledger.protocol.procedure import Action
from tests.simulation.kernel.loop import SimLoop


@contextmanager
def watched_takeovers() -> Iterator[None]:
    """Keep `SimLoop.step` up to date within the block."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.step = type(action).__name__
        try:
            return await honest(self, action)
        finally:
            loop.step = ""

    TakeoverDriver._execute = execute  # type: ignore[method-assign]
    try:
        yield
    finally:
        TakeoverDriver._execute = honest  # type: ignore[method-assign]
