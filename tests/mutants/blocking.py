"""Bugs of the calls that block: across forks, interrupts, threads, and the end of a handle."""

from tests.mutants.mutant import mutant

_LOG = "tests/dlog/sync/test_sync_log.py::test_"
_FUTURE = "tests/dlog/sync/test_append_future.py::test_"
_INTERRUPTING = "tests/dlog/sync/test_interrupting.py::test_"

mutant(
    "does not notice a fork",
    "dlog/sync/loop_thread.py",
    old="    forks.generation += 1\n",
    new="",
    test=_LOG + "a_handle_from_before_a_fork_is_refused_and_a_new_one_works",
)
mutant(
    "waits on its own loop for what that loop would do",
    "dlog/sync/loop_thread.py",
    old="        if self.is_current():\n",
    new="        if False:\n",
    test=_LOG + "calling_it_on_its_own_loop_is_an_error_not_a_deadlock",
)
mutant(
    "lets the work of an interrupted call go on",
    "dlog/sync/loop_thread.py",
    old="            future.cancel()\n            raise\n",
    new="            raise\n",
    test=_INTERRUPTING + "what_a_call_does_on_the_loop_ends_when_its_thread_is_interrupted",
)
mutant(
    "forgets the chunk that an interrupted call has read",
    "dlog/sync/reader.py",
    old="    def _fetch(self, timeout_s: Duration | None) -> Chunk | None:\n",
    new="    def _fetch(self, timeout_s: Duration | None) -> Chunk | None:\n"
    "        self._fetched.clear()\n",
    test=_INTERRUPTING + "records_that_were_read_are_the_next_calls",
)
mutant(
    "skips what is left of a batch when chunks are read after records",
    "dlog/sync/reader.py",
    old="            chunk = chunk.since(self._position)\n",
    new="            chunk = self._fetch(timeout_s)\n",
    test="tests/dlog/sync/test_sync_log.py::test_records_batches_and_chunks_may_be_mixed_while_reading",
)
mutant(
    "leaves a log in silence though nobody was told what became of an append",
    "dlog/sync/log.py",
    old="        if self._inner.writer.told:",
    new="        if self._inner.writer.lost.is_set():",
    test="tests/dlog/test_first_day.py::test_leaving_a_log_raises_what_nobody_was_told",
)
mutant(
    "forgets the records of many logs that an interrupted call has read",
    "dlog/sync/reader.py",
    old="(self, timeout_s: Duration | None) -> tuple[str, Sequence[Record]] | None:\n",
    new="(self, timeout_s: Duration | None) -> tuple[str, Sequence[Record]] | None:\n"
    "        self._fetched.clear()\n",
    test=_INTERRUPTING + "records_that_were_read_are_the_next_calls",
)
mutant(
    "forgets the change that an interrupted call has seen",
    "dlog/admin.py",
    old="        if not self._seen:\n",
    new="        self._seen.clear()\n        if True:\n",
    test=_INTERRUPTING + "changes_that_were_seen_are_the_next_calls",
)
mutant(
    "commits what was read ahead and not given out",
    "dlog/sync/reader.py",
    old="wanted = self._position if offset is None else offset\n"
    "        if wanted > self._position:",
    new="wanted = self._consumer.position if offset is None else offset\n        if False:",
    test=_LOG + "a_named_consumer_goes_on_where_it_committed",
)
mutant(
    "queues appends without a bound",
    "dlog/sync/append_queue.py",
    old="while self._queued_bytes >= QUEUED_BYTES_MAX and not self._closed:",
    new="while False:",
    test=_LOG + "a_calling_thread_waits_while_too_much_is_queued",
)
mutant(
    "hands the newest append over first",
    "dlog/sync/append_queue.py",
    old="queued = self._queue.popleft()",
    new="queued = self._queue.pop()",
    test=_LOG + "futures_resolve_in_order",
)
mutant(
    "returns from a flush while appends are queued",
    "dlog/sync/append_queue.py",
    old="            newest.wait()\n",
    new="            pass\n",
    test=_LOG + "a_flush_returns_when_all_is_confirmed_that_the_writer_had_no_room_for",
)
mutant(
    "takes appends after it was closed",
    "dlog/sync/append_queue.py",
    old="        if self._closed:\n            return False\n        self._queue",
    new="        self._queue",
    test=_LOG + "nothing_is_appended_once_closing_has_begun",
)
mutant(
    "closes without handing over what is queued",
    "dlog/sync/log.py",
    old="            await self._queue.hand_over(timeout_s)\n",
    new="",
    test=_LOG + "what_is_queued_is_appended_before_the_log_is_closed",
)
mutant(
    "leaves its writer as it is when closing it is interrupted",
    "dlog/sync/log.py",
    old="            await self._inner.abandon()\n            raise\n",
    new="            raise\n",
    test=_INTERRUPTING + "every_append_resolves_if_closing_is_interrupted_while_appends_are_queued",
)
mutant(
    "hides an error of closing in a with block",
    "dlog/sync/handle.py",
    old="        if exc is None:\n            self.close()\n            return\n",
    new="",
    test=_LOG + "the_end_of_a_with_block_raises_what_closing_raises",
)
mutant(
    "says that an append was taken back",
    "dlog/sync/append_future.py",
    old="    def cancel(self) -> bool:\n        return False\n",
    new="    def cancel(self) -> bool:\n        return True\n",
    test=_LOG + "an_append_cannot_be_taken_back",
)
mutant(
    "does not wake a thread that waited before its append was sent",
    "dlog/protocol/pending_batch.py",
    old="        for look in tuple(self._watchers):\n            look()\n",
    new="",
    test=_FUTURE + "a_callback_added_before_the_append_was_sent_is_called_once",
)
mutant(
    "applies on after a standby was closed",
    "dlog/sync/standby.py",
    old="                await asyncio.wait({applying})",
    new="                pass",
    test="tests/dlog/sync/test_sync_standby.py::"
    "test_nothing_is_applied_any_more_when_closing_returns",
)
mutant(
    "takes all of a gathering or nothing",
    "dlog/protocol/accumulator.py",
    old="            gathering.place_each("
    "[self._submit(*row, expected) for row in records.rows()])\n",
    new="            refused = self._submit(*next(records.rows()), expected)\n"
    "            gathering.place_each([refused] * records.count)\n",
    test=_LOG + "one_record_that_is_refused_takes_none_with_it_that_was_gathered_beside_it",
)
mutant(
    "looks for each record of a gathering at its first place",
    "dlog/protocol/pending_batch.py",
    old="return self._outcome, self._slot + index",
    new="return self._outcome, index",
    test=_LOG + "records_that_gather_while_others_wait_get_the_ids_of_their_places",
)
mutant(
    "puts records behind one that expects an offset",
    "dlog/protocol/pending_batch.py",
    old="self.limit = ENTRY_BYTES_FULL if expected_offset is None else 0",
    new="self.limit = ENTRY_BYTES_FULL",
    test=_LOG + "only_the_append_that_expects_an_offset_is_refused_for_it",
)
