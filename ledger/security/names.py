"""Names of the other end of a connection: what its certificate says of it, and where it comes from.
Pure.

A bookie is recognised by its name, if its certificate names one:

    dlog:bookie:<name>                  as an alternative name of kind URI
    spiffe://<domain>/.../bookie/<name> the same, for those who use SPIFFE

Such a certificate is no other bookie's, wherever it is used. One that names no bookie must name the
host of the address at which the bookie was looked for. A process with a SPIFFE id of its own takes
no bookie of another trust domain: bundles of a federation hold the authorities of others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from ssl import cert_time_to_seconds
from typing import Any, Final
from urllib.parse import quote, unquote

from ledger.security.settings import NameKind

_BOOKIE: Final = "dlog:bookie:"
_SPIFFE: Final = "spiffe://"
_SHOWN_MAX: Final = 4
_CONTROL: Final = frozenset(map(chr, (*range(32), 127)))
"""NUL among them: a name ends there for programs in C."""
NETWORK_BITS: Final = 64
"""Of an IPv6 address: who has one has all that begin like it."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was verified."""

    expires_at: float
    """Seconds since 1970."""
    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    common_name: str = ""
    begins_at: float = 0.0
    flaw: str = ""
    """Why nobody is known by it; empty: its names are what they seem."""

    def __str__(self) -> str:
        if self.flaw:
            return f"nobody: {self.flaw}"
        names = [*self.uris, *self.dns, *self.ips] or [self.common_name or "nobody"]
        more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        return ", ".join(names[:_SHOWN_MAX]) + more


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the other end of a connection is, by its certificate. Kinds are not mixed: what one
    authority puts into a common name must not pass for another one's URI."""

    kind: NameKind
    name: str
    expires_at: float = field(default=0.0, compare=False)
    """Of the certificate, in seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def certificate_of(found: Mapping[str, Any]) -> Certificate:
    """Return what `ssl.SSLObject.getpeercert` says.

    Names of which programs disagree what they are count for nothing, and neither does any other
    name beside them: `Certificate.flaw` says so."""
    names: Sequence[tuple[str, str]] = found.get("subjectAltName", ())
    subject: Iterable[Iterable[tuple[str, str]]] = found.get("subject", ())
    common = [value for part in subject for kind, value in part if kind == "commonName"]
    flaw = ""
    if len(common) > 1:
        flaw = "it has several common names"
    elif any(_CONTROL.intersection(value) for value in (*common, *(v for _, v in names))):
        flaw = "a name in it has a control character"

    def of(wanted: str) -> tuple[str, ...]:
        return tuple(value for kind, value in names if kind == wanted)

    return Certificate(
        expires_at=float(cert_time_to_seconds(found["notAfter"])),
        begins_at=float(cert_time_to_seconds(found["notBefore"])) if "notBefore" in found else 0.0,
        uris=of("URI"),
        dns=of("DNS"),
        ips=of("IP Address"),
        common_name=common[-1] if common else "",
        flaw=flaw,
    )


def identity_of(certificate: Certificate, kinds: Sequence[NameKind]) -> Identity | None:
    """Return the first name of the first of *kinds* that *certificate* has, or None."""
    if certificate.flaw:
        return None
    names = {
        NameKind.URI: certificate.uris,
        NameKind.DNS: certificate.dns,
        NameKind.CN: tuple(filter(None, [certificate.common_name])),
    }
    for kind in kinds:
        if names[kind]:
            return Identity(kind, names[kind][0], certificate.expires_at)
    return None


def bookie_uri(bookie: str) -> str:
    """Return the alternative name by which a certificate is that of *bookie*."""
    return _BOOKIE + quote(bookie, safe="")


def bookies_named(certificate: Certificate) -> tuple[str, ...]:
    """Return the bookies that *certificate* is of, by name; mostly one, or none."""
    return tuple(name for uri in certificate.uris if (name := _bookie_in(uri)) is not None)


def why_not_bookie(
    certificate: Certificate, bookie: str, host: str, *, own: Certificate | None = None
) -> str | None:
    """Return why whoever shows *certificate* at *host* is not *bookie*, empty: whichever bookie is
    there; None: it is. *own*: of the process that wants to know."""
    if certificate.flaw:
        return f"its certificate proves nothing: {certificate.flaw}"
    domains = trust_domains(certificate)
    if own is not None and domains and (of_own := trust_domains(own)) and not domains & of_own:
        return (
            f"its certificate is of the trust domain {', '.join(sorted(domains)[:_SHOWN_MAX])}, "
            f"this process's of {', '.join(sorted(of_own)[:_SHOWN_MAX])}"
        )
    named = bookies_named(certificate)
    if named and bookie:
        if bookie in named:
            return None
        return f"its certificate is that of bookie {', '.join(named[:_SHOWN_MAX])}, not {bookie}"
    if is_of_host(certificate, host):
        return None
    return f"its certificate is for {certificate}, and names neither {host} nor bookie {bookie}"


def trust_domains(certificate: Certificate) -> frozenset[str]:
    """Return those of the SPIFFE ids in *certificate*; mostly one, or none."""
    ids = [uri[len(_SPIFFE) :] for uri in certificate.uris if uri.startswith(_SPIFFE)]
    return frozenset(each.partition("/")[0].lower() for each in ids)


def is_of_host(certificate: Certificate, host: str) -> bool:
    """Return whether *certificate* names *host*, an address or a name. The common name does not
    count; an asterisk stands for one whole first label."""
    try:
        wanted = ip_address(host)
    except ValueError:
        return any(_fits(pattern.lower(), host.lower().rstrip(".")) for pattern in certificate.dns)
    return any(wanted == _address(found) for found in certificate.ips)


def _bookie_in(uri: str) -> str | None:
    if uri.startswith(_BOOKIE):
        return unquote(uri[len(_BOOKIE) :])
    if uri.startswith(_SPIFFE):
        *_, role, name = ("", "", *uri[len(_SPIFFE) :].split("/")[1:])
        if role == "bookie" and name:
            return unquote(name)
    return None


def _fits(pattern: str, host: str) -> bool:
    first, _, rest = pattern.partition(".")
    if first != "*":
        return pattern == host
    return "." in rest and host.partition(".")[2] == rest and not host.startswith(".")


def _address(text: str) -> object:
    try:
        return ip_address(text.strip())
    except ValueError:
        return None


def source_of(peername: object) -> str:
    """Return what all connections of one host have in common; *peername* is what a socket says of
    its other end."""
    host = str(peername[0]) if isinstance(peername, tuple) and peername else str(peername)
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        network = int(address) >> NETWORK_BITS << NETWORK_BITS
        return f"{IPv6Address(network)}/{NETWORK_BITS}"
    return str(address)
