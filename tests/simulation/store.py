"""The port to the metadata store as one simulated host has it, and a way to run what awaits it.

Production code that is written against the port (`ledger.manager`, `bookie.identity.cookie`) runs
here unchanged, without an event loop: `drive` resumes its coroutine when the simulated store, or
nobody, has answered. A coroutine whose host dies is never resumed.
"""

from __future__ import annotations  # evaluated at each call, those of inner functions cost a lot

from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NoReturn, Protocol, TypeVar

from ledger.errors import MetadataError
from ledger.metastore.port import ANY_VERSION, Op, Session, Versioned
from ledger.metastore.tree import Tree
from tests.simulation.kernel.host import Host

if TYPE_CHECKING:
    from tests.simulation.metadata import SimMetadata

Result = TypeVar("Result")


class Awaited(Protocol):
    """What a coroutine of the simulation may wait for."""

    def begin(self, resume: Callable[[object], None]) -> None:
        """Give the outcome to *resume*, later; a `MetadataError` is raised where it waits."""


def drive(
    steps: Coroutine[Awaited, object, Result],
    on_done: Callable[[Result], object],
    outcome: object = None,
) -> None:
    """Run *steps* up to the end; what they return goes to *on_done*, what they raise is raised."""
    try:
        awaited = (
            steps.throw(outcome) if isinstance(outcome, MetadataError) else steps.send(outcome)
        )
    except StopIteration as stop:
        on_done(stop.value)
    else:
        awaited.begin(partial(drive, steps, on_done))


class _Call(Generic[Result]):
    """One operation at the store, over the network."""

    def __init__(self, store: SimStore, what: str, operation: Callable[[Tree], Result]) -> None:
        self._store = store
        self._what = what
        self._operation = operation

    def begin(self, resume: Callable[[object], None]) -> None:
        store = self._store
        store.metadata.call(store.host, self._what, self._operation, resume)

    def __await__(self) -> Generator[_Call[Result], Result, Result]:
        outcome: Result = yield self
        return outcome


class SimStore:
    """Implements `ledger.metastore.MetadataStore` for one host."""

    uri: Final = "simulated"

    def __init__(self, metadata: SimMetadata, host: Host) -> None:
        self.metadata = metadata
        self.host = host
        self.session = Session(f"{host.name}/client")

    async def get(self, path: str) -> Versioned:
        return await _Call[Versioned](self, "get", lambda tree: tree.get(path))

    async def exists(self, path: str) -> int | None:
        return await _Call[int | None](self, "exists", lambda tree: tree.exists(path))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        owner = self.session.session_id if ephemeral else None
        return await _Call[str](
            self,
            "create",
            lambda tree: tree.create(path, value, owner=owner, sequential=sequential),
        )

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        return await _Call[int](self, "set", lambda tree: tree.set(path, value, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await _Call(self, "delete", lambda tree: tree.delete(path, version))

    async def children(self, path: str) -> list[str]:
        return await _Call[list[str]](self, "children", lambda tree: tree.children(path))

    async def multi(self, ops: Sequence[Op]) -> None:
        owner = self.session.session_id
        await _Call(self, "multi", lambda tree: tree.multi(ops, owner=owner))

    async def sync(self, path: str = "/") -> None:
        await _Call(self, "sync", lambda tree: tree.exists(path))

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        await _Call(self, "verify", lambda tree: tree.exists("/"))

    def watch(self, path: str) -> NoReturn:
        raise AssertionError(f"nobody follows {path} without an event loop")

    async def close(self) -> None:
        """Nothing is kept here."""
