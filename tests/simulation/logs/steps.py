"""Shows at which step of a takeover each process is, so that a run knows where it was stopped."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from dlog.aio.write.opening import TakeoverDriver
from dlog.protocol.takeover import Step, TakeoverEvent
from tests.simulation.logs.loop import SimLoop


@contextmanager
def watched_takeovers() -> Iterator[None]:
    """Keep `SimLoop.step` up to date within the block."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, effect: Step) -> TakeoverEvent:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.step = type(effect).__name__
        try:
            return await honest(self, effect)
        finally:
            loop.step = ""

    TakeoverDriver._execute = execute  # type: ignore[method-assign]
    try:
        yield
    finally:
        TakeoverDriver._execute = honest  # type: ignore[method-assign]
