"""What producers and gateways of Kafka did to one log, and what must hold of it.

A batch is an attempt at a unit that is made once (`units_are_in_once`): its producer is the origin,
its number is the unit. However often it is sent, by whatever gateway, the log has it once, whole,
behind the batches before it, and where it was said to be.
"""

from dataclasses import dataclass, field
from typing import Final

from dlog.receipts import ORIGIN_BYTES
from tests.dlog.kafka.produced import batch_of
from tests.simulation.kernel.invariants import InvariantError
from tests.simulation.logs.oracle import Attempt, LogHistory, LogOracle

ONE_OFFSET: Final = "a_batch_has_one_offset"
CONFIRMED: Final = "the_high_watermark_is_confirmed"
FETCHED: Final = "consumers_of_kafka_get_the_log"
IN_ORDER: Final = "a_producer_that_retries_is_never_out_of_order"
INVARIANTS: Final = {
    ONE_OFFSET: "a batch that is sent again is answered with the offset that it was answered with",
    CONFIRMED: "what is below a high watermark stays, whoever takes the log over",
    FETCHED: "what is fetched is what others read at the offsets that the batches say, in order",
    IN_ORDER: "no gateway refuses a batch for good whose producer sends each until it is answered",
}
IN_FLIGHT_MAX: Final = 5


@dataclass(slots=True, eq=False)
class SentBatch:
    attempt: Attempt
    sequence: int
    encoded: bytes
    is_reported: bool = False
    """Whether the oracle knows that it was sent."""


@dataclass(slots=True, eq=False)
class Producer:
    """An idempotent producer: it outlives gateways, and sends again what it has no answer to."""

    producer_id: int
    pending: list[SentBatch] = field(default_factory=list)
    """Without an answer, in order."""
    answered: list[SentBatch] = field(default_factory=list)
    sequence: int = 0
    epoch: int = 0
    number: int = 0
    asked_until: float = 0.0
    """When it sends again to another gateway."""

    def make(self, count: int, leader_epoch: int, now_ms: int) -> None:
        """Make the next batch, of *count* records."""
        name = f"producer-{self.producer_id}/{self.number}"
        values = tuple(f"{name}/{index}".encode() for index in range(count))
        origin = bytes([self.producer_id]) * ORIGIN_BYTES
        encoded = batch_of(
            *values,
            producer=self.producer_id,
            epoch=self.epoch,
            sequence=self.sequence,
            time_ms=now_ms,
        )
        attempt = Attempt(origin, self.number, leader_epoch, values, (None,) * count)
        self.pending.append(SentBatch(attempt, self.sequence, encoded))
        self.sequence += count
        self.number += 1


class PartitionOracle:
    def __init__(self, logs: LogOracle) -> None:
        self._logs = logs
        self._watermarks: list[tuple[str, int, int]] = []
        """Who reported it, in which epoch, and what."""
        self._checked: dict[str, int] = {}
        self._fetched: dict[int, tuple[str, bytes]] = {}
        """By offset, for which it is not known yet what the log has there."""

    def sent(self, incarnation: str, who: str, batch: SentBatch) -> None:
        if not batch.is_reported:
            batch.is_reported = True
            self._logs.attempted(incarnation, who, batch.attempt)

    def answered(self, incarnation: str, producer: Producer, batch: SentBatch, offset: int) -> bool:
        """A gateway says that *batch* is at *offset*; return whether that is news."""
        known = batch.attempt.said_offset
        if known is not None and known != offset:
            raise InvariantError(ONE_OFFSET, "log", f"{batch.attempt} is at {known} and {offset}")
        if known is not None:
            return False
        producer.pending.remove(batch)
        producer.answered.append(batch)
        self._logs.unit_committed(incarnation, batch.attempt, offset)
        return True

    def watermark(self, who: str, epoch: int, offset: int) -> None:
        self._watermarks.append((who, epoch, offset))

    def fetched(self, who: str, offset: int, payload: bytes) -> None:
        known = self._fetched.setdefault(offset, (who, payload))
        if known[1] != payload:
            raise InvariantError(
                FETCHED, "log", f"{who} fetched {payload!r} at {offset}, {known[0]} {known[1]!r}"
            )

    def check(self, history: LogHistory) -> None:
        """Compare what was reported with what is known of the log by now."""
        for opened in history.opens[self._checked.get("opens", 0) :]:
            self._opened(opened.who, opened.epoch, opened.next_offset)
        self._checked["opens"] = len(history.opens)
        for seen in history.seen[self._checked.get("seen", 0) :]:
            self._compare(seen.offset, seen.payload, seen.who)
        self._checked["seen"] = len(history.seen)

    def _opened(self, who: str, epoch: int, next_offset: int) -> None:
        for teller, told_in, offset in self._watermarks:
            if told_in < epoch and offset > next_offset:
                raise InvariantError(
                    CONFIRMED,
                    "log",
                    f"{teller} had the high watermark {offset} in epoch {told_in}, and {who} "
                    f"opened as epoch {epoch} at {next_offset}",
                )

    def _compare(self, offset: int, payload: bytes, who: str) -> None:
        fetched = self._fetched.get(offset)
        if fetched is not None and fetched[1] != payload:
            raise InvariantError(
                FETCHED,
                "log",
                f"{fetched[0]} fetched {fetched[1]!r} at {offset}, {who} reads {payload!r}",
            )
