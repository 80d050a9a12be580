"""How a process is told, on its command line or in its environment, to secure its connections."""

from typing import Final

from ledger.security.settings import MODES, VARIABLE, TlsSettings

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


def variables_of(tls: TlsSettings) -> dict[str, str]:
    """Return what to put into the environment of a process that is to have *tls*."""
    values = (str(tls.mode), tls.ca, tls.cert, tls.key, ",".join(tls.identity))
    return {name: value for name, value in zip(VARIABLES, values, strict=True) if value}
