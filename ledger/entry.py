"""The entry frame: what a writer sends, a bookie stores and a reader verifies, byte for byte. Pure.

    header   48 bytes, little endian:
             u8 version (2 if there is a trailer, else 1), u8 digest, u16 zero, u32 payload bytes,
             i64 ledger, i64 entry, i64 last add confirmed, i64 length,
             u32 CRC32C of the payload, u32 CRC32C of the 44 bytes before
    payload
    trailer  only if digest is HMAC_SHA256, 68 bytes:
             SHA-256 of the payload, HMAC-SHA256 over the first 44 header bytes and that hash,
             u32 CRC32C of the first 44 header bytes and the 64 trailer bytes before

*length* is the sum of the payload bytes of this entry and all before it. The header can be
verified without the payload, so header and trailer alone (a *proof*) carry a last add
confirmed that a reader can trust (rule 15). An explicit LAC is a frame with entry id -1 and
no payload. Every byte is covered by CRC32C, so bookies verify every frame on arrival without
knowing a password (rule 87); the authentication code is checked by readers. Who repairs a ledger
without its password compares the hash in the trailer with the payload: see `WithoutKey`.

Frames of version 1 with a trailer have no checksum of it, and are read only: nothing but the key
covers their last 32 bytes.

Nobody else knows where in a frame anything is. `judge_replicas` says what is wrong with one
bookie's copy, by what the others gave.
"""

import hashlib
import hmac
import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from itertools import accumulate, islice
from typing import Final

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from ledger.errors import DamagedEntry, EntryTooLarge
from ledger.ids import BookieId

VERSION: Final = 2
"""The highest that is written: of frames with a trailer."""
_VERSION_1: Final = 1
"""Of frames without one, and of older ones with a trailer that has no checksum."""
_HEADER: Final = struct.Struct("<BBHIqqqqII")
HEADER_BYTES: Final = _HEADER.size
TRAILER_BYTES: Final = 68
_CODES_BYTES: Final = 64
"""Hash and code: all of a trailer of version 1, and what the checksum of later ones covers."""
ENTRIES_AHEAD_MAX: Final = 1 << 24
"""How far an entry's id can be beyond the LAC in its header: a writer has fewer in flight."""
ENTRY_BYTES_MAX: Final = 17 * 1024 * 1024
"""Largest payload; dlog's records are at most 16 MiB and an entry holds at least one."""
LAC_ENTRY: Final = -1
"""Entry id in the header of an explicit LAC."""
_COVERED: Final = HEADER_BYTES - 4
_CRC: Final = struct.Struct("<I")
_KIND_HEADER: Final = struct.Struct("<IIqqqqII")
"""`_HEADER` with version, digest and zero as one number, to compare them at once."""
_LAC: Final = struct.Struct("<q")
_LAC_AT: Final = struct.calcsize("<BBHIqq")
_DIGEST_AT: Final = 1
_CRC_BYTES: Final = 64 * 1024
"""So much is copied at once for its checksum, which wants `bytes`: it stays in the cache."""


class Digest(IntEnum):
    """How entries of a ledger are protected. Persisted: keep the numbers."""

    CRC32C = 1
    HMAC_SHA256 = 2


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a frame says; made only from bytes whose checksum was right."""

    digest: Digest
    trailer_bytes: int
    payload_bytes: int
    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload_crc: int

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.payload_bytes + self.trailer_bytes


@dataclass(frozen=True, slots=True)
class WithoutKey:
    """In place of the key of the authentication code, for who repairs a ledger and has it not.

    Frames and proofs are then checked for damage, as far as that can be seen without the key, and
    not for forgery: see `verify_whole`."""

    digest: Digest
    """Of the ledger, as its metadata say: no frame with another one is its writer's."""


MacKey = bytes | WithoutKey | None
"""What frames are checked with: a key (`mac_key`); none, as the ledger asks for no code; or the
ledger asks for one, and its key is not known."""
_PLAIN: Final = _VERSION_1 | Digest.CRC32C << 8
_AUTHENTICATED: Final = VERSION | Digest.HMAC_SHA256 << 8
_TRAILERS: Final = {
    _PLAIN: 0,
    _AUTHENTICATED: TRAILER_BYTES,
    _VERSION_1 | Digest.HMAC_SHA256 << 8: _CODES_BYTES,
}
"""Bytes of the trailer, by version and digest as one number. There are no other frames."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A run whose frames are whole: columns of its entries, and its highest LAC."""

    entries: "array[int]"
    starts: "array[int]"
    """Where each frame begins in *data*, and where the last one ends."""
    data: bytes
    last_add_confirmed: int
    lac_at: int
    """Index of the frame that carries it."""

    def frame(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.starts[index + 1]]

    def proof(self) -> bytes:
        """Return header and trailer of the frame with the highest LAC."""
        data, start, end = self.data, self.starts[self.lac_at], self.starts[self.lac_at + 1]
        trailer_bytes = _TRAILERS[data[start] | data[start + _DIGEST_AT] << 8]
        return data[start : start + HEADER_BYTES] + data[end - trailer_bytes : end]


@dataclass(frozen=True, slots=True)
class Bad:
    """The frame at *index* is not what it should be."""

    index: int
    reason: str


def access_key(password: bytes) -> bytes:
    """Return the key that bookies ask for with each add, read and fence (rule 88).

    *password*: or the secret of a ledger without one, which is random."""
    return hashlib.sha256(b"dlog access " + password).digest()[:16]


def mac_key(password: bytes) -> bytes:
    """Return the key of the authentication code; never sent to a bookie."""
    return hashlib.sha256(b"dlog mac " + password).digest()


def encode_frame(
    *,
    ledger_id: int,
    entry_id: int,
    last_add_confirmed: int,
    length: int,
    payload: bytes,
    mac: bytes | None = None,
) -> bytes:
    """Return the frame of one entry; with *mac* (see `mac_key`) also its authentication code."""
    if len(payload) > ENTRY_BYTES_MAX:
        raise EntryTooLarge(len(payload), ENTRY_BYTES_MAX)
    digest = Digest.CRC32C if mac is None else Digest.HMAC_SHA256
    header = _HEADER.pack(
        _VERSION_1 if mac is None else VERSION, digest, 0, len(payload),
        ledger_id, entry_id, last_add_confirmed, length,
        crc32c(payload), 0,
    )[:_COVERED]  # fmt: skip
    header_crc = crc32c(header)
    if mac is None:
        return b"".join((header, _CRC.pack(header_crc), payload))
    codes = _codes(header, payload, mac)
    trailer_crc = _CRC.pack(crc32c_extend(header_crc, codes))
    return b"".join((header, _CRC.pack(header_crc), payload, codes, trailer_crc))


def encode_lac(
    *, ledger_id: int, last_add_confirmed: int, length: int, mac: bytes | None = None
) -> bytes:
    """Return the frame of an explicit LAC."""
    return encode_frame(
        ledger_id=ledger_id,
        entry_id=LAC_ENTRY,
        last_add_confirmed=last_add_confirmed,
        length=length,
        payload=b"",
        mac=mac,
    )


def parse_header(frame: bytes | memoryview) -> Header:
    """Return the verified header at the start of *frame*. Raises `DamagedEntry`."""
    if len(frame) < HEADER_BYTES:
        raise DamagedEntry("entry", f"{len(frame)} bytes are no header")
    fields = _HEADER.unpack_from(frame)
    version, digest, zero, payload_bytes, ledger, entry, lac, length, payload_crc, crc = fields
    if crc32c(bytes(frame[:_COVERED])) != crc:
        raise DamagedEntry(f"entry {entry} of ledger {ledger}", "header checksum differs")
    trailer_bytes = None if zero else _TRAILERS.get(version | digest << 8)
    if trailer_bytes is None:
        raise DamagedEntry(
            f"entry {entry} of ledger {ledger}", f"unknown version {version}/{digest}"
        )
    return Header(
        Digest(digest), trailer_bytes, payload_bytes, ledger, entry, lac, length, payload_crc
    )


def verify_frame(frame: bytes | memoryview, ledger_id: int, entry_id: int) -> Header:
    """Check lengths, ids and checksums of a whole frame; return its header.

    Raises `DamagedEntry`. The authentication code is not checked: see `authenticate`."""
    header = parse_header(frame)
    what = f"entry {entry_id} of ledger {ledger_id}"
    if header.ledger_id != ledger_id or header.entry_id != entry_id:
        raise DamagedEntry(
            what, f"its header names entry {header.entry_id} of ledger {header.ledger_id}"
        )
    if len(frame) != header.frame_bytes:
        raise DamagedEntry(what, f"{len(frame)} bytes instead of {header.frame_bytes}")
    payload = frame[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    if _crc_of(payload) != header.payload_crc:
        raise DamagedEntry(what, "payload checksum differs")
    _check_trailer(frame, header, what)
    return header


def verify_whole(
    frame: bytes | memoryview, ledger_id: int, entry_id: int, digest: Digest
) -> Header:
    """Return the header of a frame that is whole as its writer sent it, as far as that can be seen
    without the ledger's password. Raises `DamagedEntry`.

    *digest*: the ledger's. Proves that no byte is damaged: all CRCs are right and, with
    HMAC_SHA256, the payload has the SHA-256 in the trailer. It does not prove who made the frame:
    whoever has the access key can make one that passes, and readers with the password refuse it.
    Nor, of a frame of version 1, that the last 32 bytes, the code itself, are not damaged: nothing
    but the key covers them. So frames of one entry from two bookies are compared byte by byte
    before one is copied."""
    header = verify_frame(frame, ledger_id, entry_id)
    if not authenticate(frame, header, WithoutKey(digest)):
        what = f"entry {entry_id} of ledger {ledger_id}"
        raise DamagedEntry(what, "it has another digest, or the hash of its payload differs")
    return header


def authenticate(frame: bytes | memoryview, header: Header, mac: MacKey) -> bool:
    """Return True iff *frame* carries the authentication code that *mac* asks for.

    Requires that *frame* passed `verify_frame` or is a proof of *header*. A ledger made
    without a password (mac None) asks for none."""
    if mac is None:
        return header.digest is Digest.CRC32C
    if isinstance(mac, WithoutKey):
        plain = header.digest is Digest.CRC32C
        return header.digest is mac.digest and (plain or _has_its_hash(frame, header))
    if header.digest is not Digest.HMAC_SHA256:
        return False
    covered = bytes(frame[:_COVERED])
    payload_hash, sent = _hash_and_code(frame, header)
    code = hmac.digest(mac, covered + payload_hash, "sha256")
    return hmac.compare_digest(code, sent) and _has_its_hash(frame, header)


def payload_of(frame: bytes | memoryview, header: Header) -> memoryview:
    """Return the payload of a verified frame, without a copy."""
    return memoryview(frame)[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]


def verify_proof(proof: bytes, ledger_id: int, mac: MacKey) -> Header:
    """Return the header that *proof* carries: header and trailer of a frame, which are enough to
    trust its LAC without its payload; `WithoutKey`, by its checksum. Raises `DamagedEntry`."""
    header = parse_header(proof)
    what = f"last-add-confirmed proof of ledger {ledger_id}"
    if header.ledger_id != ledger_id:
        raise DamagedEntry(what, f"it is of ledger {header.ledger_id}")
    if len(proof) != HEADER_BYTES + header.trailer_bytes:
        raise DamagedEntry(what, f"{len(proof)} bytes are too many or too few")
    _check_trailer(proof, header, what)
    if not authenticate(proof, header, mac):
        raise DamagedEntry(what, "authentication code differs; is the password right?")
    return header


def trust_frames(entries: "array[int]", lengths: "array[int]", data: bytes) -> Checked:
    """Return what `check_frames` would of frames that were checked before they were stored, in a
    place whose own checksum is right: only their LACs are looked at."""
    count, length = len(entries), lengths[0]
    are_alike = length >= HEADER_BYTES and lengths == array("I", (length,)) * count
    if are_alike and count * length == len(data):  # as most writers send them
        starts = array("q", range(0, len(data) + 1, length))
        lacs = [lac for (lac,) in _lacs_of_frames(length).iter_unpack(data)]
    else:
        starts = array("q", accumulate(lengths, initial=0))
        unpack = _LAC.unpack_from
        lacs = [unpack(data, at + _LAC_AT)[0] for at in islice(starts, count)]
    lac = max(lacs)
    return Checked(entries, starts, data, lac, lacs.index(lac))


@lru_cache(maxsize=64)
def _lacs_of_frames(length: int) -> struct.Struct:
    """Return the layout of a frame of *length* bytes with nothing but its LAC."""
    return struct.Struct(f"<{_LAC_AT}xq{length - _LAC_AT - _LAC.size}x")


def check_frames(
    ledger_id: int, entries: Sequence[int], lengths: Sequence[int], frames: bytes | memoryview
) -> Checked | Bad:
    """Check that *frames* are exactly the frames of *entries*, ids ascending.

    Returns the first that is not as `Bad`; an index of -1 blames the columns. The same checks as
    `verify_frame`, without an object per entry: this is all that a bookie does per entry on the
    way of an add, so every microsecond counts."""
    data = frames if isinstance(frames, bytes) else bytes(frames)
    count = len(entries)
    if count == 0 or count != len(lengths) or sum(lengths) != len(data):
        return Bad(-1, f"{count} ids, {len(lengths)} lengths, {len(data)} bytes")
    starts = array("q", accumulate(lengths, initial=0))
    unpack, crc = _KIND_HEADER.unpack_from, crc32c
    before = lac_max = -2
    lac_start = 0
    for entry_id, at, end in zip(entries, starts, islice(starts, 1, None), strict=False):
        payload_at = at + HEADER_BYTES
        if end < payload_at:
            return Bad(bisect_left(starts, at), f"{end - at} bytes are no header")
        kind, payload_bytes, ledger, entry, lac, _, payload_crc, header_crc = unpack(data, at)
        payload_end = payload_at + payload_bytes
        if crc(data[at : at + _COVERED]) != header_crc:
            return Bad(bisect_left(starts, at), "header checksum differs")
        if ledger != ledger_id or entry != entry_id:
            return Bad(
                bisect_left(starts, at), f"its header names entry {entry} of ledger {ledger}"
            )
        if not (
            (kind == _PLAIN and payload_end == end)
            or (kind in _TRAILERS and payload_end + _TRAILERS[kind] == end)
        ):
            return Bad(bisect_left(starts, at), "unknown version, or a length that does not fit")
        if kind == _AUTHENTICATED and not _is_whole(header_crc, data[payload_end:end]):
            return Bad(bisect_left(starts, at), "trailer checksum differs")
        if payload_bytes <= _CRC_BYTES:
            crc_found = crc(data[payload_at:payload_end])
        else:
            crc_found = _crc_of(memoryview(data)[payload_at:payload_end])
        if crc_found != payload_crc:
            return Bad(bisect_left(starts, at), "payload checksum differs")
        if entry_id <= before:
            return Bad(-1, f"entry {entry_id} after {before}: ids must ascend")
        if lac > lac_max:
            lac_max, lac_start = lac, at
        before = entry_id
    return Checked(array("q", entries), starts, data, lac_max, bisect_left(starts, lac_start))


def peek(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Return what seems to begin at *at*: ledger, entry, and bytes of the whole frame.

    None if no frame can begin there. Nothing is verified: see `check_frames`."""
    if len(data) - at < HEADER_BYTES:
        return None
    version, digest, _, payload_bytes, ledger, entry, *_ = _HEADER.unpack_from(data, at)
    trailer_bytes = _TRAILERS.get(version | digest << 8)
    if trailer_bytes is None or payload_bytes > ENTRY_BYTES_MAX:
        return None
    return ledger, entry, HEADER_BYTES + payload_bytes + trailer_bytes


def _crc_of(payload: bytes | memoryview) -> int:
    crc = 0
    for at in range(0, len(payload), _CRC_BYTES):
        crc = crc32c_extend(crc, bytes(payload[at : at + _CRC_BYTES]))
    return crc


def _check_trailer(frame: bytes | memoryview, header: Header, what: str) -> None:
    """Raise `DamagedEntry` unless the trailer of *frame*, or of its proof, has its checksum: only
    the key covers one of version 1."""
    if header.trailer_bytes == TRAILER_BYTES:
        header_crc = _CRC.unpack_from(frame, _COVERED)[0]
        if not _is_whole(header_crc, frame[-TRAILER_BYTES:]):
            raise DamagedEntry(what, "trailer checksum differs")


def _is_whole(header_crc: int, trailer: bytes | memoryview) -> bool:
    crc = crc32c_extend(header_crc, bytes(trailer[:_CODES_BYTES]))
    return bool(crc == _CRC.unpack_from(trailer, _CODES_BYTES)[0])


def _hash_and_code(frame: bytes | memoryview, header: Header) -> tuple[bytes, bytes]:
    at = len(frame) - header.trailer_bytes
    return bytes(frame[at : at + 32]), bytes(frame[at + 32 : at + _CODES_BYTES])


def _has_its_hash(frame: bytes | memoryview, header: Header) -> bool:
    """Whether the payload of an authenticated *frame* has the hash in its trailer; True of a proof,
    which has no payload to compare."""
    if len(frame) == HEADER_BYTES + header.trailer_bytes and header.payload_bytes:
        return True
    payload = frame[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    payload_hash, _ = _hash_and_code(frame, header)
    return hmac.compare_digest(hashlib.sha256(payload).digest(), payload_hash)


def _codes(covered: bytes, payload: bytes, mac: bytes) -> bytes:
    payload_hash = hashlib.sha256(payload).digest()
    return payload_hash + hmac.digest(mac, covered + payload_hash, "sha256")


class ReplicaFault(Enum):
    """What is wrong with one bookie's copy of an entry."""

    MISSING = "missing"
    """The bookie says that it does not have the entry."""
    DAMAGED = "damaged"
    """Its bytes fail the checksum or the authentication code."""
    DIFFERENT = "different"
    """Whole by itself, and not what most other replicas are."""
    UNREADABLE = "unreadable"
    """The bookie reports an error for the entry."""
    REFUSED = "refused"
    """The bookie neither gives the entry nor says that it has it not: it is in limbo, or holds the
    ledger under another key."""
    UNREACHABLE = "unreachable"
    """The bookie did not answer."""


def judge_replicas(
    entry_id: int, holders: Iterable[BookieId], found: Mapping[BookieId, Header]
) -> tuple[Header | None, tuple[BookieId, ...]]:
    """Return the header that most of *holders* gave, and who gave another one.

    A draw goes to the ensemble's order, which is the same each time."""
    given = [(bookie, found[bookie]) for bookie in holders if bookie in found]
    if not given:
        return None, ()
    votes = Counter(header for _, header in given)
    most = max(votes.values())
    right = next(header for _, header in given if votes[header] == most)
    assert right.entry_id == entry_id, "the header of another entry"
    return right, tuple(bookie for bookie, header in given if header != right)
