"""``dlog bookie``: the storage servers."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from dlog.cli.bookie import dumps, offline, operating
from dlog.cli.connections import opened_store
from dlog.cli.options import JournalDirs, Json, LedgerDirs, Uri, examples
from dlog.cli.render.output import print_json, print_table
from dlog.cli.runner import FAILED, failed, run_at
from dlog.config import resolve_uri
from ledger.errors import LogError

app = typer.Typer(
    no_args_is_help=True,
    help="Run a storage server, list and operate those that run; the commands with --dir "
    "work on the files of a bookie that is stopped.",
)
operating.add_to(app)
offline.add_to(app)
dumps.add_to(app)

_SPACE: Final = "Disk space: with too little of it the bookie is read-only"
_COLLECTION: Final = "Garbage collection and compaction of entry logs"

START_EPILOG = examples(
    "dlog bookie start --uri zk://zk1:2181,zk2:2181/dlog --dir /data/bookie --host 10.0.0.7",
    "dlog bookie start --dir /ssd/bookie --journal-dir /nvme0/journal --ledger-dir /disk1/ledgers",
    "bookie --uri file:///var/lib/dlog/metadata --dir /var/lib/dlog/b1 --port 3181",
)


@app.command(epilog=START_EPILOG)
def start(
    directory: Annotated[
        Path,
        typer.Option("--dir", help="Main directory of this bookie; made if it is not there."),
    ],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            help="Port to listen on; 0: the one of the last start, at first any free one.",
            min=0,
            max=65535,
        ),
    ] = 0,
    advertise: Annotated[
        str, typer.Option(help="Host that clients connect to, if it is not --host.")
    ] = "",
    identity: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Name for the life of the data; at first host and a random part unless given.",
            show_default=False,
        ),
    ] = None,
    rack: Annotated[str, typer.Option(help="Where this bookie stands, for placement.")] = "",
    unmade_ledgers: Annotated[
        int | None,
        typer.Option(
            help="Take so many ledgers that the metadata store does not know; for tests.",
            show_default=False,
            hidden=True,
        ),
    ] = None,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    disk_warn: Annotated[
        float | None,
        typer.Option(
            help="Share of a disk in use from which a warning is logged.",
            rich_help_panel=_SPACE,
            show_default=False,
        ),
    ] = None,
    disk_high: Annotated[
        float | None,
        typer.Option(
            help="Share of a disk in use from which the bookie is read-only.",
            rich_help_panel=_SPACE,
            show_default=False,
        ),
    ] = None,
    disk_low: Annotated[
        float | None,
        typer.Option(
            help="Share of a disk in use below which it is not any more.",
            rich_help_panel=_SPACE,
            show_default=False,
        ),
    ] = None,
    disk_reserve: Annotated[
        int | None,
        typer.Option(
            help="MiB that stay free in any case.", rich_help_panel=_SPACE, show_default=False
        ),
    ] = None,
    gc_interval: Annotated[
        float | None,
        typer.Option(
            help="Seconds between garbage collections.",
            rich_help_panel=_COLLECTION,
            show_default=False,
        ),
    ] = None,
    untraced_share: Annotated[
        float | None,
        typer.Option(
            help="Share of its ledgers that may be deleted in a day though nothing but their "
            "absence from the metadata store shows that they were deleted.",
            rich_help_panel=_COLLECTION,
            show_default=False,
        ),
    ] = None,
    minor_interval: Annotated[
        float | None,
        typer.Option(
            help="Seconds between minor compactions; 0: none.",
            rich_help_panel=_COLLECTION,
            show_default=False,
        ),
    ] = None,
    major_interval: Annotated[
        float | None,
        typer.Option(
            help="Seconds between major compactions; 0: none.",
            rich_help_panel=_COLLECTION,
            show_default=False,
        ),
    ] = None,
    minor_threshold: Annotated[
        float | None,
        typer.Option(
            help="Live share below which a minor compaction takes a log; 0: none.",
            rich_help_panel=_COLLECTION,
            show_default=False,
        ),
    ] = None,
    major_threshold: Annotated[
        float | None,
        typer.Option(
            help="Live share below which a major compaction takes a log; 0: none.",
            rich_help_panel=_COLLECTION,
            show_default=False,
        ),
    ] = None,
    compaction_rate: Annotated[
        float | None,
        typer.Option(
            help="MiB read and written a second; 0: no limit.",
            rich_help_panel=_COLLECTION,
            show_default=False,
        ),
    ] = None,
    die_with_parent: Annotated[
        bool, typer.Option("--die-with-parent", help="Stop when the parent process ends.")
    ] = False,
    uri: Uri = None,
) -> None:
    """Run one bookie in the foreground until SIGTERM or Ctrl-C.

    A bookie keeps its identity in its directory: start it there again and it is the same
    one, with the same data. It refuses the directory of another bookie or cluster."""
    try:
        found = resolve_uri(uri)
    except LogError as error:
        raise failed(str(error)) from error
    from bookie.command import main

    arguments = [f"--uri={found}", f"--dir={directory}", f"--host={host}", f"--port={port}"]
    arguments += [f"--advertise={advertise}", f"--rack={rack}"]
    arguments += [f"--journal-dir={path}" for path in journal_dir or ()]
    arguments += [f"--ledger-dir={path}" for path in ledger_dir or ()]
    given = {
        "id": identity,
        "unmade-ledgers": unmade_ledgers,
        "disk-warn": disk_warn,
        "disk-high": disk_high,
        "disk-low": disk_low,
        "disk-reserve": disk_reserve,
        "gc-interval": gc_interval,
        "untraced-share": untraced_share,
        "minor-interval": minor_interval,
        "major-interval": major_interval,
        "minor-threshold": minor_threshold,
        "major-threshold": major_threshold,
        "compaction-rate": compaction_rate,
    }
    arguments += [f"--{name}={value}" for name, value in given.items() if value is not None]
    if die_with_parent:
        arguments.append("--die-with-parent")
    raise typer.Exit(main(arguments))


@app.command("list", epilog=examples("dlog bookie list", "dlog bookie list --json"))
def list_bookies(uri: Uri = None, as_json: Json = False) -> None:
    """List the bookies that are registered now, and why those in limbo are.

    Exits with 1 if a registration cannot be read: it is reported, and the others are listed."""

    async def command() -> bool:
        from ledger.registry import BookieDirectory, limbo_of

        async with opened_store(uri) as store:
            directory = BookieDirectory(store)
            await directory.start()
            found, damaged = directory.available(), directory.damaged()
            await directory.close()
            limbo = await limbo_of(store, [each.bookie for each in found])
        for error in damaged:
            typer.echo(f"dlog: left out: {error}", err=True)
        if as_json:
            print_json(
                [
                    {
                        "bookie": each.bookie,
                        "address": each.address,
                        "rack": each.rack,
                        "read_only": each.read_only,
                        "limbo": limbo.get(each.bookie, ""),
                        "incarnation": each.incarnation,
                    }
                    for each in found
                ]
            )
        elif found:
            print_table(
                ("bookie", "address", "rack", "state"),
                (
                    (
                        each.bookie,
                        each.address,
                        each.rack or "-",
                        ("read-only" if each.read_only else "writable")
                        + (", in limbo" if each.bookie in limbo else ""),
                    )
                    for each in found
                ),
            )
            for bookie, why in limbo.items():
                sys.stdout.write(f"bookie {bookie} is {why}\n")
        else:
            typer.echo("no bookie is registered", err=True)
        sys.stdout.flush()
        return not damaged

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)
