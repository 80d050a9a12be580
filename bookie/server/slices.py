"""Work on many things, in slices of the passes of an event loop that has better to do. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

SLICE_S: Final = 0.001
"""Of each pass, for one kind of work."""

T = TypeVar("T")


def work_on(waiting: deque[T], work: Callable[[T], None], clock: Callable[[], float]) -> bool:
    """Do *work* on what is *waiting*, one at least, until the slice is over; return whether it is
    all done."""
    ends_at = clock() + SLICE_S
    while waiting:
        work(waiting.popleft())
        if clock() >= ends_at:
            break
    return not waiting
