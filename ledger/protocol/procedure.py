"""Procedures: protocols that do one thing after the other, written as a sequence.

A procedure is a generator. It yields an *action*, and `run` (`ledger.procedures`) returns the
answer where it yielded, or raises the error there. So a retry is a loop, an error is handled by
`except`, a procedure is part of another one by `yield from`, and all of it reads from top to
bottom. What is concurrent is a machine instead (`ledger.machine_loop`).

    node = yield from Get(path)        # a `Versioned`
    yield from Wait(backoff.next())

A procedure knows no clock, no randomness and no I/O. The process that runs it may be killed,
stopped or left without an answer between any two actions."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Action(Generic[R]):
    """Something that a procedure asks for; its answer is an `R`. Each kind is a frozen dataclass
    that says what it is answered with, and which errors mean something to a procedure."""

    __slots__ = ()

    def __iter__(self) -> Generator["Action[Any]", Any, R]:
        answer: R = yield self
        return answer


Steps = Generator[Action[Any], Any, R]
"""A procedure that returns an `R`."""


# What the runner itself does.


@dataclass(frozen=True, slots=True)
class Wait(Action[None]):
    """Continue after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Now(Action[float]):
    """Answer: the monotonic time, in seconds."""
