"""Bugs of writers that go on without a bookie, and of what is done about it."""

from tests.mutants.mutant import mutant

_ABSENCES = "ledger/protocol/absences.py"
_WRITER = "ledger/protocol/writer.py"
_REPLICATING = "bookie/autorecovery/protocol/repair.py"
_PLAN = "bookie/autorecovery/protocol/repair_plan.py"
_CLIENT = "ledger/client.py"
_REGISTRY = "ledger/registry.py"
_STEP = "tests/ledger/protocol/test_absences.py::test_"
_AWAY = "tests/bookie/autorecovery/test_away.py::test_"
_WRITES = "tests/bookie/autorecovery/test_degraded_writes.py::test_"
_LIST = "tests/ledger/test_registry.py::test_"

mutant(
    "leaves a bookie the moment it is gone",
    _ABSENCES,
    old="            self._leave_at = max(min(gone) + self._leave_gone_s, now + pause_s)\n",
    new="            self._leave_at = now + pause_s\n",
    test=_STEP + "an_idle_writer_leaves_a_bookie_that_is_gone_for_long",
)
mutant(
    "leaves a bookie that came back",
    _ABSENCES,
    old="                self._gone_since.pop(index, None)\n            else:\n",
    new="                pass\n            else:\n",
    test=_STEP + "a_bookie_that_comes_back_in_time_is_kept",
)
mutant(
    "looks for another where there is none",
    _ABSENCES,
    old="        if not gone or all(bookie in members for bookie in self._listed):\n",
    new="        if not gone:\n",
    test=_STEP + "nobody_is_left_while_there_is_no_other",
)
mutant(
    "takes who is gone for failed",
    _WRITER,
    old="        self._change.leaving = self._absences.to_leave(now)\n"
    "        if not self._change.leaving:\n",
    new="        for index in self._absences.to_leave(now):\n"
    "            self._change.fail(index, Status.UNREACHABLE)\n"
    "        if not self._change.failed:\n",
    test=_STEP + "who_is_gone_and_finds_no_place_taken_serves_on",
)
mutant(
    "forgets who failed while it looked for others",
    _WRITER,
    old="        if self._change.failed:  # others have, meanwhile\n"
    "            return self._begin_change()\n",
    new="",
    test=_STEP + "a_failure_during_the_choice_gets_a_choice_of_its_own",
)
mutant(
    "takes an old answer for a sign of life",
    _WRITER,
    old="        if not self._acks.slots[event.index].down:\n"
    "            self._absences.stored(event.index)\n",
    new="        self._absences.stored(event.index)\n",
    test=_STEP + "an_old_answer_of_a_bookie_that_is_down_does_not_settle_anything",
)
mutant(
    "waits ten seconds for a bookie that has just registered",
    _WRITER,
    old="        if has_come and self._change.failed:\n",
    new="        if False:\n",
    test=_STEP + "a_bookie_that_registers_again_is_tried_at_once_and_what_it_lacks_is_settled",
)
mutant(
    "marks once, whether that was written or not",
    _ABSENCES,
    old="dict.fromkeys(self._marking.missed))\n        self._marking = None\n",
    new="dict.fromkeys(self._marking.missed))\n",
    test=_STEP + "a_mark_is_repeated_until_it_is_known_to_be_written[answer0]",
)
mutant(
    "begins a ledger without the mark that it needs",
    _CLIENT,
    old="        if away:\n            await mark_ledger(",
    new="        if False:\n            await mark_ledger(",
    test=_WRITES + "a_ledger_is_marked_before_its_first_entry",
)
mutant(
    "names a bookie that is to be emptied",
    _REGISTRY,
    old="        self._away = tuple(sorted(bookie for bookie in away if bookie not in leaving))\n",
    new="        self._away = tuple(sorted(away))\n",
    test=_LIST + "who_has_a_cookie_and_takes_no_entries_is_away_unless_it_leaves",
)
mutant(
    "names a bookie whose name is retired",
    _REGISTRY,
    old="            if cookie.retired_ms:\n",
    new="            if False:\n",
    test=_LIST + "who_has_a_cookie_and_takes_no_entries_is_away_unless_it_leaves",
)
mutant(
    "opens a log degraded that does not want that",
    "dlog/aio/write/takeover_driver.py",
    old="            degraded_writes=settings.degraded_writes,\n",
    new="            degraded_writes=True,\n",
    test=_WRITES + "a_log_that_does_not_want_degraded_writes_waits_for_bookies",
)
mutant(
    "rolls by the setting of long ago",
    "dlog/aio/write/segment_roll.py",
    old="            if not manifest.settings.degraded_writes:\n",
    new="            if not self._settings.degraded_writes:\n",
    test=_WRITES + "a_roll_goes_by_the_setting_as_it_is_now[True]",
)
mutant(
    "unmarks a ledger whose writer adds to what lacks copies",
    _REPLICATING,
    old="        if situation.was_written_without(last):\n",
    new="        if False:\n",
    test=_AWAY + "as_long_as_the_writer_adds_to_what_lacks_copies_the_mark_stays",
)
mutant(
    "keeps a mark as long as the last fragment names the bookie",
    _PLAN,
    old="any(lack.fragment >= fragment.first_entry for",
    new="any(True for",
    test=_AWAY + "what_a_bookie_missed_is_copied_to_it_when_the_writer_has_begun_another_fragment",
)
mutant(
    "fences a writer for a bookie that is only away",
    _PLAN,
    old="lack.reason in {Reason.MISPLACED, Reason.AWAY}\n",
    new="lack.reason is Reason.MISPLACED\n",
    test=_AWAY + "nobody_is_fenced_for_a_bookie_that_is_only_away",
)
mutant(
    "fences a writer because a bookie came that it could take",
    _REPLICATING,
    old="        elif situation.mark.wants_bookie and not self._wants_bookie:\n",
    new="        elif False:\n",
    test=_AWAY + "a_writer_has_its_grace_again_when_a_bookie_comes_that_was_wanted",
)
mutant(
    "looks at no fragment behind the one that was written without a bookie",
    _PLAN,
    old="        if lack.reason is not Reason.AWAY or self.metadata.state is LedgerState.CLOSED:\n",
    new="        if lack.reason is not Reason.AWAY:\n",
    test=_AWAY + "of_a_closed_ledger_all_fragments_are_looked_at[abc]",
)
mutant(
    "keeps to itself what a bookie missed",
    _WRITER,
    old="            self._absences.missed(event.index)\n        if self.phase",
    new="            pass\n        if self.phase",
    test="tests/bookie/autorecovery/test_missed.py::"
    "test_the_writer_that_leaves_a_bookie_marks_what_that_missed",
)
mutant(
    "marks what a bookie missed as written without it",
    "ledger/writer.py",
    old="written_without(effect.bookies, effect.fragment, now_ms(), missed=effect.missed)\n",
    new="written_without(effect.bookies + effect.missed, effect.fragment, now_ms())\n",
    test="tests/bookie/autorecovery/test_missed.py::"
    "test_the_writer_that_leaves_a_bookie_marks_what_that_missed",
)
mutant(
    "marks what is in flight before the ledger is CLOSED",
    _WRITER,
    old="        if self.phase is Phase.CLOSING:\n",
    new="        if self.phase is Phase.CLOSING:\n"
    "            return [*self._absences.to_mark(EntryId(0), closed=True)]\n"
    "        if self.phase is Phase.CLOSING:\n",
    test=_STEP + "what_was_in_flight_while_the_ledger_was_closed_is_marked_behind_that",
)
mutant(
    "forgets what was missed if it could not be marked",
    _ABSENCES,
    old="        self._missed.update(dict.fromkeys(self._marking.missed))\n",
    new="",
    test=_STEP + "what_could_not_be_marked_is_marked_with_the_next_change",
)
mutant(
    "doubts nobody after a recovery",
    "ledger/recovery.py",
    old="                self._environment.doubt(self._ledger_id, effect.in_doubt)\n",
    new="                pass\n",
    test="tests/bookie/autorecovery/test_missed.py::"
    "test_what_a_dead_writer_had_in_flight_is_looked_for_after_the_recovery",
)
mutant(
    "drops what waits to be marked when it is closed",
    "ledger/repair_hints.py",
    old="            await asyncio.wait([self._writing], timeout=CLOSE_S)\n",
    new="            pass\n",
    test="tests/ledger/test_suspecting.py::test_what_waits_is_marked_before_the_client_is_closed",
)
mutant(
    "registers who is forgotten",
    _REGISTRY,
    old="            await store.multi((cookie, *gate, node_of_it))\n",
    new="            await store.multi((*gate, node_of_it))\n",
    test=_LIST + "a_name_that_is_retired_while_its_bookie_registers_is_not_registered",
)
mutant(
    "registers under a name that is retired",
    _REGISTRY,
    old="    if node.retired_ms or registration.identity not in",
    new="    if registration.identity not in",
    test=_LIST + "a_name_that_is_retired_is_not_registered",
)
mutant(
    "registers beside another bookie of the name",
    _REGISTRY,
    old='    if node.retired_ms or registration.identity not in ("", node.cookie):\n',
    new="    if node.retired_ms:\n",
    test=_LIST + "a_bookie_whose_name_is_another_ones_is_not_registered",
)
mutant(
    "registers beside a rise of the level",
    _REGISTRY,
    old="            await store.multi((cookie, *gate, node_of_it))\n",
    new="            await store.multi((cookie, node_of_it))\n",
    test="tests/ledger/test_levels.py::"
    "test_a_level_that_rises_while_a_bookie_registers_keeps_it_out",
)
mutant(
    "raises the level without a look once the door is shut",
    "ledger/feature_level_upgrade.py",
    old="        _check(_survey(shut, await attendance(store)), level)\n",
    new="        pass\n",
    test="tests/ledger/test_levels.py::"
    "test_a_bookie_that_registers_while_the_level_rises_stops_the_rise",
)
mutant(
    "stops for a full disk where it goes on for a dead one",
    _REGISTRY,
    old="        away += [name for name, found in registered.items() if found.read_only]\n",
    new="",
    test=_WRITES + "a_log_is_opened_and_written_while_one_of_three_bookies_is_read_only",
)
mutant(
    "settles a fragment when one of those is back that it was written without",
    _ABSENCES,
    old="self._back.issuperset(self._lacking)",
    new="not self._back.isdisjoint(self._lacking)",
    test=_STEP + "a_fragment_is_settled_when_all_are_back_that_it_was_written_without",
)
mutant(
    "lets the last add confirmed in entries stand still",
    "ledger/writer.py",
    old="        lac = self._machine.last_add_confirmed\n        entry_id",
    new="        lac = min(self._machine.last_add_confirmed, 1)\n        entry_id",
    test="tests/ledger/test_what_is_believed.py::test_"
    "each_entry_tells_bookies_what_is_confirmed_by_then",
)
