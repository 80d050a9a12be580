"""The simulator of ledgers, its command, and the mutations; `test_workloads` has all workloads."""

import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ledger.ids import BookieIdentity
from ledger.protocol.acks import AckTracker
from ledger.requests import HeldQuery, ReadQuery, Status
from tests.simulation.__main__ import main
from tests.simulation.addresses import meant
from tests.simulation.client import ClientProcess
from tests.simulation.kernel.simulation import Outcome
from tests.simulation.mutations import MUTATIONS, put_back
from tests.simulation.mutations.judging import judge
from tests.simulation.workload import LedgerSimulation

A = TypeVar("A")

ROOT = Path(__file__).parents[2]
SEEDS = range(60)


@pytest.mark.integration
def test_many_seeds_run_on_several_cores() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seeds", "0:20", "--jobs", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "20 seeds, 0 broken" in done.stdout


@pytest.mark.slow
def test_a_long_run_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.simulation.kernel.seeds.LINES_S", 0.0)
    assert main(["--seeds", "0:4", "--jobs", "1"]) == 0
    assert "3/4 seeds, 0 broken" in capsys.readouterr().err


@pytest.mark.slow
def test_who_sleeps_wakes_up_hours_later_when_the_ledger_is_closed() -> None:
    for seed in SEEDS:
        simulation = LedgerSimulation(seed, keep_trace=True)
        outcome = simulation.run()
        if outcome.marks.get("writer_woke_after_hours") and any(
            line.endswith("fails: fenced") and float(line.split()[0]) > 3600
            for line in simulation.scheduler.trace.tail
        ):
            return
    pytest.fail("no writer learned after hours that it had been fenced")


def asked_by(client: ClientProcess, question: Coroutine[Any, Any, A]) -> A:
    """Let *client* ask; return the answer."""
    answers: list[A] = []

    async def ask() -> None:
        answers.append(await question)

    client.run(ask())
    while not answers:
        assert client.cluster.scheduler.step()
    return answers[0]


def test_simulated_bookies_list_over_the_network_what_they_give() -> None:
    simulation = LedgerSimulation(3)
    simulation.run()
    cluster, asked = simulation.cluster, 0
    for ledger_id, history in cluster.oracle.ledgers.items():
        client = ClientProcess(cluster, "whoever repairs", ledger_id)
        key = history.recorded.access_key
        for name, bookie in cluster.bookies.items():
            query = HeldQuery(ledger_id, key, 0, 999)
            answer = asked_by(client, client.transport.read_held(name, query))
            listed = [each for a, b in answer.ranges() for each in range(a, b + 1)]
            given = bookie.storage.read(ReadQuery(ledger_id, key, 0, 999, 1 << 30))
            assert listed == list(given.entries)
            assert answer.considered == 999
            asked += len(listed)
    assert asked > 0


def test_only_the_bookie_that_is_meant_is_asked_at_its_address() -> None:
    simulation = LedgerSimulation(3)
    simulation.run()
    cluster = simulation.cluster
    ledger_id, history = next(iter(cluster.oracle.ledgers.items()))
    name = history.recorded.last_fragment.bookies[0]
    query = ReadQuery(ledger_id, history.recorded.access_key, 0, 0, fence=True)
    ours = meant(cluster, name)
    if cluster.bookies[name].host.up:
        cluster.bookies[name].crash()

    def answered_by(identity: BookieIdentity) -> Status:
        cluster.listen(name, identity)
        client = ClientProcess(cluster, "whoever reads", ledger_id)
        return asked_by(client, client.transport.read(name, query)).status

    assert answered_by(replace(ours, instance="foreign")) is Status.UNREACHABLE
    assert answered_by(replace(ours, identity="emptied")) is Status.UNREACHABLE
    assert answered_by(replace(ours, life=ours.life - 1)) is Status.UNREACHABLE
    assert answered_by(ours) is not Status.UNREACHABLE
    with put_back("does_not_compare_the_cluster"):
        assert answered_by(replace(ours, instance="foreign")) is not Status.UNREACHABLE


def test_seeds_differ() -> None:
    outcomes = [LedgerSimulation.attempt(seed) for seed in (1, 2)]
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert outcomes[0] != outcomes[1]


@pytest.mark.integration
def test_mutations_are_judged_on_several_cores() -> None:
    names = ["confirms_out_of_order", "confirms_with_one_ack_less"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.mutations", "--jobs", "2", "--only", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 mutations, 0 not caught" in done.stdout


@pytest.mark.integration
def test_a_known_bug_that_no_simulator_draws_is_found_by_the_test_that_it_names() -> None:
    verdict = judge("acknowledges_a_group_that_was_cut")
    assert verdict.caught
    assert verdict.seeds is None


@pytest.mark.integration
def test_the_tests_that_known_bugs_name_are_there() -> None:
    tests = sorted({mutation.test for mutation in MUTATIONS.values() if mutation.test})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_mutation_leaves_nothing_behind() -> None:
    honest = vars(AckTracker)["_first_missing"]
    with put_back("confirms_with_one_ack_less"):
        assert vars(AckTracker)["_first_missing"] is not honest
    assert vars(AckTracker)["_first_missing"] is honest


def test_a_failure_tells_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AckTracker, "advance", lambda self, pushed: pushed)
    command = "--seeds 0:20 --jobs 1 --failures-max 1 --shrink-s 1"
    assert main(command.split()) == 1
    printed = capsys.readouterr().out
    assert "reproduce: make sim SEED=" in printed
    assert "broke at step" in printed
