"""Bugs of limbo: a bookie that has lost something denies it, or forgets that it has."""

from collections.abc import Generator
from dataclasses import replace

from bookie.collector.collection import DirectoryCollection
from bookie.entrylog.catalog import LogInfo
from bookie.index import ledger_cache
from bookie.index.format import LedgerHeader
from bookie.index.tombstones import Tombstones
from bookie.journal.writer import JournalWriter
from bookie.loss.census import Accounts
from bookie.loss.limbo import Limbo, LimboPhase
from bookie.server import loss_resolver
from bookie.storage.ledger_directory import RecoveredLogs
from bookie.storage.replay import Replay
from ledger.protocol import recovery_events
from ledger.protocol.answers import Found
from ledger.protocol.recovery_events import RecoveryEntriesRead, SendRecoveryRead
from ledger.requests import ReadAnswer, ReadQuery
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("rule 76, limbo")
def denies_what_it_may_have_lost(patch: Patch) -> None:
    def read(_self: Limbo, _query: ReadQuery, answer: ReadAnswer) -> ReadAnswer:
        return answer

    patch.set(Limbo, "read", read)


@mutation("rule 76, limbo")
def takes_adds_to_a_ledger_whose_fence_it_may_have_lost(patch: Patch) -> None:
    patch.set(Limbo, "takes_adds_to", lambda _self, _ledger_id: True)


@mutation("rule 76, limbo")
def takes_adds_again_when_limbo_is_over(patch: Patch) -> None:
    honest = Limbo.takes_adds_to

    def takes_adds_to(self: Limbo, ledger_id: int) -> bool:
        return self.phase is LimboPhase.OVER or honest(self, ledger_id)

    patch.set(Limbo, "takes_adds_to", takes_adds_to)


@mutation(
    "rule 76, limbo",
    drawn=False,
    test="tests/ledger/protocol/test_answers.py"
    "::test_a_recovery_takes_for_an_answer_only_what_may_deny",
)
def takes_unknown_for_absence(patch: Patch) -> None:
    """Eight of ten thousand seeds see it, the first one behind two thousand."""
    honest = recovery_events.entries_read

    def entries_read(asked: SendRecoveryRead, found: Found) -> RecoveryEntriesRead:
        event = honest(asked, found)
        if event.unknown:
            event = replace(event, answered=True, considered=asked.last)
        return event

    patch.set(recovery_events, "entries_read", entries_read)


@mutation(
    "rule 76, limbo",
    drawn=False,
    test="tests/bookie/loss/test_limbo.py"
    "::test_an_index_that_is_lost_is_missed_also_if_the_redo_file_has_some_of_it",
)
def makes_a_lost_index_again_of_a_part_of_it(patch: Patch) -> None:
    """It is damaged then, and no recovery can mend it: four of ten thousand seeds see it."""
    patch.set(ledger_cache, "is_all", lambda _ledger_id, _block: True)


@mutation(
    "rule 76, editions",
    drawn=False,
    test="tests/bookie/loss/test_files.py"
    "::test_no_file_that_is_lost_cut_older_or_anothers_makes_a_bookie_say_a_wrong_no",
)
def takes_an_older_index_for_the_newest(patch: Patch) -> None:
    """One disk in twelve that are lost is one index file that was put back."""
    patch.set(LedgerHeader, "is_of", lambda _self, _counted: True)


@mutation(
    "rule 76, editions",
    drawn=False,
    test="tests/bookie/loss/test_files.py"
    "::test_an_older_index_file_is_noticed_although_the_redo_file_lies_over_it",
)
def lays_the_redo_file_over_an_older_index(patch: Patch) -> None:
    patch.set(LedgerHeader, "may_lie_over", lambda _self, _in_place: True)


@mutation("rule 76, limbo")
def forgets_its_limbo_at_a_restart(patch: Patch) -> None:
    honest = Accounts._load

    def load(self: Accounts) -> None:
        honest(self)
        self.limbo = None
        self.losses.clear()

    patch.set(Accounts, "_load", load)


@mutation("rule 76, census")
def does_not_miss_index_files(patch: Patch) -> None:
    honest = Replay._losses

    def losses(self: Replay, recovered: list[RecoveredLogs], *, is_counted: bool) -> list[str]:
        whole = [replace(each, missing=[], problem="") for each in recovered]
        return honest(self, whole, is_counted=is_counted)

    patch.set(Replay, "_losses", losses)


@mutation("rule 76, census")
def does_not_tell_that_a_journal_file_follows(patch: Patch) -> None:
    patch.set(JournalWriter, "_announce_next", lambda _self, _old: None)


@mutation(
    "rule 76, census",
    drawn=False,
    test="tests/bookie/loss/test_files.py::"
    "test_no_file_that_is_lost_cut_older_or_anothers_makes_a_bookie_say_a_wrong_no",
)
def takes_fences_and_tombstones_of_any_edition(patch: Patch) -> None:
    patch.set(Tombstones, "difference", lambda _self, _counted: "")


@mutation("rule 76, census")
def does_not_compare_the_journal_with_the_census(patch: Patch) -> None:
    honest = Accounts.lost

    def lost(self: Accounts, reasons: list[str]) -> None:
        honest(self, [one for one in reasons if "shortened" not in one and "went on" not in one])

    patch.set(Accounts, "lost", lost)


@mutation(
    "",
    drawn=False,
    test="tests/bookie/loss/test_limbo.py::test_a_namespace_made_anew_ends_no_limbo",
)
def limbo_ends_by_what_another_namespace_says(patch: Patch) -> None:
    patch.set(loss_resolver, "doubt", lambda *_asked: None)


@mutation(
    "",
    drawn=False,
    test="tests/bookie/collector/test_collector_compaction.py::"
    "test_what_an_index_that_was_lost_named_stays_until_the_ledger_is_deleted",
)
def removes_logs_of_which_the_index_was_lost(patch: Patch) -> None:
    def is_whole(_self: DirectoryCollection, _info: LogInfo) -> Generator[int, None, bool]:
        yield 0
        return True

    patch.set(DirectoryCollection, "_is_whole", is_whole)
