"""The bytes of an entry log: a header, frames of `ledger.entry`, and at its end the ledger map.

A frame names its ledger, its entry and its length and carries its checksums, so a log can
be read without an index, and without its map (`bookie.entrylog.ledger_map`).
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from google_crc32c import value as crc32c

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
