"""A takeover that stops between any two of its steps leaves a log that the next one opens.

It takes the log from a writer that was stopped in the middle of a roll and wakes up hours later.
Stops are counted in what runs on the opener's event loop: after each of these it crashes, sleeps
for hours too, or loses its term. Every invariant is checked after every step, and at the end
all that was acknowledged must be read, and no ledger be leaked.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from dlog.settings import LogSettings
from ledger.quorum import Quorum
from tests.simulation.kernel.scheduler import Action
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile, draw
from tests.simulation.logs.workload import LogSimulation
from tests.simulation.logs.writing import Leader

QUORUM = Quorum(3, 3, 2)
POINTS_MAX = 1000
SAMPLE = 6
"""`make sim LOGS=1` has each point, `make test` one of so many, and the first one of each step."""
LONG = pytest.mark.long("sim")
STEPS = ("ReadManifest", "RecoverSegment", "CreateLedger", "WriteManifest")


def calm() -> LogProfile:
    drawn = draw(Random(1))
    return replace(
        drawn,
        floor=replace(drawn.floor, quorum=QUORUM, bookies=4),
        logs=1,
        settings=LogSettings(quorum=QUORUM, roll_records=3),
        bursts=(20,),
        pauses_s=(0.01,),
        truncates=0.0,
        abandons=0.0,
        elections=0.0,
    )


class Term:
    """Implements `dlog.aio.port.Leadership`; ends at a word."""

    def __init__(self) -> None:
        self.ended = False

    def is_current(self) -> bool:
        return not self.ended

    async def verify(self) -> bool:
        return not self.ended


class Interrupted(LogSimulation):
    """One seed of it; *at*: after how many actions of the opener it stops."""

    def __init__(self, at: int, fate: str) -> None:
        super().__init__(5, profile=calm())
        self._at = at
        self._fate = fate
        self._actions = 0
        """Of the opener, until it stopped or had the log."""
        self.step = ""
        """The last one that was under way by then."""
        self.steps: list[str] = []
        """The same, after each of its actions."""
        self.had_opened = False
        """Whether it had the log before it could stop."""

    @property
    def opened(self) -> bool:
        """Whether the opener ever had the log."""
        return any(each.who.startswith("opener") for each in self.world.logs.current["log1"].opens)

    def _run(self) -> None:
        self._healed = True
        self._stop_in_a_roll()
        self._open()
        self._settle()
        self._wake_sleepers()

    def _stop_in_a_roll(self) -> None:
        process = self.world.process("leader")
        process.run(_leads(Leader(process, "log1", self.profile), None))
        self._step_while(lambda: self._open_segments() < 2)
        assert self.world.logs.current["log1"].acknowledged
        _sleep(process)

    def _open(self) -> None:
        process, term = self.world.process("opener"), Term()
        leader = Leader(process, "log1", self.profile)
        leader.stopping = True  # it lets go again at once

        def guard(action: Action) -> None:
            action()
            if self.had_opened or self._actions == self._at:
                return
            self._actions += 1
            self.step = process.loop.step or self.step
            self.steps.append(self.step)
            self.had_opened = self.opened
            if self._actions < self._at or self.had_opened:
                return
            match self._fate:
                case "crashes":
                    process.crash()
                case "sleeps":
                    _sleep(process)
                case _:
                    term.ended = True

        process.host.guard = guard
        process.run(_leads(leader, term))
        self._step_while(lambda: process.busy and not process.host.asleep)

    def _open_segments(self) -> int:
        history = self.world.logs.current.get("log1")
        segments = () if history is None or not history.manifests else history.manifest.segments
        return sum(segment.sealed is None for segment in segments)


async def _leads(leader: Leader, term: Term | None) -> None:
    await leader.lead(20, term=term)


def _sleep(process: Process) -> None:
    process.host.pause()
    process.host.asleep = True


def stopped_anywhere(fate: str, every: int) -> Iterator[Interrupted]:
    """Run it with a stop at one of *every* points, and at the first one of each step; yield those
    in which the opener did not come so far."""
    undisturbed = Interrupted(POINTS_MAX, fate)
    undisturbed.run()
    assert undisturbed.had_opened, f"it never opened within {POINTS_MAX} actions"
    before = None
    for at, step in enumerate(undisturbed.steps, 1):
        if step == before and at % every:
            continue
        before, world = step, Interrupted(at, fate)
        world.run()
        if world.had_opened:
            return
        yield world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "every"),
    [
        ("crashes", SAMPLE),
        pytest.param("crashes", 1, marks=LONG),
        pytest.param("sleeps", 1, marks=LONG),
    ],
)
def test_a_takeover_that_stops_anywhere_is_taken_over_itself(fate: str, every: int) -> None:
    assert {world.step for world in stopped_anywhere(fate, every)} == {"", *STEPS}


@pytest.mark.slow
@pytest.mark.parametrize("every", [SAMPLE, pytest.param(1, marks=LONG)])
def test_who_loses_its_term_anywhere_before_the_swap_never_has_the_log(every: int) -> None:
    ends = {(world.step, world.opened) for world in stopped_anywhere("loses its term", every)}
    assert ends == {("WriteManifest", True), *((step, False) for step in ("", *STEPS[:-1]))}
