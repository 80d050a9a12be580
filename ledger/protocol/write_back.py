"""The second phase of a recovery, beside reading: write what was found to Qa bookies, verbatim.

A bookie that fails is replaced. These ensemble changes stay local until the closing CAS
records them (rule 46), and nobody is read from a bookie that was put in (rule 42).

Entries are confirmed in order, and never beyond what was found.
"""

from collections.abc import Iterable

from ledger.metadata import LedgerMetadata
from ledger.protocol.acks import AckTracker
from ledger.protocol.common_events import ReplacementsChosen
from ledger.protocol.ensemble_change import EnsembleChange
from ledger.protocol.recovery_events import (
    ForgetEntries,
    RecoveryConfig,
    RecoveryEffect,
    Request,
    WriteBack,
    WriteBackRefused,
    WriteBackStored,
)
from ledger.protocol.retries import Retries
from ledger.requests import Status


class WriteBacks:
    def __init__(
        self, metadata: LedgerMetadata, base: int, retries: Retries[Request], config: RecoveryConfig
    ) -> None:
        ensemble = metadata.last_fragment.bookies
        self.metadata = metadata
        """With the ensemble changes of this recovery."""
        self.is_short = False
        """True iff fewer than Qa bookies of a write set are left: never close short (rule 26)."""
        self.was_denied = False
        """Iff a bookie does not allow what is written back; the others will not either."""
        self._acks = AckTracker(metadata.quorum, ensemble, confirmed=base)
        self._last = base
        """Highest entry to write back."""
        self._change = EnsembleChange(self._acks, never=ensemble)
        self._choosing = False
        self._retries = retries
        self._tries_max = config.busy_attempts_max

    @property
    def confirmed(self) -> int:
        return self._acks.confirmed

    @property
    def all_confirmed(self) -> bool:
        """True iff all that was found so far is with Qa bookies, as they will be recorded."""
        return self._acks.confirmed == self._last and not self._choosing

    def send(self, first: int, last: int) -> list[RecoveryEffect]:
        """Write back *first*..*last*, which follow what was before."""
        self._last = last
        return self._sends(range(len(self._acks.slots)), first, last)

    def send_again(self, sent: WriteBack) -> list[RecoveryEffect]:
        """Send to a bookie that was busy what is still needed of it."""
        if not self._acks.is_current(sent.index, sent.generation):
            return []
        return self._sends([sent.index], max(sent.first, self.confirmed + 1), sent.last)

    def stored(self, event: WriteBackStored) -> list[RecoveryEffect]:
        self._acks.stored(event.index, event.generation, event.first, event.last)
        return self._advance()

    def refused(self, event: WriteBackRefused, now: float) -> list[RecoveryEffect]:
        slot = self._acks.slots[event.index]
        if slot.down or not self._acks.is_current(event.index, event.generation):
            return []
        if event.status is Status.TOO_MANY_REQUESTS:
            again = WriteBack(event.index, slot.bookie, event.generation, event.first, event.last)
            if self._retries.try_again(again, now, tries_max=self._tries_max):
                return []
        self.was_denied |= event.status is Status.ACCESS_DENIED
        self._change.fail(event.index, event.status)
        return [] if self._choosing else self._choose()

    def chosen(self, event: ReplacementsChosen) -> list[RecoveryEffect]:
        if not self._choosing:
            return []
        self._choosing = False
        if not event.bookies:
            self.is_short = not self._acks.quorum_is_up()
            return self._advance()
        self._change.replacing = dict(event.bookies)
        self.metadata = self._change.changed(self.metadata)
        effects = self._sends(self._change.put(), self.confirmed + 1, self._last)
        return effects + (self._choose() if self._change.failed else self._advance())

    def _choose(self) -> list[RecoveryEffect]:
        self._choosing = True
        return [self._change.choose()]

    def _sends(self, indexes: Iterable[int], first: int, last: int) -> list[RecoveryEffect]:
        return [
            WriteBack(index, slot.bookie, slot.generation, first, last)
            for index, slot in self._acks.takers(indexes, first, last)
        ]

    def _advance(self) -> list[RecoveryEffect]:
        before = self.confirmed
        if self._choosing or self._acks.advance(self._last) == before:
            return []  # as for the writer: nothing is confirmed while the ensemble changes
        return [ForgetEntries(self.confirmed)]
