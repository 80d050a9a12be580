"""What all procedures have in common: one action after the other, and its answer or its error."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from ledger.errors import MetadataUnavailable, NoSuchNode
from ledger.procedures import run
from ledger.protocol.procedure import Action, Steps, Wait


@dataclass(frozen=True, slots=True)
class Ask(Action[int]):
    question: str


def sum_of_two() -> Steps[int]:
    try:
        first = yield from Ask("first")
    except NoSuchNode:
        first = 0
    yield from Wait(0.0)
    return first + (yield from Ask("second"))


def performed(answers: dict[str, int | Exception], asked: list[Action[Any]]) -> Any:
    async def perform(action: Action[Any]) -> object:
        asked.append(action)
        assert isinstance(action, Ask)
        answer = answers[action.question]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return perform


async def test_actions_are_done_one_after_the_other_and_a_wait_by_the_runner() -> None:
    asked: list[Action[Any]] = []
    assert await run(sum_of_two(), performed({"first": 1, "second": 2}, asked)) == 3
    assert asked == [Ask("first"), Ask("second")]


async def test_an_error_is_raised_where_the_action_was_asked_for() -> None:
    answers: dict[str, int | Exception] = {"first": NoSuchNode("/x"), "second": 2}
    assert await run(sum_of_two(), performed(answers, [])) == 2


async def test_an_error_that_no_step_handles_is_what_it_ends_with() -> None:
    unavailable = MetadataUnavailable("x", "sync", 1.0)
    with pytest.raises(MetadataUnavailable):
        await run(sum_of_two(), performed({"first": 1, "second": unavailable}, []))


async def test_no_step_hears_of_what_is_no_error_of_a_log() -> None:
    heard: list[BaseException] = []

    def curious() -> Steps[int]:
        try:
            answer = yield from Ask("first")
        except Exception as error:
            heard.append(error)
            raise
        return answer

    with pytest.raises(ZeroDivisionError):
        await run(curious(), performed({"first": ZeroDivisionError()}, []))
    assert heard == []


async def test_a_procedure_that_is_cancelled_is_closed_and_its_action_too() -> None:
    closed: list[str] = []
    begun = asyncio.Event()

    def steps() -> Steps[int]:
        answer = 0
        try:
            answer = yield from Ask("never answered")
        finally:
            closed.append("procedure")
        return answer

    async def perform(_action: Action[Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("action")

    task = asyncio.create_task(run(steps(), perform))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["action", "procedure"]
