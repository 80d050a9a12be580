"""Clients without certificates: the real ones, by password and by token, and what is bounded."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.abc
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from joserfc import jwt
from joserfc.jwk import ECKey
from kafka.net.sasl.oauth import AbstractTokenProvider
from kio.schema.errors import ErrorCode

import dlog.testing
from dlog.aio.namespace_connection import connect
from dlog.kafka import tokens
from dlog.kafka.authentication import InvalidSasl, SaslSettings
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.listener import UNAUTHENTICATED_BYTES_MAX, ListenerLimits
from dlog.kafka.protocol.scram import ScramMechanism, new_credential
from dlog.kafka.protocol.users import USERS_PATH, KafkaUsers
from dlog.kafka.tokens import KeysUnavailable, TokenRefused, TokenSettings, TokenVerifier
from dlog.kafka.wire import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from ledger.metastore.port import MetadataStore
from ledger.security.access import Grant, Role
from ledger.security.certificates import Security
from ledger.security.documents import change_document, change_rules
from ledger.security.settings import TlsMode
from tests.certificates import certificate, put
from tests.dlog.kafka.test_listener import Caller
from tests.dlog.kafka.test_sasl import Client
from tests.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.slow

ISSUER: Final = "https://id.example.org"
PASSWORD: Final = "correct, horse=battery"
KEY: Final = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"}, private=True)
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*SCRAM, "OAUTHBEARER")
BY: Final = "a test"


def token(subject: str = "app", *, lives_s: float = 600.0, key: ECKey = KEY) -> str:
    claims = {"iss": ISSUER, "aud": "kafka", "sub": subject, "exp": time.time() + lives_s}
    return str(jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key, algorithms=["ES256"]))


class Provider:
    """The part of an OpenID provider that has keys, on 127.0.0.1."""

    def __init__(self) -> None:
        self.keys = [KEY]
        self.status = "200 OK"
        self.requests = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        body = json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()
        head = f"HTTP/1.1 {self.status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()


@asynccontextmanager
async def provider() -> AsyncIterator[tuple[Provider, TokenSettings]]:
    running = Provider()
    server = await asyncio.start_server(running.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield running, TokenSettings(ISSUER, "kafka", f"http://127.0.0.1:{port}/keys?v=1")
    finally:
        server.close()
        await server.wait_closed()


async def grant(store: MetadataStore, rule: Grant) -> None:
    await change_rules(store, lambda rules: rules.granted(rule), by=BY)


async def set_user(running: Gateway, name: str, password: str | None) -> None:
    """Give *name* a password, None: remove it; return once the gateway knows."""

    def change(users: KafkaUsers) -> KafkaUsers:
        if password is None:
            return users.without(name)
        salts = {each: f"salt of {each}".encode() for each in ScramMechanism}
        credential = new_credential(password, salts, iterations=4096)
        return users.with_(name, credential, b"k" * 32)

    await change_document(running.ledgers.store, USERS_PATH, KafkaUsers, change, by=BY)

    async def known() -> bool:
        value = (await running.ledgers.store.get(USERS_PATH)).value
        return running.authenticator.users == KafkaUsers.decode(value)

    await eventually(known)


@asynccontextmanager
async def authenticating(
    directory: Path, *, scram: bool = True, limits: ListenerLimits | None = None
) -> AsyncIterator[tuple[Gateway, Provider]]:
    """Yield a gateway for clients with and without TLS, with a user and a provider of tokens; both
    alice and app are writers of the logs that begin with orders."""
    files = put(directory / "gateway", certificate("gateway"), mode=TlsMode.OPTIONAL)
    async with dlog.testing.cluster() as cluster, provider() as (keys, settings):
        ledgers = await connect(cluster.uri)
        sasl = SaslSettings(scram=scram, tokens=settings, without_tls=True)
        options = GatewayOptions(port=0, sasl=sasl, limits=limits or ListenerLimits())
        try:
            for who in ("user:alice", "oidc:app"):
                await grant(ledgers.store, Grant(who, Role.WRITER, "orders*"))
            security = Security(files, serves=True)
            async with gateway(ledgers, options, security=security) as running:
                if scram:
                    await set_user(running, "alice", PASSWORD)
                yield running, keys
        finally:
            await ledgers.close()


Login = tuple[str, str, str]
"""Mechanism, and password or token; file with the authority for TLS, empty: without TLS."""


def confluent_settings(bootstrap: str, login: Login) -> dict[str, Any]:
    mechanism, secret, ca = login
    given: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL" if ca else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if ca:
        given["ssl.ca.location"] = ca
    if mechanism in SCRAM:
        return {**given, "sasl.username": "alice", "sasl.password": secret}
    return {**given, "oauth_cb": lambda _: (secret, time.time() + 300)}


def confluent(bootstrap: str, login: Login, topic: str) -> bytes:
    given = confluent_settings(bootstrap, login)
    producer = Producer(given)
    producer.produce(topic, b"confluent", partition=0)
    assert not producer.flush(PATIENCE_S)
    consumer = Consumer({**given, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        return bytes(message.value())
    finally:
        consumer.close()


class KafkaPythonToken(AbstractTokenProvider):  # type: ignore[misc] # has no types
    def __init__(self, secret: str) -> None:
        super().__init__()
        self.secret = secret

    def token(self) -> str:
        return self.secret


def kafka_python(bootstrap: str, login: Login, topic: str) -> bytes:
    mechanism, secret, ca = login
    given: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL" if ca else "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "ssl_cafile": ca or None,
    }
    if mechanism in SCRAM:
        given |= {"sasl_plain_username": "alice", "sasl_plain_password": secret}
    else:
        given["sasl_oauth_token_provider"] = KafkaPythonToken(secret)
    producer = kafka.KafkaProducer(**given)
    try:
        producer.send(topic, b"kafka-python", partition=0).get(PATIENCE_S)
    finally:
        producer.close(PATIENCE_S)
    consumer = kafka.KafkaConsumer(
        **given, auto_offset_reset="earliest", consumer_timeout_ms=round(PATIENCE_S * 1000)
    )
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        return bytes(next(consumer).value)
    finally:
        consumer.close()


class AioToken(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc] # has no types
    def __init__(self, secret: str) -> None:
        self.secret = secret

    async def token(self) -> str:
        return self.secret


def aio(bootstrap: str, login: Login, topic: str) -> bytes:
    mechanism, secret, ca = login

    async def both() -> bytes:
        given: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_SSL" if ca else "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "ssl_context": ssl.create_default_context(cafile=ca) if ca else None,
        }
        if mechanism in SCRAM:
            given |= {"sasl_plain_username": "alice", "sasl_plain_password": secret}
        else:
            given["sasl_oauth_token_provider"] = AioToken(secret)
        async with aiokafka.AIOKafkaProducer(**given) as producer:
            await producer.send_and_wait(topic, b"aiokafka", partition=0)
        consumer = aiokafka.AIOKafkaConsumer(**given, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            async with asyncio.timeout(PATIENCE_S):
                return bytes((await consumer.getone()).value)
        finally:
            await consumer.stop()

    return asyncio.run(both())


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("client", [confluent, kafka_python, aio])
async def test_each_client_writes_and_reads_by_each_mechanism(
    client: Callable[[str, Login, str], bytes], secured: bool, tmp_path: Path
) -> None:
    ca = str(put(tmp_path / "client", certificate("nobody")).ca) if secured else ""
    async with authenticating(tmp_path) as (running, _):
        for mechanism in MECHANISMS:
            secret = PASSWORD if mechanism in SCRAM else token()
            topic = f"orders-{mechanism}"
            value = await asyncio.to_thread(client, running.address, (mechanism, secret, ca), topic)
            assert value in (b"confluent", b"kafka-python", b"aiokafka")
        outcomes = running.authenticator.outcomes
        assert {mechanism for mechanism, _ in outcomes} == set(MECHANISMS)
        assert {outcome for _, outcome in outcomes} == {"done"}


def refusal(bootstrap: str, login: Login, topic: str = "orders") -> str:
    """Return the name of the error that a client of librdkafka meets as it produces."""
    errors: list[str] = []
    producer = Producer(
        {
            **confluent_settings(bootstrap, login),
            "message.timeout.ms": round(PATIENCE_S * 1000),
            "error_cb": lambda error: errors.append(error.name()),
        }
    )
    producer.produce(topic, b"1", on_delivery=lambda error, _: errors.append(error.name()))
    deadline = time.monotonic() + PATIENCE_S
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    producer.purge()
    return errors[0]


async def test_a_wrong_password_a_foreign_token_and_a_missing_grant_are_refused(
    tmp_path: Path,
) -> None:
    other = ECKey.generate_key("P-256", {"kid": "one"}, private=True)
    async with authenticating(tmp_path) as (running, _):
        for login in (
            ("SCRAM-SHA-256", "something else", ""),
            ("OAUTHBEARER", token(key=other), ""),
            ("OAUTHBEARER", token(lives_s=-300), ""),
        ):
            assert await asyncio.to_thread(refusal, running.address, login) == "_AUTHENTICATION"
        login = ("SCRAM-SHA-256", PASSWORD, "")
        denied = await asyncio.to_thread(refusal, running.address, login, "invoices")
        assert denied == "TOPIC_AUTHORIZATION_FAILED"
        login = ("OAUTHBEARER", token("somebody"), "")
        denied = await asyncio.to_thread(refusal, running.address, login)
        assert denied == "TOPIC_AUTHORIZATION_FAILED"


async def test_who_does_not_authenticate_gets_nothing(tmp_path: Path) -> None:
    async with authenticating(tmp_path) as (running, _):
        admin = AdminClient({"bootstrap.servers": running.address})
        with pytest.raises(KafkaException, match="_TRANSPORT"):
            await asyncio.to_thread(admin.list_topics, None, 2.0)
        assert running.listener.refusals


async def test_a_certificate_is_enough_beside_passwords(tmp_path: Path) -> None:
    async with authenticating(tmp_path) as (running, _):
        rule = Grant("cn:reporter", Role.READER, "orders")
        await grant(running.ledgers.store, rule)
        await until(lambda: rule in running.access.rules.grants)
        files = put(tmp_path / "reporter", certificate("reporter"))
        admin = AdminClient(
            {
                "bootstrap.servers": running.address,
                "security.protocol": "SSL",
                "ssl.ca.location": files.ca,
                "ssl.certificate.location": files.cert,
                "ssl.key.location": files.key,
            }
        )
        listed = await asyncio.to_thread(admin.list_topics, None, PATIENCE_S)
        assert len(listed.brokers) == 1


@asynccontextmanager
async def called(running: Gateway) -> AsyncIterator[Callable[[], Awaitable[Caller]]]:
    callers: list[Caller] = []

    async def call() -> Caller:
        callers.append(Caller(*await asyncio.open_connection(running.host, running.port)))
        return callers[-1]

    try:
        yield call
    finally:
        for each in callers:
            each.writer.close()


async def logged_in(caller: Caller, secret: str) -> Any:
    """Authenticate by a token; return the response."""
    caller.request(SASL_HANDSHAKE, 1, 1, mechanism="OAUTHBEARER")
    _, shaken = await caller.response(SASL_HANDSHAKE, 1)
    assert shaken.error_code is ErrorCode.none
    message = f"n,,\x01auth=Bearer {secret}\x01\x01".encode()
    caller.request(SASL_AUTHENTICATE, 2, 2, auth_bytes=message)
    return (await caller.response(SASL_AUTHENTICATE, 2))[1]


async def test_a_session_lasts_as_long_as_the_token_and_longer_with_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = [round(time.time() * 1000)]
    for module in ("authentication", "listener"):
        monkeypatch.setattr(f"dlog.kafka.{module}.now_ms", lambda: now_ms[0])
    async with authenticating(tmp_path) as (running, _), called(running) as call:
        caller = await call()
        now_ms[0] = round(time.time() * 1000)
        known = await logged_in(caller, token(lives_s=100))
        assert known.error_code is ErrorCode.none
        assert 90 < known.session_lifetime.total_seconds() < 110
        now_ms[0] += 90_000
        caller.request(METADATA, 5, 3, topics=None)
        assert (await caller.response(METADATA, 5))[0] == 3
        again = await logged_in(caller, token(lives_s=500))
        assert again.error_code is ErrorCode.none
        now_ms[0] += 200_000
        caller.request(METADATA, 5, 4, topics=None)
        assert (await caller.response(METADATA, 5))[0] == 4
        now_ms[0] += 400_000
        caller.request(METADATA, 5, 5, topics=None)
        assert await caller.closed() == b""


async def test_who_authenticates_again_as_another_one_is_disconnected(tmp_path: Path) -> None:
    async with authenticating(tmp_path) as (running, _), called(running) as call:
        caller = await call()
        assert (await logged_in(caller, token())).error_code is ErrorCode.none
        other = await logged_in(caller, token("somebody"))
        assert other.error_code is ErrorCode.sasl_authentication_failed
        assert await caller.closed() == b""


async def test_errors_have_kafkas_codes_and_end_the_connection(tmp_path: Path) -> None:
    async with authenticating(tmp_path) as (running, _), called(running) as call:
        caller = await call()
        caller.request(SASL_AUTHENTICATE, 2, 1, auth_bytes=b"n,,n=alice,r=x")
        _, answer = await caller.response(SASL_AUTHENTICATE, 2)
        assert answer.error_code is ErrorCode.illegal_sasl_state
        assert await caller.closed() == b""
        caller = await call()
        caller.request(SASL_HANDSHAKE, 1, 1, mechanism="PLAIN")
        _, shaken = await caller.response(SASL_HANDSHAKE, 1)
        assert shaken.error_code is ErrorCode.unsupported_sasl_mechanism
        assert set(shaken.mechanisms) == set(MECHANISMS)
        assert await caller.closed() == b""
        caller = await call()
        caller.request(SASL_HANDSHAKE, 1, 1, mechanism="SCRAM-SHA-256")
        await caller.response(SASL_HANDSHAKE, 1)
        caller.request(METADATA, 5, 2, topics=None)
        assert await caller.closed() == b""


def is_waiting(running: Gateway, count: int) -> bool:
    return len(running.listener.unauthenticated) == count


async def test_what_is_not_authenticated_is_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    limits = ListenerLimits(unauthenticated_max=8)
    async with authenticating(tmp_path, limits=limits) as (running, _), called(running) as call:
        first, second, third = [await call() for _ in range(3)]
        for number, caller in enumerate((first, second), 1):
            caller.writer.write(b"\0")  # the first byte tells whether it speaks TLS
            await until(partial(is_waiting, running, number))
        third.writer.write(b"\0")
        assert await third.closed() == b""  # a quarter of 8 for one address
        second.writer.write((UNAUTHENTICATED_BYTES_MAX + 1).to_bytes(4, "big")[1:])
        assert await second.closed() == b""
        await until(partial(is_waiting, running, 1))
        first.writer.write((UNAUTHENTICATED_BYTES_MAX + 1).to_bytes(4, "big")[1:])
        assert await first.closed() == b""
        first = await call()
        assert (await logged_in(first, token())).error_code is ErrorCode.none
        await until(lambda: not running.listener.unauthenticated)
        assert len(running.listener.connections) == 1


async def test_who_takes_too_long_to_authenticate_is_disconnected(tmp_path: Path) -> None:
    limits = ListenerLimits(authenticate_s=0.05)
    async with authenticating(tmp_path, limits=limits) as (running, _), called(running) as call:
        caller = await call()
        caller.request(API_VERSIONS, 0, 1)
        await caller.closed()
        await until(lambda: not running.listener.connections)
        assert not running.listener.unauthenticated


async def test_a_user_that_is_removed_or_has_another_password_is_disconnected(
    tmp_path: Path,
) -> None:
    async with authenticating(tmp_path) as (running, _), called(running) as call:
        bearer = await call()
        await logged_in(bearer, token())
        for password, following in ((PASSWORD, "another password"), ("another password", None)):
            caller = await call()
            caller.request(SASL_HANDSHAKE, 1, 1, mechanism="SCRAM-SHA-512")
            await caller.response(SASL_HANDSHAKE, 1)
            client = Client(ScramMechanism.SHA_512, "alice", password)
            first = f"n,,{client.bare}".encode()
            caller.request(SASL_AUTHENTICATE, 2, 2, auth_bytes=first)
            _, challenge = await caller.response(SASL_AUTHENTICATE, 2)
            last = client.last(bytes(challenge.auth_bytes))
            caller.request(SASL_AUTHENTICATE, 2, 3, auth_bytes=last)
            _, known = await caller.response(SASL_AUTHENTICATE, 2)
            assert known.error_code is ErrorCode.none
            await set_user(running, "alice", following)
            assert await caller.closed() == b""
        bearer.request(METADATA, 5, 4, topics=None)
        assert (await bearer.response(METADATA, 5))[0] == 4, "others stay"


async def test_a_key_that_is_new_counts_at_once_and_an_old_one_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    new = ECKey.generate_key("P-256", {"kid": "two"}, private=True)
    async with provider() as (running, settings):
        verifier = TokenVerifier(settings, monotonic_s=lambda: now_s[0])
        await verifier.start()
        try:
            with pytest.raises(TokenRefused):  # read a moment ago: not again for every token
                await verifier.verify(token(key=new))
            assert running.requests == 1
            running.keys = [new]
            now_s[0] += tokens.AGAIN_S
            assert (await verifier.verify(token(key=new))).subject == "app"
            running.status = "503 Service Unavailable"
            now_s[0] += tokens.KEYS_AGE_S_MAX - 1
            assert (await verifier.verify(token(key=new))).subject == "app"
            with pytest.raises(TokenRefused, match="No key"):
                await verifier.verify(token(key=KEY))
            assert verifier.failures == 1
            now_s[0] += 2
            with pytest.raises(TokenRefused, match="for too long"):
                await verifier.verify(token(key=new))
        finally:
            await verifier.close()


async def test_keys_that_cannot_be_read_are_told_as_the_gateway_starts(tmp_path: Path) -> None:
    async with provider() as (running, settings):
        running.status = "404 Not Found"
        with pytest.raises(KeysUnavailable, match="404 Not Found"):
            await TokenVerifier(settings).start()
    with pytest.raises(KeysUnavailable, match="refused"):
        await TokenVerifier(settings).start()
    missing = TokenSettings(ISSUER, "kafka", str(tmp_path / "keys.json"))
    with pytest.raises(KeysUnavailable, match="No such file") as refused:
        await TokenVerifier(missing).start()
    assert refused.value.retryable
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    verifier = TokenVerifier(missing)
    await verifier.start()
    try:
        assert (await verifier.verify(token())).subject == "app"
    finally:
        await verifier.close()


@pytest.mark.parametrize(
    ("sasl", "mode", "reason"),
    [
        (SaslSettings(scram=True), None, "--sasl-without-tls"),
        (SaslSettings(without_tls=True), None, "by no mechanism"),
        (SaslSettings(scram=True, without_tls=True), TlsMode.REQUIRED, "refuses it"),
    ],
)
async def test_settings_that_would_show_secrets_or_do_nothing_are_refused(
    sasl: SaslSettings, mode: TlsMode | None, reason: str, tmp_path: Path
) -> None:
    security = None
    if mode is not None:
        security = Security(put(tmp_path, certificate("gateway"), mode=mode), serves=True)
    async with dlog.testing.cluster() as cluster:
        ledgers = await connect(cluster.uri)
        try:
            with pytest.raises(InvalidSasl, match=reason):
                Gateway(ledgers, GatewayOptions(port=0, sasl=sasl), security=security)
        finally:
            await ledgers.close()
