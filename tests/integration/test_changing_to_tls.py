"""A cluster of processes changes from plain connections to TLS while a log is written and read, by
the steps of docs/operations.md: no append fails, and what was acknowledged is read once, in order.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dlog.aio import Log
from dlog.local.cluster import LocalCertificates, LocalCluster
from ledger.client import ClientConfig, LedgerClient
from ledger.errors import TransportMismatch
from ledger.metastore import open_store
from ledger.security.access import Grant, Role
from ledger.security.certificates import Security, own_name
from ledger.security.documents import change_rules
from ledger.security.settings import OFF, TlsMode, TlsSettings
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LOG: Final = "changing"
BETWEEN: Final = 20
"""Appends between two restarts."""


class Applications:
    """One that appends and one that tails; each is restarted with other settings, as its
    operator would, and goes on where it was."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.appended: list[bytes] = []
        """What was acknowledged."""
        self.read: list[bytes] = []

    @asynccontextmanager
    async def running(self, tls: TlsSettings) -> AsyncIterator[None]:
        client = await LedgerClient.connect(self._uri, ClientConfig(tls=tls))
        stop, stopped = asyncio.Event(), asyncio.Event()

        async def append() -> None:
            log = await Log.open(LOG, client=client)
            while not stop.is_set():
                value = b"%d" % len(self.appended)
                await log.append(value)
                self.appended.append(value)
            await log.close()
            stopped.set()

        async def tail() -> None:
            reader = await Log.tail(LOG, client=client, start=len(self.read))
            while not stopped.is_set() or len(self.read) < len(self.appended):
                batch = await reader.read_batch(timeout_s=0.2)
                self.read.extend(bytes(record.value) for record in batch)
            await reader.close()

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(append())
                await until(lambda: bool(self.appended), "the log is there")
                tasks.create_task(tail())
                try:
                    yield
                finally:
                    stop.set()
        finally:
            await client.close()

    async def go_on(self) -> None:
        """Return once both have got on."""
        wanted = len(self.appended) + BETWEEN
        await until(lambda: len(self.read) >= wanted, "it is written and read on")


async def test_a_cluster_in_use_changes_to_tls_without_a_failed_append(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, bookies=4) as cluster:
        made = LocalCertificates(tmp_path / "certificates")

        async def all_restarted(mode: TlsMode) -> None:
            for index, process in enumerate(cluster.processes):
                process.tls = replace(made.of_bookie(process.name, process.bookie), mode=mode)
                await cluster.restart_bookie(index)
                await applications.go_on()

        applications = Applications(cluster.uri)
        async with applications.running(OFF):
            await applications.go_on()
            await all_restarted(TlsMode.OPTIONAL)
        async with applications.running(replace(made.of_client(), mode=TlsMode.OPTIONAL)):
            await applications.go_on()
            store = await open_store(cluster.uri)
            who = own_name(Security.of(made.of_client()))
            await change_rules(
                store, lambda rules: rules.granted(Grant(who, Role.WRITER, LOG)), by="a test"
            )
            await store.close()
            await all_restarted(TlsMode.REQUIRED)
        async with applications.running(made.of_client()):
            await applications.go_on()
        assert applications.read == applications.appended
        assert applications.appended == [b"%d" % at for at in range(len(applications.appended))]
        with pytest.raises(TransportMismatch):
            await LedgerClient.connect(cluster.uri, ClientConfig())
