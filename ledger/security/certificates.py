"""The certificate of this process, as its files say now: contexts of TLS made of them.

Files are looked at when a connection is made, every `LOOK_S` at most: what was renewed is used from
the next connection on, without a restart. Files that cannot be used any more are told of and
counted, and the last good ones stay in use until they expire: half a renewal must not end a server.
"""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledger.errors import CertificateUnusable
from ledger.log_events import get_logger
from ledger.security.choosing import Takes, takes_of
from ledger.security.names import Certificate, Identity, certificate_of, identity_of
from ledger.security.settings import TlsMode, TlsSettings

LOOK_S: Final = 1.0
AGE_S_MAX: Final = 3600.0
"""A client exchanges its connections when they are so old, or its files have changed, without
losing anything that is under way. So whatever either end has renewed is in use everywhere after
this; a bookie ends connections that are twice as old, or whose certificate has expired."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good."""
FILE_BYTES_MAX: Final = 1024 * 1024
_STEPS_MAX: Final = 16
_EXPIRED: Final = 10
_REASONS: Final = {
    9: "it is not valid yet; check the clock of this machine, or wait",
    _EXPIRED: "it has expired; put a renewed one in its place",
    18: "it is signed by itself, and not by an authority in {ca}",
    19: "the authority that signed it is not in {ca}",
    20: "the authority that signed it is not in {ca}, or one between the two is missing",
    21: "the authority that signed it is not in {ca}, or one between the two is missing",
    26: "it may not be used for {use}",
}

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files. Not shown: one of them is a secret."""

    ca: bytes
    cert: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Pem(...)"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Made as a whole: nothing of it is read from the files later, when they may be others."""

    pem: Pem
    certificate: Certificate
    client: ssl.SSLContext
    server: ssl.SSLContext
    open_server: ssl.SSLContext


class Security:
    """What this process secures its connections with; `of` makes it. One event loop, or thread, may
    use it while another one does: what they exchange is replaced as a whole."""

    def __init__(
        self,
        settings: TlsSettings,
        *,
        serves: bool = False,
        age_s_max: float = AGE_S_MAX,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*serves*: the certificate must be one for servers, too. Raises `CertificateUnusable`."""
        assert settings.mode is not TlsMode.OFF
        self.settings = settings
        self.age_s_max = age_s_max
        self.generation = 0
        """How often the files were exchanged."""
        self.failures = 0
        """How often files were found changed, and could not be used."""
        self._serves, self._look_s, self._clock = serves, look_s, clock
        self._seen = _signature(settings)
        self._untold = True
        self._loaded = _load(settings, serves=serves)
        self._look_at = clock() + look_s
        _log.info(
            "tls_on",
            mode=str(settings.mode),
            certificate=str(self._loaded.certificate),
            expires=_shown(self._loaded.certificate.expires_at),
        )

    @classmethod
    def of(cls, settings: TlsSettings, *, serves: bool = False) -> "Security | None":
        """Return that of *settings*, None for mode "off". Raises `CertificateUnusable`."""
        return None if settings.mode is TlsMode.OFF else cls(settings, serves=serves)

    @property
    def mode(self) -> TlsMode:
        return self.settings.mode

    @property
    def takes(self) -> Takes:
        return takes_of(self.mode)

    @property
    def certificate(self) -> Certificate:
        """Our own."""
        return self._loaded.certificate

    def client(self) -> ssl.SSLContext:
        """Return the context of the next connection that is made. Who it is made to is to be
        checked with `why_not`."""
        self.look()
        return self._loaded.client

    def server(self) -> ssl.SSLContext:
        """Return the context of the next connection that is taken; a certificate is demanded."""
        self.look()
        return self._loaded.server

    def open_server(self) -> ssl.SSLContext:
        """Do the same for who may come without a certificate; one that is shown must be good."""
        self.look()
        return self._loaded.open_server

    def lasting_server(self) -> ssl.SSLContext:
        """Do the same for browsers, which are asked for no certificate, as none would let them in,
        and for a library that keeps one context: each connection that it takes gets what the files
        say then. Raises `CertificateUnusable`."""

        def renew(connection: Any, _name: object, _context: object) -> None:
            # Whether a certificate is asked for stays as it is in the first context.
            connection.context = self.open_server()

        context = _context(self.settings, ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_NONE
        context.sni_callback = renew
        return context

    def pem(self) -> Pem:
        """Return what is in the files, for a library that wants that."""
        self.look()
        return self._loaded.pem

    def identity(self, certificate: Certificate | None) -> Identity | None:
        """Return who a peer with *certificate* is, by the kinds of names that count here."""
        if certificate is None:
            return None
        return identity_of(certificate, self.settings.identity)

    def look(self) -> None:
        """Take files that were renewed since, if it is time to look."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + self._look_s
        seen = _signature(self.settings)
        if seen == self._seen:
            return
        try:
            self._loaded = _load(self.settings, serves=self._serves)
        except (CertificateUnusable, OSError) as error:
            # The files are exchanged one after the other: they are looked at again until they fit.
            if self._untold:
                self._untold = False
                self.failures += 1
                _log.warning("tls_files_not_used", reason=str(error), still=str(self.certificate))
            return
        self._seen, self._untold = seen, True
        self.generation += 1
        _log.info(
            "tls_renewed",
            certificate=str(self.certificate),
            expires=_shown(self.certificate.expires_at),
        )


def own_name(security: Security | None) -> str:
    """Return who this process is to others, as its own settings have it; empty: nobody."""
    found = None if security is None else security.identity(security.certificate)
    return str(found) if found else ""


def certificate_of_peer(ssl_object: ssl.SSLObject | None) -> Certificate | None:
    """Return the verified certificate at the other end; None if there is no TLS, or it has none."""
    found = None if ssl_object is None else ssl_object.getpeercert()
    return certificate_of(found) if found else None


def _load(settings: TlsSettings, *, serves: bool) -> _Loaded:
    pem = Pem(_read(settings.ca), _read(settings.cert), _read(settings.key))
    _warn_of_readers(settings.key)
    certificate = _own(settings, "a client's connections", _PARTS[0])
    if serves:
        certificate = _own(settings, "a server's connections", _PARTS[1])
    return _Loaded(
        pem,
        certificate,
        _context(settings, ssl.PROTOCOL_TLS_CLIENT),
        _context(settings, ssl.PROTOCOL_TLS_SERVER),
        _open_server(settings),
    )


def _open_server(settings: TlsSettings) -> ssl.SSLContext:
    context = _context(settings, ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


_PARTS: Final = (
    (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER),
    (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT),
)
"""Who shows the certificate, and who looks at it."""


def _own(settings: TlsSettings, use: str, parts: "tuple[Any, Any]") -> Certificate:
    """Return our certificate as the other end will see it, which shows that it will be believed.

    Ends are played by two contexts in memory."""
    shows, looks = _context(settings, parts[0]), _context(settings, parts[1])
    shows.check_hostname = False
    shows.verify_mode = ssl.CERT_NONE
    to_shows, to_looks = ssl.MemoryBIO(), ssl.MemoryBIO()
    showing = shows.wrap_bio(to_shows, to_looks, server_side=parts[0] == ssl.PROTOCOL_TLS_SERVER)
    looking = looks.wrap_bio(to_looks, to_shows, server_side=parts[1] == ssl.PROTOCOL_TLS_SERVER)
    left = [showing, looking]
    try:
        for _ in range(_STEPS_MAX):
            for end in tuple(left):
                try:
                    end.do_handshake()
                    left.remove(end)
                except ssl.SSLWantReadError:
                    continue
            if not left:
                break
    except ssl.SSLCertVerificationError as error:
        reason = _REASONS.get(error.verify_code, error.verify_message)
        raise CertificateUnusable(settings.cert, reason.format(ca=settings.ca, use=use)) from error
    except ssl.SSLError as error:
        raise CertificateUnusable(settings.cert, error.reason or "TLS fails with it") from error
    found = certificate_of_peer(looking)
    assert found is not None, "it was demanded"
    return found


def _context(settings: TlsSettings, part: Any) -> ssl.SSLContext:
    """Return a context of *part* that demands a certificate of the other end."""
    context = ssl.SSLContext(part)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.check_hostname = False  # `names.why_not_bookie` knows more than names of hosts
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=settings.ca)
    except (ssl.SSLError, OSError) as error:
        raise CertificateUnusable(settings.ca, "there is no certificate in it (PEM)") from error
    try:
        context.load_cert_chain(settings.cert, settings.key, password=_no_password)
    except _EncryptedKey as error:
        reason = "the key is encrypted; give one that is not, readable by this process only"
        raise CertificateUnusable(settings.key, reason) from error
    except ssl.SSLError as error:
        raise _why_unusable(settings, error) from error
    except OSError as error:
        raise CertificateUnusable(settings.cert, error.strerror or str(error)) from error
    return context


class _EncryptedKey(Exception):
    """Else OpenSSL would ask the terminal for a password."""


def _no_password() -> str:
    raise _EncryptedKey


def _why_unusable(settings: TlsSettings, error: ssl.SSLError) -> CertificateUnusable:
    if error.reason == "KEY_VALUES_MISMATCH":
        reason = f"it is not the key of the certificate in {settings.cert}"
        return CertificateUnusable(settings.key, reason)
    if "PRIVATE KEY-----" not in Path(settings.key).read_text(errors="replace"):
        return CertificateUnusable(settings.key, "there is no private key in it (PEM)")
    if "BEGIN CERTIFICATE-----" not in Path(settings.cert).read_text(errors="replace"):
        return CertificateUnusable(settings.cert, "there is no certificate in it (PEM)")
    reason = f"it and the key in {settings.key} cannot be used: {error.reason or 'damaged'}"
    return CertificateUnusable(settings.cert, reason)


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateUnusable(path, error.strerror or str(error)) from error
    if len(found) > FILE_BYTES_MAX:
        raise CertificateUnusable(path, f"it has more than {FILE_BYTES_MAX} bytes")
    return found


def _warn_of_readers(path: str) -> None:
    if Path(path).stat().st_mode & 0o044:
        _log.warning("private_key_readable_by_others", path=path, advice="chmod 600")


def _signature(settings: TlsSettings) -> tuple[object, ...]:
    """Return what changes when one of the files does."""
    found: list[object] = []
    for path in (settings.ca, settings.cert, settings.key):
        try:
            stat = Path(path).stat()
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)


def _shown(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
