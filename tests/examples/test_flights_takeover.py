"""The heart of the flights demo without Spark: a killed leader, a standby that goes on."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from dlog.demo.supervisor import RunningRole, supervisor
from tests.waiting import TEST_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECORDS = 336_776


async def until_rows(writer: RunningRole, rows: int) -> None:
    async with asyncio.timeout(TEST_S):
        while int(str(writer.latest.get("progress", {}).get("rows", 0))) < rows:
            writer.check()
            await asyncio.sleep(0.01)


@pytest.mark.zookeeper
async def test_a_standby_goes_on_where_the_killed_leader_was(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as roles:
        cluster = await roles.start("cluster", str(tmp_path / "cluster"), "--zookeeper", "--tls")
        up = await cluster.wait_for("up", TEST_S)
        uri = str(up["uri"])
        assert up["secured"]
        roles.environment = cast("Mapping[str, str]", up["environment"])
        writer = await roles.start("writer", uri)
        await writer.wait_for("leading", TEST_S)
        standby = await roles.start("standby", uri)
        await standby.wait_for("read", TEST_S)
        await writer.tell("go")
        await until_rows(writer, 50_000)
        writer.kill()
        roles.dismiss(writer)
        leading = await standby.wait_for("leading", TEST_S)
        assert int(str(leading["last_txid"])) >= 50_000 - 1
        appended = await standby.wait_for("appended", TEST_S)
        assert appended["last_offset"] == RECORDS - 1
        followed = await standby.wait_for("followed", TEST_S)
        assert followed["records"] == RECORDS
        assert followed["exact"] is True
