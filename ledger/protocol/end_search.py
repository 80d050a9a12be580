"""The second phase of a recovery: read forward to the last entry, and know the length there.

Begins at the *base*, the highest entry that is known to be confirmed; asks every bookie of
the ensemble as it was when recovery began for what is above it, up to the first entry that
is provably absent. The base itself is read only for the length in its header.

The end is decided only with coverage of explicit negatives at the entry behind it (rule 43).
"""

from collections.abc import Mapping
from typing import Final

from ledger.ids import NO_ENTRY, EntryId
from ledger.metadata import LedgerMetadata
from ledger.protocol.recovery_events import (
    BaseRead,
    EntriesRead,
    ReadBase,
    RecoveryConfig,
    RecoveryEffect,
    Request,
    SendRead,
)
from ledger.protocol.retries import Retries
from ledger.quorum import covered, write_set

READ_AHEAD_ENTRIES: Final = 256
"""How far beyond the first undecided entry a recovery read asks."""


class EndSearch:
    def __init__(
        self,
        metadata: LedgerMetadata,
        base: int,
        gave_up: Mapping[int, None],
        retries: Retries[Request],
        config: RecoveryConfig,
    ) -> None:
        """*gave_up*: bookies that are not asked, they did not even answer to the fence."""
        self.last_found = EntryId(base)
        """Highest entry that is known to belong to the ledger."""
        self.length = 0 if base == NO_ENTRY else None
        """Cumulative length there; None as long as the base was not read."""
        self.end_found = False
        self.grace_until: float | None = None
        self._quorum = metadata.quorum
        self._ensemble = metadata.last_fragment.bookies
        self._base = base
        self._base_ensemble = metadata.fragment_of(max(base, 0)).bookies
        self._base_failed: dict[int, None] = {}
        # All about the first undecided entry, last_found + 1.
        self._reading: dict[int, int] = {}
        """index -> first id of the read under way"""
        self._found: dict[int, int] = {}
        """Found at or above the first undecided entry: id -> cumulative length."""
        self._considered: dict[int, int] = {}
        """index -> how far its silence is a promise"""
        self._unknown: dict[int, int] = {}
        """index -> the entry that it can neither give nor deny (it is in limbo)"""
        self._gave_up = dict(gave_up)
        self._retries = retries
        self._config = config

    @property
    def base(self) -> int:
        """The highest entry that is confirmed, as bookies have said."""
        return self._base

    @property
    def base_is_unreadable(self) -> bool:
        return self.length is None and len(self._base_failed) >= self._quorum.write

    @property
    def is_stuck(self) -> bool:
        """True iff nobody of the undecided entry's write set is left who could still decide."""
        undecided = self.last_found + 1
        return not covered(self._negatives(), undecided, self._quorum) and all(
            index in self._gave_up or self._has_answered(index, undecided)
            for index in write_set(undecided, self._quorum)
        )

    def start(self) -> list[RecoveryEffect]:
        effects: list[RecoveryEffect] = [*self._read_ahead()]
        if self.length is None:
            effects += [
                ReadBase(index, self._base_ensemble[index], self._base)
                for index in write_set(self._base, self._quorum)
            ]
        return effects

    def heard(self, event: EntriesRead, now: float) -> bool:
        """Take note of what a bookie knows; return False if it was not asked."""
        if self._reading.get(event.index) != event.first:
            return False
        del self._reading[event.index]
        for entry_id, length in event.found.items():
            if entry_id > self.last_found:
                self._found[entry_id] = length
        if event.answered and event.considered >= event.first:
            before = self._considered.get(event.index, -1)
            self._considered[event.index] = max(event.considered, before)
            self._retries.succeeded(SendRead, event.index)
        elif event.unknown:
            self._unknown[event.index] = event.first
            self._retries.succeeded(SendRead, event.index)
        elif not self.end_found:
            again = self._read(event.index, event.first)
            tries_max = self._config.attempts_max
            if self._retries.try_again(again, now, tries_max=tries_max):
                self._reading[event.index] = event.first
            else:
                self._gave_up[event.index] = None
        return True

    def heard_base(self, event: BaseRead, now: float) -> None:
        if self.length is not None:
            return
        self.length = event.length
        if event.length is None:
            again = ReadBase(event.index, self._base_ensemble[event.index], self._base)
            if not self._retries.try_again(again, now, tries_max=self._config.attempts_max):
                self._base_failed[event.index] = None

    def take_found(self) -> bool:
        """Move to the last entry found without a gap; return False if there is none more."""
        before = self.last_found
        while not self.end_found and self.last_found + 1 in self._found:
            self.last_found = EntryId(self.last_found + 1)
            self.length = self._found.pop(self.last_found)
            self.grace_until = None
        return self.last_found > before

    def decide_end(self, now: float) -> list[SendRead]:
        """Set `end_found`, or return what to ask to know more (rule 43)."""
        undecided = self.last_found + 1
        negatives = self._negatives()
        if not covered(negatives, undecided, self._quorum):
            return self._read_ahead()
        silent = [
            index
            for index in write_set(undecided, self._quorum)
            if index not in self._gave_up and not self._has_answered(index, undecided)
        ]
        if self._quorum.coverage == 1 and silent:
            # One bookie that forgot must not end the ledger while others may know better.
            if self.grace_until is None:
                self.grace_until = now + self._config.grace_s
            if now < self.grace_until:
                return self._read_ahead()
        self.grace_until = None
        self.end_found = True
        self._retries.forget(SendRead)
        return []

    def _has_answered(self, index: int, undecided: int) -> bool:
        """Whether the bookie has said all that it knows of the first undecided entry."""
        answered = max(self._considered.get(index, -1), self._unknown.get(index, -1))
        return answered >= undecided

    def _negatives(self) -> list[int]:
        """Return who promised not to have the first undecided entry."""
        return [index for index, upto in self._considered.items() if upto > self.last_found]

    def _read_ahead(self) -> list[SendRead]:
        """Ask every bookie that is idle for what it knows from the first undecided entry on."""
        effects = []
        undecided = self.last_found + 1
        for index in range(self._quorum.ensemble):
            if index in self._reading or index in self._gave_up:
                continue
            if self._has_answered(index, undecided):
                continue
            self._reading[index] = undecided
            effects.append(self._read(index, undecided))
        return effects

    def _read(self, index: int, first: int) -> SendRead:
        """Ask with the fence flag: an unfenced "no" may be untrue a moment later (rule 32)."""
        last = first + READ_AHEAD_ENTRIES - 1
        return SendRead(index, self._ensemble[index], first, last, fence=True)
