"""Runs procedures (`ledger.protocol.procedure`): does each action, and hands back the answer or the
error. What that means the procedure decides."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ledger.errors import LogError
from ledger.protocol.procedure import Action, Now, Steps, Wait

R = TypeVar("R")
Perform = Callable[[Action[Any]], Awaitable[object]]
"""Does an action; returns its answer, or raises why there is none."""


async def run(steps: Steps[R], perform: Perform) -> R:
    """Run *steps* to their end; return what they return, or raise what they end with.

    The procedure hears of each `LogError` of an action; anything else, cancellation included,
    ends it here, and leaves the action under way with an unknown outcome."""
    answer: object = None
    failure: LogError | None = None
    try:
        while True:
            action = steps.send(answer) if failure is None else steps.throw(failure)
            answer = failure = None
            try:
                match action:
                    case Wait(seconds):
                        await asyncio.sleep(seconds)
                    case Now():
                        answer = asyncio.get_running_loop().time()
                    case _:
                        answer = await answer_to(action, perform)
            except LogError as error:
                failure = error
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        steps.close()


async def answer_to(action: Action[Any], perform: Perform) -> object:
    """Do *action*. Each one of every procedure passes here, for the simulator to stop at."""
    return await perform(action)
