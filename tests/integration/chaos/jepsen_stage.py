"""A run of `nemeses` on a cluster under load, and the reckoning by nemesis: `make chaos-jepsen`.

What became of each record that was acknowledged is counted at the end, by a fresh reader, and
belongs to the nemesis that was on, or had been on last, as its acknowledgement came. Unreadable
entries are made on purpose in a log that nobody writes; there a typed error is as good as the
record, and anything else breaks a promise.
"""

import asyncio
import json
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, Final

from dlog.aio import Log
from dlog.aio.admin import log_info
from dlog.local.bookie_process import BookieProcess
from dlog.local.errors import ChildFailed
from ledger.errors import LogError
from ledger.ids import LedgerId
from tests.integration.chaos.faults import Fault
from tests.integration.chaos.launcher import LAUNCHER, set_clock
from tests.integration.chaos.nemeses import JUMPS_S, nemeses
from tests.integration.chaos.places import Places
from tests.integration.chaos.processes import Event, Member
from tests.integration.chaos.repair_stage import (
    COLD_RECORD_BYTES,
    COLD_RECORDS,
    COLD_SEGMENTS,
    LOOK_AGAIN_S,
    RepairStage,
)
from tests.integration.chaos.repair_troubles import COLD, flip
from tests.integration.chaos.stage import Plan
from tests.integration.chaos.writer import LOG

CALM: Final = "none"
"""Before the first nemesis."""
LEAVE_HARM: Final = frozenset(
    kind
    for kind in nemeses(cuts=False)
    if any(word in kind for word in ("power", "bit", "rots", "membership"))
)
"""After these nothing goes on before every entry has every copy again."""
LAST_S: Final = ((0.5, 2.0), (2.0, 8.0))
REST_S: Final = (0.5, 2.0)


@dataclass(slots=True)
class Reckoning:
    """Of one nemesis."""

    times: int = 0
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    unknown: int = 0
    outage: float = 0.0
    """The longest time without an acknowledgement, in seconds."""


class JepsenStage(RepairStage):
    """Also the `nemeses.Arena`."""

    whole_s = 600.0

    def __init__(self, plan: Plan, directory: Path, places: Places, why_not_apart: str) -> None:
        super().__init__(plan, directory, places, why_not_apart)
        self.verified = (COLD,)
        possible = nemeses(cuts=places.apart)
        self._nemeses = {kind: possible[kind] for kind in plan.nemeses or possible}
        self._clocks: dict[str, Path] = {}
        self._flipped: dict[str, list[tuple[Path, int, int, int]]] = {}
        """By bookie: file, offset, bit, and the byte that it was."""
        self._answers: list[tuple[float, int, str]] = []
        """When a record was acknowledged, at which offset."""
        self._unanswered: dict[str, float] = {}
        """When a record was appended."""
        self._unknown: list[float] = []
        self._found: list[str] | None = None
        """All records at the end; None: it was not reached."""

    # What nemeses need.

    def jump(self, random: Random) -> None:
        for path in self._clocks.values():
            set_clock(path, random.choice(JUMPS_S))

    def set_clocks_right(self) -> None:
        for path in self._clocks.values():
            set_clock(path, 0.0)

    async def join(self) -> str:
        name = self.new_name()
        await self.cluster.add_bookie(name, await self._places.make(name))
        return name

    def flip(self, process: BookieProcess, path: Path, offset: int, random: Random) -> None:
        bit = 1 << random.randrange(8)
        before = _byte_at(path, offset)
        flip(path, offset, bit)
        self._flipped.setdefault(process.name, []).append((path, offset, bit, before))
        self.happened["bits flipped"] += 1

    async def restart_flipped(self, index: int) -> str:
        try:
            await self.cluster.restart_bookie(index)
        except ChildFailed as error:
            refusal = error.log_tail.splitlines()[-1] if error.log_tail else error.reason
        else:
            return ""
        process = self.cluster.processes[index]
        self.happened["a bookie refused to start on a flipped bit, and said why"] += 1
        self.note(f"{process.name} refuses: {refusal}")
        for path, offset, bit, before in self._flipped.pop(process.name, []):
            if path.exists() and _byte_at(path, offset) == before ^ bit:
                flip(path, offset, bit)
        await self.cluster.restart_bookie(index)
        return refusal

    async def copies_of_a_cold_entry(self, random: Random) -> tuple[LedgerId, int, list[int]]:
        manifest = (await log_info(COLD, client=self.client)).manifest
        ledger_id = random.choice(
            [each for each in manifest.segments if each.sealed and each.sealed.records]
        ).ledger_id
        metadata = await self.client.describe(ledger_id)
        fragment = metadata.fragments[0]
        end = metadata.settled_end(fragment)
        assert end is not None, "the segment is sealed"
        names = [process.name for process in self.cluster.processes]
        holders = [names.index(bookie) for bookie in fragment.bookies]
        return ledger_id, random.randrange(fragment.first_entry, end + 1), holders

    async def read_cold(self, damaged: str) -> None:
        values = []
        outcome = "read whole"
        try:
            async with await Log.tail(COLD, follow=False, client=self.client) as reader:
                async for record in reader:
                    values.append(record.value)  # noqa: PERF401 - also before an error
        except LogError as error:
            outcome = f"a typed error ({type(error).__name__})"
            self.note(f"cold: after {len(values)} records: {error}")
        wrong = [o for o, value in enumerate(values) if value != cold_record(o)]
        short = outcome == "read whole" and len(values) != COLD_SEGMENTS * COLD_RECORDS
        if wrong or short:
            self.history.broken.append(f"cold log: wrong at {wrong}, {len(values)} records")
        self.happened[f"an entry is damaged on {damaged}: {outcome}"] += 1

    async def repair_flips(self, *logs: str) -> None:
        deadline = time.monotonic() + self.whole_s
        while True:
            for index, process in enumerate(self.cluster.processes):
                if not process.running:
                    self.happened["a bookie ended by itself on a flipped bit"] += 1
                    self.note(f"{process.name} ended: {process.log_tail()[-300:]}")
                    await self.restart_flipped(index)
            _, printed = await self.dlog("log", "verify", *logs, "--repair", "--json")
            reports = [json.loads(line) for line in printed.splitlines()]
            for report in reports:
                for fault in report["faults"]:
                    self.happened[f"copies found {fault['fault']} by dlog log verify"] += 1
            if reports and all(report["healthy"] for report in reports):
                return
            assert time.monotonic() < deadline, f"not healthy: {printed}"
            await asyncio.sleep(LOOK_AGAIN_S)

    # The run.

    def hear(self, member: Member, event: Event) -> None:
        match event["event"]:
            case "appending":
                for sequence, _ in event["appends"]:
                    self._unanswered[f"{member.life}:{sequence}"] = event["at"]
            case "acknowledged":
                for sequence, offset, answered in event["answers"]:
                    record = f"{member.life}:{sequence}"
                    del self._unanswered[record]
                    self._answers.append((answered, offset, record))
            case "refused":
                del self._unanswered[f"{member.life}:{event['sequence']}"]
                if event["unknown"]:
                    self._unknown.append(event["at"])
            case _:
                pass
        super().hear(member, event)

    def _launch(self, name: str) -> Sequence[str]:
        path = self._directory / "clocks" / name
        path.parent.mkdir(exist_ok=True)
        self._clocks[name] = path
        return (LAUNCHER, str(path))

    def _lines(self) -> list[Coroutine[Any, Any, None]]:
        return [self._play()]

    async def _play(self) -> None:
        """Draw nemeses so that each comes once before the time is over, or after it."""
        random = Random(f"{self._plan.seed} nemeses")
        struck: set[str] = set()
        while not self._stop.is_set():
            for kind in random.sample(sorted(self._nemeses), len(self._nemeses)):
                if self._stop.is_set() and kind in struck:
                    break
                struck.add(kind)
                await self._strike(kind, random)
                await asyncio.sleep(random.uniform(*REST_S))

    async def _strike(self, kind: str, random: Random) -> None:
        fault = Fault(kind, time.monotonic())
        self.faults.append(fault)
        seconds = random.uniform(*random.choice(LAST_S))
        async with self._nemeses[kind](self, random) as target:
            self.note(f"{kind}: {target}, for {seconds:.1f} s")
            await asyncio.sleep(seconds)
        self.happened[f"nemesis: {kind}"] += 1
        fault.end = time.monotonic()
        fault.resumed = await self._acknowledged_after(fault.end, kind)
        if kind in LEAVE_HARM:
            await self._become_whole(kind, since=fault.begin)
        assert not self.history.broken, self.history.broken

    async def _check(self, end: int) -> None:
        async with await Log.tail(LOG, follow=False, client=self.client) as reader:
            self._found = [record.value.decode() async for record in reader]
        self.verified = (COLD, LOG)
        await super()._check(end)

    def reckon(self) -> dict[str, Reckoning]:
        """Return what became of the records, by nemesis. Requires that they were read."""
        assert self._found is not None, "the run ended early"
        kinds = {CALM: Reckoning()} | {fault.kind: Reckoning() for fault in self.faults}
        begins = [fault.begin for fault in self.faults]

        def of(at: float) -> Reckoning:
            number = bisect_right(begins, at)
            return kinds[self.faults[number - 1].kind if number else CALM]

        count = Counter(self._found)
        places = {record: offset for offset, record in enumerate(self._found)}
        behind = _behind_later_ones(self._found)
        for at, offset, record in self._answers:
            kind = of(at)
            kind.acknowledged += 1
            kind.lost += not count[record]
            kind.duplicated += count[record] > 1
            kind.reordered += record in behind or places.get(record, offset) != offset
        for at in (*self._unknown, *self._unanswered.values()):
            of(at).unknown += 1
        self.history.times.sort()
        for fault in self.faults:
            kind = kinds[fault.kind]
            kind.times += 1
            until = fault.resumed or time.monotonic()
            kind.outage = max(kind.outage, self.history.longest_outage(fault.begin, until))
        return kinds

    def report(self) -> None:
        super().report()
        if self._found is None:
            print("the log was not read to its end: what became of its records is not known")
            return
        names = [field.name for field in fields(Reckoning)]
        print(f"\n| nemesis | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        total = Reckoning()
        for kind, reckoning in sorted(self.reckon().items()):
            print(f"| {kind} | {_row(reckoning, names)} |")
            for name in names:
                both = getattr(total, name), getattr(reckoning, name)
                setattr(total, name, max(both) if name == "outage" else sum(both))
        print(f"| in all | {_row(total, names)} |", flush=True)


def cold_record(offset: int) -> bytes:
    return Random(offset - 1).randbytes(COLD_RECORD_BYTES)


def _row(reckoning: Reckoning, names: list[str]) -> str:
    values = [getattr(reckoning, name) for name in names]
    return " | ".join(f"{v:.1f}" if isinstance(v, float) else f"{v:,}" for v in values)


def _behind_later_ones(records: list[str]) -> set[str]:
    """Return the records of a life that stand behind one that it appended later."""
    last: dict[str, int] = {}
    behind = set()
    for record in records:
        life, _, sequence = record.rpartition(":")
        if int(sequence) < last.get(life, -1):
            behind.add(record)
        last[life] = max(int(sequence), last.get(life, -1))
    return behind


def _byte_at(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return os.pread(file.fileno(), 1, offset)[0]
