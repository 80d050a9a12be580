"""The bytes of an entry log: a header, frames of `ledger.entry`, and at its end the ledger map.

A frame names its ledger, its entry and its length and carries its checksums, so a log can
be read without an index, and without its map (`bookie.entrylog.ledger_map`).

Compaction writes a *damage marker* in place of an entry whose only copy here is damaged. A log with
a damaged frame must not stay for ever, and the entry must not become a "no such entry" when the log
goes (rule 58). So the index points to a marker from then on: a whole frame without payload that
names the entry, under the complement of its ledger's id, which is nobody's. Who reads the entry
finds another one's frame there, which is damage; who scans the log sees whose marker it is. So
markers are moved on by later compactions and found by a rebuild of the index, until the ledger is
deleted or a recovery adds the entry again.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from google_crc32c import value as crc32c

from bookie.pieces import Piece, whole
from ledger.entry import Checked, check_frames, encode_frame
from ledger.ids import NO_ENTRY

VERSION: Final = 1
DIRECTORY: Final = "entrylog"
SUFFIX: Final = ".log"
UNFINISHED_SUFFIX: Final = ".compacting"
"""Of what compaction is writing; nothing ever points into it."""
HEADER_BYTES: Final = 64
LOG_ID_MAX: Final = 2**32 - 1
_MAGIC: Final = b"DLOGELOG"
_HEADER: Final = Struct("<8sIIq36x")  # and u32 CRC32C of what is before
_CRC: Final = Struct("<I")


def path_of(log_id: int, suffix: str = SUFFIX) -> str:
    return f"{DIRECTORY}/{log_id:08x}{suffix}"


def log_of(name: str, suffix: str = SUFFIX) -> int | None:
    """Return the log whose file is called *name*; None if it is none."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != 8:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def logs_of(names: Iterable[str], suffix: str = SUFFIX) -> list[int]:
    """Return the logs among the files of these names, ascending."""
    return sorted(log_id for name in names if (log_id := log_of(name, suffix)) is not None)


def encode_header(log_id: int) -> bytes:
    body = _HEADER.pack(_MAGIC, VERSION, HEADER_BYTES, log_id)
    return body + _CRC.pack(crc32c(body))


def is_whole_header(data: bytes) -> bool:
    """Whether *data* is a header as some program wrote it, whatever it says."""
    body = data[: _HEADER.size]
    return len(data) == HEADER_BYTES and _CRC.unpack_from(data, len(body))[0] == crc32c(body)


def is_header_of(log_id: int, data: bytes) -> bool:
    """Whether *data* is the header of this log, in the version that is known here."""
    return data == encode_header(log_id)


def damage_marker_of(ledger_id: int, entry_id: int) -> Piece:
    frame = encode_frame(
        ledger_id=~ledger_id, entry_id=entry_id, last_add_confirmed=NO_ENTRY, length=0, payload=b""
    )
    checked = check_frames(~ledger_id, (entry_id,), (len(frame),), frame)
    assert isinstance(checked, Checked)
    return whole(checked)


def is_damage_marker(ledger_id: int) -> bool:
    """Whether a frame in an entry log that names *ledger_id* is a marker."""
    return ledger_id < 0


def owner_of(ledger_id: int) -> int:
    """Return the ledger that a frame in an entry log that names *ledger_id* is of."""
    return ~ledger_id if ledger_id < 0 else ledger_id
