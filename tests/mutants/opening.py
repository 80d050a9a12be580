"""Bugs of the console's door: changes by who may not make them, and who keeps others out."""

from tests.mutants.mutant import mutant

_TESTS = "tests/dlog/console/test_changing.py::test_"
_PAGES = "tests/dlog/console/test_pages.py::test_"
_SERVING = "tests/dlog/console/test_serving.py::test_"
_VIEWS = "tests/dlog/console/test_views.py::test_"

mutant(
    "changes something though the console only looks",
    "dlog/console/pages.py",
    old="        if changes and not access.allow_changes:\n",
    new="        if changes and access.allow_changes is None:\n",
    test=_TESTS + "without_allow_changes_no_address_changes_anything[True]",
)
mutant(
    "changes something for whoever comes",
    "dlog/console/change_pages.py",
    old='    return path.startswith("/change/") or (method == "POST" and not entering)\n',
    new='    return path.startswith("/change/") and method == "GET" and not entering\n',
    test=_TESTS + "without_allow_changes_no_address_changes_anything[False]",
)
mutant(
    "takes forms that another page has made",
    "dlog/console/change_pages.py",
    old='session is None or not sessions.is_form_token(session, given.pop("form_token", "")):',
    new='session is None or (given.pop("form_token", "") and False):',
    test=_TESTS + "without_the_forms_token_nothing_is_changed",
)
mutant(
    "deletes a log whose name nobody typed",
    "dlog/console/changes.py",
    old='    if kind.typed and given.get("typed") != found.subject:\n',
    new='    if kind.typed and given.get("typed") is None:\n',
    test=_TESTS + "a_log_is_sealed_once_its_name_is_typed",
)
mutant(
    "deletes the log that has the name by now",
    "dlog/console/changes.py",
    old="delete_log(log, incarnation=life, client=gatherer.client)",
    new="delete_log(log, client=gatherer.client)",
    test=_TESTS + "a_log_is_deleted_once_its_name_is_typed_and_not_one_that_was_made_anew",
)
mutant(
    "waits for ever for the next request of a browser",
    "dlog/console/http_server.py",
    old="        if asked is None or asked.response_complete:\n",
    new="        if asked is None:\n",
    test=_SERVING + "who_does_not_go_on_after_an_answer_is_shut_out",
)
mutant(
    "lets one address have all connections",
    "dlog/console/http_server.py",
    old="for host, _ in self._taken) < FROM_ONE_MAX:\n",
    new="for host, _ in self._taken) < 10 * FROM_ONE_MAX:\n",
    test=_SERVING + "who_takes_all_connections_of_one_address_keeps_nobody_else_out",
)
mutant(
    "counts connections that are over",
    "dlog/console/http_server.py",
    old="for each in self._taken if each[1].fileno() >= 0]\n",
    new="for each in self._taken]\n",
    test=_SERVING + "who_takes_all_connections_of_one_address_keeps_nobody_else_out",
)
mutant(
    "keeps everybody out who guesses tokens",
    "dlog/console/request_guard.py",
    old="        return len(lately) < FAILURES_MAX or address in LOOPBACK\n",
    new="        return sum(map(len, self._failures.values())) < FAILURES_MAX\n",
    test=_VIEWS + "wrong_tokens_shut_the_door_for_a_while_and_for_nobody_elsewhere",
)
mutant(
    "lets one user of a machine lock out the others",
    "dlog/console/request_guard.py",
    old="        return len(lately) < FAILURES_MAX or address in LOOPBACK\n",
    new="        return len(lately) < FAILURES_MAX\n",
    test=_PAGES + "wrong_tokens_lock_out_nobody_else",
)
mutant(
    "shows records to whoever has an account on the machine",
    "dlog/console/pages.py",
    old="        return None if open_to_all else self._stranger(scope)\n",
    new="        return self._stranger(scope) if changes else None\n",
    test=_PAGES + "nothing_is_shown_without_a_login",
)
mutant(
    "logs in by an address that was used",
    "dlog/console/request_guard.py",
    old="        self._once = None\n        return self._begin",
    new="        return self._begin",
    test=_PAGES + "an_address_logs_in_once",
)
mutant(
    "answers a page of another origin that only looks",
    "dlog/console/pages.py",
    old="        if not is_own_origin(headers) and not (follows and is_followed_link(headers)):\n",
    new="        if not is_own_origin(headers) and not follows:\n",
    test=_PAGES + "what_a_page_of_another_site_asks_for_is_refused",
)
mutant(
    "prints how to log in into a log that others read",
    "dlog/cli/console.py",
    old="    if sys.stdout.isatty():\n",
    new="    if sys.stdout:\n",
    test="tests/dlog/cli/test_cli_console.py::test_a_login_is_shown_to_a_terminal_alone",
)
mutant(
    "takes a token that everybody could read",
    "dlog/cli/console.py",
    old="    if mode & _OTHERS:\n",
    new="    if False:\n",
    test="tests/dlog/cli/test_cli_console.py::test_a_token_that_others_may_read_or_change_is_refused",
)
mutant(
    "forgets since when something is wrong once there is more of it",
    "dlog/console/cluster_state.py",
    old="before.get(key, begun.get(key[0], at))",
    new="before.get(key, at)",
    test=_VIEWS + "trouble_that_grows_has_lasted_since_it_began",
)
mutant(
    "forgets a log that it is looking at",
    "dlog/console/poller.py",
    old="looking = self._want(log).looking",
    new="looking = self._follow(log).looking",
    test=_PAGES + "a_log_that_is_looked_at_now_is_not_forgotten_meanwhile",
)
mutant(
    "looks at the bookies once all logs have answered",
    "dlog/console/poller.py",
    old="        self.cluster.take_in(report, now=self.now, now_ms=now_ms())\n\n"
    "    async def _list_logs",
    new="        self.cluster.take_in(report, now=self.now, now_ms=now_ms())\n"
    "        await self._look_at_logs()\n\n    async def _list_logs",
    test=_PAGES + "logs_that_do_not_answer_hold_up_no_look_at_the_bookies",
)
_TERMINAL = "tests/dlog/cli/test_terminal_output.py::test_"
mutant(
    "lets records command the terminal of who looks at them",
    "dlog/cli/log/tail_command.py",
    old="    escape = escaped_bytes if sys.stdout.isatty() else bytes\n",
    new="    escape = bytes\n",
    test=_TERMINAL + "a_format_may_say_itself_what_a_terminal_obeys",
)
mutant(
    "lets JSON command the terminal of who looks at it",
    "dlog/cli/render/output.py",
    old="    text = json.dumps(value, ensure_ascii=False)\n",
    new="    return json.dumps(value, ensure_ascii=False)\n    text = ''\n",
    test=_TERMINAL + "json_says_the_same_and_holds_nothing_that_a_terminal_obeys",
)
