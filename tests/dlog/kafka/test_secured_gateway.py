"""A gateway with TLS: who may come, and what their grants let them do."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import dlog.testing
from dlog.aio.namespace_connection import connect
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.wire import API_VERSIONS
from ledger.security.access import Grant, Role
from ledger.security.certificates import Security
from ledger.security.documents import change_rules
from ledger.security.settings import TlsMode
from tests.certificates import certificate, put
from tests.dlog.kafka.test_wire import request_frame
from tests.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.slow


@asynccontextmanager
async def secured(directory: Path, mode: TlsMode = TlsMode.REQUIRED) -> AsyncIterator[Gateway]:
    security = Security(put(directory / "gateway", certificate("gateway"), mode=mode), serves=True)
    async with dlog.testing.cluster() as cluster:
        ledgers = await connect(cluster.uri)
        try:
            async with gateway(ledgers, GatewayOptions(port=0), security=security) as running:
                yield running
        finally:
            await ledgers.close()


def settings(running: Gateway, directory: Path, who: str | None) -> dict[str, Any]:
    """Return those of a client with the certificate of *who*; None: without one."""
    files = put(directory / str(who), certificate(who or "nobody"))
    given = {
        "bootstrap.servers": running.address,
        "security.protocol": "SSL",
        "ssl.ca.location": files.ca,
    }
    if who is None:
        return given
    return {**given, "ssl.certificate.location": files.cert, "ssl.key.location": files.key}


async def grant(running: Gateway, who: str, role: Role, logs: str) -> None:
    rule = Grant(f"cn:{who}", role, logs)
    await change_rules(running.ledgers.store, lambda rules: rules.granted(rule), by="a test")

    async def known() -> bool:
        return rule in running.access.rules.grants

    await eventually(known)


def produce(client: dict[str, Any], topic: str, value: bytes) -> str:
    """Return the name of the error; nothing if there was none."""
    producer = Producer({**client, "message.timeout.ms": round(PATIENCE_S * 1000)})
    found: list[str] = []
    producer.produce(
        topic,
        value,
        partition=0,
        on_delivery=lambda error, _: found.append(error.name() if error else ""),
    )
    producer.flush(PATIENCE_S)
    return found[0]


def consume(client: dict[str, Any], topic: str) -> str:
    """Return the first value, or the name of the error."""
    more = {"group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**client, **more})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        error = message.error()
        return str(error.name() if error else message.value().decode())
    finally:
        consumer.close()


async def answer(running: Gateway, context: ssl.SSLContext | None) -> bytes:
    """Return what a client gets that asks for versions and shows no certificate."""
    reader, writer = await asyncio.open_connection(running.host, running.port, ssl=context)
    try:
        frame = request_frame(API_VERSIONS, 0, {})
        writer.write(len(frame).to_bytes(4, "big") + frame)
        return await reader.read()
    except OSError:
        return b""
    finally:
        writer.transport.abort()


async def test_a_client_may_do_what_its_certificate_was_granted(tmp_path: Path) -> None:
    async with secured(tmp_path) as running:
        writer = settings(running, tmp_path, "writer")
        reader = settings(running, tmp_path, "reader")
        await grant(running, "writer", Role.WRITER, "orders*")
        await grant(running, "reader", Role.READER, "orders")
        assert await asyncio.to_thread(produce, writer, "orders", b"1") == ""
        assert await asyncio.to_thread(consume, reader, "orders") == "1"
        refused = "TOPIC_AUTHORIZATION_FAILED"
        assert await asyncio.to_thread(produce, reader, "orders", b"2") == refused
        assert await asyncio.to_thread(produce, writer, "others", b"1") == refused
        assert await asyncio.to_thread(produce, writer, "orders-archive", b"1") == ""
        admin = AdminClient(reader)
        listed = await asyncio.to_thread(admin.list_topics, "orders-archive", PATIENCE_S)
        assert listed.topics["orders-archive"].error.name() == refused


async def test_topics_are_changed_by_writers_and_listed_for_readers(tmp_path: Path) -> None:
    async with secured(tmp_path) as running:
        await grant(running, "writer", Role.WRITER, "orders")
        await grant(running, "reader", Role.READER, "others")
        writer = AdminClient(settings(running, tmp_path, "writer"))
        reader = AdminClient(settings(running, tmp_path, "reader"))
        for topic, admin, allowed in (
            ("orders", writer, True),
            ("others", writer, False),
            ("others", reader, False),
        ):
            future = admin.create_topics([NewTopic(topic, 1, 3)])[topic]
            if allowed:
                await asyncio.to_thread(future.result, PATIENCE_S)
            else:
                with pytest.raises(KafkaException, match="dlog access grant"):
                    await asyncio.to_thread(future.result, PATIENCE_S)
        for admin, seen in ((writer, {"orders"}), (reader, set())):
            listed = await asyncio.to_thread(admin.list_topics, None, PATIENCE_S)
            assert set(listed.topics) == seen


async def test_who_shows_no_certificate_or_speaks_without_tls_does_not_get_in(
    tmp_path: Path,
) -> None:
    async with secured(tmp_path) as running:
        context = ssl.create_default_context(cafile=put(tmp_path, certificate("nobody")).ca)
        for tls in (None, context):
            assert await answer(running, tls) == b""
        await until(lambda: running.listener.refusals == 2)


async def test_where_tls_is_optional_everybody_may_do_everything(tmp_path: Path) -> None:
    async with secured(tmp_path, TlsMode.OPTIONAL) as running:
        plain = {"bootstrap.servers": running.address}
        with_tls = settings(running, tmp_path, "anybody")
        assert await asyncio.to_thread(produce, plain, "t", b"1") == ""
        assert await asyncio.to_thread(consume, with_tls, "t") == "1"


async def test_a_grant_that_is_revoked_counts_from_the_next_request_on(tmp_path: Path) -> None:
    async with secured(tmp_path) as running:
        writer = settings(running, tmp_path, "writer")
        await grant(running, "writer", Role.WRITER, "t")
        assert await asyncio.to_thread(produce, writer, "t", b"1") == ""
        rule = Grant("cn:writer", Role.WRITER, "t")
        await change_rules(running.ledgers.store, lambda rules: rules.revoked(rule), by="a test")

        async def forgotten() -> bool:
            return not running.access.rules.grants

        await eventually(forgotten)
        refused = await asyncio.to_thread(produce, writer, "t", b"2")
        assert refused == "TOPIC_AUTHORIZATION_FAILED"
