"""Bugs of the command line: it claims what was not done, or ends without a word."""

from tests.mutants.mutant import mutant

_LOOKING = "tests/dlog/cli/test_cli_looking.py::test_"
_OPERATORS = "tests/dlog/cli/test_cli_operators.py::test_"
_HEALTH = "tests/dlog/cli/test_cli_health.py::test_"

mutant(
    "commits for a consumer what was read and not printed",
    "dlog/cli/log/tail_command.py",
    old="await reader.commit(taken[-1].offset + 1)",
    new="await reader.commit(batch[-1].offset + 1)",
    test=_LOOKING + "a_consumer_is_not_ahead_of_what_was_printed_although_more_was_read",
)
mutant(
    "calls a pass of a janitor that could not do everything a success",
    "dlog/cli/janitor.py",
    old="return not done.troubles",
    new="return True",
    test=_OPERATORS + "what_a_janitor_could_not_do_is_told_and_is_the_exit_code",
)
mutant(
    "does not say why a janitor ended by itself",
    "dlog/cli/runner.py",
    old="            task.result()  # raises why it ended by itself\n",
    new="            pass\n",
    test=_OPERATORS + "a_janitor_that_ends_by_itself_says_why",
)
mutant(
    "takes a time for one of the machine's zone",
    "dlog/starts.py",
    old="moment = moment.replace(tzinfo=UTC)",
    new="moment = moment.astimezone()",
    test="tests/dlog/cli/test_cli_values.py::test_a_time_is_utc_wherever_the_machine_stands",
)
mutant(
    "does not miss a bookie that died",
    "ledger/membership.py",
    old="        return self.registration is None and not self.retired\n",
    new="        return False\n",
    test=_HEALTH + "a_bookie_that_died_is_missed_and_so_are_its_copies",
)
mutant(
    "calls a cluster well as long as nothing is grave",
    "dlog/health/signs.py",
    old="        return self.gravity >= Gravity.WRONG\n",
    new="        return self.gravity > Gravity.WRONG\n",
    test=_HEALTH + "a_bookie_that_died_is_missed_and_so_are_its_copies",
)
mutant(
    "says that all is well where a check could not be made",
    "dlog/health/signs.py",
    old='            Gravity.GRAVE,\n            f"{one.name}-unknown",\n',
    new='            Gravity.NOTE,\n            f"{one.name}-unknown",\n',
    test=_HEALTH + "a_check_that_cannot_be_made_takes_no_other_with_it",
)
mutant(
    "takes a bookie that does not answer for one that does",
    "dlog/health/doctor_survey.py",
    old="        reached=info is not None,\n",
    new="        reached=True,\n",
    test=_HEALTH + "the_doctor_finds_one_that_is_registered_and_does_not_answer",
)
mutant(
    "takes a damaged copy for a whole one",
    "bookie/storage/entry_trace.py",
    old='    return checked.reason if isinstance(checked, Bad) else ""\n',
    new='    return ""\n',
    test="tests/bookie/storage/test_tracing.py::test_"
    "a_damaged_copy_is_named_with_its_place[entry log]",
)
mutant(
    "calls a record whole of which a bookie has no copy",
    "dlog/health/record_trace.py",
    old="        return all(replica.fault is None for replica in self.replicas)\n",
    new="        return any(replica.fault is None for replica in self.replicas)\n",
    test="tests/dlog/cli/test_cli_tracing.py::test_"
    "a_bookie_that_is_away_is_the_exit_code_and_an_entry_that_nobody_gives_is_traced",
)
mutant(
    "makes a namespace where a client looks for one",
    "ledger/client.py",
    old="            namespace = await open_namespace(store)\n",
    new="            from ledger.cluster import make_namespace\n\n"
    "            namespace = await make_namespace(store)\n",
    test="tests/dlog/test_initialising.py::test_a_bookie_makes_no_namespace",
)
mutant(
    "lets whoever makes a node in ZooKeeper say whom it is for",
    "ledger/metastore/zookeeper_keeper.py",
    old="                link.make_as(acl)\n",
    new="                pass\n",
    test="tests/dlog/test_initialising.py::test_all_nodes_are_for_whom_the_namespace_was_made",
)
