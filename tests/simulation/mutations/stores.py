"""Bugs of the metadata stores themselves, which no simulator has: it has one of its own."""

import contextlib
import sqlite3
from collections.abc import Iterator

from ledger.metastore import (
    sqlite_files,
    sqlite_format,
    sqlite_tree,
    zookeeper_keeper,
    zookeeper_link,
)
from ledger.metastore.port import ANY_VERSION
from ledger.metastore.sqlite_tree import SqlTree, State, read_state
from ledger.metastore.sqlite_witness import CommitMarker
from tests.simulation.mutations.mutation import Patch, mutation

_DAMAGE = "tests/ledger/metastore/test_sqlite_damage.py"
_CRASHES = "tests/ledger/metastore/test_sqlite_crashes.py"
_PROOFS = "tests/ledger/metastore/test_sqlite_proofs.py"
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

    def follows(self: State, mark: CommitMarker) -> bool:
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
    test=f"{_PROOFS}::test_a_name_that_is_changed_in_the_index_of_a_list_is_damage",
)
def a_list_of_children_is_believed_as_an_index_has_it(patch: Patch) -> None:
    patch.set(sqlite_tree, "names_total", lambda _names: AnyTotal())


class AnyTotal:
    def __ne__(self, _other: object) -> bool:
        return False


@mutation(
    "",
    drawn=False,
    test=f"{_PROOFS}::test_a_node_that_its_index_does_not_find_is_damage_and_not_absent",
)
def what_one_index_does_not_find_is_absent(patch: Patch) -> None:
    patch.set(SqlTree, "_prove_absent", lambda _self, _path: None)


@mutation(
    "",
    drawn=False,
    test=f"{_PROOFS}::test_a_session_ends_with_its_own_nodes_whatever_the_index_of_owners_says",
)
def a_session_that_ends_takes_what_an_index_lists(patch: Patch) -> None:
    def end_session(self: SqlTree, session_id: str) -> None:
        with self._writing():
            query = "SELECT path FROM node WHERE owner = ?"
            for (path,) in self._connection.execute(query, (session_id,)).fetchall():
                self._delete(path, ANY_VERSION)

    patch.set(SqlTree, "end_session", end_session)


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
