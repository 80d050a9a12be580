"""A simulated machine: it can crash, start again, be paused for hours and wake up.

Invariants: an action scheduled in one life never runs in the next; while a host is paused
nothing of it runs, and what became due meanwhile runs at its waking, in order (rule 89).
"""

from collections.abc import Callable
from functools import partial

from tests.simulation.kernel.scheduler import Action, Scheduler, Timer


class Host:
    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.up = True
        self.paused = False
        self.asleep = False
        """Paused for hours: it wakes up when everything else is over."""
        self.life = 0
        """Number of crashes so far."""
        self.guard: Callable[[Action], None] = _run
        """Runs each action of this host; one that dies of its own accord has another guard."""
        self._clock_rate = 1.0 + scheduler.random.uniform(-0.05, 0.05)
        self._clock_start_s = scheduler.random.uniform(0.0, 1e5)
        self._held: list[tuple[int, Timer]] = []

    def clock(self) -> float:
        """Return this host's own monotonic clock: skewed, and running at its own rate."""
        return self._clock_start_s + self.scheduler.now * self._clock_rate

    def after(self, delay_s: float, action: Action) -> Timer:
        """Run *action* here, *delay_s* from now, unless this life ends before."""
        timer = Timer(action)
        self.scheduler.after(delay_s, partial(self._due, self.life, timer))
        return timer

    def at_clock(self, deadline: float, action: Action) -> Timer:
        """Run *action* when this host's own clock shows *deadline*."""
        delay_s = max(0.0, deadline - self.clock()) / self._clock_rate
        return self.after(delay_s + 1e-9, action)

    def crash(self, says: str = "crashes") -> None:
        """End this life: everything in memory and everything scheduled is gone."""
        assert self.up, f"{self.name} is down already"
        self.scheduler.note(self.name, says)
        self.up = False
        self.paused = self.asleep = False
        self.life += 1
        self._held.clear()

    def start(self) -> None:
        assert not self.up, f"{self.name} is up already"
        self.scheduler.note(self.name, "starts")
        self.up = True

    def pause(self) -> None:
        assert self.up, f"{self.name} is down"
        self.scheduler.note(self.name, "is paused")
        self.paused = True

    def resume(self) -> None:
        """Go on where the pause began; what became due meanwhile runs now, in order."""
        assert self.paused, f"{self.name} is not paused"
        self.scheduler.note(self.name, "wakes up")
        self.paused = self.asleep = False
        held, self._held = self._held, []
        for life, timer in held:
            self.scheduler.after(0.0, partial(self._due, life, timer))

    def arrive(self, action: Action) -> None:
        """Run *action*, which comes from outside: lost if down, held if paused."""
        if self.up:
            self._due(self.life, Timer(action))

    def _due(self, life: int, timer: Timer) -> None:
        if self.life != life or timer.action is None:
            return
        if self.paused:
            self._held.append((life, timer))
            return
        action, timer.action = timer.action, None
        self.guard(action)


def _run(action: Action) -> None:
    action()
