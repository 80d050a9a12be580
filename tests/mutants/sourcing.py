"""Bugs of the Spark source: records that a query reads twice, skips in silence, or never gets."""

from tests.mutants.mutant import mutant

_PLAN = "tests/dlog/test_spark_plan.py::test_"
_SOURCE = "tests/dlog/spark/test_spark_source.py::test_"
_ACCESS = "tests/dlog/spark/test_spark_access.py::test_"

mutant(
    "reads a log again under its new name",
    "dlog/spark/plan.py",
    old="            if tail.incarnation not in read:\n",
    new="            if True:\n",
    test=_PLAN + "a_log_that_was_renamed_is_not_read_again_under_its_new_name",
)
mutant(
    "goes on without a log that was deleted, and says nothing",
    "dlog/spark/plan.py",
    old="            on_loss(LogDeleted(name_of(log), start[log].next_offset))\n",
    new="",
    test=_PLAN + "a_log_that_was_deleted_stops_a_stream_that_wants_it",
)
mutant(
    "skips what was trimmed, and says nothing",
    "dlog/spark/plan.py",
    old="        on_loss(RecordsTrimmed(name_of(log), position.next_offset, tail.first_offset))\n",
    new="",
    test=_PLAN + "records_that_were_truncated_before_they_were_read_stop_the_stream",
)
mutant(
    "reads a range of one log that begins in another",
    "dlog/spark/plan.py",
    old="        and start[log].incarnation == end[log].incarnation\n",
    new="",
    test=_PLAN + "nothing_is_read_of_a_log_that_was_made_again_within_a_batch",
)
mutant(
    "counts records that are gone for the limit of a batch",
    "dlog/spark/plan.py",
    old="replace(end[log], next_offset=end[log].next_offset + count)",
    new="replace(end[log], next_offset=start[log].next_offset + count)",
    test=_PLAN + "records_that_are_gone_count_for_no_limit",
)
mutant(
    "plans as many records more as are gone",
    "dlog/spark/plan.py",
    old="max(0, tail.next_offset - end[log].next_offset)",
    new="max(0, tail.next_offset - start[log].next_offset)",
    test=_PLAN + "a_loss_that_is_accepted_is_told_and_the_stream_goes_on_behind_it",
)
mutant(
    "holds a batch back for ever",
    "dlog/spark/trigger_delay.py",
    old=" or self.left_s(now) == 0.0",
    new="",
    test=_PLAN + "a_batch_is_held_back_until_enough_records_wait_or_one_has_waited_long_enough",
)
mutant(
    "holds back what is to run once",
    "dlog/spark/micro_batch.py",
    old="holds = not (unlimited or self._ends_where_it_is)",
    new="holds = True",
    test=_SOURCE + "what_runs_once_holds_nothing_back",
)
mutant(
    "moves a consumer to where a batch will end",
    "dlog/spark/micro_batch.py",
    old="        return encode(end)\n",
    new="        self._move_consumer(end)\n        return encode(end)\n",
    test=_SOURCE + "the_consumer_follows_what_spark_has_committed",
)
mutant(
    "accepts losses that it was not told to accept",
    "dlog/spark/micro_batch.py",
    old="        if self._options.fail_on_data_loss:\n            raise loss\n",
    new="",
    test=_SOURCE + "a_log_that_was_deleted_fails_the_query",
)
mutant(
    "skips a record that a filter lets through",
    "dlog/spark/filters.py",
    old="first, end = value + 1, _OFFSET_MAX",
    new="first, end = value + 2, _OFFSET_MAX",
    test=_SOURCE + "filters_narrow_what_is_read_and_are_all_given_back",
)
mutant(
    "trusts timestamps to ascend",
    "dlog/spark/filters.py",
    old='        elif attribute == ("timestamp",) and by_time:\n',
    new='        elif attribute == ("timestamp",):\n',
    test=_SOURCE + "a_filter_on_timestamps_skips_nothing_unless_they_are_said_to_ascend",
)
mutant(
    "ends a batch read before what was just acknowledged",
    "dlog/spark/access.py",
    old="next_offset=max(tail.next_offset, await end_now(ledgers, node))",
    new="next_offset=tail.next_offset",
    test=_ACCESS + "the_end_of_a_log_is_not_what_bookies_tell_late",
)
mutant(
    "watches whatever has the name of a log that was renamed",
    "dlog/spark/log_ends.py",
    old="            self._tracker.follow(following)\n",
    new="            pass\n",
    test=_ACCESS + "a_log_that_is_renamed_is_watched_and_read_under_its_old_name",
)
mutant(
    "makes a consumer of a log that took the place of another",
    "dlog/spark/consumer_progress.py",
    old="        if manifest.incarnation != position.incarnation:\n",
    new="        if False:\n",
    test=_ACCESS + "a_consumer_of_a_log_that_is_gone_troubles_nobody",
)
mutant(
    "fails a poll of a log whose ledger is deleted meanwhile",
    "dlog/aio/read/tails.py",
    old="with suppress(NoSuchLedger):  # trimmed",
    new="with suppress():  # trimmed",
    test="tests/dlog/aio/test_polling.py::test_a_poll_outlives_the_ledger_at_which_it_waits",
)
mutant(
    "plans a batch by news that came while nobody asked",
    "dlog/spark/log_ends.py",
    old="            each.doubt()\n",
    new="            pass\n",
    test="tests/dlog/test_spark_watching.py"
    "::test_what_was_appended_while_nobody_asked_is_known_to_who_asks",
)
mutant(
    "skips what the end of a range cut off an entry",
    "dlog/protocol/cursor.py",
    old="                break  # the rest of it is read when the stop moves\n",
    new="                pass\n",
    test="tests/dlog/aio/test_aio_reader.py"
    "::test_ranges_that_follow_each_other_are_exactly_what_was_asked_for",
)
mutant(
    "never looks at the name that a renamed log had",
    "dlog/spark/log_ends.py",
    old="            if name in self._watched and self._watched[name].is_renamed:\n",
    new="            if False:\n",
    test=_ACCESS + "a_log_that_takes_the_name_of_a_renamed_one_is_found_beside_it",
)
mutant(
    "ends a query where a renamed log ends, not where the one with its name does",
    "dlog/spark/access.py",
    old="                    if name != log and log in names:\n",
    new="                    if False:\n",
    test=_ACCESS + "a_log_that_takes_the_name_of_a_renamed_one_is_found_beside_it",
)
mutant(
    "takes the log that has a renamed one's name for the renamed one",
    "dlog/spark/plan.py",
    old="        or tail.incarnation not in read\n",
    new="        or True\n",
    test=_PLAN + "a_renamed_log_that_was_deleted_is_not_mistaken_for_the_one_that_has_its_name",
)
mutant(
    "lets a quiet source hold up a busy one",
    "dlog/spark/log_ends.py",
    old="left_s <= 0 or self._news_file.has_changed()",
    new="left_s <= 0",
    test="tests/dlog/test_spark_watching.py"
    "::test_whoever_waits_for_news_ends_with_those_of_another_source",
)
mutant(
    "cuts tasks by numbers of records, whatever their bytes",
    "dlog/spark/plan.py",
    old="    if task_bytes_max is not None:\n",
    new="    if False:\n",
    test=_PLAN + "no_task_reads_more_bytes_than_it_may",
)
mutant(
    "takes no notice of a schema that is declared",
    "dlog/spark/source.py",
    old="            options = replace(options, columns=_declared(schema))\n",
    new="            pass\n",
    test=_SOURCE + "a_schema_that_is_declared_is_kept_to_or_refused_with_what_there_is",
)
