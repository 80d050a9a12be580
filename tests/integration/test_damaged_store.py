"""One bit of a metadata store flips beside real processes that use it: nothing is deleted.

The bit is in the list of logs, where a log then seems to be gone. The janitor runs already, and it
says why its passes fail; once the bit is as it was, everything is there and the passes go on.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from dlog.aio import Log
from dlog.local.cluster import LocalCluster
from ledger.client import LedgerClient
from ledger.errors import DamagedMetadata
from ledger.metastore.uri import FileUri, parse_uri
from tests.ledger.metastore.sqlite_stores import emptied, flip, place_of
from tests.patience import PATIENT
from tests.waiting import until

pytestmark = pytest.mark.integration

LOG: Final = "orders"
SEGMENTS: Final = 3
RECORDS: Final = 10
"""Of each segment."""


class RunningJanitor:
    """A process that looks after all logs of a namespace, and what it said."""

    def __init__(self, uri: str, directory: Path) -> None:
        self._out, self._err = directory / "janitor.out", directory / "janitor.err"
        command = ["janitor", "run", "--no-elect", "--interval", "0.2s", "--json"]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dlog.cli", *command],
                stdout=out,
                stderr=err,
                env={**os.environ, "DLOG_URI": uri},
            )

    def passes(self) -> list[dict[str, object]]:
        lines = self._out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def events(self, name: str) -> list[str]:
        return [line for line in self._err.read_text().splitlines() if name in line]


@contextmanager
def janitor_of(uri: str, directory: Path) -> Iterator[RunningJanitor]:
    janitor = RunningJanitor(uri, directory)
    try:
        yield janitor
    finally:
        janitor.process.send_signal(signal.SIGTERM)
        janitor.process.wait()


async def test_a_bit_that_flips_under_a_janitor_deletes_no_log(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "cluster") as cluster:
        parsed = parse_uri(cluster.uri)
        assert isinstance(parsed, FileUri)
        async with connected(cluster.uri) as client:
            await write(client)
            ledgers = [ledger_id async for ledger_id in client.list()]
            with janitor_of(cluster.uri, tmp_path) as janitor:
                await until(lambda: len(janitor.passes()) > 1, "the janitor made a pass")
                assert [each["logs"] for each in janitor.passes()][-1] == 1
                await emptied(parsed.directory)
                place = place_of(parsed.directory, "node_by_parent", b"/logs" + LOG.encode())
                flip(parsed.directory, place)
                await until(
                    lambda: len(janitor.events("janitor_pass_failed")) > 2, "its passes fail"
                )
                assert "node_by_parent" in janitor.events("janitor_pass_failed")[-1]
                assert janitor.events("metadata_damaged")
                with pytest.raises(DamagedMetadata):
                    await client.store.verify()
                flip(parsed.directory, place)
                before = len(janitor.passes())
                await until(lambda: len(janitor.passes()) > before + 1, "it makes passes again")
                for done in janitor.passes():
                    assert (done["ledgers_deleted"], done["orphans"]) == (0, [])
            assert [ledger_id async for ledger_id in client.list()] == ledgers
            async with await Log.tail(LOG, client=client, follow=False) as reader:
                values = [record.value async for record in reader]
            assert values == [b"%d" % n for n in range(SEGMENTS * RECORDS)]


@asynccontextmanager
async def connected(uri: str) -> AsyncIterator[LedgerClient]:
    client = await LedgerClient.connect(uri, PATIENT)
    try:
        yield client
    finally:
        await client.close()


async def write(client: LedgerClient) -> None:
    async with await Log.open(LOG, client=client) as log:
        for n in range(SEGMENTS * RECORDS):
            if n and n % RECORDS == 0:
                await log.roll()
            await log.append(b"%d" % n)
