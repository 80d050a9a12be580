"""Which batches of idempotent producers are in one log: none is appended twice, none out of order.

A producer numbers its records from 0 on, and sends a batch again until it hears of it. Of each
producer the last batches are known, with the offset of each: a batch that is one of them is a
duplicate, and has its offset already; the next one has to continue where the last one ended. A
producer that comes back with a higher epoch starts at 0 again, and the lower epoch is refused.

Batches are added in the order in which they are appended, those in flight included: offsets are
final, so what a later batch is compared with is what the log will hold, or the log is lost to its
writer, and this state with it. Whoever takes the log over builds it again from the newest snapshot
in the log, which stands in an entry and is the state before it, and from the batches since, that
one included.

A producer is forgotten a day after its last batch, as by Kafka, and earlier if more than
`PRODUCERS_MAX` others were active since: then its next batch is taken whatever its number.

Invariants (asserted by `check_invariants`):
    of one producer the batches known continue each other, in sequence and in offset
    at most `BATCHES_MAX` of each, and `PRODUCERS_MAX` producers, the one active last at the end
"""

import struct
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from dlog.errors import DamagedBatch
from dlog.kafka.errors import KafkaRefusal

BATCHES_MAX: Final = 5
"""Batches of a producer that are known: as many as it may have in flight."""
EXPIRY_MS: Final = 86_400_000
PRODUCERS_MAX: Final = 4096
SEQUENCE_END: Final = 2**31
"""After the sequence before it comes 0."""

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BI")
_PRODUCER: Final = struct.Struct("<qhqB")
_BATCH: Final = struct.Struct("<iiq")


class ProducerBatch(NamedTuple):
    """One batch of an idempotent producer."""

    producer_id: int
    epoch: int
    first_sequence: int
    records: int
    offset: int
    """Of its first record."""
    appended_ms: int
    """By the clock of the server that appended it."""

    @property
    def next_sequence(self) -> int:
        return (self.first_sequence + self.records) % SEQUENCE_END


class _Producer:
    __slots__ = ("appended_ms", "batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.appended_ms = 0
        """When its last batch was appended."""
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_MAX)


class ProducerState:
    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        """In the order of their last batches."""

    def __len__(self) -> int:
        return len(self._producers)

    def duplicate_of(self, batch: ProducerBatch, *, now_ms: int) -> int | None:
        """Return the offset that *batch* has in the log already; None: it may be appended now.

        Its offset and time do not count. Raises `KafkaRefusal` if its epoch is over, or it does
        not continue the batch before it."""
        producer = self._known(batch.producer_id, now_ms)
        if producer is None:
            return None
        if batch.epoch < producer.epoch:
            raise KafkaRefusal(
                ErrorCode.invalid_producer_epoch,
                f"epoch {batch.epoch} of producer {batch.producer_id} is over: it has epoch "
                f"{producer.epoch} by now",
            )
        if batch.epoch > producer.epoch:
            expected = 0
        else:
            for known in producer.batches:
                if (known.first_sequence, known.records) == (batch.first_sequence, batch.records):
                    return known.offset
            expected = producer.batches[-1].next_sequence
        if batch.first_sequence != expected:
            raise KafkaRefusal(
                ErrorCode.out_of_order_sequence_number,
                f"producer {batch.producer_id} sent sequence {batch.first_sequence} of epoch "
                f"{batch.epoch} where {expected} is next: a batch before it is missing",
            )
        return None

    def add(self, batch: ProducerBatch) -> None:
        """*batch* is appended at its offset, behind all that were added before."""
        producer = self._producers.pop(batch.producer_id, None)
        if producer is None or producer.epoch != batch.epoch or not _continues(producer, batch):
            producer = _Producer(batch.epoch)
        producer.batches.append(batch)
        producer.appended_ms = batch.appended_ms
        self._producers[batch.producer_id] = producer
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    def encode(self, *, now_ms: int) -> bytes:
        """Return the snapshot of what is not expired; never empty."""
        producers = {
            producer_id: producer
            for producer_id, producer in self._producers.items()
            if now_ms - producer.appended_ms < EXPIRY_MS
        }
        self._producers = producers
        parts = [_HEAD.pack(_VERSION, len(producers))]
        for producer_id, producer in producers.items():
            batches = producer.batches
            parts.append(
                _PRODUCER.pack(producer_id, producer.epoch, producer.appended_ms, len(batches))
            )
            parts += [
                _BATCH.pack(each.first_sequence, each.records, each.offset) for each in batches
            ]
        return b"".join(parts)

    @classmethod
    def decode(cls, snapshot: bytes | memoryview) -> Self:
        """Return the state that `encode` wrote. Raises `DamagedBatch`."""
        state = cls()
        try:
            version, count = _HEAD.unpack_from(snapshot)
            if version != _VERSION:
                raise DamagedBatch(f"a snapshot of producers of version {version}")
            at = _HEAD.size
            for _ in range(count):
                producer_id, epoch, appended_ms, batches = _PRODUCER.unpack_from(snapshot, at)
                at += _PRODUCER.size
                for _ in range(batches):
                    first, size, offset = _BATCH.unpack_from(snapshot, at)
                    at += _BATCH.size
                    state.add(ProducerBatch(producer_id, epoch, first, size, offset, appended_ms))
            state.check_invariants()
        except (struct.error, AssertionError) as error:
            raise DamagedBatch(f"a snapshot of producers is none: {error}") from error
        if at != len(snapshot) or len(state) != count:
            raise DamagedBatch("a snapshot of producers has another size than it says")
        return state

    @classmethod
    def rebuild(cls, snapshot: bytes | memoryview | None, since: Iterable[ProducerBatch]) -> Self:
        """Return the state after *snapshot* (None: after nothing) and the batches *since*, in
        order. Raises `DamagedBatch`."""
        state = cls() if snapshot is None else cls.decode(snapshot)
        for batch in since:
            state.add(batch)
        return state

    def _known(self, producer_id: int, now_ms: int) -> _Producer | None:
        producer = self._producers.get(producer_id)
        if producer is not None and now_ms - producer.appended_ms >= EXPIRY_MS:
            del self._producers[producer_id]
            return None
        return producer

    def check_invariants(self) -> None:
        assert len(self._producers) <= PRODUCERS_MAX, "too many producers"
        for producer_id, producer in self._producers.items():
            batches = producer.batches
            assert 1 <= len(batches) <= BATCHES_MAX, "each producer has a batch"
            assert producer.epoch >= 0, "an epoch is negative"
            for batch in batches:
                assert batch.producer_id == producer_id, "a batch of another producer"
                assert batch.records >= 1, "an empty batch"
                assert 0 <= batch.first_sequence < SEQUENCE_END, "a negative sequence"
                assert batch.offset >= 0, "a negative offset"
            for before, after in pairwise(batches):
                assert after.first_sequence == before.next_sequence, "a gap"
                assert after.offset >= before.offset + before.records, "offsets go back"


def _continues(producer: _Producer, batch: ProducerBatch) -> bool:
    return batch.first_sequence == producer.batches[-1].next_sequence
