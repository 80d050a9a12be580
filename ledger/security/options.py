"""The options by which every process of a server is told how to secure connections, once."""

from typing import Annotated, Final

import typer

from ledger.security.settings import MODES, VARIABLE

MODE_HELP: Final = (
    f"{MODES}: whether connections have TLS with certificates of both ends. 'optional' takes both "
    "kinds, for the time in which a cluster changes over. Default: off."
)
CA_HELP: Final = "Certificates of the authorities that are believed (PEM)."
CERT_HELP: Final = "Certificate of this process, with those up to its authority (PEM)."
KEY_HELP: Final = "Private key of that certificate (PEM, not encrypted)."
IDENTITY_HELP: Final = (
    "Which names of a certificate say who its owner is, the first that it has: some of uri, dns, "
    "cn, by commas. Default: uri,dns,cn."
)
CA_VARIABLE: Final = f"{VARIABLE}_CA"
CERT_VARIABLE: Final = f"{VARIABLE}_CERT"
KEY_VARIABLE: Final = f"{VARIABLE}_KEY"
IDENTITY_VARIABLE: Final = f"{VARIABLE}_IDENTITY"
VARIABLES: Final = (VARIABLE, CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, IDENTITY_VARIABLE)

Tls = Annotated[
    str | None,
    typer.Option("--tls", help=MODE_HELP, envvar=VARIABLE, metavar="MODE", show_default=False),
]
TlsCa = Annotated[
    str | None,
    typer.Option("--tls-ca", help=CA_HELP, envvar=CA_VARIABLE, metavar="FILE", show_default=False),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert", help=CERT_HELP, envvar=CERT_VARIABLE, metavar="FILE", show_default=False
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        "--tls-key", help=KEY_HELP, envvar=KEY_VARIABLE, metavar="FILE", show_default=False
    ),
]
