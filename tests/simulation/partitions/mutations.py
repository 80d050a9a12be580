"""Bugs of a led log: batches that are doubled, lost, out of order, or served where they are not."""

from collections.abc import Iterable

from dlog.aio.log import Log
from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.store import ManifestNode
from dlog.chunk import Chunk
from dlog.kafka import consumer_reads
from dlog.kafka import partition as partitions
from dlog.kafka.partition import Partition, Produced
from dlog.kafka.producer_recovery import ProducerRecovery
from dlog.kafka.protocol.producer_state import ProducerBatch, ProducerState
from dlog.kafka_batch import with_place
from dlog.manifest import Segment
from dlog.protocol.pending_batch import Outcome
from dlog.recordbatch import KafkaRecordBatch
from ledger.log_events import now_ms
from tests.simulation.mutations.mutation import Patch, mutation

_TESTS = "tests/dlog/kafka/test_partition.py"
_STATE = "tests/dlog/kafka/test_producer_state.py"


@mutation(
    "",
    partitions=True,
    test=f"{_TESTS}::test_a_batch_that_is_sent_again_is_appended_once_also_after_a_takeover",
)
def forgets_producers_at_a_takeover(patch: Patch) -> None:
    async def run(_: ProducerRecovery) -> ProducerState:
        return ProducerState()

    patch.set(ProducerRecovery, "run", run)


@mutation("", partitions=True)
def builds_producers_again_before_it_fences(patch: Patch) -> None:
    """What the leader before appends in between is not among what is known."""

    async def open_late(
        cls: type[Partition], log: str, ledgers: Ledgers, *, owner: str
    ) -> Partition:
        node = ManifestNode(ledgers.store, log)
        manifest, _ = await node.read()
        producers = await ProducerRecovery(ledgers, log, manifest, now_ms=now_ms()).run()
        own = await Log.open(log, client=ledgers, create=False, owner=owner)
        manifest, _ = await own.writer.node.read()
        return cls(own, ledgers, manifest, producers)

    patch.set(Partition, "open", classmethod(open_late))


@mutation("", partitions=True, test=f"{_TESTS}::test_native_records_in_between_hide_no_producer")
def takes_native_records_for_the_end_of_producers(patch: Patch) -> None:
    honest = ProducerRecovery._read

    async def read(self: ProducerRecovery, segment: Segment, reader: LedgerTail) -> None:
        before = len(self._since)
        await honest(self, segment, reader)
        self._ended = self._ended or len(self._since) == before

    patch.set(ProducerRecovery, "_read", read)


@mutation(
    "",
    partitions=True,
    test=f"{_TESTS}::test_the_snapshot_of_producers_is_enough_and_no_record",
)
def takes_a_snapshot_for_the_state_after_its_batch(patch: Patch) -> None:
    def take(self: ProducerRecovery, batch: KafkaRecordBatch, offset: int) -> None:
        if batch.producers:
            self._snapshot, self._ended = bytes(batch.producers), True
        else:
            honest(self, batch, offset)

    honest = ProducerRecovery._take
    patch.set(ProducerRecovery, "_take", take)


@mutation("", partitions=True)
def finds_producers_at_offsets_of_their_segment(patch: Patch) -> None:
    """A duplicate is answered with where its batch is in its segment."""
    honest = ProducerRecovery._take

    def take(self: ProducerRecovery, batch: KafkaRecordBatch, _offset: int) -> None:
        honest(self, batch, batch.header.base_index)

    patch.set(ProducerRecovery, "_take", take)


@mutation("", partitions=True)
def adds_batches_to_producers_newest_first(patch: Patch) -> None:
    def rebuild(
        cls: type[ProducerState], snapshot: bytes | None, since: Iterable[ProducerBatch]
    ) -> ProducerState:
        return honest(snapshot, reversed([*since]))

    honest = ProducerState.rebuild
    patch.set(ProducerState, "rebuild", classmethod(rebuild))


@mutation(
    "",
    partitions=True,
    test=f"{_TESTS}::test_a_batch_that_is_sent_again_is_appended_once_also_after_a_takeover",
)
def takes_every_batch_for_a_new_one(patch: Patch) -> None:
    def duplicate_of(_self: ProducerState, _batch: ProducerBatch, *, now_ms: int) -> None:
        return None

    patch.set(ProducerState, "duplicate_of", duplicate_of)


@mutation("", partitions=True, test=f"{_TESTS}::test_a_duplicate_of_a_batch_in_flight_waits_for_it")
def answers_a_duplicate_before_it_is_confirmed(patch: Patch) -> None:
    async def confirmed(self: Partition, offset: int, acks: int) -> Produced:
        return self._produced(offset)

    patch.set(Partition, "_confirmed", confirmed)


@mutation("", partitions=True)
def answers_before_a_batch_is_confirmed(patch: Patch) -> None:
    async def outcome_of(self: Partition, outcome: Outcome) -> Produced:
        for offset, known in self._in_flight:
            if known is outcome:
                return self._produced(offset)
        return await honest(self, outcome)

    honest = Partition._outcome_of
    patch.set(Partition, "_outcome_of", outcome_of)


@mutation("", partitions=True, test=f"{_TESTS}::test_a_duplicate_of_a_batch_in_flight_waits_for_it")
def takes_what_is_sent_for_confirmed(patch: Patch) -> None:
    patch.set(Partition, "high_watermark", property(lambda self: self._writer.next_offset))


@mutation(
    "",
    partitions=True,
    test=f"{_TESTS}::test_old_records_are_read_from_bookies_batch_by_batch",
)
def writes_the_offset_that_was_asked_for(patch: Patch) -> None:
    """Into a batch that begins before it."""

    def stored(chunk: Chunk, epoch: int, incarnation: str) -> bytes:
        whole = honest(chunk, epoch, incarnation)
        return with_place(whole, chunk.begin, epoch)

    honest = consumer_reads._stored
    patch.set(consumer_reads, "_stored", stored)


@mutation(
    "",
    partitions=True,
    test=f"{_TESTS}::test_what_producers_send_is_fetched_with_dense_offsets_and_the_epoch",
)
def serves_batches_as_they_came(patch: Patch) -> None:
    patch.set(partitions, "with_place", lambda batch, _offset, epoch: with_place(batch, 0, epoch))


@mutation(
    "",
    partitions=True,
    drawn=False,
    test=f"{_TESTS}::test_a_batch_that_failed_is_not_taken_for_one_that_is_in_the_log",
)
def remembers_batches_that_failed_as_kept(patch: Patch) -> None:
    """A batch that was sent and not confirmed counts as in the log for the next one that asks."""

    async def confirmed(self: Partition, offset: int, acks: int) -> Produced:
        for begin, outcome in self._in_flight:
            if begin == offset and not outcome.done:
                return await self._outcome_of(outcome)
        return self._produced(offset)

    patch.set(Partition, "_confirmed", confirmed)


@mutation(
    "",
    partitions=True,
    test=f"{_TESTS}::test_a_gap_is_not_refused_by_who_does_not_lead_any_more",
)
def refuses_a_gap_although_it_does_not_lead(patch: Patch) -> None:
    async def check_leads(_: Partition) -> None:
        return None

    patch.set(Partition, "_check_leads", check_leads)


@mutation("", partitions=True, test=f"{_STATE}::test_the_last_five_batches_are_known")
def knows_the_last_batch_alone(patch: Patch) -> None:
    honest = ProducerState.add

    def add(self: ProducerState, batch: ProducerBatch) -> None:
        honest(self, batch)
        batches = self._producers[batch.producer_id].batches
        while len(batches) > 1:
            batches.popleft()

    patch.set(ProducerState, "add", add)
