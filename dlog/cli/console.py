"""``dlog console``: the cluster in a browser."""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from dlog.cli.commands import SERVES, CommandGroup
from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri
from dlog.cli.output import print_json, warn
from dlog.cli.runner import failed, run_at, until_signal
from dlog.config import home, load
from ledger.options import HOST_DEFAULT, PORT_MAX, MetricsHost, MetricsPort
from ledger.process import make_private

if TYPE_CHECKING:
    from types import ModuleType

    from dlog.console.http_server import Served

PORT_DEFAULT = 8080
_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
"""Rights that nobody may have to the file of a token; a group may read it, as in containers."""
MISSING = "the console needs its extra: pip install 'dlog-ledgers[console]'"


app = CommandGroup("cli#health")


@app.define(
    SERVES,
    "dlog console",
    "dlog console --port 8081 --metrics-port 9100",
    "dlog console --allow-changes",
    "dlog console --host 0.0.0.0 --tls --allow-host console.example.org --token-file token",
)
def console(
    *,
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=PORT_MAX)
    ] = PORT_DEFAULT,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; any but this machine's own requires --tls."),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another name by which browsers reach it; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the login token of the console, 16 characters or more, which others "
            "must not be able to read. Default: a new token.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Allow logged-in users to truncate, seal, configure, verify and delete logs, "
            "and to operate bookies; 'dlog changes list' shows who did.",
        ),
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Serve HTTPS, with the certificate of DLOG_TLS_CERT.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Show the cluster in a browser until SIGTERM or Ctrl-C.

    Problems come first, and what to do about them; then bookies, logs, records and ledgers, all
    updated live. It is read-only without --allow-changes. Everybody has to log in: a terminal
    shows an address for one login, and the token for later ones; without a terminal both are in
    a file for you alone, whose path is printed. Where others can reach it, it requires TLS."""

    async def command() -> None:
        http_server = serving_console()
        from dlog.console.metrics import METRICS
        from dlog.metrics import expose
        from ledger.metering.declaration import Exposed, Readiness
        from ledger.metering.http_server import served
        from ledger.security.certificates import Security

        options = http_server.ConsoleOptions(
            host=host,
            port=port,
            hosts=allow_host or (),
            token="" if token_file is None else read_token(token_file),
            allow_changes=allow_changes,
            tls=tls,
        )
        security = await Security.settled(load().secured)
        exposed = Exposed()
        with served(exposed, metrics_host, metrics_port, warn, security=security):
            async with (
                connected(uri) as client,
                http_server.console(client, options, security=security) as found,
            ):
                expose(exposed)
                exposed.add(METRICS)
                exposed.readiness = lambda: Readiness(ready=True, state="serving")
                with login_shown(found, home() / ".dlog" / "console") as login:
                    say_where(found.address, login, as_json=as_json)
                    await until_signal(_for_ever())

    run_at(uri, command())


def serving_console() -> "ModuleType":
    """Return the module that serves the console; leave with a sentence if its extra is missing."""
    try:
        from dlog.console import http_server
    except ImportError as error:
        raise failed(f"{MISSING} ({error})") from error
    return http_server


def read_token(file: Path) -> str:
    """Return the token in *file*. Raises `ConsoleNotServed` if others may read or change it."""
    from dlog.console.http_server import ConsoleNotServed

    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & _OTHERS:
        raise ConsoleNotServed(
            f"others may read its token in {file} (mode {mode:04o}): run 'chmod 600 {file}', and "
            "put another token into it"
        )
    return file.read_text().strip()


@contextmanager
def login_shown(found: "Served", directory: Path) -> Iterator[Mapping[str, str]]:
    """Yield how to log in, to be printed: to a terminal as it is. Anything else may be a log that
    others read, so there it is the path of a file in *directory*, for this user alone, which goes
    when this ends. Raises `ConsoleNotServed` if it cannot be written."""
    if not found.login:
        yield {}
        return
    shown = {"log in": f"{found.login}   (works once)", "token": found.token}
    if sys.stdout.isatty():
        yield shown
        return
    from dlog.console.http_server import ConsoleNotServed

    path = directory / f"{urlsplit(found.address).port}.login"
    try:
        make_private(directory)
        path.unlink(missing_ok=True)  # of a process that was killed
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{found.login}\n{found.token}\n")
    except OSError as error:
        reason = f"its login cannot be written to {path}: {error.strerror}; give --token-file"
        raise ConsoleNotServed(reason) from error
    try:
        yield {"login file": str(path)}
    finally:
        path.unlink(missing_ok=True)


def say_where(address: str, login: Mapping[str, str], *, as_json: bool) -> None:
    """Say on stdout where the console is, and how to log in."""
    if as_json:
        print_json({"console": address, "login_file": login.get("login file")})
        return
    for name, value in {"console": address, **login}.items():
        typer.echo(f"{name}: {value}")


async def _for_ever() -> None:
    import asyncio

    await asyncio.Event().wait()
