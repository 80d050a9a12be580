"""Bugs of the machine of a log's writer: what it does in the wrong phase, or forgets in one."""

from typing import Final

from dlog.protocol.accumulator import RecordAccumulator
from dlog.protocol.log_writer import LogWriterPhase, Writing, _closed_empty
from dlog.protocol.log_writer_events import (
    Answer,
    CloseSegment,
    LeaveUnknown,
    LetGo,
    Refuse,
    Reopened,
    RollStepped,
    WritingEffect,
)
from dlog.protocol.roll import LedgerCreated
from ledger.errors import LogError
from ledger.ids import LedgerId
from tests.simulation.mutations.mutation import Patch, mutation

_UNIT: Final = "tests/dlog/protocol/test_writing.py"
_AGAIN: Final = (
    "test_reopening_that_does_not_help_is_repeated_later_each_time_until_its_time_is_over"
)


def _sends_in(patch: Patch, phase: LogWriterPhase) -> None:
    honest = Writing._send

    def send(self: Writing) -> list[WritingEffect]:
        if self.phase is not phase:
            return honest(self)
        self.phase = LogWriterPhase.APPENDING
        effects = honest(self)
        self.phase = phase
        return effects

    patch.set(Writing, "_send", send)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_nothing_is_sent_while_a_roll_holds",
)
def sends_while_a_roll_holds(patch: Patch) -> None:
    """No record is lost by that: the switch only waits for longer, for ever under load."""
    _sends_in(patch, LogWriterPhase.HOLDING)


@mutation("", logs=True, test=f"{_UNIT}::test_nothing_is_sent_or_confirmed_while_it_reopens")
def sends_while_it_reopens(patch: Patch) -> None:
    """To a ledger that it has let go of."""
    _sends_in(patch, LogWriterPhase.REOPENING)


@mutation("", logs=True, drawn=False, test=f"{_UNIT}::{_AGAIN}")
def reopens_again_and_again_without_progress(patch: Patch) -> None:
    """Each time a new ledger, for ever. Not drawn: simulated trouble passes."""
    honest = Writing._may_reopen

    def may_reopen(self: Writing, error: LogError, now: float) -> bool:
        self._reopen_by = None
        return honest(self, error, now)

    patch.set(Writing, "_may_reopen", may_reopen)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::{_AGAIN}",
)
def gives_up_when_a_reopening_did_not_help(patch: Patch) -> None:
    """Bookies that restart are there, are gone, and there again: it ended within a second. Not
    drawn: a leader that ends is replaced."""
    honest = Writing._may_reopen

    def may_reopen(self: Writing, error: LogError, now: float) -> bool:
        helped = self.confirmed_offset > self._reopened_offset
        return honest(self, error, now) and (helped or _closed_empty(error))

    patch.set(Writing, "_may_reopen", may_reopen)


@mutation("", logs=True, drawn=False, test=f"{_UNIT}::{_AGAIN}")
def reopens_again_at_once(patch: Patch) -> None:
    """A segment for each round trip. Not drawn: it is right, but a load on everybody."""
    honest = Writing._reopen

    def reopen(self: Writing, error: LogError, now: float) -> list[WritingEffect]:
        effects = honest(self, error, now)
        self._reopen_at = now
        return effects

    patch.set(Writing, "_reopen", reopen)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_who_reopens_again_waits_and_lets_go_before_the_log_is_taken_over",
)
def takes_over_before_it_has_let_go(patch: Patch) -> None:
    """Not drawn: a ledger that is let go of answers at once there."""
    honest = Writing._take_over_if_due

    def take_over_if_due(self: Writing, now: float) -> list[WritingEffect]:
        letting_go, self._letting_go = self._letting_go, 0
        effects = honest(self, now)
        self._letting_go = letting_go
        return effects

    patch.set(Writing, "_take_over_if_due", take_over_if_due)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_trouble_of_a_log_that_had_nothing_to_send_since_it_reopened_is_new",
)
def takes_new_trouble_for_that_of_long_ago(patch: Patch) -> None:
    """The writer of a quiet log ends at its second trouble. Not drawn: as above."""
    honest = Writing._reopened

    def reopened(self: Writing, event: Reopened, now: float) -> list[WritingEffect]:
        by = self._reopen_by
        effects = honest(self, event, now)
        self._reopen_by = by
        return effects

    patch.set(Writing, "_reopened", reopened)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_reopening_that_takes_too_long_ends_the_writer_with_the_last_trouble",
)
def reopens_for_as_long_as_it_takes(patch: Patch) -> None:
    """Not drawn: it is right, but later than was promised."""
    honest = Writing._take_over_if_due

    def take_over_if_due(self: Writing, now: float) -> list[WritingEffect]:
        if self.phase is LogWriterPhase.REOPENING:
            self._reopen_by = now + 1e9
        return honest(self, now)

    patch.set(Writing, "_take_over_if_due", take_over_if_due)


@mutation(
    "",
    logs=True,
    test=f"{_UNIT}::test_reopening_confirms_what_the_log_holds_and_sends_the_rest_again",
)
def confirms_one_group_beyond_the_recovered_end(patch: Patch) -> None:
    honest = Writing._reopened

    def reopened(self: Writing, event: Reopened, now: float) -> list[WritingEffect]:
        end, packer = event.manifest.sealed_end, self._packer
        effects: list[WritingEffect] = []
        while packer.in_flight and self.confirmed_offset + packer.oldest.count <= end:
            effects.append(self._confirm())
        if packer.in_flight:
            effects.append(self._confirm())
        self.confirmed_offset = end
        return effects + honest(self, event, now)

    patch.set(Writing, "_reopened", reopened)


@mutation(
    "",
    logs=True,
    test=f"{_UNIT}"
    "::test_what_was_in_flight_is_unknown_by_its_offset_and_the_rest_certainly_not_appended",
)
def calls_certainly_lost_what_may_be_kept(patch: Patch) -> None:
    honest = Writing._outcomes

    def outcomes(self: Writing, error: LogError, ended: LogError) -> list[WritingEffect]:
        return [
            Refuse(effect.batch, ended) if isinstance(effect, LeaveUnknown) else effect
            for effect in honest(self, error, ended)
        ]

    patch.set(Writing, "_outcomes", outcomes)


@mutation(
    "",
    logs=True,
    test=f"{_UNIT}::test_flushes_that_wait_fail_with_what_ends_the_writer_and_so_do_later_ones",
)
def forgets_who_waits_for_a_flush_when_it_ends(patch: Patch) -> None:
    honest = Writing._end

    def end(self: Writing, error: LogError, *own: LedgerId) -> list[WritingEffect]:
        effects = honest(self, error, *own)
        return [effect for effect in effects if not isinstance(effect, Answer)]

    patch.set(Writing, "_end", end)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_closing_confirms_what_is_pending_first_and_takes_nothing_more",
)
def takes_records_while_it_closes(patch: Patch) -> None:
    """What is taken while the end is recorded is behind it, and nobody answers for it. No seed of
    2,459 appends in that moment."""
    patch.set(RecordAccumulator, "shut", lambda _self, _answer: None)


@mutation(
    "", logs=True, drawn=False, test=f"{_UNIT}::test_a_roll_that_was_under_way_is_done_by_reopening"
)
def believes_a_roll_that_reopening_has_ended(patch: Patch) -> None:
    """Its step is answered in the very turn of the loop in which trouble comes, or not at all."""
    honest = Writing._roll_stepped

    def roll_stepped(self: Writing, event: RollStepped, now: float) -> list[WritingEffect]:
        return honest(self, RollStepped(self._rolls, event.event), now)

    patch.set(Writing, "_roll_stepped", roll_stepped)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_a_ledger_that_a_roll_created_too_late_is_let_go",
)
def keeps_a_ledger_that_came_too_late(patch: Patch) -> None:
    """Memory of the process only: the janitor deletes the ledger."""
    honest = Writing._roll_stepped

    def roll_stepped(self: Writing, event: RollStepped, now: float) -> list[WritingEffect]:
        late = event.number != self._rolls and isinstance(event.event, LedgerCreated)
        return [] if late else honest(self, event, now)

    patch.set(Writing, "_roll_stepped", roll_stepped)


@mutation(
    "",
    logs=True,
    test=f"{_UNIT}::test_trouble_stops_the_work_and_lets_go_before_the_log_is_taken_over",
)
def reopens_while_a_roll_goes_on(patch: Patch) -> None:
    """The next segment is listed beside the one that reopening begins."""
    honest = Writing._reopen

    def reopen(self: Writing, error: LogError, now: float) -> list[WritingEffect]:
        effects = honest(self, error, now)
        return [effect for effect in effects if isinstance(effect, LetGo)]

    patch.set(Writing, "_reopen", reopen)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_a_log_closed_in_the_middle_of_a_roll_is_sealed_segment_by_segment",
)
def seals_the_newest_segment_only(patch: Patch) -> None:
    """Not drawn: the next open seals the others."""
    honest = Writing._seal_if_done

    def seal_if_done(self: Writing) -> list[WritingEffect]:
        effects = honest(self)
        while len(self._to_seal) > 1:
            self._to_seal.popleft()
        return [
            self._to_seal[0] if isinstance(effect, CloseSegment) else effect for effect in effects
        ]

    patch.set(Writing, "_seal_if_done", seal_if_done)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_UNIT}::test_a_takeover_that_meets_trouble_is_tried_again_after_a_while",
)
def gives_up_at_the_first_trouble_of_reopening(patch: Patch) -> None:
    """Not drawn: a leader that ends is replaced."""
    honest = Writing._reopen_failed

    def heal_failed(self: Writing, error: LogError, now: float) -> list[WritingEffect]:
        return (
            self._end(error) if self.phase is LogWriterPhase.REOPENING else honest(self, error, now)
        )

    patch.set(Writing, "_reopen_failed", heal_failed)
