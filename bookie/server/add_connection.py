"""One client's connection for adds, at the bookie: batches in, acks out, in order.

A batch is taken in the turn of the loop in which it came, and what came together is committed
together. Its ack is written in the turn in which the bookie learns that it is durable: for a client
that is alone, on a fast disk, in the same one. Batches that come while another one is being
prepared, or while too many are not answered, wait; then the connection is not read from, so
what waits is part of what was read at once.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from bookie.server.authorizer import ConnectionAuthorizer
from bookie.server.quota import ConnectionThrottle
from bookie.server.service import BookieService
from bookie.storage.add_lookup import Prepared
from ledger.errors import BadMessage
from ledger.requests import AddRun, Status
from ledger.transport.connection import Connection
from ledger.transport.framing import Frame, FrameKind
from ledger.transport.messages import MESSAGE_BYTES_MAX, ack_message, batch_runs

STREAM_BATCHES_MAX: Final = 1024
"""A stream with so many unanswered batches is not read from until some are answered."""


class AddConnection:
    """See the module's docstring. *refuse* ends the connection for what a client did."""

    body_bytes_max = MESSAGE_BYTES_MAX

    def __init__(
        self,
        service: BookieService,
        connection: Connection,
        refuse: Callable[[BadMessage], None],
        door: ConnectionAuthorizer | None = None,
        delaying: ConnectionThrottle | None = None,
    ) -> None:
        """*door*: what lets the client in; None: it may do everything. *delaying*: what keeps it to
        its quotas; None: it has none."""
        self._connection = connection
        self._refuse = refuse
        self._door = door
        self._stream = service.stream(self._acknowledge)
        self._needs_nothing = service.needs_nothing
        self._waiting: deque[Frame] = deque()
        self._preparing: asyncio.Task[None] | None = None
        self._delaying = delaying
        self._held: asyncio.TimerHandle | None = None
        """Ends the time for which a quota holds the connection up."""
        self._shut = False

    @property
    def is_done(self) -> bool:
        """Whether everything that was taken is answered."""
        return self._stream.is_answered

    def took_all(self, frames: Sequence[Frame]) -> None:
        """Take the batches of *frames*, which came together, now or when those before them are
        taken. Raises `BadMessage`."""
        began = time.perf_counter()
        try:
            for frame in frames:
                if self._shut:
                    return
                if frame.kind != FrameKind.ADD:
                    raise BadMessage("Frame", f"kind {frame.kind} has no place among adds")
                if self._waiting or not self._takes:
                    self._waiting.append(frame)
                    self._connection.pause()
                else:
                    self._take(frame)
        finally:
            self._stream.commit(began)

    def blocked(self) -> None:
        """Acks wait where they are: among the open batches."""

    def unblocked(self) -> None:
        self._stream.look()

    def eased(self) -> None:
        """Nothing waits for that."""

    def look(self, _now: float) -> bool:
        """Nor for this: adds are answered as they become durable."""
        return False

    def shut(self) -> None:
        """Take nothing more; what was taken is still answered."""
        self._shut = True
        self._waiting.clear()

    def close(self) -> None:
        self.shut()
        self._stream.close()
        if self._held is not None:
            self._held.cancel()
        if self._preparing is not None:
            self._preparing.cancel()

    @property
    def _takes(self) -> bool:
        """Whether a batch may be taken now."""
        is_full = len(self._stream.session.open) >= STREAM_BATCHES_MAX
        return not is_full and self._preparing is None and self._held is None

    def _take(self, frame: Frame) -> None:
        runs = batch_runs(frame.body)
        delaying = self._delaying
        if delaying is not None and not delaying.treasury.is_on:
            delaying = None
        if (
            (self._door is None or self._door.admits(runs))
            and (delaying is None or delaying.knows(runs))
            and self._needs_nothing(runs)
        ):
            if delaying is None:
                self._stream.offer(frame.number, runs)
            else:
                self._offer(frame.number, runs)
        else:
            self._connection.pause()
            self._preparing = asyncio.ensure_future(self._prepare(frame.number, runs))

    def _offer(self, batch: int, runs: Sequence[AddRun], prepared: Sequence[Prepared] = ()) -> None:
        delaying = self._delaying
        if delaying is not None and delaying.treasury.is_on:
            taken = [run for at, run in enumerate(runs) if not prepared or _is_taken(prepared[at])]
            if (hold_s := delaying.append(taken)) > 0:
                self._hold(hold_s)
        self._stream.offer(batch, runs, prepared)

    def _hold(self, hold_s: float) -> None:
        """Read nothing more for so long. What was taken is answered, so that the client does not
        take the bookie for silent."""
        self._connection.pause()
        loop = asyncio.get_running_loop()
        self._held = loop.call_later(hold_s, self._let_go)

    def _let_go(self) -> None:
        self._held = None
        self._go_on()

    async def _prepare(self, batch: int, runs: Sequence[AddRun]) -> None:
        try:
            prepared = await self._prepared(runs)
            self._preparing = None
            if not self._shut:
                self._offer(batch, runs, prepared)
                self._take_waiting()
        except BadMessage as error:
            self._refuse(error)
        except Exception:
            self._connection.abort()
            raise

    async def _prepared(self, runs: Sequence[AddRun]) -> Sequence[Prepared]:
        """Look up what adds of those *runs* need that are not refused."""
        refused = {} if self._door is None else await self._door.refused(runs)
        if self._delaying is not None and self._delaying.treasury.is_on:
            await self._delaying.learn(runs)
        if not refused:
            return await self._stream.prepare(runs)
        taken = [run for index, run in enumerate(runs) if index not in refused]
        found = await self._stream.prepare(taken) or [None] * len(taken)
        each = iter(found)
        return [refused[at] if at in refused else next(each) for at in range(len(runs))]

    def _take_waiting(self) -> None:
        """Take what waits, as far as it may be taken, and have it committed."""
        began = time.perf_counter()
        try:
            while self._waiting and self._takes:
                self._take(self._waiting.popleft())
        finally:
            self._stream.commit(began)
        if not self._waiting and self._preparing is None and self._held is None:
            self._connection.resume()

    def _acknowledge(self) -> None:
        """Send the acks that are ready. A client that does not take them has none made for it,
        and is not read from once too many are due."""
        connection = self._connection
        if connection.is_blocked:
            return
        held_ms = 0 if self._held is None else self._left_ms(self._held)
        for ack in self._stream.session.acks():
            message = ack_message(
                ack.first,
                ack.last,
                ack.statuses,
                held_ms,
                unwatched=not self._stream.session.watched_batches,
            )
            connection.send(FrameKind.ADDED, ack.last, message)
        if self._waiting and self._preparing is None and self._held is None:
            # Not from here: who tells of what is durable tells others too.
            asyncio.get_running_loop().call_soon(self._go_on)
        if connection.is_deaf:  # it is to end once everything is answered
            connection.settled()

    def _left_ms(self, held: asyncio.TimerHandle) -> int:
        return ceil(1000 * max(0.0, held.when() - asyncio.get_running_loop().time()))

    def _go_on(self) -> None:
        try:
            if not self._shut and self._preparing is None:
                self._take_waiting()
        except BadMessage as error:
            self._refuse(error)


def _is_taken(prepared: Prepared) -> bool:
    """Return whether an add is not refused before it is counted: nobody draws on a quota that is
    not his."""
    return not isinstance(prepared, Status)
