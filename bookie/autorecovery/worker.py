"""A repair worker: takes ledgers that are marked, one after the other, and repairs them.

It is woken by marks, by bookies that come and go, and by operators; else it looks by itself now and
then. What is deferred waits for its time, unless a bookie has come that it waited for. Several
workers may run, in one process or in many: locks keep them apart, and nothing but time is lost
where they do not. What is to be done with a ledger is decided by `protocol.repair`.

How fast workers may go, as an operator has set it while they run, and how fast they do go:

    /underreplicated/throttle           bytes a second and ledgers at a time, for each worker
    /underreplicated/workers/<token>    ephemeral: what a worker does, written while that changes

A worker that cannot read the throttle continues as before. What workers report of themselves is for
people; nothing is decided by it.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bookie.autorecovery.marks import FORMAT_VERSION, Marks
from bookie.autorecovery.options import MIB, RATE
from bookie.autorecovery.protocol.repair import RepairConfig, RepairEnd, RepairOutcome
from bookie.autorecovery.protocol.repair_queue import Queue
from bookie.autorecovery.repair_io import CopyPace, RepairCache, RepairContext, repair_ledger
from leader.withdrawal import first_of
from ledger.client import LedgerClient
from ledger.errors import DamagedMetadata, LogError, MetadataError, NodeExists, NoSuchNode
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger, now_ms
from ledger.metastore.port import MetadataStore, children_of, put_node
from ledger.nodes import parse_node
from ledger.process import this_process
from ledger.tasks import Background
from ledger.wire import metadata_pb2 as pb

WINDOW_S: Final = 60.0
STEP_S: Final = 1.0
"""Samples are that far apart, so that a window has a bounded number."""
PAUSE_S: Final = 1.0
"""After a scan that the metadata store ended."""
NOBODY: Final[frozenset[BookieId]] = frozenset()
THROTTLE: Final = "/underreplicated/throttle"
WORKERS: Final = "/underreplicated/workers"
LOOK_S: Final = 60.0
"""How often the throttle is read though nothing has changed."""
REPORT_S: Final = 5.0
REPORT_S_MAX: Final = 60.0
"""How old a report becomes though nothing has changed: its node may have gone with a session."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    bytes_per_s: float = RATE * MIB
    """Copied at most; 0: no limit."""
    ledgers_max: int = 4
    """Repaired at a time."""
    look_s: float = 30.0
    """How often to look for marks without a notification."""
    repair: RepairConfig = field(default_factory=RepairConfig)

    def __post_init__(self) -> None:
        assert self.bytes_per_s >= 0
        assert self.ledgers_max > 0
        assert self.look_s > 0


@dataclass(slots=True)
class Scan:
    """The result of one look at all marks."""

    outcomes: Counter[RepairOutcome] = field(default_factory=Counter)
    deferred: int = 0
    """Marks whose time has not come."""
    next_ms: int | None = None
    """When to look again at the latest, by the wall clock; None: nothing waits for a time."""


class Worker(Background):
    """`start` and `close`, or an async context manager; or only `run_once`."""

    def __init__(
        self,
        client: LedgerClient,
        config: WorkerConfig | None = None,
        *,
        wall_clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._client = client
        self._config = config or WorkerConfig()
        self._now_ms = wall_clock_ms
        self._marks = Marks(client.store, client.identities)
        self.pace = CopyPace(self._config.bytes_per_s)
        self._cache = RepairCache(self._marks)
        self.ledgers_max = self._config.ledgers_max
        """Repaired at a time."""
        self._context = RepairContext(
            client.environment,
            self._marks,
            self.pace,
            self._config.repair,
            self._cache,
            wall_clock_ms,
        )
        self._random = client.environment.random
        self._queue = Queue(self._random)
        self._revision = 0
        """Of what was seen, when the queue last heard of it."""
        self._seen_bookies: frozenset[BookieId] = frozenset()
        """Those who were there at the last scan."""
        self.outcomes: Counter[RepairOutcome] = Counter()
        """Of all repairs so far."""
        self.enabled = True
        """Whether repair was switched on when that was looked at last."""
        self.deferred = 0
        """Marks whose time had not come, at the last look at all of them."""
        self.interruptions = 0
        """Looks at all marks that the metadata store ended."""

    async def run(self) -> None:
        """Work until cancelled. What cannot be repaired now is tried again later."""
        store = self._client.store
        with (
            closing(self._marks.watch()) as notified,
            closing(self._marks.watch_switch()) as switched,
        ):
            while True:
                session, revision = store.session, self._client.bookies.revision
                pause_s = PAUSE_S
                try:
                    self.enabled = await self._marks.enabled()
                    if self.enabled:
                        # A switch ends the scan between two messages.
                        scan = await _unless(switched.changed(), self.run_once())
                        if scan is None:
                            continue
                        pause_s = self._until_next(scan)
                    else:
                        pause_s = self._config.look_s
                except LogError as error:
                    self.interruptions += 1
                    _log.warning("repair_interrupted", reason=str(error))
                if session.lost.is_set():
                    pause_s = min(pause_s, PAUSE_S)
                await first_of(
                    notified.changed(),
                    switched.changed(),
                    self._client.bookies.after(revision),
                    timeout_s=pause_s,
                )

    def throttle(self, bytes_per_s: float | None, ledgers_max: int | None) -> None:
        """Let these hold from now on; None: what it was configured with. Repairs under way are not
        stopped, so fewer ledgers at a time are reached as they end."""
        config = self._config
        self.pace.set_rate(config.bytes_per_s if bytes_per_s is None else bytes_per_s)
        self.ledgers_max = config.ledgers_max if ledgers_max is None else max(1, ledgers_max)

    async def run_once(self) -> Scan:
        """Look at all marks once, and repair what can be. Raises what listing marks raises."""
        there = self._client.environment.registered()
        rejoined = there if there - self._seen_bookies else NOBODY
        self._seen_bookies = there
        scan, queue = Scan(), self._queue
        queue.begin()
        working: set[asyncio.Task[None]] = set()
        try:
            async for bucket in self._marks.buckets(self._random):
                queue.listed(bucket)
                while (ledger_id := await self._next()) is not None:
                    take = self._take(ledger_id, rejoined, scan)
                    working.add(asyncio.ensure_future(take))
                    while len(working) >= self.ledgers_max:
                        done, working = await asyncio.wait(
                            working, return_when=asyncio.FIRST_COMPLETED
                        )
                        for task in done:
                            task.result()
            await asyncio.gather(*working)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        scan.deferred, scan.next_ms = queue.deferred, queue.next_ms
        self.deferred = scan.deferred
        return scan

    async def _next(self) -> LedgerId | None:
        await self._cache.refresh()
        if self._cache.revision != self._revision:
            self._revision = self._cache.revision
            self._queue.saw(self._cache.urgent, self._cache.locked)
        return self._queue.take(now_ms=self._now_ms())

    async def _take(self, ledger_id: LedgerId, rejoined: frozenset[BookieId], scan: Scan) -> None:
        now_ms = self._now_ms()
        try:
            if self._queue.is_put_off(ledger_id, now_ms=now_ms):
                found = await self._marks.read(ledger_id)
                if found is None:
                    await self._forget(ledger_id)
                    return
                mark, _ = found
                if mark.waits(now_ms, rejoined):
                    self._queue.put_off(ledger_id, mark.not_before_ms)
                    return
            finish = await repair_ledger(self._context, ledger_id, rejoined=rejoined)
            await self._ended(ledger_id, finish)
        except DamagedMetadata as error:
            _log.error("mark_unreadable", ledger_id=ledger_id, reason=str(error))
            return
        except MetadataError as error:
            _log.warning("mark_not_read", ledger_id=ledger_id, reason=str(error))
            return
        scan.outcomes[finish.outcome] += 1
        self.outcomes[finish.outcome] += 1
        self._report(ledger_id, finish)

    async def _ended(self, ledger_id: LedgerId, finish: RepairEnd) -> None:
        match finish.outcome:
            case RepairOutcome.DONE:
                await self._forget(ledger_id)
            case RepairOutcome.DEFERRED | RepairOutcome.BROKEN_OFF:
                self._queue.put_off(ledger_id, finish.until_ms)
            case RepairOutcome.BUSY:
                self._queue.was_busy(now_ms=self._now_ms())

    async def _forget(self, ledger_id: LedgerId) -> None:
        self._queue.ended(ledger_id)
        if ledger_id in self._cache.urgent:
            await self._marks.no_longer_urgent(ledger_id)

    def _until_next(self, scan: Scan) -> float:
        if scan.next_ms is None:
            return self._config.look_s
        wait_s = (scan.next_ms - self._now_ms()) / 1000
        return min(max(wait_s, PAUSE_S), self._config.look_s)

    def _report(self, ledger_id: LedgerId, finish: RepairEnd) -> None:
        match finish.outcome:
            case RepairOutcome.DONE:
                _log.info("ledger_repaired", ledger_id=ledger_id)
            case RepairOutcome.DEFERRED:
                _log.warning("repair_deferred", ledger_id=ledger_id, reason=finish.why)
            case RepairOutcome.BROKEN_OFF:
                _log.warning("repair_broken_off", ledger_id=ledger_id, reason=finish.why)
            case RepairOutcome.BUSY:
                _log.debug("repaired_by_another", ledger_id=ledger_id)


async def _unless(stop: Coroutine[Any, Any, None], work: Coroutine[Any, Any, Scan]) -> Scan | None:
    """Do *work*, but not beyond the end of *stop*: then return None."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


class Estimate:
    """How fast work goes, from what was done lately.

    Over a window, not over all of the time: a throttle that is changed, or a bookie that stops,
    shows within it. Fed with amounts that only grow; or that only shrink, then the rate is what
    goes away."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        assert window_s > 0
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()
        self._latest: tuple[float, float] | None = None

    def note(self, amount: float, now: float) -> None:
        """Record that it is *amount* at *now*, in seconds of a clock that does not go back."""
        self._latest = (now, amount)
        if not self._samples or now >= self._samples[-1][0] + STEP_S:
            self._samples.append((now, amount))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        """Amount per second over the window, never negative; 0 if nothing is known."""
        if self._latest is None:
            return 0.0
        (began, first), (now, last) = self._samples[0], self._latest
        return abs(last - first) / (now - began) if now > began else 0.0

    def left_s(self, left: float) -> float | None:
        """Return after how many seconds *left* will be done too; None if that cannot be said."""
        if left <= 0:
            return 0.0
        return left / self.per_s if self.per_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairThrottle:
    """What an operator has set for all workers; None: each goes as it was started."""

    bytes_per_s: float | None = None
    """Copied by each worker; 0: no limit."""
    ledgers_max: int | None = None
    """Repaired at a time by each worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    worker: str
    """host:pid"""
    at_ms: int
    ledgers: int
    """Repaired since it was started."""
    bytes: int
    """Copied since it was started."""
    bytes_per_s: float
    """Copied lately."""
    ledgers_per_s: float
    """Repaired lately."""
    bytes_per_s_max: float
    """Its throttle; 0: no limit."""
    ledgers_max: int


async def read_throttle(store: MetadataStore) -> RepairThrottle:
    """Raises `MetadataUnavailable`, `DamagedMetadata`."""
    try:
        value = (await store.get(THROTTLE)).value
    except NoSuchNode:
        return RepairThrottle()
    node = pb.RepairThrottleNode()
    parse_node(node, value, THROTTLE, version=FORMAT_VERSION)
    return RepairThrottle(
        bytes_per_s=node.bytes_per_s if node.HasField("bytes_per_s") else None,
        ledgers_max=node.ledgers if node.HasField("ledgers") else None,
    )


async def set_throttle(store: MetadataStore, throttle: RepairThrottle) -> None:
    """Let *throttle* hold for all workers, within seconds. Raises `MetadataUnavailable`."""
    if throttle == RepairThrottle():
        with suppress(NoSuchNode):
            await store.delete(THROTTLE)
        return
    node = pb.RepairThrottleNode(
        version=FORMAT_VERSION, bytes_per_s=throttle.bytes_per_s, ledgers=throttle.ledgers_max
    )
    await put_node(store, THROTTLE, node.SerializeToString(deterministic=True))


async def keep_throttled(store: MetadataStore, worker: Worker) -> None:
    """Let *worker* go as fast as an operator has set, from each change on, until cancelled."""
    with closing(store.watch(THROTTLE)) as changing:
        while True:
            try:
                found = await read_throttle(store)
                worker.throttle(found.bytes_per_s, found.ledgers_max)
            except LogError as error:
                _log.warning("throttle_not_read", reason=str(error))
            await first_of(changing.changed(), timeout_s=LOOK_S)


async def keep_reporting(
    store: MetadataStore, worker: Worker, *, every_s: float = REPORT_S
) -> None:
    """Write down what *worker* does, as long as that changes, until cancelled."""
    path = f"{WORKERS}/{secrets.token_hex(8)}"
    loop = asyncio.get_running_loop()
    bytes_done, ledgers_done = Estimate(), Estimate()
    written, written_at = b"", float("-inf")
    while True:
        ledgers = worker.outcomes[RepairOutcome.DONE]
        bytes_done.note(worker.pace.bytes, loop.time())
        ledgers_done.note(ledgers, loop.time())
        node = pb.RepairWorkerNode(
            version=FORMAT_VERSION,
            worker=this_process(),
            ledgers=ledgers,
            bytes=worker.pace.bytes,
            bytes_per_s=bytes_done.per_s,
            ledgers_per_s=ledgers_done.per_s,
            bytes_per_s_max=worker.pace.bytes_per_s,
            ledgers_max=worker.ledgers_max,
        )
        says = node.SerializeToString(deterministic=True)
        if says != written or loop.time() >= written_at + REPORT_S_MAX:
            node.at_ms = now_ms()
            try:
                await _write(store, path, node.SerializeToString(deterministic=True))
                written, written_at = says, loop.time()
            except LogError as error:
                _log.debug("work_not_reported", reason=str(error))
        await asyncio.sleep(every_s)


async def _write(store: MetadataStore, path: str, value: bytes) -> None:
    with suppress(NoSuchNode):
        await store.set(path, value)
        return
    with suppress(NodeExists):  # a reply was lost
        await store.create(path, value, ephemeral=True)


async def reports(store: MetadataStore) -> list[WorkerReport]:
    """Return what the workers that run say of themselves, by name.

    One that cannot be read is left out. Raises `MetadataUnavailable`."""
    found: list[WorkerReport] = []
    for name in await children_of(store, WORKERS):
        node, path = pb.RepairWorkerNode(), f"{WORKERS}/{name}"
        try:
            parse_node(node, (await store.get(path)).value, path, version=FORMAT_VERSION)
        except (NoSuchNode, DamagedMetadata):
            continue
        found.append(
            WorkerReport(
                worker=node.worker,
                at_ms=node.at_ms,
                ledgers=node.ledgers,
                bytes=node.bytes,
                bytes_per_s=node.bytes_per_s,
                ledgers_per_s=node.ledgers_per_s,
                bytes_per_s_max=node.bytes_per_s_max,
                ledgers_max=node.ledgers_max,
            )
        )
    return sorted(found, key=lambda each: each.worker)
