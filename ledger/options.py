"""Options that all programs have, and parsers of what they are given.

The parsers are those of `ledger.values`, for typer: what they refuse is an error of usage.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from ledger.errors import InvalidValue
from ledger.security.settings import MODES, VARIABLE, TlsSettings
from ledger.values import VALUE_MAX, duration_s, share_of, size_bytes

MIB: Final = 1024 * 1024
PORT_HELP: Final = (
    "Serve /metrics, /healthz and /readyz on this port; 0: any free one, which is printed. "
    "Default: none."
)
HOST_HELP: Final = "Address to serve metrics on; anyone who reaches it can read them."
PORT_VARIABLE: Final = "DLOG_METRICS"
HOST_DEFAULT: Final = "127.0.0.1"
PORT_MAX: Final = 65535
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help=PORT_HELP,
        envvar=PORT_VARIABLE,
        min=0,
        max=PORT_MAX,
        show_default=False,
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help=HOST_HELP)]
MODE_HELP: Final = (
    f"{MODES}: whether connections use TLS with certificates on both ends. 'optional' accepts both "
    "kinds, while a cluster is being changed over. Default: off."
)
CA_HELP: Final = "Certificates of the trusted authorities (PEM)."
CERT_HELP: Final = "Certificate of this process, with its chain up to the authority (PEM)."
KEY_HELP: Final = "Private key of that certificate (PEM, not encrypted)."
IDENTITY_HELP: Final = (
    "Kinds of names by which a certificate identifies its owner, in order of preference: uri, dns, "
    "cn, separated by commas. Default: uri,dns,cn."
)
CA_VARIABLE: Final = f"{VARIABLE}_CA"
CERT_VARIABLE: Final = f"{VARIABLE}_CERT"
KEY_VARIABLE: Final = f"{VARIABLE}_KEY"
IDENTITY_VARIABLE: Final = f"{VARIABLE}_IDENTITY"
VARIABLES: Final = (VARIABLE, CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, IDENTITY_VARIABLE)
T = TypeVar("T")


def usage(parse: Callable[[], T], option: str | None = None) -> T:
    """Return what *parse* returns; what it refuses is a usage error, of *option* if typer does not
    know it itself."""
    try:
        return parse()
    except InvalidValue as error:
        raise typer.BadParameter(f"{error.value!r}: {error.reason}", param_hint=option) from None


def duration(
    *, least: float = 0.0, most: float = VALUE_MAX, unit: str = "s"
) -> Callable[[object], float]:
    """Return the parser of an option that says how long, in seconds."""
    return lambda value: usage(lambda: duration_s(value, "", least=least, most=most, unit=unit))


def size(*, least: int = 0, most: int = VALUE_MAX, unit: str = "") -> Callable[[object], int]:
    """Return the parser of an option that says how many bytes."""
    return lambda value: usage(lambda: size_bytes(value, "", least=least, most=most, unit=unit))


def mebibytes(value: object) -> float:
    """Parse an option that counts MiB, as 100, 100M or 1G; as what it always was, a float."""
    return usage(lambda: size_bytes(value, "", unit="m")) / MIB


def share(value: object) -> float:
    """Parse an option that is a share, as 0.95 or 95%."""
    return usage(lambda: share_of(value, ""))


def directory(value: object) -> Path:
    """Parse an option that names a directory: an empty name would mean the current one."""
    text = str(value)
    if not text.strip():
        raise typer.BadParameter("it is empty; name a directory, '.' for this one")
    if "\0" in text:
        raise typer.BadParameter("a zero byte cannot be in the name of a directory")
    return Path(text)


def variables_of(tls: TlsSettings) -> dict[str, str]:
    """Return what to put into the environment of a process that is to have *tls*."""
    values = (str(tls.mode), tls.ca, tls.cert, tls.key, ",".join(tls.identity))
    return {name: value for name, value in zip(VARIABLES, values, strict=True) if value}
