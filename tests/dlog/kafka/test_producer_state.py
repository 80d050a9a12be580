"""Sequences of idempotent producers: what is taken, what is a duplicate, what is refused."""

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)
from kio.schema.errors import ErrorCode

from dlog.errors import DamagedBatch
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.protocol import producer_state
from dlog.kafka.protocol.producer_state import (
    BATCHES_MAX,
    EXPIRY_MS,
    SEQUENCE_END,
    ProducerBatch,
    ProducerState,
)


def batch(
    sequence: int,
    records: int = 1,
    *,
    producer: int = 7,
    epoch: int = 0,
    offset: int | None = None,
    ms: int = 0,
) -> ProducerBatch:
    """Return one at *offset*, or where it is if it is the only producer's."""
    place = sequence if offset is None else offset
    return ProducerBatch(producer, epoch, sequence, records, place, ms)


def state_of(*batches: ProducerBatch) -> ProducerState:
    state = ProducerState()
    for each in batches:
        assert state.duplicate_of(each, now_ms=each.appended_ms) is None
        state.add(each)
    state.check_invariants()
    return state


def refusal(state: ProducerState, sent: ProducerBatch, now_ms: int = 0) -> ErrorCode:
    with pytest.raises(KafkaRefusal) as refused:
        state.duplicate_of(sent, now_ms=now_ms)
    assert str(sent.producer_id) in str(refused.value)
    return refused.value.code


def test_the_last_five_batches_are_known() -> None:
    state = state_of(*(batch(3 * i, 3, offset=100 + 3 * i) for i in range(7)))
    for i in range(2, 7):
        assert state.duplicate_of(batch(3 * i, 3), now_ms=0) == 100 + 3 * i
    assert refusal(state, batch(3, 3)) is ErrorCode.out_of_order_sequence_number


def test_a_gap_is_refused_and_so_is_a_part_of_a_batch() -> None:
    state = state_of(batch(0, 5))
    assert state.duplicate_of(batch(5), now_ms=0) is None
    for sequence, records in ((6, 1), (0, 4), (1, 4), (3, 2)):
        sent = batch(sequence, records)
        assert refusal(state, sent) is ErrorCode.out_of_order_sequence_number


def test_a_higher_epoch_begins_at_0_and_ends_the_lower_one() -> None:
    state = state_of(batch(0, 5), batch(5))
    assert refusal(state, batch(6, epoch=1)) is ErrorCode.out_of_order_sequence_number
    state.add(batch(0, epoch=1, offset=6))
    assert refusal(state, batch(6)) is ErrorCode.invalid_producer_epoch
    assert refusal(state, batch(0, 5)) is ErrorCode.invalid_producer_epoch
    assert state.duplicate_of(batch(0, epoch=1), now_ms=0) == 6


def test_a_producer_that_is_not_known_may_begin_anywhere() -> None:
    state = state_of(batch(500, 2))
    assert state.duplicate_of(batch(502), now_ms=0) is None


def test_sequences_begin_at_0_again_after_the_highest() -> None:
    state = state_of(batch(SEQUENCE_END - 2, 2))
    assert state.duplicate_of(batch(0), now_ms=0) is None
    state = state_of(batch(SEQUENCE_END - 2, 5, offset=9), batch(3, offset=14))
    assert state.duplicate_of(batch(SEQUENCE_END - 2, 5), now_ms=0) == 9
    assert state.duplicate_of(batch(4), now_ms=0) is None


def test_a_producer_is_forgotten_a_day_after_its_last_batch() -> None:
    state = state_of(batch(0, ms=1000), batch(1, ms=5000), batch(0, producer=8, ms=9000))
    assert state.duplicate_of(batch(1), now_ms=5000 + EXPIRY_MS - 1) == 1
    assert refusal(state, batch(17), 5000 + EXPIRY_MS - 1) is ErrorCode.out_of_order_sequence_number
    kept = ProducerState.decode(state.encode(now_ms=5000))
    assert state.duplicate_of(batch(17), now_ms=5000 + EXPIRY_MS) is None
    assert len(state) == 1
    for _ in range(2):  # what is expired is neither in the snapshot nor in the state any more
        assert len(ProducerState.decode(kept.encode(now_ms=5000 + EXPIRY_MS))) == len(kept) == 1


def test_the_producer_that_was_idle_longest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 3)
    state = state_of(*(batch(0, producer=each) for each in (1, 2, 3)))
    state.add(batch(1, producer=1, offset=3))
    state.add(batch(0, producer=4, offset=4))
    state.check_invariants()
    known = [
        each
        for each in (1, 2, 3, 4)
        if state.duplicate_of(batch(0, producer=each), now_ms=0) is not None
    ]
    assert known == [1, 3, 4]
    assert len(ProducerState.decode(state.encode(now_ms=0))) == 3


def test_an_empty_state_has_a_snapshot_too() -> None:
    snapshot = ProducerState().encode(now_ms=0)
    assert snapshot
    assert len(ProducerState.decode(snapshot)) == 0


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_snapshot_that_was_cut_off_or_goes_on_is_damage(cut: int) -> None:
    snapshot = state_of(batch(0), batch(1, offset=1)).encode(now_ms=0)
    for damaged in (snapshot[:-cut], snapshot + bytes(cut), b"\2" + snapshot[1:]):
        with pytest.raises(DamagedBatch):
            ProducerState.decode(damaged)


@pytest.mark.parametrize(
    "batches",
    [
        [batch(0, 0)],
        [batch(-1)],
        [batch(0, offset=-1)],
        [batch(0, epoch=-1)],
        [batch(0, 2, offset=5), batch(2, offset=6)],
    ],
)
def test_a_snapshot_that_contradicts_itself_is_damage(batches: list[ProducerBatch]) -> None:
    state = ProducerState()
    for each in batches:
        state.add(each)
    with pytest.raises(DamagedBatch):
        ProducerState.decode(state.encode(now_ms=0))


class ProducersAndLogs(RuleBasedStateMachine):
    """Producers that retry anything they sent, a log, and leaders that build their state again."""

    producers = Bundle("producers")
    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.state = ProducerState()
        self.log: list[tuple[ProducerBatch, bytes | None]] = []
        """Each batch, and the snapshot before it, if it has one."""
        self.offset = 0
        self.answers: dict[tuple[int, int, int], int] = {}
        self.next: dict[int, tuple[int, int]] = {}
        self.ids: Iterator[int] = count(1)

    @initialize(target=producers)
    def begin(self) -> object:
        return multiple(*(next(self.ids) for _ in range(2)))

    @rule(target=sent, producer=producers, records=st.integers(1, 3), snapshot=st.booleans())
    def send(self, producer: int, records: int, snapshot: bool) -> tuple[int, int, int, int]:
        epoch, sequence = self.next.get(producer, (0, 0))
        self.next[producer] = epoch, sequence + records
        self._produce((producer, epoch, sequence, records), snapshot=snapshot)
        return producer, epoch, sequence, records

    @rule(producer=producers)
    def begin_epoch(self, producer: int) -> None:
        epoch, _ = self.next.get(producer, (0, 0))
        self.next[producer] = epoch + 1, 0

    @rule(batch=sent)
    def send_again(self, batch: tuple[int, int, int, int]) -> None:
        self._produce(batch, snapshot=False)

    @rule()
    def take_over(self) -> None:
        since: list[ProducerBatch] = []
        snapshot = None
        for each, snapshot in reversed(self.log):
            since.append(each)
            if snapshot is not None:
                break
        self.state = ProducerState.rebuild(snapshot, reversed(since))

    def _produce(self, sent: tuple[int, int, int, int], *, snapshot: bool) -> None:
        producer, epoch, sequence, records = sent
        new = ProducerBatch(producer, epoch, sequence, records, self.offset, 0)
        mine = [b for b, _ in self.log if b.producer_id == producer]
        known = self.answers.get(sent[:3])
        found: int | ErrorCode | None
        try:
            found = self.state.duplicate_of(new, now_ms=0)
        except KafkaRefusal as refused:
            found = refused.code
        if mine and mine[-1].epoch > epoch:
            assert found is ErrorCode.invalid_producer_epoch
            return
        if known is not None and known not in [each.offset for each in mine[-BATCHES_MAX:]]:
            assert found is ErrorCode.out_of_order_sequence_number
            return
        assert found == known
        if found is None:
            encoded = self.state.encode(now_ms=0) if snapshot else None
            self.log.append((new, encoded))
            self.state.add(new)
            self.answers[sent[:3]] = self.offset
            self.offset += records

    @invariant()
    def holds(self) -> None:
        self.state.check_invariants()


TestProducersAndLogs = ProducersAndLogs.TestCase
