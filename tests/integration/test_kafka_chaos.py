"""Kafka's clients at gateways under trouble, shortly; `make chaos-kafka` for long, with Java's."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from dlog.local.zookeeper import dying_with_parent
from tests.integration.chaos.kafka_history import KafkaHistory

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 20
BUG_SECONDS: Final = 120
"""At most: a run ends with the first promise that is broken."""
DEADLINE_S: Final = 500


def run(*options: str) -> tuple[int, str]:
    seed = os.environ.get("DLOG_TEST_CHAOS_SEED", "1")
    module = [sys.executable, "-m", "tests.integration.chaos", "--kafka", "--no-java"]
    done = subprocess.run(
        dying_with_parent([*module, "--zookeepers", "0", "--seed", seed, *options], os.getpid()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    print(done.stdout)
    return done.returncode, done.stdout


@pytest.mark.integration
@pytest.mark.timeout(DEADLINE_S + 30)
@pytest.mark.long("chaos-kafka")
def test_no_record_of_kafka_is_lost_doubled_or_out_of_order_whatever_is_killed() -> None:
    status, said = run("--seconds", str(SECONDS))
    assert status == 0, said
    assert "0 promises broken" in said


@pytest.mark.integration
@pytest.mark.timeout(DEADLINE_S + 30)
@pytest.mark.long("chaos-kafka")
@pytest.mark.parametrize(
    "bug", ["forgets_producers", "forgets_commits", "acknowledges_unconfirmed"]
)
def test_a_known_bug_of_gateways_breaks_a_promise(bug: str) -> None:
    status, said = run("--seconds", str(BUG_SECONDS), "--bug", bug)
    assert status == 1
    assert "BROKE" in said


# What is compared, without processes.


def history() -> KafkaHistory:
    """A producer, a log of three records in one partition, and a group that read and committed."""
    kafka = KafkaHistory(1)
    for offset in range(3):
        kafka.sent(f"1.{offset}", 0, offset)
        kafka.found(f"1.{offset}", 0, offset)
    kafka.assigned("c", [0])
    for offset in range(3):
        kafka.read("g", "c", 0, offset, f"1.{offset}", 1.0)
    kafka.commit("g", 0, 3)
    kafka.stored("g", 0, 3, {("g", 0): 3}, 2.0)
    return kafka


def again_from(offset: int) -> Callable[[KafkaHistory], None]:
    def read(kafka: KafkaHistory) -> None:
        kafka.assigned("d", [0])
        kafka.read("g", "d", 0, offset, f"1.{offset}", 3.0)

    return read


def test_a_whole_history_breaks_no_promise() -> None:
    assert history().check(["g"]) == []


def test_a_repetition_whose_offset_was_not_told_breaks_no_promise() -> None:
    kafka = history()
    kafka.found("1.3", 0, 3)
    kafka.sent("1.3", 0, -1)
    kafka.read("g", "c", 0, 3, "1.3", 3.0)
    assert kafka.check(["g"]) == []


@pytest.mark.parametrize(
    ("happens", "sentence"),
    [
        (lambda kafka: kafka.sent("1.3", 0, 3), "1.3 was acknowledged at (0, 3) and is lost"),
        (lambda kafka: kafka.sent("1.2", 0, 2), "1.2 was acknowledged twice"),
        (lambda kafka: kafka.sent("1.9", 0, 1), "1.9 is at (0, 1), says its producer"),
        (lambda kafka: kafka.found("1.1", 0, 3), "1.1 is doubled: at (0, 1) and (0, 3)"),
        (lambda kafka: kafka.found("1.4", 0, 4), "the log has 4 after 2"),
        (
            lambda kafka: [kafka.found("2.5", 0, 3), kafka.found("2.4", 0, 4)],
            "2.4 at (0, 4) is out of order",
        ),
        (lambda kafka: kafka.read("g", "c", 0, 3, "2.0", 3.0), "it is in no log"),
        (lambda kafka: kafka.read("g", "c", 0, 1, "1.1", 3.0), "c got 1 of partition 0, and 3 was"),
        (again_from(2), "d begins partition 0 at 2, although g has committed 3"),
        (lambda kafka: kafka.found("2.0", 0, 3), "g never got 1 records of partition 0"),
        (lambda kafka: kafka.stored("g", 0, 2, {}, 3.0), "went from 3 back to 2"),
        (
            lambda kafka: kafka.stored("g", 0, 2, {("g", 0): 3}, 3.0),
            "committed 2 of partition 0, a",
        ),
        (lambda kafka: kafka.stored("g", 0, 4, {}, 3.0), "committed 4 of 0 and had read up to 3"),
    ],
)
def test_a_broken_promise_is_found(
    happens: Callable[[KafkaHistory], object], sentence: str
) -> None:
    kafka = history()
    happens(kafka)
    assert any(sentence in each for each in kafka.check(["g"])), kafka.check(["g"])
