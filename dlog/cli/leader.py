"""``dlog leader``: who leads which log, and who would next. Fencing decides who can write."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import READS, CommandGroup
from dlog.cli.completion import near_election
from dlog.cli.connections import opened_store
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import Column, View, format_time, json_column, print_json, text_column, warn
from dlog.cli.runner import failed, run_at
from ledger.options import duration
from ledger.security.access import OWN_LOGS
from ledger.values import DURATION_HELP, counted

if TYPE_CHECKING:
    from leader import LeaderInfo
    from ledger.metastore.port import MetadataStore

_LOOK_AGAIN_S: Final = 0.2
_WITHIN_DLOG: Final = (".", OWN_LOGS)
"""Beginnings of the names of elections that are not of applications' logs."""

app = CommandGroup("cli#leaders")

_CANDIDATE: "Final[View[LeaderInfo]]" = View(
    Column("candidate", lambda candidate: candidate.candidate),
    Column("address", lambda candidate: candidate.address),
    Column("epoch", lambda candidate: candidate.epoch),
    Column("since_ms", lambda candidate: candidate.since_ms),
)
_ELECTION: "Final[View[list[LeaderInfo]]]" = View(
    Column("log", lambda candidates: candidates[0].log),
    Column("candidate", lambda candidates: candidates[0].candidate, "leader"),
    Column(
        "address", lambda candidates: candidates[0].address, None, lambda a: a or "not reported"
    ),
    Column("epoch", lambda candidates: candidates[0].epoch, "term"),
    Column("since_ms", lambda candidates: candidates[0].since_ms, "since", format_time),
    json_column("waiting", lambda candidates: _CANDIDATE.rows(candidates[1:])),
    text_column("waiting", lambda c: ", ".join(one.candidate for one in c[1:]) or "nobody"),
)
_LISTED: "Final[View[list[LeaderInfo]]]" = View(
    *_ELECTION.only("log", "leader", "term", "since").columns,
    text_column("waiting", lambda candidates: len(candidates) - 1),
)


@app.define(READS, "dlog leader list", "dlog leader list --json", name="list")
def list_(
    prefix: Annotated[str, typer.Option(help="Only logs whose names start with this.")] = "",
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Include elections within dlog: names that start with '.' or '_'."
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List the logs that have a leader. Logs written without an election have none.

    Elections within dlog, such as that of the auditor, are left out, and counted on stderr."""

    async def command() -> list[list["LeaderInfo"]]:
        from leader import candidates, contested_logs

        async with opened_store(uri) as store:
            names = [name for name in await contested_logs(store) if name.startswith(prefix)]
            return [led for name in names if (led := await candidates(store, name))]

    elections = run_at(uri, command())
    listed = [
        election
        for election in elections
        if everything or prefix or not election[0].log.startswith(_WITHIN_DLOG)
    ]
    if hidden := len(elections) - len(listed):
        warn(f"{counted(hidden, 'election')} within dlog not listed; --all lists all")
    view = _ELECTION if as_json else _LISTED
    view.print_all(listed, "no log has a leader", as_json=as_json)


@app.define(READS, "dlog leader show flights", "dlog leader show flights --json | jq .candidate")
def show(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Show who leads a log, and the waiting candidates in order.

    A leader that died is shown until its session has expired. Exits with 1 if nobody leads."""

    async def command() -> list["LeaderInfo"]:
        from leader import candidates

        async with opened_store(uri) as store:
            standing = await candidates(store, log)
            if not standing:
                raise failed(f"nobody leads log {log!r}{await near_election(store, log)}")
            return standing

    _ELECTION.print(run_at(uri, command()), as_json=as_json)


@app.define(
    READS, "dlog leader wait flights", "dlog leader wait flights --not host-a:4711 --timeout 30s"
)
def wait(
    log: LogName,
    *,
    other_than: Annotated[
        str | None,
        typer.Option(
            "--not",
            metavar="CANDIDATE",
            help="Wait until another candidate than this one leads.",
            show_default=False,
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help=f"Time limit: {DURATION_HELP}.",
            parser=duration(),
            show_default="60s",
        ),
    ] = 60.0,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Wait until a log has a leader; print its name. Exits with 1 on timeout."""

    async def command() -> "LeaderInfo":
        async with opened_store(uri) as store:
            try:
                async with asyncio.timeout(timeout_s):
                    return await _until_led(store, log, other_than)
            except TimeoutError:
                near = await near_election(store, log)
        other = "nobody" if other_than is None else f"nobody but {other_than}"
        raise failed(f"{other} leads log {log!r} after {timeout_s:g} s{near}")

    leader = run_at(uri, command())
    if as_json:
        print_json(_ELECTION.json([leader]))
    else:
        typer.echo(leader.candidate)


async def _until_led(store: "MetadataStore", log: str, other_than: str | None) -> "LeaderInfo":
    from leader import current_leader

    while True:
        leader = await current_leader(store, log)
        if leader is not None and leader.candidate != other_than:
            return leader
        await asyncio.sleep(_LOOK_AGAIN_S)
