"""What goes wrong below and in the processes of logs: death and sleep between any two steps."""

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.simulation.faults import Faults
from tests.simulation.logs.process import Process
from tests.simulation.logs.world import World
from tests.simulation.process import BOOKIES, STORE
from tests.simulation.profile import Profile

PAUSE_S_MAX: Final = 8.0
PAUSE_BETWEEN: Final = 0.2
"""How probably a leader that is paused at times is at a call while it closes its log, or rolls."""
PAUSE_AGAIN_CALLS: Final = 60
"""Who was paused once is again, after so many calls at most."""
PAUSES_MAX: Final = 6
"""Of one process: one that loses its session again and again comes to no end."""


class LogFaults(Faults):
    def __init__(self, world: World, profile: Profile) -> None:
        super().__init__(world, profile)
        self._world = world

    def heal(self) -> None:
        super().heal()
        self._world.metadata.late_replies = 0.0
        self._world.metadata.lies = 0.0
        self._world.objects.faults = 0.0

    def _reset_connection(self) -> None:
        streams = [s for process in self._world.processes for s in process.busy_streams()]
        if streams:
            self._random.choice(streams).reset()
            self._scheduler.mark("connection_reset")


class Doom:
    """What happens to one process, at one of its calls to the metadata store or to bookies."""

    def __init__(
        self,
        process: Process,
        fate: str,
        at_call: int,
        port: str = STORE,
        *,
        opening: Callable[[], bool],
        between: Callable[[], bool],
        on_crash: Callable[[Process], None],
    ) -> None:
        self._process = process
        self._fate = fate if process.world.scheduler.faults.happens() else "lives"
        self._at_call = at_call
        self._port = port
        self._opening = opening
        self._between = between
        self._on_crash = on_crash
        self._pauses = 0

    def __call__(self, port: str, what: str) -> None:
        process = self._process
        scheduler = process.world.scheduler
        if port != self._port:
            return
        due = process.calls[port] == self._at_call
        if self._fate == "pauses" and self._between():
            due |= scheduler.chance(PAUSE_BETWEEN)
        if not due or self._fate == "lives" or self._pauses >= PAUSES_MAX:
            return
        strike = partial(self._strike, process.host.life)
        before = scheduler.chance(0.5)
        process.note(f"{self._fate} {'before' if before else 'after'} its call: {what}")
        role = process.name.partition("-")[0].partition(".")[0]
        during = "_opening" if self._opening() else "_at_work" if role == "leader" else ""
        scheduler.mark(f"{role}_{self._fate}{during}")
        if port == BOOKIES:
            scheduler.mark(f"{role}_{self._fate}_between_bookies")
        if self._opening() and process.loop.step:
            scheduler.mark(f"opener_{self._fate}_at_{process.loop.step}")
        if before:
            strike()
        else:
            scheduler.after(0.0, strike)

    def _strike(self, life: int) -> None:
        process = self._process
        host = process.host
        if not host.up or host.life != life or host.paused:
            return
        match self._fate:
            case "crashes":
                process.crash()
                self._on_crash(process)
            case "sleeps":
                host.pause()
                host.asleep = True
            case _:
                host.pause()
                self._pauses += 1
                scheduler = process.world.scheduler
                calls = process.calls[self._port]
                self._at_call = calls + 1 + scheduler.random.randrange(PAUSE_AGAIN_CALLS)
                scheduler.after(scheduler.random.uniform(0.1, PAUSE_S_MAX), self._wake)

    def _wake(self) -> None:
        host = self._process.host
        if host.up and host.paused and not host.asleep:
            host.resume()
