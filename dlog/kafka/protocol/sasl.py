"""The authentication of one connection: SaslHandshake, SaslAuthenticate, and which requests it
allows when.

A client names a mechanism, exchanges messages of it, and is known from then on. It may do that
again on the same connection, before its session ends (KIP-368), by the same mechanism and as the
same one. A failure is final: the connection is closed once the client has its answer.

Where a token has to be checked, that takes others: `message` returns `CheckToken`, and what came of
it is handed to `token_valid` or `token_refused`.

Invariants (asserted):
    an identity is only set by a proof, or by a certificate before the first request
    a connection that failed never gets an identity, nor keeps one
    who is known stays the same one for as long as the connection lives

Pure: nonces and the time are arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from kio.schema.errors import ErrorCode

from dlog.kafka.protocol.scram import (
    ScramCredential,
    ScramExchange,
    ScramFailed,
    ScramMechanism,
    parse_client_first,
)

OAUTHBEARER: Final = "OAUTHBEARER"
USER_KIND: Final = "user"
SUBJECT_KIND: Final = "oidc"
REQUESTS_MAX: Final = 16
"""Of a client that is not known yet; four or five are needed."""
SUBJECT_BYTES_MAX: Final = 512
FAILED: Final = "authentication failed: the name, the password or the token is not valid here"
"""All that a client is told, whichever it was."""
_SEPARATOR: Final = "\x01"


class SaslPhase(Enum):
    IDLE = auto()
    CHOSEN = auto()
    """A mechanism was named; its first message is to come."""
    CHALLENGED = auto()
    """SCRAM: the last message is to come."""
    CHECKING = auto()
    """A token is being checked."""
    FAILED = auto()


_NEXT: Final = {
    SaslPhase.IDLE: {SaslPhase.CHOSEN, SaslPhase.FAILED},
    SaslPhase.CHOSEN: {SaslPhase.CHALLENGED, SaslPhase.CHECKING, SaslPhase.FAILED},
    SaslPhase.CHALLENGED: {SaslPhase.IDLE, SaslPhase.FAILED},
    SaslPhase.CHECKING: {SaslPhase.IDLE, SaslPhase.FAILED},
    SaslPhase.FAILED: {SaslPhase.FAILED},
}


@dataclass(frozen=True, slots=True)
class SaslReply:
    """The answer to a message that was good."""

    data: bytes
    lifetime_ms: int = 0
    """How long the client stays known; 0: for as long as it is connected, or it is not yet."""


@dataclass(frozen=True, slots=True)
class CheckToken:
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslRefusal:
    """The connection is over once this is sent."""

    code: ErrorCode
    sentence: str
    """For the client; the same whoever exists here."""
    reason: str
    """For the log of the gateway."""


SaslResult = SaslReply | CheckToken | SaslRefusal


class SaslConnection:
    """*mechanisms*: what is offered. *identity*: by the client's certificate, empty without one."""

    def __init__(self, mechanisms: tuple[str, ...], identity: str = "") -> None:
        self.mechanisms = mechanisms
        self.identity = identity
        """``kind:name``; empty: not known."""
        self.expires_at_ms: int | None = None
        """None: never."""
        self.mechanism = ""
        """By which it is known, or wants to be."""
        self.user = ""
        """Of SCRAM, who is known by it; empty: nobody."""
        self.credential: ScramCredential | None = None
        """By which *user* is known."""
        self.failure = ""
        """Why it failed, for the gateway's log."""
        self._phase = SaslPhase.IDLE
        self._proven = False
        """Whether *identity* is by SASL."""
        self._exchange: ScramExchange | None = None
        self._credential: ScramCredential | None = None
        self._claimed = ""
        self._requests = 0

    @property
    def is_known(self) -> bool:
        return bool(self.identity)

    @property
    def has_failed(self) -> bool:
        return self._phase is SaslPhase.FAILED

    def check_request(self, *, authenticates: bool, is_open: bool, now_ms: int) -> str:
        """Return why a request ends the connection, nothing if it does not. *authenticates*: it is
        one of SASL; *is_open*: whoever connects may send it."""
        if not self.is_known:
            self._requests += 1
            if self._requests > REQUESTS_MAX:
                return f"it sent {REQUESTS_MAX} requests without authenticating"
            if not authenticates and not is_open:
                return "it has to authenticate first; set security.protocol=SASL_SSL"
            return ""
        if authenticates or is_open:
            return ""
        if self._phase is not SaslPhase.IDLE:
            return "it sent another request while it authenticated again"
        if self.expires_at_ms is not None and now_ms >= self.expires_at_ms:
            return "its session has ended, and it did not authenticate again"
        return ""

    def handshake(self, mechanism: str) -> SaslRefusal | None:
        """Begin with *mechanism*."""
        if self._phase is not SaslPhase.IDLE:
            return self._illegal("a handshake in the middle of another one")
        if mechanism not in self.mechanisms:
            return self._failed(
                ErrorCode.unsupported_sasl_mechanism,
                f"{mechanism[:40]!r} is not offered",
                f"offered are {', '.join(self.mechanisms)}",
            )
        if self._proven and mechanism != self.mechanism:
            return self._illegal("it began with another mechanism")
        self.mechanism = mechanism
        self._go(SaslPhase.CHOSEN)
        return None

    def message(
        self, data: bytes, *, find: Callable[[str, ScramMechanism], ScramCredential], nonce: str
    ) -> SaslResult:
        """Take a message of the mechanism. *find*: returns the credential of a name, or a decoy."""
        try:
            if self._phase is SaslPhase.CHOSEN:
                if self.mechanism == OAUTHBEARER:
                    token, self._claimed = parse_bearer(data)
                    self._go(SaslPhase.CHECKING)
                    return CheckToken(token)
                return self._challenge(data, find, nonce)
            if self._phase is SaslPhase.CHALLENGED:
                assert self._exchange is not None, "it was begun"
                answer = self._exchange.verify(data)
                return self._known(f"{USER_KIND}:{self._claimed}", None, answer, 0)
        except ScramFailed as failure:
            return self._refused(str(failure))
        return self._illegal("a message without a handshake")

    def token_valid(self, subject: str, expires_at_ms: int, now_ms: int) -> SaslResult:
        """The token was that of *subject*."""
        assert self._phase is SaslPhase.CHECKING, "it was asked"
        if not subject or not subject.isprintable() or len(subject.encode()) > SUBJECT_BYTES_MAX:
            return self._refused("the subject of the token is no name")
        if self._claimed and self._claimed != subject:
            return self._refused("the client wants to act for another subject")
        lifetime_ms = expires_at_ms - now_ms
        if lifetime_ms <= 0:
            return self._refused("the token has expired")
        return self._known(f"{SUBJECT_KIND}:{subject}", expires_at_ms, b"", lifetime_ms)

    def token_refused(self, reason: str) -> SaslRefusal:
        assert self._phase is SaslPhase.CHECKING, "it was asked"
        return self._refused(reason)

    def _challenge(
        self, data: bytes, find: Callable[[str, ScramMechanism], ScramCredential], nonce: str
    ) -> SaslReply:
        first = parse_client_first(data)
        mechanism = ScramMechanism(self.mechanism)
        self._credential = find(first.name, mechanism)
        self._exchange = ScramExchange(mechanism, first, self._credential, nonce)
        self._claimed = first.name
        self._go(SaslPhase.CHALLENGED)
        return SaslReply(self._exchange.challenge)

    def _known(
        self, identity: str, expires_at_ms: int | None, answer: bytes, lifetime_ms: int
    ) -> SaslReply | SaslRefusal:
        if self._proven and identity != self.identity:
            return self._refused(f"it was {self.identity}, and wants to be {identity}")
        self._go(SaslPhase.IDLE)
        self.identity, self.expires_at_ms, self._proven = identity, expires_at_ms, True
        self.credential = self._credential
        self.user = self._claimed if self.credential is not None else ""
        self._exchange, self._credential, self._claimed = None, None, ""
        return SaslReply(answer, lifetime_ms)

    def _refused(self, reason: str) -> SaslRefusal:
        who = f" of {self._claimed!r}" if self._claimed else ""
        return self._failed(
            ErrorCode.sasl_authentication_failed, f"{self.mechanism}{who}: {reason}", FAILED
        )

    def _illegal(self, reason: str) -> SaslRefusal:
        return self._failed(ErrorCode.illegal_sasl_state, reason, reason)

    def _failed(self, code: ErrorCode, reason: str, sentence: str) -> SaslRefusal:
        self._go(SaslPhase.FAILED)
        self.identity, self._exchange, self.failure = "", None, reason
        return SaslRefusal(code, sentence, reason)

    def _go(self, phase: SaslPhase) -> None:
        assert phase in _NEXT[self._phase], f"{self._phase.name} to {phase.name}"
        self._phase = phase


def parse_bearer(message: bytes) -> tuple[str, str]:
    """Return the token of a client's first message (RFC 7628), and whom it wants to act for, empty:
    whoever the token is of. Raises `ScramFailed`."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("the message is not UTF-8") from None
    header, *pairs = text.split(_SEPARATOR)
    flag, first, rest = header.partition(",")
    authorized, second, more = rest.partition(",")
    if flag not in ("n", "y") or not first or not second or more:
        raise ScramFailed("the message has no header")
    if authorized and not authorized.startswith("a="):
        raise ScramFailed("the header names no user")
    if len(pairs) < 2 or pairs[-2:] != ["", ""]:
        raise ScramFailed("the message is cut off")
    values = [value for key, _, value in (each.partition("=") for each in pairs) if key == "auth"]
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise ScramFailed("the message has no token")
    return token.strip(), authorized[2:].replace("=2C", ",").replace("=3D", "=")
