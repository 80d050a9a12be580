"""The run, in order: start everybody, kill the driver again and again, compare.

The driver is stopped first, looked at, and killed only if the moment is still the one that was
asked for; else it goes on, and the next such moment is waited for.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, cast

from rich.console import Console

from dlog.demo.supervisor import RunningRole, Supervisor, supervisor
from examples.lakehouse import FLIGHTS, QUERIES
from examples.lakehouse.moments import Checkpoint, Moment, Watch
from examples.lakehouse.report import Mark, Outcome, Sample

_START_TIMEOUT_S: Final = 120.0
_WORK_TIMEOUT_S: Final = 300.0
_LOOK_EVERY_S: Final = 0.02
_LOOK_FOR_MOMENT_S: Final = 0.004
_SAMPLE_EVERY_S: Final = 0.25
_SHOW_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What shall happen in a run."""

    records: int
    """Departures, from the first of the year."""
    rate: float
    """Appended a second, at most."""
    per_trigger: int
    """Records that a micro-batch has at most."""
    kills: tuple[Moment, ...]
    """The driver is killed at these moments, spread over the run."""
    seed: int = 1
    """Of when each kill is due, within its part of the run."""


async def run_lakehouse(directory: Path, course: Course, console: Console) -> Outcome:
    """Run the pipeline with all its files in *directory*. Raises RoleFailed."""
    async with supervisor(directory, package="examples.lakehouse") as roles:
        run = await _start(roles, directory, course, console)
        random = Random(course.seed)
        parts = len(course.kills) + 1
        for part, moment in enumerate(course.kills):
            due = round(course.records * (part + random.uniform(0.2, 0.8)) / parts)
            await run.until_through(due)
            if part == len(course.kills) - 1:  # the sink goes on without it
                await run.cluster.tell("kill")
                await run.cluster.wait_for("killed", _START_TIMEOUT_S)
                run.note("a bookie killed")
            await run.kill_driver(moment)
        await run.until(lambda: "appended" in run.writer.latest, run.writer)
        end = int(_number(run.writer.latest["appended"], "last_offset")) + 1
        await run.until(lambda: all(run.position(name) >= end for name in QUERIES), run.driver)
        await run.driver.tell("end")
        await run.until(lambda: "through" in run.driver.latest, run.driver)
        run.sample()
        if course.kills:
            await run.until(lambda: "back" in run.cluster.latest, run.cluster)
        console.print("4 comparing Parquet and delays with a plain computation")
        return await _judge(run, course)


async def _start(roles: Supervisor, directory: Path, course: Course, console: Console) -> "_Run":
    """Start everybody; return once both queries are through with the first departure."""
    cluster = await roles.start("cluster", str(directory / "cluster"))
    uri = str((await cluster.wait_for("up", _START_TIMEOUT_S))["uri"])
    console.print(f"1 cluster: up at {uri}")
    writer = await roles.start("writer", uri, str(course.records), str(course.rate))
    board = await roles.start("board", uri)
    pipeline = (uri, str(directory), str(course.per_trigger))
    driver = await roles.start("pipeline", *pipeline)
    checkpoints = {name: Checkpoint(directory / "checkpoints" / name) for name in QUERIES}
    run = _Run(roles, console, cluster, writer, board, driver, pipeline, checkpoints)
    await writer.wait_for("ready", _START_TIMEOUT_S)
    await run.until(lambda: all(run.position(name) for name in QUERIES), driver)
    console.print(f"2 pipeline: up; {course.records:,} departures are appended now")
    run.began = time.monotonic()
    run.samples.clear()
    await writer.tell("go")
    return run


@dataclass(slots=True)
class _Run:
    """The roles that run, and what was seen of them."""

    roles: Supervisor
    console: Console
    cluster: RunningRole
    writer: RunningRole
    board: RunningRole
    driver: RunningRole
    pipeline: tuple[str, ...]
    """What the driver is started with, each time."""
    checkpoints: Mapping[str, Checkpoint]
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _bookie_was_back: bool = False
    _shown: float = 0.0

    def position(self, query: str) -> int:
        """Return how many records of `flights` the query is through with."""
        return self.checkpoints[query].position(FLIGHTS)

    def note(self, what: str) -> None:
        self.marks.append(Mark(time.monotonic() - self.began, what))
        self.console.print(f"3 {what}")

    async def until_through(self, records: int) -> None:
        """Wait until the driver has got to work in this life, and through with *records*."""
        checkpoint = self.checkpoints["delays"]
        done = checkpoint.done()
        await self.until(
            lambda: checkpoint.done() > done and self.position("delays") >= records, self.driver
        )

    async def kill_driver(self, moment: Moment) -> None:
        """Kill the driver when *moment* is, and start it again."""
        watch = Watch(self.checkpoints["delays"])

        def is_now() -> bool:
            return watch.now(moment, int(_number(self.board.latest["read"], "records")))

        def is_killed() -> bool:
            if not is_now():
                return False
            self.driver.signal_group(signal.SIGSTOP)
            killed = is_now()
            self.driver.signal_group(signal.SIGKILL if killed else signal.SIGCONT)
            return killed

        await self.until(is_killed, self.driver, _LOOK_FOR_MOMENT_S)
        self.roles.dismiss(self.driver)
        self.note(f"driver killed {moment.value}")
        self.driver = await self.roles.start("pipeline", *self.pipeline)

    async def until(
        self,
        reached: Callable[[], bool],
        waiting_for: RunningRole,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        """Wait until *reached*, looking how far everybody is. Raises RoleFailed."""
        deadline = time.monotonic() + _WORK_TIMEOUT_S
        while not reached():
            self.roles.check()
            self._look()
            if time.monotonic() > deadline:
                raise waiting_for.failed(f"is not done after {_WORK_TIMEOUT_S:g} s")
            await asyncio.sleep(look_every_s)

    def _look(self) -> None:
        now = time.monotonic()
        if not self._bookie_was_back and "back" in self.cluster.latest:
            self._bookie_was_back = True
            self.note("the bookie is back")
        if not self.samples or now - self.began - self.samples[-1].at_s >= _SAMPLE_EVERY_S:
            self.sample()
        newest = self.samples[-1]
        if newest.delays and now - self._shown >= _SHOW_EVERY_S:
            self._shown = now
            self.console.print(
                f"  {newest.at_s:4.0f} s   appended {newest.appended:>8,}   in Parquet "
                f"{newest.parquet:>8,}   in windows {newest.delays:>8,}"
            )

    def sample(self) -> None:
        """Write down how far everybody is."""
        progress = self.writer.latest.get("progress", {"rows": 1})
        self.samples.append(
            Sample(
                at_s=time.monotonic() - self.began,
                appended=int(_number(progress, "rows")),
                parquet=self.position("parquet"),
                delays=self.position("delays"),
            )
        )


async def _judge(run: _Run, course: Course) -> Outcome:
    uri, directory, _ = run.pipeline
    verifier = await run.roles.start("verifier", uri, directory, str(course.records))
    verdict = await verifier.wait_for("verdict", _WORK_TIMEOUT_S)
    delays = cast("Mapping[str, int]", verdict["delays"])
    await run.board.tell(str(delays["found"]))
    tailed = await run.board.wait_for("tailed", _START_TIMEOUT_S)
    return Outcome(
        records=course.records,
        days=int(_number(verdict, "days")),
        kills=[moment.value for moment in course.kills],
        bookie_kills=1 if course.kills else 0,
        parquet=cast("Mapping[str, int]", verdict["parquet"]),
        delays=delays,
        tailed_records=int(_number(tailed, "records")),
        tailed_hours=int(_number(tailed, "hours")),
        worst=" ".join(str(each) for each in cast("list[object]", tailed["worst"])),
        samples=run.samples,
        marks=run.marks,
    )


def _number(event: Mapping[str, object], name: str) -> float:
    value = event[name]
    assert isinstance(value, int | float)
    return float(value)
