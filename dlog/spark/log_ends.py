"""Which logs there are and where they end, watched for a query at the price of almost nothing.

A log of which nothing comes has a long poll in flight, which outlives the call that began it: it
ends with news, or after `QUIET_S`. So news of one log do not wait for the silence of the others,
and a query that is idle costs the long polls. The news themselves are old when a query asks that
was busy meanwhile, by as much as it was busy: whoever asks looks at the logs that have no poll in
flight any more, and so what is appended until then is in the batch that is planned then. What
cannot be reached keeps the tail that it had last: a stream then goes on with its other logs.

A log that is followed may have been renamed, and another one have its name: the name is looked at
as well then, and a log that is found there has a key of its own (`dlog.spark.offsets`).

Spark asks the sources of a query one after the other, each in a process of its own, and a source
of which nothing comes waits before it says so: else Spark would ask 77 times a second. Without a
word from the others it would hold up the batch of a source that has news by as long as it waits.
So a source with news touches a file of the driver (`NewsFile`), and a waiting one looks at it.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.tails import LogTail as CommittedTail
from dlog.aio.read.tails import TailTracker
from dlog.aio.store import listed_names
from dlog.errors import NoSuchLog
from dlog.names import LOGS_PATH
from dlog.spark.offsets import name_of, namesake
from dlog.spark.plan import LogEnd
from dlog.spark.selection import Selection
from dlog.spark.sink.keeper.place import Program, UnsafeDirectory, own_driver, private_directory
from ledger.delays import Backoff
from ledger.errors import LogError
from ledger.log_events import get_logger

LISTEN_S: Final = 0.05
"""How often a waiting source looks: each look costs 0.2 ms, so 0.5 % of a core."""
_SUFFIX: Final = ".news"
FILES_MAX: Final = 1000
"""How many files of other drivers are looked at, to remove those of drivers that have ended."""
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
LOOK_S: Final = 0.5
"""How long a look at a log may take before what was known of it has to do."""
_LOOKS_MAX: Final = 32
Tails = dict[str, LogEnd]
_log = get_logger(__name__)


class NewsFile:
    """The file as one source sees it; *path* None: there are no others."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen = self._touched_at()

    @classmethod
    def of_driver(cls) -> "NewsFile":
        """Return that of this process's driver; one without others where no file can be kept."""
        try:
            directory, driver = private_directory(), own_driver()
            path = directory / f"{driver.pid}-{driver.started}{_SUFFIX}"
            os.close(os.open(path, os.O_CREAT, 0o600))  # untouched, as it would be news
            _remove_leftovers(directory)
            return cls(path)
        except (OSError, UnsafeDirectory) as error:
            _log.warning("sources_do_not_hear_of_each_other", error=str(error))
            return cls()

    def touch(self) -> None:
        """Say that there is news here. It is none to this source itself."""
        if self._path is None:
            return
        now_ns = time.time_ns()
        with suppress(OSError):
            os.utime(self._path, ns=(now_ns, now_ns))  # the kernel's own time has ticks of 4 ms
            self._seen = now_ns

    def has_changed(self) -> bool:
        """Return whether another source has touched it since this was asked last."""
        before, self._seen = self._seen, self._touched_at()
        return before != self._seen

    def _touched_at(self) -> int:
        with suppress(OSError):
            if self._path is not None:
                return self._path.stat().st_mtime_ns
        return 0


def _remove_leftovers(directory: Path) -> None:
    for path in sorted(directory.glob(f"*{_SUFFIX}"))[:FILES_MAX]:
        pid, _, started = path.stem.partition("-")
        if pid.isdecimal() and Program.of(int(pid)) != Program(int(pid), started):
            path.unlink(missing_ok=True)


class TailWatch:
    """The tails of the logs of one source. Used by one task at a time; close it."""

    def __init__(
        self, ledgers: Ledgers, selection: Selection, news_file: NewsFile | None = None
    ) -> None:
        self._ledgers = ledgers
        self._news_file = news_file or NewsFile()
        self._selection = selection
        self._names = None if selection.pattern is None else NamesWatch(ledgers)
        self._watched: dict[str, _Watched] = {}
        self._looks = asyncio.Semaphore(_LOOKS_MAX)
        self._news = asyncio.Event()

    async def tails(
        self, following: Mapping[str, str], *, enough: Callable[[Tails], bool], wait_s: float
    ) -> Tails:
        """Return the tails of the logs that are there; wait up to *wait_s* for *enough*.

        *following* are the incarnations of logs that are read already: those are meant,
        whatever they are called by now. A log that is not there has no tail. Raises what
        cannot pass, and what may if nothing is known of a log yet. It does not wait either when
        another source of the driver has news: Spark cannot ask that one meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        for each in self._watched.values():
            each.doubt()
        while True:
            self._news.clear()
            await self._look(following)
            found = {log: each.tail for log, each in self._watched.items() if each.tail}
            tails = keyed(found, following)
            left_s = deadline - loop.time()
            has_news = enough(tails)
            if has_news:
                self._news_file.touch()
            is_over = left_s <= 0 or has_news
            for each in self._watched.values():
                each.listen(self._news.set, even_if_moved=not is_over)
            if is_over or not await self._wait_until(deadline):
                return tails

    async def _wait_until(self, deadline: float) -> bool:
        """Wait for news of any log; False: none came until then, or another source has some."""
        loop = asyncio.get_running_loop()
        while not self._news.is_set():
            left_s = deadline - loop.time()
            if left_s <= 0 or self._news_file.has_changed():
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LISTEN_S)):
                    await self._news.wait()
        return True

    async def close(self) -> None:
        """Stop watching."""
        for each in self._watched.values():
            await each.close()
        self._watched.clear()
        if self._names is not None:
            self._names.close()

    async def _look(self, following: Mapping[str, str]) -> None:
        """Take what polls have found, and look at the logs that want it."""
        names = await self._logs()
        logs = dict.fromkeys(names, None) | {
            log: incarnation
            for log, incarnation in following.items()
            if self._selection.chosen(name_of(log))
        }
        for name in names:
            if name in self._watched and self._watched[name].is_renamed:
                logs[namesake(name)] = None
        for log in [each for each in self._watched if each not in logs]:
            await self._watched.pop(log).close()
        for log, incarnation in logs.items():
            if log not in self._watched:
                self._watched[log] = _Watched(
                    self._ledgers, name_of(log), self._looks, self._news_file
                )
            self._watched[log].look(incarnation, self._news.set)
        looking = [task for each in self._watched.values() if (task := each.looking)]
        if looking:
            await asyncio.wait(looking, timeout=LOOK_S)
        for each in self._watched.values():
            await each.known()

    async def _logs(self) -> tuple[str, ...]:
        if self._names is None:
            return self._selection.names
        return tuple(self._selection.among(await self._names.names(self._news.set)))


class _Watched:
    """One log: the poll under way, and what the one before found."""

    def __init__(
        self, ledgers: Ledgers, log: str, looks: asyncio.Semaphore, news_file: NewsFile
    ) -> None:
        self.tail: LogEnd | None = None
        self.is_renamed = False
        """Whether the log that is followed has another name now."""
        self._log = log
        self._tracker = TailTracker(ledgers, log)
        self._looks, self._news_file = looks, news_file
        self._known = False
        """Whether it was ever found out if there is such a log, and where it ends."""
        self._doubted = True
        """Whether it is to be looked at, whatever the last poll found."""
        self._moved = False
        """Whether the last look found news."""
        self._looking = False
        """Whether the poll under way waits for nothing."""
        self._polling: asyncio.Task[CommittedTail | None] | None = None
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._delay_s = 0.0

    @property
    def looking(self) -> "asyncio.Task[CommittedTail | None] | None":
        """The look that was begun and not taken yet."""
        return self._polling if self._looking else None

    def doubt(self) -> None:
        """Look again before anything is said of the log, unless a poll waits for news."""
        self._doubted = self._polling is None or self._polling.done()

    def look(self, following: str | None, on_news: Callable[[], None]) -> None:
        """Take what the poll under way has found, if it has; begin a look if one is wanted."""
        if following is not None:
            self._tracker.follow(following)
        self._take()
        if self._polling is None and (self._doubted or not self._known):
            self._doubted = False
            self._begin(on_news, wait_s=0.0)

    def listen(self, on_news: Callable[[], None], *, even_if_moved: bool) -> None:
        """Have a poll wait for news. A log that moves will be looked at: it needs none."""
        if self._polling is None and (even_if_moved or not self._moved):
            self._begin(on_news, wait_s=QUIET_S)

    async def known(self) -> None:
        """Take what was found; the first time, wait for it. Raises what it ended with."""
        if not self._known:
            assert self._polling is not None, "a look was begun"
            await asyncio.wait({self._polling})
        self._take()

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})
            self._polling = None
        await self._tracker.close()

    def _begin(self, on_news: Callable[[], None], *, wait_s: float) -> None:
        # One that begins later is not waited for, or it would hold up each batch of other logs.
        self._looking = wait_s == 0.0 and self._delay_s == 0.0
        self._polling = asyncio.create_task(self._poll(wait_s), name=f"tail of {self._log}")
        self._polling.add_done_callback(lambda _: on_news())

    async def _poll(self, wait_s: float) -> CommittedTail | None:
        """Return the next tail, or None if there is no such log."""
        await asyncio.sleep(self._delay_s)
        try:
            if wait_s > 0.0:
                found = await self._tracker.poll(wait_s=wait_s)
                if tail_for_planning(found) != self.tail:
                    self._news_file.touch()  # Spark may be waiting for another source
                return found
            async with self._looks:
                return await self._tracker.poll()
        except NoSuchLog:
            return None

    def _take(self) -> None:
        if self._polling is None or not self._polling.done():
            return
        polling, self._polling, self._looking = self._polling, None, False
        try:
            found = polling.result()
        except LogError as error:
            if not (error.retryable and self._known):
                raise
            self._delay_s = self._backoff.next()
            self._moved = False
            _log.warning("tail_unavailable", log=self._log, error=str(error))
            return
        self._known = True
        self._backoff.reset()
        self._delay_s = 0.0 if found is not None else GONE_S
        tail = None if found is None else tail_for_planning(found)
        self.is_renamed = found is not None and found.log != self._log
        self._moved, self.tail = tail != self.tail, tail


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
            self._names = await listed_names(self._store)
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


def keyed(found: Tails, following: Mapping[str, str]) -> Tails:
    """Return *found* in order, and what has the name of a renamed log under a key of its own;
    not again what is in *following*."""
    tails: Tails = {}
    read = set(following.values())
    for log, tail in found.items():
        if log != namesake(name_of(log)):
            tails[log] = tail
        elif tail.incarnation not in read:
            tails[namesake(name_of(log), tail.incarnation)] = tail
    return {log: tails[log] for log in sorted(tails)}


def tail_for_planning(tail: CommittedTail) -> LogEnd:
    """Return what planning needs of *tail*."""
    return LogEnd(tail.incarnation, tail.first_offset, tail.next_offset, tail.record_bytes, tail)
