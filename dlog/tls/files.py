"""The directory of a small authority: what it issued, and its key; for nobody else to read.

    ca.pem, ca-key.pem          the authority
    NAME.pem, NAME-key.pem      what it issued, one pair for each process

Directories are made 0700, files 0600. Nothing is written over, but what is renewed: then a process
that uses the files takes the new ones by itself.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from dlog.tls.authority import CertificateRequest, Issued, issue, new_authority
from ledger.errors import CallerError
from ledger.process import make_private

AUTHORITY: Final = "ca"
_HOW_TO_BEGIN: Final = "make an authority there with 'dlog tls init'"


class TlsFileError(CallerError):
    """Says which file; never what is in it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a certificate and its key are."""

    cert: Path
    key: Path

    @classmethod
    def of(cls, directory: Path, name: str) -> "Pair":
        return cls(directory / f"{name}.pem", directory / f"{name}-key.pem")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a certificate says, for people."""

    path: str
    name: str
    issuer: str
    alternative_names: tuple[str, ...]
    begins: datetime
    expires: datetime
    sha256: str


def init(directory: Path, name: str, *, days: float) -> Pair:
    """Make an authority in *directory*. Raises `TlsFileError`, also if one is there."""
    pair = Pair.of(directory, AUTHORITY)
    with _explained(directory):
        make_private(directory)
        directory.chmod(0o700)
    _write(pair, new_authority(name, days=days))
    return pair


def issue_to(
    directory: Path, file_name: str, wanted: CertificateRequest, *, renews: bool = False
) -> Pair:
    """Let the authority in *directory* issue a certificate, in place of one if it *renews* that.
    Raises `TlsFileError`, also if there is one of that name, or none to be renewed."""
    of_authority = Pair.of(directory, AUTHORITY)
    if not of_authority.key.exists():
        raise TlsFileError(directory, f"no authority is there; {_HOW_TO_BEGIN}")
    if file_name == AUTHORITY or "/" in file_name or file_name.startswith("."):
        raise TlsFileError(directory / file_name, "give the certificate another name")
    with _explained(of_authority.key):
        authority = Issued(of_authority.cert.read_bytes(), of_authority.key.read_bytes())
    pair = Pair.of(directory, file_name)
    if renews and not pair.cert.exists():
        raise TlsFileError(pair.cert, "there is none to be renewed; 'dlog tls issue' makes one")
    try:
        issued = issue(authority, wanted)
    except (ValueError, TypeError) as error:
        raise TlsFileError(pair.cert, f"it cannot be issued: {error}") from error
    if not renews:
        _write(pair, issued)
        return pair
    fresh = Pair.of(directory, f".{file_name}")
    for path in (fresh.key, fresh.cert):
        path.unlink(missing_ok=True)  # of a renewal that was interrupted
    _write(fresh, issued)
    with _explained(pair.cert):
        fresh.key.replace(pair.key)
        fresh.cert.replace(pair.cert)
    return pair


def renew(directory: Path, file_name: str, *, days: float) -> Pair:
    """Replace a certificate that the authority in *directory* has issued, and its key, by new ones
    for the same names. Raises `TlsFileError`."""
    path = Pair.of(directory, file_name).cert
    with _explained(path):
        content = path.read_bytes()
    try:
        found = x509.load_pem_x509_certificate(content)
        [name] = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError as error:
        raise TlsFileError(path, f"it is none of 'dlog tls issue': {error}") from error
    names = _names(found)
    uris = [each.value for each in names if isinstance(each, x509.UniformResourceIdentifier)]
    hosts = [str(each.value) for each in names if isinstance(each, (x509.DNSName, x509.IPAddress))]
    wanted = CertificateRequest(name=str(name.value), hosts=hosts, uris=uris, days=days)
    return issue_to(directory, file_name, wanted, renews=True)


def show(path: Path) -> list[Shown]:
    """Return what the certificates in *path* say. Raises `TlsFileError`."""
    with _explained(path):
        content = path.read_bytes()
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise TlsFileError(path, "there is no certificate in it (PEM)") from error
    return [_shown(path, each) for each in found]


def _shown(path: Path, found: x509.Certificate) -> Shown:
    names = [f"{_kind(each)}:{each.value}" for each in _names(found)]
    return Shown(
        str(path),
        found.subject.rfc4514_string(),
        found.issuer.rfc4514_string(),
        tuple(names),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        found.fingerprint(hashes.SHA256()).hex(),
    )


def _names(found: x509.Certificate) -> Sequence[x509.GeneralName]:
    try:
        return list(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _kind(name: x509.GeneralName) -> str:
    match name:
        case x509.UniformResourceIdentifier():
            return "URI"
        case x509.IPAddress():
            return "IP"
        case x509.DNSName():
            return "DNS"
        case _:
            return type(name).__name__


def _write(pair: Pair, issued: Issued) -> None:
    # The key first: a certificate without one is of no use, and would be in the way.
    for path, content in ((pair.key, issued.key), (pair.cert, issued.cert)):
        with _explained(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        reason = "it is there already; nothing is written over"
        raise TlsFileError(path, reason) from error
    except OSError as error:
        raise TlsFileError(path, error.strerror or str(error)) from error
