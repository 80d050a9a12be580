"""Where a group of records is committed: on the event loop, or by its journal's thread.

To hand a group to the thread and back is two wake-ups, about as long as a good disk takes to sync
it. So a bookie with one journal commits little at once, on the loop, as long as the disk is fast:
then nobody waits longer than for the answer anyway. Everything else is the thread's, so that the
loop reads on meanwhile, and so that a slow disk holds up nothing but adds and fences.

What it cannot know is that a disk will hang *now*: then reads from memory and long polls wait
with that one sync, and the next ones are the thread's. Pure: times in, a decision out.
"""

from collections import deque
from typing import Final

HERE_BYTES_MAX: Final = 16 * 1024
"""Frames of a group; more is worth a wake-up, and takes longer."""
TIMES: Final = 64
"""So many of the last commits are looked at; before that, the disk is not known."""
FAST_S: Final = 0.002
"""As a commit is seen from outside: on a busy machine half of it is the wait for a turn."""
SLOW_MAX: Final = TIMES // 10
"""So many of them may have taken longer than `FAST_S`."""
HUNG_S: Final = 0.030
"""None of them may have taken as long as this."""


class CommitPlace:
    """See the module's docstring."""

    def __init__(self, journals: int) -> None:
        self._is_possible = journals == 1
        self._times: deque[float] = deque()
        self._slow = self._hung = 0
        """How many of them took as long as `FAST_S`, as `HUNG_S`."""
        self._is_fast = False

    def took(self, seconds: float) -> None:
        """Take note of a commit, wherever it was."""
        self._times.append(seconds)
        self._slow += seconds >= FAST_S
        self._hung += seconds >= HUNG_S
        if len(self._times) > TIMES:
            gone = self._times.popleft()
            self._slow -= gone >= FAST_S
            self._hung -= gone >= HUNG_S
        self._is_fast = len(self._times) == TIMES and self._slow <= SLOW_MAX and not self._hung

    def is_here(self, size_bytes: int) -> bool:
        """Whether a group of so many bytes is to be committed on the loop."""
        return self._is_possible and self._is_fast and size_bytes <= HERE_BYTES_MAX
