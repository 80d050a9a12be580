"""The phases of a recovery: fencing; then the search for the end, and writing back what is found.

Fencing goes to the last ensemble until every write set is covered. The search begins at the *base*,
the highest entry that is known to be confirmed; asks every bookie of the ensemble as it was when
recovery began for what is above it, up to the first entry that is provably absent. The base itself
is read only for the length in its header. The end is decided only with coverage of explicit
negatives at the entry behind it (rule 43).

What is found is written to Qa bookies, verbatim. A bookie that fails is replaced. These ensemble
changes stay local until the closing CAS records them (rule 46), and nobody is read from a bookie
that was put in (rule 42). Entries are confirmed in order, and never beyond what was found.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ledger.ids import NO_ENTRY, BookieId, EntryId
from ledger.metadata import LedgerMetadata
from ledger.protocol.acks import AckTracker
from ledger.protocol.common import ReplacementsChosen, Retries
from ledger.protocol.ensemble_change import EnsembleChange
from ledger.protocol.recovery_events import (
    BaseRead,
    ForgetEntries,
    LacRead,
    ReadBase,
    RecoveryConfig,
    RecoveryEffect,
    RecoveryEntriesRead,
    Request,
    SendFence,
    SendRecoveryRead,
    WriteBack,
    WriteBackRefused,
    WriteBackStored,
)
from ledger.quorum import Quorum, all_covered, covered, write_set
from ledger.requests import Status

READ_AHEAD_ENTRIES: Final = 256
"""How far beyond the first undecided entry a recovery read asks."""


class Fencing:
    def __init__(
        self,
        ensemble: tuple[BookieId, ...],
        quorum: Quorum,
        retries: Retries[Request],
        tries_max: int,
    ) -> None:
        self.gave_up: dict[int, None] = {}
        """Indexes of bookies that are not asked any more."""
        self.met_stranger = False
        """Iff a bookie has the ledger under another key. It says nothing about this one, now or
        later, so it counts as silent."""
        self.was_denied = False
        """Iff a bookie does not allow it; asked again soon, it says the same."""
        self._fenced: dict[int, int] = {}
        """index -> LAC it proved"""
        self._ensemble = ensemble
        self._quorum = quorum
        self._retries = retries
        self._tries_max = tries_max

    @property
    def is_covered(self) -> bool:
        """True iff no add that is not fenced can be confirmed any more (rule 39)."""
        return all_covered(self._fenced, self._quorum)

    @property
    def is_hopeless(self) -> bool:
        """True iff too few are left to cover every write set."""
        left = [index for index in range(self._quorum.ensemble) if index not in self.gave_up]
        return not all_covered(left, self._quorum)

    @property
    def last_add_confirmed(self) -> int:
        return max(self._fenced.values())

    @property
    def claimants(self) -> tuple[BookieId, ...]:
        """Who proved the highest last add confirmed."""
        highest = self.last_add_confirmed
        return tuple(self._ensemble[each] for each, lac in self._fenced.items() if lac == highest)

    def start(self) -> list[SendFence]:
        return [SendFence(index, bookie) for index, bookie in enumerate(self._ensemble)]

    def heard(self, event: LacRead, now: float) -> None:
        if event.fenced:
            self._fenced[event.index] = event.last_add_confirmed
            return
        if event.status in {Status.WRONG_KEY, Status.ACCESS_DENIED}:
            self.met_stranger |= event.status is Status.WRONG_KEY
            self.was_denied |= event.status is Status.ACCESS_DENIED
            self.gave_up[event.index] = None
            return
        again = SendFence(event.index, self._ensemble[event.index])
        if not self._retries.try_again(again, now, tries_max=self._tries_max):
            self.gave_up[event.index] = None


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

    def heard(self, event: RecoveryEntriesRead, now: float) -> bool:
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
            self._retries.succeeded(SendRecoveryRead, event.index)
        elif event.unknown:
            self._unknown[event.index] = event.first
            self._retries.succeeded(SendRecoveryRead, event.index)
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

    def decide_end(self, now: float) -> list[SendRecoveryRead]:
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
        self._retries.forget(SendRecoveryRead)
        return []

    def _has_answered(self, index: int, undecided: int) -> bool:
        """Whether the bookie has said all that it knows of the first undecided entry."""
        answered = max(self._considered.get(index, -1), self._unknown.get(index, -1))
        return answered >= undecided

    def _negatives(self) -> list[int]:
        """Return who promised not to have the first undecided entry."""
        return [index for index, upto in self._considered.items() if upto > self.last_found]

    def _read_ahead(self) -> list[SendRecoveryRead]:
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

    def _read(self, index: int, first: int) -> SendRecoveryRead:
        """Ask with the fence flag: an unfenced "no" may be untrue a moment later (rule 32)."""
        last = first + READ_AHEAD_ENTRIES - 1
        return SendRecoveryRead(index, self._ensemble[index], first, last, fence=True)


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
