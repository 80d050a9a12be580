"""Procedures without anything around them: a test answers each action that one yields."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ledger.errors import LogError
from ledger.protocol.procedure import Action, Steps

R = TypeVar("R")


@dataclass(frozen=True)
class Returned(Generic[R]):
    value: R


@dataclass(frozen=True)
class Raised:
    error: LogError


Next = Action[Any] | Returned[R] | Raised
"""What a procedure does next, or what it has come to."""


class Script(Generic[R]):
    def __init__(self, steps: Steps[R]) -> None:
        self._steps = steps

    def begin(self) -> Next[R]:
        return self.answer(None)

    def answer(self, value: object) -> Next[R]:
        """Answer the action that it waits for."""
        try:
            return self._steps.send(value)
        except StopIteration as end:
            return Returned(end.value)
        except LogError as error:
            return Raised(error)

    def fail(self, error: LogError) -> Next[R]:
        """Let the action that it waits for fail."""
        try:
            return self._steps.throw(error)
        except StopIteration as end:
            return Returned(end.value)
        except LogError as raised:
            return Raised(raised)
