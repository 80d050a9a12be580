"""Bugs of a ledger's writer."""

from dataclasses import replace

from ledger.ids import BookieId, EntryId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.acks import AckTracker
from ledger.protocol.common import (
    MetadataRead,
    WriteMetadata,
)
from ledger.protocol.writer import Writer, WriterPhase
from ledger.protocol.writer_events import (
    AddsRefused,
    ConfirmAdds,
    PublishLac,
    SendAdds,
    WriterEffect,
)
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("rule 7")
def confirms_with_one_ack_less(patch: Patch) -> None:
    def first_missing(self: AckTracker, residue: int, ends: list[int], start: int) -> int:
        stored = sorted((ends[index] for index in self._write_sets[residue]), reverse=True)
        after = max(stored[max(0, self.quorum.ack - 2)] + 1, start)
        return after + (residue - after) % self.quorum.ensemble

    patch.set(AckTracker, "_first_missing", first_missing)


@mutation("rule 7")
def confirms_out_of_order(patch: Patch) -> None:
    def advance(self: AckTracker, pushed: int) -> int:
        for entry in range(self.confirmed + 1, pushed + 1):
            indexes = self._write_sets[entry % self.quorum.ensemble]
            if sum(entry in self.slots[index].stored for index in indexes) >= self.quorum.ack:
                self.confirmed = entry
        return self.confirmed

    patch.set(AckTracker, "advance", advance)


@mutation("rule 8")
def counts_acks_of_replaced_bookies(patch: Patch) -> None:
    def stored(self: AckTracker, index: int, generation: int, first: int, last: int) -> None:
        self.slots[index].stored.add(first, last)

    def unchecked(
        self: Writer, index: int, generation: int, first: int, last: int, now: float
    ) -> list[WriterEffect]:
        self._acks.stored(index, generation, first, last)
        return self._progress(now)

    patch.set(AckTracker, "stored", stored)
    patch.set(Writer, "stored", unchecked)


@mutation("#3005, rule 22")
def keeps_acks_when_it_replaces(patch: Patch) -> None:
    honest = AckTracker.replace

    def keep(self: AckTracker, index: int, bookie: BookieId) -> None:
        before = self.slots[index].stored
        honest(self, index, bookie)
        self.slots[index].stored = before

    patch.set(AckTracker, "replace", keep)


@mutation("#1591, rule 19")
def delivers_acks_during_the_ensemble_cas(patch: Patch) -> None:
    honest = Writer._progress

    def progress(self: Writer, now: float) -> list[WriterEffect]:
        if self.phase is not WriterPhase.CHANGING:
            return honest(self, now)
        before = self._acks.confirmed
        if self._acks.advance(self.last_add_pushed) == before:
            return []
        return [ConfirmAdds(self.last_add_confirmed)]

    patch.set(Writer, "_progress", progress)


def _begins_new_fragment(patch: Patch, behind_confirmed: int) -> None:
    def write_change(self: Writer) -> WriteMetadata:
        ensemble = list(self.metadata.last_fragment.bookies)
        for index, bookie in self._change.replacing.items():
            ensemble[index] = bookie
        begin = max(
            self.metadata.last_fragment.first_entry, self.last_add_confirmed + behind_confirmed
        )
        changed = self.metadata.with_ensemble(EntryId(begin), tuple(ensemble))
        return WriteMetadata(changed, self.version)

    patch.set(Writer, "_write_change", write_change)


@mutation("#4097, rule 19")
def begins_the_new_fragment_at_a_stale_lac(patch: Patch) -> None:
    _begins_new_fragment(patch, 0)


@mutation("#4194, rule 19")
def begins_the_new_fragment_behind_what_is_pending(patch: Patch) -> None:
    _begins_new_fragment(patch, 2)


@mutation("#4459, rule 23")
def sends_again_by_the_difference_of_ensembles(patch: Patch) -> None:
    """A, then C, then A again at one index: no difference, so nothing is sent again."""
    honest = Writer._change_recorded
    seen: dict[tuple[int, int, BookieId], None] = {}

    def recorded(
        self: Writer, metadata: LedgerMetadata, version: int, now: float
    ) -> list[WriterEffect]:
        for index, slot in enumerate(self._acks.slots):
            seen[id(self), index, slot.bookie] = None
        effects = honest(self, metadata, version, now)
        return [
            effect
            for effect in effects
            if not isinstance(effect, SendAdds)
            or (id(self), effect.index, effect.bookie) not in seen
        ]

    patch.set(Writer, "_change_recorded", recorded)


@mutation("#1390, rule 24")
def forgets_a_failure_during_an_ensemble_change(patch: Patch) -> None:
    honest = Writer._refused

    def refused(self: Writer, event: AddsRefused, now: float) -> list[WriterEffect]:
        return [] if self.phase is WriterPhase.CHANGING else honest(self, event, now)

    patch.set(Writer, "_refused", refused)


@mutation("rule 25")
def changes_the_ensemble_over_a_recovery(patch: Patch) -> None:
    honest = Writer._metadata_read

    def metadata_read(self: Writer, event: MetadataRead, now: float) -> list[WriterEffect]:
        stored = event.metadata
        if stored is not None and stored.state is LedgerState.IN_RECOVERY:
            event = replace(event, metadata=replace(stored, state=LedgerState.OPEN))
        return honest(self, event, now)

    patch.set(Writer, "_metadata_read", metadata_read)


@mutation("rule 51")
def closes_with_adds_pending(patch: Patch) -> None:
    honest = Writer._progress

    def progress(self: Writer, now: float) -> list[WriterEffect]:
        if not self._close_requested or self.phase is not WriterPhase.OPEN:
            return honest(self, now)
        self._acks.confirmed = self.last_add_pushed
        return [ConfirmAdds(self.last_add_confirmed), *self._begin_close()]

    patch.set(Writer, "_progress", progress)


@mutation("rule 16")
def tells_a_lac_above_what_it_acknowledged(patch: Patch) -> None:
    honest = Writer.append

    def append(self: Writer, count: int, payload_bytes: int, now: float) -> list[WriterEffect]:
        effects = honest(self, count, payload_bytes, now)
        return [*effects, PublishLac(self.last_add_pushed, self.length, self._acks.bookies)]

    patch.set(Writer, "append", append)


@mutation("rule 27")
def goes_on_without_an_ack_quorum(patch: Patch) -> None:
    """A delayed ensemble change that is delayed for ever: nothing is confirmed any more."""

    def quorum_is_up(_self: AckTracker) -> bool:
        return True

    patch.set(AckTracker, "quorum_is_up", quorum_is_up)


@mutation("rule 27")
def confirms_with_those_that_are_left(patch: Patch) -> None:
    """While a change is delayed, whoever is down counts as if it had stored everything."""
    honest = AckTracker._first_missing

    def first_missing(self: AckTracker, residue: int, ends: list[int], start: int) -> int:
        reached = max(ends)
        kept = [reached if self.slots[i].down else end for i, end in enumerate(ends)]
        return honest(self, residue, kept, start)

    patch.set(AckTracker, "_first_missing", first_missing)
