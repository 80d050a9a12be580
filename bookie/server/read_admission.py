"""What all clients share that ask a bookie: how many questions are open, how much is due, and whose
read is next. Drives `fair_read_scheduler`."""

import asyncio
from typing import Final, Protocol

from bookie.server.fair_read_scheduler import BACKLOG_BYTES_MAX, SHARE_MAX, Turns
from ledger.transport.connection import Backlog

QUESTIONS_MAX: Final = 12_288
"""Of all clients: the reads that may wait, and some."""


class Asking(Protocol):
    """One client."""

    def serve_one(self) -> None:
        """Let one read go on that waits."""


class Room:
    """What all clients share that ask."""

    def __init__(self, backlog: Backlog | None = None, per_client_max: int = QUESTIONS_MAX) -> None:
        self.left = QUESTIONS_MAX
        """How many questions may be asked beside those that are open, of all clients."""
        self.per_client_max = per_client_max
        """How many one of them may have open."""
        self.backlog = backlog or Backlog()
        self.reading_bytes = 0
        """Of answers that are being read, as much as they may be."""
        self._turns = Turns[Asking]()
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
