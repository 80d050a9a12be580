"""A leader dies together with a bookie of a cluster of three, and is taken over; real processes.

What is asserted is that nothing acknowledged is lost and that every copy is made in the end; how
long nobody could append is printed (`pytest -s`).
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from bookie.autorecovery.marks import Marks
from dlog.aio import Log
from dlog.local.cluster import LocalCluster
from ledger.client import LedgerClient
from ledger.mark import Reason
from tests.integration.test_autorecovery import shown
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.integration

LOG: Final = "orders"
RECORDS: Final = 20
"""Which each leader gets acknowledged, at least."""


class Leading:
    """A process that stands for election, and what it wrote."""

    def __init__(self, uri: str, path: Path) -> None:
        self._path = path
        with path.open("wb") as out:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.leading", uri, LOG],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[list[str]]:
        text = self._path.read_text()
        assert "Traceback" not in text, text
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def acknowledged(self) -> list[tuple[int, float]]:
        """Return offset and time of each record."""
        return [(int(line[0]), float(line[1])) for line in self.lines() if len(line) == 2]

    async def stands(self) -> None:
        await until(lambda: ["stands"] in self.lines(), "it is connected")

    async def leads(self) -> None:
        await until(
            lambda: len(self.acknowledged()) >= RECORDS, "it leads", timeout_s=2 * PATIENCE_S
        )

    def kill(self) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()


@pytest.mark.parametrize(
    "metadata",
    ["file", pytest.param("zookeeper", marks=[pytest.mark.zookeeper, pytest.mark.long("chaos")])],
    indirect=True,
)
async def test_a_leader_that_dies_with_one_of_three_bookies_is_taken_over(
    tmp_path: Path, metadata: str | None
) -> None:
    """First while the dead bookie is still registered, then when it is not any more."""
    cluster = LocalCluster(tmp_path / "cluster", zookeeper=metadata, autorecovery=True)
    leaders: list[Leading] = []
    async with cluster:
        uri = cluster.uri

        def stand() -> Leading:
            leaders.append(Leading(uri, tmp_path / f"leader-{len(leaders)}"))
            return leaders[-1]

        client = await LedgerClient.connect(uri, PATIENT)
        try:
            first = stand()
            await first.leads()
            second = stand()
            await second.stands()
            dead = cluster.processes[1].bookie
            outage_s = []
            assert cluster.processes[1].pid is not None
            for pid in (cluster.processes[1].pid, first._popen.pid):
                os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            await second.leads()
            outage_s.append(second.acknowledged()[0][1] - killed)

            await eventually(lambda: _is_away(client, dead), "its session has ended")
            third = stand()
            await third.stands()
            killed = time.monotonic()
            second.kill()
            await third.leads()
            outage_s.append(third.acknowledged()[0][1] - killed)
            print("nobody could append for", *(f"{each * 1000:.0f} ms" for each in outage_s))

            marks = [
                await Marks(client.store).read(ledger_id)
                async for ledger_id in Marks(client.store).list()
            ]
            reasons = {k.reason for mark in marks if mark for k in mark[0].missing}
            assert {Reason.AWAY} <= reasons <= {Reason.AWAY, Reason.MISSING}
            await cluster.restart_bookie(1)
            third.kill()
            async with await Log.open(LOG, client=client) as log:
                end = log.last_offset + 1

            async def is_whole() -> bool:
                return not [ledger_id async for ledger_id in Marks(client.store).list()]

            await eventually(is_whole, "no ledger lacks copies", timeout_s=3 * PATIENCE_S)
            verified = shown(uri, "log", "verify", LOG)
            assert verified["healthy"] is True
            acknowledged = [offset for each in leaders for offset, _ in each.acknowledged()]
            assert acknowledged == sorted(set(acknowledged)), "an offset was acknowledged twice"
            assert acknowledged[-1] < end == verified["records"]
        finally:
            for each in leaders:
                each.kill()
            await client.close()


async def _is_away(client: LedgerClient, bookie: str) -> bool:
    return bookie in client.bookies.away()
