"""A machine that breaks tells its handle, which would wait for ever otherwise."""

import asyncio

import pytest

from ledger.machine_loop import MachineLoop, run_in_turn
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


class InTurn:
    """Wants what the event says, letter by letter; at `*` it waits."""

    def __init__(self) -> None:
        self._wake_at: float | None = None

    def step(self, event: str, *, now: float) -> list[str]:
        self._wake_at = now + 0.001 if event == "*" else None
        return [] if event == "*" else list(event)

    def deadline(self) -> float | None:
        return self._wake_at


@pytest.mark.parametrize(
    ("answers", "done"),
    [
        ({}, "ab"),
        ({"a": "xy", "b": "z"}, "abxyz"),
        ({"b": "*"}, "abw"),
        ({"b": "*", "w": "*", "a": "c"}, "abc" + "w" * 3),
    ],
)
def test_one_effect_is_done_after_the_other_until_the_machine_wants_nothing(
    answers: dict[str, str], done: str
) -> None:
    seen: list[str] = []

    async def execute(effect: str) -> str | None:
        seen.append(effect)
        await asyncio.sleep(0)
        return None if seen.count("w") > 2 else answers.get(effect)

    asyncio.run(run_in_turn(InTurn(), "ab", execute, time_passed="w"))
    assert "".join(seen) == done


def test_what_an_effect_raises_ends_the_run() -> None:
    async def execute(effect: str) -> str | None:
        raise OSError(effect)

    with pytest.raises(OSError, match="a"):
        asyncio.run(run_in_turn(InTurn(), "ab", execute, time_passed="w"))
