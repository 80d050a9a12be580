"""``dlog key``: keys with which logs are encrypted."""

from pathlib import Path
from typing import Annotated

import typer

from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import print_json
from dlog.cli.runner import failed, run_at
from ledger.errors import LogError
from ledger.values import counted

app = typer.Typer()

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key; not secret.")]


@app.command(
    epilog=examples(
        "dlog key new billing-2026 --file ~/.dlog/keys",
        "dlog log settings set billing encrypt_with=billing-2026",
        "DLOG_KEY_FILE=~/.dlog/keys dlog log tail billing",
    )
)
def new(
    name: KeyName,
    *,
    file: Annotated[Path, typer.Option(metavar="FILE", help="File to which the key is added.")],
    as_json: Json = False,
) -> None:
    """Create a key and add it to a file, which nobody else may read. Keep a copy of the file in
    a safe place: data encrypted with a lost key are lost."""
    from dlog.encryption.files import add_key

    path = file.expanduser()
    try:
        add_key(path, name)
    except LogError as error:
        raise failed(str(error)) from error
    if as_json:
        print_json({"key": name, "file": str(path)})
    else:
        typer.echo(f"key {name!r} is in {path}; set DLOG_KEY_FILE to it", err=True)


@app.command(epilog=examples("dlog --key-file ~/.dlog/keys key rewrap billing billing-2027"))
def rewrap(
    log: LogName,
    name: KeyName,
    *,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Re-wrap the data keys of a log's sealed segments with another key; records are not
    touched.

    Both keys must be available. A segment that is being written keeps its own until it is
    sealed: set encrypt_with first, roll or reopen the log, then run this."""

    async def command() -> None:
        from dlog.aio.maintain.rewrap import rewrap as rewrap_log
        from dlog.cli.connections import connected

        async with connected(uri) as client:
            done = await rewrap_log(client, log, name)
        if as_json:
            print_json({"log": log, "key": name, "rewrapped": done.rewrapped, "left": done.left})
        else:
            left = f"; {done.left} not sealed yet keep theirs" if done.left else ""
            typer.echo(
                f"{counted(done.rewrapped, 'segment')} wrapped with {name!r}{left}", err=True
            )

    run_at(uri, command())
