"""A namespace in memory where a procedure is stopped at any action, and others come in between.

No event loop, no clock, no lot: each action is done at once on the tree of the in-memory store, and
on ledgers that only know whose they are and whether they are closed. `Namespace` judges each change
when it is made, and with `settle` what is left at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, Generic, Literal, TypeVar

from dlog.manifest import Manifest, Sealed
from dlog.names import LOGS_PATH, name_of, path_of
from dlog.position import NO_TXID
from dlog.protocol.actions import (
    Children,
    Create,
    Delete,
    DeleteLedger,
    Exists,
    Fence,
    Get,
    RecoverSegment,
    Sync,
    Transact,
)
from dlog.protocol.consumer_steps import AwaitChange, ConsumerState, decode
from dlog.protocol.lifecycle import finish_drop
from dlog.protocol.manifest_steps import RENAMED_PATH, ManifestSteps, delete_listed
from ledger.errors import LogError, MetadataUnavailable, NoSuchLedger, NoSuchNode
from ledger.ids import EntryId, LedgerId
from ledger.metastore.tree import Tree
from ledger.protocol.procedure import Action, Steps, Wait
from tests.procedures import Next, Raised, Returned, Script

R = TypeVar("R")
Fate = Literal["goes on", "killed", "lost reply", "lost request"]

ACTIONS_MAX: Final = 1000


manifest_of: Final = lru_cache(maxsize=10_000)(partial(Manifest.decode, path="a manifest"))
state_of: Final = lru_cache(maxsize=10_000)(partial(decode, path="a consumer"))
"""Most of what is looked at is what it was before."""


class ViolationError(AssertionError):
    """Something happened that must never happen."""


@dataclass(slots=True)
class Ledger:
    incarnation: str
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What a namespace holds at one time."""

    logs: dict[str, tuple[str, Manifest]]
    """Name and manifest, by incarnation."""
    consumers: dict[str, ConsumerState]


@dataclass(slots=True)
class Actor:
    """One process. It means the log that has the name *log* when it looks there first."""

    name: str
    log: str
    meant: str | None = None
    changed: list[str] = field(default_factory=list)
    """Incarnations of logs and consumers that it changed, but for logs that were being deleted."""


class Namespace:
    def __init__(self) -> None:
        self.tree = Tree()
        self.ledgers: dict[LedgerId, Ledger] = {}
        self._numbers = 0
        self._look = Look({}, {})
        self.names: dict[str, set[str]] = {}
        """Every name that each incarnation of a log ever had."""
        self.sealed: set[str] = set()
        self.gone: set[str] = set()
        """Incarnations of logs and consumers that were deleted."""
        self.states: list[ConsumerState] = []
        """Every state that a consumer ever had."""

    @property
    def look(self) -> Look:
        return self._look

    def token(self) -> str:
        return f"token-{self._next_number()}"

    def new_ledger(self, incarnation: str) -> LedgerId:
        ledger_id = LedgerId(self._next_number())
        self.ledgers[ledger_id] = Ledger(incarnation)
        return ledger_id

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # Doing things.

    def perform(self, action: Action[Any], by: Actor) -> object:
        """Do *action*; return its answer. Raises as the port does, `ViolationError`."""
        try:
            return self._perform(action, by)
        finally:
            if self.tree.take_changed():
                self._judge(by)

    def _perform(self, action: Action[Any], by: Actor) -> object:
        tree = self.tree
        match action:
            case Sync():
                pass
            case AwaitChange():
                return False
            case Get(path):
                found = tree.get(path)
                if path == path_of(by.log) and found.value and by.meant is None:
                    by.meant = manifest_of(found.value).incarnation
                return found
            case Exists(path):
                return tree.exists(path)
            case Children(path):
                return tree.children(path)
            case Create(path):
                tree.create(path)
            case Delete(path):
                tree.delete(path)
            case Transact(ops):
                tree.multi(ops, owner=by.name)
            case Fence(ledger_id):
                self._ledger(ledger_id, by).closed = True
            case RecoverSegment(ledger_id, last_txid):
                self._ledger(ledger_id, by).closed = True
                return end_of(ledger_id, last_txid)
            case DeleteLedger(ledger_id):
                self._delete_ledger(ledger_id, by)
            case _:
                raise AssertionError("units are interrupted in test_interrupted_units")
        return None

    def _ledger(self, ledger_id: LedgerId, by: Actor) -> Ledger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(ledger_id)
        self._check_meant(ledger.incarnation, by, f"ledger {ledger_id}")
        return ledger

    def _delete_ledger(self, ledger_id: LedgerId, by: Actor) -> None:
        ledger = self._ledger(ledger_id, by)
        if not ledger.closed:
            raise ViolationError(f"{by.name} deletes ledger {ledger_id}, which is not fenced")
        for name, manifest in self._look.logs.values():
            if any(segment.ledger_id == ledger_id for segment in manifest.segments):
                raise ViolationError(f"{by.name} deletes ledger {ledger_id} of {name}")
        del self.ledgers[ledger_id]

    def _check_meant(self, incarnation: str, by: Actor, what: str) -> None:
        """See that *by* touches the log that it means, or one that is being deleted."""
        found = self._look.logs.get(incarnation)
        if found is not None and not found[1].dropped and by.meant != incarnation:
            raise ViolationError(f"{by.name} means {by.meant}, and touches {what} of {incarnation}")

    # Judging.

    def _judge(self, by: Actor) -> None:
        before, self._look = self._look, self._looked()
        after = self._look
        for incarnation in {**before.logs, **after.logs}:
            self._judge_log(incarnation, before, after, by)
        for incarnation in {**before.consumers, **after.consumers}:
            self._judge_consumer(incarnation, before, after, by)

    def _judge_log(self, incarnation: str, before: Look, after: Look, by: Actor) -> None:
        old, new = before.logs.get(incarnation), after.logs.get(incarnation)
        if old == new:
            return
        if incarnation in self.gone:
            raise ViolationError(f"log {incarnation} is back")
        if old is not None and not old[1].dropped:
            by.changed.append(incarnation)
            if by.meant != incarnation:
                raise ViolationError(f"{by.name} means {by.meant}, and changes {incarnation}")
        elif old is None:
            by.changed.append(incarnation)
        if new is None:
            assert old is not None
            self._judge_deletion(incarnation, old[1], before)
            return
        name, manifest = new
        self.names.setdefault(incarnation, set()).add(name)
        if old is not None:
            _check_forward(old[1], manifest)
        for segment in manifest.segments:
            ledger = self.ledgers.get(segment.ledger_id)
            if ledger is None:
                raise ViolationError(f"{name} lists ledger {segment.ledger_id}, which is gone")
            if segment.sealed is not None and not ledger.closed:
                raise ViolationError(f"{name} is sealed, and ledger {segment.ledger_id} is open")
        if manifest.sealed:
            self.sealed.add(incarnation)
            if any(segment.sealed is None for segment in manifest.segments):
                raise ViolationError(f"{name} is sealed, and one of its segments is not")

    def _judge_deletion(self, incarnation: str, last: Manifest, before: Look) -> None:
        self.gone.add(incarnation)
        if not last.dropped or last.deleting:
            raise ViolationError(f"log {incarnation} is deleted before all that it had")
        left = [s for s in before.consumers.values() if s.log_incarnation == incarnation]
        if left:
            raise ViolationError(f"log {incarnation} is deleted before its consumers")

    def _judge_consumer(self, incarnation: str, before: Look, after: Look, by: Actor) -> None:
        old, new = before.consumers.get(incarnation), after.consumers.get(incarnation)
        if old == new:
            return
        if incarnation in self.gone:
            raise ViolationError(f"consumer {incarnation} is back")
        known = old or new
        assert known is not None
        if old is not None and by.meant is not None:
            self._check_meant(known.log_incarnation, by, f"consumer {incarnation}")
        log = before.logs.get(known.log_incarnation)
        if log is None or not log[1].dropped:
            by.changed.append(incarnation)
        if new is None:
            self.gone.add(incarnation)
            return
        self.states.append(new)
        if new.log_incarnation not in after.logs:
            raise ViolationError(f"consumer {incarnation} is of a log that is gone")
        if old is not None and (new.epoch, new.position) < (old.epoch, old.position):
            raise ViolationError(f"consumer {incarnation} goes back from {old} to {new}")

    def _looked(self) -> Look:
        look = Look({}, {})
        for child in self._children(LOGS_PATH):
            path = f"{LOGS_PATH}/{child}"
            value = self.tree.get(path).value
            if value:
                manifest = manifest_of(value)
                if manifest.incarnation in look.logs:
                    raise ViolationError(f"log {manifest.incarnation} has two names")
                look.logs[manifest.incarnation] = (name_of(child), manifest)
            for name in self._children(f"{path}/consumers"):
                node = f"{path}/consumers/{name}"
                state = state_of(self.tree.get(node).value)
                look.consumers[state.incarnation] = state
        return look

    def _children(self, path: str) -> list[str]:
        try:
            return self.tree.children(path)
        except NoSuchNode:
            return []

    # The end.

    def settle(self) -> None:
        """Let a janitor finish deletions; see that nothing is left that nobody needs."""
        for name, manifest in list(self._look.logs.values()):
            node = ManifestSteps(name)
            janitor = Actor("janitor", name, meant=manifest.incarnation)
            finish = finish_drop(node) if manifest.dropped else delete_listed(node, manifest)
            Run(self, janitor, finish).to_its_end()
        self._check_nodes()
        listed = {
            ledger_id
            for _, manifest in self._look.logs.values()
            for ledger_id in (*manifest.deleting, *(s.ledger_id for s in manifest.segments))
        }
        if set(self.ledgers) != listed:
            raise ViolationError(f"ledgers {set(self.ledgers) ^ listed} are leaked or missing")

    def _check_nodes(self) -> None:
        for child in self._children(LOGS_PATH):
            path = f"{LOGS_PATH}/{child}"
            value = self.tree.get(path).value
            if not value:
                raise ViolationError(f"{path} is left, and is no log")
            manifest = manifest_of(value)
            if manifest.dropped:
                raise ViolationError(f"the deletion of {name_of(child)} was not finished")
            marks = [each for each in self.tree.children(path) if each != "consumers"]
            if marks != [f"incarnation-{manifest.life}"]:
                raise ViolationError(f"{path} has the marks {marks}, its life is {manifest.life}")
            for name in self._children(f"{path}/consumers"):
                lock = f"{path}/consumers/{name}/lock"
                if self.tree.exists(lock) is not None and self.tree.owner(lock) != "auditor":
                    raise ViolationError(f"{self.tree.owner(lock)} has left {lock} behind")
        for state in self._look.consumers.values():
            if state.log_incarnation not in self._look.logs:
                raise ViolationError(f"consumer {state.incarnation} is of a log that is gone")
        for incarnation in self._children(RENAMED_PATH):
            if incarnation not in self._look.logs:
                raise ViolationError(f"{incarnation} is gone, and its name is remembered")


def end_of(ledger_id: LedgerId, last_txid: int) -> Sealed:
    """Return what every recovery of the ledger finds."""
    return Sealed(EntryId(0), 1, 10, NO_TXID, last_txid, ledger_id, ledger_id)


def _check_forward(old: Manifest, new: Manifest) -> None:
    forward = (
        old.next_segment <= new.next_segment
        and old.epoch <= new.epoch
        and old.trim_offset <= new.trim_offset
        and old.sealed <= new.sealed
        and old.dropped <= new.dropped
        and old.renames <= new.renames
    )
    if not forward:
        raise ViolationError(f"log {old.incarnation} goes back from {old} to {new}")
    ends = {segment.number: segment.sealed for segment in old.segments if segment.sealed}
    for segment in new.segments:
        if segment.sealed != ends.get(segment.number, segment.sealed):
            raise ViolationError(f"segment {segment.number} of {old.incarnation} ends elsewhere")


class Run(Generic[R]):
    """One procedure of one process; `to_its_end`, or `one` action after the other."""

    def __init__(self, namespace: Namespace, actor: Actor, steps: Steps[R]) -> None:
        self._namespace = namespace
        self.actor = actor
        self._script = Script(steps)
        self.now = 0.0
        self.actions: list[Action[Any]] = []
        """What was done or failed."""
        self.killed = False
        self._next: Next[R] = self._script.begin()
        self._wait()

    @property
    def result(self) -> R:
        if isinstance(self._next, Raised):
            raise self._next.error
        assert isinstance(self._next, Returned), "it is not over"
        return self._next.value

    @property
    def error(self) -> LogError | None:
        """What it ended with."""
        assert self.over
        return self._next.error if isinstance(self._next, Raised) else None

    @property
    def over(self) -> bool:
        return self.killed or isinstance(self._next, Returned | Raised)

    @property
    def next_action(self) -> Action[Any] | None:
        return None if isinstance(self._next, Returned | Raised) else self._next

    def one(
        self,
        fate: Fate = "goes on",
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """Do the next action, others doing theirs *before* and *after* it."""
        action = self.next_action
        assert action is not None
        self.actions.append(action)
        before()
        unknown = MetadataUnavailable("memory", type(action).__name__, 1.0)
        answer: object = unknown if fate == "lost request" else self._answer(action)
        after()
        if fate == "killed":
            self.killed = True
            self._namespace.tree.end_session(self.actor.name)
            return
        if fate == "lost reply":
            answer = unknown
        script = self._script
        self._next = script.fail(answer) if isinstance(answer, LogError) else script.answer(answer)
        self._wait()

    def to_its_end(self) -> "Run[R]":
        while not self.over:
            self.one()
            assert len(self.actions) < ACTIONS_MAX, "it never ends"
        return self

    def _answer(self, action: Action[Any]) -> object:
        try:
            return self._namespace.perform(action, self.actor)
        except LogError as error:
            return error

    def _wait(self) -> None:
        while isinstance(self._next, Wait):
            self.now += self._next.seconds
            self._next = self._script.answer(None)


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that a process may do to the log that has the name *log*."""

    name: str
    steps: Callable[[Namespace], Steps[Any]]
    log: str = "a"


@dataclass(frozen=True, slots=True)
class Interruption:
    """What comes in between at one action of a procedure."""

    at: int
    fate: Fate
    rivals: tuple[Operation, ...] = ()
    before: bool = True
    """Whether the others come before the action or after it."""

    def __str__(self) -> str:
        others = " and ".join(rival.name for rival in self.rivals) or "nobody"
        return f"{self.fate} at action {self.at}, {others} {'before' if self.before else 'after'}"


def interruptions(
    actions: Sequence[Action[Any]], rivals: Sequence[tuple[Operation, ...]]
) -> Iterator[Interruption]:
    """Yield each way to stop a procedure of these actions, each of *rivals* coming in between.

    After a look is before the next action, and it is all the same whether the look or what it saw
    was lost."""
    for at, action in enumerate(actions, 1):
        looks = isinstance(action, Sync | Get | Exists | Children | AwaitChange)
        yield Interruption(at, "lost reply")
        yield from (Interruption(at, "goes on", others) for others in rivals)
        if looks:
            continue
        yield Interruption(at, "lost request")
        yield Interruption(at, "killed")
        for others in rivals:
            yield Interruption(at, "lost reply", others)
            yield Interruption(at, "lost request", others)
            yield Interruption(at, "lost reply", others, before=False)
            yield Interruption(at, "killed", others, before=False)


def act(namespace: Namespace, who: str, *operations: Operation) -> list[Run[Any]]:
    """Let processes do *operations* to their ends, one after the other."""
    return [
        Run(namespace, Actor(f"{who}-{number}", each.log), each.steps(namespace)).to_its_end()
        for number, each in enumerate(operations)
    ]


def interrupted(namespace: Namespace, operation: Operation, interruption: Interruption) -> Run[Any]:
    """Run *operation* to its end, or to where it is killed."""
    run = Run(namespace, Actor("operator", operation.log), operation.steps(namespace))
    while len(run.actions) < interruption.at - 1:
        run.one()

    def others() -> None:
        act(namespace, "rival", *interruption.rivals)

    if interruption.before:
        run.one(interruption.fate, before=others)
    else:
        run.one(interruption.fate, after=others)
    return run.to_its_end()
