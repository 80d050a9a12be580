"""What a log remembers of the units that were committed to it."""

from typing import Final

import pytest

from dlog.columns import Columns
from dlog.encoded_batch import placed
from dlog.errors import DamagedBatch
from dlog.manifest import PLAIN_VERSION, RECEIPTS_VERSION, Manifest, Sealed
from dlog.position import NO_TXID
from dlog.receipts import NUMBER_MAX, ORIGINS_MAX, Receipt, Receipts
from dlog.recordbatch import Codec, decode_batch, encode_batch, parse_header
from dlog.wire import log_pb2 as pb
from ledger.ids import EntryId, LedgerId

A: Final = bytes(16)
B: Final = bytes(range(16))


def origin(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_unit_is_known_once_it_or_a_later_one_of_its_origin_was_committed() -> None:
    receipts = Receipts().with_one(Receipt(A, 5))
    assert [receipts.has(Receipt(A, number)) for number in (4, 5, 6)] == [True, True, False]
    assert not receipts.has(Receipt(B, 0))
    assert (receipts.last(A), receipts.last(B)) == (5, None)
    assert receipts.with_one(None) is receipts
    assert receipts.with_one(Receipt(A, 4)) is receipts
    assert receipts.with_one(Receipt(A, 6)).last(A) == 6


def test_the_origin_that_has_not_committed_for_longest_is_forgotten_first() -> None:
    receipts = Receipts()
    for number in range(ORIGINS_MAX):
        receipts = receipts.with_one(Receipt(origin(number), 1))
    receipts = receipts.with_one(Receipt(origin(0), 2))
    full = receipts.with_one(Receipt(origin(1000), 1))
    assert len(full.each) == ORIGINS_MAX
    assert full.last(origin(0)) == 2
    assert full.last(origin(1)) is None
    assert full.last(origin(2)) == 1


def test_writes_that_are_made_once_are_forgotten_before_queries_that_go_on() -> None:
    receipts = Receipts().with_one(Receipt(B, 7))
    for number in range(3 * ORIGINS_MAX):
        receipts = receipts.with_one(Receipt(origin(number + 1), 0))
    assert len(receipts.each) == ORIGINS_MAX
    assert receipts.last(B) == 7
    assert receipts.last(origin(3 * ORIGINS_MAX)) == 0


@pytest.mark.parametrize(("of", "number"), [(b"short", 1), (A, -1), (A, NUMBER_MAX + 1)])
def test_what_is_no_receipt_is_refused(of: bytes, number: int) -> None:
    with pytest.raises(ValueError, match=r"origin|number"):
        Receipt(of, number)


@pytest.mark.parametrize("codec", list(Codec))
def test_an_entry_keeps_its_receipt_beside_all_columns(codec: Codec) -> None:
    records = Columns([b"a", b"bc"], [None, b"k"], [3, 4], [1, 2], [b"", b"\x01\x01\x00\x00\x00ab"])
    receipt = Receipt(B, NUMBER_MAX)
    payload = encode_batch(records, base_index=0, base_timestamp_ms=0, codec=codec, receipt=receipt)
    batch = decode_batch(payload)
    assert (batch.receipt, payload[4]) == (receipt, 3)
    assert batch.value_list() == [b"a", b"bc"]
    assert batch.key_list() == [None, b"k"]
    plain = encode_batch(Columns([b"a"]), base_index=0, base_timestamp_ms=0)
    assert (decode_batch(plain).receipt, plain[4]) == (None, 1)


def test_a_damaged_receipt_is_damage() -> None:
    payload = bytearray(
        encode_batch(Columns([b"a"]), base_index=0, base_timestamp_ms=0, receipt=Receipt(A, 1))
    )
    payload[-1] = 0xFF
    with pytest.raises(DamagedBatch, match="receipt"):
        decode_batch(bytes(payload))
    del payload[-1]
    with pytest.raises(DamagedBatch):
        decode_batch(bytes(payload))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_gets_its_place_after_it_was_encoded(codec: Codec) -> None:
    made = encode_batch(Columns([b"a", b"b"]), base_index=0, base_timestamp_ms=9)
    payload = placed(made, base_index=17, previous_txid=5, codec=codec)
    header = parse_header(payload)
    assert (header.base_index, header.first_txid, header.last_txid) == (17, NO_TXID, 5)
    assert (header.codec, header.base_timestamp_ms) == (codec, 9)
    assert decode_batch(payload).value_list() == [b"a", b"b"]
    with_txids = encode_batch(Columns([b"a"], txids=[8]), base_index=0, base_timestamp_ms=0)
    assert parse_header(placed(with_txids, base_index=0, previous_txid=5)).last_txid == 8
    compressed = encode_batch(Columns([b"a"]), base_index=0, base_timestamp_ms=0, codec=Codec.ZSTD)
    with pytest.raises(DamagedBatch, match="compressed"):
        placed(compressed, base_index=0, previous_txid=5)


def sealed(records: int, receipt: Receipt | None = None) -> Sealed:
    return Sealed(EntryId(0), records, 1, NO_TXID, NO_TXID, 0, 0, receipt)


def test_a_seal_puts_the_segments_receipt_into_the_manifest() -> None:
    manifest = Manifest(incarnation="i").taken_over(1, LedgerId(1), 0, "me")
    manifest = manifest.with_sealed(1, sealed(3, Receipt(A, 4)))
    assert manifest.receipts.last(A) == 4
    manifest = manifest.with_segment(2, LedgerId(2), 0).with_sealed(2, sealed(3))
    assert manifest.receipts.last(A) == 4
    adopted = manifest.with_adopted(
        [(LedgerId(3), sealed(2)), (LedgerId(4), sealed(1))], 5, Receipt(B, 0)
    )
    assert [(s.number, s.first_offset) for s in adopted.segments[-2:]] == [(3, 6), (4, 8)]
    assert (adopted.next_segment, adopted.sealed_end) == (5, 9)
    assert Manifest.decode(adopted.encode("a"), path="/logs/a") == adopted


def test_only_a_manifest_with_receipts_is_one_that_older_programs_refuse() -> None:
    manifest = Manifest(incarnation="i").taken_over(1, LedgerId(1), 0, "me")
    assert pb.ManifestNode.FromString(manifest.encode("a")).version == PLAIN_VERSION
    manifest = manifest.with_sealed(1, sealed(3, Receipt(A, 4)))
    assert pb.ManifestNode.FromString(manifest.encode("a")).version == RECEIPTS_VERSION
