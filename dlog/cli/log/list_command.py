"""``dlog log list``: names of logs, and with ``-l`` what can be said of each at a look."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_json, print_table, write_text
from dlog.cli.runner import run_at, told
from ledger.values import counted

if TYPE_CHECKING:
    from ledger.client import LedgerClient

LOOKED_AT_MAX: Final = 1000
"""Logs of one list that are looked at; what is left out is said."""
AT_ONCE_MAX: Final = 16
RATE_S: Final = 1.0
"""Between the two looks of which the rate is the difference."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log; None: it is not known, as the log or a bookie did not answer."""

    log: str
    first_offset: int | None = None
    next_offset: int | None = None
    bytes: int | None = None
    records_per_s: float | None = None
    leader: str | None = None
    trouble: str = ""


def add_to(app: typer.Typer) -> None:
    app.command(
        "list",
        epilog=examples(
            "dlog log list",
            "dlog log list -l",
            "dlog log list --prefix eu/ --json",
            "dlog log list --no-recursive",
            "dlog log list --all",
        ),
    )(list_)


def list_(
    prefix: Annotated[str, typer.Option(help="Only logs whose names start with this.")] = "",
    recursive: Annotated[
        bool,
        typer.Option(help="Print whole names; or only up to the next slash, as directories."),
    ] = True,
    long: Annotated[
        bool,
        typer.Option(
            "--long",
            "-l",
            help="First offset, end, size, records appended a second, and leader of each: takes a "
            f"second or two, for {LOOKED_AT_MAX} logs at most.",
        ),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Include dlog's own logs: their names start with '_'."),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List the names of the logs. dlog's own logs are left out, and counted on stderr."""
    if long and not recursive:
        raise typer.BadParameter("names up to a slash are not logs", param_hint="--long")

    async def command() -> None:
        from dlog.aio.store import log_names
        from dlog.names import first_level, is_own

        async with connected(uri) as client:
            names = await log_names(client.store, prefix)
            found = [name for name in names if everything or is_own(prefix) or not is_own(name)]
            if hidden := len(names) - len(found):
                told(f"{counted(hidden, 'log')} of dlog's own not listed; --all lists all")
            if not recursive:
                found = first_level(found, prefix)
            if not long:
                if as_json:
                    print_json(found)
                else:
                    write_text("".join(f"{name}\n" for name in found))
                return
            lines = await looked_at(client, found[:LOOKED_AT_MAX])
        if as_json:
            print_json([facts_of(line) for line in lines])
        else:
            print_table(
                ("log", "first", "end", "bytes", "records/s", "leader"), map(cells_of, lines)
            )
        for line in lines:
            if line.trouble:
                told(f"{line.log}: {line.trouble}")
        if len(found) > LOOKED_AT_MAX:
            told(f"{counted(len(found) - LOOKED_AT_MAX, 'more log')} left out; name a --prefix")

    run_at(uri, command())


async def looked_at(client: "LedgerClient", logs: list[str]) -> list[LogLine]:
    """Look at each twice, some at a time."""
    import asyncio

    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def look(log: str) -> LogLine:
        async with turns:
            return await _look(client, log)

    return list(await asyncio.gather(*map(look, logs)))


async def _look(client: "LedgerClient", log: str) -> LogLine:
    import asyncio

    from dlog.aio.read.tails import TailTracker
    from leader import current_leader
    from ledger.errors import LogError

    try:
        tracker = TailTracker(client, log)
        try:
            first = await tracker.poll()
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(RATE_S)
            tail = await tracker.poll()
            took_s = asyncio.get_running_loop().time() - began
        finally:
            await tracker.close()
        leader = await current_leader(client.store, log)
    except (LogError, TimeoutError) as error:
        return LogLine(log, trouble=str(error) or "no answer in time")
    sealed = [segment.sealed for segment in tail.segments if segment.sealed is not None]
    open_records = tail.next_offset - max(
        (segment.end_offset or 0 for segment in tail.segments if segment.sealed is not None),
        default=tail.first_offset,
    )
    return LogLine(
        log,
        tail.first_offset,
        tail.next_offset,
        sum(each.bytes for each in sealed) + round(max(0, open_records) * tail.record_bytes),
        max(0, tail.next_offset - first.next_offset) / took_s,
        leader.candidate if leader else None,
    )


def facts_of(line: LogLine) -> dict[str, object]:
    return {
        "log": line.log,
        "first_offset": line.first_offset,
        "next_offset": line.next_offset,
        "bytes": line.bytes,
        "records_per_s": line.records_per_s and round(line.records_per_s, 1),
        "leader": line.leader,
        "trouble": line.trouble or None,
    }


def cells_of(line: LogLine) -> tuple[object, ...]:
    size = None if line.bytes is None else _shown(line.bytes)
    rate = None if line.records_per_s is None else f"{line.records_per_s:,.0f}"
    cells = (line.log, line.first_offset, line.next_offset, size, rate, line.leader)
    return tuple("-" if cell is None else cell for cell in cells)


def _shown(size: int) -> str:
    """Return *size* in two or three digits: an estimate needs no more."""
    for unit, bytes_ in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= bytes_:
            return f"{size / bytes_:.3g}{unit}"
    return str(size)
