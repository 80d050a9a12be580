"""The add window alone: order, packing, bounds."""

import pytest

from ledger.errors import BadMessage
from ledger.requests import AddRun, Status
from ledger.transport.messages import ENTRY_BYTES
from ledger.transport.messages import RUN_BYTES as BESIDE_BYTES
from ledger.transport.window import AddWindow, OnDone, WindowLimits
from tests.bookie.runs import run_of


def run_bytes(run: AddRun) -> int:
    return len(run.frames) + len(run.key) + BESIDE_BYTES + ENTRY_BYTES * len(run.entries)


RUN_BYTES = run_bytes(run_of(0))


def nobody(_: Status) -> None:
    raise AssertionError("the window does not call")


def offered(made: AddWindow, run: AddRun, on_done: OnDone, now: float) -> bool:
    return made.offer(run, on_done, run_bytes(run), now=now)


def window(runs: int = 0, **limits: int) -> AddWindow:
    made = AddWindow(WindowLimits(**limits))
    for number in range(runs):
        assert offered(made, run_of(number), nobody, now=float(number))
    return made


def taken(made: AddWindow) -> tuple[int, list[int]]:
    batch = made.take()
    assert batch is not None
    number, runs = batch
    return number, [entry_id for run in runs for entry_id in run.entries]


def test_all_that_queued_leaves_as_one_batch() -> None:
    made = window(5)
    assert taken(made) == (1, [0, 1, 2, 3, 4])
    assert made.take() is None


def test_a_batch_is_cut_at_its_limit_between_runs() -> None:
    made = window(5, batch_bytes_max=2 * RUN_BYTES)
    assert [taken(made)[1] for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_a_run_larger_than_a_batch_travels_alone() -> None:
    made = window(3, batch_bytes_max=1)
    assert [taken(made)[1] for _ in range(3)] == [[0], [1], [2]]


def test_batches_in_flight_are_bounded() -> None:
    made = window(3, batch_bytes_max=1, flight_batches_max=2)
    taken(made)
    taken(made)
    assert made.take() is None
    made.acked(1, 1, [])
    assert taken(made) == (3, [2])


def test_bytes_in_flight_are_bounded() -> None:
    made = window(3, batch_bytes_max=1, flight_bytes_max=RUN_BYTES + 1)
    taken(made)
    taken(made)
    assert made.take() is None


def test_pending_bytes_are_bounded_but_one_run_always_fits() -> None:
    made = AddWindow(WindowLimits(pending_bytes_max=1))
    assert offered(made, run_of(0), nobody, now=0)
    assert not offered(made, run_of(1), nobody, now=0)
    taken(made)
    assert not offered(made, run_of(1), nobody, now=0), "what is in flight counts"
    made.acked(1, 1, [])
    assert offered(made, run_of(1), nobody, now=0)


def test_an_ack_of_several_batches_answers_their_runs_in_order() -> None:
    made = AddWindow(WindowLimits(batch_bytes_max=1))
    called: list[int] = []
    callbacks: list[OnDone] = [lambda _, n=n: called.append(n) for n in range(4)]  # type: ignore[misc]
    for number in range(4):
        offered(made, run_of(number), callbacks[number], now=0)
        taken(made)
    assert made.acked(1, 3, []) == [(callbacks[n], Status.OK) for n in range(3)]
    assert made.drain() == [callbacks[3]]
    assert made.drain() == []


def test_statuses_of_a_batch_are_told_run_by_run() -> None:
    made = window(2)
    taken(made)
    statuses = [Status.OK, Status.FENCED]
    assert [status for _, status in made.acked(1, 1, statuses)] == statuses


@pytest.mark.parametrize(
    ("first", "last", "statuses"),
    [
        (2, 2, []),
        (1, 3, []),
        (0, 1, []),
        (1, 0, []),
        (1, 2, [Status.OK, Status.OK]),
        (1, 1, [Status.OK, Status.OK]),
    ],
)
def test_an_ack_that_does_not_fit_is_refused(first: int, last: int, statuses: list[Status]) -> None:
    made = window(2, batch_bytes_max=1)
    taken(made)
    taken(made)
    with pytest.raises(BadMessage):
        made.acked(first, last, statuses)


def test_the_oldest_open_run_is_known() -> None:
    made = window(2, batch_bytes_max=1)
    assert made.oldest_at() == 0
    taken(made)
    assert made.oldest_at() == 0
    made.acked(1, 1, [])
    assert made.oldest_at() == 1
    taken(made)
    made.acked(2, 2, [])
    assert made.oldest_at() is None


def test_an_explicit_lac_travels_like_any_run() -> None:
    made = AddWindow(WindowLimits())
    run = AddRun(7, b"", [-1], [3], b"lac", explicit_lac=True)
    offered(made, run, nobody, now=0)
    assert made.take() == (1, [run])
