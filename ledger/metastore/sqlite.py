"""The embedded store: SQLite in a directory, for the processes of one machine.

Blocking calls run on two threads, one that writes and one that reads: with write-ahead
logging a reader never waits for a writer. A third thread, the keeper,
watches and keeps the session (`ledger.metastore.sqlite_keeper`). Every commit is synced to
the disk before it is reported.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final, Self, TypeVar, TypeVarTuple

from ledger.errors import (
    DamagedMetadata,
    HandleClosed,
    LogError,
    MetadataDenied,
    MetadataFull,
    MetadataUnavailable,
)
from ledger.log_events import get_logger
from ledger.metastore.ops import check_new, check_ops, check_path, check_value
from ledger.metastore.port import ANY_VERSION, CreateOp, Op, Session, Versioned, Watch
from ledger.metastore.session import Lease, WatchTable
from ledger.metastore.sqlite_files import USER_ADVICE, Database, is_denied, is_full
from ledger.metastore.sqlite_format import reporting_damage
from ledger.metastore.sqlite_keeper import SessionKeeper
from ledger.metastore.sqlite_tree import SessionEnded, SqlTree
from ledger.metastore.uri import FileUri
from ledger.metrics import METADATA_DAMAGE

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_BUSY_SHARE: Final = 0.8
"""Of a call's time: so that a busy database is an error of its own, not silence."""
VERIFY_TIMEOUT_S: Final = 600.0
"""Of a look at everything, which takes about two seconds for 100,000 ledgers."""

_log = get_logger(__name__)


class _Access:
    """A thread and its connection, made when needed and re-created after an error."""

    def __init__(self, name: str, database: Database, timeout_s: float) -> None:
        self._database = database
        self._worker = _Worker(name)
        self._timeout_s = timeout_s
        self._tree: SqlTree | None = None

    async def run(self, operation: str, call: Callable[[SqlTree], _T]) -> _T:
        def on_thread() -> _T:
            try:
                self._database.check_present()
                if self._tree is None:
                    busy_s = self._timeout_s * _BUSY_SHARE
                    self._tree = self._database.connect(timeout_s=busy_s)
                with reporting_damage(str(self._database.path)):
                    return call(self._tree)
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise self._explained(operation, error) from error

        return await self.on_worker(operation, on_thread)

    async def on_worker(self, operation: str, call: Callable[[], _T]) -> _T:
        try:
            return await self._worker.run(call, timeout_s=self._timeout_s)
        except (sqlite3.Error, OSError) as error:  # TimeoutError is an OSError
            raise self._explained(operation, error) from error
        except SessionEnded as error:
            raise self._unavailable(operation, "the session has ended") from error

    async def close(self) -> None:
        with contextlib.suppress(LogError):
            await self.on_worker("close", self._disconnect)
        self.stop()

    def stop(self) -> None:
        """End the thread once it has nothing to do. Does not wait."""
        self._worker.stop()

    def _disconnect(self) -> None:
        if self._tree is not None:
            self._tree.close()
            self._tree = None

    def _explained(self, operation: str, error: Exception) -> LogError:
        uri = f"file://{self._database.directory}"
        if is_full(error):
            return MetadataFull(uri, operation, self._timeout_s)
        if is_denied(error):
            return MetadataDenied(uri, operation, str(error), USER_ADVICE)
        return self._unavailable(operation, str(error))

    def _unavailable(self, operation: str, reason: str) -> MetadataUnavailable:
        uri = f"file://{self._database.directory}"
        return MetadataUnavailable(uri, operation, self._timeout_s, reason)


class _Inbox:
    """Hands the keeper's events from its thread to the event loop."""

    def __init__(
        self,
        *,
        began: Callable[[str, float], None],
        proven: Callable[[str, float], None],
        ended: Callable[[str], None],
        changed: Callable[[Sequence[str] | None], None],
        damaged: Callable[[DamagedMetadata], None],
        stopped: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._began, self._proven, self._ended = began, proven, ended
        self._changed, self._damaged, self._stopped = changed, damaged, stopped
        self.on_loop_closed: Callable[[], None] = lambda: None

    def began(self, session_id: str, at: float) -> None:
        self._post(self._began, session_id, at)

    def proven(self, session_id: str, at: float) -> None:
        self._post(self._proven, session_id, at)

    def ended(self, session_id: str) -> None:
        self._post(self._ended, session_id)

    def changed(self, paths: Sequence[str] | None) -> None:
        self._post(self._changed, paths)

    def damaged(self, error: DamagedMetadata) -> None:
        self._post(self._damaged, error)

    def stopped(self) -> None:
        self._post(self._stopped)

    def _post(self, call: Callable[[*_Ts], None], *arguments: *_Ts) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed, and the store was not: end the session
            self.on_loop_closed()


class SqliteStore:
    """Implements `ledger.metastore.MetadataStore`. Made by `open`."""

    def __init__(
        self, uri: str, database: Database, *, session_timeout_s: float, timeout_s: float
    ) -> None:
        self._uri = uri
        self._database = database
        self._session_timeout_s = session_timeout_s
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = _Access("metastore-reader", database, timeout_s)
        self._writer = _Access("metastore-writer", database, timeout_s)
        inbox = _Inbox(
            began=self._on_began,
            proven=self._on_proven,
            ended=self._on_ended,
            changed=self._wake,
            damaged=self._report_damage,
            stopped=self._on_stopped,
        )
        self._keeper = SessionKeeper(database, inbox, session_timeout_s)
        inbox.on_loop_closed = self._keeper.stop
        self._began: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._lease: Lease | None = None
        self._watches = WatchTable()
        self._verifying = asyncio.Lock()
        self._damage = ""
        """What was reported last."""
        self._closed = False

    @classmethod
    async def open(
        cls, uri: str, parsed: FileUri, *, session_timeout_s: float, timeout_s: float
    ) -> Self:
        database = Database(parsed.directory)
        store = cls(uri, database, session_timeout_s=session_timeout_s, timeout_s=timeout_s)
        await store._connect(database)
        return store

    async def _connect(self, database: Database) -> None:
        busy_s = self._timeout_s * _BUSY_SHARE
        connected = False
        try:
            await self._writer.on_worker("connect", lambda: database.create(timeout_s=busy_s))
            self._keeper.start()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.shield(self._began)
            except TimeoutError as error:
                raise MetadataUnavailable(self._uri, "connect", self._timeout_s) from error
            connected = True
        finally:
            if not connected:
                self._closed = True
                self._keeper.stop()
                await asyncio.gather(self._reader.close(), self._writer.close())

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def session(self) -> Session:
        assert self._lease is not None, "open() waits for the first session"
        return self._lease.session

    @property
    def acls(self) -> None:
        return None

    async def get(self, path: str) -> Versioned:
        check_path(path)
        return await self._read("get", lambda tree: tree.get(path))

    async def exists(self, path: str) -> int | None:
        check_path(path)
        return await self._read("exists", lambda tree: tree.exists(path))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        check_new(path, value, sequential=sequential)
        owner = self._owner("create") if ephemeral else None
        return await self._write(
            "create", lambda tree: tree.create(path, value, owner=owner, sequential=sequential)
        )

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        check_path(path)
        check_value(path, value)
        return await self._write("set", lambda tree: tree.set(path, value, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        await self._write("delete", lambda tree: tree.delete(path, version))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read("children", lambda tree: tree.children(path))

    async def multi(self, ops: Sequence[Op]) -> None:
        ops = tuple(ops)
        check_ops(ops)
        ephemeral = any(isinstance(op, CreateOp) and op.ephemeral for op in ops)
        owner = self._owner("multi") if ephemeral else ""
        await self._write("multi", lambda tree: tree.multi(ops, owner=owner))

    async def sync(self, path: str = "/") -> None:
        # Every read sees all that was committed before; only reachability is to be shown.
        check_path(path)
        await self._read("sync", lambda tree: tree.exists(path))

    async def verify(self) -> None:
        self._check_open()
        async with self._verifying:  # a thread of its own: reads go on beside it
            verifier = _Access("metastore-verifier", self._database, VERIFY_TIMEOUT_S)
            busy_s = self._timeout_s * _BUSY_SHARE
            try:
                with self._reporting_damage():
                    await verifier.on_worker(
                        "verify", lambda: self._database.verify(timeout_s=busy_s)
                    )
            finally:
                verifier.stop()

    def watch(self, path: str) -> Watch:
        self._check_open()
        return self._watches.add(check_path(path))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.close()
        self._keeper.stop()
        if self._lease is not None:
            self._lease.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._stopped
        await asyncio.gather(self._reader.close(), self._writer.close())

    async def _read(self, operation: str, call: Callable[[SqlTree], _T]) -> _T:
        self._check_open()
        with self._reporting_damage():
            return await self._reader.run(operation, call)

    async def _write(self, operation: str, call: Callable[[SqlTree], _T]) -> _T:
        self._check_open()
        with self._reporting_damage():
            return await self._writer.run(operation, call)

    @contextlib.contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedMetadata as error:
            self._report_damage(error)
            raise

    def _report_damage(self, error: DamagedMetadata) -> None:
        METADATA_DAMAGE.add()
        if error.reason != self._damage:  # the keeper meets the same many times a second
            self._damage = error.reason
            _log.error("metadata_damaged", path=error.path, reason=error.reason)

    def _wake(self, paths: Sequence[str] | None) -> None:
        self._watches.wake(self._watches.paths() if paths is None else paths)

    def _on_stopped(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _check_open(self) -> None:
        if self._closed:
            raise HandleClosed(f"metadata store {self._uri}")

    def _owner(self, operation: str) -> str:
        self._check_open()
        if self.session.lost.is_set():
            reason = "the session was lost, and there is no new one yet"
            raise MetadataUnavailable(self._uri, operation, self._timeout_s, reason)
        return self.session.session_id

    def _on_began(self, session_id: str, at: float) -> None:
        if self._lease is not None:
            self._lease.end()
        self._lease = Lease(
            session_id,
            proven_at=at,
            timeout_s=self._session_timeout_s,
            on_lost=lambda: self._keeper.give_up(session_id),
        )
        if self._closed:
            self._lease.end()
        elif not self._began.done():
            self._began.set_result(None)

    def _on_proven(self, session_id: str, at: float) -> None:
        if self._lease is not None and self._lease.session.session_id == session_id:
            self._lease.prove(at)

    def _on_ended(self, session_id: str) -> None:
        if self._lease is not None and self._lease.session.session_id == session_id:
            self._lease.end()


class _Worker:
    """One daemon thread, which does calls one after another.

    A daemon, because a call on a dead disk may never return: that must keep neither the
    event loop nor the end of the program waiting."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def run(self, call: Callable[[], _T], *, timeout_s: float) -> _T:
        """Return what *call* returns. Raises `TimeoutError`; a call not begun is then dropped."""
        future: Future[_T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(work)
        # Not wait_for: before Python 3.12 that swallows a cancellation that comes with the result.
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread when the calls before this one are done. Does not wait."""
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
