"""Tokens of an OpenID provider: who signed them, for whom, and for how long.

The provider's public keys come from a file, or from a URL by HTTPS. They are read again every
`REFRESH_S`, and when a token names a key that is not known, but not more often than every
`AGAIN_S`. While they cannot be read the ones before stay in use, for `KEYS_AGE_S_MAX` at most;
after that every token is refused, as a key that was withdrawn must not count for longer.

A signature counts by public keys alone: `none` and secrets shared with the provider (HS256) never.
"""

import asyncio
import http.client
import ipaddress
import json
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

from ledger.errors import CallerError, RemoteError
from ledger.log_events import get_logger

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519"),
)
LEEWAY_S: Final = 30
"""By so much the provider's clock may differ from ours."""
EXPIRES_S_MAX: Final = 253_402_300_799
"""The year 9999: a token that is valid for longer is valid until then."""
REFRESH_S: Final = 300.0
AGAIN_S: Final = 10.0
KEYS_AGE_S_MAX: Final = 6 * 3600.0
READ_S: Final = 10.0
KEYS_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
HEADER_BYTES_MAX: Final = 8192
_KINDS: Final[dict[str, type[RSAKey] | type[ECKey] | type[OKPKey]]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
_PIECE_BYTES: Final = 64 * 1024
_OK: Final = 200
_MS: Final = 1000
_log = get_logger(__name__)


class InvalidTokenSettings(CallerError):
    """An OpenID provider cannot be used as it was described."""

    def __init__(self, what: str, value: str, reason: str) -> None:
        super().__init__(f"{what} {value!r}: {reason}")
        self.what, self.value, self.reason = what, value, reason


class KeysUnavailable(RemoteError):
    """The public keys of the OpenID provider cannot be read. Trying again may succeed."""

    retryable = True

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(
            f"the keys of the OpenID provider cannot be read from {source}: {reason}; "
            "no token can be checked without them"
        )
        self.source, self.reason = source, reason


class TokenRefused(Exception):
    """A token proves nothing. `str` of it is for the gateway's log; it shows nothing of the token
    but what is public."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Raises `InvalidTokenSettings`."""

    issuer: str
    """`iss` of the tokens that count, exactly."""
    audience: str
    """Has to be in `aud` of a token: one for another service does not count here."""
    keys: str
    """Path of a file, or a URL with https; with http for this machine only."""

    def __post_init__(self) -> None:
        for what in ("issuer", "audience", "keys"):
            value = getattr(self, what)
            if not value or not value.isprintable():
                raise InvalidTokenSettings(f"OIDC {what}", value, "give a printable text")
        url = self.url
        if url is not None and url.scheme != "https" and not _is_here(url.hostname):
            raise InvalidTokenSettings(
                "OIDC keys", self.keys, "use https: whoever changes them on the way signs tokens"
            )

    @property
    def url(self) -> SplitResult | None:
        """None: the keys are in a file."""
        parts = urlsplit(self.keys)
        return parts if parts.scheme in ("http", "https") and parts.hostname else None


@dataclass(frozen=True, slots=True)
class ValidToken:
    subject: str
    expires_at_ms: int


class TokenVerifier:
    """`start`, then `verify`, then `close`; belongs to one event loop."""

    def __init__(
        self,
        settings: TokenSettings,
        *,
        clock_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock_s, self._monotonic_s = settings, clock_s, monotonic_s
        self._keys = KeySet([])
        self._read_at = 0.0
        """When the keys were read that are in use."""
        self._tried_at = 0.0
        self._reading = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        self.failures = 0
        """How often keys could not be read."""

    async def start(self) -> None:
        """Raises `KeysUnavailable`."""
        await self._refresh()
        self._refreshing = asyncio.create_task(self._run(), name="keys of the OpenID provider")

    async def close(self) -> None:
        """Idempotent."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def verify(self, token: str) -> ValidToken:
        """Return whose *token* is. Raises `TokenRefused`."""
        kid = _kid_of(token)
        if not self._knows(kid):
            async with self._reading:
                if not self._knows(kid) and self._monotonic_s() - self._tried_at >= AGAIN_S:
                    with suppress(KeysUnavailable):
                        await self._refresh()
        if self._monotonic_s() - self._read_at > KEYS_AGE_S_MAX:
            raise TokenRefused("the provider's keys could not be read for too long")
        return check_token(token, self._keys, self._settings, self._clock_s())

    def _knows(self, kid: str | None) -> bool:
        return kid is None or any(key.kid == kid for key in self._keys)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            async with self._reading:
                with suppress(KeysUnavailable):
                    await self._refresh()

    async def _refresh(self) -> None:
        """Raises `KeysUnavailable`; then the keys stay as they are."""
        self._tried_at = self._monotonic_s()
        try:
            keys = await asyncio.to_thread(_read_keys, self._settings)
        except KeysUnavailable as error:
            self.failures += 1
            _log.warning("token_keys_not_read", reason=str(error))
            raise
        self._keys, self._read_at = keys, self._monotonic_s()


def check_token(token: str, keys: KeySet, settings: TokenSettings, now_s: float) -> ValidToken:
    """Return whose *token* is. Raises `TokenRefused`. Pure."""
    registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
    registry.max_header_length = HEADER_BYTES_MAX
    try:
        claims = jwt.decode(token, keys, algorithms=list(ALGORITHMS), registry=registry).claims
        jwt.JWTClaimsRegistry(
            now=int(now_s),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.audience},
            exp={"essential": True},
            sub={"essential": True},
        ).validate(claims)
        expires_at_ms = int(min(claims["exp"], EXPIRES_S_MAX) * _MS)
    except (JoseError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TokenRefused(f"{type(error).__name__}: {error}"[:200]) from None
    return ValidToken(claims["sub"], expires_at_ms)


def _kid_of(token: str) -> str | None:
    """Return the name of the key that *token* says it is signed with. Raises `TokenRefused`."""
    try:
        header = json.loads(urlsafe_b64decode(token.partition(".")[0].encode()))
        kid = header.get("kid") if isinstance(header, dict) else None
    except (ValueError, RecursionError):
        raise TokenRefused("it is no token of JSON") from None
    return kid if isinstance(kid, str) else None


def parse_keys(data: bytes) -> KeySet:
    """Return the public keys in a set (RFC 7517) that signatures may count by; others in it are
    left out. Raises `ValueError` if there is none. Pure."""
    if len(data) > KEYS_BYTES_MAX:
        raise ValueError(f"it has more than {KEYS_BYTES_MAX} bytes")
    try:
        given = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        given = None
    if not isinstance(given, list) or len(given) > KEYS_MAX:
        raise ValueError(f"it is no set of at most {KEYS_MAX} keys (JWKS)")
    found: list[RSAKey | ECKey | OKPKey] = []
    for each in given:
        with suppress(JoseError, ValueError, TypeError, KeyError, OverflowError):
            key = _public_key(each)
            if key is not None:
                found.append(key)
    if not found:
        raise ValueError("it has no public key for signatures")
    return KeySet(list(found))


def _public_key(given: Any) -> RSAKey | ECKey | OKPKey | None:
    if not isinstance(given, dict):
        return None
    kind = _KINDS.get(str(given.get("kty")))
    if kind is None or given.get("use", "sig") != "sig":
        return None
    if kind is RSAKey:
        modulus = urlsafe_b64decode(str(given.get("n")).encode())
        if int.from_bytes(modulus, "big").bit_length() < RSA_BITS_MIN:
            return None
    return kind.import_key(given)


def _read_keys(settings: TokenSettings) -> KeySet:
    """Raises `KeysUnavailable`."""
    url = settings.url
    try:
        return parse_keys(_read_file(settings.keys) if url is None else _fetch(url))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise KeysUnavailable(settings.keys, str(error) or type(error).__name__) from error


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(KEYS_BYTES_MAX + 1)


def _fetch(url: SplitResult) -> bytes:
    """Return what is at *url*, without following it elsewhere, within `READ_S`."""
    assert url.hostname is not None, "TokenSettings.url"
    ends_at = time.monotonic() + READ_S
    connection = (
        http.client.HTTPSConnection(
            url.hostname, url.port, timeout=READ_S, context=ssl.create_default_context()
        )
        if url.scheme == "https"
        else http.client.HTTPConnection(url.hostname, url.port, timeout=READ_S)
    )
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != _OK:
            raise ValueError(f"the answer is {response.status} {response.reason}")
        data = bytearray()
        while len(data) <= KEYS_BYTES_MAX and (piece := response.read1(_PIECE_BYTES)):
            data += piece
            if time.monotonic() > ends_at:
                raise TimeoutError(f"it took longer than {READ_S:g} s")
        return bytes(data)
    finally:
        connection.close()


def _is_here(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"
