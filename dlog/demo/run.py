"""The six steps of the demo, in order."""

import asyncio
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, cast

from rich.console import Console

from dlog.demo.report import DemoOutcome, DemoTakeover
from dlog.demo.supervisor import RunningRole, Supervisor, supervisor

RECORDS: Final = 336_776
_START_TIMEOUT_S: Final = 90.0
_WORK_TIMEOUT_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.01
_SHOW_EVERY_S: Final = 0.5


async def run_demo(directory: Path, *, zookeeper: bool, tls: bool, console: Console) -> DemoOutcome:
    """Run the demo with all its files in *directory*. Raises RoleFailed."""
    async with supervisor(directory) as roles:
        uri = await _start_cluster(roles, directory, console, zookeeper=zookeeper, tls=tls)
        spark = await roles.start("spark", uri, str(directory))
        console_role = await _start_console(roles, uri)
        writer = await roles.start("writer", uri)
        leading = await writer.wait_for("leading", _START_TIMEOUT_S)
        console.print(f"2 writer: elected, log opened with epoch {leading['epoch']}")
        standby = await roles.start("standby", uri)
        await standby.wait_for("read", _START_TIMEOUT_S)
        console.print("3 standby: tails the log without disturbing its writer")
        await spark.wait_for("progress", _START_TIMEOUT_S)
        if console_role is not None and "serving" in console_role.latest:
            _say_where(console, console_role.latest["serving"])
        console.print("4 Spark: streams the log into Parquet")
        show = _Show(writer, standby, spark, console)
        killed_at, appended, seconds = await _kill_half_way(roles, writer, show)
        console.print(f"5 leader killed with SIGKILL after row {appended - 1:,}")
        takeover = await _watch_takeover(standby, killed_at)
        console.print(
            f"  standby took over in {takeover.total_ms} ms and goes on at row "
            f"{_number(standby.latest['first'], 'row'):,.0f}"
        )
        done = await _wait_for_all(roles, standby, spark, show)
        rest = standby.latest["progress"]
        rate = (appended + _number(rest, "appended")) / (seconds + _number(rest, "seconds"))
        console.print("6 comparing source, log and Parquet")
        files = cast("list[str]", done["files"])
        verifier = await roles.start("verifier", uri, *files)
        verdict = await verifier.wait_for("verdict", _WORK_TIMEOUT_S)
        return DemoOutcome(
            source=int(_number(verdict, "source")),
            log=cast("Mapping[str, int]", verdict["log"]),
            parquet=cast("Mapping[str, int]", verdict["parquet"]),
            standby_exact=bool(standby.latest["followed"]["exact"]),
            takeover=takeover,
            append_rate=rate,
            spark_rate=_number(done, "records") / _number(done, "seconds"),
        )


async def _start_cluster(
    roles: Supervisor, directory: Path, console: Console, *, zookeeper: bool, tls: bool
) -> str:
    flags = [flag for flag, given in (("--zookeeper", zookeeper), ("--tls", tls)) if given]
    cluster = await roles.start("cluster", str(directory / "cluster"), *flags)
    up = await cluster.wait_for("up", _START_TIMEOUT_S)
    bookies = ", ".join(cast("list[str]", up["bookies"]))
    console.print(f"1 cluster: up at {up['uri']}, bookies {bookies}")
    roles.environment = cast("Mapping[str, str]", up["environment"])
    if up["secured"]:
        console.print(
            f"  mutual TLS everywhere ({up['secured']}): each bookie refused a client without TLS "
            "and one without a certificate"
        )
    return str(up["uri"])


async def _start_console(roles: Supervisor, uri: str) -> RunningRole | None:
    """Start what the demo can be watched with, if its extra is installed; nobody waits for it, and
    the demo goes on if it ends."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        return None
    role = await roles.start("console", uri)
    roles.dismiss(role)
    return role


def _say_where(console: Console, serving: Mapping[str, object]) -> None:
    """An address that logs in is for the person in front of a terminal alone."""
    where = serving["login" if console.is_terminal else "address"]
    console.print(f"  watch it at {where}", soft_wrap=True)


class _Show:
    """Prints how far everybody is, now and then."""

    def __init__(
        self, writer: RunningRole, standby: RunningRole, spark: RunningRole, console: Console
    ) -> None:
        self._writer, self._standby, self._spark, self._console = writer, standby, spark, console
        self._shown_at = 0.0

    def maybe(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._shown_at < _SHOW_EVERY_S:
            return
        self._shown_at = now
        appended = max(_latest(role, "progress", "rows") for role in (self._writer, self._standby))
        self._console.print(
            f"  appended {appended:>8,.0f} of {RECORDS:,}"
            f"   standby read {_latest(self._standby, 'read', 'records'):>8,.0f}"
            f"   Spark wrote {_latest(self._spark, 'progress', 'records'):>8,.0f}"
        )


async def _kill_half_way(
    roles: Supervisor, writer: RunningRole, show: _Show
) -> tuple[float, int, float]:
    """Let the writer go; return when it was killed, and how many records it had in what time."""
    await writer.tell("go")
    await _until(lambda: _latest(writer, "progress", "rows") >= RECORDS / 2, roles, show, writer)
    killed_at = writer.kill()
    roles.dismiss(writer)
    progress = writer.latest["progress"]
    return killed_at, int(_number(progress, "rows")), _number(progress, "seconds")


async def _watch_takeover(standby: RunningRole, killed_at: float) -> DemoTakeover:
    elected = _number(await standby.wait_for("elected", _WORK_TIMEOUT_S), "at")
    leading = _number(await standby.wait_for("leading", _WORK_TIMEOUT_S), "at")
    first = _number(await standby.wait_for("first", _WORK_TIMEOUT_S), "at")
    return DemoTakeover(elected - killed_at, leading - elected, first - leading)


async def _wait_for_all(
    roles: Supervisor, standby: RunningRole, spark: RunningRole, show: _Show
) -> Mapping[str, object]:
    """Wait until standby and Spark have everything; return Spark's report."""
    await _until(lambda: "appended" in standby.latest, roles, show, standby)
    await spark.tell(str(int(_number(standby.latest["appended"], "last_offset")) + 1))
    await _until(lambda: "followed" in standby.latest, roles, show, standby)
    await _until(lambda: "streamed" in spark.latest, roles, show, spark)
    return spark.latest["streamed"]


async def _until(
    reached: Callable[[], bool], roles: Supervisor, show: _Show, waiting_for: RunningRole
) -> None:
    """Wait until *reached*, showing how far everybody is. Raises RoleFailed."""
    deadline = time.monotonic() + _WORK_TIMEOUT_S
    while not reached():
        roles.check()
        show.maybe()
        if time.monotonic() > deadline:
            raise waiting_for.failed(f"is not done after {_WORK_TIMEOUT_S:g} s")
        await asyncio.sleep(_LOOK_EVERY_S)


def _latest(role: RunningRole, event: str, field: str) -> float:
    return _number(role.latest[event], field) if event in role.latest else 0.0


def _number(event: Mapping[str, object], field: str) -> float:
    value = event[field]
    assert isinstance(value, int | float)
    return float(value)
