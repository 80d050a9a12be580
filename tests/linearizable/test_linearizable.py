"""Porcupine judges what dlog answers, and finds what is broken on purpose; `make linearizable` does
it for long."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.linearizable import __main__ as command
from tests.linearizable.checker import ROOT, CheckerMissing, Verdict, build, judge
from tests.linearizable.history import Operation, append, end, read, takeover
from tests.linearizable.mutations import BUGS, find
from tests.linearizable.simulation import simulate

SEEDS: Final = range(12)
CHAOS_S: Final = 6
DEADLINE_S: Final = 400

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def porcupine() -> None:
    try:
        build()
    except CheckerMissing as missing:
        pytest.skip(str(missing))


def verdict_of(*operations: Operation) -> Verdict:
    (verdict,) = judge(operation.line("by-hand") for operation in operations)
    return verdict


OPENED: Final = takeover("w", 0, 1, epoch=1, offset=0)
A: Final = append("w", 2, 3, ["a"], epoch=1, offset=0)
B: Final = append("w", 4, 5, ["b"], epoch=1, offset=1)
UNKNOWN_B: Final = append("w", 4, None, ["b"], epoch=1)
TAKEN: Final = takeover("v", 6, 9, epoch=2, offset=1)


@pytest.mark.parametrize(
    "operations",
    [
        (OPENED, A, B, read("r", 6, 7, ["a", "b"])),
        (OPENED, A, B, end("r", 4, 6, 1)),
        (OPENED, A, B, read("r", 6, 7, ["a"], certain=False)),
        (OPENED, append("w", 2, 3, ["a", "b"], epoch=1, offset=0), end("r", 4, 5, 2)),
        (OPENED, A, append("w", 4, 5, ["b"], epoch=1, offset=1, expected=1), end("r", 6, 7, 2)),
        (OPENED, A, UNKNOWN_B, end("r", 6, 7, 1), read("r", 8, 9, ["a"])),
        (OPENED, A, UNKNOWN_B, end("r", 6, 7, 1), read("r", 8, 9, ["a", "b"])),
        (OPENED, A, UNKNOWN_B, end("r", 6, 7, 1), end("r", 8, 9, 2)),
        (OPENED, A, UNKNOWN_B, TAKEN, append("v", 10, 11, ["c"], epoch=2, offset=1)),
    ],
    ids=[
        "in order",
        "an end while a record is appended",
        "a read without certainty",
        "several at once",
        "the expected offset",
        "unknown, and never there",
        "unknown, and there later",
        "unknown, and there later, as nobody read it",
        "unknown, and lost by a takeover",
    ],
)
def test_what_is_promised_is_linearizable(operations: tuple[Operation, ...]) -> None:
    assert verdict_of(*operations).linearizable


@pytest.mark.parametrize(
    "operations",
    [
        (OPENED, A, B, end("r", 6, 7, 1)),
        (OPENED, A, B, read("r", 6, 7, ["a"])),
        (OPENED, A, B, read("r", 6, 7, ["a", "b", "b"])),
        (OPENED, A, B, read("r", 6, 7, ["b", "a"])),
        (OPENED, A, read("r", 4, 5, ["a", "refused"])),
        (OPENED, A, B, read("r", 6, 7, ["b"], certain=False)),
        (OPENED, A, append("w", 4, 5, ["b"], epoch=1, offset=1, expected=2), end("r", 6, 7, 2)),
        (OPENED, A, UNKNOWN_B, read("r", 6, 7, ["a", "b"]), read("r", 8, 9, ["a"])),
        (OPENED, A, UNKNOWN_B, TAKEN, read("r", 10, 11, ["a", "b"])),
        (OPENED, A, TAKEN, append("w", 10, 11, ["c"], epoch=1, offset=1)),
        (OPENED, A, B, TAKEN),
    ],
    ids=[
        "a stale end",
        "a stale read",
        "a record twice",
        "another order",
        "a refused record",
        "a read that skips",
        "a compare-and-append elsewhere",
        "a record that vanishes",
        "a record after a takeover without it",
        "a writer that was taken over",
        "a takeover without the last record",
    ],
)
def test_what_is_not_promised_is_found(operations: tuple[Operation, ...]) -> None:
    assert verdict_of(*operations).result == "Illegal"


def test_a_violation_names_the_operations_that_contradict_and_is_drawn() -> None:
    verdict = verdict_of(OPENED, A, B, end("observer", 6, 7, 1))
    assert verdict.story[-1] == "no place:   observer [6, 7] is told that the log ends at 1"
    assert verdict.story[-2] == "then:       {2 records in epoch 1, the last is b}"
    assert "observer" in Path(verdict.drawing).read_text()


def test_a_seed_gives_the_same_history_again() -> None:
    assert simulate(1) == simulate(1)


def test_histories_of_simulated_logs_are_linearizable() -> None:
    for seed in SEEDS:
        lines, broken = simulate(seed)
        assert not broken
        for verdict in judge(lines):
            assert verdict.linearizable, "\n".join(verdict.story)


@pytest.mark.parametrize("name", BUGS)
def test_a_known_bug_is_found(name: str) -> None:
    assert find(name) is not None, f"no history showed {BUGS[name]}"


@pytest.mark.timeout(DEADLINE_S + 30)
def test_a_history_of_real_processes_is_linearizable() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.linearizable", "--only", "chaos"),
            *("--seconds", str(CHAOS_S), "--seed", os.environ.get("DLOG_TEST_CHAOS_SEED", "3")),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 not linearizable" in done.stdout


def test_without_go_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert command.main([]) == 2
    assert "apt install golang-go" in capsys.readouterr().err
