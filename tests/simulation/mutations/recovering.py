"""Bugs of a ledger's recovery."""

from collections.abc import Collection
from dataclasses import replace

from ledger.ids import EntryId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol import recovery_events, recovery_phases
from ledger.protocol.answers import Found
from ledger.protocol.common import ReplacementsChosen, WriteMetadata
from ledger.protocol.recovery import Recovery, RecoveryPhase
from ledger.protocol.recovery_events import (
    FinishRecovery,
    RecoveryEffect,
    RecoveryEntriesRead,
    RecoveryFailure,
    SendRecoveryRead,
    TailEvent,
)
from ledger.protocol.recovery_phases import EndSearch, Fencing, WriteBacks
from ledger.quorum import Quorum, write_set
from ledger.requests import LacAnswer, Status
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("#2908, rule 43")
def takes_an_error_for_absence(patch: Patch) -> None:
    honest = EndSearch.heard

    def heard(self: EndSearch, event: RecoveryEntriesRead, now: float) -> bool:
        if not event.answered:
            event = replace(event, answered=True, considered=event.first + 255)
        return honest(self, event, now)

    patch.set(EndSearch, "heard", heard)


@mutation("rule 44")
def ends_at_one_negative(patch: Patch) -> None:
    def covered(answered: Collection[int], entry_id: int, quorum: Quorum) -> bool:
        return any(index in answered for index in write_set(entry_id, quorum))

    patch.set(recovery_phases, "covered", covered)


@mutation("#1067, rule 44")
def waits_for_every_bookie(patch: Patch) -> None:
    def all_covered(answered: Collection[int], quorum: Quorum) -> bool:
        return len(answered) == quorum.ensemble

    patch.set(recovery_phases, "all_covered", all_covered)


@mutation("#2615, rule 41")
def begins_below_the_last_fragment(patch: Patch) -> None:
    honest = Recovery._begin_reading

    def begin_reading(self: Recovery, fenced: Fencing) -> list[RecoveryEffect]:
        real = self.metadata
        lac = fenced.last_add_confirmed
        if lac >= real.last_fragment.first_entry - 1:
            return honest(self, fenced)
        # As if the last fragment began right behind the highest LAC.
        last = replace(real.last_fragment, first_entry=EntryId(lac + 1))
        earlier = tuple(f for f in real.fragments[:-1] if f.first_entry <= lac)
        self.metadata = replace(real, fragments=(*earlier, last))
        effects = honest(self, fenced)
        self.metadata = real
        return effects

    patch.set(Recovery, "_begin_reading", begin_reading)


@mutation("BK-355, rule 42")
def reads_from_bookies_that_it_put_in(patch: Patch) -> None:
    honest = Recovery._read_on

    def read_on(self: Recovery, event: TailEvent, now: float) -> list[RecoveryEffect]:
        effects = honest(self, event, now)
        search, copies = self._search, self._copies
        if search is None or copies is None or self.phase is not RecoveryPhase.READING:
            return effects
        if not isinstance(event, ReplacementsChosen):
            return effects
        search._ensemble = copies._acks.bookies
        for index, _ in event.bookies:
            search._considered.pop(index, None)
            search._reading.pop(index, None)
            search._gave_up.pop(index, None)
        return effects if search.end_found else [*effects, *search._read_ahead()]

    patch.set(Recovery, "_read_on", read_on)


@mutation("rule 38")
def does_not_mark_the_ledger(patch: Patch) -> None:
    """TLA+ ClientStartsRecovery: the writer may change to bookies that are not fenced."""
    honest = Recovery._adopt

    def adopt(self: Recovery, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        if metadata.state is LedgerState.OPEN and self.phase is RecoveryPhase.NEW:
            self.metadata, self.version = metadata, version
            return self._begin_fencing()
        return honest(self, metadata, version)

    patch.set(Recovery, "_adopt", adopt)


@mutation("rule 45")
def closes_without_write_back(patch: Patch) -> None:
    def send(self: WriteBacks, first: int, last: int) -> list[RecoveryEffect]:
        for slot in self._acks.slots:
            slot.stored.add(first, last)
        self._last = self._acks.advance(last)
        return []

    patch.set(WriteBacks, "send", send)


@mutation("rule 46")
def records_its_ensemble_changes_before_the_close(patch: Patch) -> None:
    read_on, written, close = (
        Recovery._read_on,
        Recovery._metadata_written,
        Recovery._try_close,
    )
    writing: dict[int, LedgerMetadata] = {}

    def eager(self: Recovery, event: TailEvent, now: float) -> list[RecoveryEffect]:
        effects = read_on(self, event, now)
        chosen = isinstance(event, ReplacementsChosen) and event.bookies
        if not chosen or self.phase is not RecoveryPhase.READING or id(self) in writing:
            return effects
        assert self._copies is not None
        writing[id(self)] = self._copies.metadata
        return [*effects, WriteMetadata(self._copies.metadata, self.version)]

    def noted(self: Recovery, version: int) -> list[RecoveryEffect]:
        if id(self) not in writing:
            return written(self, version)
        self.metadata, self.version = writing.pop(id(self)), version
        assert self._search is not None
        assert self._copies is not None
        return self._try_close(self._search, self._copies)

    def patient(self: Recovery, search: EndSearch, copies: WriteBacks) -> list[RecoveryEffect]:
        return [] if id(self) in writing else close(self, search, copies)

    patch.set(Recovery, "_read_on", eager)
    patch.set(Recovery, "_metadata_written", noted)
    patch.set(Recovery, "_try_close", patient)


@mutation("rule 47")
def believes_its_own_end_when_another_closed(patch: Patch) -> None:
    honest = Recovery._adopt

    def adopt(self: Recovery, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        if self.phase is RecoveryPhase.CLOSING and metadata.state is LedgerState.CLOSED:
            assert self._closing is not None
            self.phase = RecoveryPhase.DONE
            return [FinishRecovery(self._closing, version)]
        return honest(self, metadata, version)

    patch.set(Recovery, "_adopt", adopt)


@mutation("rule 4")
def closes_again_what_another_closed(patch: Patch) -> None:
    honest = Recovery._adopt

    def adopt(self: Recovery, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        if self.phase is RecoveryPhase.CLOSING and metadata.state is LedgerState.CLOSED:
            assert self._closing is not None
            return [WriteMetadata(self._closing, version)]
        return honest(self, metadata, version)

    patch.set(Recovery, "_adopt", adopt)


@mutation("BK-150, rule 26")
def closes_short_when_bookies_are_few(patch: Patch) -> None:
    honest = Recovery._fail

    def fail(self: Recovery, failure: RecoveryFailure) -> list[RecoveryEffect]:
        search, copies = self._search, self._copies
        if failure is not RecoveryFailure.NOT_ENOUGH_BOOKIES or search is None or copies is None:
            return honest(self, failure)
        if not search.length:
            return honest(self, failure)
        search.last_found = EntryId(copies.confirmed)
        search.end_found = True
        return self._close()

    patch.set(Recovery, "_fail", fail)


@mutation("rule 48")
def closes_where_it_cannot_decide(patch: Patch) -> None:
    honest = Recovery._fail

    def fail(self: Recovery, failure: RecoveryFailure) -> list[RecoveryEffect]:
        if failure is not RecoveryFailure.UNDECIDED:
            return honest(self, failure)
        assert self._search is not None
        self._search.end_found = True
        return []

    patch.set(Recovery, "_fail", fail)


@mutation("rule 49")
def takes_the_length_of_the_highest_entry_seen(patch: Patch) -> None:
    honest = Recovery._close

    def close(self: Recovery) -> list[RecoveryEffect]:
        assert self._search is not None
        lengths = self._search._found.values()
        self._search.length = max([self._search.length or 0, *lengths])
        return honest(self)

    patch.set(Recovery, "_close", close)


@mutation("#3783, rule 45")
def writes_back_to_one_bookie_only(patch: Patch) -> None:
    honest = WriteBacks._advance

    def advance(self: WriteBacks) -> list[RecoveryEffect]:
        ends = [slot.stored.end_from(self._acks.confirmed + 1) for slot in self._acks.slots]
        for slot in self._acks.slots:
            slot.stored.add(self._acks.confirmed + 1, max(ends))
        return honest(self)

    patch.set(WriteBacks, "_advance", advance)


def _reads_without_the_fence(patch: Patch) -> None:
    honest = EndSearch._read

    def read(self: EndSearch, index: int, first: int) -> SendRecoveryRead:
        return replace(honest(self, index, first), fence=False)

    def entries_read(asked: SendRecoveryRead, found: Found) -> RecoveryEntriesRead:
        answered = found.status in {Status.OK, Status.NO_SUCH_LEDGER}
        lengths = {entry: header.length for entry, header in found.headers.items()}
        absent = found.status is Status.NO_SUCH_LEDGER
        considered = asked.last if absent else found.considered
        return RecoveryEntriesRead(asked.index, asked.first, answered, lengths, considered)

    patch.set(EndSearch, "_read", read)
    patch.set(recovery_events, "entries_read", entries_read)


@mutation("#2614, rule 32")
def reads_entries_without_the_fence(patch: Patch) -> None:
    _reads_without_the_fence(patch)


# The next two come with unfenced reads, for by themselves they can do no harm. Proof, for a
# recovery whose entry reads fence, whatever its fencing phase believed:
#
# Let e be the entry at which it ends the ledger: it closes at e - 1. W is the write set of e in
# the last fragment as recorded when the ledger became IN_RECOVERY; from then on no writer's
# ensemble change succeeds (its CAS meets a newer version), so W is where the writer must
# store e, for ever. `decide_end` demands answers from Qw - Qa + 1 members of W that do not have e,
# and `entries_read` counts only answers that say that the fence was durable before the look.
# (1) e is never acknowledged. Each of those members takes no add of the writer after its answer and
#     had not stored e before it. At most Qw - (Qw - Qa + 1) = Qa - 1 members of W are left.
# (2) e was not acknowledged before either: Qa members of W would have had it durably, and Qa and
#     Qw - Qa + 1 members of a set of Qw always share one, which would have answered with e.
# (3) No later entry is acknowledged: a writer confirms in order (rule 7), so e comes first.
# (4) No earlier entry is skipped: reading begins at max(highest LAC heard, first entry of the
#     fragment - 1) + 1. A LAC is proven by the writer's own frame, so all up to it is acknowledged;
#     fencing too few, or none, only means to hear of a lower LAC and to read more. Every entry
#     between was found by its frame, and written back to Qa before the close.
# So the fencing phase decides nothing: it finds a good place to begin, and fails early where a
# recovery could not end. The fences that safety needs are taken by the reads. Where reads do not
# fence (#2614, above) all rests on that phase, and each of the two is a bug.


@mutation("BK-799, rule 40")
def counts_an_error_as_fenced(patch: Patch) -> None:
    def certain(_answer: LacAnswer) -> bool:
        return True

    _reads_without_the_fence(patch)
    patch.set(recovery_events, "fence_is_certain", certain)


@mutation("BK-759, rule 39")
def counts_fenced_bookies_over_the_whole_ensemble(patch: Patch) -> None:
    def all_covered(answered: Collection[int], quorum: Quorum) -> bool:
        return len(answered) >= quorum.coverage

    _reads_without_the_fence(patch)
    patch.set(recovery_phases, "all_covered", all_covered)
