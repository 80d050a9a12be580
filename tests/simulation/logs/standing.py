"""A process that follows a log as a warm standby, is promoted, leads, and follows again."""

import asyncio
from collections.abc import Sequence

from dlog.aio.log import Log
from dlog.aio.standby import Standby
from dlog.errors import LogSealed, LostOwnership, NoSuchLog, Trimmed
from dlog.position import Record
from leader import NotElected
from ledger.errors import LogError
from tests.simulation.logs.oracle import Reading, Seen
from tests.simulation.logs.writing import CAMPAIGN_S, LEASE_S, Leader


class StandbyLeader(Leader):
    """A `Leader` that only ever opens its log by a promotion."""

    _reading: Reading | None = None

    async def _take_part(self) -> None:
        self._reading = None
        try:
            standby = await Standby.open(
                self.name,
                self._apply,
                settings=self._profile.settings,
                candidate=self.process.name,
                lease_s=LEASE_S,
                lifeline_host=self.process.lifeline_host,
                client=self.process.ledgers,
            )
        except LogError as error:
            self._over(error)
            return
        try:
            while not self.stopping:
                await self._lead_once(standby)
                if self._random.random() < self._profile.restarts:
                    break
        except LogError as error:
            self._over(error)
        finally:
            try:
                await standby.close()
            except LogError as error:
                self._over(error)
        await asyncio.sleep(0)
        assert not self.unresolved, f"let go, and never resolved {self.unresolved}"

    async def _lead_once(self, standby: Standby) -> None:
        self._begin_to_open()
        try:
            log: Log = await standby.promote(timeout_s=CAMPAIGN_S)
        except NotElected:
            self.process.mark("not_elected")
            return
        finally:
            self.opening = False
        self.process.mark("standby_promoted")
        incarnation = self._opened(log)
        self.elected_at = self.process.world.scheduler.now
        applied = standby.position if self._reading is None else self._end_of_what_was_applied()
        self.process.world.logs.promoted(incarnation, self.process.name, log.epoch, applied)
        await self._write(log, incarnation, self._random.choice(self._profile.bursts))
        await standby.resign()
        self.process.mark("standby_resigned")
        self._reading = None

    def _apply(self, records: Sequence[Record]) -> None:
        """Take records into the state: here, report them."""
        logs = self.process.world.logs
        incarnation = logs.incarnation_with(bytes(records[0].value))
        if self._reading is None:
            self._reading = logs.reads(incarnation, self.process.name, records[0].offset)
        for record in records:
            seen = Seen(self.process.name, record.offset, record.dlsn, record.txid, record.value)
            logs.read(incarnation, self._reading, seen)

    def _end_of_what_was_applied(self) -> int:
        assert self._reading is not None
        return self._reading.reads[-1].offset + 1

    def _over(self, error: LogError) -> None:
        expected = isinstance(error, LostOwnership | NoSuchLog | Trimmed | LogSealed)
        if not expected and not error.retryable and not error.outcome_unknown:
            raise error
        self._failed(error)
