"""A bookie with TLS: who gets in, who does not, and what both ends say of it."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie.server.limits import ClientLimits
from dlog.tls.authority import Issued
from ledger.requests import ReadQuery, Status
from ledger.security.certificates import AGE_S_MAX, LOOK_S, Security
from ledger.security.settings import Takes, TlsMode
from ledger.transport.handshake import Hello, Purpose, encode_hello
from ledger.transport.sockets import SocketTransport
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.certificates import authority, certificate, put
from tests.ledger.serving import (
    BOOKIE,
    Answers,
    Bookie,
    Secured,
    add,
    secured,
    silent_server,
    until,
)
from tests.waiting import PATIENCE_S


def of_bookie(directory: Path, mode: TlsMode = TlsMode.REQUIRED, name: str = BOOKIE) -> Security:
    return Security(put(directory / "bookie", certificate(name, bookie=name), mode=mode))


def of_client(
    directory: Path,
    mode: TlsMode = TlsMode.REQUIRED,
    *,
    age_s_max: float = AGE_S_MAX,
    look_s: float = LOOK_S,
) -> Security:
    settings = put(directory / "client", certificate("writer"), mode=mode)
    return Security(settings, age_s_max=age_s_max, look_s=look_s)


@asynccontextmanager
async def served(
    security: Security | None, limits: ClientLimits | None = None
) -> AsyncIterator[Bookie]:
    if security is not None:
        token = secured.set(Secured(security, security))
        bookie = Bookie(MemoryStorage(), limits=limits)
        secured.reset(token)
    else:
        bookie = Bookie(MemoryStorage())
    await bookie.start()
    try:
        yield bookie
    finally:
        await bookie.stop()


@asynccontextmanager
async def from_client(
    bookie: Bookie, security: Security | None, takes: Takes | None = None
) -> AsyncIterator[SocketTransport]:
    transport = SocketTransport(
        lambda _: bookie.address, timeout_s=PATIENCE_S, security=security, takes=lambda _: takes
    )
    try:
        yield transport
    finally:
        await transport.close()


async def test_handlers_know_who_asks_and_who_adds(tmp_path: Path) -> None:
    async with (
        served(of_bookie(tmp_path)) as bookie,
        from_client(bookie, of_client(tmp_path)) as transport,
    ):
        assert await add(transport, run_of(0)) is Status.OK
        assert await transport.info(BOOKIE) is not None
        handlers = [each._handler for each in bookie.server.connections]
        identities = [str(each._connection.identity) for each in handlers if each is not None]
        assert identities == ["cn:writer", "cn:writer"]


async def test_a_plain_client_hears_that_tls_is_needed_and_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(of_bookie(tmp_path)) as bookie, from_client(bookie, None) as transport:
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None
        assert bookie.storage.ledgers == {}
    assert "bookie b1 takes TLS only; set DLOG_TLS=required, and DLOG_TLS_CA" in caplog.text


async def test_a_client_with_tls_hears_that_the_bookie_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = of_client(tmp_path)
    async with served(None) as bookie:
        async with from_client(bookie, client, Takes.PLAIN) as transport:
            assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert "takes plain connections only, and here TLS is required" in caplog.text
        async with from_client(bookie, client, None) as transport:  # nothing is known of it
            assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert "the other end speaks TLS" in caplog.text, "at the bookie"
        assert bookie.storage.ledgers == {}


async def test_a_client_of_another_authority_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = put(tmp_path / "foreign", certificate("writer", by="other"), ca=authority("other"))
    believing = put(
        tmp_path / "believing", certificate("writer", by="other"), ca=both_authorities()
    )
    async with served(of_bookie(tmp_path)) as bookie:
        async with from_client(bookie, Security(foreign)) as transport:
            assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert "its certificate is not believed here" in caplog.text
        async with from_client(bookie, Security(believing)) as transport:
            assert await add(transport, run_of(0)) is Status.UNREACHABLE
            assert await transport.info(BOOKIE) is None
        assert "it may not believe our certificate; its log says why" in caplog.text
        assert bookie.storage.ledgers == {}


def both_authorities() -> Issued:
    ours, other = authority("authority"), authority("other")
    return replace(ours, cert=ours.cert + other.cert)


async def test_a_client_without_a_certificate_gets_nothing(tmp_path: Path) -> None:
    context = ssl.create_default_context(cadata=authority("authority").cert.decode())
    context.check_hostname = False
    async with served(of_bookie(tmp_path)) as bookie:
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            await said_by(bookie, context)
        assert not bookie.server.connections


async def said_by(bookie: Bookie, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", bookie.port, ssl=context)
    try:
        writer.write(encode_hello(Hello(Purpose.ASKS, BOOKIE)))
        return await reader.readexactly(1)
    finally:
        writer.transport.abort()


async def test_a_bookie_with_the_certificate_of_another_one_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is on the same host, and its certificate is good: it is another one's all the same."""
    async with (
        served(of_bookie(tmp_path, name="b2")) as bookie,
        from_client(bookie, of_client(tmp_path)) as transport,
    ):
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None
        assert bookie.storage.ledgers == {}
    assert "its certificate is that of bookie b2, not b1" in caplog.text


async def test_a_certificate_for_the_host_will_do_for_a_bookie_that_none_names(
    tmp_path: Path,
) -> None:
    at_host = Security(put(tmp_path / "host", certificate("host")))
    elsewhere = Security(put(tmp_path / "away", certificate("away", hosts=("b1.example",))))
    client = of_client(tmp_path)
    async with served(at_host) as bookie, from_client(bookie, client) as transport:
        assert await add(transport, run_of(0)) is Status.OK
    async with served(elsewhere) as bookie, from_client(bookie, client) as transport:
        assert await add(transport, run_of(0)) is Status.UNREACHABLE


async def test_while_a_cluster_changes_over_a_bookie_takes_both(tmp_path: Path) -> None:
    async with served(of_bookie(tmp_path, TlsMode.OPTIONAL)) as bookie:
        async with from_client(bookie, None, Takes.BOTH) as transport:
            assert await add(transport, run_of(0)) is Status.OK
        client = of_client(tmp_path, TlsMode.OPTIONAL)
        async with from_client(bookie, client, Takes.BOTH) as transport:
            assert await add(transport, run_of(1)) is Status.OK
            assert [each.is_secured for each in bookie.server.connections] == [True]


async def test_a_client_that_changes_over_uses_a_bookie_that_has_not(tmp_path: Path) -> None:
    client = of_client(tmp_path, TlsMode.OPTIONAL)
    async with served(None) as bookie, from_client(bookie, client, Takes.PLAIN) as transport:
        assert await add(transport, run_of(0)) is Status.OK


async def test_connections_are_exchanged_after_a_renewal_without_a_lost_add(tmp_path: Path) -> None:
    client = of_client(tmp_path, look_s=0.0)
    answers = Answers()
    async with served(of_bookie(tmp_path)) as bookie, from_client(bookie, client) as transport:
        storage = bookie.storage
        assert await add(transport, run_of(0)) is Status.OK
        assert await transport.info(BOOKIE) is not None
        old = list(bookie.server.connections)
        storage.gate.clear()
        transport.add(BOOKIE, run_of(1), answers.expect("before"))
        await until(lambda: 1 in storage.ledgers[7])
        put(tmp_path / "client", certificate("renewed"))
        transport._look()
        transport.add(BOOKIE, run_of(2), answers.expect("after"))
        following = transport._links[BOOKIE].session
        assert following is not None
        await until(lambda: following._connection.is_ready)
        for _ in range(3):  # what was sent by now is there when these are answered
            assert await transport.info(BOOKIE) is not None
        assert 2 not in storage.ledgers[7], "adds stay in order"
        storage.gate.set()
        assert await answers.wait(2) == [("before", Status.OK), ("after", Status.OK)]
        assert (await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 2))).status is Status.OK
        await until(lambda: not any(each in old for each in bookie.server.connections))
        assert {str(each.identity) for each in bookie.server.connections} == {"cn:renewed"}


async def test_connections_are_exchanged_when_they_are_old(tmp_path: Path) -> None:
    client = of_client(tmp_path, age_s_max=0.0)
    async with served(of_bookie(tmp_path)) as bookie, from_client(bookie, client) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        old = set(bookie.server.connections)
        transport._look()
        await until(lambda: not old & set(bookie.server.connections))
        assert await add(transport, run_of(1)) is Status.OK


async def test_a_connection_ends_when_the_certificate_it_was_made_with_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = of_client(tmp_path)
    async with served(of_bookie(tmp_path)) as bookie, from_client(bookie, client) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        tomorrow = SimpleNamespace(time=lambda: client.certificate.expires_at + 1)
        monkeypatch.setattr("bookie.server.listener.time", tomorrow)
        bookie.server._look()
        await until(lambda: not bookie.server.connections)
    assert "its certificate has expired" in caplog.text
    assert "identity='cn:writer'" in caplog.text


async def test_a_stranger_that_says_nothing_is_shown_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ClientLimits(handshake_s_max=0.05)
    async with served(of_bookie(tmp_path), limits) as bookie:
        reader, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
        assert await reader.read() == b""
        writer.close()
        assert not bookie.server.connections, "it is none before it is known"
    assert "it said nothing within" in caplog.text


async def from_(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))


async def test_strangers_of_one_address_are_bounded(tmp_path: Path) -> None:
    async with served(of_bookie(tmp_path), ClientLimits(pending_handshakes_max=8)) as bookie:
        strangers = [await from_("127.0.0.1", bookie.port) for _ in range(3)]
        assert await strangers[2][0].read() == b""
        (reader, writer) = await from_("127.0.0.2", bookie.port)
        writer.write(encode_hello(Hello(Purpose.ASKS, "b1")))
        assert await reader.read(), "others are heard"
        writer.close()
        for _, stranger in strangers:
            stranger.close()


async def test_the_oldest_stranger_makes_room_for_one_too_many(tmp_path: Path) -> None:
    async with served(of_bookie(tmp_path), ClientLimits(pending_handshakes_max=4)) as bookie:
        strangers = [await from_(f"127.0.0.{at}", bookie.port) for at in range(1, 6)]
        assert await strangers[0][0].read() == b""
        assert not strangers[1][0].at_eof()
        for _, writer in strangers:
            writer.close()


async def test_a_bookie_stops_at_once_beside_strangers(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        async with served(of_bookie(tmp_path)) as bookie:
            stranger.connect(("127.0.0.1", bookie.port))
    async with silent_server() as address, from_address(address, of_client(tmp_path)) as transport:
        assert await add(transport, run_of(0)) is Status.UNREACHABLE


@asynccontextmanager
async def from_address(address: str, security: Security) -> AsyncIterator[SocketTransport]:
    transport = SocketTransport(lambda _: address, timeout_s=0.2, security=security)
    try:
        yield transport
    finally:
        await transport.close()


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
