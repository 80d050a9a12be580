"""What a reader knows of its ledger, from its reads, its watch and its questions."""

from collections.abc import Callable
from typing import assert_never

from ledger import metrics
from ledger.ids import NO_ENTRY, BookieId, EntryId
from ledger.log_events import get_logger
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.answers import Fault, RepairHint

_log = get_logger(__name__)


class Known:
    """Invariants: `last_add_confirmed` only grows as long as the ledger is not CLOSED; what is
    CLOSED stays so."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.hints: dict[tuple[BookieId, Fault], int] = {}
        """See `LedgerReader.repair_hints`."""
        self._ledger_id = ledger_id
        self._lac = NO_ENTRY

    @property
    def closed(self) -> bool:
        return self.metadata.state is LedgerState.CLOSED

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read."""
        last_entry = self.metadata.last_entry
        return self._lac if last_entry is None else last_entry

    def learn(self, metadata: LedgerMetadata | None) -> None:
        if metadata is not None and not (self.closed and metadata.state is not LedgerState.CLOSED):
            self.metadata = metadata  # else a late reply: CLOSED is terminal

    def learn_confirmed(self, entry_id: int) -> None:
        self._lac = EntryId(max(self._lac, entry_id))

    def take_hint(self, hint: RepairHint) -> None:
        """Count *hint*; log the first one of its kind."""
        of = (hint.bookie, hint.fault)
        report = _log.debug if of in self.hints else _reporter(hint.fault)
        self.hints[of] = self.hints.get(of, 0) + hint.count
        metrics.REPAIR_HINTS.add(hint.fault.name.lower(), by=hint.count)
        report(
            "replica_wants_repair",
            ledger_id=self._ledger_id,
            bookie=hint.bookie,
            entry_id=hint.entry_id,
            fault=hint.fault.value,
            count=hint.count,
        )


def _reporter(fault: Fault) -> Callable[..., None]:
    """Return what the first hint of *fault* is logged by."""
    match fault:
        case Fault.MISSING:
            return _log.info  # it may still be on its way: the ack quorum did not wait for this one
        case Fault.DAMAGED:
            return _log.warning
        case _:
            assert_never(fault)
