"""Bugs of what operators start by hand: it copies what is there, ends too early, or never."""

from tests.mutants.mutant import mutant

_REPLICATING = "bookie/autorecovery/protocol/repair.py"
_RECOVERING = "bookie/autorecovery/protocol/manual_recovery.py"
_REBALANCING = "bookie/autorecovery/protocol/rebalance.py"
_MOVE = "tests/bookie/autorecovery/test_moving.py::test_"
_RECOVER = "tests/bookie/autorecovery/test_recovering.py::test_"
_REBALANCE = "tests/bookie/autorecovery/test_rebalancing.py::test_"
_LOCATE = "tests/bookie/autorecovery/test_locating.py::test_"
_ERRAND = "tests/bookie/autorecovery/test_errands.py::test_"
_LEAVE = "tests/dlog/cli/test_cli_leaving.py::test_"
_OPERATE = "tests/dlog/cli/test_cli_recovering.py::test_"
_THROTTLE = "tests/bookie/autorecovery/test_throttling.py::test_"

mutant(
    "copies to whoever has just come, whoever was wanted",
    _REPLICATING,
    old="index: bookie for index, bookie in chosen if into is None or bookie in into",
    new="index: bookie for index, bookie in chosen",
    test=_MOVE + "one_that_came_too_late_to_be_unwanted_gets_nothing",
)
mutant(
    "fences a writer to spread copies better",
    _REPLICATING,
    old=" and situation.is_worth_a_fence(bookie)\n",
    new="\n",
    test=_MOVE + "nobody_is_fenced_to_spread_copies",
)
mutant(
    "recovers a bookie that came back meanwhile",
    _RECOVERING,
    old="    if serving := request.bookies & seen.registered:\n",
    new="    if serving := not last.named and request.bookies & seen.registered:\n",
    test=_RECOVER + "one_that_comes_back_ends_it",
)
mutant(
    "is complete after a pass that repaired all that it met",
    _RECOVERING,
    old="                if not left:\n                    continue\n",
    new="                if not left:\n                    return Finish(Outcome.COMPLETE)\n",
    test=_RECOVER + "it_is_complete_after_a_pass_that_met_no_ledger",
)
mutant(
    "takes metadata that cannot be read for metadata that do not name the bookie",
    _RECOVERING,
    old="    if ended.unreadable:\n",
    new="    if ended.unreadable > 1:\n",
    test=_RECOVER + "metadata_that_cannot_be_read_may_name_it",
)
mutant(
    "goes on for ever with ledgers that are named again and again",
    _RECOVERING,
    old="            if ended.repaired and not (before.named and ended.named >= before.named):\n",
    new="            if ended.repaired:\n",
    test=_RECOVER + "it_ends_though_ledgers_are_repaired_that_name_the_bookie_all_the_same",
)
mutant(
    "copies a ledger to a bookie that has a copy in another of the fragments",
    _REBALANCING,
    old="            if all(self._may_swap(fragment, source, target) for fragment in concerned):\n",
    new="            if any(self._may_swap(fragment, source, target) for fragment in concerned):\n",
    test=_REBALANCE + "a_bookie_that_has_a_copy_in_one_of_the_fragments_gets_no_other",
)
mutant(
    "takes a rack away from a ledger to make bookies even",
    _REBALANCING,
    old='        return len(after | {self._racks.get(target, "")}) >= len(before)\n',
    new="        return True\n",
    test=_REBALANCE + "a_move_never_takes_a_rack_away",
)
mutant(
    "moves more than was allowed",
    _REBALANCING,
    old="self.moved_bytes + size_bytes > self._bytes_max",
    new="self.moved_bytes > self._bytes_max",
    test=_REBALANCE + "no_more_moves_than_was_allowed",
)
mutant(
    "makes another bookie full instead of this one",
    _REBALANCING,
    old="load >= self._mean or load + size_bytes >= self.loads[source] or not is_far",
    new="load >= self._mean or not is_far",
    test=_REBALANCE + "a_ledger_that_would_only_change_who_is_full_stays",
)
mutant(
    "takes no limit for no setting",
    "bookie/autorecovery/worker.py",
    old="        self.pace.set_rate(config.bytes_per_s if bytes_per_s is None else bytes_per_s)\n",
    new="        self.pace.set_rate(bytes_per_s or config.bytes_per_s)\n",
    test=_THROTTLE + "a_worker_that_runs_heeds_each_change_and_goes_back_to_its_own",
)
mutant(
    "heeds the throttle only at the start",
    "bookie/autorecovery/throttle.py",
    old="            await first_of(changing.changed(), timeout_s=LOOK_S)\n",
    new="            await asyncio.sleep(LOOK_S)\n",
    test=_THROTTLE + "a_worker_that_runs_heeds_each_change_and_goes_back_to_its_own",
)
mutant(
    "waits without a word where nobody makes the copies of a bookie that is emptied",
    "bookie/autorecovery/protocol/decommission.py",
    old="trouble=error_met or marks.idle_why,",
    new="trouble=error_met,",
    test="tests/bookie/autorecovery/test_decommissioning.py::test_"
    "where_nobody_makes_the_copies_it_says_so[False-no process of repair runs]",
)
mutant(
    "copies to anybody, whoever was named",
    "bookie/autorecovery/manual_repair.py",
    old="config = replace(self._context.config, into=into)",
    new="config = replace(self._context.config, into=None)",
    test=_RECOVER + "what_a_lost_bookie_held_goes_to_the_one_that_is_named",
)
mutant(
    "repairs by hand what a worker is at",
    "bookie/autorecovery/manual_repair.py",
    old="        return await self._marks.lock(ledger_id)\n",
    new="        return await self._marks.lock(ledger_id) or True\n",
    test=_ERRAND + "a_ledger_that_a_worker_repairs_is_left_to_it",
)
mutant(
    "keeps the lock of a ledger that was repaired by hand",
    "bookie/autorecovery/manual_repair.py",
    old="        self._own.pop(ledger_id, None)\n        await self._marks.unlock(ledger_id)\n",
    new="        self._own.pop(ledger_id, None)\n",
    test=_ERRAND + "an_errand_leaves_neither_mark_nor_lock",
)
mutant(
    "calls a ledger whole whose bookies lack entries",
    "bookie/autorecovery/location.py",
    old="            holder.state.serves and not holder.missing\n",
    new="            holder.state.serves\n",
    test=_LOCATE + "what_a_member_says_that_it_lacks_is_named",
)
mutant(
    "takes a bookie for one that is away whose data were given up",
    "bookie/autorecovery/location.py",
    old="            states[bookie] = BookieState.RETIRED if gone else BookieState.AWAY\n",
    new="            states[bookie] = BookieState.AWAY\n",
    test=_LOCATE + "a_member_that_is_away_was_retired_or_forgotten_is_shown_as_that",
)
mutant(
    "gives ledgers to a bookie that is to be emptied",
    "bookie/autorecovery/rebalance.py",
    old="for name in client.bookies.writable() if name not in leaving}",
    new="for name in client.bookies.writable()}",
    test=_REBALANCE + "a_bookie_that_is_to_be_emptied_gets_nothing[True]",
)
mutant(
    "prints the same line again and again while a bookie is emptied",
    "dlog/cli/bookie/decommission_command.py",
    old="        if words != shown:\n",
    new="        if words:\n",
    test=_LEAVE + "what_has_not_changed_is_not_printed_again",
)
mutant(
    "retires the name of a bookie that runs",
    "dlog/cli/bookie/decommission_command.py",
    old="        await check_forgettable(client.store, bookie, None)\n",
    new="",
    test=_OPERATE + "a_bookie_that_is_gone_can_be_given_up_by_force_and_one_that_runs_cannot",
)
mutant(
    "replaces a bookie that runs",
    "dlog/cli/bookie/replace_command.py",
    old="    await check_forgettable(client.store, old, None)\n",
    new="",
    test=_OPERATE + "a_bookie_that_runs_is_not_replaced_nor_without_a_word",
)
