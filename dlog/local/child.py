"""Child processes that die with their parent, however that ends (Linux)."""

import sys
from collections.abc import Sequence
from typing import Final

# Runs in the child before the program itself: asks the kernel for SIGKILL when the parent
# ends, then becomes the program (same pid). Done so, and not in a preexec_fn, because that
# would run Python in a forked copy of a process with threads.
_PRELUDE: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(command: Sequence[str], parent_pid: int) -> list[str]:
    """Return *command* wrapped so that it is killed when *parent_pid* ends.

    The kernel means the parent's *thread*: start such a child from a thread that lives as
    long as the child shall (not from a pool). Elsewhere than on Linux, *command* itself."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _PRELUDE, str(parent_pid), *command]
