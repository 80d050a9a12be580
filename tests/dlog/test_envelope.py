"""The envelope of an encrypted batch: what it hides, what it is bound to, what it refuses."""

from itertools import product
from typing import Any, Final

import pytest

from dlog.columns import Columns
from dlog.encoded_batch import placed
from dlog.envelope import FIXED, decode_facts, new_cipher, seal, unseal
from dlog.errors import BatchEncrypted, BatchTooNew, DamagedBatch
from dlog.headers import encode_headers
from dlog.position import Place
from dlog.receipts import Receipt
from dlog.recordbatch import HEADER_BYTES, Codec, decode_batch, encode_batch, parse_header

KEY: Final = bytes(range(32))
SALT: Final = b"saltsalt"
HERE: Final[dict[str, Any]] = {"incarnation": "life", "ledger_id": 7, "entry_id": 3}
PLACE: Final = Place(1, 3, 0)
SECRET: Final = b"top secret payload"

ALL_COLUMNS: Final = Columns(
    [SECRET, b"", b"c" * 50],
    keys=[b"secret key", None, b""],
    txids=[5, None, 9],
    timestamps_ms=[1000, 2000, 900],
    headers=[encode_headers({"secret name": b"secret value"}), None, None],
)
BATCHES: Final = {
    "all columns": (ALL_COLUMNS, None),
    "with receipt": (ALL_COLUMNS, Receipt(bytes(16), 12)),
    "values alone": (Columns([SECRET]), None),
    "nothing in it": (Columns([b"", b""]), Receipt(bytes(16), 1)),
}


def plain(name: str = "all columns") -> bytes:
    records, receipt = BATCHES[name]
    return encode_batch(
        records, base_index=11, base_timestamp_ms=1000, previous_txid=4, receipt=receipt
    )


def sealed(payload: bytes, *, key: bytes = KEY, codec: Codec = Codec.NONE, **place: Any) -> bytes:
    return seal(payload, new_cipher(key), salt=SALT, codec=codec, **{**HERE, **place})


@pytest.mark.parametrize(("name", "codec"), [*product(BATCHES, Codec)])
def test_what_is_opened_is_what_was_sealed(name: str, codec: Codec) -> None:
    payload = plain(name)
    entry = sealed(payload, codec=codec)
    found, before = unseal(entry, new_cipher(KEY), **HERE), decode_batch(payload)
    assert list(found.records(PLACE)) == list(before.records(PLACE))
    assert found.receipt == before.receipt
    assert b"secret" not in entry


@pytest.mark.parametrize(("name", "codec"), [*product(BATCHES, Codec)])
def test_without_a_key_it_tells_places_times_txids_and_receipt(name: str, codec: Codec) -> None:
    payload = plain(name)
    facts, before = decode_facts(sealed(payload, codec=codec)), decode_batch(payload)
    assert facts.timestamps_ms() == before.timestamps_ms()
    assert facts.txid_list() == before.txid_list()
    assert facts.receipt == before.receipt
    assert facts.header.end_index == before.header.end_index
    slot = before.count - 1
    known = facts.known(PLACE, slot)
    assert before.record(PLACE, slot)._replace(key=None, value=b"", headers=known.headers) == known
    facts.check_headers()


def test_of_a_batch_that_is_not_encrypted_the_facts_are_all_there_is() -> None:
    payload = plain()
    assert list(decode_facts(payload).timestamps_ms()) == [1000, 2000, 900]
    assert decode_facts(payload).known(PLACE, 0).value == SECRET


def test_an_envelope_is_not_decoded_as_a_batch_nor_placed_nor_read_by_an_older_program() -> None:
    entry = sealed(plain())
    with pytest.raises(BatchEncrypted, match="its log"):
        decode_batch(entry)
    with pytest.raises(DamagedBatch, match="encrypted"):
        placed(entry, base_index=0, previous_txid=0)
    assert entry[4] == 4, "older programs refuse this version, and say so"


@pytest.mark.parametrize("codec", Codec)
def test_not_one_byte_of_it_can_be_changed(codec: Codec) -> None:
    entry = sealed(plain("with receipt"), codec=codec)
    cipher = new_cipher(KEY)
    for at in range(len(entry)):
        changed = bytearray(entry)
        changed[at] ^= 1
        with pytest.raises((DamagedBatch, BatchTooNew)):
            unseal(bytes(changed), cipher, **HERE)


@pytest.mark.parametrize("codec", Codec)
def test_nobody_who_has_no_key_is_led_outside_of_a_changed_one(codec: Codec) -> None:
    entry = sealed(plain("with receipt"), codec=codec)
    for at in range(4, HEADER_BYTES + FIXED.size):
        for bit in range(8):
            changed = bytearray(entry)
            changed[at] ^= 1 << bit
            try:
                facts = decode_facts(bytes(changed))
            except (DamagedBatch, BatchTooNew):
                continue
            assert len(facts.timestamps_ms()) == facts.count == 3


@pytest.mark.parametrize(
    "other", [{"entry_id": 4}, {"ledger_id": 8}, {"incarnation": "another"}], ids=str
)
def test_it_opens_at_its_own_place_only(other: dict[str, Any]) -> None:
    entry = sealed(plain())
    with pytest.raises(DamagedBatch, match="another place"):
        unseal(entry, new_cipher(KEY), **{**HERE, **other})


def test_another_data_key_does_not_open_it() -> None:
    with pytest.raises(DamagedBatch, match="another data key"):
        unseal(sealed(plain()), new_cipher(bytes(32)), **HERE)


def test_a_batch_in_plain_is_refused_where_all_are_encrypted() -> None:
    with pytest.raises(DamagedBatch, match="not encrypted"):
        unseal(plain(), new_cipher(KEY), **HERE)


@pytest.mark.parametrize("size", [HEADER_BYTES, HEADER_BYTES + 5, HEADER_BYTES + 40])
def test_one_that_was_cut_off_is_damaged(size: int) -> None:
    with pytest.raises(DamagedBatch):
        unseal(sealed(plain())[:size], new_cipher(KEY), **HERE)


def test_two_entries_never_have_one_nonce_even_with_the_same_salt() -> None:
    first, second = (sealed(plain(), entry_id=entry) for entry in (0, 1))
    at = HEADER_BYTES + FIXED.size + parse_numbers(first)
    assert first[:at] == second[:at]
    assert first[at:-16] != second[at:-16], "one key stream was used twice"


def parse_numbers(entry: bytes) -> int:
    size, salt = FIXED.unpack_from(entry, HEADER_BYTES)
    assert salt == SALT
    assert isinstance(size, int)
    assert parse_header(entry).stored_bytes == len(entry) - HEADER_BYTES
    return size


def test_its_bytes_are_those_of_the_format() -> None:
    """Bytes of version 4 stay readable; change the version to change them."""
    records = Columns([b"abc", b"de"], keys=[b"k", None], txids=[1, 2])
    payload = encode_batch(records, base_index=1, base_timestamp_ms=2)
    entry = sealed(payload)
    assert entry.hex() == KEPT
    assert unseal(entry, new_cipher(KEY), **HERE).value_list() == [b"abc", b"de"]


KEPT: Final = (
    "444c524204009c0002000000410000005d000000050000000100000000000000010000000000000002000000"
    "00000000010000000000000002000000000000003800000073616c7473616c74000000000300000005000000"
    "0000000001000000000000000200000000000000000000000100000001000000000000000100000000000000"
    "f8f5bf3e44e06e852255e495624ebb0a12bd7d94ced9d05e30"
)
