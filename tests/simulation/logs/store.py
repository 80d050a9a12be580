"""The port to the metadata store as one simulated process has it, on its own event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ledger.errors import MetadataError
from ledger.metastore.port import ANY_VERSION, Op, Session, Versioned, Watch
from ledger.metastore.tree import Tree
from ledger.metastore.watches import PathWatch

if TYPE_CHECKING:
    from tests.simulation.logs.process import Process

Result = TypeVar("Result")


class LoopStore:
    """Implements `ledger.metastore.MetadataStore`."""

    uri: Final = "simulated"

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._metadata = process.world.metadata
        self.session = Session(f"{process.name}/1")

    async def get(self, path: str) -> Versioned:
        return await self._call("get", lambda tree: tree.get(path))

    async def exists(self, path: str) -> int | None:
        return await self._call("exists", lambda tree: tree.exists(path))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        owner = self.session.session_id if ephemeral else None
        return await self._call(
            "create", lambda tree: tree.create(path, value, owner=owner, sequential=sequential)
        )

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        return await self._call("set", lambda tree: tree.set(path, value, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._call("delete", lambda tree: tree.delete(path, version))

    async def children(self, path: str) -> list[str]:
        return await self._call("children", lambda tree: tree.children(path))

    async def multi(self, ops: Sequence[Op]) -> None:
        owner = self.session.session_id
        await self._call("multi", lambda tree: tree.multi(ops, owner=owner))

    async def sync(self, path: str = "/") -> None:
        await self._call("sync", lambda tree: tree.exists(path))

    def watch(self, path: str) -> Watch:
        host, loop, metadata = self._process.host, self._process.loop, self._metadata

        def changed() -> None:
            loop.call_soon(watch.wake)

        watch = PathWatch(path, lambda _: metadata.unwatch(host, path, changed))
        metadata.watch(host, path, changed)
        return watch

    async def close(self) -> None:
        """The session lives as long as the process."""

    async def _call(self, what: str, operation: Callable[[Tree], Result]) -> Result:
        process = self._process
        process.before_call(what)
        if not process.host.up or process.host.paused:
            await asyncio.sleep(0)  # goes on when it wakes up, or never
        answer: asyncio.Future[Result] = process.loop.create_future()

        def done(outcome: Result | MetadataError) -> None:
            process.loop.call_soon(settle, outcome)

        def settle(outcome: Result | MetadataError) -> None:
            if answer.done():
                return
            if isinstance(outcome, MetadataError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self._metadata.call(process.host, what, operation, done)
        return await answer
