"""One client's connection for questions, at the bookie: reads, and what it holds.

Each is answered when its answer is there, in any order; who does not wait any more says so.
Reads take turns (`admission`): a client that does not take its answers is not read from,
and nothing is read for it.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from bookie.server.admission import (
    BACKLOG_BYTES_HIGH,
    SEEN_BYTES,
    UNSENT_BYTES_MAX,
    ReadAdmission,
    may_read,
)
from bookie.server.authorizer import ConnectionAuthorizer
from bookie.server.limits import CoreLimits
from bookie.server.quota import ConnectionThrottle
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
from ledger.security.access import Permission
from ledger.transport.connection import Connection
from ledger.transport.envelope import Buffer
from ledger.transport.framing import Frame, FrameKind
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
QUESTIONS_BYTES_MAX: Final = 16 * 1024
"""Read at once from one client, some two hundred reads: the thousands that a connection may have
open are not taken in one pass of the loop."""
_LATE_MAX: Final = 32
"""Answered at once that they are to be asked again later."""
READ_BYTES_MAX: Final = CoreLimits().read_bytes_max
"""Counted as due while it is read, at most: answers are not larger."""
TURN_S_MAX: Final = 2.0
"""So long a read waits for its turn, about: less than a client waits. Then it is to be asked again
later."""

KEPT_BYTES: Final = 128 * 1024
"""Kept by the system for a client that was not seen to take what it gets, beside what is on its
way: else it would keep megabytes for each."""

_LATER: Final = Status.TOO_MANY_REQUESTS

_log = get_logger(__name__)


Reply = tuple[FrameKind, tuple[Buffer, ...]]


class ReadConnection:
    """See the module's docstring."""

    body_bytes_max = QUESTION_BYTES_MAX

    def __init__(
        self,
        service: BookieService,
        connection: Connection,
        room: ReadAdmission,
        door: ConnectionAuthorizer | None = None,
        delaying: ConnectionThrottle | None = None,
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
        self._reading_bytes = 0
        """Of answers that are being read, as much as they may be."""
        self._is_seen = False
        """Whether it was seen to take what it gets."""
        self._starting = 0
        """Questions that have begun in this pass of the loop, until it is seen to take what it
        gets: their answers will be due."""
        self._put_off: dict[int, _PutOff] = {}
        """Reads that have not begun, as nothing is to be read for the client; by their number."""
        self._waiting: dict[asyncio.Future[bool], None] = {}
        """Reads that have begun, and wait for their turn."""

    @property
    def is_done(self) -> bool:
        """Whether everything that was asked is answered."""
        return not self._open and not self._put_off

    def took(self, frame: Frame) -> None:
        """Begin to answer. Raises `BadMessage`."""
        number, request = frame.number, bytes(frame.body)
        if frame.kind == FrameKind.CANCEL:
            if (task := self._open.get(number)) is not None:
                task.cancel()
            elif self._put_off.pop(number, None) is not None:
                self._room.left += 1
            return
        if number <= self._last:
            raise BadMessage("Frame", f"question {number} came after {self._last}")
        self._last = number
        if frame.kind == FrameKind.INFO:
            check_info_request(request)
            self._connection.send(FrameKind.ANSWER, number, info_reply(self._service.info, request))
        elif refusal := self._refusal(frame.kind, request):
            self._connection.send(FrameKind.ANSWER, number, *refusal)
        elif frame.kind == FrameKind.READ and (
            self._put_off or self._starting or not self._may_read()
        ):
            self._put_off_read(number, read_query(request), request)
        elif (answer := self._answer_of(frame.kind, request)) is None:
            self._connection.send(FrameKind.NOT_KNOWN, number)
        else:
            self._room.left -= 1
            self._begin(number, answer)

    def blocked(self) -> None:
        self._connection.pause()

    def unblocked(self) -> None:
        if not self._put_off and not self._connection.is_blocked:
            self._connection.resume()

    def eased(self) -> None:
        """The client has taken something, or may have."""
        if self._waits:
            self._queue()
        self._room.eased()

    def look(self, now: float) -> bool:
        """Let nobody wait for too long without an answer. Return whether there is more to do."""
        for number, read in tuple(islice(self._put_off.items(), _LATE_MAX)):
            if now - read.since < TURN_S_MAX:
                return False
            del self._put_off[number]
            self._room.left += 1
            self._connection.send(
                FrameKind.ANSWER, number, *read_reply(ReadAnswer(_LATER), read.request)
            )
            self._go_on()
        return bool(self._put_off)

    def serve_one(self) -> None:
        """Let the read go on that has waited for longest, if the client still may read."""
        if self._waits and self._may_read():
            if self._waiting:
                future = next(iter(self._waiting))
                del self._waiting[future]
                _resolve(future, True)
            else:
                number, read = next(iter(self._put_off.items()))
                del self._put_off[number]
                self._begin(number, self._read(read.query, read.request, is_its_turn=True))
        self._room.leave(self)
        self._go_on()

    @property
    def _waits(self) -> bool:
        return bool(self._waiting or self._put_off)

    def _go_on(self) -> None:
        if self._waits:
            self._queue()
        else:
            self._room.leave(self)
        self.unblocked()

    def _queue(self) -> None:
        """Take a place among those who wait; none, if something has to be taken first."""
        may_read = self._may_read()
        if may_read or not self._due_bytes:
            self._room.wait(self, may_read=may_read)

    def _put_off_read(self, number: int, query: ReadQuery, request: bytes) -> None:
        """It costs little until it is its turn; and no more is read from who has one."""
        self._room.left -= 1
        now = asyncio.get_running_loop().time()
        self._put_off[number] = _PutOff(query, request, now)
        self._connection.pause()
        self._queue()

    def _begin(self, number: int, answer: Coroutine[Any, Any, Reply]) -> None:
        task = self._open[number] = asyncio.ensure_future(answer)
        task.add_done_callback(partial(self._answered, number))
        if not self._is_seen:
            self._starting += 1
            asyncio.get_running_loop().call_soon(self._started)

    def _started(self) -> None:
        self._starting -= 1

    def shut(self) -> None:
        """Take nothing more; what was asked is still answered."""

    def close(self) -> None:
        for task in self._open.values():
            task.cancel()
        self._room.left += len(self._put_off)
        self._put_off.clear()
        self._room.leave(self)
        self._room.eased()

    def _answer_of(self, kind: int, request: bytes) -> Coroutine[Any, Any, Reply] | None:
        match kind:
            case FrameKind.READ:
                return self._read(read_query(request), request)
            case FrameKind.READ_LAC:
                return self._read_lac(lac_query(request), request)
            case FrameKind.READ_HELD:
                return self._read_held(held_query(request), request)
            case _:
                return None

    def _refusal(self, kind: int, request: bytes) -> tuple[Buffer, ...]:
        """Return the answer to a question that finds no room; empty if there is room. It is given
        at once: what is refused must cost less than what is not."""
        room = self._room
        is_crowded = len(self._open) + len(self._put_off) >= room.questions_max
        match kind:
            case FrameKind.READ if is_crowded:
                read_query(request)
                return read_reply(ReadAnswer(_LATER), request)
            case FrameKind.READ_LAC if is_crowded:
                lac_query(request)
                return (lac_reply(LacAnswer(_LATER), request),)
            case FrameKind.READ_HELD if is_crowded or self._is_due_much():
                held_query(request)
                return (held_reply(HeldAnswer(_LATER), request),)
            case _:
                return ()

    async def _read(self, query: ReadQuery, request: bytes, *, is_its_turn: bool = False) -> Reply:
        needed = _action(fence=query.fence or query.repairs)
        status = await self._why_not(query.ledger_id, needed, fence=query.fence)
        answer = ReadAnswer(status)
        counts = self._counts(query)
        if status is Status.OK and counts is not None and not await counts.ask(query.ledger_id):
            answer = ReadAnswer(_LATER)
        elif status is Status.OK:
            answer = await self._read_in_turn(query, is_its_turn=is_its_turn)
            if counts is not None:
                counts.answered(query.ledger_id, len(answer.frames))
            if query.wait_ms > 0:  # it may have been revoked meanwhile
                status = await self._why_not(query.ledger_id, Permission.READ, fence=False)
                answer = answer if status is Status.OK else ReadAnswer(status)
        return self._made(*read_reply(answer, request))

    async def _read_in_turn(self, query: ReadQuery, *, is_its_turn: bool) -> ReadAnswer:
        """A fence waits for nothing: whoever takes over is not held up by readers."""
        if query.fence:
            later = self._is_due_much()
            return ReadAnswer(_LATER) if later else await self._service.read(query)
        turn = _Turn(self, min(query.bytes_max, READ_BYTES_MAX))
        try:
            if is_its_turn:
                turn.begin()
            elif not await turn.take():
                return ReadAnswer(_LATER)
            return await self._service.read(query, turn)
        finally:
            turn.give_back()

    @property
    def _due_bytes(self) -> int:
        return self._connection.unsent_bytes + self._made_bytes + self._reading_bytes

    def _look_if_it_takes(self) -> None:
        connection = self._connection
        if not self._is_seen and connection.sent_bytes - connection.unsent_bytes >= SEEN_BYTES:
            self._is_seen = True
            connection.keep_unsent(0)

    def _may_read(self) -> bool:
        connection = self._connection
        taken_bytes = connection.sent_bytes - connection.unsent_bytes
        return may_read(self._due_bytes, taken_bytes, self._room.due_bytes)

    async def wait_for_turn(self) -> bool:
        """Return whether it is a read's turn; or it has waited for too long."""
        if not self._waits and self._may_read() and self._room.begins():
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting[future] = None
        self._queue()
        timer = loop.call_later(TURN_S_MAX, _resolve, future, False)
        try:
            return await future
        finally:
            timer.cancel()
            if future in self._waiting:
                del self._waiting[future]
                self._go_on()

    def is_read(self, size_bytes: int) -> None:
        """Count what is being read; less again, when it was."""
        self._reading_bytes += size_bytes
        self._room.reading_bytes += size_bytes

    def _counts(self, query: ReadQuery) -> ConnectionThrottle | None:
        """Return what delays *query*, if anything may. What a client that repairs calls repair or
        recovery is not delayed; a flag of any other client changes nothing."""
        delaying = self._delaying
        if delaying is None or not delaying.treasury.is_on:
            return None
        return None if (query.fence or query.repairs) and delaying.is_exempt else delaying

    async def _read_lac(self, query: LacQuery, request: bytes) -> Reply:
        status = await self._why_not(query.ledger_id, _action(fence=query.fence), fence=query.fence)
        answer = LacAnswer(status)
        if status is Status.OK:
            answer = await self._service.read_lac(query)
        return self._made(lac_reply(answer, request))

    async def _read_held(self, query: HeldQuery, request: bytes) -> Reply:
        status = await self._why_not(query.ledger_id, Permission.LIST, fence=False)
        answer = HeldAnswer(status)
        if status is Status.OK:
            answer = await self._service.read_held(query)
            if self._is_due_much():
                answer = HeldAnswer(Status.TOO_MANY_REQUESTS)
        return self._made(held_reply(answer, request))

    def _made(self, *body: Buffer) -> Reply:
        self._due(sum(map(len, body)))
        return FrameKind.ANSWER, body

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

    async def _why_not(self, ledger_id: int, action: Permission, *, fence: bool) -> Status:
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
            self._look_if_it_takes()
        self.eased()
        self._connection.settled()


class _PutOff(NamedTuple):
    query: ReadQuery
    request: bytes
    since: float


class _Turn:
    """Of one read; counts it as due while it is read."""

    __slots__ = ("_client", "_counted_bytes", "_size_bytes")

    def __init__(self, client: ReadConnection, size_bytes: int) -> None:
        self._client, self._size_bytes = client, size_bytes
        self._counted_bytes = 0

    async def take(self) -> bool:
        """Return False if it is to be asked again later."""
        if not await self._client.wait_for_turn():
            return False
        self.begin()
        return True

    def begin(self) -> None:
        self._counted_bytes = self._size_bytes
        self._client.is_read(self._counted_bytes)

    def give_back(self) -> None:
        """Idempotent."""
        self._client.is_read(-self._counted_bytes)
        self._counted_bytes = 0


def _resolve(future: "asyncio.Future[bool]", value: bool) -> None:  # noqa: FBT001 - of a future
    if not future.done():
        future.set_result(value)


def _action(*, fence: bool) -> Permission:
    return Permission.RECOVER if fence else Permission.READ
