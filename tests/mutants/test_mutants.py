"""The mutants of drivers and servers fit the code, and some of them are caught; `make mutations`
runs all of them."""

import ast
import subprocess
import sys
from functools import cache

import pytest

from tests.mutants import MUTANTS, Mutant, judging
from tests.mutants.deletion import deletions
from tests.mutants.judging import Outcome, judge
from tests.mutants.mutant import ROOT
from tests.mutants.survivors import JUDGED

CAUGHT_AT_ONCE = (
    "takes batches in any order",
    "answers from what was read ahead before an entry was repaired",
)
"""Some whose tests are quick."""


@pytest.mark.slow
def test_every_mutant_has_its_place_in_the_code() -> None:
    for mutant in MUTANTS.values():
        compile(mutant.source(), mutant.file, "exec")


@cache
def functions_of(path: str) -> frozenset[str]:
    body = ast.parse((ROOT / path).read_text()).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(each.name for each in body if isinstance(each, kinds))


def test_every_mutant_names_a_test_that_there_is() -> None:
    for mutant in MUTANTS.values():
        path, _, name = mutant.test.partition("::")
        assert name.partition("[")[0] in functions_of(path), f"{mutant.name}: {mutant.test}"


def test_what_a_loop_that_ends_prints_after_the_summary_does_not_hide_a_failure() -> None:
    failed = (
        "=========== 1 failed, 3 passed in 0.52s ===========\nTask exception was never retrieved"
    )
    assert judging._outcome(1, failed) is Outcome.CAUGHT
    assert judging._outcome(2, "=========== 1 error in 0.52s ===========") is Outcome.BROKEN
    assert judging._outcome(1, "E   Failed: Timeout (>40.0s)\n" + failed) is Outcome.HANGS


@pytest.mark.integration
def test_known_mutants_are_caught() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "--only", *CAUGHT_AT_ONCE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 mutants, 0 not caught" in done.stdout


@pytest.mark.integration
def test_what_no_test_notices_is_not_caught_and_what_has_no_place_does_not_run() -> None:
    test = "tests/dlog/test_names.py::test_percent_signs_survive"
    harmless = Mutant("says it otherwise", "dlog/names.py", "Names of logs:", "Of names:", test)
    assert judge(harmless).outcome is Outcome.MISSED
    misplaced = Mutant("has no place", "dlog/names.py", "nothing says so", "", test)
    assert judge(misplaced).outcome is Outcome.BROKEN


def test_every_statement_of_a_function_can_be_deleted_but_what_says_nothing() -> None:
    found = [
        each
        for each in deletions("ledger/protocol/retries.py")
        if each.function == "Retries.try_again"
    ]
    assert [each.text for each in found] == [
        "of = (type(what), what.index)",
        "self._tries[of] = self._tries.get(of, 0) + 1",
        "if self._tries[of] >= tries_max:",
        "return False",
        "self.put_off(what, now)",
        "return True",
    ]


def test_every_survivor_that_was_judged_is_still_there() -> None:
    there = {each.key for file in {key[0] for key in JUDGED} for each in deletions(file)}
    assert set(JUDGED) <= there


@pytest.mark.integration
def test_a_deletion_that_no_test_misses_is_reported() -> None:
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "tests.mutants.deletion", "ledger/protocol/retries.py"),
            *("--tests", "tests/ledger/protocol/test_retries.py"),  # others know more of it
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "retries.py:31: Retries.try_again: self.put_off(what, now)" in done.stdout
    assert "16 statements, 1 not missed, of them 0 judged" in done.stdout
