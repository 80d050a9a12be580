"""Names of bookies, on real processes: one that was emptied while its bookie stood still, and one
that a bookie of another cluster has too."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from bookie.autorecovery.move_job import decommission
from bookie.autorecovery.protocol.move_job import MoveOutcome
from bookie.command import IDENTITY_LOST
from ledger.client import ClientConfig, LedgerClient
from ledger.errors import LogError, RecoveryFailed
from ledger.feature_level import IDENTITIES
from ledger.ids import BookieId, LedgerId
from ledger.quorum import Quorum
from tests.bookie.processes import BookieProcess, bookie, own_port
from tests.namespaces import made
from tests.waiting import PATIENCE_S, eventually, until, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PATIENT: Final = ClientConfig(session_timeout_s=60, leave_gone_s=600, bookie_timeout_s=PATIENCE_S)
WRITER: Final = """
import asyncio, os, signal, sys
from ledger.client import ClientConfig, LedgerClient
from ledger.quorum import Quorum

async def main():
    config = ClientConfig(session_timeout_s=60, leave_gone_s=600, bookie_timeout_s=30)
    client = await LedgerClient.connect(sys.argv[1], config)
    await client.bookies.wait_for(3, 60)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    writer = await client.create(Quorum(3, 3, 2))
    print(writer.ledger_id, flush=True)
    await writer.add(b"the entry")
    print("acknowledged", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
"""Stands still with the bookies of then before its eyes; then writes one entry."""


async def registered(client: LedgerClient, *names: str) -> None:
    await until(
        lambda: set(names) <= {found.bookie for found in client.bookies.available()},
        f"{names} are registered",
        timeout_s=4 * PATIENCE_S,
    )


class Cluster:
    def __init__(self, root: Path, stack: ExitStack) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.uri = root, f"file://{root}/metadata"
        self._stack = stack

    def start(self, name: str, *options: str, directory: str = "") -> BookieProcess:
        where = self.root / (directory or name)
        given = ("--id", name, "--unmade-ledgers=0", *options)
        return self._stack.enter_context(bookie(self.uri, where, *given))

    def lose_store(self) -> None:
        (self.root / "metadata").rename(self.root / "away")

    def writer(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", WRITER, self.uri]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


@asynccontextmanager
async def _closing(client: LedgerClient) -> AsyncIterator[LedgerClient]:
    try:
        yield client
    finally:
        await client.close()


async def connected(uri: str) -> AbstractAsyncContextManager[LedgerClient]:
    return _closing(await LedgerClient.connect(uri, PATIENT))


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_a_bookie_that_was_emptied_while_it_stood_still_ends_and_its_name_is_not_free(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        names = ("b0", "b1", "b3")
        b0, b1, b3 = (cluster.start(name) for name in names)
        async with AsyncExitStack() as clients:
            client = await LedgerClient.connect(cluster.uri, PATIENT)
            clients.push_async_callback(client.close)
            await registered(client, *names)
            writer = cluster.writer()
            assert await asyncio.to_thread(said, writer) == "ready"
            cluster.start("b2")
            await registered(client, "b2")

            b3.popen.send_signal(signal.SIGSTOP)
            await until(
                lambda: "b3" not in {found.bookie for found in client.bookies.available()},
                "b3 is not registered any more",
                timeout_s=4 * PATIENCE_S,
            )
            left = await decommission(client, BookieId("b3"), pause_s=0.1)
            assert left.outcome is MoveOutcome.RETIRED

            # Who slept acknowledges with who was emptied, which may not have read that yet.
            b1.popen.send_signal(signal.SIGSTOP)
            writer.send_signal(signal.SIGCONT)
            ledger_id = LedgerId(int(await asyncio.to_thread(said, writer)))
            b3.popen.send_signal(signal.SIGCONT)
            wait_until(lambda: b3.popen.poll() is not None, "b3 ends")
            assert b3.popen.returncode == IDENTITY_LOST
            assert "its name was retired: it was emptied for good" in b3.output()
            b1.popen.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(said, writer) == "acknowledged"

            refused = cluster.start("b3", directory="another")
            assert "the name b3 is retired" in await asyncio.to_thread(refused.refused)
            assert refused.popen.returncode == IDENTITY_LOST

            b0.kill()
            b0 = cluster.start("b0")
            await registered(client, "b0", "b1")

            async def recovered() -> bool:
                try:
                    return (await client.recover(ledger_id)).last_entry == 0
                except LogError:
                    return False

            await eventually(recovered, "the entry is found", timeout_s=4 * PATIENCE_S)


@pytest.mark.parametrize("level", [IDENTITIES - 1, IDENTITIES])
@pytest.mark.parametrize("password", [b"", b"pw"], ids=["its store is away", "it has the ledger"])
async def test_a_bookie_of_another_cluster_at_the_last_address_of_one_of_ours_is_not_believed(
    password: bytes, level: int, tmp_path: Path
) -> None:
    """It has the same name, and its "no" would be the second one."""
    entries = 10
    with ExitStack() as stack:
        ours, theirs = Cluster(tmp_path / "x", stack), Cluster(tmp_path / "y", stack)
        for cluster in (ours, theirs):
            await made(cluster.uri, level=level)
        port = str(own_port())
        b0, b1 = (ours.start(name) for name in ("b0", "b1"))
        b2 = ours.start("b2", "--port", port)
        async with AsyncExitStack() as clients:
            client = await LedgerClient.connect(ours.uri, PATIENT)
            clients.push_async_callback(client.close)
            await registered(client, "b0", "b1", "b2")
            writer = await client.create(Quorum(3, 3, 2), password=password)
            for _ in range(entries):
                await writer.add(b"before")
            b1.kill()
            assert await writer.add(b"the entry that b1 never had") == entries
            ledger_id = writer.ledger_id
            await writer.abandon()

        b0.kill()
        b2.kill()
        ours.start("b1")
        stranger = theirs.start("b2", "--port", port)
        await asyncio.to_thread(stranger.ready)
        if password:
            async with await connected(theirs.uri) as watcher:
                await registered(watcher, "b2")
                its = await watcher.create(Quorum(1, 1, 1), password=password)
                assert its.ledger_id == ledger_id
                await its.add(b"of the other cluster")
        else:
            theirs.lose_store()

        async with await connected(ours.uri) as client:
            await registered(client, "b1")
            with pytest.raises(RecoveryFailed):
                await client.recover(ledger_id, password=password)
            stranger.kill()
            ours.start("b0")
            ours.start("b2", "--port", port)
            await registered(client, "b0", "b1", "b2")
            closed = await client.recover(ledger_id, password=password)
            assert closed.last_entry == entries
