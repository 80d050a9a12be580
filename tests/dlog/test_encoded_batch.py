from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.columns import Columns, Row
from dlog.encoded_batch import joined, largest_record_bytes, parse_encoded, placed
from dlog.errors import DamagedBatch
from dlog.headers import HeadersGiven, encode_headers
from dlog.position import NO_TXID, TXID_MAX, Place
from dlog.receipts import Receipt
from dlog.recordbatch import Codec, decode_batch, encode_batch

NAMES = st.sampled_from(["a", "b", "ä"])
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=3)
OPTIONAL = st.sets(st.sampled_from(["key", "txid", "time", "headers"]))
RECEIPT = Receipt(bytes(range(16)), 7)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Row], list[bytes]]:
    """Return records, and the batches in which they are encoded: each with columns of its own."""
    rows: list[Row] = []
    payloads: list[bytes] = []
    txid = NO_TXID + 1
    for _ in range(draw(st.integers(1, 4))):
        columns = draw(OPTIONAL)
        own: list[Row] = []
        for _ in range(draw(st.integers(1, 12))):
            key = draw(st.none() | st.binary(max_size=3)) if "key" in columns else None
            time_ms = draw(st.integers(-(2**40), 2**40)) if "time" in columns else None
            if with_txid := "txid" in columns and draw(st.booleans()):
                txid = min(TXID_MAX, txid + draw(st.integers(0, 5)))
            headers: HeadersGiven = draw(HEADERS) if "headers" in columns else ()
            value = draw(st.binary(max_size=5))
            own.append((value, key, txid if with_txid else None, time_ms, encode_headers(headers)))
        base_ms = draw(st.integers(0, 2**33))
        encoded = Columns.of([*own])
        payloads.append(encode_batch(encoded, base_index=0, base_timestamp_ms=base_ms))
        rows += [(*row[:3], base_ms if row[3] is None else row[3], row[4]) for row in own]
    return rows, payloads


@given(drawn=batches())
def test_batches_that_are_joined_have_the_records_of_all_in_order(
    drawn: tuple[list[Row], list[bytes]],
) -> None:
    rows, payloads = drawn
    batch = decode_batch(joined(payloads))
    batch.check_headers()
    found = [
        (record.value, record.key, record.txid, record.timestamp_ms, record.headers.encoded)
        for record in batch.records(Place(0, 0, 0))
    ]
    assert found == [(*row[:4], row[4] or b"") for row in rows]
    txids = [row[2] for row in rows if row[2] is not None]
    assert batch.header.first_txid == (txids[0] if txids else NO_TXID)
    assert batch.header.last_txid == (txids[-1] if txids else NO_TXID)
    assert batch.header.base_index == 0
    assert batch.receipt is None
    sizes = Columns.of([*rows]).sizes()
    assert largest_record_bytes(joined(payloads)) == max(sizes)
    assert batch.header.records_bytes == sum(sizes)


@given(drawn=batches(), codec=st.sampled_from(Codec), receipt=st.sampled_from([None, RECEIPT]))
def test_a_batch_that_is_placed_is_as_one_that_was_encoded_there(
    drawn: tuple[list[Row], list[bytes]], codec: Codec, receipt: Receipt | None
) -> None:
    rows, payloads = drawn
    base_ms = rows[0][3] or 0
    whole = Columns.of([*rows])
    encoded = encode_batch(whole, base_index=0, base_timestamp_ms=base_ms)
    there = encode_batch(
        whole,
        base_index=9,
        base_timestamp_ms=base_ms,
        previous_txid=NO_TXID,
        codec=codec,
        receipt=receipt,
    )
    at = placed(encoded, base_index=9, previous_txid=NO_TXID, codec=codec, receipt=receipt)
    assert at == there
    header = decode_batch(at).header
    assert header.count == len(rows)
    after = placed(encoded, base_index=0, previous_txid=TXID_MAX)
    last = decode_batch(after).header.last_txid
    assert last == (TXID_MAX if header.first_txid == NO_TXID else header.last_txid)
    assert payloads


def placed_batches() -> Sequence[bytes]:
    records = Columns([b"x" * 100])
    plain = encode_batch(records, base_index=0, base_timestamp_ms=0)
    return (
        encode_batch(records, base_index=0, base_timestamp_ms=0, codec=Codec.LZ4),
        placed(plain, base_index=3, previous_txid=NO_TXID, receipt=RECEIPT),
    )


@pytest.mark.parametrize("payload", placed_batches(), ids=["compressed", "receipt"])
def test_a_batch_that_has_its_place_is_not_placed_again(payload: bytes) -> None:
    plain = encode_batch(Columns([b"x"]), base_index=0, base_timestamp_ms=0)
    with pytest.raises(DamagedBatch, match="has its place"):
        parse_encoded(payload)
    with pytest.raises(DamagedBatch, match="has its place"):
        joined([plain, payload])
    with pytest.raises(DamagedBatch, match="has its place"):
        placed(payload, base_index=0, previous_txid=NO_TXID)
