"""The port through which a client talks to bookies."""

from collections.abc import Callable
from typing import Protocol

from ledger.ids import BookieId
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)


class BookieTransport(Protocol):
    """All methods are called on, and call back on, one event loop.

    Nothing raises for a bookie's fault: no answer is an answer with `Status.UNREACHABLE`,
    given within the transport's timeout."""

    def add(self, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]) -> None:
        """Send *run* when the session to *bookie* is free; return at once.

        *on_done* is called exactly once, later. Runs to one bookie arrive in order, and are
        answered in order. The buffer of the run must not change until then."""

    def is_watched(self, bookie: BookieId) -> bool:
        """Whether readers may wait at *bookie* for what is confirmed: so it said, or nothing, when
        it last answered an add."""

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer: ...

    async def read_lac(self, bookie: BookieId, query: LacQuery) -> LacAnswer: ...

    async def read_held(self, bookie: BookieId, query: HeldQuery) -> HeldAnswer:
        """Ask which entries the bookie holds; `HeldAnswer.is_supported` says whether it can say."""

    async def info(self, bookie: BookieId) -> InfoAnswer | None:
        """Return what the bookie says of itself, or None if it does not answer."""

    async def close(self) -> None:
        """Take nothing more, give what was sent a moment to arrive, answer what is open then with
        UNREACHABLE, and free all connections."""
