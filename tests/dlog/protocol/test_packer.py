from hypothesis import given
from hypothesis import strategies as st

from dlog.columns import Columns, Row, size_of, total_bytes
from dlog.protocol.packer import ENTRY_RECORDS_MAX, SENT_BYTES_MAX, Packer, Part
from dlog.protocol.pending_batch import RECORD_CHARGE, PendingBatch


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
    record: bytes | Row = value
    if any(column is not None for column in (key, txid, timestamp_ms, headers)):
        record = (value, key, txid, timestamp_ms, headers)
    batch = packer.add(record, size_of(record), lambda: now_ms)
    assert batch.records[-1] is record
    packer.check()


def add_many(packer: Packer, *records: bytes | Row) -> list[Part]:
    batch = PendingBatch(list(records))
    batch.has_rows = True
    batch.size_bytes = total_bytes(batch.records)
    parts = packer.add_many(batch, lambda: 100)
    packer.check()
    return parts


def columns_of(batch: PendingBatch | None) -> Columns:
    assert batch is not None
    return Columns.of(batch.records)


def with_txid(value: bytes, txid: int | None) -> Row:
    return value, None, txid, None, None


class Numbered(bytes):
    number: int


def numbers(batch: PendingBatch | None) -> list[int] | None:
    return None if batch is None else [v.number for v in columns_of(batch).values]  # type: ignore[attr-defined]


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
    batch = packer.take()
    assert batch is not None
    columns = columns_of(batch)
    assert columns.keys == [None, b"k", None]
    assert columns.txids == [None, 5, None]
    assert columns.timestamps_ms == [None, 7, None]
    assert columns.headers == [None, b"encoded", None]
    assert batch.base_timestamp_ms == 100


def test_a_group_that_could_not_be_sent_is_the_next_to_be_taken() -> None:
    packer: Packer = Packer(entry_bytes_full=1)
    add(packer, 1)
    add(packer, 2)
    batch = packer.take()
    assert batch is not None
    assert packer.put_back() is batch
    packer.check()
    assert packer.take() is batch


def test_failing_tells_what_was_sent_from_what_was_not() -> None:
    packer: Packer = Packer(entry_bytes_full=2, partial_max=1)
    add(packer, 1)
    packer.take()
    add(packer, 2, 2)
    add(packer, 3)
    sent, unsent = packer.fail()
    assert [numbers(batch) for batch in sent] == [[1]]
    assert [numbers(batch) for batch in unsent] == [[2], [3]]
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
        elif (batch := packer.take()) is not None:
            left += numbers(batch) or []
        packer.check()
    while packer.pending_bytes:
        if (batch := packer.take()) is not None:
            left += numbers(batch) or []
        else:
            packer.confirmed()
    assert left == list(range(added))


def test_many_plain_records_join_the_open_group_if_they_fit() -> None:
    packer = Packer(entry_bytes_full=10, partial_max=1)
    add(packer, 1, 4, txid=7)
    (part,) = add_many(packer, b"aa", b"bb")
    assert (part.slot, part.count) == (1, 2)
    columns = columns_of(part.batch)
    assert columns.values[1:] == [b"aa", b"bb"]
    assert columns.txids == [7, None, None]


def test_many_records_that_fit_one_entry_are_not_torn_apart() -> None:
    packer = Packer(entry_bytes_full=10)
    add(packer, 1, 4)
    for parts in (
        add_many(packer, b"aaa", b"bbbb"),
        add_many(packer, (b"aaa", b"k", None, None, None), b"bbbb"),
    ):
        assert [(part.slot, part.count) for part in parts] == [(0, 2)]


def test_more_than_an_entry_holds_is_cut() -> None:
    packer = Packer(entry_bytes_full=10)
    parts = add_many(packer, *(with_txid(b"x" * 4, txid) for txid in (1, 2, None, 4, 5)))
    assert [(part.slot, part.count) for part in parts] == [(0, 2), (0, 2), (0, 1)]
    assert [columns_of(part.batch).txids for part in parts] == [[1, 2], [None, 4], [5]]
    assert [part.batch.newest_txid for part in parts] == [2, 4, 5]
    parts = add_many(packer, *([b""] * (ENTRY_RECORDS_MAX + 1)))
    assert sum(part.count for part in parts) == ENTRY_RECORDS_MAX + 1


def test_empty_records_count_too() -> None:
    packer = Packer()
    add(packer, 1, 0)
    add_many(packer, *([b""] * 9))
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
