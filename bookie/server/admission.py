"""How clients share one event loop: whose question is read next, and how much is due to whom.

`ReadAdmission` belongs to all connections that read, and drives `FairReadScheduler`, which is pure.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from ledger.transport.connection import Backlog

SLICE_S: Final = 0.001
"""Of each pass, for one kind of work."""
TAKEN_BYTES: Final = 1024 * 1024
"""So much is to be taken, or all that is due, within `ClientLimits.slow_s_max`. A byte now and then
is not enough: it would hold what is due for ever."""
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
QUESTIONS_MAX: Final = 12_288
"""Of all clients: the reads that may wait, and some."""
T = TypeVar("T")
C = TypeVar("C")


def work_on(waiting: deque[T], work: Callable[[T], None], clock: Callable[[], float]) -> bool:
    """Do *work* on what is *waiting*, one at least, until the slice is over; return whether it is
    all done."""
    ends_at = clock() + SLICE_S
    while waiting:
        work(waiting.popleft())
        if clock() >= ends_at:
            break
    return not waiting


class ClientPace:
    """How one client does; asked every now and then."""

    def __init__(self, now: float) -> None:
        self.since = now
        """Since when it is waited for the next bytes,"""
        self._due_bytes = 0
        """and how many are to be taken then, of all that were sent."""

    def waits_s(self, now: float, *, sent_bytes: int, unsent_bytes: int) -> float:
        """Return for how long less than is asked for was taken. *sent_bytes*: since the beginning,
        *unsent_bytes* of them not taken yet."""
        taken_bytes = sent_bytes - unsent_bytes
        if not unsent_bytes or taken_bytes >= self._due_bytes:
            self._due_bytes = taken_bytes + min(unsent_bytes, TAKEN_BYTES)
            self.since = now
        return now - self.since


def may_read(due_bytes: int, taken_bytes: int, due_bytes_of_all: int) -> bool:
    """Return whether there is to be read for a client that has *due_bytes* to take, and has taken
    *taken_bytes* since it came."""
    if due_bytes:
        window_bytes = min(UNSENT_BYTES_MAX, taken_bytes // 2)
        return due_bytes < window_bytes and due_bytes_of_all < BACKLOG_BYTES_HIGH
    seen = taken_bytes >= SEEN_BYTES
    return due_bytes_of_all < (ALL_BYTES_MAX if seen else BACKLOG_BYTES_MAX)


class FairReadScheduler(Generic[C]):
    """Whose read is served next, and how much is read in one pass of the event loop. Pure.

    Adds are taken and acknowledged on the same loop, so reads get a slice of each of its passes:
    what comes beyond waits, one read of each client after the other. And a client gets no more
    while much of what it got before is not taken: its *window* begins with one answer, and grows
    with what it has taken, so who takes nothing is read for once.

    Invariants:
        no client has more than `UNSENT_BYTES_MAX` due to it, and one answer
        all together have not more due than `BACKLOG_BYTES_MAX`, and one answer for each that was
            seen to take what it gets, up to `ALL_BYTES_MAX`
        each client that waits and may read is served before another one is served twice

    *C* is a client. Who drives it calls `served` after each pass
    in which anything was read.
    """

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


class Asking(Protocol):
    """One client."""

    def serve_one(self) -> None:
        """Let one read go on that waits."""


class ReadAdmission:
    """What all clients share that ask."""

    def __init__(self, backlog: Backlog | None = None, per_client_max: int = QUESTIONS_MAX) -> None:
        self.left = QUESTIONS_MAX
        """How many questions may be asked beside those that are open, of all clients."""
        self.per_client_max = per_client_max
        """How many one of them may have open."""
        self.backlog = backlog or Backlog()
        self.reading_bytes = 0
        """Of answers that are being read, as much as they may be."""
        self._turns = FairReadScheduler[Asking]()
        self._crowded: dict[Asking, None] = {}
        """Who has nothing due, and waits until less is due to all."""
        self._is_driven = False
        """Whether the end of this pass of the loop will be noticed."""

    @property
    def due_bytes(self) -> int:
        return self.backlog.unsent_bytes + self.reading_bytes

    @property
    def questions_max(self) -> int:
        """How many one client may have open now. As less is left, all get less: then many who ask
        for much leave something to who asks for little."""
        return min(self.per_client_max, -(-self.left // 2))

    @property
    def is_crowded(self) -> bool:
        """Whether clients to whom nothing is due wait until less is due to others."""
        return bool(self._crowded)

    def begins(self) -> bool:
        """Return whether a read may be served at once; if not, let it wait."""
        begins = self._turns.begin(asyncio.get_running_loop().time())
        self._drive()
        return begins

    def wait(self, client: Asking, *, may_read: bool) -> None:
        """*client* has nothing due, or may read; and it has reads that wait."""
        if may_read:
            self._turns.wait(client)
            self._drive()
        else:
            self._crowded.setdefault(client)

    def leave(self, client: Asking) -> None:
        self._turns.leave(client)
        self._crowded.pop(client, None)

    def eased(self) -> None:
        """Less may be due to all than before."""
        crowded = self._crowded
        while crowded and len(self._turns) < SHARE_MAX and self.due_bytes < BACKLOG_BYTES_MAX:
            client = next(iter(crowded))
            del crowded[client]
            self._turns.wait(client)
        self._drive()

    def _drive(self) -> None:
        if not self._is_driven and (self._turns.is_under_way or self._turns):
            self._is_driven = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        self._is_driven = False
        now = asyncio.get_running_loop().time()
        self._turns.served(now)
        for client in self._turns.next(now):
            client.serve_one()
        self.eased()
