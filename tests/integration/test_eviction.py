"""Evictions with real processes: what a move leaves behind goes, its space too, and comes back."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.worker import Worker
from ledger.client import LedgerClient
from ledger.ids import BookieId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica, Reason
from ledger.quorum import Quorum
from tests.bookie.autorecovery.test_worker import AT_ONCE, copies
from tests.bookie.processes import BookieProcess
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

LEDGERS: Final = 6
ENTRIES: Final = 40
ENTRY_BYTES: Final = 10_000
OPTIONS: Final = ("--gc-interval=0", "--eviction-pause=0", "--evicted-share=1")


def dlog(uri: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "dlog.cli", *arguments, "--uri", uri, "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 4,
        env={**os.environ, "DLOG_AUDIT": "off"},  # ledgers are counted
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "entrylog").glob("*.log"))


async def written(client: LedgerClient, count: int) -> list[LedgerId]:
    ledger_ids = []
    for _ in range(count):
        writer = await client.create(Quorum(3, 3, 2))
        for _ in range(ENTRIES):
            await writer.add(bytes(ENTRY_BYTES))
        await writer.close()
        ledger_ids.append(writer.ledger_id)
    return ledger_ids


async def move_away(client: LedgerClient, ledger_ids: Sequence[LedgerId], bookie: BookieId) -> None:
    """Let a worker of repair move all of it from *bookie* to others."""
    marks = Marks(client.store)
    await marks.announce(bookie)
    for ledger_id in ledger_ids:
        await marks.add(ledger_id, [MissingReplica(bookie, Reason.DECOMMISSIONING, now_ms())])
    scan = await Worker(client, AT_ONCE).run_once()
    assert scan.outcomes == {RepairOutcome.DONE: len(ledger_ids)}
    await marks.withdraw(bookie)
    for ledger_id in ledger_ids:
        fragments = (await client.describe(ledger_id)).fragments
        assert all(bookie not in fragment.bookies for fragment in fragments)
        assert set((await copies(client, ledger_id)).values()) == {3}


async def test_what_was_moved_away_is_evicted_gives_its_space_back_and_can_be_moved_back(
    tmp_path: Path,
) -> None:
    uri = f"file://{tmp_path}/metadata"
    with ExitStack() as ends:

        def start(name: str) -> BookieProcess:
            process = BookieProcess(uri, tmp_path / name, f"--id={name}", *OPTIONS)
            ends.callback(process.kill)
            process.ready()
            return process

        one = start("b1")
        start("b2")
        start("b3")
        client = await LedgerClient.connect(uri, PATIENT)
        try:
            moved = await written(client, LEDGERS)
            one.stop()  # its entry log is finished: the newest one is never collected
            one = start("b1")
            await until(lambda: len(client.bookies.available()) == 3, "it is back")
            [stays] = await written(client, 1)
            await Worker(client, AT_ONCE).run_once()  # a writer may have missed it
            start("b4")
            await until(lambda: len(client.bookies.available()) == 4, "the fourth is there")
            logs = tmp_path / "b1" / "entrylog"
            await until(lambda: len(list(logs.glob("*.log"))) > 1, "there is a newer log")
            before = log_bytes(tmp_path / "b1")
            assert before > LEDGERS * ENTRIES * ENTRY_BYTES

            await move_away(client, moved, BookieId("b1"))
            assert dlog(uri, "bookie", "gc", "b1")["evicted"] == 0
            assert dlog(uri, "bookie", "status", "b1")["collector"]["surplus"] == LEDGERS
            assert dlog(uri, "bookie", "gc", "b1")["evicted"] == LEDGERS
            assert dlog(uri, "bookie", "status", "b1")["ledgers"] == 1
            dlog(uri, "bookie", "compact", "--major", "b1")
            assert log_bytes(tmp_path / "b1") < before / 2

            one.kill()  # a start after it misses nothing
            start("b1")
            await until(lambda: len(client.bookies.available()) == 4, "it is back")
            status = dlog(uri, "bookie", "status", "b1")
            assert (status["ledgers"], status["read_only"]) == (1, False)
            assert not [one for one in status["warnings"] if "% full" not in one]
            assert set((await copies(client, stays)).values()) == {3}

            await move_away(client, moved, BookieId("b4"))
            for ledger_id in moved:
                [fragment] = (await client.describe(ledger_id)).fragments
                assert "b1" in fragment.bookies
            assert dlog(uri, "bookie", "gc", "b1")["evicted"] == 0
            assert dlog(uri, "bookie", "gc", "b1")["evicted"] == 0
            for ledger_id in moved:
                assert set((await copies(client, ledger_id)).values()) == {3}
        finally:
            await client.close()
