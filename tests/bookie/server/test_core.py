"""Which answer a bookie gives, and what it must wait for, without threads and sockets."""

import pytest

from bookie.server.core import (
    HELD_WAIT_S,
    Ack,
    BookieCore,
    ListDisk,
    ReadDisk,
    UntilChanged,
    UntilDurable,
)
from bookie.server.limits import CoreLimits
from ledger.entry import encode_lac
from ledger.errors import BadMessage
from ledger.protocol.procedure import Steps
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of


def answer_of(
    steps: Steps[ReadAnswer] | Steps[LacAnswer] | Steps[HeldAnswer],
    resume: ReadAnswer | HeldAnswer | bool | None,
) -> object:
    with pytest.raises(StopIteration) as stopped:
        steps.send(resume)
    return stopped.value.value


def read_answer_of(steps: Steps[ReadAnswer], resume: ReadAnswer | bool | None = None) -> ReadAnswer:
    answer = answer_of(steps, resume)
    assert isinstance(answer, ReadAnswer)
    return answer


def explicit_lac(lac: int) -> AddRun:
    lac_frame = encode_lac(ledger_id=7, last_add_confirmed=lac, length=1)
    return AddRun(7, KEY, [-1], [len(lac_frame)], lac_frame, explicit_lac=True)


def test_an_add_is_acknowledged_after_its_commit_only() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    session = core.session()

    session.offer(1, [run_of(0, 1)])

    assert session.acks() == []
    core.committed(storage.commit())
    assert session.acks() == [Ack(1, 1)]
    assert session.acks() == []


def test_good_batches_are_acknowledged_as_one_range() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    session = core.session()
    for batch in range(1, 6):
        session.offer(batch, [run_of(batch)])
    core.committed(storage.commit())
    assert session.acks() == [Ack(1, 5)]


def test_a_refused_run_is_answered_in_its_place() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    session = core.session()

    session.offer(1, [run_of(0)])
    session.offer(2, [run_of(1), run_of(2, key=b"wrong")])
    session.offer(3, [run_of(3)])

    assert session.acks() == []
    core.committed(storage.commit())
    assert session.acks() == [Ack(1, 1), Ack(2, 2, (Status.OK, Status.WRONG_KEY)), Ack(3, 3)]


def test_a_batch_out_of_order_is_refused() -> None:
    session = BookieCore(MemoryStorage()).session()
    session.offer(1, [])
    with pytest.raises(BadMessage):
        session.offer(3, [])


def test_too_many_queued_bytes_are_refused_before_the_journal() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage, CoreLimits(adds_bytes_max=1500))
    session = core.session()
    payload = b"x" * 1000

    session.offer(1, [run_of(0, payload=payload)])
    session.offer(2, [run_of(1, payload=payload)])

    assert 1 not in storage.ledgers[7]
    core.committed(storage.commit())
    assert session.acks() == [Ack(1, 1), Ack(2, 2, (Status.TOO_MANY_REQUESTS,))]
    session.offer(3, [run_of(1, payload=payload)])
    core.committed(storage.commit())
    assert session.acks() == [Ack(3, 3)]


def test_recovery_adds_have_a_share_of_their_own() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage, CoreLimits(adds_bytes_max=10, recovery_adds_bytes_max=10))
    session = core.session()
    session.offer(1, [run_of(0), run_of(1), run_of(0, recovery=True), run_of(1, recovery=True)])
    core.committed(storage.commit())
    ok, refused = Status.OK, Status.TOO_MANY_REQUESTS
    assert session.acks() == [Ack(1, 1, (ok, refused, ok, refused))]


@pytest.mark.parametrize("ledger_id", [7, 8])
def test_a_fencing_read_is_not_answered_before_the_fence_is_durable(ledger_id: int) -> None:
    """Rule 33: for the negative answer (ledger 8 was never heard of here) as well."""
    storage = MemoryStorage()
    core = BookieCore(storage)
    storage.add(run_of(0))
    core.committed(storage.commit())

    steps = core.read(ReadQuery(ledger_id, KEY, 0, 0, fence=True))
    need = steps.send(None)

    assert isinstance(need, UntilDurable)
    assert ledger_id in storage.fenced
    core.committed(storage.commit())
    assert core.durable >= need.ticket
    answer = read_answer_of(steps)
    assert answer.fenced
    assert list(answer.entries) == ([0] if ledger_id == 7 else [])


def test_a_fencing_lac_read_is_not_answered_before_the_fence_is_durable() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    steps = core.read_lac(LacQuery(7, KEY, fence=True))
    assert isinstance(steps.send(None), UntilDurable)
    core.committed(storage.commit())
    answer = answer_of(steps, None)
    assert answer == LacAnswer(Status.OK, fenced=True)


def test_answering_a_fence_early_is_caught() -> None:
    core = BookieCore(MemoryStorage())
    steps = core.read_lac(LacQuery(7, KEY, fence=True))
    steps.send(None)
    with pytest.raises(AssertionError, match="before it was durable"):
        steps.send(None)


def test_a_second_fence_waits_for_its_own_durability() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    first = core.read_lac(LacQuery(7, KEY, fence=True))
    second = core.read_lac(LacQuery(7, KEY, fence=True))
    assert isinstance(first.send(None), UntilDurable)
    assert isinstance(second.send(None), UntilDurable)


def test_a_fence_with_the_wrong_key_fences_nothing() -> None:
    storage = MemoryStorage()
    steps = BookieCore(storage).read(ReadQuery(7, b"wrong", 0, 0, fence=True))
    assert read_answer_of(steps).status is Status.WRONG_KEY
    assert not storage.fenced


def test_a_fenced_ledger_takes_recovery_adds_only() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    storage.fence(7, KEY)
    session = core.session()
    session.offer(1, [run_of(0), run_of(0, recovery=True)])
    core.committed(storage.commit())
    assert session.acks() == [Ack(1, 1, (Status.FENCED, Status.OK))]


def test_a_waiting_read_wakes_when_a_later_entry_confirms() -> None:
    core = BookieCore(MemoryStorage())
    session = core.session()
    session.offer(1, [run_of(0)])
    steps = core.read(ReadQuery(7, KEY, 0, 100, wait_ms=1000))
    assert steps.send(None) == UntilChanged(7)

    session.offer(2, [run_of(1, lac=0)])

    assert core.take_changed() == (7,)
    answer = read_answer_of(steps, resume=True)
    assert list(answer.entries) == [0], "entry 1 is not confirmed"
    assert core.take_changed() == ()


def test_a_waiting_read_wakes_on_an_explicit_lac() -> None:
    core = BookieCore(MemoryStorage())
    session = core.session()
    session.offer(1, [run_of(0)])
    steps = core.read(ReadQuery(7, KEY, 0, 100, wait_ms=1000))
    steps.send(None)
    session.offer(2, [explicit_lac(0)])
    assert core.take_changed() == (7,)
    assert list(read_answer_of(steps, resume=True).entries) == [0]


def test_a_waiting_read_waits_on_if_what_changed_is_not_enough() -> None:
    core = BookieCore(MemoryStorage())
    session = core.session()
    steps = core.read(ReadQuery(7, KEY, 1, 100, wait_ms=1000))
    assert steps.send(None) == UntilChanged(7), "never heard of: it may still come"
    session.offer(1, [run_of(0, 1, lac=0)])
    assert steps.send(True) == UntilChanged(7)
    session.offer(2, [run_of(2, lac=1)])
    assert list(read_answer_of(steps, resume=True).entries) == [1]


def test_a_waiting_read_wakes_on_a_fence() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    core.session().offer(1, [run_of(0)])
    steps = core.read(ReadQuery(7, KEY, 0, 100, wait_ms=1000))
    steps.send(None)
    core.read_lac(LacQuery(7, KEY, fence=True)).send(None)
    assert core.take_changed() == (7,)
    answer = read_answer_of(steps, resume=True)
    assert answer.fenced
    assert answer.status is Status.OK
    assert (list(answer.entries), answer.considered) == ([], -1)


def test_a_waiting_read_ends_when_the_ledger_is_deleted() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    core.session().offer(1, [run_of(0)])
    steps = core.read(ReadQuery(7, KEY, 0, 100, wait_ms=1000))
    steps.send(None)
    storage.delete([7])
    core.deleted([7, 8])
    assert core.take_changed() == (7,)
    assert read_answer_of(steps, resume=True).status is Status.NO_SUCH_LEDGER


def test_a_waiting_read_ends_without_entries_when_its_time_is_over() -> None:
    core = BookieCore(MemoryStorage())
    core.session().offer(1, [run_of(0, 1, 2, lac=1)])
    steps = core.read(ReadQuery(7, KEY, 2, 100, wait_ms=1000))
    steps.send(None)
    answer = read_answer_of(steps, resume=False)
    assert (list(answer.entries), answer.considered) == ([], 1)
    assert answer.lac_proof


def test_waiting_reads_are_bounded() -> None:
    core = BookieCore(MemoryStorage(), CoreLimits(waiting_reads_max=1))
    query = ReadQuery(7, KEY, 0, 0, wait_ms=1000)
    waiting = core.read(query)
    waiting.send(None)
    assert read_answer_of(core.read(query)).status is Status.TOO_MANY_REQUESTS
    waiting.close()
    assert core.read(query).send(None) == UntilChanged(7)


def test_disk_reads_are_bounded_but_not_those_of_recovery() -> None:
    storage = MemoryStorage()
    storage.from_disk = True
    core = BookieCore(storage, CoreLimits(disk_reads_max=1))
    query = ReadQuery(7, KEY, 0, 0)
    reading = core.read(query)
    assert isinstance(reading.send(None), ReadDisk)
    assert read_answer_of(core.read(query)).status is Status.TOO_MANY_REQUESTS

    recovering = core.read(ReadQuery(7, KEY, 0, 0, fence=True))
    recovering.send(None)
    core.committed(storage.commit())
    need = recovering.send(None)

    assert isinstance(need, ReadDisk)
    assert read_answer_of(reading, ReadAnswer(Status.OK)).status is Status.OK
    assert isinstance(core.read(query).send(None), ReadDisk)


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2)])
def test_a_read_of_nonsense_is_refused(first: int, last: int) -> None:
    steps = BookieCore(MemoryStorage()).read(ReadQuery(7, KEY, first, last))
    assert read_answer_of(steps).status is Status.BAD_REQUEST


def test_a_list_of_what_is_held_is_a_read_from_disk_and_has_a_bound() -> None:
    core = BookieCore(MemoryStorage(), CoreLimits(held_ranges_max=100))
    for asked, given in ((7, 7), (0, 1), (1 << 30, 100)):
        need = core.read_held(HeldQuery(7, KEY, 0, 9, ranges_max=asked)).send(None)
        assert need == ListDisk(HeldQuery(7, KEY, 0, 9, ranges_max=given))
    assert answer_of(core.read_held(HeldQuery(7, KEY, 9, 0)), None) == HeldAnswer(
        Status.BAD_REQUEST
    )


@pytest.mark.parametrize(
    "limits", [CoreLimits(held_reads_max=2), CoreLimits(disk_reads_max=2, held_reads_max=9)]
)
def test_so_many_lists_are_made_at_once_only(limits: CoreLimits) -> None:
    core = BookieCore(MemoryStorage(), limits)
    under_way = [core.read_held(HeldQuery(7, KEY, 0, 9)) for _ in range(2)]
    for steps in under_way:
        steps.send(None)
    refused = answer_of(core.read_held(HeldQuery(7, KEY, 0, 9)), None)
    assert refused == HeldAnswer(Status.TOO_MANY_REQUESTS)
    listed = HeldAnswer(Status.OK, [0], [3], considered=9, listed=9)
    assert answer_of(under_way[0], listed) == listed
    under_way[1].close()
    for steps in [core.read_held(HeldQuery(7, KEY, 0, 9)) for _ in range(2)]:
        assert isinstance(steps.send(None), ListDisk)


def test_a_list_is_given_once_all_that_was_taken_before_it_was_made_is_durable() -> None:
    """Repair takes what is listed for there, and unmarks the ledger."""
    storage = MemoryStorage()
    core = BookieCore(storage)
    core.add(run_of(0, 7))
    steps = core.read_held(HeldQuery(7, KEY, 0, 9))
    steps.send(None)
    listed = HeldAnswer(Status.OK, [0], [0], considered=9, listed=9)
    assert steps.send(listed) == UntilDurable(storage.last_ticket, HELD_WAIT_S)
    core.committed(storage.commit())
    assert answer_of(steps, True) == listed


def test_what_is_taken_while_a_list_is_made_has_to_be_durable_too() -> None:
    storage = MemoryStorage()
    core = BookieCore(storage)
    steps = core.read_held(HeldQuery(7, KEY, 0, 9))
    steps.send(None)
    core.add(run_of(0))
    listed = HeldAnswer(Status.OK, [0], [0], considered=9, listed=9)
    assert isinstance(steps.send(listed), UntilDurable)


def test_a_list_that_does_not_become_durable_in_time_is_none_and_leaves_its_place() -> None:
    core = BookieCore(MemoryStorage(), CoreLimits(held_reads_max=1))
    core.add(run_of(0, 7))
    for _ in range(2):
        steps = core.read_held(HeldQuery(7, KEY, 0, 9))
        steps.send(None)
        steps.send(HeldAnswer(Status.OK, [0], [0], considered=9, listed=9))
        assert answer_of(steps, False) == HeldAnswer(Status.TOO_MANY_REQUESTS)


def test_lists_leave_readers_their_share_of_the_disk() -> None:
    storage = MemoryStorage()
    storage.from_disk = True
    core = BookieCore(storage, CoreLimits(disk_reads_max=2, held_reads_max=1))
    under_way = core.read_held(HeldQuery(7, KEY, 0, 9))
    under_way.send(None)
    assert answer_of(core.read_held(HeldQuery(7, KEY, 0, 9)), None) == HeldAnswer(
        Status.TOO_MANY_REQUESTS
    )
    assert isinstance(core.read(ReadQuery(7, KEY, 0, 9)).send(None), ReadDisk)
