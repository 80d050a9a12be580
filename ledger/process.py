"""The process itself: its name for people who look, its version, its private files, and its end."""

import ctypes
import gc
import os
import signal
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "dlog-ledgers"
"""On PyPI the name ``dlog`` is another project's."""
CHILD_UMASK: Final = 0o077
"""Of a process that makes files of its own."""
_PR_SET_PDEATHSIG: Final = 1
_NICENESS: Final = 10


def own_version() -> str:
    """Return the version that is installed; of a source that is not, a word for that."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+source"


def make_private(directory: Path) -> None:
    """Make *directory*, and what is missing above it, with mode 0700. Raises `OSError`."""
    for each in (*reversed(directory.parents), directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def this_process() -> str:
    """Return ``host:pid``, by which people find this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel send SIGTERM when the parent ends; Linux only, else do nothing.

    *parent* is the process id of who started this one: without it, a parent that ended before this
    was called is not missed."""
    if sys.platform != "linux":
        return
    if parent is None:
        parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was asked


def keep_loaded() -> None:
    """Take all that is loaded by now out of the sight of Python's garbage collector: it stays as
    long as the process does, and each full collection would stop the process to look through it,
    for tens of milliseconds. For programs of dlog's own, once they are ready."""
    gc.collect()
    gc.freeze()


def yield_processor() -> None:
    """Let whoever else has work on this machine go first, from now on; what can wait calls it."""
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), _NICENESS))
