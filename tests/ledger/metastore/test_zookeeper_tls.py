"""The store on ZooKeeper through mutual TLS, as `ca`, `cert` and `key` of the URI ask for."""

import asyncio
import gc
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlog.local import zookeeper
from dlog.local.zookeeper import ManagedZooKeeper
from ledger.errors import MetadataUnavailable
from ledger.metastore import open_store
from tests.waiting import TEST_S

pytestmark = [
    pytest.mark.zookeeper,
    # kazoo leaves the sockets of failed handshakes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates"),
]


@dataclass(frozen=True, slots=True)
class Identity:
    cert: Path
    key: Path


class TlsZooKeeper(ManagedZooKeeper):
    """A server that also listens for TLS, and wants a certificate of its clients."""

    def __init__(self, directory: Path, own: Identity, ca: Path) -> None:
        super().__init__(directory)
        self._own, self._ca = own, ca
        self.tls_port = zookeeper._free_port()

    def _configuration(self) -> str:
        store = self.directory / "server.pem"
        store.write_text(self._own.cert.read_text() + self._own.key.read_text())
        return super()._configuration() + (
            f"secureClientPort={self.tls_port}\n"
            "secureClientPortAddress=127.0.0.1\n"
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"ssl.keyStore.location={store}\n"
            f"ssl.trustStore.location={self._ca}\n"
            "ssl.clientAuth=need\n"
        )


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, Identity]:
    ca = make_identity(tmp_path, "ca", None)
    stranger_ca = make_identity(tmp_path, "stranger-ca", None)
    return {
        "ca": ca,
        "server": make_identity(tmp_path, "server", ca),
        "client": make_identity(tmp_path, "client", ca),
        "stranger": make_identity(tmp_path, "stranger", stranger_ca),
        "stranger-ca": stranger_ca,
    }


@pytest.fixture
def server(
    tmp_path: Path, certificates: dict[str, Identity], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TlsZooKeeper]:
    needed = ("codec", "resolver", "transport", "tcnative-classes")
    more = tuple(f"netty-{part}-*.jar" for part in needed)
    monkeypatch.setattr(zookeeper, "_JARS", zookeeper._JARS + more)
    server = TlsZooKeeper(tmp_path / "zookeeper", certificates["server"], certificates["ca"].cert)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def test_both_sides_must_show_a_certificate_of_the_ca(
    server: TlsZooKeeper, certificates: dict[str, Identity]
) -> None:
    ca, client = certificates["ca"], certificates["client"]
    stranger, stranger_ca = certificates["stranger"], certificates["stranger-ca"]
    address = f"zk://127.0.0.1:{server.tls_port}/ns"

    async def scenario() -> None:
        store = await open_store(f"{address}?ca={ca.cert}&cert={client.cert}&key={client.key}")
        await store.create("/a", b"v")
        assert (await store.get("/a")).value == b"v"
        await store.close()
        for refused in (
            f"{address}?ca={ca.cert}",
            f"{address}?ca={ca.cert}&cert={stranger.cert}&key={stranger.key}",
            f"{address}?ca={stranger_ca.cert}&cert={client.cert}&key={client.key}",
            address,
        ):
            with pytest.raises(MetadataUnavailable):
                await open_store(refused, timeout_s=1.0)

    asyncio.run(scenario())
    gc.collect()  # here, where the warnings are expected


def make_identity(directory: Path, name: str, ca: Identity | None) -> Identity:
    made = Identity(directory / f"{name}.pem", directory / f"{name}-key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "1", "-subj", f"/CN={name}", "-out", str(made.cert)]
    command += ["-keyout", str(made.key), "-addext", "subjectAltName=IP:127.0.0.1"]
    if ca is not None:
        command += ["-CA", str(ca.cert), "-CAkey", str(ca.key)]
        command += ["-addext", "basicConstraints=CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True, timeout=TEST_S)
    return made
