"""Options that many commands share, so that they mean the same everywhere; and values as people
write them: positions, times, durations, sizes.

Each parser takes the option's name, to be named in the usage error that it raises.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.completion import complete_log
from dlog.encryption.names import NAME_ALLOWED, is_key_name
from dlog.starts import parse_start as start_of
from dlog.starts import parse_time_ms
from ledger.log_events import now_ms
from ledger.options import directory, usage
from ledger.values import duration_s, size_bytes

if TYPE_CHECKING:
    from dlog.position import Start
    from dlog.recordbatch import Codec

KAFKA_PORT: Final = 9092
"""Where Kafka's clients look for a broker."""

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


def parse_start(text: str, option: str = "--start") -> "Start":
    """Return the position that *text* names."""
    return usage(lambda: start_of(text, option, now_ms), option)


def parse_time(text: str, option: str) -> int:
    """Return *text* as milliseconds since 1970."""
    return usage(lambda: parse_time_ms(text, option, now_ms), option)


def parse_duration(text: str, option: str) -> float:
    """Return *text* as seconds."""
    return usage(lambda: duration_s(text, option), option)


def parse_size(text: str, option: str) -> int:
    """Return *text* as bytes."""
    return usage(lambda: size_bytes(text, option), option)


def parse_headers(pairs: list[str], option: str = "--header") -> list[tuple[str, bytes | None]]:
    """Return *pairs* as headers of a record: ``name=value``, or ``name`` alone for a null value."""
    from dlog.headers import encode_headers

    headers: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        headers.append((name, os.fsencode(text) if equals else None))
    try:
        encode_headers(headers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    return headers


def parse_codec(text: str, option: str) -> "tuple[Codec, int]":
    """Return the codec that *text* names, and its level; see `dlog.settings.parse_codec`."""
    from dlog.errors import InvalidSettings
    from dlog.settings import parse_codec as parse

    try:
        return parse(text)
    except InvalidSettings as error:
        raise typer.BadParameter(f"{text!r}: {error.reason}", param_hint=option) from error


def parse_settings(pairs: list[str], option: str) -> dict[str, object]:
    """Return what *pairs* as ``name=value`` say, for `dlog.settings.parse_settings`.

    It says itself which names and values there are."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = text
    key = found.get("encrypt_with")
    if key and not is_key_name(str(key)):  # at once: a later refusal would already be recorded
        raise typer.BadParameter(
            f"encrypt_with: the name of a key is {NAME_ALLOWED}", param_hint=option
        )
    return found
