"""One client's connection for adds, at the bookie: batches in, acks out, in order.

A batch is offered in the turn of the loop in which it came, and its ack is written in the turn
in which the bookie learns that it is durable. Batches that come while another one is being
prepared, or while too many are not answered, wait; then the connection is not read from, so
what waits is part of what was read at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from bookie.server.guarding import Door
from bookie.server.service import BookieService
from bookie.storage.prepared import Prepared
from ledger.errors import BadMessage
from ledger.requests import AddRun
from ledger.transport.connection import Connection
from ledger.transport.framing import Frame, Kind
from ledger.transport.messages import MESSAGE_BYTES_MAX, ack_message, batch_runs


class Adding:
    """See the module's docstring. *refuse* ends the connection for what a client did."""

    body_bytes_max = MESSAGE_BYTES_MAX

    def __init__(
        self,
        service: BookieService,
        connection: Connection,
        refuse: Callable[[BadMessage], None],
        door: Door | None = None,
    ) -> None:
        """*door*: what lets the client in; None: it may do everything."""
        self._connection = connection
        self._refuse = refuse
        self._door = door
        self._stream = service.stream(self._acknowledge)
        self._waiting: deque[Frame] = deque()
        self._preparing: asyncio.Task[None] | None = None
        self._shut = False

    @property
    def is_done(self) -> bool:
        """Whether everything that was taken is answered."""
        return self._stream.is_answered

    def took(self, frame: Frame) -> None:
        """Take the batch of *frame*, now or when those before it are taken. Raises `BadMessage`."""
        if frame.kind != Kind.ADD:
            raise BadMessage("Frame", f"kind {frame.kind} has no place among adds")
        if self._waiting or self._preparing is not None or self._stream.is_full:
            self._waiting.append(frame)
            self._connection.pause()
        else:
            self._take(frame)

    def blocked(self) -> None:
        """Acks wait where they are: among the open batches."""

    def unblocked(self) -> None:
        self._stream.look()

    def shut(self) -> None:
        """Take nothing more; what was taken is still answered."""
        self._shut = True
        self._waiting.clear()

    def close(self) -> None:
        self.shut()
        self._stream.close()
        if self._preparing is not None:
            self._preparing.cancel()

    def _take(self, frame: Frame) -> None:
        runs = batch_runs(frame.body)
        may = self._door is None or self._door.admits(runs)
        if may and self._stream.needs_nothing(runs):
            self._stream.offer(frame.number, runs)
        else:
            self._connection.pause()
            self._preparing = asyncio.ensure_future(self._prepare(frame.number, runs))

    async def _prepare(self, batch: int, runs: Sequence[AddRun]) -> None:
        try:
            prepared = await self._prepared(runs)
            self._preparing = None
            if not self._shut:
                self._stream.offer(batch, runs, prepared)
                self._take_waiting()
        except BadMessage as error:
            self._refuse(error)
        except Exception:
            self._connection.abort()
            raise

    async def _prepared(self, runs: Sequence[AddRun]) -> Sequence[Prepared]:
        """Look up what adds of those *runs* need that are not refused."""
        refused = {} if self._door is None else await self._door.refused(runs)
        if not refused:
            return await self._stream.prepare(runs)
        taken = [run for index, run in enumerate(runs) if index not in refused]
        found = await self._stream.prepare(taken) or [None] * len(taken)
        each = iter(found)
        return [refused[at] if at in refused else next(each) for at in range(len(runs))]

    def _take_waiting(self) -> None:
        while self._waiting and self._preparing is None and not self._stream.is_full:
            self._take(self._waiting.popleft())
        if not self._waiting and self._preparing is None:
            self._connection.resume()

    def _acknowledge(self) -> None:
        """Send the acks that are ready. A client that does not take them has none made for it,
        and is not read from once too many are due."""
        connection = self._connection
        if connection.is_blocked:
            return
        for ack in self._stream.acks():
            message = ack_message(ack.first, ack.last, ack.statuses)
            connection.send(Kind.ADDED, ack.last, message)
        if self._waiting and self._preparing is None:
            # Not from here: who tells of what is durable tells others too.
            asyncio.get_running_loop().call_soon(self._go_on)
        connection.settled()

    def _go_on(self) -> None:
        try:
            if not self._shut and self._preparing is None:
                self._take_waiting()
        except BadMessage as error:
            self._refuse(error)
