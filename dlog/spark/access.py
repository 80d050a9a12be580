"""How Spark's processes reach the cluster: blocking calls onto the process's own event loop.

An `Access` is made where it is used and nowhere earlier: Spark pickles readers and forks its
workers, and neither connections nor threads survive that. On executors one is kept per
namespace and process, because a worker serves many tasks. What only the driver calls is imported
there: executors have many workers, and each imports for itself.
"""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pyarrow as pa

from dlog.aio.namespace_connection import connect
from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import RangeReaders
from dlog.aio.store import ManifestNode
from dlog.arrow_batches import rows_of
from dlog.chunk import Chunk
from dlog.errors import DamagedLog, NoSuchLog, NoSuchSchema, NoSuchTable, Trimmed
from dlog.position import Timestamp, Txid
from dlog.row_schema import COLUMNS
from dlog.spark.errors import LogDeleted, RecordsTrimmed, StreamBroken
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import StreamPosition, name_of, namesake
from dlog.spark.plan import LogEnd, LogRange, TableSnapshot
from dlog.spark.selection import Selection
from dlog.sync.loop_thread import LoopThread
from ledger.errors import LogError
from ledger.tasks import for_each

if TYPE_CHECKING:
    from dlog.log_schema import LogSchema, LogSchemas
    from dlog.spark.consumer_progress import ConsumerMover
    from dlog.spark.log_ends import Tails, TailWatch

T = TypeVar("T")

READS_AHEAD_MAX: Final = 3
"""Reads of bookies before Spark asks for what they brought: `READ_BYTES_MAX` each, or one entry."""
LOOKS_AT_ONCE_MAX: Final = 32

OnGone = Callable[[str, int, int], None]
"""Is told of a log, and from which offset up to which its records are gone."""


class Access:
    """Blocking access to one namespace; connects at the first call. Used by one thread."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._thread = LoopThread.get()
        self._ledgers: Ledgers | None = None
        self._watch: TailWatch | None = None
        self._mover: ConsumerMover | None = None
        self._ranges: RangeReaders | None = None

    def tails(
        self,
        selection: Selection,
        *,
        following: Mapping[str, str],
        enough: "Callable[[Tails], bool]",
        wait_s: float,
    ) -> "Tails":
        """Return the tails of the logs of *selection*; wait up to *wait_s* for *enough*.

        See `TailWatch.tails`; one access watches one selection. Trouble that may pass is raised
        when *wait_s* is over, so that who tries again at once does so in peace."""
        return self._thread.run(self._tails(selection, following, enough, wait_s))

    def ends(self, selection: Selection, *, following: Mapping[str, str] | None = None) -> "Tails":
        """Return the tails with everything that was acknowledged before the call.

        Without *following* `NoSuchLog` is raised if a log that was named is not there."""
        return self._thread.run(self._ends(selection, following))

    def tables(self, tails: "Mapping[str, LogEnd]") -> dict[str, TableSnapshot]:
        """Return the tables of the logs as they are now; none of one that is to have a table, and
        has none yet. Raises `NoSuchTable` for one that is to have none, and `TableDiverged`."""
        return self._thread.run(self._tables(tails))

    def seek(self, log: str, incarnation: str, place: Timestamp | Txid) -> int:
        """Return the offset of the first record that reached *place*, or the end of the log."""
        return self._thread.run(self._seek(log, incarnation, place))

    def read(
        self,
        piece: LogRange,
        *,
        columns: tuple[str, ...] = COLUMNS,
        on_gone: OnGone | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield *columns* of exactly the records of *piece*, in order, or raise.

        With *on_gone*, records that were trimmed or whose log was deleted are skipped; without it
        they are `RecordsTrimmed` and `LogDeleted`."""
        first = piece.first
        while first < piece.end:
            try:
                for chunks in self._reads(replace(piece, first=first)):
                    first = chunks[-1].end
                    yield from rows_of(piece.log, chunks, columns=columns)
            except (Trimmed, NoSuchLog) as error:
                if on_gone is None:
                    raise _gone(piece.log, first, error) from error
                known = error.first_offset if isinstance(error, Trimmed) else piece.end
                gone_to = min(piece.end, known)
                if gone_to <= first:
                    raise
                on_gone(piece.log, first, gone_to)
                first = gone_to

    def schemas(self, incarnation: str) -> "LogSchemas":
        """Return the schemas of the log with *incarnation*, as of now."""
        return self._thread.run(self._schemas(incarnation))

    def newest_schemas(self, selection: Selection) -> "dict[str, LogSchema]":
        """Return the newest schema of each log of *selection*, by its name, sorted.

        Raises `NoSuchLog`, `NoSuchSchema`."""
        return self._thread.run(self._newest_schemas(selection))

    def newest_schema(self, log: str) -> "LogSchema | None":
        """Return the newest schema of *log*; None: there is none, or no such log."""
        try:
            return self._thread.run(self._newest_schemas(Selection(names=(log,))))[log]
        except (NoSuchLog, NoSuchSchema):
            return None

    def move(self, consumer: str, positions: Mapping[str, StreamPosition]) -> bool:
        """Move the *consumer* of each log to its position; return whether all are there."""
        return self._thread.run(self._move(consumer, positions))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* where the connections are."""
        return self._thread.run(work)

    async def connected(self) -> Ledgers:
        """Return the client, for what `run` runs."""
        if self._ledgers is None:
            self._ledgers = await connect(self._namespace.uri, given=dict(self._namespace.given))
        return self._ledgers

    def close(self) -> None:
        """Close the connections."""
        self._thread.run(self._close())

    def _reads(self, piece: LogRange) -> Iterator[list[Chunk]]:
        reads: asyncio.Queue[list[Chunk]] = asyncio.Queue(READS_AHEAD_MAX)
        reading = asyncio.run_coroutine_threadsafe(self._read_into(reads, piece), self._thread.loop)
        expected = piece.first
        try:
            while chunks := self._thread.run(reads.get()):
                for chunk in chunks:
                    if chunk.begin != expected:
                        reason = f"offset {chunk.begin} came where {expected} should be"
                        raise DamagedLog(piece.log, reason)
                    expected = chunk.end
                yield chunks
            reading.result()
        finally:
            reading.cancel()
        if expected != piece.end:
            raise DamagedLog(piece.log, f"it was read up to {expected} instead of {piece.end}")

    async def _tails(
        self,
        selection: Selection,
        following: Mapping[str, str],
        enough: "Callable[[Tails], bool]",
        wait_s: float,
    ) -> "Tails":
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        from dlog.spark.log_ends import NewsFile, TailWatch

        try:
            if self._watch is None:
                self._watch = TailWatch(await self.connected(), selection, NewsFile.of_driver())
            return await self._watch.tails(following, enough=enough, wait_s=wait_s)
        except LogError as error:
            if error.retryable:
                await asyncio.sleep(max(0.0, deadline - loop.time()))
            raise

    async def _ends(self, selection: Selection, following: Mapping[str, str] | None) -> "Tails":
        from dlog.aio.store import listed_names
        from dlog.spark.log_ends import keyed

        ledgers = await self.connected()
        at_once = asyncio.Semaphore(LOOKS_AT_ONCE_MAX)
        found: Tails = {}
        renamed: list[str] = []

        async def look(log: str, incarnation: str | None) -> None:
            async with at_once:
                try:
                    found[log], name = await end_of(ledgers, name_of(log), incarnation)
                except NoSuchLog:
                    if selection.pattern is None and following is None:
                        raise
                else:
                    if name != log and log in names:
                        renamed.append(log)

        names = selection.names
        if selection.pattern is not None:
            names = tuple(selection.among(await listed_names(ledgers.store)))
        known = {
            log: each for log, each in (following or {}).items() if selection.chosen(name_of(log))
        }
        await gathered(look(log, each) for log, each in (dict.fromkeys(names) | known).items())
        await gathered(look(namesake(name), None) for name in sorted(renamed))
        return keyed(found, known)

    async def _tables(self, tails: "Mapping[str, LogEnd]") -> dict[str, TableSnapshot]:
        from dlog.aio.maintain.table import read_table
        from dlog.protocol.table import table_storage

        ledgers = await self.connected()
        tables: dict[str, TableSnapshot] = {}

        async def look(log: str, tail: LogEnd) -> None:
            node = ManifestNode(ledgers.store, name_of(log))
            node.follow(tail.incarnation)
            try:
                manifest, table = await read_table(ledgers, node)
            except NoSuchTable:
                manifest, _ = await node.read()
                if not manifest.settings.archive_table:
                    raise
            else:
                tables[log] = TableSnapshot(table_storage(manifest), table)

        await for_each(list(tails), lambda log: look(log, tails[log]), at_once=LOOKS_AT_ONCE_MAX)
        return tables

    async def _seek(self, log: str, incarnation: str, place: Timestamp | Txid) -> int:
        from dlog.aio.read.places import start_offset

        ledgers = await self.connected()
        node = ManifestNode(ledgers.store, log)
        node.follow(incarnation)
        return await start_offset(ledgers, node, place)

    async def _schemas(self, incarnation: str) -> "LogSchemas":
        from dlog.aio.procedures import run_on_store
        from dlog.protocol.schema_steps import schemas_of

        return await run_on_store(schemas_of(incarnation), (await self.connected()).store)

    async def _newest_schemas(self, selection: Selection) -> "dict[str, LogSchema]":
        from dlog.aio.admin import log_schemas
        from dlog.aio.store import listed_names

        ledgers = await self.connected()
        names: Iterable[str] = selection.names
        if selection.pattern is not None:
            names = selection.among(await listed_names(ledgers.store))
        return {
            name: (await log_schemas(name, client=ledgers)).find(name) for name in sorted(names)
        }

    async def _move(self, consumer: str, positions: Mapping[str, StreamPosition]) -> bool:
        from dlog.spark.consumer_progress import ConsumerMover

        if self._mover is None:
            self._mover = ConsumerMover(await self.connected(), consumer)
        return await self._mover.move(positions)

    async def _read_into(self, reads: asyncio.Queue[list[Chunk]], piece: LogRange) -> None:
        """Put the chunks of *piece* into the queue, and none at the end, even after an error."""
        try:
            if self._ranges is None:
                self._ranges = RangeReaders(await self.connected())
            ranges = self._ranges.read(
                piece.log, piece.first, piece.end, incarnation=piece.incarnation
            )
            found = cast("AsyncGenerator[list[Chunk], None]", ranges)
            async with aclosing(found):
                async for chunks in found:
                    await reads.put(chunks)
        except asyncio.CancelledError:
            raise  # nobody takes anything any more: there may be no room for an end, ever
        except BaseException:
            await reads.put([])
            raise
        else:
            await reads.put([])

    async def _close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
            self._watch = None
        self._mover = None
        if self._ranges is not None:
            await self._ranges.close()
            self._ranges = None
        if self._ledgers is not None:
            await self._ledgers.close()
            self._ledgers = None


def _gone(log: str, first: int, error: Trimmed | NoSuchLog) -> StreamBroken:
    if isinstance(error, Trimmed):
        return RecordsTrimmed(log, first, error.first_offset)
    return LogDeleted(log, first)


async def gathered(looks: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all of *looks*, then raise what the first of them raised, if any did."""
    for looked in await asyncio.gather(*looks, return_exceptions=True):
        if looked is not None:
            raise looked


async def end_of(ledgers: Ledgers, log: str, incarnation: str | None) -> tuple[LogEnd, str]:
    """Return the tail of *log*, with all that was acknowledged before the call, and its name."""
    from dlog.aio.read.tails import TailTracker, end_now
    from dlog.spark.log_ends import tail_for_planning

    tracker = TailTracker(ledgers, log)
    if incarnation is not None:
        tracker.follow(incarnation)
    try:
        found = await tracker.poll()
    finally:
        await tracker.close()
    tail = tail_for_planning(found)
    node = ManifestNode(ledgers.store, log)
    node.follow(tail.incarnation)
    tail = replace(tail, next_offset=max(tail.next_offset, await end_now(ledgers, node)))
    return tail, found.log


_shared: dict[tuple[Namespace, int], Access] = {}


def shared_access(namespace: Namespace) -> Access:
    """Return this process's access to *namespace*, made at the first call.

    Keyed by process: what a forked worker inherits is not its own."""
    key = (namespace, os.getpid())
    if key not in _shared:
        _shared[key] = Access(namespace)
        # Spark collects garbage after each task, and goes through all modules for it: 30 ms. What
        # is loaded by now stays as long as the process does.
        gc.freeze()
    return _shared[key]


def forget_shared_access(namespace: Namespace) -> None:
    """Close this process's access to *namespace*, after an error: the next one starts afresh."""
    access = _shared.pop((namespace, os.getpid()), None)
    if access is not None:
        access.close()
