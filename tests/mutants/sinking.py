"""Bugs of the Spark sink: rows that are lost, repeated or reordered, logs taken back in silence."""

from tests.mutants.mutant import mutant

_SINK = "dlog/aio/write/sink.py"
_UNIT = "tests/dlog/aio/test_sink.py::test_"
_OWNERSHIP = "dlog/spark/sink/keeper/ownership.py"
_HOLDING = "dlog/spark/sink/keeper/held_logs.py"
_CLIENT = "dlog/spark/sink/keeper/client.py"
_HOLD = "tests/dlog/keeper/test_holding.py::test_"
_CALL = "tests/dlog/keeper/test_keeper_calls.py::test_"
_PROCESS = "tests/dlog/keeper/test_keeper_process.py::test_"
_ENCODE = "tests/dlog/spark/test_sink_encode.py::test_"

mutant(
    "lets a claim take a log back for the run that lost it",
    _OWNERSHIP,
    old="return self.run is None and not self.unaware",
    new="return self.run is None",
    test=_HOLD + "a_run_that_lost_the_log_while_the_keeper_was_dead_fails_too",
)
mutant(
    "fears a run that was told for ever",
    _OWNERSHIP,
    old="        self.unaware.discard(run)\n",
    new="        pass\n",
    test=_HOLD + "once_a_run_was_told_of_its_loss_the_next_claim_takes_the_log_again",
)
mutant(
    "forgets which run lost the log",
    _OWNERSHIP,
    old="        self._depose(self.run, reason)\n",
    new="",
    test=_HOLD + "the_run_that_an_application_took_the_log_from_fails_and_says_who",
)
mutant(
    "lets two runs of one application write in turn",
    _OWNERSHIP,
    old="        if self.run not in (None, run):\n",
    new="        if False:\n",
    test=_HOLD + "the_second_query_of_an_application_takes_the_log_from_the_first",
)
mutant(
    "takes the log over anew after a keeper died",
    _HOLDING,
    old="        if slot.ownership.tenure is None:\n            return None\n",
    new="        if True:\n            return None\n",
    test=_HOLD + "a_killed_keeper_is_followed_by_one_that_goes_on_in_its_epoch",
)
mutant(
    "takes a log back that was lost while the keeper was dead",
    _HOLDING,
    old="                ownership.admit(batch.log, batch.run)  # it may just have lost the log\n",
    new="",
    test=_HOLD + "a_run_whose_keeper_dies_before_its_commit_takes_nothing_back_by_it",
)
mutant(
    "reopens for the run that was fenced",
    _HOLDING,
    old="                if not (begins and isinstance(error, LostOwnership)):\n",
    new="                if not isinstance(error, LostOwnership):\n",
    test=_HOLD + "the_run_that_an_application_took_the_log_from_fails_and_says_who",
)
mutant(
    "saves nothing for its successor",
    _HOLDING,
    old="            self._save({log: slot.ownership for log, slot in self._slots.items()})\n",
    new="",
    test=_HOLD + "a_run_that_lost_the_log_while_the_keeper_was_dead_fails_too",
)
mutant(
    "gives up a job's log only when somebody takes it",
    _HOLDING,
    old="            if batch.final:\n                ownership.finished(batch.run)\n",
    new="            if batch.final:\n",
    test=_HOLD + "the_end_of_a_job_is_noted",
)
mutant(
    "takes a lost answer for a failure",
    _CLIENT,
    old="            except (OSError, EOFError, ValueError) as error:\n",
    new="            except ValueError as error:\n",
    test=_CALL + "a_batch_whose_answer_is_lost_is_asked_for_again_and_is_there_once",
)
mutant(
    "does not wait for trouble that passes",
    _CLIENT,
    old="if not may_pass(refusal) or time.monotonic()",
    new="if True or time.monotonic()",
    test=_CALL + "trouble_that_passes_is_waited_for",
)
mutant(
    "begins each slice of rows at the first one",
    "dlog/spark/sink/encode.py",
    old="dtype=np.int32)[column.offset : column.offset + len(column) + 1]",
    new="dtype=np.int32)[: len(column) + 1]",
    test=_ENCODE + "a_slice_of_rows_is_encoded_from_where_it_begins",
)

mutant(
    "drops what was inserted for a column that the log gives",
    "dlog/spark/sink/encode.py",
    old="            if rows.column(place).null_count < len(rows):\n",
    new="            if False:\n",
    test=_ENCODE + "what_the_log_gives_and_half_a_column_of_txids_are_not_inserted",
)
mutant(
    "removes what the keeper of a driver that lives comes back to",
    "dlog/spark/sink/keeper/leftovers.py",
    old="        return Program.of(int(pid)) != Program(int(pid), started)\n",
    new="        return True\n",
    test=_PROCESS + "what_a_driver_or_a_keeper_that_lives_may_need_is_not_left_over",
)
mutant(
    "holds a lock that was removed",
    "dlog/spark/sink/keeper/place.py",
    old="            if descriptor is None or is_at(descriptor, self.lock):\n",
    new="            if True:\n",
    test=_PROCESS + "who_waits_for_a_lock_that_is_removed_locks_the_one_that_is_there",
)

# The sink of the log layer, which the keeper holds.

mutant(
    "commits after it was closed",
    _SINK,
    old="            if self._closed:\n                raise LogClosed(self.log)\n",
    new="",
    test=_UNIT + "what_cannot_be_committed_is_refused_and_the_sink_goes_on",
)
mutant(
    "stages records that are too large for the log",
    _SINK,
    old="                raise RecordTooLarge(self.log, size, most)\n",
    new="                pass\n",
    test=_UNIT + "what_cannot_be_committed_is_refused_and_the_sink_goes_on",
)
mutant(
    "stages without compression",
    _SINK,
    old="            codec=settings.codec if self._sealer is None else Codec.NONE,\n",
    new="",
    test=_UNIT + "what_is_staged_is_compressed_as_the_log_is",
)
mutant(
    "goes on in the segment of a commit that was cancelled",
    "dlog/protocol/unit_commit.py",
    old="            if tenure.in_doubt:  # also of a commit that was cancelled\n",
    new="            if False:\n",
    test=_UNIT + "a_commit_that_was_cancelled_can_be_made_again",
)
mutant(
    "opens in an epoch of its own",
    _SINK,
    old="            expected_epoch=epoch,\n            heals=self._tenure.incarnation,\n",
    new="",
    test=_UNIT + "whoever_opens_the_log_later_ends_the_sink_which_says_who_has_it",
)
mutant(
    "drops the keys of what travels in several batches",
    "dlog/encoded_batch.py",
    old='        blobs.append(_blob([batch.keys or b"" for batch in batches]))\n',
    new="        blobs.append((0, []))\n",
    test=_UNIT + "a_unit_of_several_batches_keeps_their_columns_and_is_one_entry",
)
mutant(
    "commits one log of a batch after the other",
    "dlog/spark/sink/writers.py",
    old="        at_once = min(len(logs), COMMITS_AT_ONCE_MAX)\n",
    new="        at_once = 1\n",
    test="tests/dlog/spark/test_sink_commits.py::test_logs_of_one_batch_are_committed_at_once",
)
mutant(
    "mixes up the rows of logs that it puts in order",
    "dlog/spark/sink/rows.py",
    old='kind="stable"',
    new='kind="quicksort"',
    test="tests/dlog/spark/test_sink_rows.py"
    "::test_rows_of_many_logs_keep_their_order_and_become_one_batch_for_each",
)
mutant(
    "fills a manifest up without a word",
    _SINK,
    old="        self._warned_bytes = size\n",
    new="        return\n",
    test=_UNIT + "a_manifest_that_fills_up_is_warned_of_from_its_half_on",
)
