"""The cluster for tests that do not use asyncio, and the one name for both kinds."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from dlog.sync.loop_thread import LoopThread
from dlog.testing.bookie import InProcessBookie
from dlog.testing.cluster import BOOKIES, BYTES_MAX, AsyncCluster


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
