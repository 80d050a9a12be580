"""``dlog tls|key``: files of certificates, with an authority of their own, and of keys of logs."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup, not_recorded
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import Column, View, json_column, print_json, print_lines, report, text_column
from dlog.cli.runner import FAILED, failed, run_at
from dlog.config import home
from ledger.errors import CallerError, LogError
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.tls.files import Pair, Shown

_SETTINGS: Final = ("DLOG_TLS", "DLOG_TLS_CA", "DLOG_TLS_CERT", "DLOG_TLS_KEY")
_DAYS_MAX: Final = 36_500
_EXTRA: Final = (
    "creating certificates needs the library 'cryptography': pip install 'dlog-ledgers[tls]'"
)

tls = CommandGroup("security#certificates-of-your-own")

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Directory of the authority. Default: ~/.dlog/tls.",
        show_default=False,
    ),
]  # fmt: skip
Days = Annotated[float, typer.Option(help="Days for which it is valid.", min=0.0001, max=_DAYS_MAX)]


def _format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _format_end(certificate: "Shown") -> str:
    left = certificate.expires - datetime.now(UTC)
    when = f"in {counted(left.days, 'day')}" if left.total_seconds() > 0 else "which is over"
    return f"{_format_time(certificate.expires)}, {when}"


_CERTIFICATE: "Final[View[Shown]]" = View(
    Column("file", lambda certificate: certificate.path),
    Column("name", lambda certificate: certificate.name),
    Column("issuer", lambda certificate: certificate.issuer),
    Column("alternative_names", lambda certificate: list(certificate.alternative_names), "names"),
    json_column("begins", lambda certificate: certificate.begins.isoformat()),
    json_column("expires", lambda certificate: certificate.expires.isoformat()),
    text_column("begins", lambda certificate: _format_time(certificate.begins)),
    text_column("expires", _format_end),
    Column("sha256", lambda certificate: certificate.sha256),
)


def _directory(given: Path | None) -> Path:
    return (given or home() / ".dlog" / "tls").expanduser().absolute()


@tls.define(
    not_recorded("it changes the files of an authority"),
    "dlog tls init",
    "dlog tls init --dir /etc/dlog/tls --name orders",
)
def init(
    *,
    directory: Directory = None,
    name: Annotated[str, typer.Option(help="Name of the authority.")] = "dlog",
    days: Days = 3650,
    as_json: Json = False,
) -> None:
    """Create a certificate authority: ca.pem, which all processes need, and ca-key.pem, which
    nobody else may have. Keep the key off the serving machines."""
    with _explained():
        from dlog.tls import files

        pair = files.init(_directory(directory), name, days=days)
    _print_pair(pair, None, as_json=as_json)


@tls.define(
    not_recorded("it changes the files of an authority"),
    "dlog tls issue bookie-1 --bookie bookie-1 --host 10.0.0.7 --host b1.example.org",
    "dlog tls issue orders-writer --days 30",
    "dlog tls issue app --uri spiffe://example.org/orders/writer",
)
def issue(
    name: Annotated[str, typer.Argument(help="Common name of the certificate, and name of the "
                                             "files.")],
    *,
    directory: Directory = None,
    bookie: Annotated[
        str | None,
        typer.Option(help="The bookie that it identifies (--id of its start): clients accept no "
                          "other certificate for this bookie, and this certificate for no other "
                          "bookie.", show_default=False),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address at which the process is reached; repeat it for "
                          "several. Without one it is for clients only. Bookies need it for "
                          "operators.", show_default=False),
    ] = None,
    uri: Annotated[
        list[str] | None,
        typer.Option(help="URI name, such as a SPIFFE id; repeat it for several.",
        show_default=False),
    ] = None,
    days: Days = 90,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Issue a certificate for one process, and its key.

    It is for clients; with --host or --bookie for servers, too: bookies, metrics servers, a
    console, and applications that stand for election."""
    with _explained():
        from dlog.tls import files
        from dlog.tls.authority import CertificateRequest

        wanted = CertificateRequest(
            name=name, bookie=bookie or "", hosts=tuple(host or ()), uris=tuple(uri or ()),
            days=days,
        )  # fmt: skip
        where = _directory(directory)
        pair = files.issue_to(where, name, wanted)
    _print_pair(pair, where / f"{files.AUTHORITY}.pem", as_json=as_json)


@tls.define(
    not_recorded("it changes the files of an authority"),
    "dlog tls renew orders-writer --days 30",
    "dlog tls renew bookie-1 --dir /etc/dlog/tls",
)
def renew(
    name: Annotated[str, typer.Argument(help="Name of the files, as given to 'issue'.")],
    *,
    directory: Directory = None,
    days: Days = 90,
    as_json: Json = False,
) -> None:
    """Renew a certificate: the same names, a new key, in the same files.

    Processes that use the files load the new ones within seconds, without a restart. If they
    are copied to other places, copy both."""
    with _explained():
        from dlog.tls import files

        where = _directory(directory)
        pair = files.renew(where, name, days=days)
    _print_pair(pair, where / f"{files.AUTHORITY}.pem", as_json=as_json)


@tls.define(READS, "dlog tls show ~/.dlog/tls/bookie-1.pem", "dlog tls show f.pem --json")
def show(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="File with certificates, PEM.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Show whose certificates they are, who issued them, and when they expire. Keys are not
    shown. Exits with 1 if one has expired."""
    with _explained():
        from dlog.tls import files

        found = [certificate for path in paths for certificate in files.show(path)]
    if as_json:
        print_json(_CERTIFICATE.rows(found))
    else:
        for certificate in found:
            print_lines(_CERTIFICATE.lines(certificate))
    if any(certificate.expires <= datetime.now(UTC) for certificate in found):
        raise typer.Exit(FAILED)


def _print_pair(pair: "Pair", ca: Path | None, *, as_json: bool) -> None:
    files = {"cert": str(pair.cert), "key": str(pair.key)}
    if as_json:
        print_json(files if ca is None else {**files, "ca": str(ca)})
    elif ca is None:
        print_lines(files)
    else:
        settings = ("required", ca, pair.cert, pair.key)
        for name, value in zip(_SETTINGS, settings, strict=True):
            typer.echo(f"export {name}={value}")


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of the caller, and a missing library, into the end of the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cryptography"):
            raise failed(_EXTRA) from error
        raise
    except CallerError as error:
        raise failed(str(error)) from error


key = CommandGroup("security#encryption-at-rest")

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key; not secret.")]


@key.define(
    not_recorded("it changes a file of keys"),
    "dlog key new billing-2026 --file ~/.dlog/keys",
    "dlog log settings set billing encrypt_with=billing-2026",
    "DLOG_KEY_FILE=~/.dlog/keys dlog log tail billing",
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
    report(
        {"key": name, "file": str(path)},
        f"key {name!r} is in {path}; set DLOG_KEY_FILE to it",
        as_json=as_json,
    )


@key.define(CHANGES, "dlog --key-file ~/.dlog/keys key rewrap billing billing-2027")
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
