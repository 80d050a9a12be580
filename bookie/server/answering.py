"""One client's connection for questions, at the bookie: reads, and what it holds.

Each is answered when its answer is there, in any order; who does not wait any more says so. A
client that does not take its answers is not read from, and gets no more long ones.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from bookie.server.delaying import Delaying
from bookie.server.guarding import Door
from bookie.server.service import BookieService
from ledger.errors import BadMessage
from ledger.log_events import get_logger
from ledger.requests import (
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.security.access import Action
from ledger.transport.connection import Backlog, Connection
from ledger.transport.envelope import Buffer
from ledger.transport.framing import Frame, Kind
from ledger.transport.messages import (
    check_info_request,
    held_query,
    held_reply,
    info_reply,
    lac_query,
    lac_reply,
    read_query,
    read_reply,
)

QUESTION_BYTES_MAX: Final = 4096
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A client with more answers that it does not take is told to ask again later."""
QUESTIONS_MAX: Final = 12_288
"""Of all clients: the reads that may wait, and some."""
BACKLOG_BYTES_HIGH: Final = 128 * 1024 * 1024
"""Once so much is due to all clients, one that has not taken its last answers gets no more."""

_LATER: Final = Status.TOO_MANY_REQUESTS

_log = get_logger(__name__)


Reply = tuple[Kind, tuple[Buffer, ...]]


class Room:
    """What all clients share that ask."""

    def __init__(self, backlog: Backlog | None = None, per_client_max: int = QUESTIONS_MAX) -> None:
        self.left = QUESTIONS_MAX
        """How many questions may be asked beside those that are open, of all clients."""
        self.per_client_max = per_client_max
        """How many one of them may have open."""
        self.backlog = backlog or Backlog()


class Answering:
    """See the module's docstring."""

    body_bytes_max = QUESTION_BYTES_MAX

    def __init__(
        self,
        service: BookieService,
        connection: Connection,
        room: Room,
        door: Door | None = None,
        delaying: Delaying | None = None,
    ) -> None:
        """*door*: what lets the client in; None: it may do everything. *delaying*: what keeps it to
        its quotas; None: it has none."""
        self._service = service
        self._connection = connection
        self._room = room
        self._door = door
        self._delaying = delaying
        self._last = 0
        self._open: dict[int, asyncio.Task[Reply]] = {}
        self._made_bytes = 0
        """Of answers that are made and not sent, as many may be in one turn of the loop."""

    @property
    def is_done(self) -> bool:
        """Whether everything that was asked is answered."""
        return not self._open

    def took(self, frame: Frame) -> None:
        """Begin to answer. Raises `BadMessage`."""
        number, request = frame.number, bytes(frame.body)
        if frame.kind == Kind.CANCEL:
            if (task := self._open.get(number)) is not None:
                task.cancel()
            return
        if number <= self._last:
            raise BadMessage("Frame", f"question {number} came after {self._last}")
        self._last = number
        if frame.kind == Kind.INFO:
            check_info_request(request)
            self._connection.send(Kind.ANSWER, number, info_reply(self._service.info, request))
        elif refusal := self._refusal(frame.kind, request):
            self._connection.send(Kind.ANSWER, number, *refusal)
        elif (answer := self._answer_of(frame.kind, request)) is None:
            self._connection.send(Kind.NOT_KNOWN, number)
        else:
            self._room.left -= 1
            task = self._open[number] = asyncio.ensure_future(answer)
            task.add_done_callback(partial(self._answered, number))

    def blocked(self) -> None:
        self._connection.pause()

    def unblocked(self) -> None:
        self._connection.resume()

    def shut(self) -> None:
        """Take nothing more; what was asked is still answered."""

    def close(self) -> None:
        for task in self._open.values():
            task.cancel()

    def _answer_of(self, kind: int, request: bytes) -> Coroutine[Any, Any, Reply] | None:
        match kind:
            case Kind.READ:
                return self._read(read_query(request), request)
            case Kind.READ_LAC:
                return self._read_lac(lac_query(request), request)
            case Kind.READ_HELD:
                return self._read_held(held_query(request), request)
            case _:
                return None

    def _refusal(self, kind: int, request: bytes) -> tuple[Buffer, ...]:
        """Return the answer to a question that finds no room; empty if there is room. It is given
        at once: what is refused must cost less than what is not."""
        room = self._room
        is_crowded = room.left <= 0 or len(self._open) >= room.per_client_max
        match kind:
            case Kind.READ if is_crowded or self._is_due_much():
                read_query(request)
                return read_reply(ReadAnswer(_LATER), request)
            case Kind.READ_LAC if is_crowded:
                lac_query(request)
                return (lac_reply(LacAnswer(_LATER), request),)
            case Kind.READ_HELD if is_crowded or self._is_due_much():
                held_query(request)
                return (held_reply(HeldAnswer(_LATER), request),)
            case _:
                return ()

    async def _read(self, query: ReadQuery, request: bytes) -> Reply:
        needed = _action(fence=query.fence or query.repairs)
        status = await self._why_not(query.ledger_id, needed, fence=query.fence)
        answer = ReadAnswer(status)
        counts = self._counts(query)
        if status is Status.OK and counts is not None and not await counts.ask(query.ledger_id):
            answer = ReadAnswer(_LATER)
        elif status is Status.OK and self._is_due_much():
            answer = ReadAnswer(_LATER)  # nothing is read that would be thrown away
        elif status is Status.OK:
            answer = await self._service.read(query)
            if counts is not None:
                counts.answered(query.ledger_id, len(answer.frames))
            if query.wait_ms > 0:  # it may have been revoked meanwhile
                status = await self._why_not(query.ledger_id, Action.READ, fence=False)
                answer = answer if status is Status.OK else ReadAnswer(status)
            if self._is_due_much():
                answer = ReadAnswer(Status.TOO_MANY_REQUESTS)
        return self._made(*read_reply(answer, request))

    def _counts(self, query: ReadQuery) -> Delaying | None:
        """Return what delays *query*, if anything may. Who fences, recovers or repairs is not
        delayed; whether he may is `_action`'s business."""
        delaying = self._delaying
        if delaying is None or not delaying.treasury.is_on or query.fence or query.repairs:
            return None
        return delaying

    async def _read_lac(self, query: LacQuery, request: bytes) -> Reply:
        status = await self._why_not(query.ledger_id, _action(fence=query.fence), fence=query.fence)
        answer = LacAnswer(status)
        if status is Status.OK:
            answer = await self._service.read_lac(query)
        return self._made(lac_reply(answer, request))

    async def _read_held(self, query: HeldQuery, request: bytes) -> Reply:
        status = await self._why_not(query.ledger_id, Action.LIST, fence=False)
        answer = HeldAnswer(status)
        if status is Status.OK:
            answer = await self._service.read_held(query)
            if self._is_due_much():
                answer = HeldAnswer(Status.TOO_MANY_REQUESTS)
        return self._made(held_reply(answer, request))

    def _made(self, *body: Buffer) -> Reply:
        self._due(sum(map(len, body)))
        return Kind.ANSWER, body

    def _due(self, size_bytes: int) -> None:
        """Count what was made; less again, just before it is sent."""
        self._made_bytes += size_bytes
        self._room.backlog.unsent_bytes += size_bytes

    def _is_due_much(self) -> bool:
        """Return whether the client has to take something before it gets more."""
        due_bytes = self._connection.unsent_bytes + self._made_bytes
        if due_bytes > UNSENT_BYTES_MAX:
            return True
        return bool(due_bytes) and self._room.backlog.unsent_bytes > BACKLOG_BYTES_HIGH

    async def _why_not(self, ledger_id: int, action: Action, *, fence: bool) -> Status:
        """Return OK, or why there is no answer.

        That the store knows no such ledger is no promise to who fences: what has to be fenced was
        made by somebody."""
        if self._door is None:
            return Status.OK
        status = await self._door.answer(ledger_id, action)
        unmade = status is Status.NO_SUCH_LEDGER
        return Status.TOO_MANY_REQUESTS if unmade and fence else status

    def _answered(self, number: int, answer: "asyncio.Task[Reply]") -> None:
        self._room.left += 1
        del self._open[number]
        if answer.cancelled():
            pass
        elif (error := answer.exception()) is not None:
            _log.error("question_not_answered", peer=self._connection.peer, reason=repr(error))
            self._connection.abort()
        else:
            kind, body = answer.result()
            self._due(-sum(map(len, body)))
            self._connection.send(kind, number, *body)
        self._connection.settled()


def _action(*, fence: bool) -> Action:
    return Action.RECOVER if fence else Action.READ
