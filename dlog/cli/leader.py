"""``dlog leader``: who leads which log, and who would next. Fencing decides who can write."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.connections import opened_store
from dlog.cli.names import near_election
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import print_facts, print_json, print_table, shown_time
from dlog.cli.runner import failed, run_at, told
from ledger.options import duration
from ledger.security.access import OWN_LOGS
from ledger.values import DURATION_HELP, counted

if TYPE_CHECKING:
    from leader import LeaderInfo
    from ledger.metastore.port import MetadataStore

_LOOK_AGAIN_S: Final = 0.2
_WITHIN_DLOG: Final = (".", OWN_LOGS)
"""What names of elections begin with that are not of applications' logs."""

app = typer.Typer()


@app.command("list", epilog=examples("dlog leader list", "dlog leader list --json"))
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
            return [found for name in names if (found := await candidates(store, name))]

    led = run_at(uri, command())
    found = [
        each for each in led if everything or prefix or not each[0].log.startswith(_WITHIN_DLOG)
    ]
    if hidden := len(led) - len(found):
        told(f"{counted(hidden, 'election')} within dlog not listed; --all lists all")
    if as_json:
        print_json([_facts(each) for each in found])
    elif found:
        print_table(
            ("log", "leader", "term", "since", "waiting"),
            (
                (
                    each[0].log,
                    each[0].candidate,
                    each[0].epoch,
                    shown_time(each[0].since_ms),
                    len(each) - 1,
                )
                for each in found
            ),
        )
    else:
        typer.echo("no log has a leader", err=True)


@app.command(
    epilog=examples("dlog leader show flights", "dlog leader show flights --json | jq .candidate")
)
def show(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Show who leads a log, and the waiting candidates in order.

    A leader that died is shown until its session has expired. Exits with 1 if nobody leads."""

    async def command() -> list["LeaderInfo"]:
        from leader import candidates

        async with opened_store(uri) as store:
            found = await candidates(store, log)
            if not found:
                raise failed(f"nobody leads log {log!r}{await near_election(store, log)}")
            return found

    found = run_at(uri, command())
    if as_json:
        print_json(_facts(found))
        return
    leader, *waiting = found
    print_facts(
        {
            "log": log,
            "leader": leader.candidate,
            "address": leader.address or "not told",
            "term": leader.epoch,
            "since": shown_time(leader.since_ms),
            "waiting": ", ".join(each.candidate for each in waiting) or "nobody",
        }
    )


@app.command(
    epilog=examples(
        "dlog leader wait flights",
        "dlog leader wait flights --not host-a:4711 --timeout 30s",
    )
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

    found = run_at(uri, command())
    if as_json:
        print_json(_facts([found]))
    else:
        typer.echo(found.candidate)


async def _until_led(store: "MetadataStore", log: str, other_than: str | None) -> "LeaderInfo":
    from leader import current_leader

    while True:
        found = await current_leader(store, log)
        if found is not None and found.candidate != other_than:
            return found
        await asyncio.sleep(_LOOK_AGAIN_S)


def _facts(found: list["LeaderInfo"]) -> dict[str, object]:
    leader, *waiting = found
    return {
        "log": leader.log,
        "candidate": leader.candidate,
        "address": leader.address,
        "epoch": leader.epoch,
        "since_ms": leader.since_ms,
        "waiting": [
            {
                "candidate": each.candidate,
                "address": each.address,
                "epoch": each.epoch,
                "since_ms": each.since_ms,
            }
            for each in waiting
        ],
    }
