"""Consumer groups as metrics show them: how many there are, their members, how far they are behind.

A gateway knows the groups that it coordinates. Of a log that it leads it knows the end, too; of
others it asks bookies, as any reader does, `ENDS_MAX` of them each time. A group is behind by all
records between what it has committed and the ends of these logs.

Names of groups are labels. So `GROUPS_SHOWN_MAX` of them are shown: those that are furthest behind,
and those with most members. What is not led here any more is not shown.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.tails import TailTracker
from dlog.kafka.coordinator import GroupCoordinator
from dlog.kafka.protocol.consumer_group import GroupPhase
from ledger.errors import LogError
from ledger.tasks import Background

SURVEY_S: Final = 15.0
ENDS_MAX: Final = 200
"""Logs that others lead, of which the end is asked each time; the others wait for their turn."""
ASK_S_MAX: Final = 5.0
GROUPS_SHOWN_MAX: Final = 256
_EndHere = Callable[[str], int | None]


class GroupSurvey(Background):
    """*log_of*: the log of a topic's partition; *end_here*: the end of a log that is open here."""

    def __init__(
        self,
        ledgers: Ledgers,
        coordinator: GroupCoordinator,
        *,
        log_of: Callable[[str, int], str | None],
        end_here: _EndHere,
        every_s: float = SURVEY_S,
    ) -> None:
        self._ledgers, self._coordinator, self._every_s = ledgers, coordinator, every_s
        self._log_of, self._end_here = log_of, end_here
        self._ends: dict[str, int] = {}
        """Of logs that others lead; those that were asked longest ago first."""
        self.states: Mapping[str, int] = {}
        """Groups by the name of their state."""
        self.members: Mapping[str, int] = {}
        self.lags: Mapping[str, int] = {}
        """Records; a log whose end is not known yet does not count."""

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Look at all groups once."""
        states, members = Counter[str](), Counter[str]()
        committed: dict[str, list[tuple[str, int]]] = {}
        for log in self._coordinator.logs:
            for group, phase, count in log.survey():
                states[phase.kafka_name] += 1
                if count:
                    members[group] = count
                committed[group] = [
                    (name, offset.offset)
                    for (topic, partition), offset in log.state.committed(group).items()
                    if (name := self._log_of(topic, partition)) is not None
                ]
        ends = await self._known_ends({log for pairs in committed.values() for log, _ in pairs})
        lags = {
            group: sum(max(0, ends[log] - offset) for log, offset in pairs if log in ends)
            for group, pairs in committed.items()
            if pairs
        }
        self.states = {phase.kafka_name: states[phase.kafka_name] for phase in GroupPhase}
        self.members, self.lags = _largest(members), _largest(lags)

    async def _known_ends(self, logs: set[str]) -> Mapping[str, int]:
        here = {log: end for log in logs if (end := self._end_here(log)) is not None}
        elsewhere = logs - here.keys()
        self._ends = {log: end for log, end in self._ends.items() if log in elsewhere}
        new = [log for log in sorted(elsewhere) if log not in self._ends]
        for log in [*new, *self._ends][:ENDS_MAX]:
            self._ends.pop(log, None)
            try:
                async with asyncio.timeout(ASK_S_MAX):
                    self._ends[log] = await self._ask(log)
            except (LogError, TimeoutError):
                continue  # it is not known now
        return {**self._ends, **here}

    async def _ask(self, log: str) -> int:
        tracker = TailTracker(self._ledgers, log)
        try:
            return (await tracker.poll()).next_offset
        finally:
            await tracker.close()


def _largest(counts: Mapping[str, int]) -> Mapping[str, int]:
    if len(counts) <= GROUPS_SHOWN_MAX:
        return dict(counts)
    return dict(nlargest(GROUPS_SHOWN_MAX, counts.items(), key=lambda each: (each[1], each[0])))
