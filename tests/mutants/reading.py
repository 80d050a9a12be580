"""Bugs of readers: records skipped, doubled, shown too early or never; memory without a bound."""

from tests.mutants.mutant import mutant

_READER = "tests/dlog/aio/test_aio_reader.py::test_"
_HEALING = "tests/dlog/aio/test_aio_healing.py::test_"
_BARRIER = "tests/dlog/aio/test_aio_barrier.py::test_"
_CONSUMER = "tests/dlog/aio/test_aio_consumer.py::test_"
_MANY = "tests/dlog/aio/test_aio_many.py::test_"
_PATIENCE = "tests/dlog/aio/test_patience.py::test_"
_ENDS = "tests/dlog/aio/test_ends_of_segments.py::test_"
_PLACES = "tests/dlog/aio/test_finding_places.py::test_"

mutant(
    "decompresses all of a large read at once",
    "dlog/aio/read/chunks.py",
    old="if read and room_bytes < 0:",
    new="if False:",
    test=_READER + "what_is_decompressed_at_once_is_bounded",
)
mutant(
    "ends a reader at trouble that passes",
    "dlog/aio/read/chunks.py",
    old="            if self._impatient():\n                raise\n",
    new="            raise\n",
    test=_READER + "a_reader_heals_at_the_record_after_the_last_one_delivered",
)
mutant(
    "lets a bounded read wait for ever",
    "dlog/aio/read/chunks.py",
    old="return self._loop.time() - self._asked_at > self._patience_s",
    new="return False",
    test=_PATIENCE + "a_bounded_read_gives_up_when_its_patience_ends",
)
mutant(
    "is impatient with a read that nobody has asked for",
    "dlog/aio/read/chunks.py",
    old="        self._asked_at = self._loop.time()\n        while True:",
    new="        while True:",
    test=_PATIENCE + "a_bounded_read_that_was_left_alone_for_long_outlives_trouble_as_before",
)
mutant(
    "does not wake a tail when its log changes",
    "dlog/aio/read/chunks.py",
    old="                    await watch.changed()\n                    self._changed.set()\n",
    new="                    await watch.changed()\n",
    test=_READER + "a_tail_waits_for_the_first_segment",
)
mutant(
    "watches a log no more once its watch broke",
    "dlog/aio/read/chunks.py",
    old="                await asyncio.sleep(self._wait_s)\n",
    new="                return\n",
    test=_HEALING + "a_reader_whose_watch_is_lost_or_breaks_still_gets_on",
)
mutant(
    "relies on its watch alone",
    "dlog/aio/read/chunks.py",
    old=" or idle_s > IDLE_CHECK_S",
    new="",
    test=_HEALING + "a_reader_whose_watch_is_lost_or_breaks_still_gets_on",
)
mutant(
    "reads no entries while the metadata store is away",
    "dlog/aio/read/chunks.py",
    old="await asyncio.wait({self._looking}, timeout=LOOK_S)",
    new="await asyncio.wait({self._looking})",
    test=_HEALING + "entries_are_read_on_while_the_metadata_store_does_not_answer",
)
mutant(
    "opens the next segment when it is needed only",
    "dlog/aio/read/chunks.py",
    old="        await self._look_ahead(self._cursor.later)\n",
    new="",
    test=_HEALING + "the_next_segment_is_opened_while_one_is_read_and_no_more_than_that",
)
mutant(
    "loses its log when that is renamed",
    "dlog/aio/read/chunks.py",
    old="            self._node.follow(self._cursor.incarnation or manifest.incarnation)\n",
    new="",
    test="tests/dlog/aio/test_renaming.py::test_a_range_is_read_on_across_a_rename",
)
mutant(
    "holds any number of records that nobody has read",
    "dlog/aio/read/reader.py",
    old="if self._ahead_bytes >= self._ahead_bytes_max:",
    new="if False:",
    test=_READER + "reading_ahead_is_bounded_in_bytes",
)
mutant(
    "loses the batch of a read that is cancelled",
    "dlog/aio/read/reader.py",
    old="        self._chunk = chunk\n        self._position = chunk.begin\n",
    new="        await asyncio.sleep(0)\n        self._chunk = chunk\n"
    "        self._position = chunk.begin\n",
    test=_HEALING + "reads_cancelled_anywhere_lose_and_double_nothing",
)
mutant(
    "raises an error before the records that were read before it",
    "dlog/aio/read/reader.py",
    old="        if not self._chunks:\n            if self._error is not None:\n",
    new="        if not self._chunks or self._error is not None:\n"
    "            if self._error is not None:\n",
    test=_READER + "damage_is_told_and_nothing_is_skipped",
)
mutant(
    "counts the records of a chunk as read before they were given out",
    "dlog/aio/read/reader.py",
    old="self._position = chunk.begin",
    new="self._position = chunk.end",
    test=_READER + "batches_records_and_chunks_can_be_mixed",
)
mutant(
    "skips what is left of a chunk when chunks are asked for",
    "dlog/aio/read/reader.py",
    old="        if chunk is None or chunk.end == self._position:\n",
    new="        if True:\n",
    test=_READER + "batches_records_and_chunks_can_be_mixed",
)
mutant(
    "gives out a record of a chunk twice after some were read one by one",
    "dlog/chunk.py",
    old="self.skip + done, self.take - done",
    new="self.skip + done - 1, self.take - done + 1",
    test=_READER + "batches_records_and_chunks_can_be_mixed",
)
mutant(
    "follows offsets of a batch that go back",
    "dlog/recordbatch.py",
    old="ascend = bool((ends[1:] >= ends[:-1]).all())",
    new="ascend = True",
    test="tests/dlog/test_recordbatch.py::"
    "test_offsets_of_many_records_that_go_back_are_refused_with_numpy_and_without",
)
mutant(
    "takes values for equally long that are so on average",
    "dlog/recordbatch.py",
    old=" and ends == [*range(0, ends[-1] + 1, size)]",
    new="",
    test="tests/dlog/test_recordbatch.py::test_what_was_encoded_comes_back",
)
mutant(
    "returns from a barrier before it is reached",
    "dlog/aio/read/barriers.py",
    old="if not await until_confirmed(reader, bound, deadline):",
    new="if False:",
    test=_BARRIER + "a_barrier_that_only_a_dead_writer_could_tell_is_an_error_until_a_takeover",
)
mutant(
    "does not wait for what bookies hold",
    "dlog/aio/read/barriers.py",
    old="    while reader.last_add_confirmed < bound and not reader.closed:\n",
    new="    while False:\n",
    test=_BARRIER + "a_barrier_waits_until_what_bookies_hold_is_confirmed",
)
mutant(
    "takes the last add confirmed for the end of what was acknowledged",
    "dlog/aio/read/barriers.py",
    old="bound = await reader.read_last_stored()",
    new="bound = await reader.read_last_add_confirmed()",
    test=_BARRIER + "a_barrier_waits_until_what_bookies_hold_is_confirmed",
)
mutant(
    "keeps from the reader what its barrier learned",
    "dlog/aio/read/reader.py",
    old="            learned=self._source.learn_confirmed,\n",
    new="",
    test=_BARRIER + "a_reader_comes_to_its_barrier_although_bookies_forget_that_it_is_confirmed[0]",
)
mutant(
    "forgets what a barrier learned when the ledger is opened again",
    "dlog/aio/read/chunks.py",
    old="        return tail\n\n    async def _open(self",
    new="            self._confirmed = None\n        return tail\n\n    async def _open(self",
    test=_BARRIER + "a_reader_comes_to_its_barrier_although_bookies_forget_that_it_is_confirmed[2]",
)
mutant(
    "looks for a barrier in the last segment only",
    "dlog/aio/read/barriers.py",
    old="continue  # nothing was ever acknowledged here",
    new="break",
    test=_BARRIER + "a_barrier_is_found_in_the_midst_of_a_roll",
)
mutant(
    "gives up a barrier at trouble that passes",
    "dlog/aio/read/barriers.py",
    old="if not (error.retryable or is_gone):",
    new="if True:",
    test=_BARRIER + "a_barrier_outlives_trouble_that_passes_and_tells_what_does_not",
)
mutant(
    "gives the barrier of a log that has the name of a deleted one",
    "dlog/aio/read/barriers.py",
    old="if incarnation not in {None, manifest.incarnation}:",
    new="if False:",
    test=_BARRIER + "a_reader_of_a_deleted_log_gets_no_barrier_of_the_one_that_follows_it",
)
mutant(
    "commits what was not read",
    "dlog/aio/read/consumer.py",
    old="if not 0 <= wanted <= self.position:",
    new="if False:",
    test=_CONSUMER + "a_position_never_moves_back_and_only_over_what_was_read",
)
mutant(
    "keeps the lock of a consumer that was closed",
    "dlog/aio/read/consumer.py",
    old="            if locked:\n",
    new="            if False:\n",
    test=_CONSUMER + "an_exclusive_consumer_has_one_process_at_a_time",
)
mutant(
    "keeps the lock of a consumer that could not be opened",
    "dlog/aio/read/consumer.py",
    old="            if exclusive:\n                with suppress(LogError):\n"
    "                    await node.unlock()\n",
    new="",
    test=_CONSUMER + "an_exclusive_open_that_failed_lets_the_consumer_go",
)
mutant(
    "skips in silence what was trimmed before it was processed",
    "dlog/aio/read/consumer.py",
    old="            raise Trimmed(manifests.log, position, manifest.trim_offset)\n",
    new="            return manifest.trim_offset\n",
    test=_CONSUMER + "what_was_trimmed_before_it_was_processed_is_told",
)
mutant(
    "begins where a consumer of the log before was",
    "dlog/aio/read/consumer.py",
    old="if stored is not None and stored[0].log_incarnation == manifest.incarnation:",
    new="if stored is not None:",
    test=_CONSUMER + "a_node_that_an_earlier_log_left_behind_is_not_believed",
)
mutant(
    "commits by a consumer that was closed",
    "dlog/aio/read/consumer.py",
    old="        if self._let_go:\n            raise LogClosed(self.log)\n",
    new="",
    test=_CONSUMER + "a_consumer_goes_on_after_what_was_committed",
)
mutant(
    "reads one log of many for as long as it has records",
    "dlog/aio/read/many.py",
    old="                    if reader.error is None:\n",
    new="                    if False:\n",
    test=_MANY + "logs_take_turns_entry_by_entry",
)
mutant(
    "lets a log of many that failed be forgotten for the others",
    "dlog/aio/read/many.py",
    old="                    if reader.error is None:\n",
    new="                    if True:\n",
    test=_MANY + "a_log_that_fails_says_so_until_it_is_taken_out",
)
mutant(
    "gives each of many logs the read-ahead of one",
    "dlog/aio/read/many.py",
    old="return max(READ_AHEAD_BYTES // max(self._sharers, 1), SHARE_BYTES_MIN)",
    new="return READ_AHEAD_BYTES",
    test=_MANY + "many_logs_share_one_read_ahead",
)
mutant(
    "goes on with records of a log that was taken out",
    "dlog/aio/read/many.py",
    old='            self._log, self._records = "", iter(())\n',
    new="            pass\n",
    test=_MANY + "a_log_that_is_taken_out_gives_no_more_of_an_entry_that_was_begun",
)
mutant(
    "does not wake a read of many logs for records that come",
    "dlog/aio/read/many.py",
    old="                news=self._news,\n",
    new="",
    test=_MANY + "a_waiting_read_is_woken_by_any_log_and_a_cancelled_one_takes_nothing",
)
mutant(
    "moves the tail of a log back",
    "dlog/aio/read/tails.py",
    old="        if entry > found.entry:\n",
    new="        if entry != found.entry:\n",
    test=_READER + "a_tail_never_moves_back_if_bookies_tell_less_than_before",
)
mutant(
    "counts records behind a segment whose end is not certain",
    "dlog/aio/read/tails.py",
    old="            if not is_whole:\n                break\n",
    new="",
    test=_ENDS + "a_tail_found_while_the_writer_switches_tells_no_txid_of_a_record_behind_it",
)
mutant(
    "loses the tail of a log that is trimmed meanwhile",
    "dlog/aio/read/tails.py",
    old="                if race == RACES_MAX:\n                    raise\n",
    new="                raise\n",
    test=_READER + "a_tail_is_found_although_a_ledger_is_trimmed_before_it_is_opened",
)
mutant(
    "asks for an end before it looks for an entry behind it",
    "dlog/aio/read/segments.py",
    old="""\
    try:
        async with opened(ledgers, later) as after:
            if await after.read_last_stored() == NO_ENTRY:
                await reader.read_last_stored()
                return reader.last_entry
    except NoSuchLedger:  # deleted with its log: who reads on will see
        return None
    end = await reader.read_last_stored()
""",
    new="""\
    end = await reader.read_last_stored()
    try:
        async with opened(ledgers, later) as after:
            if await after.read_last_stored() == NO_ENTRY:
                return reader.last_entry
    except NoSuchLedger:
        return None
""",
    test=_ENDS + "an_end_is_asked_for_after_the_look_for_an_entry_behind_it",
)
mutant(
    "does not look again at a ledger whose end it waits for",
    "dlog/aio/read/segments.py",
    old="                await reader.read_last_stored()\n                return",
    new="                return",
    test=_ENDS + "a_reader_that_nobody_tells_learns_the_end_before_a_segment_that_stays_empty",
)
mutant(
    "finds no place in what bookies do not say to be confirmed yet",
    "dlog/aio/read/places.py",
    old="if found.entry > last and (bound := await reader.read_last_stored()) > last:",
    new="if False:",
    test=_PLACES + "what_was_acknowledged_is_found_although_bookies_do_not_tell_it_yet",
)
mutant(
    "looks for a place behind a segment whose end is not certain",
    "dlog/aio/read/places.py",
    old="        if not is_whole:\n            break",
    new="        if False:\n            break",
    test=_PLACES + "a_record_is_not_skipped_if_its_writer_goes_on_in_the_next_segment_meanwhile",
)
mutant(
    "finds no place in a log that is trimmed meanwhile",
    "dlog/aio/read/places.py",
    old="        except NoSuchLedger:\n            if race == RACES_MAX:\n                raise\n",
    new="        except NoSuchLedger:\n            raise\n",
    test=_READER + "a_start_whose_segment_is_trimmed_meanwhile_is_looked_up_again",
)
mutant(
    "begins at the trim point in silence",
    "dlog/aio/read/places.py",
    old="    if offset < manifest.trim_offset:\n",
    new="    if False:\n",
    test=_READER + "a_start_that_cannot_be_is_told_at_once",
)
mutant(
    "returns the last records without a bound",
    "dlog/aio/read/places.py",
    old="while size > bytes_max and len(records) > 1:",
    new="while False:",
    test=_MANY + "the_last_records_are_read_without_those_before",
)
