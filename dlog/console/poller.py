"""One poller for all browsers: asks the cluster every few seconds, a bounded number of things, each
within a deadline, and tells those who wait that there is something new.

What is quick to ask (store, bookies) is asked in each round; what reads a part of the namespace
(repair, logs as a whole, deletions) at most for a tenth of the time. Of logs only those are looked
at that somebody has on a page, and the first few.
"""

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from bookie.autorecovery.status import open_work
from dlog.aio.read.tails import TailTracker
from dlog.aio.replica_registry import read_replicas
from dlog.aio.store import ManifestNode, log_names, read_consumers
from dlog.console.cluster_state import (
    CONSUMERS_MAX,
    REPLICAS_MAX,
    ClusterSeen,
    LogLook,
    LogSeen,
    Repairing,
)
from dlog.console.metrics import POLL_S, POLLS
from dlog.health.checks import examine
from leader import current_leader
from ledger.client import LedgerClient
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import LedgerId
from ledger.log_events import get_logger, now_ms
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.tasks import for_each

ROUND_S: Final = 2.0
"""Between two rounds."""
SLOW_S: Final = 10.0
"""At least, between two rounds of what takes long."""
SLOW_SHARE: Final = 10
"""What takes long may take one part of so many of the time."""
LIST_SHARE: Final = 30
"""Names of logs are listed for one part of so many of the time."""
ANSWER_S: Final = 2.0
"""A bookie that has not answered by then counts as silent in this round."""
REPAIR_S: Final = 5.0
"""For one look at how repair gets on."""
LOOK_S: Final = 3.0
"""For one look at one log."""
LOOKS_MAX: Final = 16
"""Logs that are looked at, at once."""
LOGS_MAX: Final = 200
"""Logs that are followed; beyond them who was not asked for the longest time is forgotten."""
LOGS_AT_FIRST: Final = 20
"""Logs that are followed though nobody has a page of them open, if there is room: the first by
name."""
WANTED_S: Final = 60.0
"""So long a log is followed after a page has asked for it."""
LEDGERS_MAX: Final = 1_000_000
"""Ids of ledgers that are listed."""
LEDGERS_FRESH_S: Final = 30.0
METADATA_MAX: Final = 2_000
"""Closed ledgers' metadata that are remembered."""

_QUICK: Final = frozenset({"bookies", "servers"})
_SLOW: Final = frozenset({"repair", "logs", "deletions", "archive"})
_log = get_logger(__name__)


@dataclass(slots=True)
class _Followed:
    tracker: TailTracker
    seen: LogSeen = field(default_factory=LogSeen)
    wanted_at: float = 0.0
    looking: "asyncio.Task[None] | None" = None


class Gatherer:
    """Made for one client; `run` works until it is cancelled."""

    def __init__(
        self,
        client: LedgerClient,
        *,
        round_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.cluster = ClusterSeen()
        self.names: Sequence[str] = ()
        """Of all logs, sorted."""
        self.names_known = False
        self.round_s = round_s
        self._clock = clock
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        """At most `LOGS_MAX`; who was not asked for the longest time comes first."""
        self._ending: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._turns = asyncio.Semaphore(LOOKS_MAX)
        self._closing = False
        self._ledgers = array("q")
        self._ledgers_at = -LEDGERS_FRESH_S
        self._listing: asyncio.Task[None] | None = None
        self._metadata: OrderedDict[LedgerId, LedgerMetadata] = OrderedDict()

    @property
    def now(self) -> float:
        return self._clock()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat(self._quick, lambda _: self.round_s))
                group.create_task(self._repeat(self._look_at_logs, lambda _: self.round_s))
                group.create_task(
                    self._repeat(self._list_logs, lambda s: max(self.round_s, LIST_SHARE * s))
                )
                group.create_task(
                    self._repeat(self._slow, lambda took_s: max(SLOW_S, SLOW_SHARE * took_s))
                )
                group.create_task(
                    self._repeat(self._look_at_repair, lambda s: max(self.round_s, SLOW_SHARE * s))
                )
        finally:
            await self._close()

    async def next_round(self, seen: int, *, timeout_s: float) -> int:
        """Wait until there is something newer than round *seen*, or so long; return its number."""
        if self.cluster.rounds == seen and not self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        return self.cluster.rounds

    @property
    def closing(self) -> bool:
        return self._closing

    def stop(self) -> None:
        """Let those go who wait for news: there will be none."""
        self._closing = True
        self.tell()

    async def want(self, logs: Iterable[str], *, wait_s: float) -> dict[str, LogSeen]:
        """Follow *logs* for a while; return what is known of each once all were looked at, or at
        the latest after *wait_s*."""
        wanted = {log: self._want(log) for log in islice(logs, LOGS_MAX)}
        while len(self._followed) > LOGS_MAX:
            self._forget(next(iter(self._followed)))
        looks = [
            self._begin_look(log, each) for log, each in wanted.items() if not each.seen.looked
        ]
        if looks:
            await asyncio.wait(looks, timeout=wait_s)
        return {log: followed.seen for log, followed in wanted.items()}

    async def look_now(self, log: str, *, wait_s: float) -> LogSeen:
        """Return what is known of *log* after a look that began no earlier than this call; what
        was known before if it has not ended within *wait_s*."""
        looking = self._want(log).looking  # a round that ends meanwhile must not forget it
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                if looking is not None:
                    await asyncio.wait([looking])
                await asyncio.wait([self._begin_look(log, self._follow(log))])
        return (await self.want([log], wait_s=0))[log]

    async def ledgers(self, *, wait_s: float) -> tuple[Sequence[int], bool]:
        """Return the ids of all ledgers, sorted, as they were lately, and whether they were listed
        at all yet."""
        if self.now - self._ledgers_at > LEDGERS_FRESH_S and self._listing is None:
            self._listing = asyncio.create_task(self._list_ledgers())
        listing = self._listing
        if listing is not None and not self._ledgers:
            await asyncio.wait([listing], timeout=wait_s)
        return self._ledgers, self._ledgers_at > 0

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Raises `NoSuchLedger`, `DamagedMetadata`, `MetadataUnavailable`."""
        found = self._metadata.get(ledger_id)
        if found is None:
            found, _ = await self.client.ledgers.read(ledger_id)
            if found.state is LedgerState.CLOSED:  # repair alone may still change it
                self._metadata[ledger_id] = found
                if len(self._metadata) > METADATA_MAX:
                    self._metadata.popitem(last=False)
        return found

    async def metadata_of(
        self, ledgers: Sequence[LedgerId], *, wait_s: float
    ) -> dict[LedgerId, LedgerMetadata | str]:
        """Return the metadata of each, or why it is not known."""
        found: dict[LedgerId, LedgerMetadata | str] = {}

        async def read(ledger_id: LedgerId) -> None:
            try:
                found[ledger_id] = await self.metadata(ledger_id)
            except NoSuchLedger:
                found[ledger_id] = "deleted"
            except LogError as error:
                found[ledger_id] = str(error)

        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await for_each(ledgers, read, at_once=LOOKS_MAX)
        return found

    async def _repeat(
        self, work: Callable[[], Awaitable[None]], pause: Callable[[float], float]
    ) -> None:
        while True:
            began = self.now
            try:
                await work()
            except LogError as error:
                _log.warning("round_failed", reason=str(error))
            took_s = self.now - began
            POLL_S.observe(took_s)
            POLLS.add()
            self.tell()
            await asyncio.sleep(pause(took_s))

    async def _quick(self) -> None:
        report = await examine(
            self.client.store,
            deep=True,
            only=_QUICK,
            timeout_s=ANSWER_S,
            security=self.client.security,
        )
        self.cluster.take_in(report, now=self.now, now_ms=now_ms())

    async def _list_logs(self) -> None:
        self.names = await log_names(self.client.store)
        self.names_known = True

    async def _slow(self) -> None:
        report = await examine(
            self.client.store,
            deep=True,
            only=_SLOW,
            timeout_s=ANSWER_S,
            security=self.client.security,
        )
        self.cluster.take_in(report, now=self.now, now_ms=now_ms())

    async def _look_at_repair(self) -> None:
        found: Repairing | None = None
        try:
            async with asyncio.timeout(REPAIR_S):
                work = await open_work(self.client.store)
            found = Repairing(work.ledgers, work.bytes_per_s, work.left_s)
        except TimeoutError:
            _log.warning("repair_not_seen", reason=f"it took longer than {REPAIR_S:g} s")
        finally:
            self.cluster.take_in_repair(found, now=self.now)

    async def _look_at_logs(self) -> None:
        at_first = self.names[:LOGS_AT_FIRST]
        for log, followed in list(self._followed.items()):
            if log not in at_first and self.now - followed.wanted_at > WANTED_S:
                self._forget(log)
        for log in at_first:
            if len(self._followed) < LOGS_MAX:
                self._follow(log)
        looks = [self._begin_look(log, each) for log, each in self._followed.items()]
        if looks:
            await asyncio.wait(looks)

    def _follow(self, log: str) -> _Followed:
        followed = self._followed.get(log)
        if followed is None:
            followed = self._followed[log] = _Followed(TailTracker(self.client, log))
        return followed

    def _want(self, log: str) -> _Followed:
        followed = self._follow(log)
        followed.wanted_at = self.now
        self._followed.move_to_end(log)
        return followed

    def _begin_look(self, log: str, followed: _Followed) -> "asyncio.Task[None]":
        if followed.looking is None or followed.looking.done():
            followed.looking = asyncio.create_task(self._look(log, followed))
        return followed.looking

    async def _look(self, log: str, followed: _Followed) -> None:
        async with self._turns:
            look = LogLook(trouble="it did not answer in time")
            try:
                async with asyncio.timeout(LOOK_S):
                    look = await self._looked(log, followed.tracker)
            except TimeoutError:
                pass
            except LogError as error:
                look = LogLook(trouble=str(error))
        events = followed.seen.take_in(log, look, now=self.now, now_ms=now_ms())
        self.cluster.events.extend(events)

    async def _looked(self, log: str, tracker: TailTracker) -> LogLook:
        store = self.client.store
        manifest, _ = await ManifestNode(store, log).read(fresh=False)
        leader = await current_leader(store, log)
        consumers = (await read_consumers(store, log, manifest))[:CONSUMERS_MAX]
        known = LogLook(
            manifest=manifest,
            first_offset=manifest.first_offset,
            leader=leader.candidate if leader else "",
            leads_since_ms=leader.since_ms if leader else 0,
            consumers=consumers,
        )
        try:
            replicas = await read_replicas(store, manifest.incarnation, fresh=False)
            known = replace(known, replicas=[each for _, each in replicas[:REPLICAS_MAX]])
            tail = await tracker.poll()
        except LogError as error:  # bookies are away: what the store knows is known
            return replace(known, trouble=str(error))
        return replace(
            known,
            first_offset=tail.first_offset,
            next_offset=tail.next_offset,
            record_bytes=tail.record_bytes,
        )

    async def _list_ledgers(self) -> None:
        try:
            found = array("q")
            async for ledger_id in self.client.list():
                found.append(ledger_id)
                if len(found) >= LEDGERS_MAX:
                    break
            self._ledgers = array("q", sorted(found))
            self._ledgers_at = max(self.now, 1e-9)
        except LogError as error:
            _log.warning("ledgers_not_listed", reason=str(error))
        finally:
            self._listing = None

    def _forget(self, log: str) -> None:
        ending = asyncio.create_task(_end(self._followed.pop(log)))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def tell(self) -> None:
        """Let pages be made again that are waited for."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _close(self) -> None:
        self.stop()
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.wait([self._listing])
        for log in list(self._followed):
            self._forget(log)
        await asyncio.gather(*self._ending)


async def _end(followed: _Followed) -> None:
    if followed.looking is not None and not followed.looking.done():
        followed.looking.cancel()
        await asyncio.wait([followed.looking])
    with suppress(LogError):
        await followed.tracker.close()
