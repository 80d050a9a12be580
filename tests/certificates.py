"""Certificates for tests: an authority and what it issues, made once, and settings with them."""

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dlog.tls.authority import CertificateRequest, Issued, issue, new_authority
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
    wanted = CertificateRequest(
        name=name, bookie=bookie, hosts=hosts, uris=uris, days=days, begins_days=begins_days
    )
    return issue(authority(by), wanted)


def odd_certificate(
    *common_names: str, uris: tuple[str, ...] = (), seconds: float = 600.0
) -> Issued:
    """Return what an authority might sign that looks at one name and not at the others."""
    ours = authority(AUTHORITY)
    root = x509.load_pem_x509_certificate(ours.cert)
    root_key = serialization.load_pem_private_key(ours.key, None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(seconds=seconds))
    )
    if uris:
        alternatives = map(x509.UniformResourceIdentifier, uris)
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    signed = builder.sign(root_key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Issued(signed.public_bytes(serialization.Encoding.PEM), private)


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
