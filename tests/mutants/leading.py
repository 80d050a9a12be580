"""Bugs of elections: who is dead, who leads, and what is left of who led."""

from tests.mutants.mutant import mutant

_CAMPAIGN = "tests/leader/test_campaign.py::test_"
_REFUSALS = "tests/leader/test_refusals.py::test_"
_ELECTION = "tests/leader/test_election.py::test_"
_LIFELINE = "tests/leader/test_lifeline.py::test_"
_RESIGNING = "tests/leader/test_resigning.py::test_"
_SILENCE = "tests/leader/test_silence.py::test_"
_TERM = "tests/leader/test_term.py::test_"

mutant(
    "takes silence for a death",
    "leader/lifeline.py",
    old="    except TimeoutError:\n        return False\n",
    new="    except TimeoutError:\n        return True\n",
    test=_SILENCE + "a_port_that_takes_connections_and_says_nothing_is_no_sign_of_death",
)
mutant(
    "takes a connection that broke for a death",
    "leader/lifeline.py",
    old="        connection.transport.abort()\n    return await _refuses(address, security)\n",
    new="        connection.transport.abort()\n    return True\n",
    test=_LIFELINE + "a_broken_connection_to_a_living_process_means_nothing",
)
mutant(
    "takes a port that refuses for a death wherever it is",
    "leader/lifeline.py",
    old="return gone and refusals.is_death(address, here=network())",
    new="return gone",
    test=_LIFELINE + "a_port_that_refuses_from_the_start_tells_of_a_death_in_our_own_network_only",
)
mutant(
    "believes whoever listens at the port",
    "leader/lifeline.py",
    old="if not secrets.compare_digest(said, address.secret):",
    new="if False:",
    test=_LIFELINE + "a_port_of_somebody_else_means_nothing_not_even_when_it_closes",
)
mutant(
    "lets its followers wait when it goes",
    "leader/lifeline.py",
    old="        for follower in list(self._followers):\n            self._let_go(follower)\n",
    new="",
    test=_LIFELINE + "a_follower_that_comes_while_the_candidate_goes_is_let_go_too",
)
mutant(
    "leads on after its session was lost",
    "leader/term.py",
    old="            and not self._session.lost.is_set()\n",
    new="",
    test=_CAMPAIGN + "the_end_of_the_session_ends_the_term_and_elects_the_next",
)
mutant(
    "leads on until a task has noticed that its lease is over",
    "leader/term.py",
    old="            and self._clock() <= self._proven_at + self._lease_s\n",
    new="",
    test=_TERM + "a_leader_whose_lease_is_over_knows_it_before_any_task_of_it_has_run",
)
mutant(
    "counts a proof from when it was answered",
    "leader/term.py",
    old="        if self._clock() <= self._proven_at + self._lease_s:\n"
    "            self._proven_at = max(self._proven_at, asked_at)\n",
    new="        self._proven_at = self._clock()\n",
    test=_TERM + "seeing_its_node_proves_that_it_led_when_it_asked_and_not_when_it_was_answered",
)
mutant(
    "verifies from when it was answered",
    "leader/term.py",
    old="            return False\n        self._proven_at = max(self._proven_at, asked_at)\n",
    new="            return False\n        self._proven_at = self._clock()\n",
    test=_TERM + "what_is_verified_held_when_it_was_asked_for_and_not_when_it_was_answered",
)
mutant(
    "takes any node of its own for the one that was elected",
    "leader/term.py",
    old="if not (isinstance(found, Elected) and found.own == self._candidacy):",
    new="if not isinstance(found, Elected):",
    test=_TERM + "a_create_of_ours_that_landed_late_does_not_stand_for_our_node_that_is_gone",
)
mutant(
    "keeps its node when its lease is over",
    "leader/term.py",
    old='if self.lost_reason != "resigned":',
    new="if False:",
    test=_CAMPAIGN + "a_leader_without_proof_gives_up_by_its_own_clock_and_clears_the_way",
)
mutant(
    "keeps its node when it resigns",
    "leader/term.py",
    old="        await withdraw(self._store, self.log, self._candidacy.token)\n"
    "        await asyncio.wait({self._guardian})\n",
    new="        await asyncio.wait({self._guardian})\n",
    test=_CAMPAIGN + "after_a_resignation_the_next_leads_with_a_larger_epoch",
)
mutant(
    "resigns when the metadata store has answered",
    "leader/term.py",
    old="        self._guardian.cancel()  # it may be asking a store that does not answer\n",
    new="",
    test=_RESIGNING + "resigning_takes_no_longer_although_a_proof_of_leadership_is_awaited",
)
mutant(
    "gives a withdrawal up at the first trouble",
    "leader/withdrawal.py",
    old="            await asyncio.sleep(backoff.next())\n",
    new="            return\n",
    test=_CAMPAIGN + "a_node_whose_withdrawal_failed_is_taken_away_later",
)
mutant(
    "withdraws without waiting for a create that is on its way",
    "leader/withdrawal.py",
    old='    await delete_node(store, f"{path}/{node_prefix(token)}barrier")  # there is none\n',
    new="",
    test=_SILENCE + "a_campaign_that_is_given_up_while_its_create_is_on_its_way_leaves_no_node",
)
mutant(
    "elects the newest candidate",
    "leader/election.py",
    old="    if index == 0:\n",
    new="    if index == len(candidates) - 1:\n",
    test=_ELECTION + "the_lowest_sequence_leads_whatever_the_order_of_the_names",
)
mutant(
    "lets all candidates watch the one who leads",
    "leader/election.py",
    old="candidates[index - 1]",
    new="candidates[0]",
    test=_ELECTION + "each_other_candidate_watches_the_one_just_before_it",
)
mutant(
    "keeps two nodes of one candidate",
    "leader/campaign.py",
    old='                await delete_node(self._store, f"{self._path}/{surplus.name}")\n',
    new="                pass\n",
    test=_CAMPAIGN + "a_create_that_lands_late_is_given_up",
)
mutant(
    "leads by a node of a session that was lost",
    "leader/campaign.py",
    old="return None if session.lost.is_set() else (own, asked_at)",
    new="return (own, asked_at)",
    test=_CAMPAIGN + "a_node_whose_session_ends_as_it_is_looked_at_elects_nobody",
)
mutant(
    "leaves the node of a campaign that was given up",
    "leader/campaign.py",
    old="                await withdraw(self._store, self._log, token)\n",
    new="                pass\n",
    test=_CAMPAIGN + "a_campaign_gives_up_in_time_and_takes_its_node_away",
)
mutant(
    "asks a metadata store that is away all the time",
    "leader/campaign.py",
    old="                await asyncio.sleep(backoff.next())\n",
    new="                await asyncio.sleep(0)\n",
    test=_CAMPAIGN + "a_campaign_waits_for_a_store_that_is_away_and_asks_it_rarely",
)
mutant(
    "waits for the session of a process that is known to be dead",
    "leader/campaign.py",
    old="                await delete_node(self._store, path)\n                return\n",
    new="                return\n",
    test="tests/leader/test_refusals.py::"
    "test_a_candidate_whose_predecessor_died_unwatched_leads_before_its_session_ends",
)
mutant(
    "forgets the network stack that it first heard of, not the one it last heard of longest ago",
    "leader/refusals.py",
    old="        self._certain.pop(key, None)\n",
    new="",
    test=_REFUSALS + "the_stack_that_was_last_heard_of_longest_ago_is_forgotten_first",
)
mutant(
    "says that nobody leads when the leader goes as it is asked for",
    "leader/info.py",
    old="            continue  # it went between the two reads: the next one leads\n",
    new="            break\n",
    test=_CAMPAIGN + "a_leader_that_goes_while_it_is_asked_for_gives_way_to_the_next",
)
mutant(
    "asks a server that lags behind who leads",
    "leader/info.py",
    old="    path = leaders_path(log)\n    await store.sync(path)\n",
    new="    path = leaders_path(log)\n",
    test=_CAMPAIGN + "who_leads_is_asked_of_a_server_that_has_caught_up",
)
mutant(
    "reads the record of a later version as if it knew it",
    "leader/record.py",
    old="        if node.version != FORMAT_VERSION:\n",
    new="        if False:\n",
    test=_CAMPAIGN + "a_candidate_of_a_later_version_is_shown_as_unreadable",
)
