"""The bytes of an entry log: a header, then frames of `ledger.entry`, one after the other.

A frame names its ledger, its entry and its length and carries its checksums, so a log can be
read without an index.
"""

from struct import Struct
from typing import Final

from google_crc32c import value as crc32c

VERSION: Final = 1
DIRECTORY: Final = "entrylog"
SUFFIX: Final = ".log"
HEADER_BYTES: Final = 64
LOG_ID_MAX: Final = 2**32 - 1

_MAGIC: Final = b"DLOGELOG"
_HEADER: Final = Struct("<8sIIq36x")  # and u32 CRC32C of what is before
_CRC: Final = Struct("<I")


def path_of(log_id: int) -> str:
    return f"{DIRECTORY}/{log_id:08x}{SUFFIX}"


def encode_header(log_id: int) -> bytes:
    body = _HEADER.pack(_MAGIC, VERSION, HEADER_BYTES, log_id)
    return body + _CRC.pack(crc32c(body))
