"""A run in which bookies and their disks are lost, and what they held is repaired beside the load.

One trouble after the other; after each one the cluster must be whole again within `WHOLE_S`: no
ledger names a bookie that is not there, none is marked, every bookie says that it holds all it
should, and ``dlog log verify`` reads every entry from every replica. Beside it leaders, readers
and the processes of repair are killed and stopped.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final

from bookie.autorecovery.checks import Audit, check_all, parts_of
from bookie.autorecovery.marks import Marks
from dlog.aio import Log
from dlog.aio.admin import create_log
from dlog.settings import LogSettings
from ledger import LedgerClient, Quorum
from ledger.metadata import LedgerMetadata
from tests.integration.chaos.faults import kinds
from tests.integration.chaos.places import Places, python
from tests.integration.chaos.processes import ROOT
from tests.integration.chaos.repair_troubles import COLD, TROUBLES
from tests.integration.chaos.stage import Plan, Stage
from tests.integration.chaos.writer import LOG

DELAY_S: Final = 2.0
HELPER_OPTIONS: Final = ("--delay-s", str(DELAY_S), "--grace-s", "1")
WHOLE_S: Final = 180.0
"""In which the cluster must be at full replication again, from the begin of a trouble on."""
LOOK_AGAIN_S: Final = 0.3
COMMAND_S: Final = 120.0
COLD_SEGMENTS: Final = 8
COLD_RECORDS: Final = 20
"""Of each segment."""
COLD_RECORD_BYTES: Final = 32_000
HELPERS_REST_S: Final = (2.0, 6.0)
LEADERS: Final = ("kill the leader", "resign", "stop the leader")


class RepairStage(Stage):
    """Also the `repair_troubles.Scene` that troubles act on."""

    whole_s = WHOLE_S

    def __init__(self, plan: Plan, directory: Path, places: Places, why_not_apart: str) -> None:
        super().__init__(plan, directory, places, why_not_apart)
        self.verified: tuple[str, ...] = (COLD, LOG)
        """Logs that are read from every copy before the cluster counts as whole."""
        self._newcomers = 0
        self._whole_s: dict[str, list[float]] = {}
        """How long it took to full replication, by trouble."""

    @property
    def client(self) -> LedgerClient:
        assert self._client is not None, "not started"
        return self._client

    def new_name(self) -> str:
        self._newcomers += 1
        return f"newcomer-{self._newcomers}"

    async def dlog(self, *arguments: str) -> tuple[int, str]:
        """Run a command of an operator; return its exit status and what it printed."""
        process = await self.dlog_process(*arguments)
        async with asyncio.timeout(COMMAND_S):
            printed, said = await process.communicate()
        assert process.returncode is not None
        if process.returncode and not printed:
            self.note(f"dlog {' '.join(arguments)}: {said.decode()[-500:].strip()}")
        return process.returncode, printed.decode()

    async def dlog_process(self, *arguments: str) -> asyncio.subprocess.Process:
        command = python("dlog.cli", *arguments)
        return await asyncio.create_subprocess_exec(
            *self.cluster.places[0].command(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "DLOG_URI": self.cluster.uri},
        )

    async def audited_without(self, bookie: str) -> None:
        """Return once an audit has found that *bookie* is lost."""
        deadline = time.monotonic() + WHOLE_S
        while True:
            audit = await Audit.last(self.client.store)
            if audit is not None and bookie in audit.lost:
                return
            assert time.monotonic() < deadline, f"no audit missed {bookie}"
            await asyncio.sleep(LOOK_AGAIN_S)

    # The run.

    async def _start(self) -> None:
        await super()._start()
        settings = LogSettings(quorum=Quorum(3, 3, 2))
        await create_log(COLD, settings=settings, client=self.client)
        async with await Log.open(COLD, client=self.client) as log:
            for _ in range(COLD_SEGMENTS):
                for _ in range(COLD_RECORDS):
                    await log.append(Random(log.last_offset).randbytes(COLD_RECORD_BYTES))
                await log.roll()
        await self._become_whole("the start")

    def _lines(self) -> list[Coroutine[Any, Any, None]]:
        found = kinds(zookeepers=0, cuts=False)
        leaders = {name: found.appends[name] for name in LEADERS}
        return [
            self._repairs(),
            self._line("appends", leaders, HELPERS_REST_S),
            self._line("readers", found.readers, HELPERS_REST_S),
            self._line("helpers", found.helpers, HELPERS_REST_S),
        ]

    async def _repairs(self) -> None:
        """Draw troubles so that each kind comes before any comes again."""
        random = Random(f"{self._plan.seed} repairs")
        deck: list[str] = []
        while not self._stop.is_set():
            if not deck:
                deck = random.sample(sorted(TROUBLES), len(TROUBLES))
            kind = deck.pop()
            self.note(f"trouble: {kind}")
            began = time.monotonic()
            await TROUBLES[kind](self, random)
            await self._become_whole(kind, since=began)
            assert not self.history.broken, self.history.broken

    async def _become_whole(self, kind: str, *, since: float | None = None) -> None:
        """Wait until every entry has every copy, and look at each of them."""
        began = time.monotonic() if since is None else since
        while why := await self._lacking() or await self._faults():
            took = time.monotonic() - began
            assert took < self.whole_s, f"{kind}: not whole within {self.whole_s:g} s: {why}"
            await asyncio.sleep(LOOK_AGAIN_S)
        took = time.monotonic() - began
        if since is not None:
            self._whole_s.setdefault(kind, []).append(took)
        self.note(f"whole again {took:.1f} s after {kind}")
        _, printed = await self.dlog("log", "audit", "--json")
        audit = json.loads(printed)
        assert not audit["missing"], audit
        assert not audit["troubles"], audit

    async def _lacking(self) -> str:
        """Return what lacks a copy by what metadata and bookies say; empty if nothing does."""
        here = {process.name for process in self.cluster.processes}
        async for part in parts_of(self.client.ledgers):
            for ledger_id, metadata in part:
                if gone := _named(metadata) - here:
                    return f"ledger {ledger_id} names {', '.join(sorted(gone))}"
        check = await check_all(self.client)
        if check.lacking or check.unsure or check.unreadable:
            return str(check)
        marked = [ledger_id async for ledger_id in Marks(self.client.store).list()]
        return f"{len(marked)} ledgers are marked" if marked else ""

    async def _faults(self) -> str:
        """Return what ``dlog log verify`` finds wrong; empty if all is well."""
        _, printed = await self.dlog("log", "verify", *self.verified, "--json")
        reports = [json.loads(line) for line in printed.splitlines()]
        assert [report["log"] for report in reports] == list(self.verified), printed
        assert reports[0]["records"] == COLD_SEGMENTS * COLD_RECORDS, printed
        for report in reports:
            if not report["healthy"]:
                return f"log {report['log']}: {report['faults']} {report['problems']}"
        return ""

    async def _check(self, end: int) -> None:
        await super()._check(end)
        await self._become_whole("the end", since=time.monotonic())
        # What killed leaders had begun is no leak of repair; nothing else may be left.
        await self.dlog("log", "audit", "--repair", "--json")
        status, printed = await self.dlog("log", "audit", "--json")
        assert status == 0, printed
        audit = json.loads(printed)
        assert not audit["orphans"], audit
        assert not await Marks(self.client.store).locked(), "no lock is left"

    def report(self) -> None:
        super().report()
        print("full replication again (s), from the begin of: count, median, worst")
        found = {kind: sorted(times) for kind, times in self._whole_s.items()}
        for kind, times in sorted(found.items(), key=lambda item: -item[1][-1]):
            print(f"  {len(times):4} {times[len(times) // 2]:7.1f} {times[-1]:7.1f}  {kind}")
        if found:
            longest = max(times[-1] for times in found.values())
            print(f"full replication again within: {longest:.1f} s (bound: {self.whole_s:g} s)")
        sys.stdout.flush()


def _named(metadata: LedgerMetadata | None) -> set[str]:
    """Return the bookies that hold entries of the ledger, or may get some."""
    assert metadata is not None, "metadata can be read"
    return {
        bookie
        for fragment in metadata.fragments
        if (end := metadata.settled_end(fragment)) is None or end >= fragment.first_entry
        for bookie in fragment.bookies
    }
