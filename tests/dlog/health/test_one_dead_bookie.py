"""One bookie that was killed is one finding, from its death until it is back: real processes."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from dlog.aio import Log
from dlog.console.poller import Gatherer
from dlog.console.views.cluster import ProblemRow, problems
from dlog.local.cluster import LocalCluster
from ledger.client import LedgerClient
from tests.waiting import PATIENCE_S, ended, eventually, until

pytestmark = pytest.mark.integration

SLOW_S: Final = 4 * PATIENCE_S
"""For a session to end, while commands are started again and again."""
OUT_OF_REACH: Final = {"bookie-unreachable", "bookie-away"}


async def findings(uri: str, command: str) -> list[dict[str, Any]]:
    """Return what `dlog status` or `dlog doctor` finds wrong; notes are left out."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dlog.cli", command, "--json", "--uri", uri),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await ended(process.communicate())
    return [finding for finding in json.loads(output)["findings"] if finding["severity"] != "note"]


def shown(gatherer: Gatherer) -> list[ProblemRow]:
    return [
        problem
        for problem in problems(gatherer.cluster, time.monotonic())
        if problem.severity != "note"
    ]


async def test_a_killed_bookie_is_one_finding_of_status_doctor_and_console(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, bookies=3, autorecovery=True) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        gatherer = Gatherer(client, round_s=0.2)
        looking = asyncio.ensure_future(gatherer.run())
        try:
            log = await Log.open("orders", client=client)
            await ended(log.append(b"with all three"))
            seen = gatherer.cluster
            await until(
                lambda: seen.facts("repair") is not None and not shown(gatherer),
                "the console sees nothing wrong",
            )
            cluster.kill_bookie(2)
            name = cluster.processes[2].name
            await ended(log.append_many([b"with two of them"] * 100))
            standby = await ended(Log.open("orders", client=client))
            await ended(standby.append(b"after a takeover, which asks the dead one, too"))

            async def is_missed() -> bool:
                """Whether its session has ended; before and after, it is one finding."""
                for finding in await findings(cluster.uri, "status"):
                    assert finding["kind"] == "bookie-away"
                [finding] = await findings(cluster.uri, "doctor")
                assert finding["kind"] in OUT_OF_REACH
                assert name in finding["what"]
                kinds = {each["kind"] for each in finding["consequences"]}
                return (
                    finding["kind"] == "bookie-away" and {"few-bookies", "underreplicated"} <= kinds
                )

            await eventually(is_missed, "the session of the bookie has ended", timeout_s=SLOW_S)
            await until(lambda: _is_whole(shown(gatherer), name), "the console has one problem")
            await ended(cluster.restart_bookie(2))
            await ended(standby.close())
            await log.writer.abandon()

            async def is_well() -> bool:
                return not await findings(cluster.uri, "doctor")

            await eventually(is_well, "nothing is wrong", timeout_s=SLOW_S)
        finally:
            looking.cancel()
            await asyncio.wait([looking])
            await client.close()


def _is_whole(found: list[ProblemRow], name: str) -> bool:
    return (
        len(found) == 1
        and f"bookie {name}" in found[0].what
        and "not registered" in found[0].what
        and len(found[0].consequences) >= 2
    )
