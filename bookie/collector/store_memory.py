"""What the collector knows of the metadata store over restarts: the file `store_memory`.

8s magic, u32 version, u8 flags (1: the store was found to be older), i64 next ledger id,
i64 deletions, i64 untraced, i64 begin of the period, u32 CRC of what is before
"""

import struct
from contextlib import suppress
from typing import Final

from google_crc32c import value as crc32c

from bookie.collector.garbage import StoreMemory
from bookie.disk.port import Disk, DiskFull

PATH: Final = "collected"
NEW_PATH: Final = "collected.tmp"
_MAGIC: Final = b"DLOGSEEN"
_BODY: Final = struct.Struct("<8sIBqqqq")
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 1
_OLDER: Final = 1


def encode(seen: StoreMemory) -> bytes:
    body = _BODY.pack(
        _MAGIC,
        _VERSION,
        _OLDER if seen.older else 0,
        seen.next_id,
        seen.deletions,
        seen.untraced,
        seen.period_began_at,
    )
    return body + _CRC.pack(int(crc32c(body)))


def decode(data: bytes) -> StoreMemory | None:
    """Return what was encoded, None if it is damaged."""
    if len(data) != _BODY.size + _CRC.size:
        return None
    magic, version, flags, next_id, deletions, untraced, began_at = _BODY.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _BODY.size)
    if magic != _MAGIC or version != _VERSION or crc != crc32c(data[: _BODY.size]):
        return None
    return StoreMemory(next_id, deletions, untraced, began_at, older=bool(flags & _OLDER))


def recall(disk: Disk) -> StoreMemory | None:
    """Return what was kept; None if nothing was, or if it is damaged. Raises `OSError`."""
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return None
    try:
        return decode(file.read(file.size(), 0))
    finally:
        file.close()


def keep(disk: Disk, seen: StoreMemory) -> None:
    """Make *seen* durable, in one step. Raises `OSError`; then it may be kept or not."""
    try:
        file = disk.create(NEW_PATH)
        try:
            file.write([encode(seen)], 0)
            file.sync()
        finally:
            file.close()
        disk.rename(NEW_PATH, PATH)
    except DiskFull:
        with suppress(OSError):
            disk.remove(NEW_PATH)
        raise
    disk.sync_directory("")
