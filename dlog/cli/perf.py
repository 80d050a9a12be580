"""``dlog perf``: how fast a cluster is, as its users meet it: rates and percentiles."""

import asyncio
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import APPLIES, CommandGroup
from dlog.cli.connections import connected
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import print_json, print_lines, warn
from dlog.cli.runner import FAILED, run_at
from dlog.config import load, resolve_uri
from dlog.measuring import How
from dlog.measuring.leader import NUMBER_BYTES
from ledger.errors import LogError
from ledger.options import duration, size
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.aio import Log, Reader
    from dlog.measuring.takeovers import Measured, TimedTakeover
    from dlog.position import RecordId

TIMES_MAX: Final = 100_000
"""Latencies that are kept of one run; of more, every second one, then every fourth."""
PENDING_MAX: Final = 10_000
"""Appends that wait for their acknowledgement."""
REPORT_S: Final = 1.0
DELETE_S: Final = 30.0
"""Time limit for deleting the log of a measurement at its end."""
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}

app = CommandGroup("cli#ledgers-bookies-a-local-cluster")

Records = Annotated[int, typer.Option("--records", "-n", help="Number of records.", min=1)]


@dataclass(slots=True)
class Times:
    """Latencies, thinned evenly so that memory is bounded and no part of a run counts more."""

    kept: list[float] = field(default_factory=list)
    every: int = 1
    seen: int = 0

    def add(self, seconds: float) -> None:
        if self.seen % self.every == 0:
            self.kept.append(seconds)
            if len(self.kept) >= TIMES_MAX:
                self.kept = self.kept[::2]
                self.every *= 2
        self.seen += 1


def percentile(ascending: Sequence[float], share: float) -> float:
    """Return what *share* (0 to 1) of *ascending*, which is not empty, does not exceed."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


@app.define(
    APPLIES,
    "dlog perf append perf-test",
    "dlog perf append perf-test --records 1000000 --size 1K",
    "dlog perf append perf-test --rate 2000 --for 30s --json",
)
def append(
    log: LogName,
    *,
    records: Records = 100_000,
    record_bytes: Annotated[
        int,
        typer.Option(
            "--size", help="Of each record.", parser=size(), metavar="SIZE", show_default="100"
        ),
    ] = 100,
    rate: Annotated[
        float, typer.Option("--rate", help="Records a second; 0: as many as possible.", min=0)
    ] = 0.0,
    limit_s: Annotated[
        float | None,
        typer.Option(
            "--for", help="Stop after this time.", parser=duration(least=0.001), metavar="DURATION"
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Append records; print rate and latency, from the call to the acknowledgement.

    Takes the log over as any writer does, and leaves the records in it: use a log for this
    purpose only. Without --rate the latency is that of a full queue; --rate shows the latency
    at an application's own rate. Reports progress each second on stderr."""

    async def command() -> dict[str, object]:
        from dlog.aio import Log

        async with connected(uri) as client, await Log.open(log, client=client) as writer:
            return await _append(writer, records, record_bytes, rate, limit_s)

    _show(run_at(uri, command()), as_json=as_json)


@app.define(
    APPLIES, "dlog perf tail perf-test", "dlog perf tail perf-test --records 1000000 --json"
)
def tail(
    log: LogName, records: Records = 1_000_000, uri: Uri = None, as_json: Json = False
) -> None:
    """Read a log from its start, up to --records or its end; print the rate.

    Never interferes with its writer. Reports progress each second on stderr."""

    async def command() -> dict[str, object]:
        from dlog.aio import Log

        async with connected(uri) as client:
            reader = await Log.tail(log, follow=False, client=client)
            async with reader:
                return await _tail(reader, records)

    _show(run_at(uri, command()), as_json=as_json)


@app.define(
    APPLIES,
    "dlog perf standby",
    "dlog perf standby --rounds 30 --rate 5000 --size 1K",
    "dlog perf standby --how resign --json",
)
def standby(
    *,
    rounds: Annotated[int, typer.Option(help="Number of leaders to end.", min=1, max=1000)] = 10,
    how: Annotated[
        How, typer.Option(help="Kill the leader's process as with 'kill -9', or let it hand over.")
    ] = How.KILL,
    rate: Annotated[
        float, typer.Option(help="Records that a leader appends a second.", min=1, max=1e6)
    ] = 1000.0,
    record_bytes: Annotated[
        int,
        typer.Option(
            "--size",
            help="Of each record.",
            parser=size(least=NUMBER_BYTES),
            metavar="SIZE",
            show_default="100",
        ),
    ] = 100,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="LOG",
            help="Name of the log to create for this, and to delete at the end. Default: a name "
            "that starts with perf-standby.",
            show_default=False,
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """End a leader under load, repeatedly; print how soon a warm standby has appended.

    The time runs from the kill, or from the call to resign, until the standby's first append is
    acknowledged, and is shown with the medians of its parts. Leader and standby are processes
    of this machine: when a leader's whole machine dies, its session has to expire first, which
    is not measured here. Checks that no acknowledged record is lost or duplicated; exits with 1
    if one is. A round takes some seconds, and two minutes at most. Reports progress on
    stderr."""

    async def command() -> dict[str, object]:
        from dlog.aio.admin import create_log, delete_log
        from dlog.measuring.takeovers import Load, measure

        name = log or f"perf-standby-{secrets.token_hex(4)}"
        with _ended_as_by_ctrl_c(signal.SIGTERM):
            async with connected(uri) as client:
                await create_log(name, client=client)
                try:
                    measured = await measure(
                        client,
                        resolve_uri(uri),
                        name,
                        rounds=rounds,
                        how=how,
                        load=Load(rate, record_bytes),
                        lease_s=load().session_timeout_s / 2,
                        report=_report_round,
                    )
                finally:
                    try:
                        async with asyncio.timeout(DELETE_S):
                            await delete_log(name, client=client)
                    except (LogError, TimeoutError):
                        warn(f"the log {name!r} was not deleted; 'dlog log delete' does it")
        return _takeover_facts(how, measured)

    facts = run_at(uri, command())
    _show(facts, as_json=as_json)
    if facts["lost"] or facts["doubled"]:
        raise typer.Exit(FAILED)


@contextmanager
def _ended_as_by_ctrl_c(number: signal.Signals) -> Iterator[None]:
    """Let the signal do what Ctrl-C does: asyncio has set what that is."""
    before = signal.signal(number, signal.getsignal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(number, before)


def _report_round(number: int, found: "TimedTakeover") -> None:
    if sys.stderr.isatty():
        parts = ", ".join(f"{part} {1000 * s:.0f}" for part, s in found.parts_s.items())
        warn(f"round {number}: {1000 * found.took_s:.0f} ms ({parts})")


def _takeover_facts(how: How, measured: "Measured") -> dict[str, object]:
    found = measured.takeovers
    facts: dict[str, object] = {
        "how": how.value,
        "rounds": len(found),
        "records": measured.records,
        "lost": measured.lost,
        "doubled": measured.doubled,
        **_percentiles(sorted(each.took_s for each in found)),
    }
    for part in dict.fromkeys(part for each in found for part in each.parts_s):
        spent_s = sorted(each.parts_s.get(part, 0.0) for each in found)
        facts[f"{part}_p50_ms"] = _ms(percentile(spent_s, SHARES["p50"]))
    return facts


async def _append(
    writer: "Log", records: int, record_bytes: int, rate: float, limit_s: float | None
) -> dict[str, object]:
    times, payload = Times(), bytes(record_bytes)
    pending: deque[asyncio.Future[RecordId]] = deque()
    progress = _Progress()
    began = time.perf_counter()

    def note(called: float, future: "asyncio.Future[RecordId]") -> None:
        if not future.cancelled() and future.exception() is None:
            times.add(time.perf_counter() - called)

    for number in range(records):
        now = time.perf_counter()
        if limit_s is not None and now - began >= limit_s:
            break
        if rate and (wait_s := began + number / rate - now) > 0:
            await asyncio.sleep(wait_s)
        if len(pending) >= PENDING_MAX:
            await pending.popleft()
        future = writer.append_async(payload)
        future.add_done_callback(partial(note, time.perf_counter()))
        pending.append(future)
        progress.report(times.seen)
    while pending:
        await pending.popleft()
    await asyncio.sleep(0)  # the last callbacks
    return _facts(times.seen, times.seen * record_bytes, time.perf_counter() - began, times)


async def _tail(reader: "Reader", records: int) -> dict[str, object]:
    count = size_bytes = 0
    progress = _Progress()
    began = time.perf_counter()
    async for chunk in reader.read_batches():
        count += len(chunk)
        size_bytes += chunk.batch.header.value_bytes
        progress.report(count)
        if count >= records:
            break
    return _facts(count, size_bytes, time.perf_counter() - began, None)


class _Progress:
    """Says on stderr, if a person looks there, how far it is, once a second."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._count = 0

    def report(self, count: int) -> None:
        now = time.perf_counter()
        if now - self._at >= REPORT_S:
            if sys.stderr.isatty():
                warn(
                    f"{counted(count, 'record')}, {(count - self._count) / (now - self._at):,.0f}/s"
                )
            self._at, self._count = now, count


def _facts(records: int, size_bytes: int, took_s: float, times: Times | None) -> dict[str, object]:
    facts: dict[str, object] = {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(took_s, 3),
        "records_per_s": round(records / took_s, 1),
        "bytes_per_s": round(size_bytes / took_s, 1),
    }
    if times is not None and times.kept:
        facts.update(_percentiles(sorted(times.kept)))
    return facts


def _percentiles(ascending: Sequence[float]) -> dict[str, float]:
    return {f"{name}_ms": _ms(percentile(ascending, share)) for name, share in SHARES.items()}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _show(facts: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print_lines(facts)
