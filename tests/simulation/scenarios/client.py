"""A client of the hand-held world: one production machine, its events and effects written down.

What `ledger.machine_loop` and the drivers do in production, without a loop and without time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from ledger.entry import access_key
from ledger.errors import BadVersion, NoSuchNode
from ledger.ids import BookieId, LedgerId
from ledger.machine_loop import Machine
from ledger.metadata import LedgerMetadata
from ledger.metastore.tree import Tree
from ledger.requests import AddRun, LacAnswer, LacQuery, ReadAnswer, ReadQuery, Status
from tests.simulation.scenarios.post import Kind

if TYPE_CHECKING:
    from tests.simulation.scenarios.world import World

Event = TypeVar("Event")
Effect = TypeVar("Effect")


class Client(Generic[Event, Effect]):
    def __init__(self, world: "World", name: str, ledger_id: LedgerId, password: bytes) -> None:
        self.world = world
        self.name = name
        self.ledger_id = ledger_id
        self.key = access_key(password)
        self._inbox: deque[Event] = deque()
        self._stepping = False
        self._machine: Machine[Event, Effect] | None = None
        self._time_passed: Event | None = None
        self._alive = True

    def use(self, machine: Machine[Event, Effect], time_passed: Event) -> None:
        self._machine, self._time_passed = machine, time_passed

    def die(self) -> None:
        """End this process: it hears and does nothing any more."""
        self._alive = False

    def feed(self, event: Event) -> None:
        """Give *event* to the machine, behind those before it; execute what it says."""
        if not self._alive or self._machine is None:
            return
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        while self._inbox:
            event = self._inbox.popleft()
            self.world.tell(f"{self.name} <- {describe(event)}")
            for effect in self._machine.step(event, now=self.world.now):
                self.world.tell(f"{self.name} -> {describe(effect)}")
                self.execute(effect)
        self._stepping = False

    def execute(self, effect: Effect) -> None:
        raise NotImplementedError

    def deadline(self) -> float | None:
        return self._machine.deadline() if self._alive and self._machine is not None else None

    def time_passed(self) -> None:
        assert self._time_passed is not None
        self.feed(self._time_passed)

    # Bookies.

    def ask_add(
        self, kind: Kind, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]
    ) -> None:
        target = self.world.bookies[bookie]
        self.world.post.ask(
            kind,
            self.name,
            bookie,
            partial(target.add, run),
            lambda status: on_done(status or Status.UNREACHABLE),
            range(run.entries[0], run.entries[-1] + 1),
        )

    def ask_read(
        self,
        kind: Kind,
        bookie: BookieId,
        query: ReadQuery,
        on_done: Callable[[ReadAnswer], None],
    ) -> None:
        target = self.world.bookies[bookie]
        self.world.post.ask(
            kind,
            self.name,
            bookie,
            partial(target.read, query),
            lambda answer: on_done(answer or ReadAnswer(Status.UNREACHABLE)),
            range(query.first, query.first + 1),
        )

    def ask_lac(
        self, bookie: BookieId, query: LacQuery, on_done: Callable[[LacAnswer], None]
    ) -> None:
        target = self.world.bookies[bookie]
        self.world.post.ask(
            Kind.FENCE,
            self.name,
            bookie,
            partial(target.read_lac, query),
            lambda answer: on_done(answer or LacAnswer(Status.UNREACHABLE)),
        )

    # Metadata of the ledger.

    def write_metadata(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        written: Callable[[int], None],
        read: Callable[[LedgerMetadata | None, int], None],
        failed: Callable[[], None],
    ) -> None:
        """CAS; on a conflict read and report that, as the drivers do."""

        def operation(tree: Tree) -> int | BadVersion | NoSuchNode:
            try:
                number = tree.set(self.world.path(self.ledger_id), metadata.encode(), version)
            except (BadVersion, NoSuchNode) as error:
                return error
            self.world.oracle.recorded(self.ledger_id, number, metadata)
            self.world.tell(f"metadata = version {number}: {describe(metadata)}")
            return number

        def done(outcome: int | BadVersion | NoSuchNode | None) -> None:
            if isinstance(outcome, int):
                written(outcome)
            elif isinstance(outcome, BadVersion):
                self.read_metadata(read=read, failed=failed)
            elif isinstance(outcome, NoSuchNode):
                read(None, -1)
            else:
                failed()

        self.world.ask_metadata(Kind.CAS, self.name, operation, done)

    def read_metadata(
        self,
        *,
        read: Callable[[LedgerMetadata | None, int], None],
        failed: Callable[[], None],
    ) -> None:
        def operation(tree: Tree) -> tuple[LedgerMetadata | None, int]:
            path = self.world.path(self.ledger_id)
            if tree.exists(path) is None:
                return None, -1
            node = tree.get(path)
            return LedgerMetadata.decode(node.value, path=path), node.version

        def done(outcome: tuple[LedgerMetadata | None, int] | None) -> None:
            if outcome is None:
                failed()
            else:
                read(*outcome)

        self.world.ask_metadata(Kind.GET, self.name, operation, done)


def describe(value: object) -> str:
    """Return an event, an effect or metadata in one line that reads well."""
    if isinstance(value, LedgerMetadata):
        ensembles = ", ".join(f"{f.first_entry}: {'+'.join(f.bookies)}" for f in value.fragments)
        end = "" if value.last_entry is None else f" at {value.last_entry}"
        return f"{value.state.name}{end} {{{ensembles}}}"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return f"({', '.join(map(describe, value))})"
    if hasattr(type(value), "__dataclass_fields__"):
        parts = [
            f"{field.name}={describe(getattr(value, field.name))}"
            for field in fields(value)  # type: ignore[arg-type]
        ]
        return " ".join([type(value).__name__, *parts])
    return str(value)
