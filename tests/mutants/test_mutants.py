"""Bugs are put in where they can be, and some are noticed; `make mutations` puts in all of them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutation import Kind, _codes, _Mutating, mutations, outdated
from tests.mutants.survivors import JUDGED

SOURCE = """
def choose(numbers, least):
    chosen = 1 if least > 0 else 2
    if chosen in numbers and not least:
        return True
    assert chosen < 3, f"{chosen + 1}"
    while numbers == least:
        numbers = numbers or least
    return chosen <= least
"""


def test_every_statement_of_a_function_can_be_deleted_but_what_says_nothing() -> None:
    found = [
        each
        for each in mutations("ledger/protocol/common.py", [Kind.DELETE])
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


def test_each_kind_of_bug_is_what_its_name_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chosen.py").write_text(SOURCE)
    monkeypatch.setattr("tests.mutants.mutation.ROOT", tmp_path)
    whole = ast.unparse(ast.parse(SOURCE))
    found = []
    for mutation in mutations("chosen.py", [kind for kind in Kind if kind is not Kind.DELETE]):
        assert _codes("chosen.py", _Mutating(mutation)), "it can be compiled"
        changed = ast.unparse(
            ast.fix_missing_locations(_Mutating(mutation).visit(ast.parse(SOURCE)))
        )
        pairs = zip(whole.splitlines(), changed.splitlines(), strict=True)
        [(_, line)] = [(was, now) for was, now in pairs if was != now]
        found.append((mutation.kind.value, line.strip()))
    assert sorted(found) == [
        ("compare", "chosen = 1 if least >= 0 else 2"),
        ("compare", "if chosen not in numbers and (not least):"),
        ("compare", "return chosen < least"),
        ("connect", "if chosen in numbers or not least:"),
        ("connect", "numbers = numbers and least"),
        ("negate", "chosen = 1 if not least > 0 else 2"),
        ("negate", "while not numbers == least:"),
        ("number", "chosen = 1 if least > 0 else 3"),
        ("number", "chosen = 1 if least > 1 else 2"),
        ("number", "chosen = 2 if least > 0 else 2"),
        ("truth", "return False"),
    ]


def test_a_judged_survivor_whose_statement_was_changed_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = ("ledger/protocol/common.py", "Retries.try_again", "return None")
    monkeypatch.setitem(JUDGED, gone, "was there once")
    assert gone in outdated({"ledger/protocol/common.py"})
    assert not outdated({"ledger/protocol/ensemble_change.py"})


@pytest.mark.integration
def test_a_bug_that_no_test_notices_is_reported() -> None:
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "tests.mutants", "ledger/protocol/common.py"),
            *("--tests", "tests/ledger/protocol/test_retries.py"),  # others know more of it
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    survivor = r"common\.py:\d+: Retries\.try_again: self\.put_off\(what, now\)"
    assert re.search(survivor, done.stdout)
    assert re.search(r"\b[1-9]\d* bugs, 1 not noticed, of them 0 judged", done.stdout)


@pytest.mark.integration
def test_bugs_of_other_kinds_are_noticed_too() -> None:
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "tests.mutants", "dlog/headers.py", "--kinds", "negate", "connect"),
            *("--tests", "tests/dlog/test_headers.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
