"""Which logs there are and where they end, watched for a query at the price of almost nothing.

Each log has one long poll in flight, which outlives the call that began it: it ends with news,
or after `QUIET_S`, and the next one is begun by whoever asks next. So nothing is polled that
nobody waits for, news of one log do not wait for the silence of the others, and a query that is
idle costs the long polls. What cannot be reached keeps the tail that it had last: a stream then
goes on with its other logs.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.tails import LogTail as CommittedTail
from dlog.aio.read.tails import TailTracker
from dlog.aio.store.watching import log_names
from dlog.errors import NoSuchLog
from dlog.names import LOGS_PATH
from dlog.spark.plan import LogTail
from dlog.spark.selection import Selection
from ledger.backoff import Backoff
from ledger.errors import LogError
from ledger.log_events import get_logger

QUIET_S: Final = 15.0
"""How long one poll of a log waits for news."""
GONE_S: Final = 1.0
"""How long after a log was not there it is looked for again."""
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 2.0
LIST_S: Final = 0.5
"""Names are listed no more often, however many logs come and go."""
LIST_AGAIN_S: Final = 30.0
"""After so long they are listed again, should a notice have been lost."""
_FIRST_POLLS_MAX: Final = 32

Tails = dict[str, LogTail]

_log = get_logger(__name__)


class TailWatch:
    """The tails of the logs of one source. Used by one task at a time; close it."""

    def __init__(self, ledgers: Ledgers, selection: Selection) -> None:
        self._ledgers = ledgers
        self._selection = selection
        self._names = None if selection.pattern is None else NamesWatch(ledgers)
        self._watched: dict[str, _Watched] = {}
        self._first_polls = asyncio.Semaphore(_FIRST_POLLS_MAX)
        self._news = asyncio.Event()

    async def tails(
        self, following: Mapping[str, str], *, enough: Callable[[Tails], bool], wait_s: float
    ) -> Tails:
        """Return the tails of the logs that are there; wait up to *wait_s* for *enough*.

        *following* are the incarnations of logs that are read already: those are meant,
        whatever they are called by now. A log that is not there has no tail. Raises what
        cannot pass, and what may if nothing is known of a log yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self._news.clear()
            await self._poll(following)
            tails = {log: each.tail for log, each in self._watched.items() if each.tail}
            left_s = deadline - loop.time()
            if left_s <= 0 or enough(tails):
                return tails
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                return tails

    async def close(self) -> None:
        """Stop watching."""
        for each in self._watched.values():
            await each.close()
        self._watched.clear()
        if self._names is not None:
            self._names.close()

    async def _poll(self, following: Mapping[str, str]) -> None:
        """Take what polls have found, begin those that are not under way, await first ones."""
        logs = dict.fromkeys(await self._logs(), None) | {
            log: incarnation
            for log, incarnation in following.items()
            if self._selection.chosen(log)
        }
        for log in [each for each in self._watched if each not in logs]:
            await self._watched.pop(log).close()
        for log, incarnation in logs.items():
            if log not in self._watched:
                self._watched[log] = _Watched(self._ledgers, log, self._first_polls)
            self._watched[log].begin(incarnation, self._news.set)
        for each in self._watched.values():
            await each.known()

    async def _logs(self) -> tuple[str, ...]:
        if self._names is None:
            return self._selection.names
        return tuple(self._selection.among(await self._names.names(self._news.set)))


class _Watched:
    """One log: the poll under way, and what the one before found."""

    def __init__(self, ledgers: Ledgers, log: str, first_polls: asyncio.Semaphore) -> None:
        self.tail: LogTail | None = None
        self._log = log
        self._tracker = TailTracker(ledgers, log)
        self._first_polls = first_polls
        self._known = False
        """Whether it was ever found out if there is such a log, and where it ends."""
        self._polling: asyncio.Task[CommittedTail | None] | None = None
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._delay_s = 0.0

    def begin(self, following: str | None, on_news: Callable[[], None]) -> None:
        """Take what the poll under way found if it has ended, and begin the next one."""
        if self._polling is not None:
            if not self._polling.done():
                return
            self._take(self._polling)
        if following is not None:
            self._tracker.follow(following)
        self._polling = asyncio.create_task(self._poll(), name=f"tail of {self._log}")
        self._polling.add_done_callback(lambda _: on_news())

    async def known(self) -> None:
        """Wait until the first poll has ended. Raises what it ended with."""
        if self._known:
            return
        assert self._polling is not None, "a poll was begun"
        await asyncio.wait({self._polling})
        polling, self._polling = self._polling, None
        self._take(polling)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})
            self._polling = None
        await self._tracker.close()

    async def _poll(self) -> CommittedTail | None:
        """Return the next tail, or None if there is no such log."""
        await asyncio.sleep(self._delay_s)
        try:
            if self._known:
                return await self._tracker.poll(wait_s=QUIET_S)
            async with self._first_polls:
                return await self._tracker.poll()
        except NoSuchLog:
            return None

    def _take(self, polling: "asyncio.Task[CommittedTail | None]") -> None:
        try:
            tail = polling.result()
        except LogError as error:
            if not (error.retryable and self._known):
                raise
            self._delay_s = self._backoff.next()
            _log.warning("tail_unavailable", log=self._log, error=str(error))
            return
        self._known = True
        self._backoff.reset()
        self._delay_s = 0.0 if tail is not None else GONE_S
        self.tail = None if tail is None else tail_for_planning(tail)


class NamesWatch:
    """The names of all logs of a namespace, listed again when they have changed."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._store = ledgers.store
        self._watch = self._store.watch(LOGS_PATH)
        self._noticing: asyncio.Task[None] | None = None
        self._names: list[str] | None = None
        self._list_at = 0.0

    async def names(self, on_change: Callable[[], None]) -> list[str]:
        """Return the names, `LIST_S` old at most; *on_change* is called when they change.

        Raises what listing raises if they were never listed."""
        now = asyncio.get_running_loop().time()
        noticed = self._noticing is None or self._noticing.done()
        if self._names is not None and not noticed and now < self._list_at:
            return self._names
        if noticed:  # watched before they are listed, so that no change falls between
            self._notice(on_change)
        self._list_at = now + LIST_AGAIN_S
        try:
            self._names = await log_names(self._store)
        except LogError as error:
            if not error.retryable or self._names is None:
                raise
            self._list_at = now + BACKOFF_S_MAX
            _log.warning("names_unavailable", error=str(error))
        return self._names

    def close(self) -> None:
        if self._noticing is not None:
            self._noticing.cancel()
        self._watch.close()

    def _notice(self, on_change: Callable[[], None]) -> None:
        if self._noticing is not None and self._noticing.cancelled():  # by the store
            self._watch.close()
            self._watch = self._store.watch(LOGS_PATH)
        self._noticing = asyncio.create_task(self._changed(), name="names of logs")
        self._noticing.add_done_callback(lambda _: on_change())

    async def _changed(self) -> None:
        await asyncio.sleep(LIST_S)
        await self._watch.changed()


def tail_for_planning(tail: CommittedTail) -> LogTail:
    """Return what planning needs of *tail*."""
    return LogTail(tail.incarnation, tail.first_offset, tail.next_offset, tail.record_bytes)
