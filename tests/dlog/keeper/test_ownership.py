"""Which run of an application may write a log: decisions, without a log."""

import json

import pytest

from dlog.errors import LostOwnership
from dlog.spark.sink.keeper.ownership import DEPOSED_MAX, Ownership, RunTenure


def test_a_log_that_nobody_has_may_be_taken_before_it_is_known_for_whom() -> None:
    assert Ownership().may_take_over(None)
    assert Ownership().may_take_over("a")


def test_a_log_that_a_run_has_is_taken_over_for_another_run_only() -> None:
    ownership = Ownership()
    ownership.used("a")
    assert not ownership.may_take_over(None)
    assert not ownership.may_take_over("a")
    assert ownership.may_take_over("b")


def test_the_run_that_commits_last_deposes_the_one_before() -> None:
    ownership = Ownership()
    ownership.used("a")
    ownership.used("b")
    ownership.admit("orders", "b")
    with pytest.raises(LostOwnership, match="run b of the same Spark application took it over"):
        ownership.admit("orders", "a")


def test_a_run_that_lost_the_log_does_not_come_back_and_nobody_may_take_it_for_it() -> None:
    ownership = Ownership()
    ownership.opened(RunTenure("i", 3))
    ownership.used("a")
    ownership.lost("host:17 took it over")
    assert not ownership.may_take_over(None)  # it may be a's next batch that asks
    assert ownership.may_take_over("b")
    with pytest.raises(LostOwnership, match="host:17 took it over"):
        ownership.admit("orders", "a")
    assert ownership.may_take_over(None)  # a dies of that, so it is a later one that asks
    ownership.used("b")
    ownership.finished("b")
    assert ownership.may_take_over(None)
    with pytest.raises(LostOwnership):
        ownership.admit("orders", "a")


def test_a_run_of_the_same_application_that_was_not_told_is_feared_as_well() -> None:
    ownership = Ownership()
    ownership.used("a")
    ownership.used("job")
    ownership.finished("job")
    assert not ownership.may_take_over(None)
    with pytest.raises(LostOwnership):
        ownership.admit("orders", "a")
    assert ownership.may_take_over(None)


def test_a_job_that_gave_up_claims_nothing_more() -> None:
    ownership = Ownership()
    ownership.used("job")
    ownership.lost("host:17 took it over")
    ownership.finished("job")
    assert ownership.may_take_over(None)


def test_a_log_that_is_lost_while_no_run_has_it_is_nobodys_loss() -> None:
    ownership = Ownership()
    ownership.opened(RunTenure("i", 3))
    ownership.used("a")
    ownership.finished("a")
    ownership.lost("host:17 took it over")
    assert ownership.may_take_over(None)
    ownership.admit("orders", "a")


def test_the_end_of_a_run_that_was_deposed_changes_nothing() -> None:
    ownership = Ownership()
    ownership.used("a")
    ownership.used("b")
    ownership.finished("a")
    assert ownership.run == "b"


def test_only_the_latest_that_were_deposed_are_remembered() -> None:
    ownership = Ownership()
    for number in range(DEPOSED_MAX + 2):
        ownership.used(str(number))
    assert list(ownership.deposed) == [str(number) for number in range(1, DEPOSED_MAX + 1)]
    assert ownership.unaware == set(ownership.deposed)


def test_what_is_known_survives_in_a_file() -> None:
    ownership = Ownership()
    ownership.opened(RunTenure("i", 3))
    ownership.used("a")
    ownership.used("b")
    for each in (ownership, Ownership()):
        assert Ownership.from_facts(json.loads(json.dumps(each.to_facts()))) == each


@pytest.mark.parametrize(
    "change",
    [
        {"run": 1},
        {"tenure": ["i", 3]},
        {"deposed": ["a"]},
        {"unaware": None},
        {"unaware": [["a"]]},
    ],
)
def test_what_is_no_ownership_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not "):
        Ownership.from_facts({**Ownership().to_facts(), **change})
