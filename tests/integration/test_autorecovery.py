"""Repair with real processes: a bookie and its disk are gone, and every copy is made again."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from bookie.autorecovery.checks import Audit
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.status import autorecovery_status
from dlog.aio import Log
from dlog.local.cluster import LocalCluster
from ledger.client import LedgerClient
from ledger.metastore import open_store
from tests.bookie.processes import bookie
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, alive, eventually, until

pytestmark = pytest.mark.integration

DELAY_S: Final = 0.5
RECORDS: Final = 300
LOG: Final = "orders"
STORES: Final = [
    "file",
    pytest.param("zookeeper", marks=[pytest.mark.zookeeper, pytest.mark.long("chaos-repair")]),
]


def dlog(uri: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlog.cli", *arguments, "--uri", uri],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 4,
    )


def shown(uri: str, *arguments: str) -> Any:
    done = dlog(uri, *arguments, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@contextmanager
def autorecovery(uri: str, log_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dlog.cli",
                "autorecovery",
                "start",
                "--uri",
                uri,
                "--delay-s",
                str(DELAY_S),
                "--grace-s",
                "0.5",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def a_member(cluster: LocalCluster) -> int:
    """Return the index of a bookie that holds entries of the first segment, and so most likely
    of others."""
    client = await LedgerClient.connect(cluster.uri, PATIENT)
    try:
        [first, *_] = sorted([ledger_id async for ledger_id in client.list()])
        member = (await client.describe(first)).fragments[0].bookies[0]
        return [process.bookie for process in cluster.processes].index(member)
    finally:
        await client.close()


@pytest.mark.parametrize("metadata", STORES, indirect=True)
async def test_every_copy_is_made_again_after_a_bookie_and_its_disk_are_gone(
    tmp_path: Path, metadata: str | None
) -> None:
    async with LocalCluster(tmp_path / "cluster", bookies=5, zookeeper=metadata) as cluster:
        uri = cluster.uri
        async with await Log.open(LOG, uri=uri) as log:
            for number in range(RECORDS):
                await log.append(b"record %d" % number)
                if number % 100 == 99:
                    await log.roll()
            lost = await a_member(cluster)
            cluster.kill_bookie(lost)
            shutil.rmtree(cluster.processes[lost].directory)
            for number in range(RECORDS, RECORDS + 50):
                await log.append(b"record %d" % number)
        with autorecovery(uri, tmp_path / "autorecovery.log") as process:
            await until(lambda: yields(process.pid), "the process yields the processor")
            name = cluster.processes[lost].bookie
            store = await open_store(uri)

            async def healed() -> bool:
                audit = await Audit.last(store)
                marked = [ledger_id async for ledger_id in Marks(store).list()]
                return audit is not None and name in audit.lost and not marked

            await eventually(healed, "no ledger lacks copies", timeout_s=PATIENCE_S * 3)
            assert shown(uri, "autorecovery", "status")["underreplicated"] == 0
            verified = shown(uri, "log", "verify", LOG)
            assert verified["healthy"] is True
            assert verified["records"] == RECORDS + 50
            assert await Marks(store).locked() == {}
            await store.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        assert dlog(uri, "ledger", "underreplicated").stdout == (
            "no ledger is known to be underreplicated\n"
        )


def yields(pid: int) -> bool:
    return os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


async def auditor_of(uri: str) -> str:
    store = await open_store(uri)
    try:
        return (await autorecovery_status(store)).auditor
    finally:
        await store.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_a_bookie_may_run_a_process_of_repair_which_ends_with_it(
    tmp_path: Path, end: signal.Signals
) -> None:
    uri = f"file://{tmp_path}/metadata"
    with bookie(uri, tmp_path / "bookie", "--autorecovery") as running:

        async def is_audited() -> bool:
            return bool(await auditor_of(uri))

        await eventually(is_audited, "the child was elected")
        child = int((await auditor_of(uri)).rpartition(":")[2])
        assert child != running.popen.pid
        assert alive(child)
        assert yields(child)
        running.popen.send_signal(end)
        await until(lambda: running.popen.poll() is not None, "the bookie has ended")
        await until(lambda: not alive(child), "its child has ended")


async def test_a_child_that_dies_is_started_again_beside_its_bookie(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/metadata"
    with bookie(uri, tmp_path / "bookie", "--autorecovery"):

        async def another_is_elected() -> bool:
            auditor = await auditor_of(uri)
            if not auditor:
                return False
            seen.add(auditor)
            if len(seen) == 1 and not killed:
                killed.append(auditor)
                os.kill(int(auditor.rpartition(":")[2]), signal.SIGKILL)
            return len(seen) > 1

        seen: set[str] = set()
        killed: list[str] = []
        await eventually(another_is_elected, "another child was elected")


async def test_a_local_cluster_may_have_a_process_of_repair_which_ends_with_it(
    tmp_path: Path,
) -> None:
    async with LocalCluster(tmp_path, bookies=1, autorecovery=True) as cluster:

        async def is_audited() -> bool:
            return bool(await auditor_of(cluster.uri))

        await eventually(is_audited, "the process was elected")
        child = int((await auditor_of(cluster.uri)).rpartition(":")[2])
        assert alive(child)
    assert not alive(child)
    assert "autorecovery_started" in (tmp_path / "autorecovery.log").read_text()
