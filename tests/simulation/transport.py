"""The port to the bookies as one simulated process has it, on its own event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ledger.ids import BookieId
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from tests.simulation.addresses import Listener
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.network import Stream

if TYPE_CHECKING:
    from tests.simulation.process import SimProcess

Answer = TypeVar("Answer")
Adding = Callable[[int, Callable[[Status], None]], None]
"""Takes what came on a connection, and where to its answer goes."""
Asking = Callable[[Callable[[Answer], None]], None]
"""Takes where to the answer of a question goes."""

ADD_TIMEOUT_S: Final = 1.0
READ_TIMEOUT_S: Final = 1.0


class SimTransport:
    """Implements `ledger.transport.port.BookieTransport`."""

    def __init__(self, process: "SimProcess") -> None:
        self.process = process
        self._world = process.world
        self._streams: dict[BookieId, Stream[Status]] = {}

    def add(self, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]) -> None:
        host = self.process.host
        self.process.before_call("bookies", f"add to {bookie}")
        if host.paused:  # it sends this when it wakes up, behind what it held back before
            self.process.loop.call_soon(self._add, bookie, run, on_done)
        elif host.up:
            self._add(bookie, run, on_done)

    def _add(self, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]) -> None:
        self.process.sends(bookie, run)
        target = self._target(bookie)
        stream = self._streams.get(bookie)
        if stream is None or not stream.leads_to(target.host):
            before = stream
            stream = self._streams[bookie] = Stream(
                self._world.network, self.process.host, target.host, timeout_s=ADD_TIMEOUT_S
            )
            if before is not None:
                before.reset()
        run = replace(run, frames=self._world.network.carry(run.frames))
        loop = self.process.loop

        def heard(status: Status | None) -> None:
            loop.call_soon(on_done, Status.UNREACHABLE if status is None else status)

        stream.request(self._adding(bookie, target, run), heard)

    def _target(self, bookie: BookieId) -> Listener:
        """Return what answers where this process looks for *bookie*."""
        return self._world.bookies[bookie]

    def _adding(self, _bookie: BookieId, target: Listener, run: AddRun) -> Adding:
        """Return what *target* does with *run* when it arrives."""
        return self._world.adding(self.process, target, run)

    def _asking(
        self, _bookie: BookieId, _target: Listener, ask: Asking[Answer], _unreachable: Answer
    ) -> Asking[Answer]:
        """Return what *_target* does with a question when it arrives."""
        return ask

    def is_watched(self, bookie: BookieId) -> bool:
        """Drawn: what a bookie said last may be of any age, and readers come and go."""
        return self._world.scheduler.random.random() < 0.5

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
        await self._before(f"read from {bookie}")
        timeout_s = READ_TIMEOUT_S + query.wait_ms / 1000
        unread = ReadAnswer(Status.UNREACHABLE)
        answer = await self._asked(bookie, lambda at: partial(at.read, query), unread, timeout_s)
        if answer.frames:
            return replace(answer, frames=self._world.network.carry(answer.frames))
        return answer

    async def read_lac(self, bookie: BookieId, query: LacQuery) -> LacAnswer:
        await self._before(f"read the LAC of {bookie}")
        unread = LacAnswer(Status.UNREACHABLE)
        return await self._asked(bookie, lambda at: partial(at.read_lac, query), unread)

    async def read_held(self, bookie: BookieId, query: HeldQuery) -> HeldAnswer:
        await self._before(f"ask {bookie} what it holds")
        unread = HeldAnswer(Status.UNREACHABLE)
        return await self._asked(bookie, lambda at: partial(at.read_held, query), unread)

    async def _asked(
        self,
        bookie: BookieId,
        question: Callable[[Listener], Asking[Answer]],
        unreachable: Answer,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Answer:
        target = self._target(bookie)
        ask = self._asking(bookie, target, question(target), unreachable)
        answer: Answer | None = await self.ask(target.host, ask, timeout_s)
        return unreachable if answer is None else answer

    async def _before(self, what: str) -> None:
        host = self.process.host
        self.process.before_call("bookies", what)
        if not host.up or host.paused:
            await asyncio.sleep(0)  # goes on when it wakes up, or never

    async def info(self, _bookie: BookieId) -> InfoAnswer | None:
        return None

    async def close(self) -> None:
        """Connections go with the process."""

    def busy_streams(self) -> list[Stream[Status]]:
        """Return the connections on which adds wait for an answer."""
        return [stream for stream in self._streams.values() if stream.is_busy]

    async def ask(
        self,
        target: Host,
        handle: Callable[[Callable[[Answer], None]], None],
        timeout_s: float,
    ) -> Answer | None:
        loop = self.process.loop
        heard: asyncio.Future[Answer | None] = loop.create_future()

        def settle(answer: Answer | None) -> None:
            if not heard.done():
                heard.set_result(answer)

        def hear(answer: Answer | None) -> None:
            loop.call_soon(settle, answer)

        host, network = self.process.host, self._world.network
        network.request(host, target, handle, hear, timeout_s=timeout_s)
        return await heard
