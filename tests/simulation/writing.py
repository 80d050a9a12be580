"""A client that creates a ledger and writes it, by production's `LedgerClient` and its writer."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ledger.errors import (
    LedgerFenced,
    LogError,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
)
from ledger.ids import NO_ENTRY, BookieId, EntryId
from ledger.protocol.writer import Writer, WriterPhase
from ledger.requests import Status
from ledger.writer import LedgerWriter
from tests.simulation.client import NOT_CREATED, PASSWORD, ClientProcess

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PENDING_MAX: Final = 64
"""Entries in flight; the workload holds back beyond this."""
CREATE_RETRY_S: Final = 0.1
FAILURES: Final[dict[type[LogError], str]] = {
    LedgerFenced: "fenced",
    NoSuchLedger: "deleted",
    NotEnoughBookies: "not_enough_bookies",
}


class WritingClient(ClientProcess):
    def __init__(self, cluster: "Cluster", name: str) -> None:
        super().__init__(cluster, name, NOT_CREATED)
        self.close_requested = False
        self._writer: LedgerWriter | None = None
        self._settled_up_to: int = NO_ENTRY

    @property
    def is_created(self) -> bool:
        """Whether this client knows that it has a ledger."""
        return self.ledger_id != NOT_CREATED

    def begin(self, on_created: "Callable[[WritingClient], None]") -> None:
        """Create the ledger, however often that takes; then call *on_created*."""
        self.run(self._create(on_created))

    async def _create(self, on_created: "Callable[[WritingClient], None]") -> None:
        while self._writer is None:
            try:
                self._writer = await self.ledgers.create(
                    self.cluster.quorum, password=PASSWORD, degraded_writes=True
                )
            except NotEnoughBookies:
                await asyncio.sleep(CREATE_RETRY_S)
            except MetadataUnavailable:
                self.mark("ledger_creation_unknown")
                await asyncio.sleep(CREATE_RETRY_S)
        self._watch_acknowledgements(self._writer)
        self.ledger_id = self._writer.ledger_id
        self.note(f"has created ledger {self.ledger_id}")
        self.mark("ledger_created")
        self.cluster.oracle.created(self.ledger_id, who=self.name)
        assert self.chosen is not None, "its bookies were chosen"
        self.placed(self.chosen)
        on_created(self)

    def _watch_acknowledgements(self, writer: LedgerWriter) -> None:
        """Report each at once: its caller hears of it in another turn of the loop at times, and
        the process may stand still before that."""
        honest = writer._confirm

        def confirm(last: EntryId) -> None:
            first = self.cluster.oracle.ledger(self.ledger_id).acknowledged + 1
            self.note(f"acknowledges {first}..{last}")
            self.cluster.oracle.acknowledged(self.ledger_id, last, who=self.name)
            honest(last)

        writer._confirm = confirm  # type: ignore[method-assign]

    # What the application knows of its writer.

    @property
    def added(self) -> int:
        """How many entries were added."""
        return 0 if self._writer is None else self._writer.last_add_pushed + 1

    @property
    def pending(self) -> int:
        """How many of them wait for their acknowledgement."""
        writer = self._writer
        if writer is None or writer.error is not None:
            return 0
        return writer.last_add_pushed - writer.last_add_confirmed

    @property
    def can_append(self) -> bool:
        return not self.done and not self.close_requested and self.pending < PENDING_MAX

    def append(self, payloads: list[bytes]) -> None:
        """Add *payloads* as the next entries, as one batch."""
        assert self._writer is not None, "it was created"
        try:
            self._writer.add_all([(payload, self._settled) for payload in payloads])
        except LogError as error:
            self._failed(error)

    def close(self) -> None:
        self.close_requested = True
        self.note("closes")
        self.run(self._close())

    async def _close(self) -> None:
        assert self._writer is not None, "it was created"
        try:
            metadata = await self._writer.close()
        except LogError as error:
            self._failed(error)
            return
        self.note("closed the ledger")
        self.mark("writer_closed")
        self.done = True
        self.cluster.oracle.concluded(self.ledger_id, metadata, who=self.name)

    def _settled(self, outcome: EntryId | LogError) -> None:
        if isinstance(outcome, LogError):
            assert self._writer is not None, "it was created"
            self._failed(self._writer.error or outcome)
            return
        self._settled_up_to += 1
        acknowledged = self.cluster.oracle.ledger(self.ledger_id).acknowledged
        assert outcome == self._settled_up_to <= acknowledged, f"{outcome} is settled out of order"

    def _failed(self, error: LogError) -> None:
        if self.done:
            return
        self.done = True
        failure = FAILURES.get(type(error), type(error).__name__)
        self.note(f"fails: {failure.replace('_', ' ')}")
        self.mark(f"writer_failed_{failure}")

    # What is seen of it.

    @property
    def _machine(self) -> Writer:
        assert self._writer is not None, "it was created"
        return self._writer._machine

    def wants_replacements(self) -> None:
        self.mark("ensemble_change_wanted")
        if not self._machine.is_degraded:
            self.mark("bookie_to_be_left")

    def refused(self, bookie: BookieId, status: Status, handle: Callable[[], None]) -> None:
        was_whole = not self._machine.is_degraded
        super().refused(bookie, status, handle)
        if (
            self.cluster.choices.writer_config.delay_ensemble_change
            and was_whole
            and self._machine.is_degraded
            and self._machine.phase is WriterPhase.OPEN
        ):
            self.note(f"goes on without {bookie}")
            self.mark("ensemble_change_delayed")
