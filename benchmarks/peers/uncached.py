"""Letting go of what the system keeps of files: who writes next finds memory that was in use.

In a virtual machine memory that was never used, or was given back, is found page by page by its
host, and written to at a third of the speed. Who is measured when the memory that was in use is
used up would pay for that, whatever it does itself.
"""

import os
from contextlib import suppress
from pathlib import Path


def let_go(directory: Path) -> None:
    """Write what is to be written, then let go of all files below *directory*."""
    os.sync()
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # it went away, or is no file
                _let_go_of(Path(place, name))


def _let_go_of(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
