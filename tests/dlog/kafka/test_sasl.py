"""Authentication of clients: the vectors of the RFCs, what is refused, and what a refusal tells."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey
from joserfc.jws import JWSRegistry
from kio.schema.errors import ErrorCode

from dlog.kafka.protocol.sasl import (
    OAUTHBEARER,
    REQUESTS_MAX,
    CheckToken,
    SaslConnection,
    SaslRefusal,
    SaslReply,
    parse_bearer,
)
from dlog.kafka.protocol.scram import (
    ITERATIONS,
    InvalidUser,
    ScramCredential,
    ScramExchange,
    ScramFailed,
    ScramMechanism,
    check_name,
    check_password,
    derive_keys,
    new_credential,
    parse_client_first,
    saslprep,
)
from dlog.kafka.protocol.users import USERS_MAX, KafkaUsers
from dlog.kafka.tokens import (
    InvalidTokenSettings,
    TokenRefused,
    TokenSettings,
    check_token,
    parse_keys,
)
from ledger.errors import DamagedMetadata

SHA_256, SHA_512 = ScramMechanism
SALTS: Final = {SHA_256: bytes(range(24)), SHA_512: bytes(range(24, 48))}
ALICE: Final = new_credential("wonderland", SALTS, iterations=4096)
USERS: Final = KafkaUsers().with_("alice", ALICE, b"k" * 32)
EVERY: Final = (str(SHA_256), str(SHA_512), OAUTHBEARER)
VECTORS: Final = [
    (  # RFC 7677, section 3
        SHA_256,
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    (  # draft-melnikov-scram-sha-512
        SHA_512,
        "Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=",
        "02431b08-2f89-4bad-a4e6-80c0564ec865",
        "Hc5yec3NmCD7t+kFRw4/3yD6/F3SQHc7AVYschRja+Bc3sbdjlA0eH1OjJc0DD4ghn1tnXN5/Wr6qm9xmaHt4A==",
        "BQuhnKHqYDwQWS5jAw4sZed+C9KFUALsbrq81bB0mh+bcUUbbMPNNmBIupnS2AmyyDnG5CTBQtkjJ9kyY4kzmw==",
    ),
]


class Client:
    """A client's side of SCRAM, as the RFC has it."""

    def __init__(self, mechanism: ScramMechanism, name: str, password: str) -> None:
        self.mechanism, self.password = mechanism, password
        self.bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r=nonce"

    def last(self, challenge: bytes, header: str = "n,,", *, nonce: str = "") -> bytes:
        """Return the last message; its proof is right whatever *header* and *nonce* it has."""
        given, salt, iterations = (part[2:] for part in challenge.decode().split(",", 2))
        nonce = nonce or given
        name = self.mechanism.hash_name
        salted = hashlib.pbkdf2_hmac(
            name, self.password.encode(), base64.b64decode(salt), int(iterations)
        )
        key = hmac.digest(salted, b"Client Key", name)
        plain = f"c={base64.b64encode(header.encode()).decode()},r={nonce}"
        signed = f"{self.bare},{challenge.decode()},{plain}".encode()
        signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{plain},p={base64.b64encode(proof).decode()}".encode()


def connected(identity: str = "") -> SaslConnection:
    return SaslConnection(EVERY, identity)


def say(connection: SaslConnection, data: bytes, users: KafkaUsers = USERS) -> Any:
    return connection.message(data, find=users.find, nonce="MORE")


def log_in(
    connection: SaslConnection,
    password: str = "wonderland",  # noqa: S107
    *,
    name: str = "alice",
    mechanism: ScramMechanism = SHA_256,
) -> Any:
    """Return the answer to the last message."""
    assert connection.handshake(str(mechanism)) is None
    client = Client(mechanism, name, password)
    first = say(connection, f"n,,{client.bare}".encode())
    assert isinstance(first, SaslReply)
    assert not first.lifetime_ms
    return say(connection, client.last(first.data))


@pytest.mark.parametrize(("mechanism", "salt", "more", "proof", "signature"), VECTORS)
def test_the_vectors_of_the_rfcs(
    mechanism: ScramMechanism, salt: str, more: str, proof: str, signature: str
) -> None:
    keys = derive_keys(mechanism, b"pencil", base64.b64decode(salt), 4096)
    first = parse_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    exchange = ScramExchange(mechanism, first, ScramCredential(4096, {mechanism: keys}), more)
    nonce = f"rOprNGfwEbeRWgbNEkqO{more}"
    assert exchange.challenge == f"r={nonce},s={salt},i=4096".encode()
    assert exchange.verify(f"c=biws,r={nonce},p={proof}".encode()) == f"v={signature}".encode()


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX")],
)
def test_saslprep_prepares_as_rfc_4013_does(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u06271", "\ud800", "\ue000", "\u0378"])
def test_saslprep_refuses_what_rfc_4013_does(text: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|directions"):
        saslprep(text)


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_user_with_the_password_is_known(mechanism: ScramMechanism) -> None:
    connection = connected()
    answer = log_in(connection, mechanism=mechanism)
    keys = ALICE.keys[mechanism]
    assert answer.data.startswith(b"v=")
    assert len(base64.b64decode(answer.data[2:])) == len(keys.server_key)
    assert (connection.identity, connection.user) == ("user:alice", "alice")
    assert connection.credential is ALICE
    assert connection.expires_at_ms is None


def test_what_a_client_sees_does_not_tell_who_exists() -> None:
    """Of a name that is no user's it gets a salt, the same each time, and the same refusal."""

    def seen(name: str) -> tuple[bytes, SaslRefusal]:
        connection = connected()
        assert connection.handshake(str(SHA_256)) is None
        client = Client(SHA_256, name, "guessed it")
        first = say(connection, f"n,,{client.bare}".encode(), users)
        refusal = say(connection, client.last(first.data), users)
        assert isinstance(refusal, SaslRefusal)
        assert connection.has_failed
        assert not connection.identity
        return first.data, refusal

    users = KafkaUsers().with_("alice", new_credential("wonderland", SALTS), b"k" * 32)
    (real, refused), (false, also) = seen("alice"), seen("nobody")
    assert seen("nobody")[0] == false
    assert seen("somebody")[0] != false
    assert len(real) == len(false)
    assert real.rpartition(b",")[2] == false.rpartition(b",")[2] == b"i=%d" % ITERATIONS
    assert (refused.code, refused.sentence) == (also.code, also.sentence)
    assert refused.code is ErrorCode.sasl_authentication_failed
    assert "alice" in refused.reason
    assert "alice" not in refused.sentence


def test_without_the_key_of_the_users_their_salts_cannot_be_told_from_false_ones() -> None:
    other = KafkaUsers().with_("alice", ALICE, b"o" * 32)
    assert USERS.find("nobody", SHA_256).keys != other.find("nobody", SHA_256).keys
    assert other.with_("bob", ALICE, b"n" * 32).decoy_key == b"o" * 32


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"p=tls-unique,,n=alice,r=nonce",
        b"x,,n=alice,r=nonce",
        b"n,a=bob,n=alice,r=nonce",
        b"n,alice,n=alice,r=nonce",
        b"n,b=alice,n=alice,r=nonce",
        b"n,,m=needed,n=alice,r=nonce",
        b"n,,n=,r=nonce",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a\x01b",
        b"n,,n=al=ice,r=nonce",
        b"n,,n=alice",
        b"n,,n=alice\0,r=nonce",
        b"n,,n=\xff,r=nonce",
        b"n,,n=" + b"a" * 256 + b",r=nonce",
        b"n,,n=alice,r=" + b"a" * 513,
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    connection = connected()
    assert connection.handshake(str(SHA_256)) is None
    refusal = say(connection, message)
    assert isinstance(refusal, SaslRefusal)
    assert refusal.code is ErrorCode.sasl_authentication_failed
    assert connection.failure == refusal.reason


@pytest.mark.parametrize(
    ("change", "by"),
    [
        (b"c=biws", b"c=eSws"),
        (b"r=nonceMORE", b"r=nonceLESS"),
        (b"r=nonceMORE", b"r=nonce"),
        (b",p=", b",q="),
        (b"c=biws,", b""),
    ],
)
def test_a_last_message_that_was_changed_is_refused(change: bytes, by: bytes) -> None:
    connection = connected()
    assert connection.handshake(str(SHA_256)) is None
    client = Client(SHA_256, "alice", "wonderland")
    first = say(connection, f"n,,{client.bare}".encode())
    last = client.last(first.data)
    assert change in last
    assert isinstance(say(connection, last.replace(change, by)), SaslRefusal)
    assert not connection.identity


@pytest.mark.parametrize("change", [{"header": "y,,"}, {"nonce": "nonce"}, {"nonce": "nonceLESS"}])
def test_a_right_proof_of_another_header_or_nonce_is_refused(change: dict[str, str]) -> None:
    connection = connected()
    assert connection.handshake(str(SHA_256)) is None
    client = Client(SHA_256, "alice", "wonderland")
    first = say(connection, f"n,,{client.bare}".encode())
    refusal = say(connection, client.last(first.data, **change))
    assert isinstance(refusal, SaslRefusal)
    assert "another" in refusal.reason
    assert not connection.identity


@pytest.mark.parametrize("proof", [b"AAAA", b"", b"=", b"not base64!", b"A" * 44])
def test_a_proof_that_is_none_is_refused(proof: bytes) -> None:
    connection = connected()
    assert connection.handshake(str(SHA_256)) is None
    say(connection, b"n,,n=alice,r=nonce")
    assert isinstance(say(connection, b"c=biws,r=nonceMORE,p=" + proof), SaslRefusal)


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=alice,"])
def test_headers_that_bind_no_channel_are_taken(header: str) -> None:
    connection = connected()
    assert connection.handshake(str(SHA_256)) is None
    client = Client(SHA_256, "alice", "wonderland")
    first = say(connection, f"{header}{client.bare}".encode())
    assert isinstance(say(connection, client.last(first.data, header)), SaslReply)


def test_a_proof_counts_for_its_own_exchange_alone() -> None:
    client, lasts = Client(SHA_256, "alice", "wonderland"), []
    connection = connected()
    for nonce in ("ONE", "TWO"):
        connection = connected()
        assert connection.handshake(str(SHA_256)) is None
        first = connection.message(f"n,,{client.bare}".encode(), find=USERS.find, nonce=nonce)
        assert isinstance(first, SaslReply)
        lasts.append(client.last(first.data))
    assert isinstance(say(connection, lasts[0]), SaslRefusal)


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", "ab"])
def test_names_with_commas_and_equals_signs_are_escaped(name: str) -> None:
    users = KafkaUsers().with_(name, ALICE, b"k" * 32)
    connection = connected()
    assert connection.handshake(str(SHA_256)) is None
    client = Client(SHA_256, name, "wonderland")
    first = say(connection, f"n,,{client.bare}".encode(), users)
    assert isinstance(say(connection, client.last(first.data), users), SaslReply)
    assert connection.user == name


@settings(max_examples=300)
@given(
    events=st.lists(
        st.one_of(
            st.sampled_from([*EVERY, "PLAIN"]).map(lambda name: ("handshake", name)),
            st.sampled_from(
                [b"n,,n=alice,r=nonce", b"n,,\x01auth=Bearer t\x01\x01", b"", b"x"]
            ).map(lambda data: ("message", data)),
        ),
        max_size=8,
    )
)
def test_nobody_is_known_without_a_proof_whatever_comes_in_which_order(
    events: list[tuple[str, Any]],
) -> None:
    connection = connected()
    for kind, value in events:
        if connection.has_failed:
            break
        result = connection.handshake(value) if kind == "handshake" else say(connection, value)
        if isinstance(result, CheckToken):
            result = connection.token_refused("it is none")
        assert not connection.identity
        assert isinstance(result, SaslRefusal) == connection.has_failed


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI", "", "scram-sha-256", "x" * 1000])
def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(mechanism: str) -> None:
    refusal = connected().handshake(mechanism)
    assert refusal is not None
    assert refusal.code is ErrorCode.unsupported_sasl_mechanism
    assert "SCRAM-SHA-512" in refusal.sentence


def test_messages_without_a_handshake_and_two_handshakes_are_illegal() -> None:
    refusal = say(connected(), b"n,,n=alice,r=nonce")
    assert refusal.code is ErrorCode.illegal_sasl_state
    connection = connected()
    assert connection.handshake(str(SHA_256)) is None
    again = connection.handshake(str(SHA_256))
    assert again is not None
    assert again.code is ErrorCode.illegal_sasl_state


def test_who_is_not_known_may_ask_for_nothing_and_not_often() -> None:
    connection = connected()
    ask = connection.check_request
    assert "has to authenticate" in ask(authenticates=False, is_open=False, now_ms=0)
    for _ in range(REQUESTS_MAX - 1):
        assert not ask(authenticates=False, is_open=True, now_ms=0)
    assert "without authenticating" in ask(authenticates=True, is_open=False, now_ms=0)
    assert not connected("cn:app").check_request(authenticates=False, is_open=False, now_ms=0)


def test_who_is_known_may_authenticate_again_as_the_same_one_only() -> None:
    connection = connected()
    log_in(connection)
    assert connection.handshake(str(SHA_256)) is None
    busy = connection.check_request(authenticates=False, is_open=False, now_ms=0)
    assert "while it authenticated again" in busy
    client = Client(SHA_256, "alice", "wonderland")
    first = say(connection, f"n,,{client.bare}".encode())
    assert isinstance(say(connection, client.last(first.data)), SaslReply)
    both = USERS.with_("bob", new_credential("buildings", SALTS, iterations=4096), b"")
    assert connection.handshake(str(SHA_256)) is None
    bob = Client(SHA_256, "bob", "buildings")
    first = say(connection, f"n,,{bob.bare}".encode(), both)
    refusal = say(connection, bob.last(first.data), both)
    assert isinstance(refusal, SaslRefusal)
    assert not connection.identity


def test_who_is_known_cannot_change_the_mechanism() -> None:
    connection = connected()
    log_in(connection)
    refusal = connection.handshake(OAUTHBEARER)
    assert refusal is not None
    assert refusal.code is ErrorCode.illegal_sasl_state


def test_a_certificate_is_replaced_by_a_proof() -> None:
    connection = connected("cn:app")
    log_in(connection)
    assert connection.identity == "user:alice"


def test_a_failure_takes_the_name_of_the_certificate_too() -> None:
    connection = connected("cn:app")
    assert isinstance(log_in(connection, "something else"), SaslRefusal)
    assert not connection.is_known


@pytest.mark.parametrize(
    ("message", "token", "authorized"),
    [
        (b"n,,\x01auth=Bearer abc\x01\x01", "abc", ""),
        (b"n,a=me,\x01auth=bearer abc\x01\x01", "abc", "me"),
        (b"y,,\x01host=h\x01port=1\x01auth=BEARER a.b.c\x01\x01", "a.b.c", ""),
    ],
)
def test_a_token_is_found_in_its_message(message: bytes, token: str, authorized: str) -> None:
    assert parse_bearer(message) == (token, authorized)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"p=x,,\x01auth=Bearer a\x01\x01",
        b"n,me,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_a_message_without_a_token_is_refused(message: bytes) -> None:
    with pytest.raises(ScramFailed):
        parse_bearer(message)


def test_a_token_names_its_subject_until_it_expires() -> None:
    connection = connected()
    assert connection.handshake(OAUTHBEARER) is None
    assert say(connection, b"n,,\x01auth=Bearer abc\x01\x01") == CheckToken("abc")
    assert connection.token_valid("app", 9000, 4000) == SaslReply(b"", 5000)
    assert connection.identity == "oidc:app"
    ask = connection.check_request
    assert not ask(authenticates=False, is_open=False, now_ms=8999)
    assert "has ended" in ask(authenticates=False, is_open=False, now_ms=9000)
    assert not ask(authenticates=True, is_open=False, now_ms=9000)
    assert connection.handshake(OAUTHBEARER) is None
    say(connection, b"n,,\x01auth=Bearer def\x01\x01")
    connection.token_valid("app", 12_000, 9500)
    assert not ask(authenticates=False, is_open=False, now_ms=11_999)


@pytest.mark.parametrize(
    ("first", "subject", "expires_at_ms"),
    [
        (b"n,a=other,\x01auth=Bearer t\x01\x01", "app", 9000),
        (b"n,,\x01auth=Bearer t\x01\x01", "app", 4000),
        (b"n,,\x01auth=Bearer t\x01\x01", "", 9000),
        (b"n,,\x01auth=Bearer t\x01\x01", "a\nb", 9000),
        (b"n,,\x01auth=Bearer t\x01\x01", "a" * 513, 9000),
    ],
)
def test_a_token_that_does_not_fit_is_refused(
    first: bytes, subject: str, expires_at_ms: int
) -> None:
    connection = connected()
    assert connection.handshake(OAUTHBEARER) is None
    assert isinstance(say(connection, first), CheckToken)
    assert isinstance(connection.token_valid(subject, expires_at_ms, 4000), SaslRefusal)
    assert not connection.identity


NOW: Final = time.time()
SETTINGS: Final = TokenSettings("https://id.example.org", "kafka", "/keys.json")
RSA: Final = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"}, private=True)
EC: Final = ECKey.generate_key("P-256", {"kid": "ec"}, private=True)
KEYS: Final = {"keys": [RSA.as_dict(private=False), EC.as_dict(private=False)]}
CLAIMS: Final = {
    "iss": "https://id.example.org",
    "aud": ["other", "kafka"],
    "sub": "app",
    "exp": int(NOW) + 600,
}


def token(key: Any = RSA, alg: str = "RS256", head: Mapping[str, Any] = {}, **claims: Any) -> str:
    merged = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    header = {"alg": alg, "kid": key.kid, **head}
    registry = JWSRegistry(algorithms=[alg], strict_check_header=False)
    return str(jwt.encode(header, merged, key, registry=registry))


def checked(text: str, keys: KeySet | None = None) -> str:
    return check_token(text, keys or parse_keys(json.dumps(KEYS).encode()), SETTINGS, NOW).subject


def test_a_token_that_the_provider_signed_for_us_is_good() -> None:
    assert checked(token()) == "app"
    assert checked(token(EC, "ES256")) == "app"
    assert checked(token(aud="kafka", nbf=int(NOW) + 10, head={"nonce": "x"})) == "app"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://id.example.org/"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"exp": int(NOW) - 60},
        {"exp": None},
        {"exp": "soon"},
        {"exp": float("nan")},
        {"exp": True},
        {"nbf": int(NOW) + 600},
        {"iat": int(NOW) + 600},
        {"sub": None},
        {"sub": 7},
    ],
    ids=lambda claims: next(iter(claims)),  # no times: all workers of a run collect the same
)
def test_a_token_with_other_claims_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(TokenRefused):
        checked(token(**claims))


def signed_with_a_secret(secret: bytes, kid: str) -> str:
    parts = [json.dumps(each).encode() for each in ({"alg": "HS256", "kid": kid}, CLAIMS)]
    parts = [base64.urlsafe_b64encode(each).rstrip(b"=") for each in parts]
    signature = hmac.digest(secret, b".".join(parts), "sha256")
    parts.append(base64.urlsafe_b64encode(signature).rstrip(b"="))
    return b".".join(parts).decode()


def test_a_token_that_is_not_signed_by_a_public_key_is_refused() -> None:
    body = token().split(".")[1]
    none = base64.urlsafe_b64encode(b'{"alg":"none","kid":"rsa"}').decode().rstrip("=")
    changed = token()[:-8] + "AAAAAAAA"
    other = RSAKey.generate_key(2048, {"kid": "rsa"}, private=True)
    unknown = RSAKey.generate_key(2048, {"kid": "elsewhere"}, private=True)
    for bad in (
        f"{none}.{body}.",
        signed_with_a_secret(RSA.as_pem(private=False), "rsa"),
        signed_with_a_secret(b"", "rsa"),
        changed,
        token(other),
        token(unknown),
        "",
        "a.b.c",
        "a" * 5000,
        ".".join([none, "e30", ""]),
    ):
        with pytest.raises(TokenRefused):
            checked(bad)


def test_a_token_that_lives_for_ever_ends_some_day() -> None:
    keys = parse_keys(json.dumps(KEYS).encode())
    valid = check_token(token(exp=10**400), keys, SETTINGS, NOW)
    assert valid.expires_at_ms < 1 << 50


def test_keys_that_are_secret_weak_or_for_something_else_are_left_out() -> None:
    short = base64.urlsafe_b64encode(b"\xff" * 128).decode().rstrip("=")
    secret = OctKey.import_key("s" * 32, {"kid": "secret"})
    given: list[Any] = [
        *KEYS["keys"],
        {"kty": "RSA", "kid": "weak", "n": short, "e": "AQAB"},
        secret.as_dict(private=True),
        {**RSA.as_dict(private=False), "kid": "for encryption", "use": "enc"},
        {"kty": "new"},
        {"kty": "RSA"},
        {"kty": []},
        7,
    ]
    keys = parse_keys(json.dumps({"keys": given}).encode())
    assert {key.kid for key in keys} == {"rsa", "ec"}
    with pytest.raises(TokenRefused):
        checked(token(secret, "HS256"), keys)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"{" * 10_000, b"\xff"]
)
def test_a_set_without_keys_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no set|no public key"):
        parse_keys(data)


@pytest.mark.parametrize(
    ("issuer", "audience", "keys", "reason"),
    [
        ("", "kafka", "/keys", "issuer"),
        ("https://id", "", "/keys", "audience"),
        ("https://id", "kafka", "", "keys"),
        ("https://id", "kafka", "http://id.example.org/keys", "use https"),
    ],
)
def test_a_provider_that_cannot_be_trusted_is_refused(
    issuer: str, audience: str, keys: str, reason: str
) -> None:
    with pytest.raises(InvalidTokenSettings, match=reason):
        TokenSettings(issuer, audience, keys)


@pytest.mark.parametrize(
    "name", ["", "a\nb", "a*", "\u00aab", "I\u00adX", "\ud800", "a" * 256, "\u06271"]
)
def test_names_that_clients_may_spell_in_two_ways_are_refused(name: str) -> None:
    with pytest.raises(InvalidUser):
        check_name(name)


@pytest.mark.parametrize("password", ["", "short", "p" * 1025, "\u2168 is nine", "bell\u0007bell"])
def test_passwords_that_cannot_be_used_are_refused_and_not_shown(password: str) -> None:
    with pytest.raises(InvalidUser) as refused:
        check_password("alice", password)
    assert not password or password not in str(refused.value)


def test_what_is_kept_of_users_is_read_again_and_has_no_password() -> None:
    value = USERS.with_("b,o=b", ALICE, b"").encode()
    assert KafkaUsers.decode(value) == USERS.with_("b,o=b", ALICE, b"")
    assert b"wonderland" not in value
    assert "stored_key" not in repr(USERS)
    assert KafkaUsers.decode(b"") == KafkaUsers()
    assert list(USERS.without("alice").credentials) == []
    with pytest.raises(InvalidUser, match="none of that name"):
        USERS.without("bob")


def test_users_that_mean_nothing_are_damage() -> None:
    few = ScramCredential(100, ALICE.keys)
    one = ScramCredential(4096, {SHA_256: ALICE.keys[SHA_256]})
    keys = replace(ALICE.keys[SHA_512], stored_key=b"short")
    short = ScramCredential(4096, {**ALICE.keys, SHA_512: keys})
    for users in (
        KafkaUsers({"alice": few}, b"k" * 32),
        KafkaUsers({"alice": one}, b"k" * 32),
        KafkaUsers({"a*": ALICE}, b"k" * 32),
        KafkaUsers({"alice": ALICE}, b"k"),
        KafkaUsers({"alice": short}, b"k" * 32),
    ):
        with pytest.raises(DamagedMetadata):
            KafkaUsers.decode(users.encode())


def test_users_are_bounded() -> None:
    most = KafkaUsers({f"u{number}": ALICE for number in range(USERS_MAX)})
    with pytest.raises(InvalidUser, match="1000 users"):
        most.with_("one more", ALICE, b"")
