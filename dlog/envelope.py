"""The envelope: a record batch with values, keys and headers encrypted, byte for byte.

    header     that of `dlog.recordbatch`: flag ENCRYPTED, sizes as before encryption
    u32        bytes of *numbers*, as they are stored
    8 bytes    salt
    numbers    all columns before the values and, behind them, the receipt if there is one;
               compressed by the codec of the header
    sealed     values, keys and headers as they stand in a body, compressed by that codec, then
               encrypted by AES-256-GCM; its tag is the last 16 bytes

The nonce is (u32 entry id, salt). A data key seals the entries of one ledger, each of which has
an id of its own, and has one writer; so nonces differ, and the salt, random each time, is for what
should not be: that two copies of a process go on from one moment, and add the same entry.

All that stands before *sealed* is associated data, and before it the place: incarnation of the
log, ledger, entry. So whoever opens an envelope knows that header, offsets, times and txids are
those that were written, and for this place.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dlog.errors import DamagedBatch, EncryptionMissing
from dlog.recordbatch import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    BatchFacts,
    BatchHeader,
    Codec,
    Flag,
    RecordBatch,
    batch_from_body,
    blobs_of,
    compress,
    decode_batch,
    decompress,
    kafka_facts,
    parse_header,
    version_of,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SALT_BYTES: Final = 8
TAG_BYTES: Final = 16
FIXED: Final = struct.Struct(f"<I{SALT_BYTES}s")
_PLACE: Final = struct.Struct("<H")
_LEDGER_AND_ENTRY: Final = struct.Struct("<qq")
_NONCE: Final = struct.Struct(f"<I{SALT_BYTES}s")


def new_cipher(data_key: bytes) -> "AESGCM":
    """Return what seals and opens with *data_key*, of 32 bytes. Raises `EncryptionMissing`."""
    with encryption():
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    return AESGCM(data_key)


@contextmanager
def encryption() -> Iterator[None]:
    """Import what encryption needs in here; raises `EncryptionMissing` if it is not there."""
    try:
        yield
    except ImportError as error:
        raise EncryptionMissing from error


def _associated(incarnation: str, ledger_id: int, entry_id: int, known: bytes) -> bytes:
    """Return the place of an entry and what stands before its ciphertext."""
    name = incarnation.encode()
    place = _PLACE.pack(len(name)) + name + _LEDGER_AND_ENTRY.pack(ledger_id, entry_id)
    return place + known


def seal(
    payload: bytes,
    cipher: "AESGCM",
    *,
    incarnation: str,
    ledger_id: int,
    entry_id: int,
    salt: bytes,
    codec: Codec = Codec.NONE,
    codec_level: int = 0,
) -> bytes:
    """Return *payload*, a batch that is neither compressed nor encrypted, in its envelope.

    *salt* is random, SALT_BYTES long. *codec_level* is as in `encode_batch`."""
    header = parse_header(payload)
    assert header.codec is Codec.NONE, "it is compressed here"
    assert not header.flags & Flag.ENCRYPTED, "it is sealed once"
    if header.flags & Flag.KAFKA:
        codec = Codec.NONE
    body = memoryview(payload)[HEADER_BYTES:]
    begin, end = blobs_of(header)
    numbers = compress(bytes(body[:begin]) + bytes(body[end + -end % 8 :]), codec, codec_level)
    blobs = body[begin:end]
    secret = compress(bytes(blobs), codec, codec_level) if codec is not Codec.NONE else blobs
    stored_bytes = FIXED.size + len(numbers) + len(secret) + TAG_BYTES
    known = b"".join(
        (_packed(header, codec, stored_bytes), FIXED.pack(len(numbers), salt), numbers)
    )
    associated = _associated(incarnation, ledger_id, entry_id, known)
    return known + cipher.encrypt(_nonce(entry_id, salt), secret, associated)


def unseal(
    payload: bytes | memoryview,
    cipher: "AESGCM",
    *,
    incarnation: str,
    ledger_id: int,
    entry_id: int,
) -> RecordBatch:
    """Return the batch in an envelope. Raises `DamagedBatch`, also for a batch that is not
    encrypted, for one of another place, and for another data key; and `BatchTooNew`."""
    with encryption():
        from cryptography.exceptions import InvalidTag
    header = parse_header(payload)
    if not header.flags & Flag.ENCRYPTED:
        raise DamagedBatch("it is not encrypted, in a ledger in which all are")
    salt, numbers, sealed = _parts(payload, header)
    known = bytes(payload[: len(payload) - len(sealed)])
    associated = _associated(incarnation, ledger_id, entry_id, known)
    try:
        secret = cipher.decrypt(_nonce(entry_id, salt), bytes(sealed), associated)
    except InvalidTag:
        reason = "it was changed, or was encrypted for another place or with another data key"
        raise DamagedBatch(reason) from None
    begin, end = blobs_of(header)
    blobs = decompress(memoryview(secret), header.codec, end - begin)
    return batch_from_body(header, _joined(header, numbers, blobs))


def decode_facts(payload: bytes | memoryview) -> BatchFacts:
    """Return what *payload* says to whoever has no key: of a batch that is not encrypted, all.

    Nothing says that an encrypted one is as it was written. Raises `DamagedBatch`,
    `BatchTooNew`."""
    header = parse_header(payload)
    if not header.flags & Flag.ENCRYPTED:
        return decode_batch(payload)
    _, numbers, _ = _parts(payload, header)
    begin, end = blobs_of(header)
    body = _joined(header, numbers, memoryview(bytes(end - begin)))
    if header.flags & Flag.KAFKA:
        return kafka_facts(header, body)
    batch = batch_from_body(header, body)
    return BatchFacts(
        header=header, time_deltas=batch.time_deltas, txids=batch.txids, receipt=batch.receipt
    )


def _parts(
    payload: bytes | memoryview, header: BatchHeader
) -> tuple[bytes, memoryview, memoryview]:
    """Return salt, numbers as they are stored, and what is sealed."""
    stored = memoryview(payload)[HEADER_BYTES:]
    if len(stored) != header.stored_bytes:
        raise DamagedBatch(f"body of {len(stored)} bytes instead of {header.stored_bytes}")
    if len(stored) < FIXED.size + TAG_BYTES:
        raise DamagedBatch(f"{len(stored)} bytes are too few for an envelope")
    size, salt = FIXED.unpack_from(stored)
    if size > len(stored) - FIXED.size - TAG_BYTES:
        raise DamagedBatch(f"numbers of {size} bytes in an envelope of {len(stored)}")
    return salt, stored[FIXED.size : FIXED.size + size], stored[FIXED.size + size :]


def _joined(header: BatchHeader, numbers: memoryview, blobs: memoryview) -> memoryview:
    """Return the body of *numbers* as they are stored, and *blobs* as they stand in it."""
    begin, end = blobs_of(header)
    behind = end + -end % 8
    size = begin + max(0, header.body_bytes - behind)
    before = decompress(numbers, header.codec, size)
    if len(before) != size or len(blobs) != end - begin:
        raise DamagedBatch("its columns are of other sizes than its header says")
    padding = bytes(behind - end) if size > begin else b""
    return memoryview(b"".join((before[:begin], blobs, padding, before[begin:])))


def _packed(header: BatchHeader, codec: Codec, stored_bytes: int) -> bytes:
    flags = header.flags | Flag.ENCRYPTED
    return HEADER.pack(
        MAGIC, version_of(flags), codec, flags,
        header.count, header.body_bytes, stored_bytes,
        header.value_bytes, header.key_bytes, header.headers_bytes,
        header.base_index, header.base_timestamp_ms, header.first_txid, header.last_txid,
    )  # fmt: skip


def _nonce(entry_id: int, salt: bytes) -> bytes:
    return _NONCE.pack(entry_id & 0xFFFFFFFF, salt)
