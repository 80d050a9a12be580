import struct
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dlog.columns import Columns
from dlog.errors import DamagedBatch
from dlog.position import DLSN, NO_TXID, TXID_MAX, Record
from dlog.recordbatch import (
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    Codec,
    decode_batch,
    encode_batch,
    parse_header,
)
from dlog.settings import RECORD_BYTES_LIMIT

TIMES = st.integers(-(2**40), 2**60)
TXIDS = st.integers(NO_TXID + 1, TXID_MAX)
ROWS = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.none() | TXIDS,
        TIMES,
    ),
    min_size=1,
    max_size=40,
)


@given(rows=ROWS, codec=st.sampled_from(Codec), base=st.integers(0, 2**62), with_keys=st.booleans())
def test_what_was_encoded_comes_back(
    rows: list[tuple[bytes, bytes | None, int | None, int]],
    codec: Codec,
    base: int,
    with_keys: bool,
) -> None:
    values, keys, txids, times = (list(column) for column in zip(*rows, strict=True))
    payload = encode_batch(
        Columns(values, timestamps_ms=times, txids=txids, keys=keys if with_keys else None),
        base_index=base,
        base_timestamp_ms=1000,
        previous_txid=7,
        codec=codec,
    )
    batch = decode_batch(payload)
    assert batch.value_list() == values
    assert batch.timestamps_ms() == times
    assert batch.txid_list() == txids
    assert batch.key_list() == (keys if with_keys else None)
    present = [txid for txid in txids if txid is not None]
    assert batch.header.first_txid == (present[0] if present else NO_TXID)
    assert batch.header.last_txid == (present[-1] if present else 7)
    assert (batch.header.base_index, batch.header.end_index) == (base, base + len(rows))


def test_a_batch_of_plain_values_has_no_optional_column() -> None:
    batch = decode_batch(encode_batch(Columns([b"a", b""]), base_index=0, base_timestamp_ms=5))
    assert batch.header.flags == 0
    assert batch.txids is None
    assert batch.keys is None
    assert batch.timestamps_ms() == [5, 5]
    assert batch.value(0) == b"a"
    assert batch.value(1) == b""


def test_timestamps_that_all_equal_the_base_take_no_column() -> None:
    one = encode_batch(
        Columns([b"a", b"b"], timestamps_ms=[5, 5]), base_index=0, base_timestamp_ms=5
    )
    assert one == encode_batch(Columns([b"a", b"b"]), base_index=0, base_timestamp_ms=5)


def test_an_absent_key_is_not_an_empty_key() -> None:
    batch = decode_batch(
        encode_batch(Columns([b"a", b"b"], keys=[None, b""]), base_index=0, base_timestamp_ms=0)
    )
    assert batch.key_list() == [None, b""]


def test_the_value_column_is_laid_out_as_arrows() -> None:
    batch = decode_batch(
        encode_batch(Columns([b"ab", b"", b"c"]), base_index=0, base_timestamp_ms=0)
    )
    assert bytes(batch.value_offsets) == struct.pack("<4i", 0, 2, 2, 3)
    assert bytes(batch.values) == b"abc"


def test_records_carry_their_place_and_can_be_skipped() -> None:
    payload = encode_batch(
        Columns([b"a", b"b", b"c"], txids=[None, 4, 5], keys=[b"k", None, None]),
        base_index=0,
        base_timestamp_ms=9,
    )
    records = list(decode_batch(payload).records(100, 2, 7, skip=1, take=1))
    assert records == [Record(101, DLSN(2, 7, 1), 9, 4, None, b"b")]
    assert isinstance(records[0].dlsn, DLSN)
    assert len(list(decode_batch(payload).records(100, 2, 7))) == 3


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("optional", [False, True])
def test_any_truncation_is_told(codec: Codec, optional: bool) -> None:
    payload = encode_batch(
        Columns(
            [b"aaa", b"bb"],
            timestamps_ms=[1, 2] if optional else None,
            txids=[1, None] if optional else None,
            keys=[b"k", None] if optional else None,
        ),
        base_index=0,
        base_timestamp_ms=1,
        codec=codec,
    )
    for size in range(len(payload)):
        with pytest.raises(DamagedBatch):
            decode_batch(payload[:size])
    with pytest.raises(DamagedBatch):
        decode_batch(payload + b"\0")


@given(st.data())
def test_any_changed_byte_is_told_or_leaves_a_batch_that_stays_inside_its_buffer(
    data: st.DataObject,
) -> None:
    payload = bytearray(
        encode_batch(
            Columns([b"aaa", b"bb", b""], timestamps_ms=[1, 2, 3], keys=[b"k", None, b"l"]),
            base_index=0,
            base_timestamp_ms=1,
            codec=data.draw(st.sampled_from(Codec)),
        )
    )
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    try:
        batch = decode_batch(bytes(payload))
    except DamagedBatch:
        return
    assert sum(map(len, batch.value_list())) == len(batch.values)
    assert len(list(batch.records(0, 0, 0))) == batch.count


@pytest.mark.parametrize(
    ("at", "change", "reason"),
    [
        (0, b"X", "begins with"),
        (4, b"\x09", "format version 9"),
        (5, b"\x07", "unknown codec 7"),
        (6, b"\x80", "flags"),
        (7, b"\x01", "begins with"),
        (8, b"\0\0\0\0", "0 records"),
        (32, b"\xff" * 8, "negative"),
    ],
)
def test_a_header_that_cannot_be_is_refused(at: int, change: bytes, reason: str) -> None:
    payload = bytearray(encode_batch(Columns([b"a"]), base_index=0, base_timestamp_ms=0))
    payload[at : at + len(change)] = change
    with pytest.raises(DamagedBatch, match=reason):
        parse_header(bytes(payload))


def test_offsets_that_go_back_are_refused() -> None:
    payload = bytearray(encode_batch(Columns([b"ab", b"cd"]), base_index=0, base_timestamp_ms=0))
    struct.pack_into("<3i", payload, HEADER_BYTES, 0, 5, 4)
    with pytest.raises(DamagedBatch, match="value offsets"):
        decode_batch(bytes(payload))


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
@pytest.mark.parametrize("value_bytes", [BODY_BYTES_MAX - 15, 64 * 2**20, 2**30, 2**32 - 9])
def test_a_few_bytes_that_say_they_are_many_cost_no_memory(codec: Codec, value_bytes: int) -> None:
    """Such an entry is whole in every other respect: whoever knows a ledger's key can add it."""
    body = bytes(8) + bytes(64 * 2**20)
    stored = zstandard.compress(body) if codec is Codec.ZSTD else b"\x1f" * 8
    header = HEADER.pack(
        b"DLRB", 1, codec, 0, 0, 1, 8 + value_bytes & 2**32 - 1, len(stored), value_bytes, 0, 0,
        0, 0, NO_TXID, NO_TXID,
    )  # fmt: skip
    tracemalloc.start()
    try:
        with pytest.raises(DamagedBatch):
            decode_batch(header + stored)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("at", [8, 12, 20, 24], ids=["count", "body", "values", "keys"])
@pytest.mark.parametrize("change", [-8, -1, 1, 8, 2**30])
def test_sizes_that_do_not_add_up_are_refused_before_anything_is_decompressed(
    at: int, change: int
) -> None:
    payload = bytearray(
        encode_batch(
            Columns([b"a" * 20] * 20, keys=[b"key", None] * 10), base_index=0, base_timestamp_ms=0
        )
    )
    (size,) = struct.unpack_from("<I", payload, at)
    struct.pack_into("<I", payload, at, size + change)
    with pytest.raises(DamagedBatch):
        decode_batch(bytes(payload))
    if abs(change) >= 8:  # else it may vanish in the zeros between two columns
        with pytest.raises(DamagedBatch):
            parse_header(bytes(payload))


@pytest.mark.parametrize("codec", Codec)
def test_the_largest_record_fits_into_a_body(codec: Codec) -> None:
    value, key = bytes(RECORD_BYTES_LIMIT - 1), b"k"
    payload = encode_batch(
        Columns([value], timestamps_ms=[2**40], txids=[1], keys=[key]),
        base_index=0,
        base_timestamp_ms=0,
        codec=codec,
    )
    assert decode_batch(payload).value_list() == [value]


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
def test_compression_makes_text_smaller(codec: Codec) -> None:
    values = [b'{"carrier": "UA", "flight": 1545}'] * 100
    plain = encode_batch(Columns(values), base_index=0, base_timestamp_ms=0)
    packed = encode_batch(Columns(values), base_index=0, base_timestamp_ms=0, codec=codec)
    assert len(packed) < len(plain) / 4
    assert decode_batch(packed).value_list() == values


def test_the_format_is_what_it_was() -> None:
    """Bytes written by version 1 stay readable; change the version to change them."""
    payload = encode_batch(
        Columns([b"ab", b"c"], timestamps_ms=[1000, 1001], txids=[5, None], keys=[None, b"k"]),
        base_index=3,
        base_timestamp_ms=1000,
    )
    assert payload.hex() == (
        "444c524201001d0002000000490000004900000003000000010000000000000003000000"
        "00000000e80300000000000005000000000000000500000000000000"
        "00000000020000000300000000000000"
        "0000000001000000"
        "05000000000000000000000000000080"
        "00000000000000000100000000000000"
        "0200000000000000"
        "6162630000000000"
        "6b"
    )
