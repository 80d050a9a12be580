"""Certificates for tests: an authority and what it issues, made once, and settings with them."""

from functools import cache
from pathlib import Path

from dlog.tls.authority import Issued, Wanted, issue, new_authority
from ledger.security.settings import TlsMode, TlsSettings

HOST = "127.0.0.1"
AUTHORITY = "authority"


@cache
def authority(name: str) -> Issued:
    return new_authority(name)


@cache
def certificate(
    name: str,
    *,
    bookie: str = "",
    hosts: tuple[str, ...] = (HOST,),
    uris: tuple[str, ...] = (),
    days: float = 1.0,
    begins_days: float = 0.0,
    by: str = AUTHORITY,
) -> Issued:
    wanted = Wanted(
        name=name, bookie=bookie, hosts=hosts, uris=uris, days=days, begins_days=begins_days
    )
    return issue(authority(by), wanted)


def put(
    directory: Path,
    issued: Issued,
    *,
    ca: Issued | None = None,
    mode: TlsMode = TlsMode.REQUIRED,
) -> TlsSettings:
    """Write the files, which nobody else reads; return the settings that name them."""
    directory.mkdir(parents=True, exist_ok=True)
    contents = {"ca": (ca or authority(AUTHORITY)).cert, "cert": issued.cert, "key": issued.key}
    for name, content in contents.items():
        path = directory / f"{name}.pem"
        path.write_bytes(content)
        path.chmod(0o600)
    ca_file, cert_file, key_file = (str(directory / f"{name}.pem") for name in contents)
    return TlsSettings(mode=mode, ca=ca_file, cert=cert_file, key=key_file)
