"""All bookies are restarted, one after the other, while a log is written: nobody fails, and nothing
is copied without need. Prints the longest pause of an append: `pytest -s`, part of
`make chaos-repair`."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.status import autorecovery_status
from dlog.aio import Log
from dlog.aio.admin import log_info
from dlog.local.cluster import LocalCluster
from ledger.metastore import open_store
from tests.integration.test_autorecovery import shown
from tests.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.integration

LOG: Final = "restarted"
LONG: Final = pytest.mark.long("chaos-repair")
BETWEEN: Final = 50
"""Appends between two restarts."""


@pytest.mark.parametrize(
    ("metadata", "bookies"),
    [
        ("file", 3),
        pytest.param("file", 5, marks=LONG),
        pytest.param("zookeeper", 3, marks=[pytest.mark.zookeeper, LONG]),
        pytest.param("zookeeper", 5, marks=pytest.mark.zookeeper),
    ],
    indirect=["metadata"],
)
async def test_restarting_all_bookies_in_turn_fails_no_append_and_copies_nothing_needless(
    tmp_path: Path, metadata: str | None, bookies: int
) -> None:
    """Three have nobody to take the place of one that restarts: what it missed is copied to it. Of
    five, that is the one append that was in flight."""
    took: list[float] = []
    cluster = LocalCluster(tmp_path, bookies=bookies, zookeeper=metadata, autorecovery=True)
    async with cluster:
        store = await open_store(cluster.uri)
        async with await Log.open(LOG, uri=cluster.uri) as log:

            async def is_audited() -> bool:
                return bool((await autorecovery_status(store)).auditor)

            await eventually(is_audited, "an auditor is elected")
            async with _appending(log, took):
                await until(lambda: len(took) >= BETWEEN, "it is written before")
                before = max(took)
                for index in range(bookies):
                    await cluster.restart_bookie(index)
                    enough = len(took) + BETWEEN
                    await until(
                        lambda enough=enough: len(took) >= enough,  # type: ignore[misc]
                        "it is written on",
                    )

        async def is_whole() -> bool:
            return not [ledger_id async for ledger_id in Marks(store).list()]

        await eventually(is_whole, "no ledger lacks copies", timeout_s=3 * PATIENCE_S)
        assert shown(cluster.uri, "log", "verify", LOG)["healthy"] is True
        await store.close()
        segments = len((await log_info(LOG, uri=cluster.uri)).manifest.segments)
        async with await Log.tail(LOG, uri=cluster.uri, follow=False) as reader:
            values = [int(record.value) async for record in reader]
    assert values == list(range(len(values))), "all of them, once and in order"
    assert len(values) >= len(took)
    (copied,) = re.findall(r"autorecovery_stopped.*", (tmp_path / "autorecovery.log").read_text())
    (entries,) = re.findall(r"\bentries=(\d+)\b", copied)
    if bookies > log.settings.quorum.ensemble:
        assert int(entries) < BETWEEN, f"less than any whole fragment has: {copied}"
    print(
        f"\n{bookies} bookies restarted in turn: {len(took)} appends, none failed; longest pause "
        f"of an append {max(took):.2f} s ({before:.3f} s before), {segments} segments, "
        f"{entries} entries copied"
    )


@asynccontextmanager
async def _appending(log: Log, took: list[float]) -> AsyncIterator[None]:
    """Append one record after the other; put into *took* how long each waited. Fails with them."""
    stop = asyncio.Event()

    async def append() -> None:
        while not stop.is_set():
            began = time.monotonic()
            await log.append(b"%d" % len(took))
            took.append(time.monotonic() - began)

    appending = asyncio.create_task(append())
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await appending
