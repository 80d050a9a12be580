"""Where the console listens, and for whom."""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from dlog.console.http_server import (
    CONNECTIONS_MAX,
    FROM_ONE_MAX,
    ConsoleNotServed,
    ConsoleOptions,
    access_of,
    console,
    listen,
)
from dlog.testing import AsyncCluster
from ledger.client import LedgerClient
from ledger.security.certificates import Security
from ledger.security.names import Certificate, certificate_of
from tests.certificates import certificate, put
from tests.waiting import PATIENCE_S, ended


async def test_it_serves_until_it_is_closed_also_if_somebody_watches() -> None:
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as browser:
            async with console(client, ConsoleOptions(round_s=0.05)) as found:
                shown = await browser.get(found.login, follow_redirects=True)
                assert (shown.status_code, str(shown.url)) == (200, found.address)
                async with browser.stream("GET", f"{found.address}live/cluster") as stream:
                    lines = stream.aiter_lines()
                    assert await anext(lines) == "event: page"
            with pytest.raises(httpx.ConnectError):
                await browser.get(found.address)
        await client.close()


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nHost: ", b"POST /login HTTP/1.1\r\nHost: localhost\r\n"]
)
async def test_who_asks_nothing_on_all_connections_keeps_nobody_out(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.console.http_server.BEGIN_S", 0.2)
    async with served_console() as address:
        connections = await opened(address, CONNECTIONS_MAX, begun)
        assert [await ended(reader.read()) for reader, _ in connections] == [b""] * CONNECTIONS_MAX
        monkeypatch.undo()  # a browser on a busy machine is not that quick
        async with httpx.AsyncClient(timeout=PATIENCE_S) as browser:
            assert (await browser.get(f"{address}login")).status_code == 200
        for _, writer in connections:
            writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has all of 127.0.0.0/8")
async def test_who_takes_all_connections_of_one_address_keeps_nobody_else_out() -> None:
    async with served_console() as address, httpx.AsyncClient(timeout=PATIENCE_S) as browser:
        connections = await opened(address, CONNECTIONS_MAX, b"", here="127.0.0.2")
        assert (await browser.get(f"{address}login")).status_code == 200
        refused = [reader for reader, _ in connections[FROM_ONE_MAX:]]
        assert {await ended(each.read()) for each in refused} == {b""}
        for _, writer in connections[:FROM_ONE_MAX]:
            writer.close()
            await writer.wait_closed()
        [(reader, writer)] = await opened(address, 1, b"GET / HTTP/1.0\r\n\r\n", here="127.0.0.2")
        assert (await ended(reader.read())).startswith(b"HTTP/1.1 421")
        for _, each in [*connections[FROM_ONE_MAX:], (reader, writer)]:
            each.close()


async def test_who_does_not_go_on_after_an_answer_is_shut_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.console.http_server.BEGIN_S", 1000.0)
    async with served_console() as address:
        asked = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
        [(reader, writer)] = await opened(address, 1, asked)
        assert await ended(reader.readuntil(b"</svg>"))
        monkeypatch.setattr("dlog.console.http_server.BEGIN_S", 0.2)  # from the next answer on
        writer.write(asked)
        assert await ended(reader.readuntil(b"</svg>"))
        writer.write(b"GET / HT")
        assert (await ended(reader.read())).strip() == b""
        writer.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone has that")
def test_a_browser_that_is_gone_without_a_word_is_waited_for_half_a_minute() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


async def test_a_form_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.console.change_pages.FORM_S", 0.2)
    async with served_console() as address:
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nto"
        [(reader, writer)] = await opened(address, 1, head)
        assert (await ended(reader.readline())) == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()


@asynccontextmanager
async def served_console() -> AsyncIterator[str]:
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri)
        async with console(client, ConsoleOptions()) as found:
            yield found.address
        await client.close()


async def opened(
    address: str, count: int, begun: bytes, here: str = "127.0.0.1"
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open so many connections from *here*, and send *begun* on each."""
    where = urlsplit(address)
    made = [
        await asyncio.open_connection(where.hostname, where.port, local_addr=(here, 0))
        for _ in range(count)
    ]
    for _, writer in made:
        writer.write(begun)
    return made


async def test_a_port_that_is_taken_is_said_so() -> None:
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            options = ConsoleOptions(port=taken.getsockname()[1])
            with pytest.raises(ConsoleNotServed, match="in use"):
                async with console(client, options):
                    pass
        await client.close()


async def test_a_renewed_certificate_is_shown_to_the_next_browser(tmp_path: Path) -> None:
    settings = put(tmp_path, certificate("console"))
    security = Security(settings, look_s=0.0)
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri)
        async with console(client, ConsoleOptions(tls=True), security=security) as found:
            assert not (await ended(shown_at(found.address, settings.ca))).dns
            put(tmp_path, certificate("renewed", hosts=("renewed.example",)))
            renewed = await ended(shown_at(found.address, settings.ca))
            assert renewed.dns == ("renewed.example",)
        await client.close()


async def test_browsers_are_asked_for_no_certificate(tmp_path: Path) -> None:
    """They would ask the person in front of them which one to show, and none lets anybody in."""
    settings = put(tmp_path, certificate("console"))
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri)
        security = Security(settings)
        async with console(client, ConsoleOptions(tls=True), security=security) as found:
            for name in (None, "localhost"):
                assert not await ended(asks_for_a_certificate(found.address, settings.ca, name))
        await client.close()
    listening = await asyncio.start_server(
        lambda *_: None, "127.0.0.1", 0, ssl=security.open_server()
    )
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        address = f"https://127.0.0.1:{port}/"
        assert await ended(asks_for_a_certificate(address, settings.ca, None)), "metrics do"


async def asks_for_a_certificate(address: str, ca: str, name: str | None) -> bool:
    seen = set()
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    context._msg_callback = lambda *said: seen.add(said[4])  # type: ignore[attr-defined]
    where = urlsplit(address)
    _, writer = await asyncio.open_connection(
        where.hostname, where.port, ssl=context, server_hostname=name or ""
    )
    writer.transport.abort()
    assert any(getattr(each, "name", "") == "CERTIFICATE" for each in seen), seen
    return any(getattr(each, "name", "") == "CERTIFICATE_REQUEST" for each in seen)


async def shown_at(address: str, ca: str) -> Certificate:
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    where = urlsplit(address)
    _, writer = await asyncio.open_connection(where.hostname, where.port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert()
    writer.transport.abort()
    return certificate_of(found)


def test_elsewhere_it_wants_tls_and_a_token() -> None:
    with pytest.raises(ConsoleNotServed, match="needs TLS"):
        access_of(ConsoleOptions(host="0.0.0.0"))
    access = access_of(ConsoleOptions(host="0.0.0.0", tls=True, hosts=["Console.example"]))
    assert access.secure
    assert len(access.token) >= 32
    assert "console.example" in access.hosts


def test_here_it_wants_a_token_too_which_works_once_in_an_address() -> None:
    made, given = access_of(ConsoleOptions()), access_of(ConsoleOptions(token="x" * 16))
    assert len(made.token) >= 32
    assert len(made.once) >= 32
    assert made.once != made.token
    assert (given.token, given.once) == ("x" * 16, "")
    with pytest.raises(ConsoleNotServed, match="fewer than 16"):
        access_of(ConsoleOptions(token="short"))
