"""A cluster in use changes from plain connections to TLS, and no add fails."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.client import LedgerClient
from ledger.errors import TransportMismatch
from ledger.quorum import Quorum
from ledger.security.certificates import Security
from ledger.security.settings import OFF, TlsMode, TlsSettings
from tests.certificates import certificate, put
from tests.ledger.local_bookies import LocalBookie, LocalBookies, local_bookies
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, until


class Adder:
    """Adds one entry after the other, in one ledger after the other, until told to stop."""

    def __init__(self, client: LedgerClient) -> None:
        self.client = client
        self.added = 0
        self._wanted = True
        self._ledgers, self._goal = 0, 1
        self._task = asyncio.create_task(self._run())

    async def go_on(self) -> None:
        """Return when some more were added."""
        wanted = self.added + 10
        await until(lambda: self.added >= wanted or self._task.done(), "entries are added")

    async def roll(self) -> None:
        """Go on in another ledger, which all bookies hold again; return when that is done."""
        self._goal += 1
        await until(lambda: self._ledgers >= self._goal or self._task.done(), "another ledger")

    async def stop(self) -> None:
        self._wanted = False
        await self._task

    def _goes_on(self) -> bool:
        return self._wanted and self._ledgers >= self._goal

    async def _run(self) -> None:
        while self._wanted:
            writer = await self.client.create(Quorum(3, 3, 2))
            self._ledgers += 1
            while self._goes_on():
                await writer.add(b"x")
                self.added += 1
            await writer.close()


async def restart(cluster: LocalBookies, bookie: LocalBookie, security: Security | None) -> None:
    await bookie.kill()
    bookie.security = security
    await bookie.start()


def of_client(tmp_path: Path, mode: TlsMode) -> TlsSettings:
    if mode is TlsMode.OFF:
        return OFF
    return put(tmp_path / f"client-{mode}", certificate("writer"), mode=mode)


def of_bookie(tmp_path: Path, bookie: str, mode: TlsMode) -> Security:
    issued = certificate(bookie, bookie=bookie)
    return Security(put(tmp_path / f"{bookie}-{mode}", issued, mode=mode), serves=True)


async def test_a_cluster_in_use_changes_over_without_a_failed_add(tmp_path: Path) -> None:
    off, optional, required = TlsMode
    async with local_bookies(5) as cluster:

        async def adding(mode: TlsMode) -> Adder:
            config = replace(PATIENT, tls=of_client(tmp_path, mode))
            adder = Adder(await cluster.client(config))
            await adder.go_on()
            return adder

        async def bookies_become(mode: TlsMode, adder: Adder) -> None:
            for bookie in cluster.bookies:
                await restart(cluster, bookie, of_bookie(tmp_path, bookie.name, mode))
                await adder.client.bookies.wait_for(5, PATIENCE_S)
                await adder.go_on()
                await adder.roll()

        plain = await adding(off)
        await bookies_become(optional, plain)
        both = await adding(optional)
        await plain.stop()
        await bookies_become(required, both)
        secured = await adding(required)
        await both.stop()
        await secured.stop()
        with pytest.raises(TransportMismatch, match="takes TLS only, and here it is off; set DLOG"):
            await LedgerClient.connect(cluster.uri, PATIENT)


async def test_a_client_that_requires_tls_does_not_connect_to_a_plain_cluster(
    tmp_path: Path,
) -> None:
    config = replace(PATIENT, tls=of_client(tmp_path, TlsMode.REQUIRED))
    async with local_bookies(1) as cluster:
        with pytest.raises(TransportMismatch, match="takes plain connections only"):
            await LedgerClient.connect(cluster.uri, config)
