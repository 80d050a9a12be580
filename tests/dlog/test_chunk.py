"""A chunk is a sequence of records that are made when they are asked for."""

import pytest

from dlog.chunk import Chunk
from dlog.columns import Columns
from dlog.position import DLSN, Place
from dlog.recordbatch import decode_batch, encode_batch


def chunk(*, skip: int, take: int) -> Chunk:
    values = [bytes([n]) for n in range(9)]
    payload = encode_batch(Columns(values), base_index=40, base_timestamp_ms=7)
    return Chunk(decode_batch(payload), Place(3, 5, 100), skip, take)


def test_its_records_are_those_of_its_slots() -> None:
    records = chunk(skip=2, take=4)
    assert (records.begin, records.end, len(records)) == (102, 106, 4)
    assert [record.value for record in records] == [b"\2", b"\3", b"\4", b"\5"]
    assert [record.offset for record in records] == [102, 103, 104, 105]
    assert [record.dlsn for record in records] == [DLSN(3, 5, slot) for slot in (2, 3, 4, 5)]


def test_it_is_indexed_and_sliced_as_a_list_is() -> None:
    records = chunk(skip=2, take=4)
    kept = list(records)
    assert [records[index] for index in range(-4, 4)] == [*kept, *kept]
    assert records[1:3] == kept[1:3]
    assert records[-2:] == kept[-2:]
    assert kept[2] in records
    for index in (4, -5):
        with pytest.raises(IndexError):
            records[index]


def test_what_was_read_of_it_is_left_out() -> None:
    records = chunk(skip=2, take=4)
    assert records.since(102) is records
    assert list(records.since(104)) == list(records)[2:]
