"""A process that leads a log: opens it, appends, rolls, truncates, loses it, begins again."""

import asyncio
from functools import partial
from typing import Final

from dlog.aio.log import Log
from dlog.aio.port import Leadership
from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    InvalidPosition,
    LogSealed,
    LostOwnership,
    NoSuchLog,
)
from dlog.position import RecordId, RecordIds
from dlog.protocol.orphans import STAMP_INCARNATION
from leader import NotElected, campaign
from ledger.errors import LogError, TooManyPending
from tests.simulation.logs.oracle import Append, LogHistory
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile

TXID_START: Final = 1000
RECORDS_IN_FLIGHT_MAX: Final = 40
CAMPAIGN_S: Final = 3.0
IDLE_S: Final = 5.0
LEASE_S: Final = 3.0
"""Less than two thirds of the session's time; see `leader.campaign`."""


class Leader:
    """Made for one log; `run` goes on until `stop`."""

    def __init__(self, process: Process, name: str, profile: LogProfile) -> None:
        self.process = process
        self.name = name
        self.stopping = False
        """Once set it leads no more, but its process lives on, until it is dismissed."""
        self.dismissed = False
        self.idle = False
        self.elected_at = -1.0
        """When it opened the log last because it had been elected."""
        self.acknowledged_at = -1.0
        """When a record was acknowledged to it last."""
        self.opening = False
        self.closing = False
        self.rolling = False
        self._profile = profile
        self._random = process.world.scheduler.random
        self._appended = 0
        self._asked = 0
        """Step at which it began to open the log last."""
        self._open: list[Append] = []

    async def run(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self._random.choice(self._profile.thinks_s) * self._random.random())
            if not self.stopping:
                await self._take_part()
        self.idle = True
        while not self.dismissed:  # noqa: ASYNC110 - it is set from outside its event loop
            await asyncio.sleep(IDLE_S)

    async def _take_part(self) -> None:
        bursts = self._random.choice(self._profile.bursts)
        if self._random.random() < self._profile.elections:
            await self.lead_elected(bursts)
        else:
            await self.lead(bursts)

    async def lead_elected(self, bursts: int, *, timeout_s: float | None = CAMPAIGN_S) -> bool:
        """As `lead`, in a term, which may end at any time."""
        process = self.process
        try:
            term = await campaign(
                process.store,
                self.name,
                candidate=process.name,
                timeout_s=timeout_s,
                lease_s=LEASE_S,
                lifeline_host=self.process.lifeline_host,
            )
        except NotElected:
            process.mark("not_elected")
            return False
        process.note(f"is elected for {self.name}, term {term.epoch}")
        process.mark("leader_elected")
        try:
            return await self.lead(bursts, term=term)
        finally:
            if term.lost.is_set():
                process.mark("term_lost")
            await term.resign()

    async def lead(
        self, bursts: int, *, create: bool = True, term: Leadership | None = None
    ) -> bool:
        """Open the log, append *bursts* times, let it go; return whether it could be opened."""
        process = self.process
        self._begin_to_open()
        process.mark("open_begun")
        current = term is None or term.is_current()
        try:
            log = await Log.open(
                self.name,
                create=create,
                settings=self._profile.settings,
                owner=process.name,
                reopen_timeout_s=self._profile.reopen_timeout_s,
                client=process.ledgers,
                term=term,
            )
        except (LostOwnership, NoSuchLog, LogSealed) as error:
            return self._not_opened(error)
        except LogError as error:
            if not error.retryable:
                raise
            return self._not_opened(error)
        finally:
            self.opening = False
            if term is not None and current and not term.is_current():
                process.mark("term_lost_while_opening")
        incarnation = self._opened(log)
        if term is not None:
            self.elected_at = process.world.scheduler.now
        await self._write(log, incarnation, bursts)
        self._mark_end(log)
        await self._leave(log)
        await asyncio.sleep(0)
        assert not self.unresolved, f"let go, and never resolved {self.unresolved}"
        return True

    def _begin_to_open(self) -> None:
        self.opening = True
        self._asked = self.process.world.scheduler.steps

    def _opened(self, log: Log) -> str:
        """Report what was opened; return its incarnation."""
        process, incarnation = self.process, incarnation_of(log)
        process.note(f"opened {self.name} as epoch {log.epoch}, last offset {log.last_offset}")
        process.mark("log_opened")
        txid = log.last_txid
        process.world.logs.opened(
            incarnation, process.name, log.epoch, log.last_offset + 1, txid, asked=self._asked
        )
        self._txid = TXID_START if txid is None else txid
        return incarnation

    def _mark_end(self, log: Log) -> None:
        """Record how trouble ended the writer, if it did."""
        error = log.writer.error
        assert "AssertionError" not in str(error), error
        if isinstance(error, AppendFailed):
            healing = self._profile.reopen_timeout_s > 0
            self.process.mark("writer_did_not_heal_in_time" if healing else "writer_never_heals")
        elif isinstance(error, LostOwnership) and "its epoch is" in error.reason:
            self.process.mark("writer_was_taken_over_before_it_healed")

    def _not_opened(self, error: LogError) -> bool:
        self.process.note(f"could not open {self.name}: {error}")
        self.process.mark(f"open_failed_{type(error).__name__}")
        return False

    async def _write(self, log: Log, incarnation: str, bursts: int) -> None:
        try:
            for _ in range(bursts):
                await asyncio.sleep(self._random.choice(self._profile.pauses_s))
                if self.stopping or log.lost.is_set():
                    break
                await self._burst(log, incarnation)
        except LogError as error:
            self._failed(error)

    async def _burst(self, log: Log, incarnation: str) -> None:
        if not self.unresolved and log.writer.error is None:
            self.process.world.logs.told_txid(
                incarnation, self.process.name, log.epoch, log.last_txid
            )
        for _ in range(self._random.choice((1, 1, 2, 5))):
            if sum(append.resolved < 0 for append in self._open) >= RECORDS_IN_FLIGHT_MAX:
                break
            if self._random.random() < self._profile.manies:
                self._append_many(log, incarnation)
            else:
                self._append(log, incarnation)
        lot = self._random.random()
        if lot < self._profile.flushes:
            await log.flush()
        elif lot < self._profile.flushes + self._profile.rolls:
            self.process.mark("roll_requested")
            self.rolling = True
            try:
                await log.roll()
            finally:
                self.rolling = False
        elif lot < self._profile.flushes + self._profile.rolls + self._profile.truncates:
            await self._truncate(log, incarnation)

    async def _truncate(self, log: Log, incarnation: str) -> None:
        """Truncate anywhere up to what is sent; what is not confirmed nobody may trim."""
        end = log.last_offset + 1
        before = self._random.randrange(end + 1 + len(self.unresolved))
        self.process.note(f"truncates {self.name} before {before}, confirmed up to {end}")
        self.process.world.logs.truncates(incarnation, min(before, end))
        try:
            await log.truncate(before=before)
        except InvalidPosition as error:
            if before <= end:
                raise
            self.process.note(str(error))
            self.process.mark("truncation_refused")
        else:
            self.process.mark("truncated_by_writer")

    def _append(self, log: Log, incarnation: str) -> None:
        payload, txid = self._payload(), self._next_txid()
        key = b"key" if self._random.random() < 0.2 else None
        expected = self._expected(log)
        logs = self.process.world.logs
        append = logs.submitted(
            incarnation, self.process.name, log.epoch, payload, txid, expected=expected
        )
        try:
            future = log.append_async(payload, txid=txid, key=key, expected_offset=expected)
        except TooManyPending:
            logs.failed(incarnation, append, unknown=False)
            return
        self._remember([append])
        future.add_done_callback(partial(self._resolved, incarnation, append))

    def _append_many(self, log: Log, incarnation: str) -> None:
        """Append some records by one call."""
        payloads = tuple(self._payload() for _ in range(self._random.randrange(1, 5)))
        with_txids = self._random.random() < 0.5
        txids = [self._next_txid() if with_txids else None for _ in payloads]
        expected = self._expected(log)
        logs, who = self.process.world.logs, self.process.name
        appends = [
            logs.submitted(
                incarnation,
                who,
                log.epoch,
                payload,
                txid,
                expected=None if expected is None else expected + index,
                group=payloads,
            )
            for index, (payload, txid) in enumerate(zip(payloads, txids, strict=True))
        ]
        try:
            future = log.append_many_async(
                payloads, txids=txids if with_txids else None, expected_offset=expected
            )
        except TooManyPending:
            for append in appends:
                logs.failed(incarnation, append, unknown=False)
            return
        self.process.mark("append_many")
        self._remember(appends)
        for index, append in enumerate(appends):
            future.add_done_callback(partial(self._resolved_many, incarnation, append, index))

    def _payload(self) -> bytes:
        self._appended += 1
        size = self._random.choice((0, 0, 20, 200))
        return f"{self.process.name}#{self._appended} ".encode().ljust(size, b".")

    def _next_txid(self) -> int | None:
        if self._random.random() >= self._profile.txids:
            return None
        self._txid += self._random.randrange(3)
        return self._txid

    def _expected(self, log: Log) -> int | None:
        """Draw which offset the next record is meant for, mostly the one that it should get."""
        if self._random.random() >= self._profile.expects:
            return None
        self.process.mark("offset_expected")
        return log.last_offset + 1 + len(self.unresolved) + self._random.choice((0, 0, 0, 1))

    def _remember(self, appends: list[Append]) -> None:
        self._open = [each for each in self._open if each.resolved < 0] + appends

    def _resolved_many(
        self, incarnation: str, append: Append, index: int, future: "asyncio.Future[RecordIds]"
    ) -> None:
        one: asyncio.Future[RecordId] = self.process.loop.create_future()
        error = future.exception()
        if error is None:
            one.set_result(future.result()[index])
        else:
            one.set_exception(error)
        self._resolved(incarnation, append, one, index)

    def _resolved(
        self,
        incarnation: str,
        append: Append,
        future: "asyncio.Future[RecordId]",
        index: int = 0,
    ) -> None:
        logs = self.process.world.logs
        error = future.exception()
        if error is None:
            record_id = future.result()
            self.process.note(f"acknowledges {append.payload!r} at {record_id.offset}")
            self.process.mark("record_acknowledged")
            self.acknowledged_at = self.process.world.scheduler.now
            logs.acknowledged(incarnation, append, record_id.offset, record_id.dlsn)
            self._mark_healing(logs.histories[incarnation], append)
            return
        if not isinstance(error, LogError):
            raise error
        self.process.note(f"fails {append.payload!r}: {type(error).__name__}")
        self.process.mark(f"append_{type(error).__name__}")
        offset = error.offset if isinstance(error, AppendOutcomeUnknown) else None
        offset = None if offset is None else offset + index
        logs.failed(incarnation, append, unknown=error.outcome_unknown, offset=offset)

    def _mark_healing(self, history: LogHistory, append: Append) -> None:
        """Separate what healing found in the old segment and what it sent to the new one."""
        segment = history.manifest.find(append.dlsn.segment)
        if history.manifest.epoch != append.epoch or segment is None:
            return
        healed_at = history.healed.get(segment.number)
        if segment.sealed is not None:
            self.process.mark("record_kept_by_healing")
        elif healed_at is not None:
            again = append.submitted < healed_at
            self.process.mark("record_sent_by_healing" if again else "record_after_healing")

    async def _leave(self, log: Log) -> None:
        self.closing = True
        try:
            if self._random.random() < self._profile.abandons:
                self.process.mark("log_abandoned")
                await log.abandon()
            else:
                await log.close()
                self.process.mark("log_closed")
        except LogError as error:
            self._failed(error)
        finally:
            self.closing = False

    def _failed(self, error: LogError) -> None:
        self.process.note(f"{self.name}: {error}")
        self.process.mark(f"writer_{type(error).__name__}")

    @property
    def unresolved(self) -> list[Append]:
        """Appends that nobody has resolved yet."""
        return [append for append in self._open if append.resolved < 0]


def incarnation_of(log: Log) -> str:
    """Return which log of this name it is that was opened."""
    metadata = log.writer._appenders[min(log.writer.own_ledgers)].metadata
    return metadata.custom[STAMP_INCARNATION].decode()
