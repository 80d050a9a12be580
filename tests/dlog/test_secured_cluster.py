"""A whole cluster in which everything has TLS: bookies, operators, metrics, repair, ZooKeeper."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from dlog.local.cluster import MANAGED, LocalCluster
from dlog.local.errors import JavaMissing, ZooKeeperMissing
from ledger.client import LedgerClient
from ledger.cluster import make_namespace
from ledger.errors import MetadataUnavailable, TransportMismatch
from ledger.metastore import open_store
from ledger.metastore.zookeeper import ZooKeeperStore
from ledger.quorum import Quorum
from ledger.security.settings import TlsSettings
from ledger.transport.operator import BookieOperator
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, TEST_S

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]


def told(cluster: LocalCluster, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run ``dlog`` as a user does who has put the printed lines into the environment."""
    return subprocess.run(
        [sys.executable, "-m", "dlog.cli", *command],
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
    )


async def test_in_a_cluster_with_tls_everything_has_it(tmp_path: Path) -> None:
    try:
        async with LocalCluster(
            tmp_path, bookies=2, zookeeper=MANAGED, tls=True, metrics=("127.0.0.1", 0)
        ) as cluster:
            await everything_has_it(cluster)
    except (JavaMissing, ZooKeeperMissing) as error:
        pytest.skip(str(error))


async def everything_has_it(cluster: LocalCluster) -> None:
    client = await LedgerClient.connect(cluster.uri, replace(PATIENT, tls=cluster.client_tls))
    try:
        writer = await client.create(Quorum(2, 2, 2))
        assert await writer.add(b"secret") == 0
        await writer.close()
        reader = await client.open(writer.ledger_id)
        assert [bytes(each.payload) for each in await reader.read(0, 0)] == [b"secret"]
        for found in client.bookies.available():
            async with BookieOperator(
                found.operator_address,
                bookie=found.bookie,
                security=client.security,
                takes=found.takes,
            ) as operator:
                status = await operator.status()
                assert status.bookie == found.bookie
                assert status.certificate.begins_s < time.time() < status.certificate.expires_s
            with pytest.raises(TransportMismatch):
                BookieOperator(found.operator_address, bookie=found.bookie, takes=found.takes)
    finally:
        await client.close()
    settings = cluster.client_tls
    listed = told(cluster, "bookie", "status", "--json")
    assert listed.returncode == 0, listed.stderr
    names = {json.loads(line).get("bookie") for line in listed.stdout.splitlines()}
    assert names >= {bookie.name for bookie in cluster.bookies()}
    context = ssl.create_default_context(cafile=settings.ca)
    context.load_cert_chain(settings.cert, settings.key)
    page = await asyncio.to_thread(page_at, cluster.metrics["bookie-0"], context)
    assert b"dlog_tls_certificate_expires_seconds" in page
    with pytest.raises(MetadataUnavailable):
        await open_store(cluster.uri, timeout_s=1.0)
    for name in ("bookie-0", "tls", "zookeeper"):
        assert (cluster.directory / name).stat().st_mode & 0o777 == 0o700, name
    await nodes_are_for_their_maker_alone(cluster.uri, settings)


def page_at(address: str, context: ssl.SSLContext) -> bytes:
    with urlopen(address, context=context, timeout=PATIENCE_S) as page:
        found: bytes = page.read()
    return found


async def nodes_are_for_their_maker_alone(uri: str, tls: TlsSettings) -> None:
    own, password = uri.replace("/dlog", "/guarded"), "not-to-be-shown"
    file = Path(tls.ca).parent / "auth"
    file.write_text(f"digest:dlog:{password}\n")
    store = await open_store(f"{own}?auth-file={file}", tls=tls)
    assert password not in f"{store.uri} {store!r}"
    assert isinstance(store, ZooKeeperStore)
    await make_namespace(store)
    await store.create("/logs/orders", b"x")
    for path in ("/", "/logs", "/logs/orders"):
        ids = await store.ids(path)
        assert ids
        assert all(each.startswith(("digest:", "x509:")) for each in ids), path
    await store.close()
    stranger = KazooClient(
        hosts=uri.removeprefix("zk://").partition("/")[0],
        use_ssl=True,
        ca=tls.ca,
        certfile=tls.cert,
        keyfile=tls.key,
    )
    stranger.start(timeout=PATIENCE_S)
    try:
        for path in ("/guarded", "/guarded/logs", "/guarded/logs/orders"):
            with pytest.raises(NoAuthError):
                stranger.get(path)
    finally:
        stranger.stop()
        stranger.close()
