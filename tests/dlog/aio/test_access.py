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
from ledger.entry import parse_header
from ledger.errors import AccessDenied, BookieRefused, BookieUnavailable, LogError
from ledger.ids import BookieId, LedgerId
from ledger.metastore.memory import MemoryHub
from ledger.metastore.port import MetadataStore
from ledger.quorum import Quorum
from ledger.security.access import Grant, Role, Rules
from ledger.security.certificates import Security
from ledger.security.documents import change_rules, read_rules
from ledger.security.settings import TlsMode, TlsSettings
from ledger.transport.operator import BookieOperator
from ledger.transport.sockets import SocketTransport
from tests.bookie.runs import run_of
from tests.certificates import certificate, odd_certificate, put
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
        log = await Log.open("team/flights", client=app, settings=ONE, reopen_timeout_s=0)
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
        with pytest.raises(AccessDenied, match="that needs the role writer"):
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
    assert "order='set_read_only' identity='cn:alice' peer=" in lines[0]
    assert "access_denied identity='cn:alice'" in caplog.text


async def test_names_of_which_programs_disagree_let_nobody_in_at_either_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a NUL made an operator of who had another name, where a library in C read it."""
    async with secured(tmp_path) as cluster, cluster.client("alice") as client:
        await cluster.change(Grant("cn:alice", Role.OPERATOR, "*"))
        (found,) = client.bookies.available()
        for name, issued in {
            "nul": odd_certificate("alice\0.evil"),
            "two": odd_certificate("mallory", "alice"),
            "two the other way": odd_certificate("alice", "mallory"),
            "line": odd_certificate("alice\nlevel=info"),
            "nul in a uri": odd_certificate("alice", uris=("spiffe://prod/op\0.evil",)),
        }.items():
            security = Security(put(tmp_path / name, issued))
            async with BookieOperator(
                found.operator_address, bookie="b1", security=security, takes=found.takes
            ) as operator:
                with pytest.raises(BookieRefused, match="finds no name of a client"):
                    await operator.set_read_only(read_only=True)
            transport = SocketTransport(lambda _: found.address, security=security)
            assert await transport.info(BookieId("b1")) is None, name
            await transport.close()
        assert not cluster.bookie.running.storage.read_only
        assert "it has several common names" in caplog.text
        assert "a name in it has a control character" in caplog.text


async def test_a_certificate_that_has_expired_gives_no_orders_on_a_connection_that_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secured(tmp_path) as cluster, cluster.client("alice") as client:
        await cluster.change(Grant("cn:alice", Role.OPERATOR, "*"))
        (found,) = client.bookies.available()
        security = Security(cluster.tls("alice"))
        async with BookieOperator(
            found.operator_address, bookie="b1", security=security, takes=found.takes
        ) as operator:
            assert (await operator.status()).bookie == "b1"
            expires_at = security.certificate.expires_at
            monkeypatch.setattr("bookie.server.listener._LOOK_S", 1e9)
            monkeypatch.setattr("bookie.server.operator.time.time", lambda: expires_at + 1)
            with pytest.raises((AccessDenied, BookieUnavailable)):
                await operator.set_read_only(read_only=True)
            monkeypatch.undo()
            assert not cluster.bookie.running.storage.read_only


async def test_repair_with_a_bookies_certificate_recovers_what_is_confirmed_and_adds_nothing(
    tmp_path: Path,
) -> None:
    async with secured(tmp_path) as cluster:
        await cluster.change(Grant("cn:app", Role.WRITER, "*"))
        put(tmp_path / "repair", certificate("repair", bookie="b9"))
        own = replace(
            cluster.tls("other"),
            cert=str(tmp_path / "repair/cert.pem"),
            key=str(tmp_path / "repair/key.pem"),
        )
        repair = await LedgerClient.connect(cluster.uri, replace(PATIENT, tls=own))
        await repair.bookies.wait_for(1, PATIENCE_S)
        storage = cluster.bookie.running.storage
        async with cluster.client("app") as app:
            writer = await app.create(Quorum(1, 1, 1))
            await writer.add(b"one")
            key = (await app.ledgers.read(writer.ledger_id))[0].access_key
            published = 0

            def is_published() -> bool:
                proof = storage.lac(writer.ledger_id, key).lac_proof
                return bool(proof) and parse_header(proof).last_add_confirmed == published

            await until(is_published, "the last add confirmed")
            closed = await repair.recover_without_password(writer.ledger_id)
            assert closed.last_entry == 0
            await writer.close()
            unconfirmed = LedgerId((await app.create(Quorum(1, 1, 1))).ledger_id)
            key = (await app.ledgers.read(unconfirmed))[0].access_key
            storage.add(run_of(0, ledger_id=unconfirmed, key=key))
            with pytest.raises(AccessDenied, match="that needs the role writer"):
                await repair.recover_without_password(unconfirmed)
            assert (await app.recover_without_password(unconfirmed)).last_entry == 0
        await repair.close()


@pytest.mark.parametrize("mode", [TlsMode.OFF, TlsMode.OPTIONAL])
async def test_where_not_everybody_says_who_he_is_nothing_is_checked(
    tmp_path: Path, mode: TlsMode
) -> None:
    async with secured(tmp_path, mode) as cluster, cluster.client("app", mode) as app:
        writer = await app.create(Quorum(1, 1, 1))
        assert await writer.add(b"one") == 0
        await writer.close()
