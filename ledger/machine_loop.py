"""Runs one protocol machine on the event loop: events in, effects out, one timer.

The same for every machine: events are stepped one by one in the order they came, also those
that executing an effect brings up; `TimePassed` is stepped at the machine's deadline. What comes
with each entry is no event but a method of the machine (`MachineLoop.call`), in the same order. It
decides nothing. What wants one thing after the other is no machine but a procedure
(`ledger.procedures`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar, assert_never

from ledger.errors import BadVersion, MetadataUnavailable, NoSuchLedger
from ledger.ids import LedgerId
from ledger.manager import LedgerStore
from ledger.protocol.common import (
    MetadataEffect,
    MetadataEvent,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    WriteMetadata,
)

E = TypeVar("E")
"""Event of a machine."""
F = TypeVar("F")
"""Effect of a machine."""
E_contra = TypeVar("E_contra", contravariant=True)
Decide = Callable[[float], Sequence[F]]
"""A method of the machine: the time to what is to be done, in order."""


class Machine(Protocol[E_contra, F]):
    """What all machines have in common: those of `ledger.protocol` and of `dlog.protocol`."""

    def step(self, event: E_contra, *, now: float) -> list[F]:
        """Apply *event*, at *now* in seconds of any clock; return what to do, in order."""

    def deadline(self) -> float | None:
        """Return when the machine wants its `TimePassed`, by the same clock; None: never."""


class MachineLoop(Generic[E, F]):
    """One machine, its timer, and the tasks that its effects started."""

    def __init__(
        self,
        machine: Machine[E, F],
        execute: Callable[[F], None],
        *,
        time_passed: E,
        broken: Callable[[BaseException], None],
    ) -> None:
        """*broken* gets what the machine, an effect or spawned work raised: it is over."""
        self._machine = machine
        self._execute = execute
        self._broken = broken
        self._time_passed = time_passed
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Decide[F]] = deque()
        """What came while a step was carried out."""
        self.is_stepping = False
        """Whether what comes now waits for the step that is being carried out."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        """The deadline that `_timer` is for."""
        self._tasks: set[asyncio.Task[E]] = set()
        self._stopped = False

    def post(self, event: E) -> None:
        """Step the machine with *event*, and with all that follows from it at once."""
        self.call(lambda now: self._machine.step(event, now=now))

    def call(self, decide: Decide[F], *, arms: bool = True) -> None:
        """As `post`, for a method of the machine instead of an event. *arms*: whether that may move
        the machine's deadline."""
        if self._stopped:
            return
        if self.is_stepping:
            self._calls.append(decide)
            return
        self.is_stepping = True
        try:
            for effect in decide(self._loop.time()):
                self._execute(effect)
            while self._calls:
                arms = True
                for effect in self._calls.popleft()(self._loop.time()):
                    self._execute(effect)
        except Exception as error:  # noqa: BLE001 - a broken invariant must not leave callers waiting
            self._break(error)
        finally:
            self.is_stepping = False
        if arms:
            self._arm()

    def spawn(self, work: Coroutine[Any, Any, E]) -> asyncio.Task[E]:
        """Run *work* beside; post the event it returns, unless it is cancelled."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[E]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.post(task.result())
        else:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if not self._stopped:
            self.stop()
            self._broken(error)

    def stop(self) -> None:
        """Take no more events, forget the timer, cancel what is under way."""
        self._stopped = True
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()

    def _arm(self) -> None:
        deadline = None if self._stopped else self._machine.deadline()
        if self._timer is not None:
            if deadline == self._armed_for:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._armed_for = deadline
            self._timer = self._loop.call_at(max(deadline, self._loop.time()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.post(self._time_passed)


async def carry_out(
    effect: MetadataEffect, ledgers: LedgerStore, ledger_id: LedgerId
) -> MetadataEvent:
    """Do what *effect* says with the ledger's metadata; return the result as an event."""
    match effect:
        case ReadMetadata():
            return await read_metadata(ledgers, ledger_id)
        case WriteMetadata(metadata, version):
            try:
                return MetadataWritten(await ledgers.write(ledger_id, metadata, version))
            except (BadVersion, NoSuchLedger):  # what is stored says more
                return await read_metadata(ledgers, ledger_id)
            except MetadataUnavailable:
                return MetadataFailed()
        case _:
            assert_never(effect)


async def read_metadata(ledgers: LedgerStore, ledger_id: LedgerId) -> MetadataRead | MetadataFailed:
    """Read what is stored; return it as an event."""
    try:
        return MetadataRead(*await ledgers.read(ledger_id))
    except NoSuchLedger:
        return MetadataRead(None, -1)
    except MetadataUnavailable:
        return MetadataFailed()
