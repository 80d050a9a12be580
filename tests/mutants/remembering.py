"""Bugs of the metadata store's sessions and watches: it believes too long, or not long enough."""

from tests.mutants.mutant import mutant

_LEASE = "tests/ledger/metastore/test_lease.py::test_"
_SQLITE = "tests/ledger/metastore/test_sqlite.py::test_"

mutant(
    "lets an answer to an older question shorten a session",
    "ledger/metastore/lease.py",
    old="max(self._proven_at, sent_at)",
    new="sent_at",
    test=_LEASE + "an_answer_that_is_late_takes_nothing_from_a_newer_one",
)
mutant(
    "does calls that nobody waits for any more",
    "ledger/metastore/sqlite.py",
    old="            if not future.set_running_or_notify_cancel():\n                return\n",
    new="            future.set_running_or_notify_cancel()\n",
    test="tests/ledger/metastore/test_worker.py::"
    "test_a_call_that_was_given_up_before_its_turn_is_not_done",
)
mutant(
    "lets sessions of before the machine's restart live on",
    "ledger/metastore/sqlite_keeper.py",
    old="if boot != self._boot or other",
    new="if other",
    test=_SQLITE + "sessions_of_an_earlier_boot_and_half_made_ones_are_cleared",
)
mutant(
    "leaves the files of sessions that it ended",
    "ledger/metastore/sqlite_keeper.py",
    old="                path.unlink(missing_ok=True)\n",
    new="",
    test=_SQLITE + "sessions_of_an_earlier_boot_and_half_made_ones_are_cleared",
)
mutant(
    "wakes nobody for changes that were dropped from the list",
    "ledger/metastore/sqlite_keeper.py",
    old="None if gap else paths",
    new="paths",
    test=_SQLITE + "a_watcher_that_finds_a_gap_in_the_changes_takes_it_that_all_changed",
)
mutant(
    "does not notice that another process ended its session",
    "ledger/metastore/sqlite_keeper.py",
    old="if self._own is not None and not tree.has_session(self._own.session_id):",
    new="if False:",
    test=_SQLITE + "a_session_that_another_process_ended_is_told_and_replaced",
)
mutant(
    "believes what is left of a witness that was shortened",
    "ledger/metastore/sqlite_witness.py",
    old="if os.fstat(self._fd).st_size != WITNESS_BYTES:",
    new="if False:",
    test="tests/ledger/metastore/test_sqlite_damage.py::test_a_witness_of_another_size_says_nothing",
)
mutant(
    "goes on watching what nobody watches any more",
    "ledger/metastore/watches.py",
    old="            self._on_last(watch.path)\n",
    new="",
    test="tests/ledger/metastore/test_watches.py::"
    "test_a_path_is_asked_for_with_its_first_watch_and_given_up_with_its_last",
)
