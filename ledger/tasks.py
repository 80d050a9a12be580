"""What several parts do with tasks of an event loop, so that nothing is left under way."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

_Item = TypeVar("_Item")


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


async def stop_accepting(server: asyncio.Server) -> None:
    """Close *server*; who was accepted before is connected when this returns.

    An event loop takes a turn between accepting and connecting. A server that is closed in that
    turn leaves the connection open until the process ends, and never tells its protocol of it
    (CPython's issue 109564)."""
    loop = server.get_loop()
    try:
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)  # the transport is made,
        await asyncio.sleep(0)  # and its protocol told
    finally:
        server.close()


def is_cancelled() -> bool:
    """Return True iff it is the present task that is being cancelled.

    False where `CancelledError` comes from what it waited for, as a watch whose store was closed:
    that must not end a task which nobody cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
