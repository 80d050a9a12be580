"""Bugs of the console's door: changes by who may not make them."""

from tests.mutants.mutant import mutant

_TESTS = "tests/dlog/console/test_changing.py::test_"

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
    "dlog/console/changing.py",
    old='    if kind.typed and given.get("typed") != found.subject:\n',
    new='    if kind.typed and given.get("typed") is None:\n',
    test=_TESTS + "a_log_is_sealed_once_its_name_is_typed",
)
mutant(
    "deletes the log that has the name by now",
    "dlog/console/changing.py",
    old="delete_log(log, incarnation=life, client=gatherer.client)",
    new="delete_log(log, client=gatherer.client)",
    test=_TESTS + "a_log_is_deleted_once_its_name_is_typed_and_not_one_that_was_made_anew",
)
