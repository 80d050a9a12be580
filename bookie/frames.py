"""Checks the frames of a run in one pass, without an object per entry (rules 87, 88).

The same checks as `ledger.entry.verify_frame`, for many frames that follow each other in one
buffer. This is the only work a bookie does per entry on the add path, so it counts every
microsecond; that both say the same is shown by a test.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from struct import Struct
from typing import Final

from google_crc32c import value as crc32c

from ledger.entry import HEADER_BYTES, TRAILER_BYTES, VERSION, Digest

_HEADER: Final = Struct("<IIqqqqII")
_LAC: Final = Struct("<q")
_LAC_AT: Final = 24
_COVERED: Final = HEADER_BYTES - 4
_PLAIN: Final = VERSION | Digest.CRC32C << 8
_AUTHENTICATED: Final = VERSION | Digest.HMAC_SHA256 << 8


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
        frame = self.frame(self.lac_at)
        if frame[1] == Digest.HMAC_SHA256:
            return frame[:HEADER_BYTES] + frame[-TRAILER_BYTES:]
        return frame[:HEADER_BYTES]


@dataclass(frozen=True, slots=True)
class Bad:
    """The frame at *index* is not what it should be."""

    index: int
    reason: str


def trust_frames(entries: "array[int]", lengths: Iterable[int], data: bytes) -> Checked:
    """Return what `check_frames` would of frames that were checked before they were stored, in a
    place whose own checksum is right: only their LACs are looked at."""
    starts = array("q", accumulate(lengths, initial=0))
    unpack = _LAC.unpack_from
    lacs = [unpack(data, at + _LAC_AT)[0] for at in islice(starts, len(entries))]
    lac = max(lacs)
    return Checked(entries, starts, data, lac, lacs.index(lac))


def check_frames(
    ledger_id: int, entries: Sequence[int], lengths: Sequence[int], frames: bytes | memoryview
) -> Checked | Bad:
    """Check that *frames* are exactly the frames of *entries*, ids ascending.

    Returns the first that is not as `Bad`; an index of -1 blames the columns."""
    data = frames if isinstance(frames, bytes) else bytes(frames)
    count = len(entries)
    if count == 0 or count != len(lengths) or sum(lengths) != len(data):
        return Bad(-1, f"{count} ids, {len(lengths)} lengths, {len(data)} bytes")
    starts = array("q", accumulate(lengths, initial=0))
    unpack, crc = _HEADER.unpack_from, crc32c
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
            or (kind == _AUTHENTICATED and payload_end + TRAILER_BYTES == end)
        ):
            return Bad(bisect_left(starts, at), "unknown version, or a length that does not fit")
        if crc(data[payload_at:payload_end]) != payload_crc:
            return Bad(bisect_left(starts, at), "payload checksum differs")
        if entry_id <= before:
            return Bad(-1, f"entry {entry_id} after {before}: ids must ascend")
        if lac > lac_max:
            lac_max, lac_start = lac, at
        before = entry_id
    return Checked(array("q", entries), starts, data, lac_max, bisect_left(starts, lac_start))
