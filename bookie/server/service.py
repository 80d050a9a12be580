"""Drives `BookieCore` with asyncio and threads; knows nothing of the wire.

Who runs where: requests and all decisions on the event loop; `storage.commit` in a loop on a
thread per journal, woken by adds and fences, or on the loop where that is quicker
(`CommitPlace`, `CommitMoment`); `storage.checkpoint` on the sync thread, by time,
by bytes taken since the last one, when there may be space again, and at the end; disk reads on
a small pool. A storage that fails in commit or checkpoint is not trusted again: `failure` is
set, nothing is acknowledged any more, and the process is expected to end (rule 60).

A storage without space is read-only and keeps what is queued; its journal threads try again
every now and then, also with nothing queued, as it is a commit that finds the space.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from bookie.server.core import (
    BookieCore,
    ListDisk,
    Load,
    ReadDisk,
    Storage,
    UntilChanged,
    UntilDurable,
)
from bookie.server.limits import ServiceConfig
from bookie.server.metadata_lookups import MadeLedgers
from bookie.storage.add_lookup import Prepared
from ledger import procedures
from ledger.errors import BadMessage, StorageError
from ledger.log_events import get_logger
from ledger.protocol.procedure import Action, Steps
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)

HERE_BYTES_MAX: Final = 16 * 1024
"""Frames of a group; more is worth a wake-up, and takes longer."""
TIMES: Final = 64
"""So many of the last commits are looked at; before that, the disk is not known."""
FAST_S: Final = 0.002
"""As a commit is seen from outside: on a busy machine half of it is the wait for a turn."""
SLOW_MAX: Final = TIMES // 10
"""So many of them may have taken longer than `FAST_S`."""
HUNG_S: Final = 0.030
"""None of them may have taken as long as this."""
TOGETHER_S: Final = 0.0001
"""Adds of another client that are found so soon after a commit had come before it."""
SHARES: Final = 64
"""So many commits in a row wait for others once two clients came together."""
_WAIT_MS_MAX: Final = 60_000
_NO_SPACE_RETRY_S: Final = 0.2
_Answer = TypeVar("_Answer")
_Asked = TypeVar("_Asked")
_Value = TypeVar("_Value")
_log = get_logger(__name__)


class CommitPlace:
    """Where a group of records is committed: on the event loop, or by its journal's thread.

    To hand a group to the thread and back is two wake-ups, about as long as a good disk takes to
    sync it. So a bookie with one journal commits little at once, on the loop, as long as the disk
    is fast: then nobody waits longer than for the answer anyway. Everything else is the thread's,
    so that the loop reads on meanwhile, and so that a slow disk holds up nothing but adds and
    fences.

    What it cannot know is that a disk will hang *now*: then reads from memory and long polls wait
    with that one sync, and the next ones are the thread's. Pure: times in, a decision out.
    """

    def __init__(self, journals: int) -> None:
        self._is_possible = journals == 1
        self._times: deque[float] = deque()
        self._slow = self._hung = 0
        """How many of them took as long as `FAST_S`, as `HUNG_S`."""
        self._is_fast = False

    def took(self, seconds: float) -> None:
        """Take note of a commit, wherever it was."""
        self._times.append(seconds)
        self._slow += seconds >= FAST_S
        self._hung += seconds >= HUNG_S
        if len(self._times) > TIMES:
            gone = self._times.popleft()
            self._slow -= gone >= FAST_S
            self._hung -= gone >= HUNG_S
        self._is_fast = len(self._times) == TIMES and self._slow <= SLOW_MAX and not self._hung

    def is_here(self, size_bytes: int) -> bool:
        """Whether a group of so many bytes is to be committed on the loop."""
        return self._is_possible and self._is_fast and size_bytes <= HERE_BYTES_MAX


class CommitMoment:
    """When a small group is committed on the loop: at once, or when all is taken that came in this
    turn of the loop.

    At once is quicker for a client that is alone. Of clients that come together each would wait for
    the syncs of all before it, so they share one. Pure: times in, a decision out.
    """

    def __init__(self) -> None:
        self._shares = 0
        """So many more commits wait for the end of their turn."""
        self._last: object = None
        self._last_ended = -TOGETHER_S

    def is_now(self, client: object, now: float) -> bool:
        """Whether what *client* has brought is to be committed at once; *now*: when taking it
        began, as to take much takes longer than clients that come together are apart."""
        if self._shares:
            return False
        if client is not self._last and now - self._last_ended < TOGETHER_S:
            self._shares = SHARES  # its adds were there already when the last ones were committed
            return False
        return True

    def committed(self, client: object, ended: float, *, others: bool) -> None:
        """Take note of a commit of what *client*, None: nobody, and *others*, brought."""
        if client is None:
            return
        self._last, self._last_ended = client, ended
        if self._shares:
            self._shares = SHARES if others else self._shares - 1


class Turn(Protocol):
    """When a read may be served, for whoever has to share with others."""

    async def take(self) -> bool:
        """Wait for it; return False if that takes too long."""
        ...

    def give_back(self) -> None: ...


class BookieService:
    """See the module's docstring. Takes over *storage* and closes it."""

    def __init__(
        self,
        storage: Storage,
        info: InfoAnswer,
        config: ServiceConfig,
        *,
        made: MadeLedgers | None = None,
    ) -> None:
        """*made* is asked about ledgers that were never here; None: all are taken."""
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[BaseException] = loop.create_future()
        """Set once, to why the storage cannot go on."""
        self.stopping = asyncio.Event()
        self._loop = loop
        self._info = info
        self._config = config
        self._storage = storage
        self._made = made
        self._core = BookieCore(storage, config.limits)
        self.reads = Counter[Status]()
        """By their answer."""
        self.read_entries = self.read_bytes = 0
        self._streams: dict[AddStream, None] = {}
        self._open: dict[AddStream, None] = {}
        """Those that have taken what is not answered yet."""
        self._until_durable: list[tuple[int, asyncio.Future[bool]]] = []
        self._until_changed: dict[int, list[asyncio.Future[bool]]] = {}
        self._bytes_since_checkpoint = 0
        self._bytes_waiting = 0
        """Taken since a commit ended."""
        self._place = CommitPlace(storage.journals)
        self._moment = CommitMoment()
        self._taker: AddStream | None = None
        """Has taken adds since a commit ended, as the last one."""
        self._others_took = False
        """Whether others have, too."""
        self._committing = [threading.Lock() for _ in range(storage.journals)]
        self._commits_soon = False
        """Whether the loop will commit when what it has read is taken."""
        self._ending = threading.Event()
        self._journal_wakes = [threading.Event() for _ in range(storage.journals)]
        self._sync_wake = threading.Event()
        self._readers = ThreadPoolExecutor(config.read_threads, "bookie-read")
        self._threads = ThreadPoolExecutor(storage.journals + 1, "bookie-disk")
        self._journals = [
            loop.run_in_executor(self._threads, partial(self._commit_loop, journal, wake))
            for journal, wake in enumerate(self._journal_wakes)
        ]
        self._sync = loop.run_in_executor(self._threads, self._checkpoint_loop)
        for thread in (*self._journals, self._sync):
            thread.add_done_callback(self._thread_ended)

    @property
    def core(self) -> BookieCore:
        """For whoever looks at its counts; nobody else."""
        return self._core

    @property
    def streams(self) -> int:
        """How many streams of adds there are."""
        return len(self._streams)

    @property
    def info(self) -> InfoAnswer:
        read_only = self._storage.read_only
        if read_only != self._info.read_only:
            self._info = replace(self._info, read_only=read_only)
        return self._info

    def stream(self, on_ready: Callable[[], None]) -> "AddStream":
        """Return a new stream of adds; its user closes it. *on_ready* is called when
        `session.acks` has something to say."""
        stream = AddStream(self, self._core, on_ready)
        self._streams[stream] = None
        return stream

    async def read(self, query: ReadQuery, turn: Turn | None = None) -> ReadAnswer:
        """*turn* was taken. It is given back while the read waits for something to be confirmed."""
        answer = await self._read(query, turn)
        self.reads[answer.status] += 1
        self.read_entries += len(answer.entries)
        self.read_bytes += len(answer.frames)
        return answer

    async def _read(self, query: ReadQuery, turn: Turn | None) -> ReadAnswer:
        if query.fence and await self._admits(query.ledger_id, query.key) is not Status.OK:
            return ReadAnswer(Status.TOO_MANY_REQUESTS)
        try:
            return await self._drive(self._core.read(query), query.wait_ms, turn)
        except (StorageError, OSError) as error:
            _log.error("read_failed", ledger_id=query.ledger_id, reason=str(error))
            return ReadAnswer(Status.IO_ERROR)

    async def read_lac(self, query: LacQuery) -> LacAnswer:
        if query.fence and await self._admits(query.ledger_id, query.key) is not Status.OK:
            return LacAnswer(Status.TOO_MANY_REQUESTS)
        try:
            return await self._drive(self._core.read_lac(query), 0)
        except (StorageError, OSError) as error:
            _log.error("read_lac_failed", ledger_id=query.ledger_id, reason=str(error))
            return LacAnswer(Status.IO_ERROR)

    async def read_held(self, query: HeldQuery) -> HeldAnswer:
        try:
            return await self._drive(self._core.read_held(query), 0)
        except (StorageError, OSError) as error:
            _log.error("read_held_failed", ledger_id=query.ledger_id, reason=str(error))
            return HeldAnswer(Status.IO_ERROR)

    def stop_taking(self) -> None:
        """Let waiting reads answer now and streams end after what they have taken."""
        self.stopping.set()
        self._storage.hurry()
        for waiting in self._until_changed.values():
            for future in waiting:
                _resolve(future, False)

    def abandon(self) -> None:
        """After a failure: let threads that may hang in the disk be."""
        assert self.failure.done()
        self.stop_taking()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False)

    async def close(self) -> None:
        """Commit and checkpoint what was taken, end the threads, close the storage.

        After a failure nothing more is written."""
        self.stop_taking()
        self._wake_journals()
        await asyncio.wait(self._journals)
        self._sync_wake.set()
        await asyncio.wait([self._sync])
        if self.failure.done():
            self.abandon()
        else:
            self._threads.shutdown(wait=False)
            await asyncio.to_thread(self._readers.shutdown, cancel_futures=True)
            await asyncio.to_thread(self._storage.close)

    def fail(self, error: BaseException) -> None:
        """Take note that the storage cannot go on: nothing is committed from here on."""
        _resolve(self.failure, error)
        self._wake_journals()
        self._sync_wake.set()

    def checkpoint_soon(self) -> None:
        """Let the sync thread not wait for its time: there may be space again."""
        self._sync_wake.set()

    def commit(self, stream: "AddStream", ticket: int, size_bytes: int, began: float) -> None:
        """Commit what *stream* has taken since *began*, up to *ticket*: at once if that is
        quickest. *size_bytes* of it are new."""
        self._bytes_waiting += size_bytes
        self._bytes_since_checkpoint += size_bytes
        if self._bytes_since_checkpoint >= self._config.checkpoint_bytes:
            self._sync_wake.set()
        if ticket > self._core.durable:
            self._open[stream] = None
            if stream is not self._taker:
                self._others_took = self._taker is not None
                self._taker = stream
            if (
                self._commits_soon
                or not self._place.is_here(self._bytes_waiting)
                or not self._moment.is_now(stream, began)
                or self._storage.read_only
            ):
                self.commit_soon()
                return
            self._commit_here(0, self._journal_wakes[0])
        if self._core.changed:
            self._tell_changed()

    def commit_soon(self) -> None:
        """Wake whoever commits what is queued, and whoever waits for what just came in."""
        for journal, wake in enumerate(self._journal_wakes):
            if self._storage.has_pending(journal):
                self._commit_soon(journal, wake)
        self._tell_changed()

    def _tell_changed(self) -> None:
        for ledger_id in self._core.take_changed():
            for future in self._until_changed.get(ledger_id, ()):
                _resolve(future, True)

    def forget(self, stream: "AddStream") -> None:
        self._streams.pop(stream, None)
        self._open.pop(stream, None)

    async def _drive(
        self, steps: Steps[_Answer], wait_ms: int, turn: Turn | None = None
    ) -> _Answer:
        deadline = self._loop.time() + min(wait_ms, _WAIT_MS_MAX) / 1000

        async def perform(action: Action[Any]) -> object:
            self.commit_soon()
            match action:
                case UntilDurable(ticket, wait_s):
                    return await self._durable(ticket, wait_s)
                case UntilChanged(ledger_id):
                    return await self._changed(ledger_id, deadline, turn)
                case Load(ledger_id):
                    return await self.on_reader(self._storage.load, ledger_id)
                case ReadDisk(query):
                    return await self.on_reader(self._storage.read, query)
                case ListDisk(query):
                    return await self.on_reader(self._storage.held, query)
                case _:
                    raise AssertionError(f"nothing here does {action}")

        try:
            return await procedures.run(steps, perform)
        finally:
            self.commit_soon()

    def needs_nothing(self, runs: Sequence[AddRun]) -> bool:
        """Whether adds of *runs* need not be prepared: the common case."""
        storage, asks = self._storage, self._made is not None
        for run in runs:
            if not storage.is_ordinary(run) and (
                storage.needs_disk(run) or (asks and storage.is_new(run.ledger_id))
            ):
                return False
        return True

    async def prepare(self, runs: Sequence[AddRun]) -> Sequence[Prepared]:
        """Look up what adds of *runs* will need."""
        refused = await self._refused(runs)
        if not refused and not any(map(self._storage.needs_disk, runs)):
            return ()
        return [
            refused.get((run.ledger_id, run.key))
            or await self.on_reader(self._storage.prepare, run)
            for run in runs
        ]

    async def _refused(self, runs: Sequence[AddRun]) -> dict[tuple[int, bytes], Status]:
        """Return why nothing may be promised about some ledgers of *runs*, by id and key.

        All are asked about at once: the adds of all ledgers on the stream wait for it."""
        if self._made is None:
            return {}
        new = {
            (run.ledger_id, run.key): None for run in runs if self._storage.is_new(run.ledger_id)
        }
        if not new:
            return {}
        answers = await asyncio.gather(*(self._made.admits(*one) for one in new))
        answered = zip(new, answers, strict=True)
        return {one: status for one, status in answered if status is not Status.OK}

    async def _admits(self, ledger_id: int, key: bytes) -> Status:
        """Return OK if promises may be made about the ledger; asked if it was never here."""
        if self._made is None or not self._storage.is_new(ledger_id):
            return Status.OK
        return await self._made.admits(ledger_id, key)

    async def on_reader(self, call: Callable[[_Asked], _Value], asked: _Asked) -> _Value:
        """Call where blocking is allowed."""
        return await self._loop.run_in_executor(self._readers, call, asked)

    async def delete(self, ledger_ids: Sequence[int]) -> None:
        """Forget ledgers that were deleted from the cluster. Raises `DiskFull`, `StorageFailed`."""
        try:
            await self.on_reader(self._storage.delete, ledger_ids)
        except StorageError as error:
            self.fail(error)
            raise
        self._core.deleted(ledger_ids)
        self.commit_soon()

    def offer(self, ledger_ids: Sequence[int]) -> int:
        """See `bookie.storage.checkpoint.Checkpointer.offer`. Raises `StorageFailed`."""
        return self._storage.offer(ledger_ids)

    async def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        """Forget ledgers of an *offer* that nothing was promised of since. Raises `DiskFull`,
        `StorageFailed`."""
        try:
            await self._loop.run_in_executor(
                self._readers, partial(self._storage.evict, ledger_ids, offer)
            )
        except StorageError as error:
            self.fail(error)
            raise
        self._core.deleted(ledger_ids)
        self.commit_soon()

    async def _durable(self, ticket: int, wait_s: float | None) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        waiting = ticket, future
        self._until_durable.append(waiting)
        if wait_s is None:
            return await future
        timer = self._loop.call_later(wait_s, _resolve, future, False)
        try:
            return await future
        finally:
            timer.cancel()
            if waiting in self._until_durable:
                self._until_durable.remove(waiting)

    async def _changed(self, ledger_id: int, deadline: float, turn: Turn | None) -> bool:
        """Who finds no turn to look at what changed is told that nothing did."""
        if turn is None:
            return await self._until(ledger_id, deadline)
        turn.give_back()
        return await self._until(ledger_id, deadline) and await turn.take()

    async def _until(self, ledger_id: int, deadline: float) -> bool:
        if self.stopping.is_set():
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        timer = self._loop.call_at(deadline, _resolve, future, False)
        waiting = self._until_changed.setdefault(ledger_id, [])
        waiting.append(future)
        try:
            return await future
        finally:
            timer.cancel()
            waiting.remove(future)
            if not waiting:
                del self._until_changed[ledger_id]

    def _commit_soon(self, journal: int, wake: threading.Event) -> None:
        if self._commits_soon:
            return
        if self._place.is_here(self._bytes_waiting) and not self._storage.read_only:
            self._commits_soon = True  # once for all that this turn of the loop takes
            self._loop.call_soon(self._commit_here, journal, wake)
        else:
            wake.set()

    def _commit_here(self, journal: int, wake: threading.Event) -> None:
        """Commit on the loop, unless the thread is at it or has to bring it to its end."""
        self._commits_soon = False
        lock = self._committing[journal]
        if self.failure.done() or self._ending.is_set() or not lock.acquire(blocking=False):
            wake.set()
            return
        began = time.perf_counter()
        try:
            durable = self._storage.commit(journal)
        except Exception as error:  # noqa: BLE001 - whatever it is, a thread would end with it
            self.fail(error)
            return
        finally:
            lock.release()
        self._committed(durable, time.perf_counter() - began)
        if self._storage.read_only:
            wake.set()  # the thread looks for space: nothing may be added that would find it

    def _committed(self, durable: int, took_s: float) -> None:
        self._place.took(took_s)
        self._moment.committed(self._taker, time.perf_counter(), others=self._others_took)
        self._bytes_waiting, self._taker, self._others_took = 0, None, False
        if self.failure.done():
            return
        self._core.committed(durable)
        if self._until_durable:
            waiting, self._until_durable = self._until_durable, []
            for ticket, future in waiting:
                if ticket <= durable:
                    _resolve(future, True)
                else:
                    self._until_durable.append((ticket, future))
        for stream in tuple(self._open):
            open_batches = stream.session.open
            if open_batches and open_batches[0][1] <= self._core.durable:
                stream.on_ready()
            if not open_batches:
                self._open.pop(stream, None)

    def _thread_ended(self, thread: "asyncio.Future[None]") -> None:
        error = None if thread.cancelled() else thread.exception()
        if error is not None:
            self.fail(error)

    def _wake_journals(self) -> None:
        self._ending.set()
        for wake in self._journal_wakes:
            wake.set()

    def _commit_loop(self, journal: int, wake: threading.Event) -> None:
        """Run on the journal's thread until the service is closed and nothing is pending."""
        while not self.failure.done():
            wake.wait(_NO_SPACE_RETRY_S if self._storage.read_only else None)
            wake.clear()
            # Asked first: what was queued before the end is committed. While the bookie is
            # only stopping, its streams still answer what they have taken.
            ending = self._ending.is_set()
            if self._storage.has_pending(journal) or self._storage.read_only:
                self._commit_queued(journal)
            if ending:
                return

    def _commit_queued(self, journal: int) -> None:
        """Commit until nothing is pending. What queues while one commit runs is the next group."""
        durable = -1
        while not self.failure.done():
            before = durable
            with self._committing[journal]:
                began = time.perf_counter()
                durable = self._storage.commit(journal)
                took_s = time.perf_counter() - began
            self._loop.call_soon_threadsafe(self._committed, durable, took_s)
            if not self._storage.has_pending(journal):
                return
            no_space = durable == before and self._storage.read_only
            if no_space and self._ending.wait(_NO_SPACE_RETRY_S):
                return  # what waits was not acknowledged

    def _checkpoint_loop(self) -> None:
        """Run on the sync thread until stopped; the last checkpoint follows the last commit."""
        while not self.failure.done():
            self._sync_wake.wait(self._config.checkpoint_interval_s)
            self._sync_wake.clear()
            last = self.stopping.is_set() and all(journal.done() for journal in self._journals)
            if self.failure.done():
                return
            self._bytes_since_checkpoint = 0
            self._storage.checkpoint()
            if last:
                return


class AddStream:
    """One client's batches on their way in and their acks on the way out."""

    def __init__(
        self, service: BookieService, core: BookieCore, on_ready: Callable[[], None]
    ) -> None:
        self._service = service
        self.session: Final = core.session()
        self.on_ready: Final = on_ready
        self._ticket = 0
        """The highest of what was taken."""
        self._size_bytes = 0
        """Taken since the last `commit`."""

    async def prepare(self, runs: Sequence[AddRun]) -> Sequence[Prepared]:
        """Return what `offer` needs to know of *runs*, unless they need nothing."""
        return await self._service.prepare(runs)

    def offer(self, batch: int, runs: Sequence[AddRun], prepared: Sequence[Prepared] = ()) -> None:
        """Take a batch; `commit` once all that came together is taken. Raises `BadMessage`."""
        try:
            ticket = self.session.offer(batch, runs, prepared)
        except BadMessage:
            raise
        except Exception as error:
            self._service.fail(error)  # what the storage holds now is not known
            raise
        self._ticket = max(self._ticket, ticket)
        for run in runs:
            self._size_bytes += len(run.frames)

    def commit(self, began: float) -> None:
        """Let what was taken since *began* (`time.perf_counter`) be committed, and answer what can
        be."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._service.commit(self, self._ticket, size_bytes, began)
        if self.session.open:
            self.look()

    @property
    def is_answered(self) -> bool:
        """Whether `session.acks` has given the answers to everything that was taken."""
        return not self.session.open

    def look(self) -> None:
        if self.session.ready:
            self.on_ready()

    def close(self) -> None:
        self._service.forget(self)


def _resolve(future: "asyncio.Future[_Value]", value: _Value) -> None:
    if not future.done():
        future.set_result(value)
