"""Machines that do one thing after the other: `Procedure`.

What creates, seals, renames or deletes a log, edits its manifest or changes a consumer asks for one
*action* at a time, of the metadata store or of a ledger, and goes on with its answer. Outside it
is a machine like any other: `step(event, now=...)`, `deadline()`. Inside, its decisions are
*steps*: a generator that yields each action and gets the answer, or the error, where it yielded.
So a retry is a loop, what an error means is an `except`, one procedure is part of another one
by `yield from`, and all of it reads from top to bottom.

Steps know no clock, no randomness and no I/O. The process that runs them may be killed, stopped or
left without an answer between any two actions.

Invariants (asserted):
    at most one action is under way, and none while it waits
    once it is over nothing more happens
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from dlog.manifest import Sealed
from dlog.receipts import Receipt
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.metastore.ops import Op, Versioned
from ledger.protocol.shared import TimePassed

R = TypeVar("R")
"""What a procedure comes to."""


# Events.


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Answered:
    """The action was done; *value* is what it says that its answer is."""

    value: object


@dataclass(frozen=True, slots=True)
class ActionFailed:
    """*error* says why, and whether the outcome is unknown."""

    error: LogError


ProcedureEvent = Started | Answered | ActionFailed | TimePassed


# Actions: the effects. Each is answered by `Answered` or `ActionFailed`.


@dataclass(frozen=True, slots=True)
class Sync:
    """Wait until reads of *path* see every write that was finished by now. Answer: None."""

    path: str


@dataclass(frozen=True, slots=True)
class Get:
    """Answer: `Versioned`, or `NoSuchNode`."""

    path: str


@dataclass(frozen=True, slots=True)
class Exists:
    """Answer: the node's version; None: there is none."""

    path: str


@dataclass(frozen=True, slots=True)
class Children:
    """Answer: a list of names, sorted, or `NoSuchNode`."""

    path: str


@dataclass(frozen=True, slots=True)
class Create:
    """Create an empty node, and its parents if they are missing. Answer: None, or `NodeExists`."""

    path: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node whatever its version is. Answer: None, or `NoSuchNode`."""

    path: str


@dataclass(frozen=True, slots=True)
class Transact:
    """Do all of *ops* or none. Answer: None, or the error of the first one that cannot be done."""

    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class AwaitChange:
    """Wait until the node that is watched may have changed since it was looked at last.

    Answer: whether it may; False once it has been watched for *within_s*."""

    within_s: float


@dataclass(frozen=True, slots=True)
class Fence:
    """Recover a ledger, so that nobody adds to it any more. Answer: None, or `NoSuchLedger`."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class RecoverSegment:
    """Fence, recover and close the ledger, then say its end. Answer: `Sealed`, or `NoSuchLedger`.

    *last_txid* is the last txid before this segment."""

    ledger_id: LedgerId
    last_txid: int


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Answer: None, or `NoSuchLedger`."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """Take the log over within *epoch*. Answer: `Manifest`, with the new segment as its last one;
    or `EpochChanged`, and what else a takeover gives up with."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AppendUnit:
    """Append the records that travel to the open segment, as one entry. Answer: `UnitAppended`,
    or what an append fails with."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class UnitAppended:
    """Offsets from *first_offset* to before *end_offset*; *last_txid* of the log up to there."""

    first_offset: int
    end_offset: int
    last_txid: int


@dataclass(frozen=True, slots=True)
class StageRun:
    """Write those payloads of what travels to a ledger of their own, and close it.

    Answer: `Staged`."""

    receipt: Receipt
    payloads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseSegments:
    """Confirm nothing more, and seal what is open, if that can be done. Answer: None, always."""


Action = (
    Sync
    | Get
    | Exists
    | Children
    | Create
    | Delete
    | Transact
    | AwaitChange
    | Fence
    | RecoverSegment
    | DeleteLedger
    | OpenSegment
    | AppendUnit
    | StageRun
    | CloseSegments
)


@dataclass(frozen=True, slots=True)
class Wait:
    """No action: what steps yield to go on so much later."""

    seconds: float


Steps = Generator[Action | Wait, object, R]


class Procedure(Generic[R]):
    """Runs *steps* as a machine."""

    def __init__(self, steps: Steps[R]) -> None:
        self._steps = steps
        self._wake_at: float | None = None
        self._over = False
        self._result: list[R] = []
        self._error: LogError | None = None

    def step(self, event: ProcedureEvent, *, now: float) -> list[Action]:
        """Apply *event*; return the next action, or nothing while it waits and once it is over.

        What steps raise that is no `LogError` is raised here: it is a broken invariant, or what a
        caller's function raised."""
        assert not self._over, "the procedure is over"
        try:
            wanted = self._resume(event, now)
        except StopIteration as end:
            self._over = True
            self._result.append(end.value)
            return []
        except LogError as error:
            self._over = True
            self._error = error
            return []
        if wanted is None:
            return []
        if isinstance(wanted, Wait):
            self._wake_at = now + wanted.seconds
            return []
        return [wanted]

    def deadline(self) -> float | None:
        """Return until when it waits; None: it does not."""
        return self._wake_at

    @property
    def result(self) -> R:
        """What it came to. Requires that it is over; raises the `LogError` that it ended with."""
        assert self._over, "the procedure is not over"
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _resume(self, event: ProcedureEvent, now: float) -> Action | Wait | None:
        """Let the steps go on; return what they yield, None if it is not time yet."""
        if isinstance(event, TimePassed):
            if self._wake_at is None or now < self._wake_at:
                return None
            self._wake_at = None
            return self._steps.send(None)
        assert self._wake_at is None, "nothing is under way while it waits"
        match event:
            case Started():
                return next(self._steps)
            case Answered():
                return self._steps.send(event.value)
            case ActionFailed():
                return self._steps.throw(event.error)
            case _:
                assert_never(event)


# Each action as a step, with the type of its answer.


def sync(path: str) -> Steps[None]:
    yield Sync(path)


def get(path: str) -> Steps[Versioned]:
    """Raises `NoSuchNode`."""
    found = yield Get(path)
    assert isinstance(found, Versioned)
    return found


def exists(path: str) -> Steps[int | None]:
    version = yield Exists(path)
    assert version is None or isinstance(version, int)
    return version


def children(path: str) -> Steps[list[str]]:
    """Raises `NoSuchNode`."""
    names = yield Children(path)
    assert isinstance(names, list)
    return names


def create(path: str) -> Steps[None]:
    """Raises `NodeExists`."""
    yield Create(path)


def delete(path: str) -> Steps[None]:
    """Raises `NoSuchNode`."""
    yield Delete(path)


def transact(ops: Iterable[Op]) -> Steps[None]:
    """Raises the error of the first one that cannot be done."""
    yield Transact(tuple(ops))


def await_change(*, within_s: float) -> Steps[bool]:
    changed = yield AwaitChange(within_s)
    assert isinstance(changed, bool)
    return changed


def fence(ledger_id: LedgerId) -> Steps[None]:
    """Raises `NoSuchLedger`, and what recovery raises."""
    yield Fence(ledger_id)


def recover_segment(ledger_id: LedgerId, *, last_txid: int) -> Steps[Sealed]:
    """Raises `NoSuchLedger`, `DamagedLog`, and what recovery raises."""
    sealed = yield RecoverSegment(ledger_id, last_txid)
    assert isinstance(sealed, Sealed)
    return sealed


def delete_ledger(ledger_id: LedgerId) -> Steps[None]:
    """Raises `NoSuchLedger`."""
    yield DeleteLedger(ledger_id)


def wait(seconds: float) -> Steps[None]:
    yield Wait(seconds)
