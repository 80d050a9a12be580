"""The certificate of this process, as its files say now: contexts of TLS made of them.

Files are looked at when a connection is made, every `LOOK_S` at most: what was renewed is used from
the next connection on, without a restart. Files that cannot be used any more are told of and
counted, and the last good ones of this process stay in use until they expire, also for who is made
meanwhile: half a renewal must not end anybody.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledger.errors import CertificateUnusable
from ledger.log_events import get_logger
from ledger.security.names import Certificate, Identity, certificate_of, identity_of
from ledger.security.settings import NameKind, Takes, TlsMode, TlsSettings, takes_of

LOOK_S: Final = 1.0
AGE_S_MAX: Final = 3600.0
"""A client exchanges its connections when they are so old, or its files have changed, without
losing anything that is under way. So whatever either end has renewed is in use everywhere after
this; a bookie ends connections that are twice as old, or whose certificate has expired."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good."""
FILE_BYTES_MAX: Final = 1024 * 1024
SETTLED_S_MAX: Final = 5.0
"""So long who starts waits for files that do not fit: they may be about to be exchanged, one after
the other."""
_SETTLED_POLL_S: Final = 0.1
_READ_MAX: Final = 3
_GOOD_MAX: Final = 16
_STEPS_MAX: Final = 16
_EXPIRED: Final = 10
_FOR_GOOD: Final = (9, _EXPIRED, 26)
"""What another file beside the certificate would not change."""
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
    lasting_server: ssl.SSLContext


_good: Final[dict[tuple[TlsSettings, bool], _Loaded]] = {}
"""The last good files of this process, by settings and whether it serves; the latest last."""


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
        self._seen: tuple[object, ...] = ()
        self._untold = True
        self._look_at = clock() + look_s
        try:
            self._load()
        except CertificateUnusable as error:
            found = _good.get((settings, serves))
            if found is None or found.certificate.expires_at < time.time():
                raise
            self._loaded = found
            self._keep(error)
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

    @classmethod
    async def settled(
        cls, settings: TlsSettings, *, serves: bool = False, within_s: float = SETTLED_S_MAX
    ) -> "Security | None":
        """Do as `of`, but wait for files that may be about to be exchanged, one after the other."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within_s
        while True:
            try:
                return cls.of(settings, serves=serves)
            except CertificateUnusable as error:
                if not error.retryable or loop.time() >= ends_at:
                    raise
            await asyncio.sleep(_SETTLED_POLL_S)

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
        say then."""

        def renew(connection: Any, _name: object, _context: object) -> None:
            # Whether a certificate is asked for stays as it is in the first context.
            connection.context = self.open_server()

        context = self._loaded.lasting_server
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
        if _signature(self.settings) == self._seen:
            return
        try:
            self._load()
        except CertificateUnusable as error:
            # The files are exchanged one after the other: they are looked at again until they fit.
            self._keep(error)
            return
        self._untold = True
        self.generation += 1
        _log.info(
            "tls_renewed",
            certificate=str(self.certificate),
            expires=_shown(self.certificate.expires_at),
        )

    def _load(self) -> None:
        """Use what is in the files. Raises `CertificateUnusable`, then nothing is changed."""
        self._loaded, self._seen = _loaded(self.settings, serves=self._serves)
        known = (self.settings, self._serves)
        _good.pop(known, None)
        _good[known] = self._loaded
        for oldest in tuple(_good)[:-_GOOD_MAX]:
            _good.pop(oldest, None)

    def _keep(self, error: CertificateUnusable) -> None:
        """Tell once that what was used before still is, and why."""
        if self._untold:
            self._untold = False
            self.failures += 1
            _log.warning("tls_files_not_used", reason=str(error), still=str(self.certificate))


def own_name(security: Security | None) -> str:
    """Return who this process is to others, as its own settings have it; empty: nobody."""
    found = None if security is None else security.identity(security.certificate)
    return str(found) if found else ""


def own_names(security: Security | None) -> tuple[str, ...]:
    """Return all that others may know this process by: they may count other kinds of names."""
    if security is None:
        return ()
    kinds = ((kind,) for kind in NameKind)
    names = (identity_of(security.certificate, kind) for kind in kinds)
    return tuple(str(name) for name in names if name is not None)


def certificate_of_peer(ssl_object: ssl.SSLObject | None) -> Certificate | None:
    """Return the verified certificate at the other end; None if there is no TLS, or it has none."""
    found = None if ssl_object is None else ssl_object.getpeercert()
    return certificate_of(found) if found else None


def _loaded(settings: TlsSettings, *, serves: bool) -> tuple[_Loaded, tuple[object, ...]]:
    """Return what is in the files, and their signature. They are read several times, and are the
    same ones each time. Raises `CertificateUnusable`."""
    for _ in range(_READ_MAX):
        seen = _signature(settings)
        try:
            found = _load(settings, serves=serves)
        except CertificateUnusable:
            if _signature(settings) == seen:
                raise
            continue
        if _signature(settings) == seen:
            return found, seen
    raise CertificateUnusable(settings.cert, "it, or a file beside it, changes", retryable=True)


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
        _context(settings, ssl.PROTOCOL_TLS_SERVER, ssl.CERT_OPTIONAL),
        _context(settings, ssl.PROTOCOL_TLS_SERVER, ssl.CERT_NONE),
    )


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
        raise CertificateUnusable(
            settings.cert,
            reason.format(ca=settings.ca, use=use),
            retryable=error.verify_code not in _FOR_GOOD,
        ) from error
    except ssl.SSLError as error:
        raise CertificateUnusable(settings.cert, error.reason or "TLS fails with it") from error
    found = certificate_of_peer(looking)
    assert found is not None, "it was demanded"
    return found


def _context(
    settings: TlsSettings, part: Any, demanded: ssl.VerifyMode = ssl.CERT_REQUIRED
) -> ssl.SSLContext:
    """Return a context of *part* that demands a certificate of the other end, or as *demanded*."""
    context = ssl.SSLContext(part)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.check_hostname = False  # `names.why_not_bookie` knows more than names of hosts
    context.verify_mode = demanded
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
        return CertificateUnusable(settings.key, reason, retryable=True)
    if b"PRIVATE KEY-----" not in _read(settings.key):
        return CertificateUnusable(settings.key, "there is no private key in it (PEM)")
    if b"BEGIN CERTIFICATE-----" not in _read(settings.cert):
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
    with suppress(OSError):
        if not Path(path).stat().st_mode & 0o044:
            return
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
