"""SCRAM: how a client proves that it has a password, without showing it (RFC 5802, RFC 7677).

    client   n,,n=USER,r=NONCE
    gateway  r=NONCE+MORE,s=SALT,i=ITERATIONS
    client   c=biws,r=NONCE+MORE,p=PROOF
    gateway  v=SIGNATURE

A gateway keeps a salted hash of the password twice over: it can check a proof with it, and cannot
make one. Channel binding is not offered; whoever demands it is refused.

A name that is no user's gets a salt all the same, always the same one, and fails at the proof: what
a client sees tells nothing of who exists.

Kafka's clients send names and passwords as they were typed, and others prepare them (SASLprep,
RFC 4013). So only names and passwords are taken that preparing does not change.

Pure: salts and nonces are arguments.
"""

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from ledger.errors import CallerError

ITERATIONS: Final = 16_384
"""Of new passwords: the most that Kafka's own brokers use. RFC 7677 asks for 4,096 at least."""
ITERATIONS_MIN: Final = 4096
SALT_BYTES: Final = 24
NONCE_BYTES_MAX: Final = 512
NAME_BYTES_MAX: Final = 255
PASSWORD_CHARACTERS_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1024
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)
"""Characters that RFC 4013 prohibits, those that are unassigned among them."""


class ScramMechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        return _HASHES[self]

    @property
    def hash_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size


_HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}


class InvalidUser(CallerError):
    """There can be no user of this name, or not with this password, which is not shown."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"user {name!r}: {reason}")
        self.name, self.reason = name, reason


class ScramFailed(Exception):
    """A message is none of SCRAM, or proves nothing. `str` of it is for the gateway's log."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What is kept of a password for one mechanism; no password follows from it but by guessing."""

    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Of one user."""

    iterations: int
    keys: Mapping[ScramMechanism, ScramKeys]


def saslprep(text: str) -> str:
    """Return *text* as SASLprep prepares it. Raises `ValueError` with what is wrong with it."""
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each
        for each in text
        if not stringprep.in_table_b1(each)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for each in prepared:
        if any(is_prohibited(each) for is_prohibited in _PROHIBITED):
            raise ValueError(f"the character U+{ord(each):04X} is not allowed")
    if any(map(stringprep.in_table_d1, prepared)):  # from right to left, RFC 3454 section 6
        ends = prepared[0], prepared[-1]
        if any(map(stringprep.in_table_d2, prepared)) or not all(map(stringprep.in_table_d1, ends)):
            raise ValueError("it mixes characters of both directions")
    return prepared


def check_name(name: str) -> str:
    """Return *name* unchanged. Raises `InvalidUser`."""
    if not name or not name.isprintable() or len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        raise InvalidUser(name[:80], f"give a printable name of 1 to {NAME_BYTES_MAX} bytes")
    if name.endswith("*"):
        raise InvalidUser(name, "a trailing '*' means several users where rights are granted")
    if _prepared(name, name, "its name") != name:
        raise InvalidUser(name, "clients may spell this name in two ways; use plain letters")
    return name


def check_password(name: str, password: str) -> str:
    """Return *password* unchanged. Raises `InvalidUser`."""
    size = len(password.encode(errors="replace"))
    if len(password) < PASSWORD_CHARACTERS_MIN or size > PASSWORD_BYTES_MAX:
        raise InvalidUser(
            name,
            f"a password has {PASSWORD_CHARACTERS_MIN} characters or more, and "
            f"{PASSWORD_BYTES_MAX} bytes or fewer",
        )
    if _prepared(name, password, "its password") != password:
        raise InvalidUser(name, "clients may spell its password in two ways; use plain letters")
    return password


def _prepared(name: str, text: str, which: str) -> str:
    try:
        return saslprep(text)
    except ValueError as error:
        raise InvalidUser(name, f"{which} cannot be used: {error}") from error


def new_credential(
    password: str, salts: Mapping[ScramMechanism, bytes], *, iterations: int = ITERATIONS
) -> ScramCredential:
    """Return what is kept of *password*, for each mechanism that *salts* has."""
    assert iterations >= ITERATIONS_MIN, "RFC 7677"
    return ScramCredential(
        iterations,
        {
            mechanism: derive_keys(mechanism, password.encode(), salt, iterations)
            for mechanism, salt in salts.items()
        },
    )


def derive_keys(
    mechanism: ScramMechanism, password: bytes, salt: bytes, iterations: int
) -> ScramKeys:
    name = mechanism.hash_name
    salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramKeys(
        salt, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name)
    )


def decoy(mechanism: ScramMechanism, name: str, key: bytes) -> ScramCredential:
    """Return the credential of a name that is no user's: always the same, and no password fits."""

    def drawn(label: str, size: int) -> bytes:
        return hmac.digest(key, f"{label}\0{mechanism}\0{name}".encode(), "sha512")[:size]

    size = mechanism.hash_bytes
    keys = ScramKeys(drawn("salt", SALT_BYTES), drawn("stored", size), drawn("server", size))
    return ScramCredential(ITERATIONS, {mechanism: keys})


class ClientFirst(NamedTuple):
    """The first message of a client."""

    header: bytes
    """As channel binding wants it again."""
    name: str
    nonce: str
    bare: bytes


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises `ScramFailed`."""
    text = _text(message)
    flag, first, rest = text.partition(",")
    authorized, second, bare = rest.partition(",")
    if not first or not second:
        raise ScramFailed("the first message has no header")
    if flag not in ("n", "y"):
        raise ScramFailed("the client demands channel binding, which is not offered")
    if authorized and not authorized.startswith("a="):
        raise ScramFailed("the header of the first message names no user")
    attributes = bare.split(",")
    if len(attributes) < 2 or not attributes[0].startswith("n=") or attributes[1][:2] != "r=":
        raise ScramFailed("the first message has no name and nonce")
    name, nonce = _name(attributes[0][2:]), attributes[1][2:]
    if authorized and _name(authorized[2:]) != name:
        raise ScramFailed("the client wants to act for another user")
    if not nonce or len(nonce) > NONCE_BYTES_MAX or not _is_printable(nonce):
        raise ScramFailed("its nonce is none")
    return ClientFirst(f"{flag},{authorized},".encode(), name, nonce, bare.encode())


class ScramExchange:
    """One exchange, after the first message of the client; *nonce* is the gateway's part."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        first: ClientFirst,
        credential: ScramCredential,
        nonce: str,
    ) -> None:
        assert nonce, "a nonce"
        assert _is_printable(nonce), "a nonce has no commas"
        self._mechanism, self._first = mechanism, first
        self._keys = credential.keys[mechanism]
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(self._keys.salt).decode()
        self.challenge = f"r={self._nonce},s={salt},i={credential.iterations}".encode()
        """The answer to the first message."""

    def verify(self, message: bytes) -> bytes:
        """Return the last answer to the last message of a client that has the password. Raises
        `ScramFailed`."""
        without_proof, comma, proof = message.rpartition(b",p=")
        attributes = _text(without_proof).split(",")
        if not comma or len(attributes) < 2:
            raise ScramFailed("the last message has no proof")
        binding = b"c=" + base64.b64encode(self._first.header)
        if not hmac.compare_digest(attributes[0].encode(), binding):
            raise ScramFailed("the last message has another header than the first")
        if not hmac.compare_digest(attributes[1].encode(), f"r={self._nonce}".encode()):
            raise ScramFailed("the last message has another nonce")
        shown = _decoded(proof)
        name, keys = self._mechanism.hash_name, self._keys
        signed = b",".join((self._first.bare, self.challenge, without_proof))
        signature = hmac.digest(keys.stored_key, signed, name)
        if len(shown) != len(signature):
            raise ScramFailed("the proof has another length")
        client_key = bytes(a ^ b for a, b in zip(shown, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(name, client_key).digest(), keys.stored_key):
            raise ScramFailed("no such user, or another password")
        return b"v=" + base64.b64encode(hmac.digest(keys.server_key, signed, name))


def _text(message: bytes) -> str:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("the message is not UTF-8") from None
    if "\0" in text:
        raise ScramFailed("the message has a NUL")
    return text


def _name(text: str) -> str:
    """Return a name without its escapes; `=2C` is a comma, `=3D` an equals sign."""
    first, *rest = text.split("=")
    if any(each[:2] not in ("2C", "3D") for each in rest):
        raise ScramFailed("the name has an equals sign that escapes nothing")
    escapes = {"2C": ",", "3D": "="}
    name = first + "".join(escapes[each[:2]] + each[2:] for each in rest)
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        raise ScramFailed(f"the name does not have 1 to {NAME_BYTES_MAX} bytes")
    return name


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramFailed("the proof is not Base64") from None


def _is_printable(text: str) -> bool:
    return all("!" <= each <= "~" and each != "," for each in text)
