"""The term of a replica that leads: the commands that it appended and has not applied yet, in the
order of the log, and the callers that wait for what becomes of them.

Invariant: a caller gets the outcome of a confirmed append, of the log, or none in its time.
"""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dlog.aio.log import Log
from dlog.aio.standby import Standby
from dlog.errors import CommandOutcomeUnknown, LogClosed, LostOwnership, NotLeader
from dlog.protocol.accumulator import PENDING_BYTES_ROOM
from dlog.protocol.command import (
    PROPOSER_BYTES,
    CommandEnvelope,
    LeaderMark,
    Origin,
    RequestId,
    encode_command,
    new_tuple,
)
from dlog.protocol.pending_batch import Outcome
from dlog.protocol.proposals import Proposals
from dlog.protocol.replicated_state import AppliedCommand, StoredCommand, StoredRecord
from ledger.errors import CallerError, LogError, TooManyPending

APPLY_RECORDS_MAX: Final = 256
"""Commands that are applied before the event loop has a turn again."""
COMMAND_CHARGE: Final = 1000
"""What each of them needs beside its bytes, about."""
QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of commands that are appended and not applied yet, while `apply` is slower than the log."""

AppendedRecord = tuple[Outcome, int, StoredRecord, float, int]
"""Its outcome, its slot there, what was appended, when by the clock of the event loop, and what it
takes in memory. A plain tuple is made in a tenth of the time."""


class CommandOutcome(NamedTuple):
    result: object = None
    error: LogError | None = None


Waiter = asyncio.Future["CommandOutcome | AppliedCommand"]


@dataclass(slots=True)
class Term:
    """While a replica leads, or is about to."""

    standby: Standby
    log: Log
    queue: deque[AppendedRecord] = field(default_factory=deque)
    """In the order of the log."""
    queue_bytes: int = 0
    """What it takes in memory, about."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something was appended to an empty queue, its head has an outcome, or this ends."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the term is to end."""
    serves: bool = False
    """Since its mark was applied, until it ends."""
    is_sure_until_s: float = -math.inf
    """When it is looked at again whether this leads, by the clock of the event loop."""
    has_served: bool = False

    def stop_serving(self) -> None:
        self.serves, self.is_sure_until_s = False, -math.inf

    def append(self, record: StoredRecord, value: bytes, now_s: float) -> None:
        """Append *record*, encoded as *value*. Raises what the log's writer raises."""
        writer, queue = self.log.writer, self.queue
        append = writer.append if queue or not writer.is_idle else writer.append_lone
        outcome, slot = append(value, len(value), None)
        if not queue:
            self.news.set()
        size_bytes = len(value) + COMMAND_CHARGE
        self.queue_bytes += size_bytes
        queue.append((outcome, slot, record, now_s, size_bytes))

    def take_confirmed(
        self, refuse: Callable[[Origin, LogError], object]
    ) -> tuple[list[StoredCommand], int, float]:
        """Take what has an outcome off the queue, as far as that is known now. Return what is
        confirmed, its bytes, and when the last of it was appended.

        *refuse* is called with what is certainly not in the log. Raises what refused the mark of
        the leader."""
        queue, confirmed = self.queue, list[StoredCommand]()
        at_s, size_bytes = -math.inf, 0
        while queue and queue[0][0].done and len(confirmed) < APPLY_RECORDS_MAX:
            outcome, slot, record, appended_s, charge = queue.popleft()
            self.queue_bytes -= charge
            if (place := outcome.place) is not None:
                at_s = appended_s
                size_bytes += charge - COMMAND_CHARGE
                # The time of its batch, as followers read it: a record has none of its own.
                confirmed.append((place.first_offset + slot, outcome.base_timestamp_ms, record))
                continue
            error = outcome.tell(slot)
            assert error is not None, "what is done has a place or an error"
            if isinstance(record, CommandEnvelope):
                if not error.outcome_unknown:
                    refuse(record.origin, error)
            elif isinstance(record, LeaderMark) and _is_refusal(error):
                raise error  # the settings of the log leave no room for it
        return confirmed, size_bytes, at_s


class Deadlines:
    """Ends waiters that wait for too long, with one timer for all that wait equally long.

    A timer for each would cost as much as its command."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, error_of: Callable[[float], Exception]
    ) -> None:
        """*error_of* returns what a waiter raises that has waited for so many seconds."""
        self._loop, self._error_of = loop, error_of
        self._waiters: dict[float, deque[tuple[float, Waiter]]] = {}
        """By how long they wait, in the order of their deadlines. Times to wait that are nearly
        the same count as one: what is left of a time differs from command to command."""
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def watch(self, waiter: Waiter, now: float, wait_s: float) -> None:
        """Let *waiter* raise its error after *wait_s*, or up to a sixteenth of that later."""
        waiters = self._waiters.get(wait_s)
        if waiters is None:
            mantissa, exponent = math.frexp(wait_s)
            wait_s = math.ldexp(math.ceil(mantissa * 32), exponent - 5)
            waiters = self._waiters.get(wait_s)
        if waiters is None:
            waiters = self._waiters[wait_s] = deque()
            self._timers[wait_s] = self._loop.call_at(now + wait_s, self._expire, wait_s)
        while waiters and waiters[0][1].done():  # mostly in this order
            waiters.popleft()
        waiters.append((now + wait_s, waiter))

    def _expire(self, wait_s: float) -> None:
        waiters, now = self._waiters[wait_s], self._loop.time()
        while waiters and (waiters[0][1].done() or waiters[0][0] <= now):
            _, waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_exception(self._error_of(wait_s))
        if waiters:
            self._timers[wait_s] = self._loop.call_at(waiters[0][0], self._expire, wait_s)
        else:
            del self._waiters[wait_s], self._timers[wait_s]

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()


def resolve(waiters: Iterable[Waiter], outcome: CommandOutcome | AppliedCommand) -> None:
    """Give *outcome* to those that still wait."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(outcome)


def _is_refusal(error: LogError) -> bool:
    return isinstance(error, CallerError) and not isinstance(error, LogClosed)


class PendingCommands:
    """Commands that a replica appended, in any term, and the callers that wait for what becomes of
    them: it is confirmed, refused, found in the log, or withdrawn by the mark of a later epoch."""

    def __init__(self, log: str) -> None:
        self._log, self._loop = log, asyncio.get_running_loop()
        self._proposals: Proposals[list[Waiter]] = Proposals(secrets.token_bytes(PROPOSER_BYTES))
        self.deadlines = Deadlines(self._loop, self.outcome_unknown)

    @property
    def proposer(self) -> bytes:
        return self._proposals.proposer

    def outcome_unknown(self, wait_s: float) -> CommandOutcomeUnknown:
        return CommandOutcomeUnknown(self._log, f"its outcome was not known after {wait_s:g} s")

    def join(self, request: RequestId) -> Waiter | None:
        """Return what waits for *request* too, if it is pending already."""
        waiters = self._proposals.waiter_of(request)
        if waiters is None:
            return None
        waiter: Waiter = self._loop.create_future()
        waiters.append(waiter)
        return waiter

    def append(
        self, term: Term, payload: bytes, request: RequestId | None, version: int, now_s: float
    ) -> Waiter | None:
        """Append a command of *version*, unless its *request* is pending already; return what waits
        for its outcome. None: there is no room for it. Raises `TooManyPending`."""
        waiter: Waiter = self._loop.create_future()
        if request is not None and (waiters := self._proposals.waiter_of(request)) is not None:
            waiters.append(waiter)
            return waiter
        queued = term.queue_bytes + len(payload) + COMMAND_CHARGE
        if queued >= PENDING_BYTES_ROOM:  # else the writer has room: it counts no more than that
            if not term.log.writer.has_room:
                return None
            if queued > QUEUE_BYTES_MAX:
                raise TooManyPending(queued, QUEUE_BYTES_MAX)
        origin = self._proposals.propose(term.log.epoch, request, [waiter])
        envelope = new_tuple(CommandEnvelope, (payload, version, origin, request))
        try:
            term.append(envelope, encode_command(envelope), now_s)
        except BaseException:
            self._proposals.leave(origin)
            raise
        return waiter

    def refuse(self, origin: Origin, error: LogError) -> None:
        """Report that the command is certainly not in the log."""
        waiters = self._proposals.leave(origin)
        if waiters is not None:
            lost = isinstance(error, LostOwnership | LogClosed) or error.retryable
            error = NotLeader(self._log, "", "", 0) if lost else error
            resolve(waiters, CommandOutcome(error=error))

    def settle(self, command: AppliedCommand) -> None:
        if (waiters := self._proposals.leave(command.origin)) is not None:
            resolve(waiters, command)

    def withdraw_before(self, mark: LeaderMark) -> None:
        """Report that what earlier epochs appended and is not below *mark* is not in the log."""
        for waiters in self._proposals.withdraw_before(mark.epoch):
            error = NotLeader(self._log, mark.name, mark.address, mark.epoch)
            resolve(waiters, CommandOutcome(error=error))

    def give_up(self, reason: str) -> None:
        """Let no command wait any more: the outcome of those that do is not learned here."""
        for waiters in self._proposals.give_up():
            resolve(waiters, CommandOutcome(error=CommandOutcomeUnknown(self._log, reason)))
