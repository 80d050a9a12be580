"""A whole cluster in the process and event loop of a test; or beside a test that does not use
asyncio.

Three real bookies speak the real wire over 127.0.0.1; only their disks and the metadata store are
in memory. So an application meets in its tests the code it meets in production, and the
cluster can be given bad days: dead bookies, read-only ones, no metadata store.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Final, Self

from dlog.sync.loop_thread import LoopThread
from dlog.testing.bookie import InProcessBookie
from ledger.cluster import make_namespace
from ledger.errors import CallerError
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryHub

BOOKIES: Final = 3
BOOKIES_MAX: Final = 16
BYTES_MAX: Final = 256 * 1024 * 1024
"""What each bookie stores at most, in memory."""


class InvalidTestCluster(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"no cluster for tests: {reason}")
        self.reason = reason


class AsyncCluster:
    """Made by ``async with dlog.testing.cluster() as cluster``.

    Give `uri` to whatever opens logs, or set ``DLOG_URI`` to it. It means this cluster
    everywhere in this process, on any thread and event loop; not in other processes, for which
    there is `dlog.local.cluster.LocalCluster`."""

    def __init__(self, bookies: int = BOOKIES, *, bytes_max: int = BYTES_MAX) -> None:
        if not 1 <= bookies <= BOOKIES_MAX:
            raise InvalidTestCluster(f"{bookies} bookies asked for, use 1 to {BOOKIES_MAX}")
        if bytes_max <= 0:
            raise InvalidTestCluster(f"bytes_max={bytes_max} leaves no room for any record")
        name = f"dlog-testing-{uuid.uuid4().hex}"
        self.uri = f"memory://{name}"
        self._name = name
        self._count = bookies
        self._bytes_max = bytes_max
        self._hub = MemoryHub()
        self._bookies: list[InProcessBookie] = []
        self._stack = AsyncExitStack()

    @property
    def bookies(self) -> tuple[InProcessBookie, ...]:
        return tuple(self._bookies)

    async def kill_bookie(self, index: int) -> None:
        """End bookie *index* as SIGKILL would: its connections break, it is not registered."""
        await self._bookies[index].kill()

    async def restart_bookie(self, index: int) -> None:
        """Start bookie *index* on what it had stored, killing it first if it runs."""
        await self._bookies[index].kill()
        await self._bookies[index].start()

    async def set_read_only(self, index: int, *, read_only: bool = True) -> None:
        """Let bookie *index* refuse new records, as one with a full disk, or take them again."""
        await self._bookies[index].set_read_only(read_only=read_only)

    @asynccontextmanager
    async def metadata_cut(self) -> AsyncIterator[None]:
        """Make the metadata store unreachable for everybody while this lasts.

        Every session counts as lost at once, so terms of leadership end; a real store takes up
        to two thirds of the session's timeout for that. At the end all bookies are registered
        again."""
        self._hub.cut()
        try:
            yield
        finally:
            self._hub.heal()
            for bookie in self._bookies:
                await bookie.register_again()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._stack.enter_context(self._hub.shared(self._name))
        store = await open_store(self.uri)
        self._stack.push_async_callback(store.close)
        namespace = await make_namespace(store)
        for index in range(self._count):
            bookie = InProcessBookie(f"bookie-{index}", namespace, store, self._bytes_max)
            self._bookies.append(bookie)
        self._stack.push_async_callback(self._kill_all)
        async with asyncio.TaskGroup() as starting:
            for bookie in self._bookies:
                starting.create_task(bookie.start())

    async def _kill_all(self) -> None:
        await asyncio.gather(*(bookie.kill() for bookie in self._bookies))


class Cluster:
    """Made by ``with dlog.testing.cluster() as cluster``; see `AsyncCluster`."""

    def __init__(self, cluster: AsyncCluster, thread: LoopThread) -> None:
        self._cluster = cluster
        self._thread = thread

    @property
    def uri(self) -> str:
        """What to open logs with; means this cluster everywhere in this process."""
        return self._cluster.uri

    @property
    def bookies(self) -> tuple[InProcessBookie, ...]:
        """The bookies, to be looked at; the methods here change them."""
        return self._cluster.bookies

    def kill_bookie(self, index: int) -> None:
        """See `AsyncCluster.kill_bookie`."""
        self._thread.run(self._cluster.kill_bookie(index))

    def restart_bookie(self, index: int) -> None:
        """See `AsyncCluster.restart_bookie`."""
        self._thread.run(self._cluster.restart_bookie(index))

    def set_read_only(self, index: int, *, read_only: bool = True) -> None:
        """See `AsyncCluster.set_read_only`."""
        self._thread.run(self._cluster.set_read_only(index, read_only=read_only))

    @contextmanager
    def metadata_cut(self) -> Iterator[None]:
        """See `AsyncCluster.metadata_cut`."""
        cut = self._cluster.metadata_cut()
        self._thread.run(cut.__aenter__())
        try:
            yield
        finally:
            self._thread.run(cut.__aexit__(None, None, None))


class cluster:  # noqa: N801 - used as a function that may stand after `with` and `async with`
    """A cluster of real bookies in this process, for tests of applications.

        with dlog.testing.cluster() as cluster:         # a `Cluster`; for dlog
            ...
        async with dlog.testing.cluster() as cluster:   # an `AsyncCluster`; for dlog.aio
            ...

    *bookies*: 1 to 16; *bytes_max*: what each stores at most, in memory. Everything is gone at
    the end. Close the logs and readers of the application before. Used once.
    Raises `InvalidTestCluster`."""

    def __init__(self, bookies: int = BOOKIES, *, bytes_max: int = BYTES_MAX) -> None:
        self._cluster = AsyncCluster(bookies, bytes_max=bytes_max)
        self._thread: LoopThread | None = None

    def __enter__(self) -> Cluster:
        self._thread = LoopThread.get()
        return Cluster(self._thread.run(self._cluster.__aenter__()), self._thread)

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        self._thread.run(self._cluster.__aexit__(None, None, None))

    async def __aenter__(self) -> AsyncCluster:
        return await self._cluster.__aenter__()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._cluster.__aexit__(error_type, error, traceback)
