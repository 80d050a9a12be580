"""Whole bookies that demand to know who asks: what writers, readers and operators meet."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.config import BookieConfig
from dlog.aio import Log
from dlog.aio.admin import rename_log
from dlog.errors import AppendOutcomeUnknown
from ledger.client import LedgerClient
from ledger.errors import AccessDenied, LogError
from ledger.metastore.memory import MemoryHub
from ledger.metastore.port import MetadataStore
from ledger.quorum import Quorum
from ledger.security.access import Grant, Role, Rules
from ledger.security.certificates import Security
from ledger.security.granting import change_rules, read_rules
from ledger.security.settings import TlsMode, TlsSettings
from ledger.transport.operator import BookieOperator
from tests.certificates import certificate, put
from tests.metering.rig import WholeBookie
from tests.namespaces import opened
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, until

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


class Secured:
    """One bookie with TLS, started as the command does."""

    def __init__(self, directory: Path, uri: str, store: MetadataStore, mode: TlsMode) -> None:
        self._directory, self.uri, self._store = directory, uri, store
        own = put(directory / "own", certificate("b1", bookie="b1"), mode=mode)
        self.bookie = WholeBookie(
            BookieConfig(uri=uri, directory=directory / "b1", bookie="b1", tls=own)
        )

    def tls(self, name: str, mode: TlsMode = TlsMode.REQUIRED) -> TlsSettings:
        return put(self._directory / name, certificate(name), mode=mode)

    @asynccontextmanager
    async def client(
        self, name: str, mode: TlsMode = TlsMode.REQUIRED
    ) -> AsyncIterator[LedgerClient]:
        client = await LedgerClient.connect(self.uri, replace(PATIENT, tls=self.tls(name, mode)))
        try:
            await client.bookies.wait_for(1, PATIENCE_S)
            yield client
        finally:
            await client.close()

    async def change(self, grant: Grant, *, revoked: bool = False) -> None:
        """Change the rules, and wait until the bookie goes by them."""
        change = Rules.revoked if revoked else Rules.granted
        await change_rules(self._store, lambda rules: change(rules, grant), by="the test")
        wanted = await read_rules(self._store)
        guard = self.bookie.running.server.guard
        assert guard is not None
        await until(lambda: guard.rules == wanted)


@asynccontextmanager
async def secured(directory: Path, mode: TlsMode = TlsMode.REQUIRED) -> AsyncIterator[Secured]:
    name = f"access-{uuid.uuid4().hex}"
    with MemoryHub().shared(name):
        store = await opened(f"memory://{name}")
        found = Secured(directory, f"memory://{name}", store, mode)
        try:
            await found.bookie.start()
            yield found
        finally:
            await found.bookie.stop()
            await store.close()


async def test_a_log_is_open_to_whom_it_was_granted_and_closed_again_when_that_is_revoked(
    tmp_path: Path,
) -> None:
    async with (
        secured(tmp_path) as cluster,
        cluster.client("app") as app,
        cluster.client("report") as report,
    ):
        log = await Log.open("team/flights", client=app, settings=ONE, heal_s=0)
        with pytest.raises(AppendOutcomeUnknown, match="cn:app is not allowed to append"):
            await log.append(b"first")
        with pytest.raises(AccessDenied, match="grant cn:app writer 'team/flights'"):
            await log.append(b"second")
        with pytest.raises(LogError):
            await log.close()
        with pytest.raises(AccessDenied, match="cn:app is not allowed to recover ledger"):
            await Log.open("team/flights", client=app)
        writes = Grant("cn:app", Role.WRITER, "team/*")
        await cluster.change(writes)
        log = await Log.open("team/flights", client=app)
        await log.append(b"third")
        with pytest.raises(AccessDenied, match="cn:report is not allowed to read ledger"):
            await records(report, "team/flights")
        await cluster.change(Grant("cn:report", Role.READER, "team/flights"))
        assert await records(report, "team/flights") == [b"third"]
        with pytest.raises(AccessDenied, match="that takes the role writer"):
            await Log.open("team/flights", client=report)
        await cluster.change(writes, revoked=True)
        with pytest.raises(AppendOutcomeUnknown, match="cn:app is not allowed to append"):
            await log.append(b"fourth")
        with pytest.raises(LogError):
            await log.close()
        assert await records(report, "team/flights") == [b"third"]
        await rename_log("team/flights", "team/hidden", client=report)
        with pytest.raises(AccessDenied, match="cn:report is not allowed to read"):
            await until_denied(report, "team/hidden")


async def records(client: LedgerClient, name: str) -> list[bytes]:
    async with await Log.tail(name, client=client, follow=False) as reader:
        return [each.value async for each in reader]


async def until_denied(client: LedgerClient, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await records(client, name)


async def test_orders_are_taken_from_operators_and_are_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with secured(tmp_path) as cluster, cluster.client("alice") as client:
        (found,) = client.bookies.available()
        security = Security(cluster.tls("alice"))
        async with BookieOperator(
            found.operator_address,
            bookie="b1",
            timeout_s=PATIENCE_S,
            security=security,
            takes=found.takes,
        ) as operator:
            for order in (
                operator.status(),
                operator.collect(),
                operator.compact(major=False),
                operator.set_read_only(read_only=True),
            ):
                with pytest.raises(AccessDenied, match="dlog access grant cn:alice operator"):
                    await order
            assert not cluster.bookie.running.storage.read_only
            await cluster.change(Grant("cn:alice", Role.OPERATOR, "*"))
            assert (await operator.status()).bookie == "b1"
            assert (await operator.set_read_only(read_only=True)).read_only
    lines = [each for each in caplog.messages if each.startswith("order_taken")]
    assert len(lines) == 1
    assert "order='SetReadOnly' identity='cn:alice' peer=" in lines[0]
    assert "access_denied identity='cn:alice'" in caplog.text


async def test_repair_with_a_bookies_certificate_needs_no_grant(tmp_path: Path) -> None:
    async with secured(tmp_path) as cluster:
        await cluster.change(Grant("cn:app", Role.WRITER, "*"))
        async with cluster.client("app") as app:
            writer = await app.create(Quorum(1, 1, 1))
            await writer.add(b"one")
            ledger_id = writer.ledger_id
            put(tmp_path / "repair", certificate("repair", bookie="b9"))
            tls = cluster.tls("other")
            own = replace(tls, cert=str(tmp_path / "repair/cert.pem"))
            own = replace(own, key=str(tmp_path / "repair/key.pem"))
            repair = await LedgerClient.connect(cluster.uri, replace(PATIENT, tls=own))
            await repair.bookies.wait_for(1, PATIENCE_S)
            closed = await repair.recover_without_password(ledger_id)
            assert closed.last_entry == 0
            await repair.close()
            await writer.close()


@pytest.mark.parametrize("mode", [TlsMode.OFF, TlsMode.OPTIONAL])
async def test_where_not_everybody_says_who_he_is_nothing_is_checked(
    tmp_path: Path, mode: TlsMode
) -> None:
    async with secured(tmp_path, mode) as cluster, cluster.client("app", mode) as app:
        writer = await app.create(Quorum(1, 1, 1))
        assert await writer.add(b"one") == 0
        await writer.close()
