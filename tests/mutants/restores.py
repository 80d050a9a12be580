"""Bugs of a restore of the metadata store, and of closing a ledger by hand."""

from tests.mutants.mutant import mutant

_CLOSE_FILE = "ledger/forced_close.py"
_RESTORE_FILE = "bookie/identity/restore.py"
_LIMBO_FILE = "bookie/loss/limbo.py"
_CLOSE = "tests/ledger/test_forced_close.py::test_"
_RESTORE = "tests/bookie/identity/test_restore.py::test_"
_COPY = "tests/ledger/test_namespace_copy.py::test_"
_COLLECT = "tests/bookie/collector/test_collector.py::test_"

mutant(
    "asks only the ensemble that the restored store names",
    _CLOSE_FILE,
    old="bookies = dict.fromkeys((*members, *named, *there, *known))",
    new="bookies = dict.fromkeys(members)",
    test=_CLOSE + "what_the_forgotten_ensemble_alone_holds_is_counted_as_found_elsewhere",
)
mutant(
    "closes a ledger while a bookie does not answer",
    _CLOSE_FILE,
    old="        if evidence.doubts:\n",
    new="        if False:\n",
    test=_CLOSE + "bookies_that_are_gone_keep_no_ledger_open_and_others_take_their_place",
)
mutant(
    "cuts what is proven to be confirmed",
    _CLOSE_FILE,
    old="    if end < evidence.confirmed and not below_confirmed:\n",
    new="    if False:\n",
    test=_CLOSE + "what_is_proven_to_be_confirmed_is_cut_only_if_that_is_asked_for",
)
mutant(
    "does not fence before it closes by hand",
    _CLOSE_FILE,
    old="evidence = await gather_evidence(environment, keys, metadata, fence=True, known=known)",
    new="evidence = await gather_evidence(environment, keys, metadata, known=known)",
    test=_CLOSE + "a_ledger_is_closed_at_the_entry_that_is_given_and_its_writer_is_fenced",
)
mutant(
    "fences a ledger that is only looked at",
    _CLOSE_FILE,
    old="fence=fence and is_member",
    new="fence=is_member",
    test=_CLOSE + "a_look_changes_nothing",
)
mutant(
    "closes by hand without copies for those that lack them",
    _CLOSE_FILE,
    old="            if holds(index, entry_id, self.quorum) and not self._has(bookie, entry_id)\n",
    new="            if False\n",
    test=_CLOSE + "what_only_one_bookie_holds_is_copied_before_the_close",
)
mutant(
    "closes a closed ledger again",
    _CLOSE_FILE,
    old="        if metadata.state is LedgerState.CLOSED:\n            assert metadata.last_entry "
    'is not None, "it is CLOSED"\n            raise',
    new="        if False:\n            raise",
    test=_CLOSE + "a_ledger_is_closed_at_the_entry_that_is_given_and_its_writer_is_fenced",
)
mutant(
    "reconciles without bookies that the store knows",
    "ledger/reconciliation.py",
    old="    if missing:\n",
    new="    if False:\n",
    test=_CLOSE + "without_a_bookie_that_the_store_knows_nothing_is_decided",
)
mutant(
    "takes ledgers from writers that began after the restore",
    "ledger/reconciliation.py",
    old=" if one < below]",
    new="]",
    test=_CLOSE + "ledgers_that_were_made_after_the_restore_are_left_to_their_writers",
)
mutant(
    "brings back nothing of what was moved since the backup",
    "ledger/reconciliation.py",
    old="                await copier.copy(a, b, fragment.bookies, spans)\n",
    new="                pass\n",
    test=_CLOSE + "a_closed_ledger_that_was_moved_since_comes_back_to_those_that_are_named",
)
mutant(
    "takes adds to ledgers that the restored store has forgotten",
    _LIMBO_FILE,
    old="self.phase is Phase.BEGUN or ledger_id < self.floor",
    new="self.phase is Phase.BEGUN",
    test=_RESTORE + "no_ledger_from_before_takes_a_writers_add_also_if_the_store_forgot_it",
)
mutant(
    "denies what it has let go of since the backup",
    _LIMBO_FILE,
    old="not (self.lost or let_go)",
    new="not self.lost",
    test=_RESTORE + "what_was_let_go_of_since_is_not_denied_in_a_list_either",
)
mutant(
    "forgets its own loss when the store is restored",
    "bookie/loss/accounts.py",
    old="before = Limbo(reason, lost=False) if self.limbo is None else self.limbo",
    new="before = Limbo(reason, lost=False)",
    test=_RESTORE + "a_loss_of_its_own_stays_one_when_the_store_is_restored",
)
mutant(
    "gives out ids again that were given out after the backup",
    _RESTORE_FILE,
    old="    floor = await ledgers.leave_ids_below(above)\n",
    new="    floor = above\n",
    test=_RESTORE + "new_ledgers_get_ids_above_all_that_any_bookie_ever_saw",
)
mutant(
    "accepts a restore beside bookies that run",
    _RESTORE_FILE,
    old="    if there:\n",
    new="    if False:\n",
    test=_RESTORE + "a_word_is_taken_only_while_no_bookie_runs",
)
mutant(
    "lets a process go on that slept through a restore",
    _RESTORE_FILE,
    old="        ended = replace(cookie, token=restore.token, tries=before, clean=False)\n",
    new="        ended = cookie\n",
    test=_RESTORE + "a_process_that_slept_through_the_restore_ends",
)
mutant(
    "believes any older store once one was accepted",
    "bookie/identity/stamp.py",
    old="        is_ended or any(c.restore != restore.token for c in cookies)\n",
    new="        True\n",
    test=_RESTORE + "a_second_restore_needs_a_word_of_its_own",
)
mutant(
    "does not look for older data beside a restored store",
    "bookie/identity/stamp.py",
    old="        if not is_seen and known.token:\n",
    new="        if False:\n",
    test=_RESTORE + "data_that_are_older_than_the_restored_store_are_refused",
)
mutant(
    "mixes directories of different starts beside a restored store",
    "bookie/identity/stamp.py",
    old="        if newest.token != cookie.token and newest.token not in cookie.tries:\n",
    new="        if False:\n",
    test=_RESTORE + "directories_of_different_starts_are_refused_beside_a_restored_store",
)
mutant(
    "counts starts beside a restored store on from those that the store knows",
    "bookie/identity/stamp.py",
    old="        life = replace(life, life=life.life + 1, token=token, clean=False)\n",
    new="        life = replace(life, life=known.life + 1, token=token, clean=False)\n",
    test=_RESTORE + "data_from_before_a_restore_that_was_honoured_are_refused",
)
mutant(
    "copies a namespace without its deletions",
    "ledger/namespace_copy.py",
    old="    if not _counts(path):\n",
    new="    if True:\n",
    test=_COPY + "ledgers_and_what_must_never_go_back_are_the_same",
)
mutant(
    "copies what belongs to sessions",
    "ledger/namespace_copy.py",
    old="        if _is_of_session(path):\n",
    new="        if False:\n",
    test=_COPY + "ledgers_and_what_must_never_go_back_are_the_same",
)
mutant(
    "makes the copy a namespace before it is whole",
    "ledger/namespace_copy.py",
    old="        if path == INSTANCE:\n            continue\n",
    new="",
    test=_COPY + "a_copy_that_was_interrupted_is_no_namespace",
)
mutant(
    "collects ledgers that the restored store has forgotten",
    "bookie/collector/collector.py",
    old="tuple(filter(self._is_orphan, gone))",
    new="()",
    test=_COLLECT + "ledgers_that_a_restored_store_has_forgotten_are_kept_until_an_operators_word",
)
