"""The stores that the contract suite runs on, and a process that holds an ephemeral node."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from ledger.errors import MetadataUnavailable
from ledger.metastore import MetadataStore, Watch, open_store
from tests.waiting import PATIENCE_S, SESSION_S, eventually


@dataclass(frozen=True, slots=True)
class Backend:
    """A namespace of its own for one test."""

    kind: str
    uri: str

    async def open(
        self, *, session_timeout_s: float = SESSION_S, timeout_s: float = PATIENCE_S
    ) -> MetadataStore:
        return await open_store(self.uri, session_timeout_s=session_timeout_s, timeout_s=timeout_s)

    @asynccontextmanager
    async def one(
        self, *, session_timeout_s: float = SESSION_S, timeout_s: float = PATIENCE_S
    ) -> AsyncIterator[MetadataStore]:
        store = await self.open(session_timeout_s=session_timeout_s, timeout_s=timeout_s)
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def two(self) -> AsyncIterator[tuple[MetadataStore, MetadataStore]]:
        """Two connections to the same namespace, as two processes have."""
        async with self.one() as a, self.one() as b:
            yield a, b


async def gone(store: MetadataStore, path: str) -> None:
    async def is_gone() -> bool:
        return await store.exists(path) is None

    await eventually(is_gone, f"{path} is gone")


async def renewed(store: MetadataStore) -> None:
    async def is_believed_in() -> bool:
        return not store.session.lost.is_set()

    await eventually(is_believed_in, "there is a session again")


async def hold(store: MetadataStore, path: str) -> None:
    """Make the ephemeral node *path*, in whatever session there is: a short one may end first."""

    async def held() -> bool:
        try:
            await store.create(path, ephemeral=True)
        except MetadataUnavailable:
            return False
        return True

    await eventually(held, f"{path} is made")


async def settled(watch: Watch) -> None:
    """Take the wake-ups that are still on their way from changes already seen."""
    while True:
        try:
            async with asyncio.timeout(0.2):
                await watch.changed()
        except TimeoutError:
            return


_HOLDER = """
import asyncio, sys
from ledger.metastore import open_store

async def main() -> None:
    store = await open_store(sys.argv[1], session_timeout_s=float(sys.argv[3]))
    session = store.session
    await store.create(sys.argv[2], b"held", ephemeral=True)
    print("held", flush=True)
    await session.lost.wait()
    print("lost", flush=True)
    while store.session.lost.is_set():
        await asyncio.sleep(0.01)
    print("renewed", store.session is not session, await store.exists(sys.argv[2]), flush=True)

asyncio.run(main())
"""


@contextmanager
def holder(
    uri: str, path: str, *, session_timeout_s: float = SESSION_S
) -> Iterator[subprocess.Popen[str]]:
    """A process that has made the ephemeral node *path* and waits; killed at the end."""
    command = [sys.executable, "-c", _HOLDER, uri, path, str(session_timeout_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
