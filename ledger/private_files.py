"""Directories for their owner alone, whatever the umask. What is there stays as it is.

A file is made by `path.touch(mode=0o600)` before it is written.
"""

from pathlib import Path
from typing import Final

CHILD_UMASK: Final = 0o077
"""Of a process that makes files of its own."""


def make_private(directory: Path) -> None:
    """Make *directory*, and what is missing above it, with mode 0700. Raises `OSError`."""
    for each in (*reversed(directory.parents), directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)
