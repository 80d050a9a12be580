"""Metrics by HTTPS: health for everybody, metrics for who shows a certificate."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledger.metering.declaration import Exposed, MetricRegistry
from ledger.metering.http_server import MetricsServer, ServingLimits, address_of, served
from ledger.security.certificates import Security
from ledger.security.settings import TlsMode
from tests.certificates import authority, certificate, put
from tests.waiting import PATIENCE_S

HOST = "127.0.0.1"
NEVER_S = 3600.0


@asynccontextmanager
async def serving(security: Security) -> AsyncIterator[str]:
    """Yield the address that is told."""
    declared: MetricRegistry[None] = MetricRegistry()
    declared.counter("dlog_things_total", "Things.", lambda _: 7)
    exposed, told = Exposed(), list[str]()
    exposed.add(declared)
    with served(exposed, HOST, 0, told.append, security=security):
        yield told[0]


async def get(address: str, path: str, context: ssl.SSLContext | None) -> tuple[int, str]:
    port = int(address.removesuffix("/metrics").rpartition(":")[2])
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.transport.abort()
    return int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]


def believing(name: str = "authority") -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority(name).cert.decode())


async def test_metrics_are_for_those_with_a_certificate_and_health_for_all(tmp_path: Path) -> None:
    security = Security(put(tmp_path, certificate("bookie")), serves=True)
    known = believing()
    known.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with serving(security) as address:
        assert "https://127.0.0.1:" in address
        status, page = await get(address, "/metrics", known)
        assert (status, "dlog_things_total 7.0" in page) == (200, True)
        (expires,) = re.findall(r"^dlog_tls_certificate_expires_seconds (\S+)$", page, re.MULTILINE)
        assert float(expires) == security.certificate.expires_at
        refused = (403, "metrics are for those who show a certificate\n")
        assert await get(address, "/metrics", believing()) == refused
        assert (await get(address, "/healthz", believing()))[0] == 200
        assert await get(address, "/healthz", None) == (403, "TLS is required: use https://\n")


async def test_a_connection_ends_with_its_answer(tmp_path: Path) -> None:
    security = Security(put(tmp_path, certificate("bookie")), serves=True)
    limits = ServingLimits(answer_s=NEVER_S, alive_s=PATIENCE_S)
    server = MetricsServer(Exposed(), limits, security=security)
    address = address_of(HOST, server.start(HOST, 0), tls=True)
    try:
        for _ in range(20):
            assert (await get(address, "/healthz", believing()))[0] == 200
    finally:
        server.close()


async def test_a_certificate_that_is_not_believed_is_worse_than_none(tmp_path: Path) -> None:
    security = Security(put(tmp_path / "bookie", certificate("bookie")), serves=True)
    put(tmp_path / "other", certificate("x", by="other"))
    stranger = believing()
    stranger.load_cert_chain(tmp_path / "other" / "cert.pem", tmp_path / "other" / "key.pem")
    async with serving(security) as address:
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await get(address, "/metrics", stranger)


async def test_while_a_cluster_changes_over_metrics_stay_plain(tmp_path: Path) -> None:
    security = Security(put(tmp_path, certificate("b"), mode=TlsMode.OPTIONAL), serves=True)
    async with serving(security) as address:
        assert "http://127.0.0.1:" in address
        assert (await get(address, "/metrics", None))[0] == 200
