"""Bugs of a writer that reopens: what its ledger held, and whose log it is by now."""

from dataclasses import replace
from typing import Any, Final
from weakref import WeakSet

from dlog.aio.write.takeover_driver import TakeoverDriver
from dlog.aio.write.writer import LogWriter
from dlog.errors import AppendOutcomeUnknown
from dlog.manifest import Manifest
from dlog.position import NO_TXID
from dlog.protocol import takeover
from dlog.protocol.actions import RecoverSegment
from dlog.protocol.edits import check_incarnation
from dlog.protocol.log_writer import LogWriterPhase, Writing
from dlog.protocol.log_writer_events import LeaveUnknown, Reopened, SendEntries, WritingEffect
from dlog.protocol.packer import Packer
from dlog.protocol.pending_batch import PendingBatch
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.protocol.procedure import Action
from tests.simulation.logs.mutations.sealing import seal_by_lac
from tests.simulation.mutations.mutation import Patch, mutation

_KEEPS: Final = "tests/dlog/aio/test_what_reopening_keeps.py"
_SETTLES: Final = (
    "tests/dlog/protocol/test_writing.py"
    "::test_reopening_confirms_what_the_log_holds_and_sends_the_rest_again"
)


@mutation("", logs=True, test=_SETTLES)
def reopens_by_sending_again_what_the_log_has(patch: Patch) -> None:
    """What was in flight is sent to the new ledger, behind what recovery kept of it."""
    honest = Writing._reopened

    def reopened(self: Writing, event: Reopened, now: float) -> list[WritingEffect]:
        end = event.manifest.sealed_end
        self._packer.put_all_back()
        self._accumulator.next_offset += end - self.confirmed_offset
        self.confirmed_offset = end
        return honest(self, event, now)

    patch.set(Writing, "_reopened", reopened)


@mutation("", logs=True, test=_SETTLES)
def reopens_and_takes_all_that_was_in_flight_for_kept(patch: Patch) -> None:
    honest = Writing._reopened

    def reopened(self: Writing, event: Reopened, now: float) -> list[WritingEffect]:
        effects: list[WritingEffect] = []
        while self._packer.in_flight:
            effects.append(self._confirm())
        self.confirmed_offset = event.manifest.sealed_end
        return effects + honest(self, event, now)

    patch.set(Writing, "_reopened", reopened)


@mutation("", logs=True)
def reopens_without_closing_the_old_ledger(patch: Patch) -> None:
    """What is confirmed is taken for its end, which whoever opens next may move."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        if isinstance(action, RecoverSegment) and self._why == "reopen":
            return await seal_by_lac(
                self._ledgers,
                self._node.log,
                action.ledger_id,
                last_txid=action.last_txid,
                created_ms=0,
            )
        return await honest(self, action)

    patch.set(TakeoverDriver, "_execute", execute)


@mutation("", logs=True)
def reopens_over_whoever_took_the_log(patch: Patch) -> None:
    def check_expected(
        manifest: Manifest, log: str, _expected_epoch: int | None, reopens: str | None
    ) -> None:
        if reopens is not None:
            check_incarnation(manifest, log, reopens)

    patch.set(takeover, "_check_expected", check_expected)


@mutation("", logs=True)
def looks_at_the_epoch_once(patch: Patch) -> None:
    """Who reopens and is slower than a successor takes the log from it at the next attempt."""
    honest = TakeoverDriver._execute
    honest_check = takeover._check_expected
    checked: WeakSet[TakeoverDriver] = WeakSet()
    again = [False]

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        answer = await honest(self, action)
        if isinstance(action, takeover.ReadManifest):
            again[0] = self in checked and self._why == "reopen"
            checked.add(self)
        return answer

    def check_expected(
        manifest: Manifest, log: str, expected_epoch: int | None, reopens: str | None
    ) -> None:
        honest_check(manifest, log, None if again[0] else expected_epoch, reopens)

    patch.set(TakeoverDriver, "_execute", execute)
    patch.set(takeover, "_check_expected", check_expected)


@mutation(
    "",
    logs=True,
    test=f"{_KEEPS}::test_reopening_out_of_an_empty_segment_forgets_no_txid_of_before",
)
def forgets_the_txid_of_before_when_it_reopens(patch: Patch) -> None:
    """If its segment is empty `last_txid` falls, and a retry appends a second time."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        if self._why == "reopen" and isinstance(action, RecoverSegment):
            action = replace(action, last_txid=NO_TXID)
        return await honest(self, action)

    patch.set(TakeoverDriver, "_execute", execute)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_KEEPS}::test_the_txid_of_what_reopening_kept_is_the_last_one",
)
def reopens_with_the_txid_that_was_confirmed_before(patch: Patch) -> None:
    """Not with that of the records that were in flight, and are kept."""
    honest = Writing._reopened

    def reopened(self: Writing, event: Reopened, now: float) -> list[WritingEffect]:
        before = self.confirmed_txid
        effects = honest(self, event, now)
        self._sent_txid = self.confirmed_txid = before
        return effects

    patch.set(Writing, "_reopened", reopened)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/protocol/test_writing.py"
    "::test_what_is_sent_again_is_behind_the_txid_that_was_kept",
)
def reopens_without_the_old_txid(patch: Patch) -> None:
    """What is sent again says that the log has the txids that are in flight behind it. It shows
    only if the writer then dies between two of its entries, and another opens the log."""
    honest = Writing._reopened

    def reopened(self: Writing, event: Reopened, now: float) -> list[WritingEffect]:
        sent = self._sent_txid
        effects = honest(self, event, now)
        for effect in effects:
            if isinstance(effect, SendEntries):
                for batch in effect.batches:
                    batch.previous_txid = max(sent, batch.previous_txid)
        return effects

    patch.set(Writing, "_reopened", reopened)


@mutation(
    "",
    logs=True,
    test=f"{_KEEPS}::test_an_unknown_outcome_names_the_offset_that_the_record_has_if_it_was_kept",
)
def names_one_offset_for_all_unknown_outcomes(patch: Patch) -> None:
    """That of the first batch in flight, for the records of every one."""

    def unknown(self: LogWriter, effect: LeaveUnknown, slot: int) -> LogError:
        return AppendOutcomeUnknown(self.log, self.last_offset + 1 + slot, effect.reason)

    patch.set(LogWriter, "_unknown", unknown)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_KEEPS}"
    "::test_an_answer_about_the_ledger_of_before_says_nothing_of_what_is_sent_after_reopening",
)
def listens_to_the_ledger_of_before(patch: Patch) -> None:
    """With `ledger.LedgerWriter` it is the same: all its futures are settled when it is let go
    of, their callbacks run in the next turn of the loop, and no reopening ends before. The port
    does not promise that."""

    def hears(self: Writing, _: LedgerId) -> bool:
        return self.phase in {LogWriterPhase.APPENDING, LogWriterPhase.HOLDING}

    patch.set(Writing, "_hears", hears)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test=f"{_KEEPS}::test_an_entry_that_is_in_the_log_in_part_is_not_acknowledged",
)
def acknowledges_a_group_that_was_cut(patch: Patch) -> None:
    """Entries are kept whole or not at all, so only a log that was changed behind everybody's
    back can show it; nothing that is simulated does that with a right digest."""
    one = PendingBatch([b""])
    one.shut()
    patch.set(Packer, "oldest", property(lambda _: one))
