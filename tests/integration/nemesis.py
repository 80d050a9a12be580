"""Makes bookies and links fail, by a schedule that a seed decides.

The schedule, not its timing, is a function of the seed: real processes keep their own time.
How long a fault stays is counted in the writer's progress, up to a time if there is none.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random

from dlog.local.cluster import LocalCluster
from tests.integration.partition import Network

POLL_S = 0.02


class Kind(Enum):
    KILL = "kill"
    """SIGKILL, and a restart on the same data."""
    BLACKOUT = "blackout"
    """SIGKILL for all bookies at once: what is left is what they had on disk."""
    STOP = "stop"
    """SIGSTOP and SIGCONT: alive, and says nothing."""
    DEAF = "deaf"
    """What the client says does not arrive."""
    MUTE = "mute"
    """The answers do not arrive."""
    CUT = "cut"
    """Nothing arrives, in either direction."""
    RESET = "reset"
    """The connections break once."""


PROCESS_KINDS = (*[Kind.KILL, Kind.STOP] * 2, Kind.BLACKOUT)
LINK_KINDS = (Kind.DEAF, Kind.MUTE, Kind.CUT, Kind.RESET)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    bookie: int
    client: str
    """Whose link, for faults of links."""
    acknowledgements: int
    """It stays until so many more adds were acknowledged ..."""
    seconds: float
    """... but not longer than this."""


def draw(random: Random, kinds: tuple[Kind, ...], bookies: int, clients: tuple[str, ...]) -> Fault:
    return Fault(
        kind=random.choice(kinds),
        bookie=random.randrange(bookies),
        client=random.choice(clients),
        acknowledgements=random.choice((100, 5_000, 1_000_000)),
        seconds=random.uniform(0.2, 2.5),
    )


class Nemesis:
    """Two lines of faults side by side: at most one bookie's process and one link at a time."""

    def __init__(
        self,
        cluster: LocalCluster,
        network: Network,
        clients: tuple[str, ...],
        seed: str,
        acknowledged: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._clients = clients
        self._acknowledged = acknowledged
        self._randoms = {
            kinds: Random(f"{seed} {kinds[0].value}") for kinds in (PROCESS_KINDS, LINK_KINDS)
        }
        self.made: Counter[str] = Counter()
        self.story: list[Fault] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Make trouble until *stop*; afterwards everything works again."""
        async with asyncio.TaskGroup() as lines:
            for kinds, random in self._randoms.items():
                lines.create_task(self._line(kinds, random, stop))

    async def _line(self, kinds: tuple[Kind, ...], random: Random, stop: asyncio.Event) -> None:
        while not stop.is_set():
            fault = draw(random, kinds, len(self._cluster.processes), self._clients)
            self.story.append(fault)
            self.made[fault.kind.value] += 1
            try:
                self._begin(fault)
                await self._hold(fault, stop)
            finally:
                await self._end(fault)

    def _begin(self, fault: Fault) -> None:
        process = self._cluster.processes[fault.bookie]
        link = self._network.link(fault.client, process.bookie)
        match fault.kind:
            case Kind.KILL:
                self._cluster.kill_bookie(fault.bookie)
            case Kind.BLACKOUT:
                for index in range(len(self._cluster.processes)):
                    self._cluster.kill_bookie(index)
            case Kind.STOP:
                os.kill(process.pid, signal.SIGSTOP)
            case Kind.DEAF:
                link.cut(from_bookie=False)
            case Kind.MUTE:
                link.cut(to_bookie=False)
            case Kind.CUT:
                link.cut()
            case Kind.RESET:
                link.reset()

    async def _hold(self, fault: Fault, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        until, enough = loop.time() + fault.seconds, self._acknowledged() + fault.acknowledgements
        while not stop.is_set() and loop.time() < until and self._acknowledged() < enough:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await stop.wait()

    async def _end(self, fault: Fault) -> None:
        process = self._cluster.processes[fault.bookie]
        match fault.kind:
            case Kind.KILL:
                await self._cluster.restart_bookie(fault.bookie)
            case Kind.BLACKOUT:
                every = range(len(self._cluster.processes))
                await asyncio.gather(*map(self._cluster.restart_bookie, every))
            case Kind.STOP:
                os.kill(process.pid, signal.SIGCONT)
            case _:
                self._network.link(fault.client, process.bookie).heal()
