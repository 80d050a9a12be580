"""What all procedures have in common: one action after the other, and its answer or its error."""

import pytest

from dlog.protocol.procedure import (
    ActionFailed,
    Answered,
    Exists,
    Get,
    Procedure,
    Started,
    Steps,
    Sync,
    exists,
    get,
    sync,
    wait,
)
from ledger.errors import MetadataUnavailable, NoSuchNode
from ledger.metastore.ops import Versioned
from ledger.protocol.shared import TimePassed


def value_or_none() -> Steps[bytes | None]:
    yield from sync("/x")
    try:
        return (yield from get("/x")).value
    except NoSuchNode:
        return None


def impatient() -> Steps[int]:
    yield from wait(2.0)
    return (yield from exists("/x")) or 0


def test_it_asks_for_one_action_after_the_other_and_comes_to_a_result() -> None:
    machine = Procedure(value_or_none())
    assert machine.step(Started(), now=0.0) == [Sync("/x")]
    assert machine.step(Answered(None), now=0.0) == [Get("/x")]
    assert machine.step(Answered(Versioned(b"v", 0)), now=0.0) == []
    assert (machine.result, machine.deadline()) == (b"v", None)


def test_an_error_is_an_answer_that_the_steps_judge() -> None:
    machine = Procedure(value_or_none())
    machine.step(Started(), now=0.0)
    machine.step(Answered(None), now=0.0)
    assert machine.step(ActionFailed(NoSuchNode("/x")), now=0.0) == []
    assert machine.result is None


def test_an_error_that_no_step_bears_is_what_it_ends_with() -> None:
    machine = Procedure(value_or_none())
    machine.step(Started(), now=0.0)
    assert machine.step(ActionFailed(MetadataUnavailable("x", "sync", 1.0)), now=0.0) == []
    with pytest.raises(MetadataUnavailable):
        _ = machine.result


def test_a_wait_is_a_deadline_and_no_action() -> None:
    machine = Procedure(impatient())
    assert machine.step(Started(), now=10.0) == []
    assert machine.deadline() == 12.0
    assert machine.step(TimePassed(), now=11.9) == []
    assert machine.deadline() == 12.0
    assert machine.step(TimePassed(), now=12.0) == [Exists("/x")]
    assert machine.deadline() is None


def test_nothing_happens_once_it_is_over() -> None:
    machine = Procedure(impatient())
    machine.step(Started(), now=0.0)
    machine.step(TimePassed(), now=2.0)
    machine.step(Answered(7), now=2.0)
    assert machine.result == 7
    with pytest.raises(AssertionError):
        machine.step(Answered(8), now=2.0)


def test_an_answer_of_another_kind_than_asked_for_is_a_broken_invariant() -> None:
    machine = Procedure(value_or_none())
    machine.step(Started(), now=0.0)
    machine.step(Answered(None), now=0.0)
    with pytest.raises(AssertionError):
        machine.step(Answered("no versioned value"), now=0.0)
