"""Authenticates clients that show no certificate: users with passwords, and tokens.

`protocol.sasl` decides; here are the users of the metadata store, which are followed as they
change, the keys of the OpenID provider, nonces and the time.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from dlog.kafka.access import DocumentFollower
from dlog.kafka.protocol.sasl import (
    OAUTHBEARER,
    CheckToken,
    SaslConnection,
    SaslRefusal,
    SaslReply,
    SaslResult,
)
from dlog.kafka.protocol.scram import ScramMechanism
from dlog.kafka.protocol.users import USERS_PATH, KafkaUsers
from dlog.kafka.wire import Values, WireRequest
from ledger.errors import CallerError
from ledger.log_events import now_ms
from ledger.metastore.port import MetadataStore

if TYPE_CHECKING:
    from dlog.kafka.tokens import TokenSettings, TokenVerifier

NONCE_BYTES: Final = 24
FAILED_DELAY_S: Final = 0.3
"""So long whoever failed waits for the answer: with the bound on connections that are not known
yet it bounds how many passwords can be tried."""


class InvalidSasl(CallerError):
    """The gateway cannot authenticate clients as it was told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Without any mechanism, clients show certificates or nothing."""

    scram: bool = False
    """Users of the metadata store may come with their passwords."""
    tokens: "TokenSettings | None" = None
    """Whose tokens count."""
    without_tls: bool = False
    """Whether clients may do so on connections that are not secured."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        scram = tuple(map(str, reversed(ScramMechanism))) if self.scram else ()
        return scram + ((OAUTHBEARER,) if self.tokens is not None else ())


class Authenticator:
    """`start`, then `close`; belongs to one event loop."""

    def __init__(
        self, store: MetadataStore, settings: SaslSettings, users_changed: Callable[[], None]
    ) -> None:
        self.settings = settings
        self._users = DocumentFollower(store, USERS_PATH, KafkaUsers, users_changed)
        self._verifier: TokenVerifier | None = None
        self.outcomes = Counter[tuple[str, ...]]()
        """Of authentications, by mechanism and outcome."""

    @property
    def is_on(self) -> bool:
        return bool(self.settings.mechanisms)

    @property
    def users(self) -> KafkaUsers:
        return self._users.value

    @property
    def key_failures(self) -> int:
        """How often the keys of the OpenID provider could not be read."""
        return 0 if self._verifier is None else self._verifier.failures

    async def start(self) -> None:
        """Raises `MetadataUnavailable`, `DamagedMetadata`, `KeysUnavailable`."""
        if self.settings.scram:
            await self._users.start()
        if self.settings.tokens is not None:
            from dlog.kafka.tokens import TokenVerifier

            self._verifier = TokenVerifier(self.settings.tokens)
            await self._verifier.start()

    async def close(self) -> None:
        """Idempotent."""
        await self._users.close()
        if self._verifier is not None:
            await self._verifier.close()

    def connection(self, identity: str) -> SaslConnection:
        """Return what is known of a client; *identity*: by its certificate, empty without one."""
        return SaslConnection(self.settings.mechanisms, identity)

    async def handshake(self, request: WireRequest, connection: SaslConnection) -> Values:
        refusal = connection.handshake(str(request.body.mechanism))
        code = ErrorCode.none if refusal is None else await self._refused(refusal, connection)
        return {"error_code": code, "mechanisms": list(self.settings.mechanisms)}

    async def authenticate(self, request: WireRequest, connection: SaslConnection) -> Values:
        result = await self._result(bytes(request.body.auth_bytes), connection)
        if isinstance(result, SaslRefusal):
            code = await self._refused(result, connection)
            return {"error_code": code, "error_message": result.sentence, "auth_bytes": b""}
        assert isinstance(result, SaslReply), "a token was checked"
        if connection.is_known:
            self.outcomes[connection.mechanism, "done"] += 1
        return {
            "error_code": ErrorCode.none,
            "auth_bytes": result.data,
            "session_lifetime": result.lifetime_ms,
        }

    def is_withdrawn(self, connection: SaslConnection) -> bool:
        """Return whether the user by whom a client is known was removed, or has another password
        now."""
        credential = connection.credential
        return credential is not None and (
            self.users.credentials.get(connection.user) != credential
        )

    async def _result(self, data: bytes, connection: SaslConnection) -> SaslResult:
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        result = connection.message(data, find=self.users.find, nonce=nonce)
        if not isinstance(result, CheckToken):
            return result
        assert self._verifier is not None, "only then the mechanism is offered"
        from dlog.kafka.tokens import TokenRefused

        try:
            valid = await self._verifier.verify(result.token)
        except TokenRefused as error:
            return connection.token_refused(str(error))
        return connection.token_valid(valid.subject, valid.expires_at_ms, now_ms())

    async def _refused(self, refusal: SaslRefusal, connection: SaslConnection) -> ErrorCode:
        self.outcomes[connection.mechanism or "none", "failed"] += 1
        await asyncio.sleep(FAILED_DELAY_S)
        return refusal.code
