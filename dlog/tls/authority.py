"""Makes the certificates of an authority, and those that it issues. No files: bytes out.

Keys are of EC P-256: quick, and known everywhere, also to Java.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ledger.security.names import bookie_uri

CA_DAYS: Final = 3650
DAYS: Final = 90
DAYS_MAX: Final = 36_500
_EARLY: Final = timedelta(minutes=5)
"""Clocks differ: what is issued now is valid on a machine that is a little behind."""
_COMMON_NAME_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Issued:
    cert: bytes
    """PEM."""
    key: bytes = field(repr=False)
    """PEM, PKCS #8, not encrypted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequest:
    """What a certificate is to say."""

    name: str
    """The common name."""
    bookie: str = ""
    """The bookie whose certificate it is; empty: nobody's."""
    hosts: Sequence[str] = ()
    """Names and addresses at which its owner is found. Who has none is no server."""
    uris: Sequence[str] = ()
    days: float = DAYS
    begins_days: float = 0.0
    """From now; a little earlier, as clocks differ."""

    @property
    def serves(self) -> bool:
        """Whether it is for servers, too."""
        return bool(self.bookie or self.hosts)

    @property
    def alternative_names(self) -> list[x509.GeneralName]:
        names: list[x509.GeneralName] = []
        uris = [bookie_uri(self.bookie)] if self.bookie else []
        names += [x509.UniformResourceIdentifier(uri) for uri in (*uris, *self.uris)]
        for host in self.hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        return names


def new_authority(name: str, *, days: float = CA_DAYS) -> Issued:
    """Return the certificate and the key of a new authority, which has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    return _issued(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, wanted: CertificateRequest) -> Issued:
    """Return a certificate and its key: for clients, and for servers if somebody finds them."""
    signer = x509.load_pem_x509_certificate(authority.cert)
    signer_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey), "`new_authority` made it"
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if wanted.serves:
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    of_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
    builder = (
        _builder(
            _subject(wanted.name),
            signer.subject,
            key.public_key(),
            wanted.days,
            begins_days=wanted.begins_days,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(of_signer, critical=False)
    )
    if names := wanted.alternative_names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _issued(builder.sign(signer_key, hashes.SHA256()), key)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_COMMON_NAME_MAX])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: float,
    *,
    begins_days: float = 0.0,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begin, end = now + timedelta(days=begins_days) - _EARLY, now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(begin, end - _EARLY))
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
