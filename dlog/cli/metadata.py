"""``dlog metadata``: the metadata store of one machine, a directory, when it is damaged."""

from typing import Annotated

import typer

from dlog.cli.options import Json, Uri, examples
from dlog.cli.render.output import print_json
from dlog.cli.runner import run_at
from dlog.config import resolve_uri
from ledger.errors import CallerError
from ledger.metastore.uri import FileUri, parse_uri, without_secrets

_TIMEOUT_S = 10.0

app = typer.Typer(
    no_args_is_help=True, help="Look after the metadata store of one machine (`file://`)."
)


class NotEmbedded(CallerError):
    def __init__(self, uri: str) -> None:
        shown = without_secrets(uri)
        super().__init__(f"{shown} is not a directory on this machine: it needs file:///...")


@app.callback()
def _metadata() -> None:
    """Make `accept-loss` a command of its own, although it is the only one."""


@app.command(
    "accept-loss",
    epilog=examples(
        "dlog metadata accept-loss --uri file:///var/lib/orders/metadata",
        "dlog metadata accept-loss --yes",
    ),
)
def accept_loss(
    uri: Uri = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Continue with the newest state of a damaged namespace that is whole in itself.

    What was committed after it is lost: logs, segments, positions of consumers. Put a backup
    back instead if there is one. Nothing may use the namespace meanwhile; its files as they
    are now are kept beside it."""

    async def command() -> None:
        from ledger.metastore.sqlite_loss import accept_loss as accept

        resolved = resolve_uri(uri)
        parsed = parse_uri(resolved)
        if not isinstance(parsed, FileUri):
            raise NotEmbedded(resolved)
        directory = parsed.directory
        found = accept(directory, really=False, timeout_s=_TIMEOUT_S)
        if not yes:
            newest = "nobody knows the newest" if found.witnessed is None else found.witnessed
            question = f"Give up all after commit {found.generation} (newest: {newest})?"
            typer.confirm(question, abort=True, err=True)
        done = accept(directory, really=True, timeout_s=_TIMEOUT_S)
        if as_json:
            print_json(
                {"commit": done.generation, "lost_up_to": done.witnessed, "copy": str(done.copy)}
            )
        else:
            typer.echo(
                f"the namespace goes on from commit {done.generation}; what was there before is in "
                f"{done.copy}; look at 'dlog bookie status' for alarms",
                err=True,
            )

    run_at(uri, command())
