"""``dlog bookie``: the storage servers."""

from bookie.start_options import TLS, Given, add_start
from dlog.cli.bookie import control, departure, dumps, moves, offline, status, survey
from dlog.cli.commands import SERVES, CommandGroup, command_class, include
from dlog.cli.runner import failed
from dlog.config import load, resolve_uri
from ledger.errors import LogError

app = CommandGroup("operations#operating-running-bookies")
include(app, status.app, survey.app, control.app, departure.app, moves.app, offline.app)
app.add_typer(dumps.journal, name="journal")
app.add_typer(dumps.entrylog, name="entrylog")
app.add_typer(dumps.index, name="index")


def start(given: Given) -> None:
    """Run a bookie as ``python -m bookie`` does, in the namespace of this process unless given."""
    try:
        uri = resolve_uri(given["uri"])
        settings = load().model_dump() if given["tls"] is None else {}
    except LogError as error:
        raise failed(str(error)) from error
    configured = {name: settings[name] for name in TLS if settings and given[name] is None}
    from bookie import command

    command.start({**given, **configured, "uri": uri})


add_start(app, start)
app.registered_commands[-1].cls = command_class(SERVES, "operations#the-operators-day")
