"""The port to the metadata store as one simulated process has it, on its own event loop."""

from __future__ import annotations  # evaluated at each call, those of inner functions cost a lot

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ledger.errors import MetadataError, MetadataUnavailable
from ledger.metastore.ops import CreateOp
from ledger.metastore.port import ANY_VERSION, Op, Session, Versioned, Watch
from ledger.metastore.session import PathWatch
from ledger.metastore.tree import Tree

if TYPE_CHECKING:
    from tests.simulation.logs.serving import Serving
    from tests.simulation.process import SimProcess

Result = TypeVar("Result")


class LoopStore:
    """Implements `ledger.metastore.MetadataStore`.

    The session is kept alive from the first ephemeral node on. It is lost when the store says
    so, or when nothing was heard of it for two thirds of its time; then there is a new one."""

    uri: Final = "simulated"

    def __init__(self, process: SimProcess | Serving) -> None:
        self._process = process
        self._metadata = process.world.metadata
        self._sessions = 0
        self._beating = False
        self._heard_at = 0.0
        self.unanswered = 0
        """Calls whose outcome is unknown to the process."""
        self.session = self._new_session()
        self.first_values: dict[str, bytes] = {}
        """What each node held when it was read first."""

    async def get(self, path: str) -> Versioned:
        found = await self._call("get", lambda tree: tree.get(path))
        self.first_values.setdefault(path, found.value)
        return found

    async def exists(self, path: str) -> int | None:
        return await self._call("exists", lambda tree: tree.exists(path))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        owner = self._owner() if ephemeral else None
        return await self._call(
            "create",
            self._owned(
                owner, lambda tree: tree.create(path, value, owner=owner, sequential=sequential)
            ),
        )

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        return await self._call("set", lambda tree: tree.set(path, value, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._call("delete", lambda tree: tree.delete(path, version))

    async def children(self, path: str) -> list[str]:
        return await self._call("children", lambda tree: tree.children(path))

    async def multi(self, ops: Sequence[Op]) -> None:
        ephemeral = any(isinstance(op, CreateOp) and op.ephemeral for op in ops)
        owner = self._owner() if ephemeral else None
        await self._call(
            "multi", self._owned(owner, lambda tree: tree.multi(ops, owner=owner or ""))
        )

    async def sync(self, path: str = "/") -> None:
        await self._call("sync", lambda tree: tree.exists(path))

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        await self._call("verify", lambda tree: tree.exists("/"))

    def watch(self, path: str) -> Watch:
        host, loop, metadata = self._process.host, self._process.loop, self._metadata
        life = host.life

        def changed() -> None:
            if host.life == life:  # else it would wake up what has crashed
                loop.call_soon(watch.wake)

        watch = PathWatch(path, lambda _: metadata.unwatch(host, path, changed))
        metadata.watch(host, path, changed)
        return watch

    async def close(self) -> None:
        """The session lives as long as the process."""

    async def _call(self, what: str, operation: Callable[[Tree], Result]) -> Result:
        process = self._process
        process.before_call("store", what)
        if not process.host.up or process.host.paused:
            await asyncio.sleep(0)  # goes on when it wakes up, or never
        answer: asyncio.Future[Result] = process.loop.create_future()

        def done(outcome: Result | MetadataError) -> None:
            process.loop.call_soon(settle, outcome)

        def settle(outcome: Result | MetadataError) -> None:
            if answer.done():
                return
            if isinstance(outcome, MetadataError):
                self.unanswered += isinstance(outcome, MetadataUnavailable)
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self._metadata.call(process.host, what, operation, done)
        return await answer

    # The session.

    def _new_session(self) -> Session:
        self._sessions += 1
        self._heard_at = self._process.host.clock()
        return Session(f"{self._process.name}/session-{self._sessions}")

    def _owner(self) -> str:
        """Return the session that owns a new ephemeral node, and keep it alive from now on."""
        if not self._beating:
            self._beating = True
            self._heard_at = self._process.host.clock()
            self._process.host.after(self._metadata.heartbeat_s, self._beat)
        return self.session.session_id

    def _owned(
        self, owner: str | None, operation: Callable[[Tree], Result]
    ) -> Callable[[Tree], Result]:
        """Return *operation* as the store does it for a session, which must not have ended."""

        def do(tree: Tree) -> Result:
            if owner is not None and not self._metadata.prolong(owner):
                raise MetadataUnavailable(self.uri, "session", 0.0)
            return operation(tree)

        return do

    def _beat(self) -> None:
        host, metadata, session = self._process.host, self._metadata, self.session
        asked_at = host.clock()
        if asked_at - self._heard_at > metadata.session_s * 2 / 3:
            self._lose(session)

        def heard(alive: bool | MetadataError) -> None:
            if alive is True and session is self.session:
                self._heard_at = max(self._heard_at, asked_at)
            elif alive is False:
                self._lose(session)

        session = self.session
        metadata.call(host, "beat", lambda _: metadata.prolong(session.session_id), heard)
        host.after(metadata.heartbeat_s, self._beat)

    def _lose(self, session: Session) -> None:
        if session is self.session:
            self._process.note(f"loses {session.session_id}")
            self._process.mark("client_session_lost")
            self.session = self._new_session()
            self._process.loop.call_soon(session.lost.set)
