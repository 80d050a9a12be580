"""Bugs of a standby: two lead, nobody leads, or state that is not the log's."""

from tests.mutants.mutant import mutant

_STANDBY = "tests/dlog/aio/test_aio_standby.py::test_"
_AGAIN = "tests/dlog/aio/test_standing_again.py::test_"

mutant(
    "applies records of another log to its state",
    "dlog/aio/state_apply.py",
    old="                self.check_life(reader.incarnation)\n",
    new="",
    test=_AGAIN + "nothing_of_a_log_that_took_the_name_of_a_sealed_one_is_applied",
)
mutant(
    "counts a batch as applied before it is",
    "dlog/aio/state_apply.py",
    old="                applied = self._apply(batch)\n",
    new="                self.position = reader.position\n"
    "                applied = self._apply(batch)\n",
    test=_AGAIN + "the_log_is_handed_over_when_the_last_batch_was_applied_and_not_before",
)
mutant(
    "begins again to apply what it could not apply",
    "dlog/aio/state_apply.py",
    old="if task.done() and (task.cancelled() or task.exception() is None):",
    new="if task.done():",
    test=_STANDBY + "what_apply_raises_ends_the_standby_and_is_raised_by_its_promotion",
)
mutant(
    "ends following at trouble that passes",
    "dlog/aio/state_apply.py",
    old="return isinstance(error, LogError) and error.retryable",
    new="return False",
    test=_AGAIN + "a_resignation_while_the_store_is_away_is_followed_by_following_once_it_is_back",
)
mutant(
    "promotes twice",
    "dlog/aio/standby.py",
    old="if self._promoting is not None or self._resigning is not None or self.is_leader:",
    new="if False:",
    test=_STANDBY + "calls_out_of_order_are_refused",
)
mutant(
    "hands the log over before it has applied all of it",
    "dlog/aio/standby.py",
    old="            await self._catch_up(term, log)\n",
    new="",
    test=_AGAIN + "the_log_is_handed_over_when_the_last_batch_was_applied_and_not_before",
)
mutant(
    "applies what the leader appends itself",
    "dlog/aio/standby.py",
    old="            await self._following.stop()\n        except",
    new="            self._following.end = None\n            await self._following.go_on()\n"
    "        except",
    test=_STANDBY + "leadership_goes_round_and_no_state_misses_or_doubles_a_record",
)
mutant(
    "resigns without closing its log",
    "dlog/aio/standby.py",
    old="            await log.close()  # guarded",
    new="            pass  # guarded",
    test=_AGAIN + "closing_waits_for_a_resignation_that_goes_on",
)
mutant(
    "keeps its term when it resigns",
    "dlog/aio/standby.py",
    old="                self._guarding = None\n            await term.resign()\n",
    new="                self._guarding = None\n",
    test=_STANDBY + "only_the_next_in_line_stands_up_when_a_leader_resigns",
)
mutant(
    "applies its own appends after it has resigned",
    "dlog/aio/standby.py",
    old="        self._following.position, self._following.end = log.last_offset + 1, None\n",
    new="        self._following.end = None\n",
    test=_STANDBY + "leadership_goes_round_and_no_state_misses_or_doubles_a_record",
)
mutant(
    "lets its log take appends after its term",
    "dlog/aio/standby.py",
    old="            log.writer.lose(LostOwnership(self.name, _term_over(term)))\n",
    new="",
    test=_STANDBY + "a_leader_without_metadata_stops_by_itself",
)
mutant(
    "keeps its term although its log is lost",
    "dlog/aio/standby.py",
    old="            self._lose(_why_lost(log, term))\n            await term.resign()\n",
    new="            self._lose(_why_lost(log, term))\n",
    test=_STANDBY + "a_leader_whose_log_was_taken_by_force_lets_others_lead",
)
mutant(
    "keeps the term of a promotion that failed",
    "dlog/aio/standby.py",
    old="            await term.resign()\n            await self._following.go_on()\n",
    new="            await self._following.go_on()\n",
    test=_STANDBY + "a_promotion_that_fails_after_its_election_lets_others_lead",
)
mutant(
    "does not follow on after a promotion that failed",
    "dlog/aio/standby.py",
    old="            self._following.end = None\n            lost",
    new="            lost",
    test=_STANDBY + "leadership_lost_while_catching_up_is_won_again_and_nothing_applied_twice",
)
mutant(
    "leads in secret when its promotion is cancelled at the last moment",
    "dlog/aio/standby.py",
    old="            if _succeeded(self._promoting):",
    new="            if False:",
    test=_AGAIN + "a_promotion_that_succeeds_while_it_is_cancelled_does_not_lead_in_secret",
)
mutant(
    "stands for election on after its promotion was cancelled",
    "dlog/aio/standby.py",
    old="            standing.cancel()\n            await asyncio.wait({standing})\n",
    new="            if not standing.done():\n                raise\n",
    test=_STANDBY + "a_promotion_that_is_cancelled_leaves_no_candidate_and_can_be_tried_again",
)
mutant(
    "believes that it leads although its time is over",
    "dlog/aio/standby.py",
    old="            and self._term.is_current()\n",
    new="            and not self._term.lost.is_set()\n",
    test=_STANDBY + "a_term_that_ends_by_the_clock_alone_ends_leadership",
)
mutant(
    "closes before its resignation has ended",
    "dlog/aio/standby.py",
    old="            await asyncio.wait({self._resigning})\n",
    new="            pass\n",
    test=_AGAIN + "closing_waits_for_a_resignation_that_goes_on",
)
mutant(
    "leads again after a resignation that failed",
    "dlog/aio/standby.py",
    old='            self._lose(str(error) or "resigning was cancelled")\n',
    new="",
    test=_AGAIN + "who_cancels_a_resignation_when_its_log_is_closed_does_not_lead_again",
)
