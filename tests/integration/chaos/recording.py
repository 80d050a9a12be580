"""A run that is written down operation by operation, for a checker of linearizability to judge.

Appends and takeovers of writers, and what observers were told, each with the moments of its call
and of its answer by the machine's one monotonic clock. Nothing is truncated. What a killed process
did not hear has no outcome.
"""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dlog.aio import Log
from ledger.errors import LogError
from tests.integration.chaos.places import Places
from tests.integration.chaos.processes import Event, Member
from tests.integration.chaos.stage import Plan, Stage
from tests.integration.chaos.writer import LOG
from tests.linearizable import history
from tests.linearizable.history import Operation

OBSERVER: Final = "tests.integration.chaos.observer"
OBSERVERS: Final = 2
_NS: Final = 1_000_000_000


class RecordedStage(Stage):
    def __init__(self, plan: Plan, directory: Path, places: Places, why_not_apart: str) -> None:
        super().__init__(plan, directory, places, why_not_apart)
        self._appends: dict[str, Operation] = {}
        """By record: those that may have had an effect."""
        self._others: list[Operation] = []

    @property
    def operations(self) -> list[Operation]:
        return [*self._others, *self._appends.values()]

    def hear(self, member: Member, event: Event) -> None:
        at, life = _ns(event["at"]), member.life
        match event["event"]:
            case "appending":
                for sequence, expected in event["appends"]:
                    self._begins(life, f"{life}:{sequence}", at, event["epoch"], expected)
            case "acknowledged":
                for sequence, offset, answered in event["answers"]:
                    self._ends(f"{life}:{sequence}", offset, _ns(answered))
            case "refused" if event["unknown"]:
                self._ends(f"{life}:{event['sequence']}", event["offset"], None)
            case "refused":
                del self._appends[f"{life}:{event['sequence']}"]
            case "leading":
                self._takes_over(
                    life, event["asked"], event["at"], event["epoch"], event["last_offset"] + 1
                )
            case "end":
                told = history.end(life, _ns(event["asked"]), at, event["end"])
                self._others.append(told)
                self.happened["ends asked for"] += 1
                return
            case "read":
                certain = event["certain"]
                values = event["values"]
                told = history.read(life, _ns(event["asked"]), at, values, certain=certain)
                self._others.append(told)
                self.happened["whole reads" if certain else "reads without certainty"] += 1
                return
            case _:
                pass
        super().hear(member, event)

    async def usurp(self) -> None:
        self._usurpations += 1
        life = f"usurper.{self._usurpations}"
        record = f"{life}:0"
        asked = time.monotonic()
        with suppress(LogError):
            async with await Log.open(LOG, client=self._client, owner="usurper") as log:
                opened = time.monotonic()
                self._takes_over(life, asked, opened, log.epoch, log.last_offset + 1)
                self._begins(life, record, _ns(opened), log.epoch, None)
                appended = await log.append(record.encode())
                self._ends(record, appended.offset, time.monotonic_ns())
                self.history.told(appended.offset, record.encode(), log.epoch)
                self.history.times.append(time.monotonic())

    async def _start(self) -> None:
        await super()._start()
        for index in range(OBSERVERS):
            place = await self._places.make(f"observer-{index}")
            member = Member(place.name, place, self._directory, self.hear)
            self.observers.append(member)
            self._stack.push_async_callback(member.kill)
            await member.start(OBSERVER, self.cluster.uri, f"{member.name}.1")

    async def _check(self, end: int) -> None:
        for observer in self.observers:
            await observer.kill()
        await super()._check(end)
        asked = time.monotonic_ns()
        async with await Log.tail(LOG, client=self._client) as reader:
            until = await reader.barrier()
            values = [record.value.decode() async for record in reader.read_until(until)]
        self._others.append(history.read("the end", asked, time.monotonic_ns(), values))

    def _begins(self, life: str, record: str, at: int, epoch: int, expected: int | None) -> None:
        self._appends[record] = history.append(
            life, at, None, [record], epoch=epoch, expected=expected
        )

    def _ends(self, record: str, offset: int | None, at: int | None) -> None:
        """An answer: at an offset; or, without a time, that it may be there or nowhere."""
        self._appends[record] = replace(
            self._appends[record],
            returned=at,
            offset=history.UNKNOWN if offset is None else offset,
        )

    def _takes_over(self, life: str, asked: float, at: float, epoch: int, offset: int) -> None:
        taken = history.takeover(life, _ns(asked), _ns(at), epoch=epoch, offset=offset)
        self._others.append(taken)


def _ns(seconds: float) -> int:
    return round(seconds * _NS)
