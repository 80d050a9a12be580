import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.entry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Bad,
    Checked,
    Digest,
    WithoutKey,
    authenticate,
    check_frames,
    encode_frame,
    encode_lac,
    mac_key,
    payload_of,
    verify_frame,
    verify_proof,
    verify_whole,
)
from ledger.errors import DamagedEntry
from tests.ledger.proofs import proof_of

MAC = mac_key(b"secret")


def frame(payload: bytes = b"payload", mac: bytes | None = None) -> bytes:
    return encode_frame(
        ledger_id=7, entry_id=3, last_add_confirmed=2, length=99, payload=payload, mac=mac
    )


@given(st.binary(max_size=200), st.booleans())
def test_a_frame_gives_back_what_was_put_in(payload: bytes, with_mac: bool) -> None:
    mac = MAC if with_mac else None
    data = frame(payload, mac)
    header = verify_frame(data, 7, 3)
    assert payload_of(data, header) == payload
    assert (header.ledger_id, header.entry_id, header.last_add_confirmed, header.length) == (
        7,
        3,
        2,
        99,
    )
    assert authenticate(data, header, mac)


@pytest.mark.parametrize("mac", [None, MAC], ids=["crc", "hmac"])
def test_a_flipped_bit_anywhere_is_found(mac: bytes | None) -> None:
    data = frame(mac=mac)
    for position in range(len(data)):
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[position] ^= bit
            try:
                header = verify_frame(bytes(damaged), 7, 3)
            except DamagedEntry:
                continue
            assert not authenticate(bytes(damaged), header, mac), position


def test_a_frame_cut_anywhere_is_found() -> None:
    data = frame()
    for length in range(len(data)):
        with pytest.raises(DamagedEntry):
            verify_frame(data[:length], 7, 3)


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(7, 4), (8, 3)])
def test_a_frame_of_another_entry_is_refused(ledger_id: int, entry_id: int) -> None:
    with pytest.raises(DamagedEntry, match="its header names"):
        verify_frame(frame(), ledger_id, entry_id)


def test_another_password_does_not_authenticate() -> None:
    data = frame(mac=MAC)
    header = verify_frame(data, 7, 3)
    assert not authenticate(data, header, mac_key(b"other"))
    assert not authenticate(data, header, None)
    plain = frame()
    assert not authenticate(plain, verify_frame(plain, 7, 3), MAC)


@pytest.mark.parametrize("mac", [None, MAC], ids=["crc", "hmac"])
def test_a_header_alone_proves_its_lac(mac: bytes | None) -> None:
    data = frame(mac=mac)
    proof = proof_of(data)
    assert len(proof) < len(data)
    assert verify_proof(proof, 7, mac).last_add_confirmed == 2
    with pytest.raises(DamagedEntry):
        verify_proof(proof, 8, mac)
    with pytest.raises(DamagedEntry):
        verify_proof(proof + b"x", 7, mac)


def test_a_proof_with_another_lac_is_not_believed() -> None:
    data = frame(mac=MAC)
    forged = bytearray(proof_of(data))
    lac_at = HEADER_BYTES - 24
    forged[lac_at] ^= 1
    with pytest.raises(DamagedEntry):
        verify_proof(bytes(forged), 7, MAC)


def test_an_explicit_lac_is_a_proof() -> None:
    data = encode_lac(ledger_id=7, last_add_confirmed=41, length=1000, mac=MAC)
    assert verify_proof(data, 7, MAC).last_add_confirmed == 41


@pytest.mark.parametrize("mac", [None, MAC], ids=["crc", "hmac"])
def test_damage_is_found_without_the_password_but_for_that_of_the_code_itself(
    mac: bytes | None,
) -> None:
    data = frame(mac=mac)
    digest = Digest.CRC32C if mac is None else Digest.HMAC_SHA256
    assert verify_whole(data, 7, 3, digest).last_add_confirmed == 2
    covered = len(data) - (0 if mac is None else 32)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        if position < covered:
            with pytest.raises(DamagedEntry):
                verify_whole(bytes(damaged), 7, 3, digest)
        else:
            verify_whole(bytes(damaged), 7, 3, digest)  # only the key covers it


def test_a_payload_that_was_exchanged_with_its_checksum_has_not_the_hash_of_the_trailer() -> None:
    """What a CRC does not find: the frame of another payload with this one's trailer."""
    data, other = frame(b"payload", MAC), frame(b"daolyap")
    mixed = frame(b"daolyap", MAC)[:-TRAILER_BYTES] + data[-TRAILER_BYTES:]
    verify_frame(mixed, 7, 3)
    with pytest.raises(DamagedEntry, match="hash of its payload"):
        verify_whole(mixed, 7, 3, Digest.HMAC_SHA256)
    with pytest.raises(DamagedEntry, match="another digest"):
        verify_whole(other, 7, 3, Digest.HMAC_SHA256)
    with pytest.raises(DamagedEntry, match="another digest"):
        verify_whole(data, 7, 3, Digest.CRC32C)
    with pytest.raises(DamagedEntry, match="its header names"):
        verify_whole(data, 7, 4, Digest.HMAC_SHA256)


def test_forgery_is_found_by_nobody_without_the_password() -> None:
    forged = frame(b"forged", mac_key(b"guess"))
    verify_whole(forged, 7, 3, Digest.HMAC_SHA256)
    assert not authenticate(forged, verify_frame(forged, 7, 3), MAC)


@pytest.mark.parametrize("mac", [None, MAC], ids=["crc", "hmac"])
def test_a_proof_is_believed_by_its_checksum_without_the_password(mac: bytes | None) -> None:
    digest = Digest.CRC32C if mac is None else Digest.HMAC_SHA256
    other = Digest.HMAC_SHA256 if mac is None else Digest.CRC32C
    proof = proof_of(frame(mac=mac))
    assert verify_proof(proof, 7, WithoutKey(digest)).last_add_confirmed == 2
    with pytest.raises(DamagedEntry):
        verify_proof(proof, 7, WithoutKey(other))
    damaged = bytearray(proof)
    damaged[HEADER_BYTES - 24] ^= 1
    with pytest.raises(DamagedEntry):
        verify_proof(bytes(damaged), 7, WithoutKey(digest))


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 200_000])
def test_damage_anywhere_in_a_large_payload_is_found(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    data = encode_frame(
        ledger_id=1, entry_id=2, last_add_confirmed=1, length=size, payload=payload[:size]
    )
    assert verify_frame(data, 1, 2).payload_bytes == size
    assert isinstance(check_frames(1, [2], [len(data)], data), Checked)
    for at in (0, 65_535, 65_536, 131_072, size - 1):
        damaged = bytearray(data)
        damaged[HEADER_BYTES + min(at, size - 1)] ^= 1
        with pytest.raises(DamagedEntry, match="payload checksum differs"):
            verify_frame(memoryview(damaged), 1, 2)
        found = check_frames(1, [2], [len(data)], bytes(damaged))
        assert isinstance(found, Bad)
        assert found.reason == "payload checksum differs"
