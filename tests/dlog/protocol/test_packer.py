from hypothesis import given
from hypothesis import strategies as st

from dlog.protocol.packer import SENT_BYTES_MAX, Group, Packer


def add(packer: Packer[int], ticket: int, value: bytes = b"v", **columns: object) -> None:
    packer.add(
        ticket,
        value,
        columns.get("key"),  # type: ignore[arg-type]
        columns.get("txid"),  # type: ignore[arg-type]
        columns.get("timestamp_ms"),  # type: ignore[arg-type]
        columns.get("now_ms", 100),  # type: ignore[arg-type]
    )
    packer.check()


def tickets(group: Group[int] | None) -> list[int] | None:
    return None if group is None else group.tickets


def test_with_nothing_in_flight_a_lone_record_leaves_at_once() -> None:
    packer: Packer[int] = Packer()
    add(packer, 1)
    assert tickets(packer.take()) == [1]
    assert packer.take() is None


def test_records_gather_while_the_window_has_no_free_slot() -> None:
    packer: Packer[int] = Packer(partial_max=1)
    add(packer, 1)
    packer.take()
    add(packer, 2)
    add(packer, 3)
    assert packer.take() is None
    packer.confirmed()
    assert tickets(packer.take()) == [2, 3]


def test_a_full_group_leaves_although_the_small_window_is_full() -> None:
    packer: Packer[int] = Packer(entry_bytes_full=10, partial_max=1)
    add(packer, 1)
    packer.take()
    add(packer, 2, b"x" * 10)
    assert tickets(packer.take()) == [2]


def test_a_record_that_does_not_fit_begins_a_group_of_its_own() -> None:
    packer: Packer[int] = Packer(entry_bytes_full=10)
    add(packer, 1, b"x" * 6)
    add(packer, 2, b"x" * 6)
    add(packer, 3, b"x" * 600)
    assert [tickets(packer.take()) for _ in range(3)] == [[1], [2], [3]]


def test_the_large_window_holds_full_groups_back_too() -> None:
    packer: Packer[int] = Packer(entry_bytes_full=1, partial_max=1, sent_max=2)
    for ticket in range(3):
        add(packer, ticket)
    assert tickets(packer.take()) == [0]
    assert tickets(packer.take()) == [1]
    assert packer.take() is None
    assert tickets(packer.confirmed()) == [0]
    assert tickets(packer.take()) == [2]


def test_bytes_in_flight_are_bounded() -> None:
    packer: Packer[int] = Packer()
    add(packer, 1, bytes(SENT_BYTES_MAX))
    add(packer, 2, b"x")
    assert tickets(packer.take()) == [1]
    assert packer.take() is None


def test_columns_appear_with_the_first_record_that_needs_them() -> None:
    packer: Packer[int] = Packer()
    add(packer, 1)
    add(packer, 2, key=b"k", txid=5, timestamp_ms=7)
    add(packer, 3, now_ms=150)
    group = packer.take()
    assert group is not None
    assert group.keys == [None, b"k", None]
    assert group.txids == [None, 5, None]
    assert group.timestamps_ms == [100, 7, 150]
    assert group.base_timestamp_ms == 100


def test_a_group_that_could_not_be_sent_is_the_next_to_be_taken() -> None:
    packer: Packer[int] = Packer(entry_bytes_full=1)
    add(packer, 1)
    add(packer, 2)
    group = packer.take()
    assert group is not None
    packer.put_back(group)
    packer.check()
    assert packer.take() is group


def test_failing_tells_what_was_sent_from_what_was_not() -> None:
    packer: Packer[int] = Packer(entry_bytes_full=2, partial_max=1)
    add(packer, 1)
    packer.take()
    add(packer, 2, b"xx")
    add(packer, 3)
    sent, unsent = packer.fail()
    assert [group.tickets for group in sent] == [[1]]
    assert [group.tickets for group in unsent] == [[2], [3]]
    assert packer.idle
    assert packer.pending_bytes == 0


@given(st.lists(st.one_of(st.integers(0, 12), st.just("take"), st.just("confirm")), max_size=60))
def test_every_record_leaves_once_and_in_order(steps: list[int | str]) -> None:
    packer: Packer[int] = Packer(entry_bytes_full=10, partial_max=2, sent_max=3)
    added, left = 0, []
    for step in steps:
        if isinstance(step, int):
            add(packer, added, bytes(step))
            added += 1
        elif step == "confirm" and packer.in_flight:
            packer.confirmed()
        elif (group := packer.take()) is not None:
            left += group.tickets
        packer.check()
    while not packer.idle:
        if (group := packer.take()) is not None:
            left += group.tickets
        else:
            packer.confirmed()
    assert left == list(range(added))
