import struct
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dlog.columns import Columns
from dlog.errors import BatchTooNew, DamagedBatch
from dlog.headers import HeadersGiven, are_paired, encode_headers, pairs_of
from dlog.position import DLSN, NO_TXID, TXID_MAX, Place, Record
from dlog.recordbatch import (
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    VERSION,
    ZSTD_LEVEL_MAX,
    Codec,
    Flag,
    decode_batch,
    encode_batch,
    parse_header,
    version_of,
)
from dlog.settings import RECORD_BYTES_LIMIT

ONE_HEADER = encode_headers({"trace": b"17"}) or b""
KEPT = Path(__file__).parent / "kept" / "record_batches_v1.bin"

TIMES = st.integers(-(2**40), 2**60)
TXIDS = st.integers(NO_TXID + 1, TXID_MAX)
NAMES = st.text("abcä", min_size=1)
HEADERS = st.dictionaries(NAMES, st.binary(max_size=9), max_size=4) | st.lists(
    st.tuples(NAMES, st.none() | st.binary(max_size=9)), max_size=4
)
ROWS = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.none() | TXIDS,
        TIMES,
        st.none() | HEADERS,
    ),
    min_size=1,
    max_size=40,
)


@given(rows=ROWS, codec=st.sampled_from(Codec), base=st.integers(0, 2**62), with_keys=st.booleans())
def test_what_was_encoded_comes_back(
    rows: list[tuple[bytes, bytes | None, int | None, int, HeadersGiven | None]],
    codec: Codec,
    base: int,
    with_keys: bool,
) -> None:
    values, keys, txids, times, headers = (list(column) for column in zip(*rows, strict=True))
    payload = encode_batch(
        Columns(
            values,
            timestamps_ms=times,
            txids=txids,
            keys=keys if with_keys else None,
            headers=[encode_headers(each or {}) for each in headers],
        ),
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
    records = list(batch.records(Place(0, 0, 0)))
    assert [[*record.headers.pairs()] for record in records] == [
        pairs_of(given or ()) for given in headers
    ]
    assert [batch.record(Place(0, 0, 0), slot) for slot in range(len(values))] == records
    batch.check_headers()
    has_pairs = any(are_paired(record.headers.encoded) for record in records)
    assert payload[4] == (5 if has_pairs else 2 if any(headers) else 1)
    present = [txid for txid in txids if txid is not None]
    assert batch.header.first_txid == (present[0] if present else NO_TXID)
    assert batch.header.last_txid == (present[-1] if present else 7)
    assert (batch.header.base_index, batch.header.end_index) == (base, base + len(rows))


@given(size=st.integers(0, 9), count=st.integers(1, 20), odd=st.none() | st.integers(0, 19))
def test_values_of_one_size_come_back_as_others_do(size: int, count: int, odd: int | None) -> None:
    values = [bytes([n]) * (size + (n == odd)) for n in range(count)]
    batch = decode_batch(encode_batch(Columns(values), base_index=0, base_timestamp_ms=0))
    assert batch.value_list() == values


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
    records = list(decode_batch(payload).records(Place(2, 7, 100), skip=1, take=1))
    assert records == [Record(101, Place(2, 7, 100), 9, 4, None, b"b")]
    assert isinstance(records[0].dlsn, DLSN)
    assert len(list(decode_batch(payload).records(Place(2, 7, 100)))) == 3


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("optional", [False, True])
def test_any_truncation_is_told(codec: Codec, optional: bool) -> None:
    payload = encode_batch(
        Columns(
            [b"aaa", b"bb"],
            headers=[None, ONE_HEADER] if optional else None,
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
    headers = data.draw(st.none() | st.just([ONE_HEADER, None, ONE_HEADER + ONE_HEADER]))
    payload = bytearray(
        encode_batch(
            Columns(
                [b"aaa", b"bb", b""],
                timestamps_ms=[1, 2, 3],
                keys=[b"k", None, b"l"],
                headers=headers,
            ),
            base_index=0,
            base_timestamp_ms=1,
            codec=data.draw(st.sampled_from(Codec)),
        )
    )
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    try:
        batch = decode_batch(bytes(payload))
    except (DamagedBatch, BatchTooNew):
        return
    with suppress(DamagedBatch):
        batch.check_headers()
    assert sum(map(len, batch.value_list())) == len(batch.values)
    assert len(list(batch.records(Place(0, 0, 0)))) == batch.count


@pytest.mark.parametrize(
    ("at", "change", "reason"),
    [
        (0, b"X", "begins with"),
        (4, b"\0", "format version 0"),
        (4, b"\x02", "format version 2 with flags 0x0"),
        (6, b"\x20", "format version 1 with flags 0x20"),
        (28, b"\x01", "do not add up"),
        (5, b"\x07", "unknown codec 7"),
        (6, b"\x80", "flags"),
        (7, b"\x01", "format version 1 with flags 0x100"),
        (7, b"\x04", "unknown codec 0 or flags 0x400"),
        (8, b"\0\0\0\0", "0 records"),
        (32, b"\xff" * 8, "negative"),
    ],
)
def test_a_header_that_cannot_be_is_refused(at: int, change: bytes, reason: str) -> None:
    payload = bytearray(encode_batch(Columns([b"a"]), base_index=0, base_timestamp_ms=0))
    payload[at : at + len(change)] = change
    with pytest.raises(DamagedBatch, match=reason):
        parse_header(bytes(payload))


def test_a_batch_of_a_newer_program_is_no_damage_but_a_reason_to_upgrade() -> None:
    payload = bytearray(encode_batch(Columns([b"a"]), base_index=0, base_timestamp_ms=0))
    payload[4] = VERSION + 1
    with pytest.raises(BatchTooNew, match="reads versions up to 6: upgrade it"):
        decode_batch(bytes(payload))


def test_flags_that_do_not_tell_which_headers_a_batch_has_are_damage() -> None:
    """A reader of before would refuse the batch, or take its headers for damage."""
    paired = encode_headers([("a", b"1"), ("a", b"2")])
    for headers, flags in ((paired, Flag.HEADERS), (ONE_HEADER, Flag.HEADERS | Flag.PAIRS)):
        payload = bytearray(
            encode_batch(Columns([b"x"], headers=[headers]), base_index=0, base_timestamp_ms=0)
        )
        decode_batch(bytes(payload)).check_headers()
        payload[4] = version_of(flags)
        payload[6:8] = flags.to_bytes(2, "little")
        with pytest.raises(DamagedBatch, match="flags do not tell"):
            decode_batch(bytes(payload)).check_headers()


def test_damaged_headers_are_told_by_who_looks_at_them_and_by_a_check() -> None:
    records = Columns([b"a", b"b"], headers=[ONE_HEADER, ONE_HEADER[:-1]])
    batch = decode_batch(encode_batch(records, base_index=0, base_timestamp_ms=0))
    whole, damaged = batch.records(Place(0, 0, 0))
    assert (whole.headers["trace"], damaged.value) == (b"17", b"b")
    with pytest.raises(DamagedBatch):
        damaged.headers.get("trace")
    with pytest.raises(DamagedBatch):
        batch.check_headers()


def test_offsets_of_headers_that_go_back_are_refused() -> None:
    records = Columns([b"", b""], headers=[ONE_HEADER, ONE_HEADER])
    payload = bytearray(encode_batch(records, base_index=0, base_timestamp_ms=0))
    struct.pack_into("<3i", payload, HEADER_BYTES + 16, 0, 30, 24)
    with pytest.raises(DamagedBatch, match="headers offsets"):
        decode_batch(bytes(payload))


def test_headers_that_nobody_looks_at_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.headers.decode_headers", None)
    records = Columns([b"a", b"b"], headers=[ONE_HEADER, None])
    batch = decode_batch(encode_batch(records, base_index=0, base_timestamp_ms=0))
    assert [record.value for record in batch.records(Place(0, 0, 0))] == [b"a", b"b"]


def test_headers_of_nobody_leave_the_bytes_of_version_1() -> None:
    plain = encode_batch(Columns([b"a", b"b"]), base_index=0, base_timestamp_ms=0)
    records = Columns([b"a", b"b"], headers=[None, None])
    assert encode_batch(records, base_index=0, base_timestamp_ms=0) == plain


def test_offsets_that_go_back_are_refused() -> None:
    payload = bytearray(encode_batch(Columns([b"ab", b"cd"]), base_index=0, base_timestamp_ms=0))
    struct.pack_into("<3i", payload, HEADER_BYTES, 0, 5, 4)
    with pytest.raises(DamagedBatch, match="value offsets"):
        decode_batch(bytes(payload))


@pytest.mark.parametrize("has_numpy", [True, False])
@pytest.mark.parametrize(("at", "instead"), [(0, 1), (500, 501), (500, 498), (500, -1), (999, 0)])
def test_offsets_of_many_records_that_go_back_are_refused_with_numpy_and_without(
    at: int, instead: int, has_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_numpy:
        pytest.importorskip("numpy")
    else:
        monkeypatch.setitem(sys.modules, "numpy", None)
    payload = bytearray(encode_batch(Columns([b"v"] * 999), base_index=0, base_timestamp_ms=0))
    assert decode_batch(bytes(payload)).count == 999
    struct.pack_into("<i", payload, HEADER_BYTES + 4 * at, instead)
    if instead != 501:
        with pytest.raises(DamagedBatch, match="value offsets"):
            decode_batch(bytes(payload))
    else:
        assert decode_batch(bytes(payload)).value(499) == b"vv"


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
@pytest.mark.parametrize("value_bytes", [BODY_BYTES_MAX - 15, 64 * 2**20, 2**30, 2**32 - 9])
def test_a_few_bytes_that_say_they_are_many_cost_no_memory(codec: Codec, value_bytes: int) -> None:
    """Such an entry is whole in every other respect: whoever knows a ledger's key can add it."""
    body = bytes(8) + bytes(64 * 2**20)
    stored = zstandard.compress(body) if codec is Codec.ZSTD else b"\x1f" * 8
    header = HEADER.pack(
        b"DLRB", 1, codec, 0, 1, 8 + value_bytes & 2**32 - 1, len(stored), value_bytes, 0, 0,
        0, 0, NO_TXID, NO_TXID,
    )  # fmt: skip
    tracemalloc.start()
    try:
        with pytest.raises(DamagedBatch):
            decode_batch(header + stored)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "at", [8, 12, 20, 24, 28], ids=["count", "body", "values", "keys", "headers"]
)
@pytest.mark.parametrize("change", [-8, -1, 1, 8, 2**30])
def test_sizes_that_do_not_add_up_are_refused_before_anything_is_decompressed(
    at: int, change: int
) -> None:
    payload = bytearray(
        encode_batch(
            Columns([b"a" * 20] * 20, keys=[b"key", None] * 10, headers=[None, ONE_HEADER] * 10),
            base_index=0,
            base_timestamp_ms=0,
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


def test_a_higher_level_of_zstd_makes_text_smaller_and_readers_need_not_know_it() -> None:
    values = [b'{"flight": %d, "delay": %d}' % (i * 7919 % 9973, i % 60) for i in range(2000)]
    sizes = []
    for level in (1, 3, ZSTD_LEVEL_MAX):
        packed = encode_batch(
            Columns(values),
            base_index=0,
            base_timestamp_ms=0,
            codec=Codec.ZSTD,
            codec_level=level,
        )
        assert decode_batch(packed).value_list() == values
        sizes.append(len(packed))
    assert sizes[0] > sizes[2]
    default = encode_batch(Columns(values), base_index=0, base_timestamp_ms=0, codec=Codec.ZSTD)
    assert len(default) == sizes[0]


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


def test_the_format_of_headers_is_what_it_was() -> None:
    records = Columns([b"ab", b"c"], keys=[b"k", b"l"], headers=[None, ONE_HEADER])
    payload = encode_batch(records, base_index=3, base_timestamp_ms=1000)
    assert payload.hex() == (
        "444c524202002800020000004c0000004c0000000300000002000000"
        "0c0000000300000000000000e80300000000000000000000000000800000000000000080"
        "00000000020000000300000000000000"
        "00000000010000000200000000000000"
        "00000000000000000c00000000000000"
        "6162630000000000"
        "6b6c000000000000"
        "050200000074726163653137"
    )


def test_what_version_1_wrote_is_read_and_written_again_byte_for_byte() -> None:
    """The file was written before there was a version 2: each batch below, by each codec."""
    far = 1000 + 2**40
    wrote = [
        Columns([b"ab", b"", b"c"]),
        Columns([b"ab", b"c"], timestamps_ms=[1000, 1001]),
        Columns([b"ab", b"c"], timestamps_ms=[far, 999]),
        Columns([b"ab", b"c", b"d"], txids=[5, None, 7]),
        Columns([b"ab", b"c"], keys=[b"k", b""]),
        Columns(
            [b"ab", b"c", b""],
            keys=[None, b"k", b""],
            txids=[5, 6, None],
            timestamps_ms=[1000, 1001, 1002],
        ),
        Columns([b'{"carrier": "UA"}'] * 20, keys=[b"UA"] * 20),
    ]
    kept = KEPT.read_bytes()
    for codec in (Codec.NONE, Codec.ZSTD, Codec.LZ4):
        for records in wrote:
            (size,) = struct.unpack_from("<I", kept)
            payload, kept = kept[4 : 4 + size], kept[4 + size :]
            batch = decode_batch(payload)
            assert payload[4] == 1
            assert (batch.header.codec, batch.header.base_index) == (codec, 3)
            assert batch.value_list() == records.values
            assert batch.key_list() == records.keys
            assert batch.txid_list() == records.txids
            assert batch.timestamps_ms() == (records.timestamps_ms or [1000] * records.count)
            assert [record.headers for record in batch.records(Place(0, 0, 0))] == [
                {}
            ] * records.count
            if codec is Codec.NONE:  # the others may compress better one day
                again = encode_batch(
                    records, base_index=3, base_timestamp_ms=1000, previous_txid=2, codec=codec
                )
                assert again == payload
    assert not kept
