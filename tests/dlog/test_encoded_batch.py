from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.columns import Columns, Row, size_of
from dlog.encoded_batch import decode_encoded, joined, largest_record_bytes, placed
from dlog.errors import DamagedBatch
from dlog.headers import HeadersGiven, encode_headers
from dlog.position import NO_TXID, TXID_MAX, Place
from dlog.receipts import Receipt
from dlog.recordbatch import (
    HEADER_BYTES,
    Codec,
    Flag,
    decode_batch,
    encode_batch,
    version_of,
)

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
    whole = joined([decode_encoded(payload) for payload in payloads])
    batch = decode_batch(whole)
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
    sizes = [*map(size_of, rows)]
    assert largest_record_bytes(decode_encoded(whole)) == max(sizes)
    assert batch.header.records_bytes == sum(sizes)


@given(drawn=batches(), codec=st.sampled_from(Codec), receipt=st.sampled_from([None, RECEIPT]))
def test_a_batch_that_is_placed_is_as_one_that_was_encoded_there(
    drawn: tuple[list[Row], list[bytes]], codec: Codec, receipt: Receipt | None
) -> None:
    rows, _ = drawn
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


def placed_batches() -> Sequence[bytes]:
    records = Columns([b"x" * 100])
    plain = encode_batch(records, base_index=0, base_timestamp_ms=0)
    return (
        encode_batch(records, base_index=0, base_timestamp_ms=0, codec=Codec.LZ4),
        placed(plain, base_index=3, previous_txid=NO_TXID, receipt=RECEIPT),
    )


@pytest.mark.parametrize("payload", placed_batches(), ids=["compressed", "receipt"])
def test_a_batch_that_has_its_place_is_not_placed_again(payload: bytes) -> None:
    with pytest.raises(DamagedBatch, match="has its place"):
        decode_encoded(payload)
    with pytest.raises(DamagedBatch, match="has its place"):
        placed(payload, base_index=0, previous_txid=NO_TXID)


def changed(payload: bytes, at: int, value: bytes) -> bytes:
    return payload[:at] + value + payload[at + len(value) :]


def lies() -> dict[str, bytes]:
    """Return batches whose headers say what their columns do not; each reader would stumble."""
    plain = encode_batch(Columns([b"a", b"bc"]), base_index=0, base_timestamp_ms=0)
    with_txids = encode_batch(Columns([b"a"], txids=[5]), base_index=0, base_timestamp_ms=0)
    paired = Columns([b"a"], headers=[encode_headers([("a", b"1"), ("a", None)])])
    with_pairs = encode_batch(paired, base_index=0, base_timestamp_ms=0)
    flags = Flag.HEADERS
    return {
        "offsets": changed(plain, HEADER_BYTES + 4, b"\xff"),
        "txids": changed(with_txids, 48, b"\x04"),
        "pairs": changed(
            changed(with_pairs, 4, bytes([version_of(flags)])), 6, flags.to_bytes(2, "little")
        ),
        "cut": plain[:-1],
    }


@pytest.mark.parametrize("lie", lies())
def test_a_batch_that_no_reader_could_read_is_damage_before_it_is_appended(lie: str) -> None:
    with pytest.raises(DamagedBatch):
        decode_encoded(lies()[lie])
