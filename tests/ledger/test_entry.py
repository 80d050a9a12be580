import pytest
from google_crc32c import value as crc32c
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


def of_version_1(data: bytes) -> bytes:
    """Return the authenticated frame *data* as writers made it before its trailer had a checksum;
    the code, which covers the version, is of another key then."""
    header = b"\x01" + data[1 : HEADER_BYTES - 4]
    return header + int(crc32c(header)).to_bytes(4, "little") + data[HEADER_BYTES:-4]


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
@pytest.mark.parametrize("payload", [b"", b"payload"], ids=["empty", "payload"])
def test_damage_anywhere_is_found_without_the_password(mac: bytes | None, payload: bytes) -> None:
    """By whoever copies a frame, and by a bookie that receives, replays or reads it (rule 87)."""
    data = frame(payload, mac)
    digest = Digest.CRC32C if mac is None else Digest.HMAC_SHA256
    assert verify_whole(data, 7, 3, digest).last_add_confirmed == 2
    assert isinstance(check_frames(7, [3], [len(data)], data), Checked)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(DamagedEntry):
            verify_whole(bytes(damaged), 7, 3, digest)
        assert isinstance(check_frames(7, [3], [len(data)], bytes(damaged)), Bad), position


def test_damage_anywhere_in_a_proof_is_found_without_the_password() -> None:
    proof = proof_of(frame(mac=MAC))
    for position in range(len(proof)):
        damaged = bytearray(proof)
        damaged[position] ^= 1
        with pytest.raises(DamagedEntry):
            verify_proof(bytes(damaged), 7, WithoutKey(Digest.HMAC_SHA256))


def test_the_trailer_of_another_entry_is_found_without_the_password() -> None:
    other = encode_frame(
        ledger_id=7, entry_id=4, last_add_confirmed=2, length=99, payload=b"payload", mac=MAC
    )
    mixed = frame(mac=MAC)[:-TRAILER_BYTES] + other[-TRAILER_BYTES:]
    with pytest.raises(DamagedEntry, match="trailer checksum differs"):
        verify_whole(mixed, 7, 3, Digest.HMAC_SHA256)
    found = check_frames(7, [3], [len(mixed)], mixed)
    assert isinstance(found, Bad)
    assert found.reason == "trailer checksum differs"


def test_the_proof_of_a_run_has_the_trailer_of_its_frame() -> None:
    data = frame(mac=MAC)
    checked = check_frames(7, [3], [len(data)], data)
    assert isinstance(checked, Checked)
    assert checked.proof() == proof_of(data)


def test_a_payload_that_was_exchanged_with_its_checksum_has_not_the_hash_of_the_trailer() -> None:
    """What no CRC of version 1 finds: the frame of another payload with this one's trailer."""
    data, other = frame(b"payload", MAC), frame(b"daolyap")
    mixed = of_version_1(frame(b"daolyap", MAC))[:-64] + of_version_1(data)[-64:]
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
