"""Ledgers in memory: what the log layer sees of the floors below, simple and honest.

A cluster holds ledgers that are OPEN, IN_RECOVERY or CLOSED; adds are stored at once and
confirmed at the loop's next turn, or when the test says so (`hold`, `release`). Recovery
fences: what was stored is kept unless the test drops it, pending adds fail, the end is fixed.
Every call can be made to fail or to wait by `before`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ledger.entry import Digest, encode_frame, parse_header
from ledger.errors import HandleClosed, LedgerFenced, LogError, NoSuchLedger
from ledger.feature_level import LEVEL_MAX
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import MetadataStore
from ledger.protocol.answers import Found
from ledger.quorum import Quorum
from ledger.requests import Status
from ledger.security.certificates import Security

Hook = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FakeEntry:
    ledger_id: LedgerId
    entry_id: EntryId
    payload: bytes
    length: int

    @property
    def frame(self) -> memoryview:
        frame = encode_frame(
            ledger_id=self.ledger_id,
            entry_id=self.entry_id,
            last_add_confirmed=self.entry_id - 1,
            length=self.length,
            payload=self.payload,
        )
        return memoryview(frame)


@dataclass(slots=True)
class FakeLedger:
    ledger_id: LedgerId
    custom: Mapping[str, bytes]
    quorum: Quorum
    state: LedgerState = LedgerState.OPEN
    entries: list[bytes] = field(default_factory=list)
    last_add_confirmed: int = NO_ENTRY
    silent: bool = False
    """Whether readers are not told any more what is confirmed: the writer died before."""
    told: int = NO_ENTRY
    """What readers were told last, while `silent`."""
    pending: deque[asyncio.Future[EntryId]] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    created_ms: int = field(default_factory=now_ms)

    @property
    def metadata(self) -> LedgerMetadata:
        bookies = tuple(BookieId(f"b{i}") for i in range(self.quorum.ensemble))
        metadata = LedgerMetadata(
            quorum=self.quorum,
            fragments=(Fragment(EntryId(0), bookies),),
            custom=self.custom,
            created_ms=self.created_ms,
        )
        if self.state is LedgerState.CLOSED:
            length = sum(map(len, self.entries))
            return metadata.closed(EntryId(len(self.entries) - 1), length)
        return metadata

    @property
    def published(self) -> int:
        """The last add confirmed as readers know it."""
        return self.told if self.silent else self.last_add_confirmed

    def silence(self) -> None:
        """Tell readers nothing of what is confirmed from here on."""
        self.told, self.silent = self.last_add_confirmed, True

    def tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def confirm(self, count: int | None = None) -> None:
        """Confirm pending adds: *count* of them, or all."""
        left = len(self.pending) if count is None else count
        while left and self.pending:
            left -= 1
            self.last_add_confirmed += 1
            future = self.pending.popleft()
            if not future.done():
                future.set_result(EntryId(self.last_add_confirmed))
        self.tell()

    def fail(self, error: LogError) -> None:
        while self.pending:
            future = self.pending.popleft()
            if not future.done():
                future.set_exception(error)
                future.exception()  # a writer may have gone


class FakeCluster:
    """What all clients of one test share."""

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, FakeLedger] = {}
        self.held = False
        self.level = LEVEL_MAX
        self.keep_unconfirmed = True
        """Whether recovery keeps entries that were stored and not confirmed."""
        self.deleted: list[LedgerId] = []
        self.open_readers = 0
        self.hooks: dict[str, Hook] = {}
        self._next_id = 1

    def client(self, store: MetadataStore | None = None) -> "FakeLedgers":
        return FakeLedgers(self, store or MemoryStore("memory://fake", "fake"))

    def before(self, operation: str, hook: Hook) -> None:
        """Await *hook* with the operation's arguments before each *operation*."""
        self.hooks[operation] = hook

    def fail_next(self, operation: str, *errors: LogError) -> None:
        """Let the next calls of *operation* fail, one with each of *errors*."""
        waiting = deque(errors)

        async def hook(*_: object) -> None:
            if waiting:
                raise waiting.popleft()

        self.before(operation, hook)

    def hold(self) -> None:
        """Store adds from now on, but do not confirm them."""
        self.held = True

    def release(self) -> None:
        self.held = False
        for ledger in self.ledgers.values():
            if ledger.state is LedgerState.OPEN:
                ledger.confirm()

    def ledger(self, ledger_id: LedgerId) -> FakeLedger:
        if ledger_id not in self.ledgers:
            raise NoSuchLedger(ledger_id)
        return self.ledgers[ledger_id]

    def new_ledger(self, quorum: Quorum, custom: Mapping[str, bytes]) -> FakeLedger:
        ledger = FakeLedger(LedgerId(self._next_id), custom, quorum)
        self._next_id += 1
        self.ledgers[ledger.ledger_id] = ledger
        return ledger

    def fence(self, ledger: FakeLedger) -> None:
        if ledger.state is LedgerState.OPEN:
            ledger.state = LedgerState.IN_RECOVERY
            ledger.fail(LedgerFenced(ledger.ledger_id))

    async def run_hook(self, operation: str, *arguments: object) -> None:
        hook = self.hooks.get(operation)
        if hook is not None:
            await hook(*arguments)


Settled = Callable[[EntryId | LogError], None]


def tell(added: asyncio.Future[EntryId], settled: Settled) -> None:
    """Call *settled* once it is known what became of the entry."""

    def done(_: asyncio.Future[EntryId]) -> None:
        error = added.exception()
        assert error is None or isinstance(error, LogError)
        settled(added.result() if error is None else error)

    added.add_done_callback(done)


class FakeWriter:
    def __init__(self, cluster: FakeCluster, ledger: FakeLedger) -> None:
        self.ledger_id = ledger.ledger_id
        self.error: LogError | None = None
        self._cluster, self._ledger = cluster, ledger

    @property
    def metadata(self) -> LedgerMetadata:
        return self._ledger.metadata

    def add(self, payload: bytes) -> asyncio.Future[EntryId]:
        if self.error is not None:
            raise self.error
        loop = asyncio.get_running_loop()
        future: asyncio.Future[EntryId] = loop.create_future()
        ledger = self._ledger
        if ledger.state is not LedgerState.OPEN:
            self.error = LedgerFenced(self.ledger_id)
            loop.call_soon(future.set_exception, self.error)
            return future
        ledger.entries.append(payload)
        ledger.pending.append(future)
        if not self._cluster.held:
            loop.call_soon(self._confirm)
        return future

    def add_all(self, entries: Sequence[tuple[bytes, Settled]]) -> None:
        if self.error is not None:
            raise self.error
        for payload, settled in entries:
            try:
                added = self.add(payload)
            except LogError as error:
                asyncio.get_running_loop().call_soon(settled, error)
            else:
                tell(added, settled)

    def _confirm(self) -> None:
        if not self._cluster.held and self._ledger.state is LedgerState.OPEN:
            self._ledger.confirm()

    async def close(self) -> LedgerMetadata:
        await self._cluster.run_hook("close", self.ledger_id)
        if self._ledger.state is not LedgerState.OPEN:
            raise LedgerFenced(self.ledger_id)
        assert not self._ledger.pending, "closed with adds pending"
        self._ledger.state = LedgerState.CLOSED
        self._ledger.tell()
        return self._ledger.metadata

    def publish(self) -> None:
        """Readers here see at once what is confirmed."""

    async def abandon(self) -> None:
        self.error = self.error or HandleClosed("writer")


class FakeReader:
    def __init__(self, cluster: FakeCluster, ledger: FakeLedger) -> None:
        self.ledger_id = ledger.ledger_id
        self._cluster, self._ledger = cluster, ledger
        self._closed_handle = False
        cluster.open_readers += 1
        self._proven: int = NO_ENTRY

    @property
    def custom(self) -> Mapping[str, bytes]:
        return self._ledger.custom

    @property
    def closed(self) -> bool:
        return self._ledger.state is LedgerState.CLOSED

    @property
    def last_entry(self) -> EntryId | None:
        return EntryId(len(self._ledger.entries) - 1) if self.closed else None

    @property
    def last_add_confirmed(self) -> EntryId:
        return EntryId(self._end)

    @property
    def _end(self) -> int:
        if self.closed:
            return len(self._ledger.entries) - 1
        return max(self._ledger.published, self._proven)

    async def read_last_add_confirmed(self) -> EntryId:
        await self._cluster.run_hook("lac", self.ledger_id)
        self._cluster.ledger(self.ledger_id)
        return EntryId(self._end)

    async def read_last_stored(self) -> EntryId:
        await self._cluster.run_hook("lac", self.ledger_id)
        self._cluster.ledger(self.ledger_id)
        return EntryId(len(self._ledger.entries) - 1)

    def learn_confirmed(self, entry_id: int) -> None:
        assert entry_id <= self._ledger.last_add_confirmed or self.closed, "it is not confirmed"
        self._proven = max(self._proven, entry_id)

    async def read(self, first: int, last: int) -> list[FakeEntry]:
        assert last <= self._end, "read beyond the last add confirmed"
        return [self._entry(i) for i in range(first, last + 1)]

    async def read_some(
        self, first: int, *, last: int | None = None, bytes_max: int = 1 << 20, wait_s: float = 0.0
    ) -> Sequence[FakeEntry]:
        await self._cluster.run_hook("read", self.ledger_id, first)
        self._cluster.ledger(self.ledger_id)
        if self._end < first and not self.closed and wait_s:
            try:
                async with asyncio.timeout(wait_s):
                    while self._end < first and not self.closed:
                        await self._ledger.news.wait()
            except TimeoutError:
                return []
            self._cluster.ledger(self.ledger_id)
        some: list[FakeEntry] = []
        stop = self._end if last is None else min(last, self._end)
        size = 0
        for entry_id in range(first, stop + 1):
            payload = self._ledger.entries[entry_id]
            if some and size + len(payload) > bytes_max:
                break
            size += len(payload)
            some.append(self._entry(entry_id))
        return some

    def _entry(self, entry_id: int) -> FakeEntry:
        entries = self._ledger.entries
        length = sum(map(len, entries[: entry_id + 1]))
        return FakeEntry(self.ledger_id, EntryId(entry_id), entries[entry_id], length)

    async def close(self) -> None:
        if not self._closed_handle:
            self._cluster.open_readers -= 1
        self._closed_handle = True


class FakeLedgers:
    """One process's client."""

    def __init__(self, cluster: FakeCluster, store: MetadataStore) -> None:
        self.cluster = cluster
        self.store = store
        self.security: Security | None = None

    @property
    def level(self) -> int:
        return self.cluster.level

    async def create(
        self,
        quorum: Quorum | None = None,
        *,
        digest: Digest = Digest.CRC32C,
        custom: Mapping[str, bytes] | None = None,
        degraded_writes: bool = False,
    ) -> FakeWriter:
        await self.cluster.run_hook("create", custom)
        ledger = self.cluster.new_ledger(quorum or Quorum(), dict(custom or {}))
        return FakeWriter(self.cluster, ledger)

    async def open_no_recovery(self, ledger_id: LedgerId) -> FakeReader:
        await self.cluster.run_hook("open", ledger_id)
        return FakeReader(self.cluster, self.cluster.ledger(ledger_id))

    async def recover(self, ledger_id: LedgerId) -> LedgerMetadata:
        await self.cluster.run_hook("recover", ledger_id)
        ledger = self.cluster.ledger(ledger_id)
        self.cluster.fence(ledger)
        if ledger.state is not LedgerState.CLOSED:
            if not self.cluster.keep_unconfirmed:
                del ledger.entries[ledger.last_add_confirmed + 1 :]
            ledger.state = LedgerState.CLOSED
            ledger.tell()
        return ledger.metadata

    async def read_replica(
        self,
        ledger_id: LedgerId,
        bookie: BookieId,
        first: int,
        last: int,
        *,
        metadata: LedgerMetadata | None = None,
    ) -> Found:
        """Every bookie has everything."""
        await self.cluster.run_hook("replica", ledger_id, bookie)
        entries = self.cluster.ledger(ledger_id).entries
        frames: dict[int, memoryview] = {}
        length = sum(map(len, entries[:first]))
        for entry_id in range(first, min(last + 1, len(entries))):
            length += len(entries[entry_id])
            frame = encode_frame(
                ledger_id=ledger_id,
                entry_id=entry_id,
                last_add_confirmed=entry_id - 1,
                length=length,
                payload=entries[entry_id],
            )
            frames[entry_id] = memoryview(frame)
        headers = {entry_id: parse_header(frame) for entry_id, frame in frames.items()}
        return Found(Status.OK, headers, frames, last)

    async def describe(self, ledger_id: LedgerId) -> LedgerMetadata:
        await self.cluster.run_hook("describe", ledger_id)
        return self.cluster.ledger(ledger_id).metadata

    async def list(self) -> AsyncIterator[LedgerId]:
        await self.cluster.run_hook("list")
        for ledger_id in sorted(self.cluster.ledgers):
            yield ledger_id

    async def delete(self, ledger_id: LedgerId) -> None:
        await self.cluster.run_hook("delete", ledger_id)
        ledger = self.cluster.ledgers.pop(ledger_id, None)
        if ledger is not None:
            self.cluster.deleted.append(ledger_id)
            ledger.tell()  # not fenced: bookies notice a deletion in their own time

    async def close(self) -> None:
        pass
