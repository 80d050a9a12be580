"""A warm standby: keeps an application's state up to date, and takes the log over on demand.

    async with Standby.open("orders", apply, uri=uri) as standby:
        log = await standby.promote()        # returns once elected, and up to date
        while standby.is_leader:
            ...                              # serve; append to log

A standby tails the log without disturbing its writer and hands every batch to *apply*, so the
application's state is warm. `promote` stands for election, opens the log (which fences
whoever wrote it), applies what was appended until then, and only then returns the log. So
who serves has read every record whose append was acknowledged to anybody.

Invariants:
    each record from the start on is applied once, in order; none that the leader appends itself
    state and log are of one life of the log: a re-created one is never served from old state
    the log is handed over only when everything below its end was applied
    when the term may be over the log takes no more appends here: by a local timer, asking nobody
    however a promotion ends other than by its log, the term is resigned
"""

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from dlog import metrics
from dlog.aio.handle import opening
from dlog.aio.log import Log
from dlog.aio.maintain.lifecycle import ensure_log
from dlog.aio.namespace_connection import connect, connected
from dlog.aio.port import Ledgers
from dlog.aio.read.places import checked_start
from dlog.aio.read.reader import Reader
from dlog.aio.state_apply import Apply, Following
from dlog.aio.store import ManifestNode
from dlog.config import load
from dlog.errors import AlreadyPromoted, LogClosed, LostOwnership, NotPromoted
from dlog.names import check_name
from dlog.position import Start
from dlog.settings import LogSettings
from leader import Candidate, LeaderInfo, NotElected, Term, campaign, current_leader
from leader.term import LEASE_S
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.tasks import is_cancelled
from ledger.values import Duration, duration_or_none, duration_s

_log = get_logger(__name__)


async def leader_of(
    log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> LeaderInfo | None:
    """Return who leads *log*, where clients reach it, and since when; None if nobody does.

    It is who won its election (`Standby`, `leader.campaign`); a log that is written without one
    has no leader. Names a leader that died until its session has ended, and may be out of date at
    once: for those who look for the leader, not for those who decide whether they are it. Raises
    `InvalidName`, and what connecting raises."""
    check_name(log)
    async with connected(uri, client) as ledgers:
        return await current_leader(ledgers.store, log)


def lease_of(lease_s: Duration | None, client: Ledgers | None) -> float:
    """Return for how long a leader is one without proof: what is given, else what settings say, or
    for a *client* the default. Raises `InvalidValue`."""
    if lease_s is not None:
        return duration_s(lease_s, "lease_s", least=0.001)
    return LEASE_S if client is not None else load().session_timeout_s / 2


class Standby:
    """Made by `Standby.open`; an async context manager."""

    def __init__(
        self,
        ledgers: Ledgers,
        reader: Reader,
        apply: Apply,
        *,
        incarnation: str,
        candidate: Candidate | str,
        lease_s: float,
        lifeline_host: str | None,
        owns_ledgers: bool,
    ) -> None:
        self.name = reader.log
        self.lost = asyncio.Event()
        """Set when leadership was won and then lost: stop serving, close, open a new one."""
        self.lost_reason = ""
        self._ledgers, self._owns_ledgers = ledgers, owns_ledgers
        self._candidate, self._lease_s, self._lifeline_host = candidate, lease_s, lifeline_host
        self._following = Following(ledgers, reader, apply, incarnation=incarnation)
        self._promoting: asyncio.Task[Log] | None = None
        self._resigning: asyncio.Task[None] | None = None
        self._term: Term | None = None
        self._log: Log | None = None
        self._guarding: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    @opening
    async def open(  # noqa: PLR0913 - those of a log, of a campaign, and our own two
        cls,
        name: str,
        apply: Apply,
        *,
        uri: str | None = None,
        start: Start = "start",
        create: bool = True,
        settings: LogSettings | None = None,
        candidate: Candidate | str = "",
        lease_s: Duration | None = None,
        lifeline_host: str | None = "127.0.0.1",
        client: Ledgers | None = None,
    ) -> Self:
        """Begin to follow the log from *start* on, applying each batch of records.

        *apply* is called with some hundreds or thousands of records at a time, one call after
        the other; what it raises ends the standby and is raised by `promote`. It must not
        call the standby. *start* is where a snapshot of the state ends, if there is one.
        *create* and *settings* are those of `Log.open`; *candidate*, *lease_s* and
        *lifeline_host* those of `leader.campaign` (give an address that other machines reach).
        *lease_s* is half the configured session time-out unless given; 5 s with a *client*.

        Raises `InvalidName`, `InvalidValue`, `NoSuchLog`, `Trimmed`, `InvalidPosition`, and what
        connecting raises."""
        check_name(name)
        start = checked_start(name, start)
        leased_s = lease_of(lease_s, client)
        ledgers = client if client is not None else await connect(uri)
        try:
            if create:
                await ensure_log(ledgers, ManifestNode(ledgers.store, name), settings)
            manifest, _ = await ManifestNode(ledgers.store, name).read()
            reader = await Log.tail(name, start=start, client=ledgers)
        except BaseException:
            if client is None:
                await ledgers.close()
            raise
        return cls(
            ledgers,
            reader,
            apply,
            incarnation=manifest.incarnation,
            candidate=candidate,
            lease_s=leased_s,
            lifeline_host=lifeline_host,
            owns_ledgers=client is None,
        )

    @property
    def position(self) -> int:
        """Offset after the last record that was applied here; not counting own appends."""
        return self._following.position

    @property
    def is_leader(self) -> bool:
        """The local view, without asking anybody: False means do not serve.

        Looks at the clock, so it is right also in a process that was stopped for hours."""
        return (
            self._term is not None
            and self._term.is_current()
            and self._log is not None
            and not self._log.lost.is_set()
        )

    @property
    def epoch(self) -> int | None:
        """The epoch of the log while this leads: usable as a fencing token."""
        return self._log.epoch if self._log is not None else None

    async def promote(self, *, timeout_s: Duration | None = None) -> Log:
        """Wait for leadership, take the log over, apply what is missing, return the log.

        The log belongs to the standby: `resign` or `close` closes it. What is appended to it is
        not applied by the standby: do that yourself, once it is acknowledged. If leadership
        goes half way, another election follows. *timeout_s* bounds the wait to be elected;
        None waits for ever. A promotion that failed or was cancelled can be tried again.

        Raises `NotElected` in time; `AlreadyPromoted` while this leads, is promoted or resigns,
        `LostOwnership` once it led and `lost` says that this is over, `LogClosed`; what ended
        the following (`Trimmed`: start again from a newer snapshot; what *apply* raised); and as
        `Log.open`."""
        wait_s = duration_or_none(timeout_s, "timeout_s")
        if self._closing is not None:
            raise LogClosed(self.name)
        if self._promoting is not None or self._resigning is not None or self.is_leader:
            raise AlreadyPromoted(self.name)
        if self._log is not None and self._term is not None:
            self._lose(_why_lost(self._log, self._term))  # the guard has not come to it yet
        if self.lost.is_set():
            raise LostOwnership(self.name, f"{self.lost_reason}; close this standby, open another")
        self._promoting = asyncio.create_task(self._promote(wait_s), name="promotion")
        try:
            return await self._promoting
        except asyncio.CancelledError:
            if _succeeded(self._promoting):  # at the last moment, and nobody gets the log
                with suppress(LogError):
                    await self.resign()
            if self._closing is not None and not is_cancelled():
                raise LogClosed(self.name) from None
            raise
        finally:
            self._promoting = None

    async def resign(self) -> None:
        """Hand leadership over: confirm what is pending, close the log, let the next one lead.

        Then this is a standby again, from the end of its log on: the application has applied
        all it appended. Raises `NotPromoted`, and what could not be appended; leadership is
        given up in any case. After an error, or if it is cancelled, this is `lost`."""
        log, term = self._log, self._term
        if log is None or term is None:
            raise NotPromoted(self.name)
        self._resigning = asyncio.create_task(self._resign(log, term), name="resignation")
        try:
            await self._resigning
        finally:
            self._resigning = None

    async def close(self) -> None:
        """End following, or leading as `resign` does, and free everything. Idempotent.

        Raises what could not be appended, unless `lost` said so already. *apply* does not run
        any more when this returns."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="closing a standby")
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            await self.close()
            return
        with suppress(LogError):  # the error on its way says more
            await self.close()

    # Leading.

    async def _promote(self, timeout_s: float | None) -> Log:
        clock = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else clock() + timeout_s
        await self._following.go_on()
        while True:
            left_s = None if deadline is None else max(0.0, deadline - clock())
            term = await self._elected(timeout_s, left_s)
            try:
                return await self._take_over(term)
            except LostOwnership as error:
                if error.reason != _term_over(term):
                    raise
                _log.warning("promotion_lost", log=self.name, reason=error.reason)

    async def _elected(self, timeout_s: float | None, left_s: float | None) -> Term:
        """Stand for election for as long as following goes on."""
        standing = asyncio.create_task(
            campaign(
                self._ledgers.store,
                self.name,
                candidate=self._candidate,
                timeout_s=left_s,
                lease_s=self._lease_s,
                lifeline_host=self._lifeline_host,
                security=self._ledgers.security,
            )
        )
        try:
            await asyncio.wait(
                {standing, self._following.task}, return_when=asyncio.FIRST_COMPLETED
            )
            self._following.check()
            return await asyncio.shield(standing)
        except BaseException as error:
            standing.cancel()
            await asyncio.wait({standing})
            if not standing.cancelled() and standing.exception() is None:
                await standing.result().resign()
            if isinstance(error, NotElected) and timeout_s is not None:
                raise NotElected(self.name, timeout_s, error.trouble) from None
            raise

    async def _take_over(self, term: Term) -> Log:
        log: Log | None = None
        began = time.monotonic()
        try:
            log = await Log.open(self.name, term=term, create=False, client=self._ledgers)
            self._following.check_life(log.writer.incarnation)
            await self._catch_up(term, log)
            await self._following.stop()
        except BaseException as error:
            self._following.end = None
            lost = _term_over(term)
            if log is not None:
                await log.abandon()
            await term.resign()
            await self._following.go_on()
            if isinstance(error, LostOwnership) and lost:
                raise LostOwnership(self.name, lost) from error
            raise
        metrics.PROMOTIONS.add()
        metrics.PROMOTION_S.observe(time.monotonic() - began)
        self._term, self._log = term, log
        self._guarding = asyncio.create_task(self._guard(term, log), name="guard of a leader")
        return log

    async def _catch_up(self, term: Term, log: Log) -> None:
        """Apply everything below the end of *log*, for as long as we lead."""
        following, end = self._following, log.last_offset + 1
        following.end = end
        if following.position >= end and not following.task.done():
            return
        await _first({following.task}, term.lost, log.lost)
        if following.task.done():
            following.check()
        elif term.lost.is_set():
            raise LostOwnership(self.name, _term_over(term))
        else:
            assert log.writer.error is not None
            raise log.writer.error

    async def _guard(self, term: Term, log: Log) -> None:
        """Fence ourselves as soon as the term may be over; let others lead if the log is lost."""
        await _first(set(), term.lost, log.lost)
        if term.lost.is_set():
            log.writer.lose(LostOwnership(self.name, _term_over(term)))
            self._lose(_why_lost(log, term))
        else:
            self._lose(_why_lost(log, term))
            await term.resign()

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self.lost_reason = reason
            self.lost.set()
            metrics.LEADERSHIPS_LOST.add()
            _log.warning("leadership_lost", log=self.name, reason=reason)

    async def _resign(self, log: Log, term: Term) -> None:
        try:
            await self._step_down(log, term)
        except BaseException as error:  # what was pending may or may not be in the log
            self._lose(str(error) or "resigning was cancelled")
            raise
        self._following.position, self._following.end = log.last_offset + 1, None
        await self._following.go_on()

    async def _step_down(self, log: Log, term: Term) -> None:
        self._log = self._term = None  # from now on `is_leader` is False
        try:
            await log.close()  # guarded: pending appends end with the term at the latest
        finally:
            if self._guarding is not None:
                self._guarding.cancel()
                await asyncio.wait({self._guarding})
                self._guarding = None
            await term.resign()

    async def _close(self) -> None:
        if self._promoting is not None:
            self._promoting.cancel()
            await asyncio.wait({self._promoting})
        if self._resigning is not None:
            await asyncio.wait({self._resigning})
        await self._following.stop()
        try:
            if self._log is not None and self._term is not None:
                await self._step_down(self._log, self._term)
        except LogError:
            if not self.lost.is_set():
                raise
        finally:
            if self._owns_ledgers:
                await self._ledgers.close()


def _term_over(term: Term) -> str:
    """Return why *term* is over; empty if it is not."""
    return "" if term.is_current() else f"its term is over ({term.lost_reason or 'lease'})"


def _why_lost(log: Log, term: Term) -> str:
    return _term_over(term) or str(log.writer.error)


def _succeeded(task: asyncio.Task[Log]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _first(tasks: set[asyncio.Task[None]], *events: asyncio.Event) -> None:
    """Return when one of *tasks* is done or one of *events* is set."""
    waiting = {asyncio.create_task(event.wait()) for event in events}
    try:
        await asyncio.wait([*tasks, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
