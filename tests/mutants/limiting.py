"""Bugs of quotas: tenants that are not held up, others that are, and sums that are wrong."""

from tests.mutants.mutant import mutant

_BUCKETS = "tests/bookie/server/test_buckets.py::test_"
_DELAYING = "tests/bookie/server/test_delaying.py::test_"
_FLAG = _DELAYING + "a_flag_takes_nothing_out_of_a_quota_unless_its_client_has_a_role_that_repairs"
_HELD = _DELAYING + "who_goes_beyond_a_quota_is_not_read_from_and_others_are"

mutant(
    "holds nobody up",
    "bookie/server/add_connection.py",
    old="            if (hold_s := delaying.append(taken)) > 0:",
    new="            if (hold_s := delaying.append(taken)) < 0:",
    test=_HELD,
)
mutant(
    "takes what came with what is held up",
    "bookie/server/add_connection.py",
    old="self._preparing is None and self._held is None and not self._stream.is_full",
    new="self._preparing is None and not self._stream.is_full",
    test=_DELAYING + "what_was_read_at_once_waits_too",
)
mutant(
    "does not tell clients that they are held up",
    "bookie/server/add_connection.py",
    old="ack_message(ack.first, ack.last, ack.statuses, self._held_ms())",
    new="ack_message(ack.first, ack.last, ack.statuses)",
    test=_DELAYING + "a_client_does_not_take_a_bookie_that_holds_it_up_for_silent",
)
mutant(
    "takes a bookie that holds it up for silent",
    "ledger/transport/session.py",
    old="max(oldest, self._held_until) + self._limits.timeout_s",
    new="oldest + self._limits.timeout_s",
    test=_DELAYING + "a_client_does_not_take_a_bookie_that_holds_it_up_for_silent",
)
mutant(
    "never goes on with a client that was held up",
    "bookie/server/add_connection.py",
    old="        self._held = None\n        self._go_on()\n",
    new="        self._go_on()\n",
    test=_DELAYING + "what_was_held_up_is_taken_when_it_is_due",
)
mutant(
    "lets what a flag calls recovery cost nothing",
    "bookie/server/quota.py",
    old="if any(run.recovery for run in runs) and self.is_exempt:",
    new="if any(run.recovery for run in runs):",
    test=_FLAG,
)
mutant(
    "delays what repair reads",
    "bookie/server/read_connection.py",
    old="(query.fence or query.repairs) and delaying.is_exempt",
    new="query.fence and delaying.is_exempt",
    test=_DELAYING + "recovery_fences_and_repair_are_not_held_up",
)
mutant(
    "lets what a flag calls a repair's read cost nothing",
    "bookie/server/read_connection.py",
    old="(query.fence or query.repairs) and delaying.is_exempt",
    new="query.repairs or (query.fence and delaying.is_exempt)",
    test=_FLAG,
)
mutant(
    "lets questions pay that have to come again",
    "bookie/server/quota.py",
    old="        if wait_ns <= wait_ns_max:",
    new="        if True:",
    test=_BUCKETS + "a_question_that_has_to_come_again_is_paid_when_it_does",
)
mutant(
    "fills buckets without an end",
    "bookie/server/quota.py",
    old="        self._due = max(self._due, full) + amount * NS",
    new="        self._due += amount * NS",
    test=_BUCKETS + "who_waits_as_told_stays_within_the_rate_and_a_burst",
)
mutant(
    "counts what one bookie gets for what its ensemble gets",
    "bookie/server/quota.py",
    old="                        bucket.draw(-(-amount * ensemble // write_quorum), now_ns)",
    new="                        bucket.draw(amount, now_ns)",
    test=_BUCKETS + "a_bookie_counts_what_the_ensemble_of_a_ledger_gets_together",
)
mutant(
    "keeps to quotas of the name that a log had before",
    "bookie/server/quota.py",
    old="        if names != self.names:",
    new="        if False:",
    test=_BUCKETS + "a_log_that_is_renamed_is_under_the_quotas_of_its_new_name",
)
mutant(
    "forgets all quotas when they cannot be read",
    "bookie/server/quota.py",
    old="        except DamagedMetadata as error:\n",
    new="        except DamagedMetadata as error:\n"
    "            self.treasury.learn_quotas(type(self.treasury.quotas)())\n",
    test=_DELAYING + "quotas_that_cannot_be_read_leave_the_last_ones_in_force",
)
mutant(
    "hears of no quota after its start",
    "bookie/server/quota.py",
    old="        await follow(self._store, (QUOTAS, RENAMED_PATH, INSTANCE), self._changed)",
    new="        await follow(self._store, (RENAMED_PATH, INSTANCE), self._changed)",
    test=_DELAYING + "quotas_that_cannot_be_read_leave_the_last_ones_in_force",
)
