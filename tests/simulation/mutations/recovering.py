"""Bugs of a ledger's recovery."""

from collections.abc import Callable, Collection
from dataclasses import replace

from ledger.ids import BookieId, EntryId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol import recovery
from ledger.protocol.answers import Found
from ledger.protocol.recovery import (
    EntriesRead,
    Failure,
    FinishRecovery,
    Phase,
    Recovery,
    RecoveryEffect,
    SendRead,
)
from ledger.protocol.shared import (
    ReplacementsChosen,
    WriteMetadata,
)
from ledger.quorum import Quorum, write_set
from ledger.requests import LacAnswer, ReadAnswer, ReadQuery, Status
from tests.simulation.client import Client
from tests.simulation.mutations.mutation import Patch, mutation
from tests.simulation.recovering import RecoveringClient


@mutation("#2908, rule 43")
def takes_an_error_for_absence(patch: Patch) -> None:
    honest = Recovery._entries_read

    def entries_read(self: Recovery, event: EntriesRead, now: float) -> list[RecoveryEffect]:
        if not event.answered:
            event = replace(event, answered=True, considered=event.first + 255)
        return honest(self, event, now)

    patch.set(Recovery, "_entries_read", entries_read)


@mutation("rule 44")
def ends_at_one_negative(patch: Patch) -> None:
    def covered(answered: Collection[int], entry_id: int, quorum: Quorum) -> bool:
        return any(index in answered for index in write_set(entry_id, quorum))

    patch.set(recovery, "covered", covered)


@mutation("#1067, rule 44")
def waits_for_every_bookie(patch: Patch) -> None:
    def all_covered(answered: Collection[int], quorum: Quorum) -> bool:
        return len(answered) == quorum.ensemble

    patch.set(recovery, "all_covered", all_covered)


@mutation("#2615, rule 41")
def begins_below_the_last_fragment(patch: Patch) -> None:
    honest = Recovery._begin_reading

    def begin_reading(self: Recovery) -> list[RecoveryEffect]:
        real = self.metadata
        lac = max(self._fenced.values())
        if lac >= real.last_fragment.first_entry - 1:
            return honest(self)
        # As if the last fragment began right behind the highest LAC.
        last = replace(real.last_fragment, first_entry=EntryId(lac + 1))
        earlier = tuple(f for f in real.fragments[:-1] if f.first_entry <= lac)
        self.metadata = replace(real, fragments=(*earlier, last))
        effects = honest(self)
        self.metadata = real
        return effects

    patch.set(Recovery, "_begin_reading", begin_reading)


@mutation("BK-355, rule 42")
def reads_from_bookies_that_it_put_in(patch: Patch) -> None:
    honest = Recovery._replacements_chosen

    def chosen(self: Recovery, event: ReplacementsChosen) -> list[RecoveryEffect]:
        effects = honest(self, event)
        if self._acks is None or self.phase is not Phase.READING:
            return effects
        self._ensemble = self._acks.bookies
        for index, _ in event.bookies:
            self._considered.pop(index, None)
            self._reading.pop(index, None)
            self._gave_up.pop(index, None)
        return effects if self._end_found else effects + self._read_ahead()

    patch.set(Recovery, "_replacements_chosen", chosen)


@mutation("rule 38")
def does_not_mark_the_ledger(patch: Patch) -> None:
    """TLA+ ClientStartsRecovery: the writer may change to bookies that are not fenced."""
    honest = Recovery._adopt

    def adopt(self: Recovery, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        if metadata.state is LedgerState.OPEN and self.phase is Phase.NEW:
            self.metadata, self.version = metadata, version
            return self._begin_fencing()
        return honest(self, metadata, version)

    patch.set(Recovery, "_adopt", adopt)


@mutation("rule 45")
def closes_without_write_back(patch: Patch) -> None:
    def write_back(self: Recovery, _indexes: range | list[int], first: int) -> list[RecoveryEffect]:
        assert self._acks is not None
        for slot in self._acks.slots:
            slot.stored.add(first, self.last_found)
        self._acks.advance(self.last_found)
        return []

    patch.set(Recovery, "_write_back", write_back)


@mutation("rule 46")
def records_its_ensemble_changes_before_the_close(patch: Patch) -> None:
    chosen, written, close = (
        Recovery._replacements_chosen,
        Recovery._metadata_written,
        Recovery._try_close,
    )
    writing: dict[int, LedgerMetadata] = {}

    def eager(self: Recovery, event: ReplacementsChosen) -> list[RecoveryEffect]:
        effects = chosen(self, event)
        reading = self.phase is Phase.READING and self._local is not None
        if not event.bookies or not reading or id(self) in writing:
            return effects
        assert self._local is not None
        writing[id(self)] = self._local
        return [*effects, WriteMetadata(self._local, self.version)]

    def noted(self: Recovery, version: int) -> list[RecoveryEffect]:
        if id(self) not in writing:
            return written(self, version)
        self.metadata, self.version = writing.pop(id(self)), version
        return self._try_close()

    def patient(self: Recovery) -> list[RecoveryEffect]:
        return [] if id(self) in writing else close(self)

    patch.set(Recovery, "_replacements_chosen", eager)
    patch.set(Recovery, "_metadata_written", noted)
    patch.set(Recovery, "_try_close", patient)


@mutation("rule 47")
def believes_its_own_end_when_another_closed(patch: Patch) -> None:
    honest = Recovery._adopt

    def adopt(self: Recovery, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        if self.phase is Phase.CLOSING and metadata.state is LedgerState.CLOSED:
            assert self._closing is not None
            self.phase = Phase.DONE
            return [FinishRecovery(self._closing, version)]
        return honest(self, metadata, version)

    patch.set(Recovery, "_adopt", adopt)


@mutation("rule 4")
def closes_again_what_another_closed(patch: Patch) -> None:
    honest = Recovery._adopt

    def adopt(self: Recovery, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        if self.phase is Phase.CLOSING and metadata.state is LedgerState.CLOSED:
            assert self._closing is not None
            return [WriteMetadata(self._closing, version)]
        return honest(self, metadata, version)

    patch.set(Recovery, "_adopt", adopt)


@mutation("BK-150, rule 26")
def closes_short_when_bookies_are_few(patch: Patch) -> None:
    honest = Recovery._fail

    def fail(self: Recovery, failure: Failure) -> list[RecoveryEffect]:
        if failure is not Failure.NOT_ENOUGH_BOOKIES or self._acks is None or not self._length:
            return honest(self, failure)
        self.last_found = EntryId(self._acks.confirmed)
        self._end_found = True
        return self._close()

    patch.set(Recovery, "_fail", fail)


@mutation("rule 48")
def closes_where_it_cannot_decide(patch: Patch) -> None:
    honest = Recovery._decide_end

    def decide_end(self: Recovery, now: float) -> list[RecoveryEffect]:
        undecided = self.last_found + 1
        if self._gave_up and self._is_stuck(undecided):
            self._end_found = True
            return []
        return honest(self, now)

    patch.set(Recovery, "_decide_end", decide_end)


@mutation("rule 49")
def takes_the_length_of_the_highest_entry_seen(patch: Patch) -> None:
    honest = Recovery._close

    def close(self: Recovery) -> list[RecoveryEffect]:
        self._length = max([self._length or 0, *self._found.values()])
        return honest(self)

    patch.set(Recovery, "_close", close)


@mutation("#3783, rule 45")
def writes_back_to_one_bookie_only(patch: Patch) -> None:
    honest = Recovery._advance

    def advance(self: Recovery) -> list[RecoveryEffect]:
        assert self._acks is not None
        ends = [slot.stored.end_from(self._acks.confirmed + 1) for slot in self._acks.slots]
        for slot in self._acks.slots:
            slot.stored.add(self._acks.confirmed + 1, max(ends))
        return honest(self)

    patch.set(Recovery, "_advance", advance)


def _reads_without_the_fence(patch: Patch) -> None:
    def read(
        self: RecoveringClient,
        bookie: BookieId,
        query: ReadQuery,
        on_done: Callable[[ReadAnswer], None],
    ) -> None:
        Client.read(self, bookie, replace(query, fence=False), on_done)

    def entries_read(asked: SendRead, found: Found) -> EntriesRead:
        answered = found.status in {Status.OK, Status.NO_SUCH_LEDGER}
        lengths = {entry: header.length for entry, header in found.headers.items()}
        absent = found.status is Status.NO_SUCH_LEDGER
        considered = asked.last if absent else found.considered
        return EntriesRead(asked.index, asked.first, answered, lengths, considered)

    patch.set(RecoveringClient, "read", read)
    patch.set(recovery, "entries_read", entries_read)


@mutation("#2614, rule 32")
def reads_entries_without_the_fence(patch: Patch) -> None:
    _reads_without_the_fence(patch)


# The next two are harmless where entry reads fence, as they do here: whatever is decided is
# decided by fenced bookies of its own write set. So they come with unfenced reads.


@mutation("BK-799, rule 40")
def counts_an_error_as_fenced(patch: Patch) -> None:
    def certain(_answer: LacAnswer) -> bool:
        return True

    _reads_without_the_fence(patch)
    patch.set(recovery, "fence_is_certain", certain)


@mutation("BK-759, rule 39")
def counts_fenced_bookies_over_the_whole_ensemble(patch: Patch) -> None:
    def all_covered(answered: Collection[int], quorum: Quorum) -> bool:
        return len(answered) >= quorum.coverage

    _reads_without_the_fence(patch)
    patch.set(recovery, "all_covered", all_covered)
