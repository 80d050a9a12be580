"""Options that many commands share, so that they mean the same everywhere."""

from pathlib import Path
from typing import Annotated, Final

import typer

from dlog.cli.names import complete_log
from ledger.options import directory

Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        metavar="URI",
        help="Namespace: file:///dir or zk://host:2181/root. Default: DLOG_URI, else the "
        "cluster that 'dlog up' runs.",
        show_default=False,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

LogName = Annotated[
    str, typer.Argument(metavar="LOG", help="Name of the log.", autocompletion=complete_log)
]

_ID: Final = "x509:DN as 'dlog tls show' prints it (x509:CN=name), sasl:NAME or ip:ADDRESS"
Operators = Annotated[
    list[str] | None,
    typer.Option(
        "--operator",
        metavar="SCHEME:ID",
        help=f"An operator, who may change everything on ZooKeeper: {_ID}; repeat it for several.",
        show_default=False,
    ),
]
Bookies = Annotated[
    list[str] | None,
    typer.Option(
        "--bookie",
        metavar="SCHEME:ID",
        help="A bookie, or an autorecovery process. Nobody else may register as a bookie.",
        show_default=False,
    ),
]
Clients = Annotated[
    list[str] | None,
    typer.Option(
        "--client",
        metavar="SCHEME:ID",
        help="A program that writes logs or commits positions of consumers.",
        show_default=False,
    ),
]
Readers = Annotated[
    list[str] | None,
    typer.Option(
        "--reader",
        metavar="SCHEME:ID",
        help="A program that only reads. It may change nothing on ZooKeeper.",
        show_default=False,
    ),
]

LedgerNumber = Annotated[int, typer.Argument(metavar="LEDGER", help="Id of the ledger.", min=0)]

BookieDir = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="Main directory of the bookie.", parser=directory),
]

JournalDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--journal-dir",
        metavar="DIR",
        help="Directory with a journal, as for the bookie; repeat it for several. Default: the "
        "main one.",
        parser=directory,
        show_default=False,
    ),
]

LedgerDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--ledger-dir",
        metavar="DIR",
        help="Directory with entry logs and index, as for the bookie; repeat it for several. "
        "Default: the main one.",
        parser=directory,
        show_default=False,
    ),
]

Ledger = Annotated[
    int | None,
    typer.Option("--ledger", metavar="LEDGER", help="Only this ledger.", min=0, show_default=False),
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def examples(*lines: str) -> str:
    """Return the end of a command's help."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in lines)])
