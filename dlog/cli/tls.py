"""``dlog tls``: a small authority, for trying TLS out and for small clusters."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.options import Json, examples
from dlog.cli.output import print_facts, print_json
from dlog.cli.runner import failed
from dlog.config import home
from ledger.errors import CallerError
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.tls.files import Pair

_DAYS_MAX: Final = 36_500
_EXTRA: Final = (
    "creating certificates needs the library 'cryptography': pip install 'dlog-ledgers[tls]'"
)

app = typer.Typer()

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Directory of the authority. Default: ~/.dlog/tls.",
        show_default=False,
    ),
]  # fmt: skip
Days = Annotated[float, typer.Option(help="Days for which it is valid.", min=0.0001, max=_DAYS_MAX)]


def _directory(given: Path | None) -> Path:
    return (given or home() / ".dlog" / "tls").expanduser().absolute()


@app.command(epilog=examples("dlog tls init", "dlog tls init --dir /etc/dlog/tls --name orders"))
def init(
    *,
    directory: Directory = None,
    name: Annotated[str, typer.Option(help="Name of the authority.")] = "dlog",
    days: Days = 3650,
    as_json: Json = False,
) -> None:
    """Create a certificate authority: ca.pem, which all processes need, and ca-key.pem, which
    nobody else may have. Keep the key off the serving machines."""
    with _told():
        from dlog.tls import files

        pair = files.init(_directory(directory), name, days=days)
    _print_pair(pair, None, as_json=as_json)


@app.command(
    epilog=examples(
        "dlog tls issue bookie-1 --bookie bookie-1 --host 10.0.0.7 --host b1.example.org",
        "dlog tls issue orders-writer --days 30",
        "dlog tls issue app --uri spiffe://example.org/orders/writer",
    )
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
    with _told():
        from dlog.tls import files
        from dlog.tls.authority import CertificateRequest

        wanted = CertificateRequest(
            name=name, bookie=bookie or "", hosts=tuple(host or ()), uris=tuple(uri or ()),
            days=days,
        )  # fmt: skip
        where = _directory(directory)
        pair = files.issue_to(where, name, wanted)
    _print_pair(pair, where / f"{files.AUTHORITY}.pem", as_json=as_json)


@app.command(
    epilog=examples(
        "dlog tls renew orders-writer --days 30",
        "dlog tls renew bookie-1 --dir /etc/dlog/tls",
    )
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
    with _told():
        from dlog.tls import files

        where = _directory(directory)
        pair = files.renew(where, name, days=days)
    _print_pair(pair, where / f"{files.AUTHORITY}.pem", as_json=as_json)


@app.command(
    epilog=examples("dlog tls show ~/.dlog/tls/bookie-1.pem", "dlog tls show f.pem --json")
)
def show(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="File with certificates, PEM.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Show whose certificates they are, who issued them, and when they expire. Keys are not
    shown. Exits with 1 if one has expired."""
    with _told():
        from dlog.tls import files

        found = [each for path in paths for each in files.show(path)]
    now = datetime.now(UTC)
    if as_json:
        print_json(
            [
                {
                    "file": each.path,
                    "name": each.name,
                    "issuer": each.issuer,
                    "alternative_names": list(each.alternative_names),
                    "begins": each.begins.isoformat(),
                    "expires": each.expires.isoformat(),
                    "sha256": each.sha256,
                }
                for each in found
            ]
        )
    else:
        for each in found:
            left = (each.expires - now).days
            print_facts(
                {
                    "file": each.path,
                    "name": each.name,
                    "issuer": each.issuer,
                    "names": ", ".join(each.alternative_names) or "-",
                    "begins": f"{each.begins:%Y-%m-%d %H:%M:%S} UTC",
                    "expires": f"{each.expires:%Y-%m-%d %H:%M:%S} UTC, "
                    + (f"in {counted(left, 'day')}" if each.expires > now else "which is over"),
                    "sha256": each.sha256,
                }
            )
    if any(each.expires <= now for each in found):
        raise typer.Exit(1)


def _print_pair(pair: "Pair", ca: Path | None, *, as_json: bool) -> None:
    facts = {"cert": str(pair.cert), "key": str(pair.key)}
    if ca is None:
        if as_json:
            print_json(facts)
        else:
            print_facts(facts)
        return
    settings = {
        "DLOG_TLS_CA": str(ca),
        "DLOG_TLS_CERT": facts["cert"],
        "DLOG_TLS_KEY": facts["key"],
    }
    if as_json:
        print_json({**facts, "ca": str(ca)})
    else:
        for name, value in {"DLOG_TLS": "required", **settings}.items():
            typer.echo(f"export {name}={value}")


class _told:  # noqa: N801 - reads as a statement
    """Turn errors of the caller, and a missing library, into the end of the command."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("cryptography"):
            raise failed(_EXTRA) from error
        if isinstance(error, CallerError):
            raise failed(str(error)) from error
