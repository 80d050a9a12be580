"""What Python does not ask an operating system: when a file was made, and since when it runs."""

import ctypes
import os
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Final

_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_MASK: Final = Struct("=I")
_BORN: Final = Struct("=qI")
_BORN_AT: Final = 80
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def birth_time(descriptor: int) -> str:
    """Return when the open file was made, to the nanosecond; empty if the system does not know."""
    born = getattr(os.fstat(descriptor), "st_birthtime_ns", None)
    if born is not None:  # some systems, and Python from 3.12 on
        return f"{born:x}"
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, answer)
    except (AttributeError, OSError):  # a C library without the call
        return ""
    if failed or not _MASK.unpack_from(answer)[0] & _STATX_BTIME:
        return ""
    seconds, nanoseconds = _BORN.unpack_from(answer, _BORN_AT)
    return f"{seconds * 1_000_000_000 + nanoseconds:x}"


@cache
def running_system() -> str:
    """Return what changes with every boot of the machine; where nothing does, its name."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename
