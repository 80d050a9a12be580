"""A simulated gateway that leads one log, with the producers and consumers that ask it."""

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode

from dlog.errors import LostOwnership, NoSuchLog
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.partition import Partition
from ledger.errors import LogError
from ledger.log_events import now_ms
from tests.dlog.kafka.produced import fetched
from tests.simulation.kernel.invariants import InvariantError
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile
from tests.simulation.partitions.oracle import (
    FETCHED,
    IN_FLIGHT_MAX,
    IN_ORDER,
    PartitionOracle,
    Producer,
    SentBatch,
)

RETRY_S: Final = 0.2
PATIENCE_S: Final = 1.0
"""How long a producer waits for answers before it sends again, perhaps elsewhere."""
FETCH_BYTES: Final = (1, 300, 5000)
FINAL: Final = frozenset({
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.corrupt_message,
    ErrorCode.invalid_record,
})  # fmt: skip
"""On these a producer gives up, or loses its place."""


class Gateway:
    def __init__(
        self,
        process: Process,
        log: str,
        profile: LogProfile,
        oracle: PartitionOracle,
        producers: list[Producer],
    ) -> None:
        self.process, self.log = process, log
        self.stopping = False
        """Set once nothing is wrong any more: batches that were sent get their answers."""
        self.opening = False
        self.partition: Partition | None = None
        self._profile, self._oracle, self._producers = profile, oracle, producers
        self._random = process.world.scheduler.random
        self._asked = 0

    @property
    def is_finished(self) -> bool:
        return self.stopping and not any(producer.pending for producer in self._producers)

    async def run(self) -> None:
        while not self.is_finished:
            await asyncio.sleep(self._random.choice(self._profile.thinks_s) * self._random.random())
            await self._lead()

    async def _lead(self) -> None:
        """Open the log, serve it for a while, let it go."""
        self.opening = True
        self._asked = self.process.world.scheduler.steps
        try:
            partition = await Partition.open(
                self.log, self.process.ledgers, owner=self.process.name
            )
        except (LostOwnership, NoSuchLog) as error:
            return self._failed(error)
        except LogError as error:
            if not error.retryable:
                raise
            return self._failed(error)
        finally:
            self.opening = False
        self.partition = partition
        self._opened(partition)
        try:
            await self._serve(partition)
        finally:
            self.partition = None
            if self._random.random() < self._profile.abandons:
                await partition._own.abandon()
            await partition.close()

    def _opened(self, partition: Partition) -> None:
        self.process.note(f"leads as epoch {partition.epoch} from {partition.high_watermark} on")
        self.process.mark("partition_opened")
        incarnation = partition._manifest.incarnation
        txid = partition._own.last_txid
        self.process.world.logs.opened(
            incarnation,
            self.process.name,
            partition.epoch,
            partition.high_watermark,
            txid,
            asked=self._asked,
        )

    async def _serve(self, partition: Partition) -> None:
        rounds = self._random.choice(self._profile.bursts)
        sending: set[asyncio.Task[None]] = set()
        while (rounds > 0 or self.stopping) and self._leads(partition):
            rounds -= 1
            if self.is_finished:
                break
            await asyncio.sleep(self._random.choice(self._profile.pauses_s))
            self._oracle.watermark(self.process.name, partition.epoch, partition.high_watermark)
            lot = self._random.random()
            if lot < 0.6:
                self._send(partition, sending)
            elif lot < 0.65:
                await self._delete(partition)
            else:
                await self._fetch(partition)
        if sending:
            await asyncio.wait(sending, timeout=PATIENCE_S)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    def _leads(self, partition: Partition) -> bool:
        return not partition.failed.is_set()

    def _send(self, partition: Partition, sending: set[asyncio.Task[None]]) -> None:
        """Let a producer send all that it has no answer to, in order, and something new."""
        now = self.process.world.scheduler.now
        waiting = [producer for producer in self._producers if producer.asked_until <= now]
        if not waiting:
            return
        producer = self._random.choice(waiting)
        producer.asked_until = now + PATIENCE_S * self._random.choice((0.0, 0.1, 1.0))
        if producer.pending:
            self.process.mark("batch_sent_again")
        while not self.stopping and len(producer.pending) < IN_FLIGHT_MAX:
            producer.make(self._random.choice((1, 1, 2, 4)), partition.epoch, now_ms())
            if self._random.random() < 0.4:
                break
        batches = list(producer.pending)
        if self._profile.truncates == 0 and self._random.random() < 0.2:
            batches[:0] = producer.answered[-2:]  # a network that doubles what was answered
        self.process.note(
            f"is sent {[batch.attempt.number for batch in batches]} of {producer.producer_id}"
        )
        for batch in batches:
            self._oracle.sent(partition._manifest.incarnation, self.process.name, batch)
            is_pending = batch in producer.pending
            produced = self._produce(partition, producer, batch, is_pending=is_pending)
            task = self.process.loop.create_task(produced)
            sending.add(task)
            task.add_done_callback(sending.discard)

    async def _produce(
        self, partition: Partition, producer: Producer, batch: SentBatch, *, is_pending: bool
    ) -> None:
        try:
            produced = await partition.produce(batch.encoded, acks=-1)
        except KafkaRefusal as refusal:
            self.process.mark(f"refused_{refusal.code.name}")
            self.process.note(f"refuses {batch.attempt.number}: {refusal}")
            if refusal.code in FINAL and is_pending and batch in producer.pending:
                raise InvariantError(
                    IN_ORDER, self.log, f"{batch.attempt} was refused: {refusal}"
                ) from None
            return
        incarnation = partition._manifest.incarnation
        if self._oracle.answered(incarnation, producer, batch, produced.base_offset):
            self.process.note(f"has {batch.attempt.number} at {produced.base_offset}")
            self.process.mark("batch_acknowledged")
        else:
            self.process.mark("duplicate_answered")

    async def _delete(self, partition: Partition) -> None:
        if self._random.random() >= self._profile.truncates:
            return
        # What is deleted before it is answered is not known to the next leader; see docs/kafka.md.
        ends = [each.answered[-1].attempt.end_offset for each in self._producers if each.answered]
        end = min(ends) if len(ends) == len(self._producers) else 0
        before = self._random.randrange(min(end, partition.high_watermark) + 1)
        self.process.world.logs.truncates(partition._manifest.incarnation, before)
        try:
            await partition.delete_records(before)
            self.process.mark("records_deleted")
        except KafkaRefusal as refusal:
            self.process.note(f"does not delete: {refusal}")

    async def _fetch(self, partition: Partition) -> None:
        """Fetch from somewhere to the end, or to where it is enough."""
        begin, end = partition.start_offset, partition.high_watermark
        offset = self._random.randrange(begin, end + 1) if end >= begin else begin
        for _ in range(self._random.choice((1, 3))):
            try:
                data = await partition.fetch(offset, self._random.choice(FETCH_BYTES))
            except KafkaRefusal as refusal:
                self.process.mark(f"fetch_{refusal.code.name}")
                return
            records = fetched(data)
            if not records:
                return
            offsets = [each for each, _ in records]
            if not offsets[0] <= offset <= offsets[-1]:
                raise InvariantError(FETCHED, self.log, f"offset {offset} is not in {offsets}")
            for position, value in records:
                assert value is not None
                self._oracle.fetched(self.process.name, position, value)
            self.process.mark("records_fetched")
            if partition._recent.begin > offset:
                self.process.mark("old_records_fetched")
            offset = offsets[-1] + 1

    def _failed(self, error: LogError) -> None:
        self.process.note(f"cannot lead: {error}")
        self.process.mark(f"gateway_{type(error).__name__}")
