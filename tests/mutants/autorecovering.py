"""Bugs of auditors and workers: too early, too late, too little, and copies that are none."""

from tests.mutants.mutant import mutant

_REPLICATING = "bookie/autorecovery/protocol/repair.py"
_PLAN = "bookie/autorecovery/protocol/repair_plan.py"
_AUDITING = "bookie/autorecovery/protocol/audit.py"
_MARKS = "bookie/autorecovery/marks.py"
_LOOKING = "bookie/autorecovery/replica_check.py"
_REPAIR = "tests/bookie/autorecovery/test_replicating.py::test_"
_BUGS = "tests/bookie/autorecovery/test_ancestors_bugs.py::test_"
_CHOICE = "tests/bookie/autorecovery/test_choosing.py::test_"
_AUDIT = "tests/bookie/autorecovery/test_auditing.py::test_"
_MARK = "tests/bookie/autorecovery/test_marks.py::test_"
_LOOK = "tests/bookie/autorecovery/test_looking.py::test_"

# The worker.

mutant(
    "copies the open fragment",
    _REPLICATING,
    old="            if end is None or not self._situation.concerns",
    new="            end = 9 if end is None else end\n            if not self._situation.concerns",
    test=_REPAIR + "a_repair_leaves_every_copy_where_it_belongs_and_no_mark[open_ledger]",
)
mutant(
    "swaps before the last add is durable",
    _REPLICATING,
    old="                status = yield from SendFrames(place, frames.entries)\n",
    new="                status = Status.OK\n"
    "                if frames.considered < copy.last:\n"
    "                    status = yield from SendFrames(place, frames.entries)\n",
    test=_REPAIR + "a_repair_leaves_every_copy_where_it_belongs_and_no_mark[lost_member]",
)
mutant(
    "swaps without a bookie of which a copy was refused",
    _REPLICATING,
    old="        work.failed.add(copy.index)\n        place",
    new="        place",
    test=_REPAIR + "nothing_is_swapped_in_that_refused_a_copy",
)
mutant(
    "leaves an empty last fragment to a bookie that is to be emptied",
    _REPLICATING,
    old="                return (yield from self._swap(work, tuple(work.targets)))\n",
    new="                return True\n",
    test=_REPAIR + "a_bookie_that_is_to_be_emptied_is_out_of_empty_fragments_too",
)
mutant(
    "deletes the mark in whatever version",
    _MARKS,
    old="multi([DeleteOp(mark_path, version), bucket, DeleteOp(lock_path)])",
    new="multi([DeleteOp(mark_path), bucket, DeleteOp(lock_path)])",
    test=_MARK + "a_mark_that_grew_is_not_deleted[memory]",
)
mutant(
    "deletes a mark without a trace",
    _MARKS,
    old="multi([DeleteOp(mark_path, version), bucket, DeleteOp(lock_path)])",
    new="multi([DeleteOp(mark_path, version), DeleteOp(lock_path)])",
    test=_MARK + "who_slept_over_the_end_of_a_mark_adds_to_the_one_that_was_made_since",
)
mutant(
    "defers a mark without its lock",
    _MARKS,
    old="            CheckOp(path_of_lock(ledger_id)),\n",
    new="",
    test=_MARK + "a_worker_that_lost_its_lock_writes_over_no_mark[memory]",
)
mutant(
    "swallows a mark that adds nothing",
    "ledger/mark_nodes.py",
    old="        with suppress(BadVersion, NoSuchNode):  # somebody was faster\n",
    new="        if merged is mark:\n            return False\n"
    "        with suppress(BadVersion, NoSuchNode):\n",
    test=_MARK + "a_mark_that_is_confirmed_while_a_worker_is_at_it_is_not_deleted[memory]",
)
mutant(
    "adds to a mark that was made since",
    "ledger/mark_nodes.py",
    old="multi((SetOp(path, merged.encode(), version), unchanged))",
    new="multi((SetOp(path, merged.encode(), version),))",
    test=_MARK + "who_slept_over_the_end_of_a_mark_adds_to_the_one_that_was_made_since",
)
mutant(
    "does not look at what was marked during the work",
    _REPLICATING,
    old="        elif repair.rounds < ROUNDS_MAX:",
    new="        elif False:",
    test=_REPAIR + "a_mark_that_grew_during_the_work_is_not_deleted_before_that_is_done_too",
)
mutant(
    "counts the grace from the lock",
    _REPLICATING,
    old="        over_ms = since_ms + self._config",
    new="        over_ms = self._now_ms + self._config",
    test=_REPAIR + "an_open_fragment_is_left_to_its_writer_for_the_grace",
)
mutant(
    "fences though there is no bookie to go on with",
    _REPLICATING,
    old="        if not spare:\n",
    new="        if False:\n",
    test=_REPAIR + "nobody_is_fenced_as_long_as_there_is_no_spare_bookie",
)
mutant(
    "fences at once",
    _REPLICATING,
    old="        if self._now_ms < over_ms:\n",
    new="        if False:\n",
    test=_REPAIR + "an_open_fragment_is_left_to_its_writer_for_the_grace",
)
mutant(
    "tries a deferred ledger again at once",
    _REPLICATING,
    old="        if not eager and mark.waits(seen.now_ms, came):\n",
    new="        if False:\n",
    test=_REPAIR + "a_mark_is_left_alone_until_its_time",
)
mutant(
    "reads the same rotten source again and again",
    _REPLICATING,
    old="            self._thorough = self._unseen = True\n",
    new="            self._unseen = True\n",
    test=_REPAIR + "a_rotten_entry_of_the_source_is_read_elsewhere_and_made_good_too",
)
mutant(
    "believes a bookie that is marked for damage",
    _REPLICATING,
    old="        self._thorough |= mark.thorough\n",
    new="",
    test=_REPAIR + "a_bookie_marked_for_damage_is_read_thoroughly_and_gets_what_is_rotten",
)
mutant(
    "moves what a bookie has that came back",
    _PLAN,
    old="        return given_up and not there and self",
    new="        return given_up and self",
    test=_REPAIR + "a_bookie_that_came_back_with_everything_is_unmarked_without_a_copy",
)

# What is copied where.

mutant(
    "copies entries that the index does not hold",
    _PLAN,
    old="            if not holds(index, residue, quorum) or _first_of",
    new="            if _first_of",
    test=_CHOICE + "it_copies_what_is_wanted_and_can_be_had_and_nothing_else",
)
mutant(
    "takes a time-out for a denial",
    _PLAN,
    old="    return held, Standing.UNSURE in standings.values()\n",
    new="    return held, False\n",
    test=_CHOICE + "an_entry_is_not_lost_while_somebody_who_may_have_it_does_not_answer",
)
mutant(
    "copies what it can of a move that cannot be finished",
    _PLAN,
    old="        elif not gaps and not doubtful:\n            copies += found\n",
    new="        else:\n            copies += found\n        if index in moving and not gaps:\n",
    test=_BUGS + "1908_a_ledger_with_an_entry_that_is_lost_everywhere_fills_no_disk[1]",
)
mutant(
    "reads what is to be emptied first",
    _PLAN,
    old="                source in moving,\n",
    new="                source not in moving,\n",
    test=_CHOICE + "a_bookie_that_is_to_be_emptied_is_read_from_last",
)
mutant(
    "says that a bookie in limbo has not what it does not deny",
    _LOOKING,
    old="            (self._missing, first, min(upto, considered)),\n",
    new="            (self._missing, first, upto),\n",
    test=_LOOK + "what_a_bookie_in_limbo_does_not_have_is_unsure_and_what_it_has_is_held",
)
mutant(
    "takes no answer for missing entries",
    _LOOKING,
    old="        elif found.status not in {Status.OK, Status.IO_ERROR}:\n",
    new="        elif found.status is Status.UNKNOWN:\n",
    test=_LOOK + "a_bookie_that_does_not_answer_is_unsure_of_all[True]",
)

# The auditor.

mutant(
    "asks who is there before it reads the ledgers",
    _AUDITING,
    old="            now_ms = yield from self._see()\n",
    new="            now_ms = 0\n",
    test=_AUDIT + "who_is_back_when_a_part_of_the_ledgers_was_read_is_not_marked",
)
mutant(
    "waits for no bookie",
    _AUDITING,
    old="now >= since + self._delay_s:\n",
    new="True:\n",
    test=_AUDIT + "a_bookie_that_returns_within_the_delay_marks_nothing",
)
mutant(
    "begins all delays again with each loss",
    _AUDITING,
    old="{bookie: before.get(bookie, now) for",
    new="{bookie: now if lost != {*before} else before[bookie] for",
    test=_AUDIT + "a_second_loss_neither_cancels_nor_shortens_a_delay",
)
mutant(
    "marks although most bookies are away",
    _AUDITING,
    old="        if self._alarm:\n            self._due = {}\n",
    new="",
    test=_AUDIT + "while_more_than_half_are_away_nothing_is_marked_and_an_alarm_is_recorded_once",
)
mutant(
    "marks ledgers that hold nothing on the lost bookie",
    _AUDITING,
    old="or end is None or end >= fragment.first_entry:\n",
    new="or True:\n",
    test=_AUDIT + "a_bookie_that_is_away_for_the_delay_has_its_ledgers_marked",
)
mutant(
    "never audits again when a pass failed",
    _AUDITING,
    old="            yield from Wait(config.retry_s)",
    new="            yield from Wait(1e9)",
    test=_AUDIT + "a_pass_that_failed_begins_again[ReadLedgers]",
)
mutant(
    "checks all ledgers with every new auditor",
    _AUDITING,
    old="            due = now + max(0.0, left_ms / 1000)\n",
    new="            due = now\n",
    test=_AUDIT + "all_ledgers_are_checked_once_a_week_also_if_the_auditor_changes_every_hour",
)
mutant(
    "does nothing else while it checks all ledgers",
    _AUDITING,
    old="            yield from BeginCheck(kind)\n",
    new="            yield from BeginCheck(kind)\n            yield from Wait(1e9)\n",
    test=_AUDIT + "lost_bookies_are_marked_while_all_ledgers_are_checked",
)
mutant(
    "forgets that something was damaged",
    "ledger/mark.py",
    old="        thorough = self.thorough or any(",
    new="        thorough = any(",
    test=_MARK + "that_something_was_damaged_is_remembered_whatever_reason_comes_after",
)

# Taking a bookie out.

_LEAVING = "bookie/autorecovery/protocol/decommission.py"
_EMPTIED = "tests/bookie/autorecovery/test_decommissioning.py::test_"

mutant(
    "takes one scan for two",
    _LEAVING,
    old="CLEAN_SCANS: Final = 2\n",
    new="CLEAN_SCANS: Final = 1\n",
    test=_EMPTIED + "once_it_is_stopped_its_name_is_retired_last",
)
mutant(
    "scans before the bookie is read-only",
    _LEAVING,
    old="            if bookie.is_registered and not bookie.is_read_only:\n",
    new="            if False:\n",
    test=_EMPTIED + "no_scan_counts_before_the_bookie_is_read_only",
)
mutant(
    "retires the name of a bookie that runs when it was emptied",
    _LEAVING,
    old="                    if bookie.is_registered:\n                        return",
    new="                    if False:\n                        return",
    test=_EMPTIED + "a_bookie_that_runs_is_emptied_and_then_waits_to_be_stopped",
)
mutant(
    "takes ledgers that it cannot read for such that do not name the bookie",
    _LEAVING,
    old="return not (scanned.naming or scanned.unreadable or marks.naming)",
    new="return not (scanned.naming or marks.naming)",
    test=_EMPTIED + "metadata_that_cannot_be_read_keep_the_name",
)
mutant(
    "counts scans from before the bookie ran again",
    _LEAVING,
    old="                clean = 0\n                refusal",
    new="                refusal",
    test=_EMPTIED
    + "only_scans_in_a_row_count_that_began_while_it_was_quiet[1-runs_again-TurnReadOnly]",
)
mutant(
    "counts dead bookies that nothing names any more for the alarm",
    _AUDITING,
    old="        serving = seen.known - seen.retired - self._empty\n",
    new="        serving = seen.known - seen.retired\n",
    test=_AUDIT + "names_of_dead_bookies_that_no_ledger_names_any_more_raise_no_alarm",
)
mutant(
    "takes ledgers that it cannot read for such that name nobody",
    _AUDITING,
    old="if metadata is None or _lacks(metadata, bookie, Reason.LOST)",
    new="if metadata is not None and _lacks(metadata, bookie, Reason.LOST)",
    test=_AUDIT + "ledgers_that_cannot_be_read_may_name_anybody",
)
mutant(
    "does not look again at what it repaired in place",
    _REPLICATING,
    old="                    self._unseen |= copy.index not in work.gone\n",
    new="                    self._unseen |= not work\n",
    test=_REPAIR + "what_was_repaired_in_place_is_looked_at_again",
)

# What a worker may delete, whom it compares, and what it takes first.

mutant(
    "deletes a mark without its lock",
    _MARKS,
    old="        if not self._holds(ledger_id):\n            return Ended.LOCK_LOST\n",
    new="        if not self._holds(ledger_id):\n            await self._store.delete("
    "path_of_mark(ledger_id), version)\n            return Ended.GONE\n",
    test=_MARK + "no_mark_is_deleted_without_its_lock[memory]",
)
mutant(
    "keeps the lock of a mark that is gone",
    _MARKS,
    old="            await self.unlock(ledger_id)\n        self._locks.pop(",
    new="        self._locks.pop(",
    test=_MARK + "a_mark_that_is_gone_is_ended_and_its_lock_given_back[memory]",
)
mutant(
    "copies one of two different frames",
    _REPLICATING,
    old="            elif frames.differing:\n",
    new="            elif False:\n",
    test=_REPAIR + "two_different_whole_frames_of_an_entry_are_reported_and_nothing_is_written",
)
mutant(
    "compares with nobody",
    _PLAN,
    old="    return min(have_all, default=None)\n",
    new="    return None\n",
    test=_REPAIR + "a_bookie_that_lacks_an_entry_gets_none_of_two_different_ones",
)
mutant(
    "takes metadata from before the lock for what others have written meanwhile",
    _REPLICATING,
    old="ReadLedger(self._mark, fresh=self.rounds > 1)\n",
    new="ReadLedger(self._mark, fresh=False)\n",
    test=_REPAIR + "the_first_look_at_the_metadata_needs_no_more_than_the_lock_and_later_ones_do",
)
mutant(
    "moves for placement while a source is away",
    _PLAN,
    old="        if not self.registered.issuperset(fragment.bookies):\n",
    new="        if False:\n",
    test=_REPAIR + "nobody_is_exchanged_while_a_source_is_away",
)
mutant(
    "forgets who is urgent",
    _AUDITING,
    old="is_urgent(metadata, self._lost):\n",
    new="False:\n",
    test=_AUDIT + "ledgers_with_fewer_than_qa_copies_left_are_marked_first_as_urgent",
)
mutant(
    "begins a check again by what was read before it ended",
    _AUDITING,
    old="max(due, self._not_again.get(kind, due))",
    new="due",
    test=_AUDIT + "what_was_read_before_a_check_ended_does_not_begin_it_again",
)

_QUEUEING = "bookie/autorecovery/protocol/repair_queue.py"
_QUEUE = "tests/bookie/autorecovery/test_queueing.py::test_"

mutant(
    "takes urgent ledgers when their turn comes",
    _QUEUEING,
    old="        while self._urgent:\n",
    new="        while self._urgent and not self._listed:\n",
    test=_QUEUE + "what_is_urgent_comes_first_and_is_not_taken_again_when_it_is_listed",
)
mutant(
    "goes to ledgers that other workers are at",
    _QUEUEING,
    old="        if ledger_id not in self._locked:\n            return False\n",
    new="        if True:\n            return False\n",
    test=_QUEUE + "what_another_worker_is_at_is_passed_over_and_looked_at_soon",
)

_JUDGING = "bookie/autorecovery/protocol/ledger_check.py"
_JUDGE = "tests/bookie/autorecovery/test_judging.py::test_"

mutant(
    "takes who is away for one who lacks everything",
    _JUDGING,
    old="        if said.get(question, NO_SHARE).missing:\n",
    new="        if question not in said or said[question].missing:\n",
    test=_JUDGE + "who_is_away_or_does_not_say_lacks_nothing",
)
mutant(
    "asks for entries that are not settled",
    _JUDGING,
    old="        if end is not None and end >= fragment.first_entry:\n            found += [",
    new="        end = end or EntryId(99)\n        if end >= fragment.first_entry:\n"
    "            found += [",
    test=_JUDGE + "only_what_is_settled_and_has_entries_is_asked_for",
)
mutant(
    "looks beyond the end of a closed ledger",
    "ledger/metadata.py",
    old="        return min(end, self.last_entry)\n",
    new="        return EntryId(end + 1)\n",
    test=_JUDGE + "only_what_is_settled_and_has_entries_is_asked_for",
)
mutant(
    "calls nothing urgent that was found by reading",
    _JUDGING,
    old="if any(share.at(start) is Standing.MISSING for share in part)",
    new="if part[0].at(start) is Standing.MISSING",
    test=_JUDGE + "what_was_read_and_who_is_away_count_for_what_is_urgent",
)
mutant(
    "cancels what is under way and does not wait for it",
    "ledger/concurrently.py",
    old="        async with asyncio.TaskGroup() as group:\n"
    "            for _ in range(min(at_once, len(items))):\n"
    "                group.create_task(take())\n",
    new="        await asyncio.gather(*(take() for _ in range(at_once)))\n",
    test="tests/ledger/test_concurrently.py::"
    "test_an_error_is_raised_as_it_is_when_nothing_is_under_way_any_more",
)

# The drivers of checks and of copying.

_CHECKS = "tests/bookie/autorecovery/test_surveys.py::test_"

mutant(
    "asks no witness",
    "bookie/autorecovery/repair_io.py",
    old="        if action.witness is None or not entries:\n",
    new="        if True:\n",
    test=_CHECKS + "of_two_authenticated_frames_that_differ_none_is_copied_without_the_key",
)
mutant(
    "asks a witness that does not answer with each read",
    "bookie/autorecovery/repair_io.py",
    old="            self._silent.add(witness)\n",
    new="            pass\n",
    test=_CHECKS + "a_witness_that_does_not_answer_is_asked_once_and_keeps_no_copy_waiting",
)
mutant(
    "reads nothing in a check",
    "bookie/autorecovery/ledger_check.py",
    old="        if scrub is None:\n            continue\n",
    new="        if True:\n            continue\n",
    test=_CHECKS + "what_rots_unread_is_found_by_reading_a_share_with_digests",
)
mutant(
    "judges placement and marks nothing",
    "bookie/autorecovery/metadata_checks.py",
    old="            if exchanged:\n",
    new="            if False:\n",
    test=_CHECKS + "a_ledger_that_is_all_on_one_rack_is_spread_when_there_are_others",
)
mutant(
    "counts bookies that are away as there",
    "bookie/autorecovery/metadata_checks.py",
    old="            away += bool(members - registered)\n",
    new="            pass\n",
    test=_CHECKS + "ledgers_with_bookies_away_are_counted_and_nothing_is_marked",
)
mutant(
    "does not write down how the check of placement ended",
    "bookie/autorecovery/auditor.py",
    old="                await placement.write(self._store)\n",
    new="",
    test=_CHECKS + "the_auditor_makes_all_checks_and_leaves_when",
)

# What readers report.

_SUSPECT = "tests/ledger/test_suspecting.py::test_"

mutant(
    "suspects entries that may be on their way",
    "ledger/read.py",
    old="            if metadata.settled_end(metadata.fragment_of(hint.entry_id)) is not None:\n",
    new="            if True:\n",
    test=_SUSPECT + "of_an_open_ledger_nothing_is_suspected",
)
mutant(
    "hands nothing that readers found to repair",
    "ledger/client.py",
    old="        environment.suspect = suspicions.heard\n",
    new="",
    test=_SUSPECT + "a_damaged_replica_that_a_reader_met_is_marked",
)
mutant(
    "reports a replica with each read",
    "ledger/repair_hints.py",
    old="        return at_ms < self._reported.get(",
    new="        return False and at_ms < self._reported.get(",
    test=_SUSPECT + "a_replica_is_reported_once_in_a_while",
)
mutant(
    "forgets what could not be marked",
    "ledger/repair_hints.py",
    old="            self._reported.clear()\n",
    new="",
    test=_SUSPECT + "a_store_that_does_not_answer_is_asked_again_by_the_next_reader",
)
mutant(
    "hands different replicas to repair",
    "dlog/aio/maintain/repair_request.py",
    old="        case ReplicaFault.DAMAGED | ReplicaFault.UNREADABLE:\n",
    new="        case ReplicaFault.DAMAGED | ReplicaFault.UNREADABLE | ReplicaFault.DIFFERENT:\n",
    test="tests/dlog/aio/test_suspecting.py::test_who_does_not_answer_or_differs_is_not_handed_on",
)
mutant(
    "tries all that waits when a bookie comes",
    "ledger/mark.py",
    old="not (came and self._is_helped_by(came))",
    new="not came",
    test=_REPAIR + "a_mark_that_waits_for_no_bookie_is_left_alone_though_one_has_come",
)
mutant(
    "does not try what waits for a bookie when one comes",
    "bookie/autorecovery/worker.py",
    old="await repair_ledger(self._context, ledger_id, came=came)",
    new="await repair_ledger(self._context, ledger_id)",
    test="tests/bookie/autorecovery/test_worker.py::"
    "test_a_mark_that_waits_for_a_bookie_is_taken_up_when_one_comes",
)

mutant(
    "swaps in who is to be emptied since it was chosen",
    "bookie/autorecovery/repair_io.py",
    old="        check = CheckOp(DECOMMISSIONING, action.leaving_version)\n",
    new="        check = CheckOp(DECOMMISSIONING)\n",
    test="tests/bookie/autorecovery/test_worker.py::"
    "test_a_worker_that_slept_names_no_bookie_that_is_to_be_emptied_meanwhile",
)
mutant(
    "announces who is to be emptied to those alone who look later",
    _MARKS,
    old='            await self._store.multi((child, SetOp(DECOMMISSIONING, b"")))\n',
    new="            await self._store.multi((child,))\n",
    test="tests/bookie/autorecovery/test_worker.py::"
    "test_a_worker_that_slept_names_no_bookie_that_is_to_be_emptied_meanwhile",
)
mutant(
    "waits for members that no cookie speaks of",
    "bookie/autorecovery/metadata_checks.py",
    old="            if members <= known:\n",
    new="            if True:\n",
    test=_CHECKS + "a_member_that_has_no_cookie_any_more_is_marked_as_lost",
)
mutant(
    "retires a bookie that is registered",
    "bookie/autorecovery/decommission.py",
    old="multi((SetOp(path, retired, version), *absent))\n",
    new="set(path, retired, version)\n",
    test=_EMPTIED + "a_bookie_that_registered_since_it_was_looked_at_is_not_retired",
)
mutant(
    "frees the name of a bookie that was emptied",
    "bookie/autorecovery/decommission.py",
    old="multi((SetOp(path, retired, version), *absent))\n",
    new="multi((DeleteOp(path, version), *absent))\n",
    test=_EMPTIED + "the_name_of_an_emptied_bookie_is_never_free_again",
)
mutant(
    "takes an emptied name for one that comes back",
    "bookie/autorecovery/metadata_checks.py",
    old="        known = registered | (cookies - emptied)\n",
    new="        known = registered | cookies\n",
    test=_CHECKS + "a_ledger_that_names_an_emptied_bookie_is_marked",
)
mutant(
    "keeps who has left a ledger in its mark",
    _PLAN,
    old="        return replace(mark, lacks=kept) if kept else mark\n",
    new="        return mark\n",
    test=_REPAIR + "who_has_left_a_ledger_is_not_kept_by_what_else_that_lacks",
)
mutant(
    "lets who missed entries wait when it is back",
    "ledger/mark.py",
    old="{Reason.LOST, Reason.AWAY, Reason.MISSING}",
    new="{Reason.LOST, Reason.AWAY}",
    test=_REPAIR + "who_missed_an_entry_and_comes_back_gets_it_at_once",
)
mutant(
    "takes what a busy bookie refused for stored",
    "ledger/protocol/writer.py",
    old="                if event.first <= self.last_add_confirmed:\n",
    new="                if False:\n",
    test="tests/ledger/protocol/test_absences.py::"
    "test_what_a_busy_bookie_refused_and_others_confirmed_meanwhile_is_marked_too",
)
mutant(
    "marks each bookie that a recovery doubts by itself",
    "ledger/repair_hints.py",
    old="        self._suspect(ledger_id, bookies, Reason.MISSING)\n",
    new="        for each in bookies:\n"
    "            self._suspect(ledger_id, (each,), Reason.MISSING)\n",
    test="tests/ledger/test_suspecting.py::test_a_recovery_is_one_mark_whomever_it_doubts",
)
