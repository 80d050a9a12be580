"""Bugs of evictions: too much, too early, half, or for ever."""

from tests.mutants.mutant import mutant

_STORED = "tests/bookie/storage/test_eviction.py::test_"
_CHOSEN = "tests/bookie/collector/test_eviction.py::test_"
_BUGS = "tests/bookie/autorecovery/test_ancestors_bugs.py::test_"
_DIRECTORY = "bookie/storage/ledger_directory.py"
_EVICTION = "bookie/collector/eviction.py"
_EVICTING = "bookie/collector/evictor.py"

# What the storage does.

mutant(
    "evicts with a tombstone",
    _DIRECTORY,
    old="            self.fences.add(ledger_ids)\n",
    new="            self.tombstones.add(ledger_ids)\n",
    test=_BUGS + "4668_a_bookie_takes_back_what_it_has_evicted",
)
mutant(
    "evicts what something was promised of since it was offered",
    "bookie/storage/engine.py",
    old="        self._holdings.promise(run.ledger_id)\n",
    new="",
    test=_STORED + "what_was_promised_since_the_offer_keeps_a_ledger",
)
mutant(
    "takes an add of what is here already for no promise",
    "bookie/storage/engine.py",
    old="        self._holdings.promise(run.ledger_id)\n        if record is not None:\n",
    new="        if record is None or checked.entries[-1] > record.last_entry:\n"
    "            self._holdings.promise(run.ledger_id)\n        if record is not None:\n",
    test=_STORED + "what_was_promised_since_the_offer_keeps_a_ledger",
)
mutant(
    "forgets what arrives while it evicts",
    "bookie/storage/checkpoint.py",
    old="                gone = [one for one in chosen if holdings.may_be_evicted(one, offer)]\n",
    new="                gone = list(chosen)\n",
    test=_STORED + "an_entry_that_arrives_between_the_roll_and_the_removal_keeps_the_ledger",
)
mutant(
    "misses what it evicted",
    _DIRECTORY,
    old="            self._count(removed=ledger_ids)\n            gone = dict",
    new="            gone = dict",
    test=_STORED + "a_start_after_an_eviction_misses_nothing",
)
mutant(
    "does not miss what it was about to evict",
    _DIRECTORY,
    old="                    self.index.written.setdefault(ledger_id, edition)\n",
    new="                    pass\n",
    test=_STORED + "an_entry_that_arrives_between_the_roll_and_the_removal_keeps_the_ledger",
)
mutant(
    "lets a crash bring back an index whose entries may be collected",
    _DIRECTORY,
    old="            self.index.sync_names(gone)\n",
    new="",
    test=_STORED + "a_start_after_an_eviction_misses_nothing",
)
mutant(
    "evicts without raising the generation",
    "bookie/storage/checkpoint.py",
    old="                holdings.generation += 1\n                return gone",
    new="                return gone",
    test=_STORED + "a_header_that_was_read_before_an_eviction_is_not_taken_after_it",
)
mutant(
    "forgets the fence of what it evicts",
    "bookie/storage/holdings.py",
    old="fenced=self.is_fenced(ledger_id))",
    new="fenced=False)",
    test=_STORED + "no_writer_adds_to_what_was_evicted[True-False]",
)
mutant(
    "takes a writer's add to what it evicted and nobody brought back",
    "bookie/storage/engine.py",
    old="        elif not run.recovery and self._holdings.is_fenced(run.ledger_id):\n",
    new="        elif False:\n",
    test=_STORED + "no_writer_adds_to_what_was_evicted[False-False]",
)
mutant(
    "forgets the fence of what came back in a replay",
    "bookie/storage/replay.py",
    old="            fenced = record.ledger_id in directory.fences\n",
    new="            fenced = False\n",
    test=_STORED + "the_power_may_fail_before_what_came_back_is_in_an_index_and_it_is_fenced_still",
)
mutant(
    "forgets its fences when they are damaged",
    _DIRECTORY,
    old="sorted(missing), problem or self._problem)",
    new="sorted(missing), problem)",
    test=_STORED
    + "a_damaged_file_of_fences_is_a_loss_after_which_no_writer_adds_to_what_was_there",
)

# What is decided, and asked.

mutant(
    "evicts without asking twice",
    _EVICTION,
    old="now >= since + self._config.eviction_pause_s",
    new="True",
    test=_CHOSEN + "what_was_seen_once_is_chosen_an_hour_later_and_not_before",
)
mutant(
    "evicts what is not closed",
    _EVICTION,
    old="    if metadata is None or metadata.state is not LedgerState.CLOSED:\n",
    new="    if metadata is None:\n",
    test=_CHOSEN + "of_a_ledger_that_is_not_closed_nothing_is_surplus[IN_RECOVERY]",
)
mutant(
    "looks at the last fragment only",
    _EVICTION,
    old="for fragment in metadata.fragments)",
    new="for fragment in metadata.fragments[-1:])",
    test=_CHOSEN + "what_no_fragment_of_a_closed_ledger_names_is_surplus",
)
mutant(
    "evicts all at once",
    _EVICTION,
    old="        room = self._room(held, now) if allowed is None else allowed\n",
    new="        room = UNLIMITED if allowed is None else allowed\n",
    test=_CHOSEN + "a_share_of_the_ledgers_goes_in_a_day_and_an_operator_may_allow_more",
)
mutant(
    "does not write the metadata before it evicts",
    "ledger/manager/ledger_store.py",
    old="            await self._store.set(path, node.value, node.version)\n",
    new="",
    test=_CHOSEN + "a_ledger_that_was_changed_since_it_was_read_stays",
)
mutant(
    "writes the metadata in whatever version before it evicts",
    "ledger/manager/ledger_store.py",
    old="            await self._store.set(path, node.value, node.version)\n",
    new="            await self._store.set(path, node.value)\n",
    test=_CHOSEN + "a_ledger_that_was_changed_since_it_was_read_stays",
)
mutant(
    "offers what it has read of already",
    _EVICTING,
    old="    offer = storage.offer(ledger_ids)\n    under_repair = dict.fromkeys("
    "await ledgers.under_repair(ledger_ids))\n",
    new="    under_repair = dict.fromkeys(await ledgers.under_repair(ledger_ids))\n"
    "    _ = [await ledgers.supersede(one, lambda _: False) for one in ledger_ids]\n"
    "    offer = storage.offer(ledger_ids)\n",
    test=_CHOSEN + "ledgers_are_offered_before_their_metadata_are_read_the_last_time",
)
mutant(
    "evicts what lacks copies",
    _EVICTING,
    old="        if one not in under_repair and await",
    new="        if await",
    test=_CHOSEN + "ledgers_that_lack_copies_or_are_being_repaired_stay",
)
mutant(
    "evicts what it may have lost a part of",
    _EVICTING,
    old="and not may_be_lost(ledger_id)",
    new="",
    test=_CHOSEN + "what_may_have_lost_something_keeps_what_was_there_before",
)
mutant(
    "evicts whatever the store has become meanwhile",
    _EVICTING,
    old="        alarm = doubt(self._instance, seen, before, after)\n",
    new="        alarm = None\n",
    test=_CHOSEN + "another_or_an_older_metadata_store_evicts_nothing",
)
mutant(
    "swaps in what was copied before the metadata were read",
    "bookie/autorecovery/protocol/repair.py",
    old="            if tries and situation.metadata.state is LedgerState.CLOSED:\n",
    new="            if False:\n",
    test=_BUGS
    + "895_2119_2813_no_bookie_is_swapped_in_for_what_it_evicted_however_long_who_sleeps",
)
