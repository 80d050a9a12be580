"""A query that commits unit after unit, as often as its drivers die and begin again.

A `Query` is what outlives its drivers: its id, and the checkpoint that says which unit comes next.
A driver opens a sink, lets tasks stage ledgers, commits, and writes the checkpoint afterwards. Who
comes after it does the unit again that the checkpoint lacks, with records that nobody saw before:
so it shows which attempt at a unit a log holds, and that it holds no more than one. Now and then a
checkpoint is set back, as from a backup: what comes under an old number must not be dropped.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from dlog.aio.write.sink import Sink, Staged, Stager
from dlog.columns import Columns
from dlog.errors import (
    EpochChanged,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    TxidOutOfOrder,
    UnitSuperseded,
)
from dlog.position import NO_TXID
from dlog.receipts import ORIGIN_BYTES, Receipt
from dlog.recordbatch import encode_batch
from ledger.errors import LogError, NoSuchLedger
from ledger.log_events import now_ms
from tests.simulation.logs.oracle import Attempt
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile

TXID_START: Final = 1000
LATE_S: Final = (0.0, 0.2, 3.0)
"""How long after its unit's end a zombie task goes on, at random."""


@dataclass(slots=True, eq=False)
class Query:
    """What is kept of a query while none of its drivers lives."""

    log: str
    origin: bytes
    next_units: dict[str, int] = field(default_factory=dict)
    """What the checkpoint says, for each incarnation of the log: renames give it another one."""
    attempts: int = 0
    stopping: bool = False
    tenure: tuple[str, int] | None = None
    """Incarnation and epoch of the sink that was opened last."""


class Driver:
    """One life of a query's driver."""

    def __init__(self, process: Process, query: Query, profile: LogProfile) -> None:
        self.process = process
        self.query = query
        self.opening = False
        self.committing = False
        self._profile = profile
        self._random = process.world.scheduler.random

    async def run(self) -> None:
        """Begin again until the query is stopped."""
        while not self.query.stopping:
            await asyncio.sleep(self._random.choice(self._profile.thinks_s) * self._random.random())
            if not self.query.stopping:
                await self.live(self._random.choice(self._profile.bursts))

    async def live(self, units: int) -> bool:
        """Open a sink and commit *units*; return whether that could be done."""
        query = self.query
        self.opening = True
        try:
            sink = await self._open()
        except (LostOwnership, EpochChanged, NoSuchLog, LogSealed) as error:
            return self._failed("open", error)
        except LogError as error:
            if not error.retryable:
                raise
            return self._failed("open", error)
        finally:
            self.opening = False
        done = True
        try:
            for _ in range(units):
                await asyncio.sleep(self._random.choice(self._profile.pauses_s))
                if query.stopping and units > 1:
                    break
                if not await self._commit_next(sink):
                    done = False
                    break
        finally:
            await self._leave(sink)
        return done

    async def _open(self) -> Sink:
        """Take the log over, or go on as the sink of a driver before, which may still live."""
        query, profile = self.query, self._profile
        if query.tenure is not None and self._random.random() < 0.4:
            incarnation, epoch = query.tenure
            query.tenure = None
            sink = await Sink.resume(
                query.log,
                client=self.process.ledgers,
                incarnation=incarnation,
                epoch=epoch,
                reopen_timeout_s=profile.reopen_timeout_s,
                owner=self.process.name,
            )
            self.process.note(f"goes on as the sink of {query.log}, epoch {epoch}")
            self.process.mark("sink_resumed")
        else:
            sink = await Sink.open(
                query.log,
                client=self.process.ledgers,
                settings=profile.settings,
                reopen_timeout_s=profile.reopen_timeout_s,
                owner=self.process.name,
            )
            self._opened(sink)
        query.tenure = sink.incarnation, sink.epoch
        return sink

    def _opened(self, sink: Sink) -> None:
        process, tenure = self.process, sink._tenure
        process.note(f"opened {self.query.log} as a sink, epoch {sink.epoch}")
        process.mark("sink_opened")
        txid = None if tenure.last_txid == NO_TXID else tenure.last_txid
        process.world.logs.opened(
            sink.incarnation, process.name, sink.epoch, tenure.end_offset, txid
        )

    async def _commit_next(self, sink: Sink) -> bool:
        query, logs = self.query, self.process.world.logs
        number = query.next_units.get(sink.incarnation, 0)
        if self._random.random() < 0.05:
            number = self._random.randrange(number + 1)  # its checkpoint is of a backup
        last = sink.last_unit(query.origin)
        payloads = self._payloads(number)
        txids = self._txids(sink, len(payloads))
        attempt = Attempt(query.origin, number, sink.epoch, payloads, txids)
        logs.attempted(sink.incarnation, self.process.name, attempt)
        receipt = Receipt(query.origin, number)
        self.process.note(f"commits unit {number} of {query.log}: {attempt.payloads}")
        self.committing = True
        try:
            parts = await self._parts(sink, receipt, attempt)
            small = self._random.choice((0, 1 << 20, 1 << 20))
            done = await sink.commit(receipt, parts, entry_bytes_max=small)
        except (LostOwnership, NoSuchLog, LogSealed, NoSuchLedger) as error:
            return self._failed("commit", error)
        except UnitSuperseded as error:
            if not logs.unit_superseded(sink.incarnation, attempt, error.last):
                raise
            return self._failed("commit", error)
        except TxidOutOfOrder as error:
            if not logs.unit_refused(sink.incarnation, attempt, error.last_txid):
                raise
            return self._failed("commit", error)
        except LogError as error:
            if not (error.retryable or error.outcome_unknown):
                raise
            return self._failed("commit", error)
        finally:
            self.committing = False
        if last is not None and number < last:
            raise AssertionError(f"{sink.log} has unit {last}, and took {attempt} for committed")
        self._mark(done.already, parts)
        logs.unit_committed(sink.incarnation, attempt, None if done.already else done.first_offset)
        if self._random.random() < 0.9:  # else the driver ends before the checkpoint has it
            known = query.next_units.get(sink.incarnation, 0)
            query.next_units[sink.incarnation] = max(known, number + 1)
        return True

    def _mark(self, already: bool, parts: list[bytes | Staged]) -> None:
        if already:
            self.process.mark("unit_already_committed")
        elif any(isinstance(part, Staged) for part in parts):
            self.process.mark("unit_adopted")
        else:
            self.process.mark("unit_committed")

    def _payloads(self, number: int) -> tuple[bytes, ...]:
        query = self.query
        query.attempts += 1
        name = f"{query.origin[:2].hex()}/{number}#{query.attempts}"
        return tuple(
            f"{name}/{index} ".encode().ljust(self._random.choice((0, 0, 20, 200)), b".")
            for index in range(self._random.choice((1, 1, 2, 6)))
        )

    async def _parts(self, sink: Sink, receipt: Receipt, attempt: Attempt) -> list[bytes | Staged]:
        """Return the records of *attempt* in a few parts, some of them staged by tasks."""
        staging = self._random.choice((0.0, 0.0, 0.5, 1.0))
        parts: list[bytes | Staged] = []
        rest = list(zip(attempt.payloads, attempt.txids, strict=True))
        while rest:
            count = self._random.randrange(1, 4)
            payload = _encoded(rest[:count])
            rest = rest[count:]
            if self._random.random() < staging:
                parts.append(await self._stage(sink, receipt, payload))
            else:
                parts.append(payload)
        if self._random.random() < 0.2:
            zombie = self.process.loop.create_task(self._linger(sink, receipt))
            zombie.add_done_callback(_ended)
        return parts

    def _txids(self, sink: Sink, count: int) -> tuple[int | None, ...]:
        if self._random.random() >= self._profile.txids:
            return (None,) * count
        last = sink.assignment.previous_txid
        first = TXID_START if last == NO_TXID else last + self._random.randrange(3)
        return tuple(first + index for index in range(count))

    async def _stage(self, sink: Sink, receipt: Receipt, payload: bytes) -> Staged:
        stager = await Stager.begin(self.process.ledgers, sink.assignment, receipt)
        try:
            await stager.add(payload)
            return await stager.seal()
        except BaseException:
            await stager.abandon()
            raise

    async def _linger(self, sink: Sink, receipt: Receipt) -> None:
        """A task that was given up, and stages what nobody asks for."""
        assignment = sink.assignment
        await asyncio.sleep(self._random.choice(LATE_S))
        try:
            stager = await Stager.begin(self.process.ledgers, assignment, receipt)
            await stager.add(_encoded([(b"of a zombie", None)]))
            await stager.seal()
            self.process.mark("zombie_staged")
        except LogError as error:
            self.process.note(f"a zombie fails: {error}")

    async def _leave(self, sink: Sink) -> None:
        if self._random.random() < self._profile.abandons:
            await sink.abandon()
        else:
            await sink.close()

    def _failed(self, what: str, error: LogError) -> bool:
        self.process.note(f"sink of {self.query.log}: {what}: {error}")
        self.process.mark(f"sink_{what}_{type(error).__name__}")
        return False


def new_query(log: str, number: int) -> Query:
    return Query(log, bytes([number]) * ORIGIN_BYTES)


def _encoded(records: list[tuple[bytes, int | None]]) -> bytes:
    values = [value for value, _ in records]
    txids = [txid for _, txid in records]
    columns = Columns(values, txids=None if txids[0] is None else txids)
    return encode_batch(columns, base_index=0, base_timestamp_ms=now_ms())


def _ended(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.result()
