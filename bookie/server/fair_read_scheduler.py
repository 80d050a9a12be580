"""Whose read is served next, and how much is read in one pass of the event loop. Pure.

Adds are taken and acknowledged on the same loop, so reads get a slice of each of its passes: what
comes beyond waits, one read of each client after the other. And a client gets no more while much
of what it got before is not taken: its *window* begins with one answer, and grows with what it has
taken, so who takes nothing is read for once.

Invariants:
    no client has more than `UNSENT_BYTES_MAX` due to it, and one answer
    all together have not more due than `BACKLOG_BYTES_MAX`, and one answer for each that was seen
        to take what it gets, up to `ALL_BYTES_MAX`
    each client that waits and may read is served before another one is served twice
"""

from typing import Final, Generic, TypeVar

SLICE_S: Final = 0.001
"""For reads, of each pass of the loop; at least one is served."""
SHARE_MAX: Final = 32
"""Reads that are served in one pass, of those that had to wait."""
UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Due to one client: beyond it nothing is read for it."""
SEEN_BYTES: Final = 4 * 1024 * 1024
"""Who has taken so much is seen to take what it gets: more than systems keep for who takes
nothing."""
BACKLOG_BYTES_HIGH: Final = 64 * 1024 * 1024
"""Once so much is due to all clients, one that has not taken its last answers gets no more;"""
BACKLOG_BYTES_MAX: Final = 128 * 1024 * 1024
"""from here on none that was not seen to take what it gets;"""
ALL_BYTES_MAX: Final = 192 * 1024 * 1024
"""and from here on none."""

C = TypeVar("C")


def may_read(due_bytes: int, taken_bytes: int, due_bytes_of_all: int) -> bool:
    """Return whether there is to be read for a client that has *due_bytes* to take, and has taken
    *taken_bytes* since it came."""
    if due_bytes:
        window_bytes = min(UNSENT_BYTES_MAX, taken_bytes // 2)
        return due_bytes < window_bytes and due_bytes_of_all < BACKLOG_BYTES_HIGH
    seen = taken_bytes >= SEEN_BYTES
    return due_bytes_of_all < (ALL_BYTES_MAX if seen else BACKLOG_BYTES_MAX)


class Turns(Generic[C]):
    """See the module's docstring. *C* is a client. Who drives it calls `served` after each pass
    in which anything was read."""

    def __init__(self) -> None:
        self._waiting: dict[C, None] = {}
        """Who may read, in the order in which they are served."""
        self._ends_at: float | None = None
        """When the slice of this pass is over; None: it has not begun."""
        self._share = 1

    def __len__(self) -> int:
        """Return how many clients wait."""
        return len(self._waiting)

    def begin(self, now: float) -> bool:
        """Return whether a read that came may be served in this pass, without waiting."""
        if self._waiting:
            return False
        if self._ends_at is None:
            self._ends_at = now + SLICE_S
        return now < self._ends_at

    @property
    def is_under_way(self) -> bool:
        """Whether anything was read in this pass: call `served` at its end."""
        return self._ends_at is not None

    def wait(self, client: C) -> None:
        """Take note that *client* has reads that wait, and may read. Idempotent."""
        self._waiting.setdefault(client)

    def leave(self, client: C) -> None:
        """Take note that *client* has nothing more that waits, or may not read now."""
        self._waiting.pop(client, None)

    def served(self, now: float) -> None:
        """Take note that a pass is over. How long it took says how many reads the next one has:
        also if it took long for what else there was to do."""
        if self._ends_at is not None:
            took_s = now - (self._ends_at - SLICE_S)
            if took_s > SLICE_S:
                self._share = max(1, self._share // 2)
            elif took_s < SLICE_S / 2:
                self._share = min(SHARE_MAX, self._share * 2)
        self._ends_at = None

    def next(self, now: float) -> list[C]:
        """Begin a pass: return for whom one read each is served in it. They are the last to be
        served again."""
        clients = [client for client, _ in zip(self._waiting, range(self._share), strict=False)]
        for client in clients:
            del self._waiting[client]
            self._waiting[client] = None
        if clients:
            self._ends_at = now + SLICE_S
        return clients
