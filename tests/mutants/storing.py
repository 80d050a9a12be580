"""Bugs of a bookie's storage: what was promised is lost, denied, or takes all there is."""

from tests.mutants.mutant import mutant

_STORAGE = "tests/bookie/storage/test_storage.py::test_"
_REDO = "tests/bookie/index/test_redo.py::test_"
_IN_PLACE = "tests/bookie/storage/test_index_in_place.py::test_"
_LIMBO = "tests/bookie/loss/test_limbo.py::test_"
_FILES = "tests/bookie/loss/test_files.py::test_"
_CENSUS = "tests/bookie/loss/test_census.py::test_"

mutant(
    "moves the marks before a checkpoint has written anything",
    "bookie/storage/checkpoint.py",
    old="        begun.flush.run()\n",
    new="        self._journals.advance(begun.marks)\n        begun.flush.run()\n",
    test=_STORAGE + "after_any_failed_step_of_a_checkpoint_a_restart_has_everything",
)
mutant(
    "makes no census at a checkpoint",
    "bookie/storage/checkpoint.py",
    old="        self._accounts.count(rolls, self._journals.positions(), self._journals.sizes())\n",
    new="",
    test=_LIMBO
    + "an_older_state_of_one_ledger_directory_is_missed_also_if_no_ledger_was_made_since",
)
mutant(
    "writes out what was deleted while the checkpoint found no space",
    "bookie/storage/checkpoint.py",
    old="self._begun.flush.forget(ledger_ids)",
    new="pass",
    test=_STORAGE + "a_deletion_between_two_tries_of_a_checkpoint_is_not_undone",
)
mutant(
    "leaves all that a checkpoint writes to the sync at its end",
    "bookie/entrylog/log_file.py",
    old="if self._written - self._durable >= _UNSYNCED_BYTES_MAX:",
    new="if False:",
    test="tests/bookie/entrylog/test_entrylog.py::test_"
    + "of_much_that_is_written_no_more_than_a_part_waits_for_the_sync_at_its_end",
)
mutant(
    "calls a checkpoint that found no space done",
    "bookie/storage/checkpoint.py",
    old='self._no_space = f"a checkpoint found no space: {error}"',
    new="self._no_space = ''",
    test=_STORAGE + "a_full_disk_refuses_adds_and_takes_fences_and_recovery_adds",
)
mutant(
    "takes no note that one of several directories has failed",
    "bookie/storage/checkpoint.py",
    old="        self._frozen = failure\n",
    new="",
    test=_STORAGE + "one_bad_ledger_directory_of_several_makes_the_bookie_read_only",
)
mutant(
    "takes adds although the memtable is full",
    "bookie/storage/engine.py",
    old="if len(active) and active.size_bytes + size_bytes > bytes_max:",
    new="if False:",
    test=_STORAGE + "a_full_memtable_refuses_adds_and_keeps_a_share_for_recovery",
)
mutant(
    "keeps no share of the memtable for recovery",
    "bookie/storage/engine.py",
    old="bytes_max += self._config.recovery_reserve_bytes",
    new="pass",
    test=_STORAGE + "a_full_memtable_refuses_adds_and_keeps_a_share_for_recovery",
)
mutant(
    "keeps a fence in memory only",
    "bookie/storage/engine.py",
    old="record.fence_ticket = self._journals.add(Record(Kind.FENCE, ledger_id, key))",
    new="pass",
    test=_STORAGE + "a_fence_outlives_crashes_checkpoints_and_eviction",
)
mutant(
    "lets a fence be answered before it is durable",
    "bookie/storage/engine.py",
    old="return Status.OK, record.fence_ticket",
    new="return Status.OK, 0",
    test=_STORAGE + "a_second_fence_waits_for_the_first",
)
mutant(
    "lets a second fence be answered before the first is durable",
    "bookie/storage/engine.py",
    old="            self._ledgers.touch(record)\n        return Status.OK, record.fence_ticket",
    new="            self._ledgers.touch(record)\n"
    "            return Status.OK, record.fence_ticket\n        return Status.OK, 0",
    test=_STORAGE + "a_second_fence_waits_for_the_first",
)
mutant(
    "acknowledges a repeated add before the first is durable",
    "bookie/storage/engine.py",
    old="return Status.OK, self._journals.last_ticket",
    new="return Status.OK, 0",
    test=_STORAGE + "a_repeated_add_waits_for_the_first",
)
mutant(
    "lets writers add to a fenced ledger",
    "bookie/storage/engine.py",
    old="if record.fenced and not run.recovery:\n                return Status.FENCED, 0",
    new="if False:\n                return Status.FENCED, 0",
    test=_STORAGE + "a_fence_refuses_normal_adds_and_lets_recovery_pass",
)
mutant(
    "goes on after a commit that failed",
    "bookie/storage/engine.py",
    old="            self._holdings.failure = failure\n",
    new="",
    test=_STORAGE + "after_a_failed_commit_every_call_raises",
)
mutant(
    "takes a damaged entry on disk for absent when its writer repeats it",
    "bookie/storage/engine.py",
    old="if isinstance(stored.damage, EntryLogDamaged) and repairs:",
    new="if isinstance(stored.damage, EntryLogDamaged):",
    test="tests/bookie/storage/test_storage_damage.py::"
    "test_a_damaged_entry_is_repaired_by_recovery_and_by_nobody_else",
)
mutant(
    "denies what it may have lost",
    "bookie/storage/engine.py",
    old="return answer if limbo is None else limbo.read(query, answer)",
    new="return answer",
    test=_LIMBO + "one_lost_index_file_is_missed_and_what_it_named_is_not_denied",
)
mutant(
    "says that it takes adds although a directory has failed",
    "bookie/storage/engine.py",
    old="            or self._keeper.troubles\n",
    new="",
    test=_STORAGE + "one_bad_ledger_directory_of_several_makes_the_bookie_read_only",
)
mutant(
    "does not say that a journal is out of space",
    "bookie/storage/engine.py",
    old="return (*doubts, *full, *self._keeper.troubles)",
    new="return (*doubts, *self._keeper.troubles)",
    test=_STORAGE + "a_full_disk_refuses_adds_and_takes_fences_and_recovery_adds",
)
mutant(
    "replays the newest file of each journal only",
    "bookie/storage/replay.py",
    old="for segment in segments:",
    new="for segment in segments[-1:]:",
    test="tests/bookie/storage/test_storage_crash.py::"
    "test_crashes_one_after_the_other_at_random_operations_break_no_promise",
)
mutant(
    "lets the journal bring a deleted ledger back",
    "bookie/storage/replay.py",
    old="if record.ledger_id in directory.tombstones:",
    new="if False:",
    test=_STORAGE + "a_deleted_ledger_is_gone_for_good",
)
mutant(
    "replays into memory without a bound",
    "bookie/storage/replay.py",
    old="if memtable.size_bytes >= self.memtable_bytes_max and not is_full:",
    new="if False:",
    test=_STORAGE + "a_replay_larger_than_the_memtable_is_flushed_on_the_way",
)
mutant(
    "takes a lost journal beside data for a new bookie",
    "bookie/storage/replay.py",
    old="if is_new(disk) and not is_blank(self.directories):",
    new="if False:",
    test=_STORAGE + "entries_without_a_journal_are_refused",
)
mutant(
    "forgets a fence when its ledger is written out",
    "bookie/storage/flush.py",
    old="fenced=record.fenced, ",
    new="",
    test=_STORAGE + "a_fence_outlives_crashes_checkpoints_and_eviction",
)
mutant(
    "does not find entries in memory while they are written out",
    "bookie/storage/memtables.py",
    old="            entries\n"
    "            for memtable in (self.active, self.flushing, self.recent)",
    new="            entries\n            for memtable in (self.active, self.recent)",
    test=_STORAGE + "adds_commits_checkpoints_and_reads_run_beside_each_other",
)
mutant(
    "believes a header that was read before a checkpoint ended",
    "bookie/storage/holdings.py",
    old="                if generation == self.generation:\n                    self.ledgers.adopt",
    new="                if True:\n                    self.ledgers.adopt",
    test=_STORAGE + "a_record_read_from_disk_never_undoes_a_fence_that_came_meanwhile",
)
mutant(
    "answers from what was read ahead before an entry was repaired",
    "bookie/storage/read_cache.py",
    old="                or stretch.header is not header\n",
    new="",
    test=_STORAGE + "an_entry_that_is_repaired_after_it_was_read_ahead_is_not_denied",
)
mutant(
    "reads ahead without a bound",
    "bookie/storage/read_cache.py",
    old="while self.size_bytes > self._bytes_max:",
    new="while False:",
    test=_STORAGE + "reading_ahead_takes_no_more_memory_than_it_may",
)
mutant(
    "keeps all that was read in memory for an answer of one entry",
    "bookie/storage/reads.py",
    old="if len(pieces) == 1 and _SHARE_MIN * len(view := pieces[0].view()) >= len(",
    new="if len(pieces) == 1 and len(view := pieces[0].view()) and len(",
    test="tests/bookie/storage/test_reads.py::test_a_small_part_of_much_does_not_keep_it_alive",
)
mutant(
    "denies an entry that its disk does not give",
    "bookie/storage/reads.py",
    old="if stored.damage is not None and found.considered < query.first:",
    new="if False:",
    test="tests/bookie/storage/test_storage_damage.py::"
    "test_a_lost_entry_log_is_an_error_and_not_an_empty_ledger",
)
mutant(
    "tells operators that the journals are replayed from their ends",
    "bookie/storage/status.py",
    old="                marks[at],\n",
    new="                ends[at],\n",
    test=_STORAGE + "the_status_says_what_is_where",
)
mutant(
    "moves the marks before the redo file is durable",
    "bookie/index/redo.py",
    old="head, body], self._end)\n        self._file.sync()\n",
    new="head, body], self._end)\n",
    test=_REDO + "the_newest_batch_counts_also_after_a_crash",
)
mutant(
    "does not look into the redo file",
    "bookie/index/blocks.py",
    old="            if waiting is not None:\n",
    new="            if False:\n",
    test=_REDO + "a_flush_makes_no_index_file_and_all_is_found_at_once_and_after_a_start",
)
mutant(
    "forgets what waits before it is in place",
    "bookie/index/ledger_index.py",
    old="            self._write_in_place(some)\n",
    new="",
    test=_REDO + "blocks_are_put_in_place_the_oldest_first_and_some_at_a_time",
)
mutant(
    "forgets what waits before it is durable in place",
    "bookie/index/ledger_index.py",
    old="                self._disk.sync_files(files)\n",
    new="",
    test=_REDO + "blocks_are_put_in_place_the_oldest_first_and_some_at_a_time",
)
mutant(
    "forgets what waits before the names of its files are durable",
    "bookie/index/ledger_index.py",
    old="            self._disk.sync_directory(directory)\n        self._new_names.clear()\n",
    new="            pass\n        self._new_names.clear()\n",
    test=_REDO + "blocks_are_put_in_place_the_oldest_first_and_some_at_a_time",
)
mutant(
    "brings a ledger back out of the redo file",
    "bookie/index/redo.py",
    old="            self.append((), gone=ledger_ids)\n",
    new="            pass\n",
    test=_REDO + "a_ledger_that_is_struck_does_not_come_back",
)
mutant(
    "strikes what waits of a ledger that it evicts before it is in place",
    "bookie/index/ledger_index.py",
    old="        self._write_in_place([one for one in ledger_ids if one in self.redo])\n",
    new="",
    test=_IN_PLACE + "an_eviction_that_a_crash_cuts_short_leaves_all_of_a_ledger_or_nothing",
)
mutant(
    "does not miss what the redo file lacks",
    "bookie/index/redo.py",
    old="            if needed.first <= needed.last:\n",
    new="            if False:\n",
    test=_REDO + "every_byte_of_what_is_needed_damaged_or_cut_refuses_the_start",
)
mutant(
    "believes an older redo file",
    "bookie/index/redo.py",
    old="            self._waiting.clear()  # an older file",
    new="            pass  # an older file",
    test=_REDO + "an_older_redo_file_is_refused_while_it_is_needed_and_not_believed_otherwise",
)
mutant(
    "takes what an earlier batch left behind for the next one",
    "bookie/index/redo.py",
    old="if number != self._last + 1 or body_bytes > size_bytes - begin:",
    new="if body_bytes > size_bytes - begin:",
    test=_REDO + "a_batch_that_was_written_elsewhere_is_not_the_next",
)
mutant(
    "does not let the roll say what of the redo file is needed",
    "bookie/storage/ledger_directory.py",
    old="        return Needed(self.index.redo.place, self.tombstones.edition",
    new="        return Needed(type(self.index.redo.place)(), self.tombstones.edition",
    test=_IN_PLACE + "a_start_without_what_only_the_redo_file_has_is_refused",
)
mutant(
    "believes the end of a redo file that may not be on the disk",
    "bookie/index/redo.py",
    old="            confirm(self._file, unsure_from, self._end)\n",
    new="            pass\n",
    test="tests/bookie/storage/test_storage_crash_twice.py::"
    "test_a_redo_file_that_was_not_synced_is_not_believed",
)
mutant(
    "puts all of the index in place before it stops",
    "bookie/storage/ledger_directory.py",
    old="        if is_much and not self.is_hurried:\n",
    new="        if is_much:\n",
    test=_IN_PLACE + "a_bookie_that_stops_leaves_it_to_the_next_start_also_then",
)
mutant(
    "lets the redo file grow without a bound",
    "bookie/storage/ledger_directory.py",
    old="redo.size_bytes > config.redo_bytes_max or ",
    new="",
    test=_IN_PLACE + "a_redo_file_with_too_much_in_it_is_put_in_place_at_once",
)
mutant(
    "leaves what waits to the next checkpoint that has something to write",
    "bookie/storage/checkpoint.py",
    old="                directory.put_in_place()\n",
    new="                pass\n",
    test=_IN_PLACE + "a_checkpoint_puts_a_few_ledgers_in_place_and_those_after_it_go_on",
)
mutant(
    "lets go of what is in memory before everybody can see it on disk",
    "bookie/storage/checkpoint.py",
    old="        self._publish(begun.flush.stored)\n",
    new="        with self._holdings.lock:\n            self._holdings.memory.end_flush()\n"
    "        self._publish(begun.flush.stored)\n",
    test="tests/bookie/storage/test_publishing.py::"
    "test_between_any_two_turns_of_a_checkpoint_nothing_is_missing",
)

_REBUILT = "tests/bookie/tools/test_tools_rebuild.py::test_"
_PLAN = "bookie/tools/rebuild_plan.py"

mutant(
    "rebuilds the index without the logs that are gone, and says nothing",
    _PLAN,
    old='                self.losses.append(f"{path} is gone")\n',
    new="                pass\n",
    test=_REBUILT + "an_entry_log_that_is_gone_with_the_index_leaves_the_bookie_in_limbo",
)
mutant(
    "rebuilds the index without the end of a log, and says nothing",
    _PLAN,
    old="            elif found < end:\n",
    new="            elif False:\n",
    test=_REBUILT + "an_entry_log_that_is_shorter_leaves_the_bookie_in_limbo",
)
mutant(
    "believes an older roll of the entry logs when it rebuilds",
    _PLAN,
    old="        problem = logs.load(rolls.logs)\n",
    new="        problem = logs.load(None)\n",
    test=_REBUILT
    + "without_the_newest_roll_of_the_entry_logs_nobody_knows_whether_all_are_there[older]",
)
mutant(
    "does not remember what it misses when it rebuilds",
    "bookie/tools/rebuild.py",
    old="    Accounts(directories.main).lost(plan.losses)",
    new="    pass",
    test=_REBUILT + "an_entry_log_that_is_gone_with_the_index_leaves_the_bookie_in_limbo",
)
mutant(
    "removes logs that the roll says are there",
    "bookie/collector/compaction.py",
    old="                self._directory.count_logs(dict.fromkeys(log_ids, 0))\n",
    new="                pass\n",
    test=_REBUILT + "a_log_that_was_collected_is_not_missed",
)
mutant(
    "does not miss its tombstones",
    "bookie/storage/ledger_directory.py",
    old="        difference = self.tombstones.difference(needed.tombstones)\n",
    new='        difference = ""\n',
    test=_REBUILT + "lost_tombstones_are_reported_and_given_up",
)

_FULL = "tests/bookie/storage/test_storage.py::test_"

mutant(
    "moves the marks over what a full disk had no room for",
    "bookie/storage/engine.py",
    old="            if replayed.is_flushed:\n                journals.advance(marks)\n",
    new="            journals.advance(journals.positions())\n",
    test=_FULL + "power_lost_after_a_start_on_a_full_disk_loses_nothing[Loss.LOST]",
)
mutant(
    "forgets what a full disk had no room for",
    "bookie/storage/engine.py",
    old="            Memory(replayed.memtable, recent",
    new="            Memory(type(replayed.memtable)(), recent",
    test=_FULL + "a_start_on_a_full_disk_serves_what_is_in_the_journals",
)
mutant(
    "takes adds after a start that found no space",
    "bookie/storage/checkpoint.py",
    old='        self._no_space = "" if is_flushed else',
    new='        self._no_space = "" if True else',
    test=_FULL + "a_start_on_a_full_disk_serves_what_is_in_the_journals",
)
mutant(
    "keeps the reserve on a full disk",
    "bookie/disk/reserve.py",
    old="                    disk.remove(PATH)\n                    given_up",
    new="                    given_up",
    test="tests/bookie/disk/test_reserve.py::test_"
    "it_is_given_up_only_where_there_is_too_little_for_a_start",
)

_LIMBO = "tests/bookie/loss/test_limbo.py::test_"

mutant(
    "takes another roll for its own if it has come as far",
    "bookie/loss/census.py",
    old="            if expected is not None and number == expected.batch and seen != expected:\n",
    new="            if False:\n",
    test=_LIMBO + "a_roll_of_another_bookie_with_as_many_batches_is_a_loss[index/roll]",
)
mutant(
    "compares all rolls with that of the first directory",
    "bookie/storage/replay.py",
    old="else census.rolls[at])",
    new="else census.rolls[0])",
    test=_LIMBO + "each_ledger_directory_has_its_own_roll_in_the_census",
)
mutant(
    "counts the editions of new ledgers only",
    "bookie/storage/ledger_directory.py",
    old="            self._count(self.index.written)\n",
    new="            self._count(self.index.written | self.roll.editions)\n",
    test=_FILES + "no_file_that_is_lost_cut_older_or_anothers_makes_a_bookie_say_a_wrong_no",
)
mutant(
    "knows what is in place although a full disk left it half written",
    "bookie/index/ledger_index.py",
    old="            self._in_place[ledger_id] = 0  # a full disk may end this half way\n",
    new="            pass\n",
    test=_FILES + "an_index_file_that_a_full_disk_left_half_in_place_is_no_older_one",
)
mutant(
    "counts a ledger that an eviction left with the next edition",
    "bookie/storage/ledger_directory.py",
    old="                    self.index.written.setdefault(ledger_id, edition)\n",
    new="                    self.index.written.setdefault(ledger_id, edition + 1)\n",
    test=_FILES + "ledgers_that_an_eviction_left_are_counted_with_their_edition",
)
mutant(
    "forgets the edition that a crash kept from the roll",
    "bookie/storage/ledger_directory.py",
    old="                    editions[ledger_id] = self._edition_of(ledger_id)\n",
    new="                    pass\n",
    test=_FILES + "the_edition_of_an_index_that_a_crash_kept_from_the_roll_is_learned",
)
mutant(
    "lets a roll grow without end",
    "bookie/loss/census.py",
    old="        if not self._end or self._end > 2 * least_bytes + _SLACK_BYTES:\n",
    new="        if not self._end:\n",
    test=_CENSUS + "a_roll_that_is_too_long_is_rewritten_unless_there_is_no_space",
)
