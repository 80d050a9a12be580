"""Whether a state machine does the same with the same commands, on each replica and each time."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from io import BytesIO
from typing import Final, Generic, TypeVar

from dlog.errors import InvalidResult
from dlog.headers import Payload
from dlog.protocol.client_table import encode_result
from dlog.protocol.command import Command
from dlog.protocol.replicated_state import StateMachine, has_snapshots
from dlog.testing.cluster import InvalidTestCluster

M = TypeVar("M", bound=StateMachine)
State = Callable[[M], object]

FIRST_MS: Final = 1_700_000_000_000
"""Timestamp of the first command. Each command comes a second after the one before."""
SHOWN_MAX: Final = 200
"""Characters of each state and each result in a message."""


class NotDeterministic(AssertionError):
    """Two state machines differ that applied the same commands."""

    def __init__(self, index: int, command: bytes, reason: str) -> None:
        """*index*: of the first command after which they differ; -1 before any."""
        place = f"after commands[{index}], {shown(command)}" if index >= 0 else "before any command"
        super().__init__(f"the state machine is not deterministic: {place}, {reason}")
        self.index, self.command, self.reason = index, command, reason


def check_deterministic(
    machine: Callable[[], M],
    commands: Iterable[Payload | Command],
    *,
    state: State[M] | None = None,
) -> str:
    """Apply *commands* to several state machines, and compare results and states after each.

    *machine* creates a new one. Two of them apply all commands. A third is replaced after each
    command by one that is restored from its snapshot. What `capture` returns is called after the
    next command, and must not write the effect of that. States are compared by their snapshots,
    else by `digest`; or by what *state* returns, if equal states may have different snapshots.

    Returns a fingerprint of all results and states, for a test to compare with a constant. What is
    the same within a process shows only there: the order of sets of text (it depends on
    PYTHONHASHSEED), the environment, floats on another machine, another version of the program. A
    clock that is rounded to seconds may pass unnoticed, too.

    Raises `NotDeterministic`, which names the first command after which they differ,
    `InvalidTestCluster` if there is nothing to compare, and what the machine raises."""
    check = _Check(machine, state)
    for index, command in enumerate(commands):
        check.apply(index, command)
    return check.fingerprint.hexdigest()


def state_of(machine: M, state: State[M] | None) -> object:
    """Return what states are compared by. Raises `InvalidTestCluster`."""
    if state is not None:
        return state(machine)
    comparable = snapshot_of(machine) if has_snapshots(machine) else machine.digest()
    if comparable is None:
        name = type(machine).__name__
        raise InvalidTestCluster(f"{name} defines neither snapshot and restore nor digest")
    return comparable


def snapshot_of(machine: StateMachine) -> bytes:
    out = BytesIO()
    machine.capture()(out)
    return out.getvalue()


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def difference(first: object, second: object) -> str:
    """Return both for a message, long ones from shortly before their first difference."""
    texts = repr(first), repr(second)
    if max(map(len, texts)) <= SHOWN_MAX:
        return " and ".join(texts)
    pairs = enumerate(zip(*texts, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(map(len, texts)))
    begin = max(0, at - SHOWN_MAX // 4)
    return f"{' and '.join(f'...{text[begin : begin + SHOWN_MAX]}...' for text in texts)}"


class _Check(Generic[M]):
    def __init__(self, machine: Callable[[], M], state: State[M] | None) -> None:
        self.fingerprint = sha256()
        self._machine, self._state = machine, state
        self._first, self._second = machine(), machine()
        self._restored: M | None = None
        self._index, self._payload = -1, b""
        self._compare_states("two new state machines have the states", self._first, self._second)
        self._restore(self._first)

    def apply(self, index: int, given: Payload | Command) -> None:
        if not isinstance(given, Command):
            given = Command(bytes(given), index, FIRST_MS + 1000 * index, self._first.version, None)
        self._index, self._payload = index, given.payload
        first, second, restored = self._first, self._second, self._restored
        snapshot = write_state = None
        if has_snapshots(first):
            snapshot, write_state = snapshot_of(first), first.capture()
        result = self._apply(first, given)
        same = "two state machines that applied the same commands"
        self._compare(f"{same} returned", result, self._apply(second, given))
        self._compare_states(f"{same} have the states", first, second)
        if restored is not None:
            same = (
                "one that applied all commands, and one restored from a snapshot before the last,"
            )
            self._compare(f"{same} returned", result, self._apply(restored, given))
            self._compare_states(f"{same} have the states", first, restored)
            self._restore(restored)
        if write_state is not None:
            written = BytesIO()
            write_state(written)
            late = (
                "its effect is in what was captured before it, so capture must copy more; written "
                "before and after this command, that is"
            )
            self._compare(late, snapshot, written.getvalue())
        self.fingerprint.update(repr((result, state_of(first, self._state))).encode())

    def _apply(self, machine: M, command: Command) -> object:
        try:
            result = machine.apply(command)
        except Exception as error:
            error.add_note(f"raised by apply at commands[{self._index}], {shown(self._payload)}")
            raise
        try:
            return encode_result(result)
        except InvalidResult:
            return type(result).__name__  # only results of requests are kept

    def _restore(self, machine: M) -> None:
        """Replace the one that is restored each time by one with the state of *machine*."""
        if has_snapshots(machine):
            self._restored = self._machine()
            self._restored.restore(BytesIO(snapshot_of(machine)))
            lost = "a state machine, and one restored from its snapshot, have the states"
            self._compare_states(lost, machine, self._restored)

    def _compare_states(self, what: str, first: M, second: M) -> None:
        self._compare(what, state_of(first, self._state), state_of(second, self._state))

    def _compare(self, what: str, first: object, second: object) -> None:
        if first != second:
            reason = f"{what} {difference(first, second)}"
            raise NotDeterministic(self._index, self._payload, reason)
