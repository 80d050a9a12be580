"""The simulator finds nothing in the production code, and finds what is broken on purpose."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.core import Ack, AddSession, BookieCore, Need, Resume
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.acks import AckTracker
from ledger.protocol.recovery import EntriesRead, Phase, Recovery, RecoveryEffect
from ledger.requests import Status
from tests.simulation.__main__ import main
from tests.simulation.workload import Outcome, Simulation, SimulationError, run_seed

ROOT = Path(__file__).parents[2]
SEEDS = range(80)

INTERESTING = {
    "add_fenced",
    "bookie_restarted",
    "checkpoint",
    "connection_broken",
    "ensemble_change_wanted",
    "entry_written_back",
    "explicit_lac",
    "fenced",
    "host_isolated",
    "host_paused",
    "long_poll_woke_up",
    "message_duplicated",
    "message_lost",
    "metadata_conflict",
    "one_way_partition",
    "reader_reached_end",
    "recoveries_raced",
    "recovery_ensemble_change",
    "session_expired",
    "writer_closed",
    "writer_crashed",
    "writer_failed_fenced",
    "writer_paused",
}


def first_failure(seeds: range) -> SimulationError:
    """Return how the first seed that fails does so; fail if none does."""
    for seed in seeds:
        outcome = run_seed(seed)
        if isinstance(outcome, SimulationError):
            return outcome
    pytest.fail(f"the simulator did not notice it in {len(seeds)} seeds")


def test_the_cluster_scenario_keeps_every_invariant_and_finishes() -> None:
    covered: Counter[str] = Counter()
    for seed in SEEDS:
        covered.update(Simulation(seed).run().marks)
    assert set(covered) >= INTERESTING, "some things did not happen in any seed"


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    traces = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "7"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        traces.append(done.stdout.splitlines()[0])
    assert traces[0].startswith("trace ")
    assert traces[0] == traces[1]


def test_many_seeds_run_on_several_cores() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seeds", "0:20", "--jobs", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "20 seeds, 0 broken" in done.stdout


def test_seeds_differ() -> None:
    outcomes = [run_seed(seed) for seed in (1, 2)]
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert outcomes[0] != outcomes[1]


def test_a_writer_that_confirms_after_one_answer_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_missing(self: AckTracker, residue: int, ends: list[int], start: int) -> int:
        after = max(*(ends[index] + 1 for index in self._write_sets[residue]), start)
        return after + (residue - after) % self.quorum.ensemble

    monkeypatch.setattr(AckTracker, "_first_missing", first_missing)
    assert "all_committed_entries_reach_ack_quorum" in first_failure(range(50)).broken


def test_a_bookie_that_answers_adds_before_its_journal_is_synced_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = AddSession.acks

    def hasty(self: AddSession) -> list[Ack]:
        self._core.durable = 1 << 60
        return honest(self)

    monkeypatch.setattr(AddSession, "acks", hasty)
    assert "bookies_keep_their_promises" in first_failure(range(100)).broken


def test_a_bookie_that_answers_a_fence_before_it_is_durable_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fence(
        self: BookieCore, ledger_id: int, key: bytes
    ) -> Generator[Need, Resume, Status | None]:
        status, _ = self.storage.fence(ledger_id, key)
        yield from ()
        return None if status is Status.OK else status

    monkeypatch.setattr(BookieCore, "_fence", fence)
    assert "fence_is_for_ever" in first_failure(range(200)).broken


def test_a_recovery_that_takes_an_error_for_absence_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Recovery._entries_read

    def credulous(self: Recovery, event: EntriesRead, now: float) -> list[RecoveryEffect]:
        if not event.answered:
            event = replace(event, answered=True, considered=event.first + 255)
        return honest(self, event, now)

    monkeypatch.setattr(Recovery, "_entries_read", credulous)
    assert "all_acked_entries_are_readable" in first_failure(range(700, 2000)).broken


def test_a_recovery_that_begins_without_marking_the_ledger_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TLA+ ClientStartsRecovery: the writer could still change to bookies that are not fenced."""

    honest = Recovery._adopt

    def unmarked(self: Recovery, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        if metadata.state is LedgerState.OPEN and self.phase is Phase.NEW:
            self.metadata, self.version = metadata, version
            return self._begin_fencing()
        return honest(self, metadata, version)

    monkeypatch.setattr(Recovery, "_adopt", unmarked)
    assert first_failure(range(200)).broken


def test_a_failure_tells_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AckTracker, "advance", lambda self, pushed: pushed)
    assert main(["--seeds", "0:20", "--jobs", "1", "--failures-max", "1"]) == 1
    printed = capsys.readouterr().out
    assert "reproduce: make sim SEED=" in printed
    assert "broke at step" in printed
