"""Bugs of what looks after logs: deleted too much, or called healthy what is not."""

from tests.mutants.mutant import mutant

_JANITOR = "tests/dlog/aio/test_janitor.py::test_"
_STORES = "tests/dlog/aio/test_namespace_stores.py::test_"
_EMPTIED = "tests/bookie/autorecovery/test_decommissioning.py::test_"
_LIMBO = "tests/bookie/loss/test_limbo.py::test_"
_VERIFYING = "tests/dlog/aio/test_verifying.py::test_"
_TRIMMING = "tests/dlog/aio/test_trimming.py::test_"
_GIVEN_UP = "tests/dlog/aio/test_what_is_given_up.py::test_"

mutant(
    "takes each ledger that no log lists for an orphan",
    "dlog/aio/maintain/survey.py",
    old="return self.standing is not None and self.standing.is_orphan",
    new="return self.standing is not None",
    test=_JANITOR + "orphans_go_and_everything_else_stays",
)
mutant(
    "takes a log that was renamed behind its look for gone",
    "dlog/aio/maintain/survey.py",
    old="name is None and await count_of_renames(ledgers.store) == found.renames",
    new="name is None",
    test=_JANITOR + "a_log_that_is_renamed_before_each_look_is_never_gone",
)
mutant(
    "takes a log whose manifest it cannot read for gone",
    "dlog/aio/maintain/survey.py",
    old="            readable = False\n            found.troubles",
    new="            found.troubles",
    test=_JANITOR + "while_one_manifest_cannot_be_read_no_ledger_counts_as_one_of_a_deleted_log",
)
mutant(
    "takes a log that the list of logs lacks for gone",
    "dlog/aio/maintain/survey.py",
    old="    if manifest is not None:\n        if name is None:\n",
    new="    if manifest is not None and name is not None:\n        if name is None:\n",
    test=_JANITOR + "a_log_that_the_list_lacks_is_read_before_its_ledgers_are_orphans",
)
mutant(
    "takes a log that is listed and not found for gone",
    "dlog/aio/maintain/survey.py",
    old="            missing.append(path_of(name))\n",
    new="",
    test=_JANITOR + "a_log_that_is_listed_and_not_found_lets_no_ledger_count_as_orphan",
)
mutant(
    "deletes on what a damaged store says",
    "dlog/aio/maintain/survey.py",
    old="    await ledgers.store.verify()\n",
    new="",
    test=_STORES + "a_pass_over_a_damaged_store_deletes_nothing",
)
mutant(
    "takes ledgers for gone that a damaged store does not know",
    "ledger/manager/ledger_store.py",
    old="        if gone:\n            await self._store.verify()\n",
    new="",
    test="tests/ledger/test_manager.py::test_no_ledger_is_absent_from_a_store_that_is_damaged",
)
mutant(
    "empties a bookie by what a damaged store does not say",
    "bookie/autorecovery/decommission.py",
    old="        await self._store.verify()  # what is not found there does not name the bookie\n",
    new="",
    test=_EMPTIED + "no_bookie_is_emptied_by_what_a_damaged_store_does_not_say",
)
mutant(
    "passes over a ledger that is listed and not found",
    "bookie/autorecovery/ledger_scan.py",
    old="    found |= dict.fromkeys(await ledgers.hidden(missing))\n",
    new="",
    test=_EMPTIED + "a_ledger_that_the_store_hides_counts_as_one_that_cannot_be_read",
)
mutant(
    "ends the doubt of a ledger that is listed and not found",
    "bookie/server/loss_resolver.py",
    old="    found |= dict.fromkeys(await ledgers.hidden(missing))\n",
    new="",
    test=_LIMBO + "no_ledger_that_the_store_hides_leaves_a_limbo",
)
mutant(
    "ends the limbo of a ledger that one list lacks",
    "bookie/server/loss_resolver.py",
    old="dict.fromkeys(await ledgers.absent(missing))",
    new="dict.fromkeys(missing)",
    test=_LIMBO + "no_ledger_that_the_store_hides_leaves_a_limbo",
)
mutant(
    "trims behind one list of consumers",
    "dlog/aio/maintain/trim.py",
    old="        processed = min(processed, await _processed(ledgers, node, manifest))\n",
    new="        pass\n",
    test=_JANITOR + "retention_waits_for_a_consumer_that_one_list_lacks",
)
mutant(
    "takes a consumer that is listed and not found for deleted",
    "dlog/aio/store/consumer_nodes.py",
    old="            missing.append(node.path)\n",
    new="",
    test=_JANITOR + "retention_waits_for_a_consumer_that_one_list_lacks",
)
mutant(
    "ends its look at the first log that is in trouble",
    "dlog/aio/maintain/survey.py",
    old="            found.troubles.append(Trouble(name, error))\n            continue\n",
    new="            raise\n",
    test=_JANITOR + "while_one_manifest_cannot_be_read_no_ledger_counts_as_one_of_a_deleted_log",
)
mutant(
    "ends its look at the first log that cannot be looked after",
    "dlog/aio/maintain/survey.py",
    old="            found.troubles.append(Trouble(name, error))\n    found.listed",
    new="            raise\n    found.listed",
    test=_JANITOR + "trouble_with_one_log_or_ledger_does_not_keep_the_janitor_from_the_others",
)
mutant(
    "deletes any number of orphans in one pass",
    "dlog/aio/maintain/janitor.py",
    old="if len(orphans) >= self._config.orphans_max:",
    new="if False:",
    test=_JANITOR + "one_pass_deletes_no_more_orphans_than_it_may",
)
mutant(
    "ends a pass at the first ledger that cannot be deleted",
    "dlog/aio/maintain/janitor.py",
    old='            troubles.append(Trouble(f"ledger {orphan.ledger_id}", error))\n'
    "            return False\n",
    new="            raise\n",
    test=_JANITOR + "trouble_with_one_log_or_ledger_does_not_keep_the_janitor_from_the_others",
)
mutant(
    "works beside the janitor that was elected",
    "dlog/aio/maintain/janitor.py",
    old="        if not self._config.elect:\n",
    new="        if True:\n",
    test=_JANITOR + "of_several_janitors_one_is_elected_and_another_follows_it",
)
mutant(
    "ends at an outage",
    "dlog/aio/maintain/janitor.py",
    old='                say("janitor_pass_failed", error=str(error))\n',
    new="                raise\n",
    test=_JANITOR + "the_janitor_outlives_an_outage",
)
mutant(
    "lists what retention trimmed and deletes nothing",
    "dlog/aio/maintain/janitor.py",
    old="            await delete_listed(self._ledgers, node, kept)\n",
    new="",
    test=_JANITOR + "retention_reaches_logs_without_a_writer",
)
mutant(
    "trims what consumers have not processed",
    "dlog/aio/maintain/trim.py",
    old="if manifest.settings.retention_waits_for_consumers:",
    new="if False:",
    test=_JANITOR + "the_janitor_asks_the_slowest_consumer_if_the_settings_say_so",
)
mutant(
    "asks the fastest consumer",
    "dlog/aio/maintain/trim.py",
    old="return min((state.position",
    new="return max((state.position",
    test=_GIVEN_UP + "retention_waits_for_the_slowest_of_several_consumers",
)
mutant(
    "truncates beyond the end",
    "dlog/aio/maintain/trim.py",
    old="if target > tail.next_offset and target > (end := await acknowledged_end(ledgers, node)):",
    new="if False:",
    test=_TRIMMING + "a_truncation_beyond_the_end_or_of_no_log_is_refused",
)
mutant(
    "refuses to truncate what bookies do not say to be confirmed yet",
    "dlog/aio/maintain/trim.py",
    old="if target > tail.next_offset and target > (end := await acknowledged_end(ledgers, node)):",
    new="if target > (end := tail.next_offset):",
    test=_GIVEN_UP + "nobody_truncates_what_bookies_hold_before_it_is_confirmed",
)
mutant(
    "leaves what it truncated to others to be deleted",
    "dlog/aio/maintain/trim.py",
    old="    return await delete_listed(ledgers, node, manifest)\n",
    new="    return manifest\n",
    test=_TRIMMING + "a_log_is_truncated_by_each_way_to_name_a_place",
)
mutant(
    "calls a log healthy whose copy is missing",
    "dlog/aio/maintain/verify.py",
    old="                _mark(share, held, first, min(found.considered, upto),"
    " ReplicaFault.MISSING)\n",
    new="",
    test=_VERIFYING + "a_damaged_a_missing_and_a_different_replica_are_found_on_their_bookies",
)
mutant(
    "calls a log healthy whose copy is on no disk of a bookie",
    "dlog/aio/maintain/verify.py",
    old="                _mark(share, held, first, last, ReplicaFault.MISSING)\n",
    new="",
    test=_VERIFYING + "a_damaged_a_missing_and_a_different_replica_are_found_on_their_bookies",
)
mutant(
    "calls a log healthy whose copies differ",
    "dlog/aio/maintain/verify.py",
    old="            for bookie in others:\n",
    new="            for bookie in ():\n",
    test=_VERIFYING + "a_damaged_a_missing_and_a_different_replica_are_found_on_their_bookies",
)
mutant(
    "calls a log healthy that has lost an entry",
    "dlog/aio/maintain/verify.py",
    old="                self._note([check.lost(entry_id)])\n",
    new="",
    test=_VERIFYING + "an_entry_that_no_replica_gives_is_lost_and_what_follows_is_still_looked_at",
)
mutant(
    "takes a ledger that is gone for one that was trimmed",
    "dlog/aio/maintain/verify.py",
    old="                if await self._is_listed(segment):\n",
    new="                if False:\n",
    test=_VERIFYING + "a_segment_that_is_trimmed_meanwhile_is_no_problem_and_a_missing_one_is",
)
mutant(
    "takes a ledger that was trimmed for one that is gone",
    "dlog/aio/maintain/verify.py",
    old="                if await self._is_listed(segment):\n",
    new="                if True:\n",
    test=_VERIFYING + "a_segment_that_is_trimmed_meanwhile_is_no_problem_and_a_missing_one_is",
)
mutant(
    "looks for an entry where it was before it moved",
    "dlog/aio/maintain/verify.py",
    old="if fresh.fragment_of(window[-1]) == fragment:",
    new="if True:",
    test=_VERIFYING + "a_bookie_that_is_replaced_during_the_look_is_not_asked_for_what_came_later",
)
mutant(
    "looks for an entry where those before it are",
    "dlog/aio/maintain/verify.py",
    old="if fresh.fragment_of(window[-1]) == fragment:",
    new="if fresh.fragment_of(window[0]) == fragment:",
    test=_VERIFYING + "a_bookie_that_is_replaced_during_the_look_is_not_asked_for_what_came_later",
)
mutant(
    "does not notice a ledger that is missing",
    "dlog/aio/maintain/audit.py",
    old="if not found.exists(segment.ledger_id) and await self._is_missing(node, segment):",
    new="if False:",
    test=_JANITOR + "the_audit_finds_segments_whose_ledgers_are_missing",
)
mutant(
    "calls a ledger missing that was made during the look",
    "dlog/aio/maintain/audit.py",
    old="if not found.exists(segment.ledger_id) and await self._is_missing(node, segment):",
    new="if not found.exists(segment.ledger_id):",
    test=_JANITOR + "a_ledger_made_during_the_look_is_neither_missing_nor_an_orphan",
)
mutant(
    "calls a namespace healthy that has lost a ledger",
    "dlog/aio/maintain/audit.py",
    old="return not (self.missing or self.troubles or",
    new="return not (self.troubles or",
    test=_JANITOR + "the_audit_finds_segments_whose_ledgers_are_missing",
)
