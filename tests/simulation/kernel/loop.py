"""An asyncio event loop on simulated time: one per process, no threads, no clock.

Production drivers run on it unchanged. Invariants: a loop runs only as an action of its host,
so a host that is paused holds everything back and one that crashed never runs again; timers
go by the host's own clock; sets of tasks and futures iterate in the order of creation, so the
same seed gives the same order in every process.

What breaks inside (`failure`) is raised to the scheduler: nothing is swallowed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from tests.simulation.kernel.host import Host
from tests.simulation.kernel.scheduler import Timer
from tests.simulation.kernel.sockets import Readable, Sockets

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

TURNS_OF_CLEANUP_MAX = 100


class SimTask(asyncio.Task[Any]):
    """A task whose hash does not depend on where it lies in memory."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], loop: "SimLoop") -> None:
        self.number = number
        super().__init__(coro, loop=loop)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimFuture(asyncio.Future[Any]):
    """As `SimTask`."""

    def __init__(self, number: int, loop: "SimLoop") -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimTimerHandle(asyncio.TimerHandle):
    timer: Timer | None = None


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of the process that runs on *host*."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.failure: BaseException | None = None
        """What a callback or an unwatched task raised."""
        self.step = ""
        """The step of a takeover that is under way here; see `steps`."""
        self.skew_s = 0.0
        """How wrong the wall clock is here."""
        self.sockets: Sockets | None = None
        self._ready: deque[asyncio.Handle] = deque()
        self._woken = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Kept, so that a process that died is not swept up in the middle of the simulation."""
        self._made = 0
        self._over = False

    def time(self) -> float:
        return self.host.clock()

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = SimTimerHandle(when, callback, args, self, context)
        if not self._over:
            handle.timer = self.host.at_clock(when, lambda: self._due(handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self._next_number(), self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Result] | Generator[Any, None, Result],
        **_options: Any,
    ) -> asyncio.Task[Result]:
        assert isinstance(coro, Coroutine)
        task = SimTask(self._next_number(), coro, self)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **_options: Any,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        assert self.sockets is not None
        return await self.sockets.connect(protocol_factory, host, port)

    def add_reader(  # type: ignore[override]
        self, readable: Readable, callback: Callable[[*Arguments], object], *args: *Arguments
    ) -> None:
        readable.set_reader(partial(callback, *args))

    def remove_reader(self, readable: Readable) -> None:  # type: ignore[override]
        readable.set_reader(None)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._over

    def is_closed(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Take note of the first thing that broke; a task dropped at the end is no news."""
        if self._over or self.failure is not None:
            return
        error = context.get("exception")
        self.failure = error if error is not None else RuntimeError(context["message"])

    def cleanup(self) -> None:
        """Let every task end, after the simulation: what they still want is not done."""
        self._over = True
        for _ in range(TURNS_OF_CLEANUP_MAX):
            for task in list(self._tasks):
                task.cancel()
            if not self._ready:
                break
            self._turn()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, SimTimerHandle) and handle.timer is not None:
            handle.timer.cancel()

    def _next_number(self) -> int:
        self._made += 1
        return self._made

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            self._wake()

    def _wake(self) -> None:
        if not self._woken and not self._over and self.host.up:
            self._woken = True
            self.host.after(0.0, self._turn)

    def _turn(self) -> None:
        """Run what is ready now; what that makes ready runs in the next turn."""
        self._woken = False
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if not self._over and not self.host.up:
                    return  # it died at this very step
        finally:
            asyncio._set_running_loop(outer)
        if self._ready:
            self._wake()
        if self.failure is not None and not self._over:
            raise self.failure

    def run_in_executor(self, *_: object) -> NoReturn:
        raise AssertionError("a simulated process has no threads")
