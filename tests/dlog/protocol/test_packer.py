from hypothesis import given
from hypothesis import strategies as st

from dlog.columns import Columns
from dlog.protocol.packer import ENTRY_RECORDS_MAX, RECORD_CHARGE, SENT_BYTES_MAX, Group, Packer


def add(
    packer: Packer,
    number: int,
    size: int = 1,
    *,
    key: bytes | None = None,
    txid: int | None = None,
    timestamp_ms: int | None = None,
    headers: bytes | None = None,
    now_ms: int = 100,
) -> None:
    """Add a record of *size* bytes that says *number*."""
    value = Numbered(bytes(size))
    value.number = number
    group = packer.add(value, key, txid, timestamp_ms, headers, lambda: now_ms)
    assert group.values[-1] is value
    packer.check()


class Numbered(bytes):
    number: int


def numbers(group: Group | None) -> list[int] | None:
    return None if group is None else [v.number for v in group.values if isinstance(v, Numbered)]


def test_with_nothing_in_flight_a_lone_record_leaves_at_once() -> None:
    packer: Packer = Packer()
    add(packer, 1)
    assert numbers(packer.take()) == [1]
    assert packer.take() is None


def test_records_gather_while_the_window_has_no_free_slot() -> None:
    packer: Packer = Packer(partial_max=1)
    add(packer, 1)
    packer.take()
    add(packer, 2)
    add(packer, 3)
    assert packer.take() is None
    packer.confirmed()
    assert numbers(packer.take()) == [2, 3]


def test_a_full_group_leaves_although_the_small_window_is_full() -> None:
    packer: Packer = Packer(entry_bytes_full=10, partial_max=1)
    add(packer, 1)
    packer.take()
    add(packer, 2, 10)
    assert numbers(packer.take()) == [2]


def test_a_record_that_does_not_fit_begins_a_group_of_its_own() -> None:
    packer: Packer = Packer(entry_bytes_full=10)
    add(packer, 1, 6)
    add(packer, 2, 6)
    add(packer, 3, 600)
    assert [numbers(packer.take()) for _ in range(3)] == [[1], [2], [3]]


def test_the_large_window_holds_full_groups_back_too() -> None:
    packer: Packer = Packer(entry_bytes_full=1, partial_max=1, sent_max=2)
    for number in range(3):
        add(packer, number)
    assert numbers(packer.take()) == [0]
    assert numbers(packer.take()) == [1]
    assert packer.take() is None
    assert numbers(packer.confirmed()) == [0]
    assert numbers(packer.take()) == [2]


def test_bytes_in_flight_are_bounded() -> None:
    packer: Packer = Packer()
    add(packer, 1, SENT_BYTES_MAX)
    add(packer, 2, 1)
    assert numbers(packer.take()) == [1]
    assert packer.take() is None


def test_columns_appear_with_the_first_record_that_needs_them() -> None:
    packer: Packer = Packer()
    add(packer, 1)
    add(packer, 2, key=b"k", txid=5, timestamp_ms=7, headers=b"encoded")
    add(packer, 3, now_ms=150)
    group = packer.take()
    assert group is not None
    assert group.keys == [None, b"k", None]
    assert group.txids == [None, 5, None]
    assert group.timestamps_ms == [100, 7, 150]
    assert group.headers == [None, b"encoded", None]
    assert group.base_timestamp_ms == 100


def test_a_group_that_could_not_be_sent_is_the_next_to_be_taken() -> None:
    packer: Packer = Packer(entry_bytes_full=1)
    add(packer, 1)
    add(packer, 2)
    group = packer.take()
    assert group is not None
    assert packer.put_back() is group
    packer.check()
    assert packer.take() is group


def test_failing_tells_what_was_sent_from_what_was_not() -> None:
    packer: Packer = Packer(entry_bytes_full=2, partial_max=1)
    add(packer, 1)
    packer.take()
    add(packer, 2, 2)
    add(packer, 3)
    sent, unsent = packer.fail()
    assert [numbers(group) for group in sent] == [[1]]
    assert [numbers(group) for group in unsent] == [[2], [3]]
    assert packer.take() is None
    assert packer.pending_bytes == 0


@given(st.lists(st.one_of(st.integers(0, 12), st.just("take"), st.just("confirm")), max_size=60))
def test_every_record_leaves_once_and_in_order(steps: list[int | str]) -> None:
    packer: Packer = Packer(entry_bytes_full=10, partial_max=2, sent_max=3)
    added, left = 0, []
    for step in steps:
        if isinstance(step, int):
            add(packer, added, step)
            added += 1
        elif step == "confirm" and packer.in_flight:
            packer.confirmed()
        elif (group := packer.take()) is not None:
            left += numbers(group) or []
        packer.check()
    while packer.pending_bytes:
        if (group := packer.take()) is not None:
            left += numbers(group) or []
        else:
            packer.confirmed()
    assert left == list(range(added))


def now_ms() -> int:
    return 100


def test_many_plain_records_join_the_open_group_if_they_fit() -> None:
    packer = Packer(entry_bytes_full=10, partial_max=1)
    add(packer, 1, 4, txid=7)
    (part,) = packer.add_many(Columns([b"aa", b"bb"]), now_ms)
    packer.check()
    assert (part.slot, part.count) == (1, 2)
    assert part.group.values[1:] == [b"aa", b"bb"]
    assert part.group.txids == [7, None, None]


def test_many_records_that_fit_one_entry_are_not_torn_apart() -> None:
    packer = Packer(entry_bytes_full=10)
    add(packer, 1, 4)
    for parts in (
        packer.add_many(Columns([b"aaa", b"bbbb"]), now_ms),
        packer.add_many(Columns([b"aaa", b"bbbb"], keys=[b"k", None]), now_ms),
    ):
        packer.check()
        assert [(part.slot, part.count) for part in parts] == [(0, 2)]


def test_more_than_an_entry_holds_is_cut() -> None:
    packer = Packer(entry_bytes_full=10)
    parts = packer.add_many(Columns([b"x" * 4] * 5, txids=[1, 2, None, 4, 5]), now_ms)
    packer.check()
    assert [(part.slot, part.count) for part in parts] == [(0, 2), (0, 2), (0, 1)]
    assert [part.group.txids for part in parts] == [[1, 2], [None, 4], [5]]
    parts = packer.add_many(Columns([b""] * (ENTRY_RECORDS_MAX + 1)), now_ms)
    packer.check()
    assert sum(part.count for part in parts) == ENTRY_RECORDS_MAX + 1


def test_empty_records_count_too() -> None:
    packer = Packer()
    add(packer, 1, 0)
    packer.add_many(Columns([b""] * 9), now_ms)
    assert packer.pending_bytes == 10 * RECORD_CHARGE


def test_what_was_not_kept_is_sent_again_in_order() -> None:
    packer = Packer(entry_bytes_full=2, partial_max=1)
    for number in range(5):
        add(packer, number, 2)
    assert [numbers(packer.take()) for _ in range(3)] == [[0], [1], [2]]
    assert numbers(packer.confirmed()) == [0]
    packer.put_all_back()
    packer.check()
    assert [numbers(packer.take()) for _ in range(4)] == [[1], [2], [3], [4]]
