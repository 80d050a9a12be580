"""A machine that breaks tells its handle, which would wait for ever otherwise."""

import asyncio

import pytest

from ledger.machine_loop import MachineLoop
from tests.waiting import PATIENCE_S


class Breaks:
    def step(self, event: str, *, now: float) -> list[str]:
        assert event != "bad", "an invariant does not hold"
        return [event]

    def deadline(self) -> float | None:
        return None


@pytest.mark.parametrize("where", ["step", "effect", "work"])
def test_what_breaks_is_told_once_and_nothing_is_stepped_afterwards(where: str) -> None:
    async def scenario() -> tuple[list[str], list[BaseException]]:
        done, told, over = list[str](), list[BaseException](), asyncio.Event()

        def execute(effect: str) -> None:
            if effect == "unknown":
                raise KeyError(effect)
            done.append(effect)

        def broken(error: BaseException) -> None:
            told.append(error)
            over.set()

        async def work() -> str:
            raise OSError("the disk")

        loop = MachineLoop[str, str](Breaks(), execute, time_passed="", broken=broken)
        loop.post("good")
        if where == "work":
            loop.spawn(work())
            async with asyncio.timeout(PATIENCE_S):
                await over.wait()
        else:
            loop.post("bad" if where == "step" else "unknown")
        loop.post("too late")
        return done, told

    done, told = asyncio.run(scenario())
    assert done == ["good"]
    assert len(told) == 1
