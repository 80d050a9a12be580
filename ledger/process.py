"""Which process this is, for people who look, and how it ends with its parent."""

import ctypes
import os
import signal
import socket
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_NICENESS: Final = 10


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


def yield_processor() -> None:
    """Let whoever else has work on this machine go first, from now on; what can wait calls it."""
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), _NICENESS))
