"""Bugs of the metadata stores themselves, which no simulator has: it has one of its own."""

import contextlib
import sqlite3
from collections.abc import Iterator

from ledger.metastore import sqlite_files, sqlite_format, zookeeper_keeper, zookeeper_link
from ledger.metastore.sqlite_tree import SqlTree, State, read_state
from ledger.metastore.sqlite_witness import Mark
from tests.simulation.mutations.mutation import Patch, mutation

_DAMAGE = "tests/ledger/metastore/test_sqlite_damage.py"
_CRASHES = "tests/ledger/metastore/test_sqlite_crashes.py"
_SILENCE = "tests/ledger/metastore/test_zookeeper_silence.py"


@mutation(
    "",
    drawn=False,
    test=f"{_CRASHES}::test_a_power_loss_anywhere_leaves_the_commit_before_or_this_one",
)
def the_witness_knows_a_commit_before_it_is_done(patch: Patch) -> None:
    @contextlib.contextmanager
    def writing(self: SqlTree) -> Iterator[None]:
        with self._witness.locked(self._timeout_s), self._transaction("BEGIN IMMEDIATE"):
            state = self.check_witness()
            self._total = state.total
            yield
            mark = self._advance(state)
            if mark is not None:
                self._witness.write(mark)

    patch.set(SqlTree, "_writing", writing)


@mutation("", drawn=False, test=f"{_DAMAGE}::test_an_older_write_ahead_log_is_refused")
def a_database_that_lost_its_newest_commits_is_believed(patch: Patch) -> None:
    honest = State.follows

    def follows(self: State, mark: Mark) -> bool:
        return self.generation < mark.generation or honest(self, mark)

    patch.set(State, "follows", follows)


@mutation("", drawn=False, test=f"{_DAMAGE}::test_a_row_that_another_program_changed_is_refused")
def rows_are_not_added_up(patch: Patch) -> None:
    def whole_state(connection: sqlite3.Connection, where: str) -> State:
        return read_state(connection, where)

    patch.set(sqlite_format, "whole_state", whole_state)


@mutation(
    "",
    drawn=False,
    test=f"{_DAMAGE}::test_a_file_that_is_gone_is_refused_and_nothing_is_made_in_its_place",
)
def a_store_whose_files_are_gone_is_made_anew(patch: Patch) -> None:
    patch.set(sqlite_files, "_NEVER_FIRST", ())


@mutation(
    "",
    drawn=False,
    test=f"{_SILENCE}::test_a_connection_that_is_taken_and_not_served_costs_no_session",
)
def a_connect_is_waited_for_as_long_as_the_session_lasts(patch: Patch) -> None:
    patch.set(zookeeper_link, "_CONNECTING_SHARE_MIN", 1.0)
    patch.set(zookeeper_link, "_CONNECTING_SHARE_MAX", 1.0)


@mutation(
    "",
    drawn=False,
    test=f"{_SILENCE}::test_a_connection_that_falls_silent_is_given_up_whatever_waits_on_it",
)
def heartbeats_wait_for_ever(patch: Patch) -> None:
    patch.set(zookeeper_keeper, "_ANSWER_SHARE", 10.0)


@mutation(
    "",
    drawn=False,
    test=f"{_SILENCE}::test_after_an_answer_that_is_lost_or_damaged_others_are_not_taken_for_it",
)
def an_answer_to_another_call_ends_kazoos_thread(patch: Patch) -> None:
    patch.set(zookeeper_link.Link, "_watch_over_answers", lambda _self: None)


@mutation(
    "",
    drawn=False,
    test=f"{_SILENCE}::test_a_heartbeat_whose_answer_is_damaged_is_not_the_last",
)
def callers_get_what_kazoo_stumbled_over(patch: Patch) -> None:
    patch.set(zookeeper_link, "_understood", lambda exception: exception)
