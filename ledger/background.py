"""What works in the background until it is closed."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """`start` and `close`, or an async context manager, around `run`."""

    _running: asyncio.Task[None] | None = None

    @abstractmethod
    async def run(self) -> None:
        """Work until cancelled, which is safe at any moment."""

    async def start(self) -> None:
        """Let it `run` as a task until `close`."""
        assert self._running is None, "it runs already"
        running = asyncio.get_running_loop().create_task(self.run(), name=type(self).__name__)
        self._running = running

    async def close(self) -> None:
        """Stop, also in the middle of work. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
