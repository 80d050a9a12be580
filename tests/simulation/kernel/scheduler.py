"""Simulated time: a heap of timed actions, one source of randomness, one trace.

Owns *when* anything happens. Invariants: time never goes back; actions of one instant run in
the order in which they were scheduled; every random choice of a simulation comes from
`Scheduler.random`. So a seed names one history, whatever PYTHONHASHSEED says (R10, R37).
"""

import hashlib
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

TRACE_TAIL_LINES: Final = 50
"""How many of the last events a failure prints."""

Action = Callable[[], object]
"""What it returns is of no interest to anybody."""


class FaultPlan:
    """Numbers faults as they are drawn. One that is left out is drawn all the same, so that the
    others stay what they are."""

    def __init__(self) -> None:
        self.left_out: frozenset[int] = frozenset()
        self.drawn = 0

    def happens(self) -> bool:
        """Whether the next fault, which was drawn just now, happens."""
        self.drawn += 1
        return self.drawn not in self.left_out


class Trace:
    """What happened, one line per event: hashed as it grows, the last lines kept.

    `marks` counts the interesting things, so that a run can show what it covered."""

    def __init__(self, *, keep_all: bool = False) -> None:
        self.tail: deque[str] = deque(maxlen=None if keep_all else TRACE_TAIL_LINES)
        self.marks: Counter[str] = Counter()
        self.lines = 0
        self._hash = hashlib.sha256()

    def note(self, line: str) -> None:
        self.lines += 1
        self.tail.append(line)
        self._hash.update(line.encode())
        self._hash.update(b"\n")

    def digest(self) -> str:
        """Return the hash of all lines so far."""
        return self._hash.hexdigest()


class Timer:
    """One scheduled action. `cancel` is idempotent and legal after it ran."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        self.action = None


class Scheduler:
    """Runs actions in the order of simulated time."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        """Monotonic seconds since the start of the simulation."""
        self.steps = 0
        """Actions run so far; a failure names this number."""
        self.random = random.Random(seed)
        self.trace = Trace(keep_all=keep_trace)
        self.faults = FaultPlan()
        self._heap: list[tuple[float, int, Timer]] = []
        self._scheduled = 0

    def after(self, delay_s: float, action: Action) -> Timer:
        """Run *action* once, *delay_s* from now."""
        assert delay_s >= 0.0, "nothing happens in the past"
        timer = Timer(action)
        self._scheduled += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._scheduled, timer))
        return timer

    def step(self) -> bool:
        """Run the next action; return False if there is none."""
        while self._heap:
            time, _, timer = heapq.heappop(self._heap)
            action = timer.action
            if action is None:
                continue
            self.now = time
            self.steps += 1
            timer.action = None
            action()
            return True
        return False

    def next_time(self) -> float | None:
        """Return when the next action runs, or None if nothing is scheduled."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def note(self, who: str, what: str) -> None:
        """Add one line to the trace."""
        self.trace.note(f"{self.now:.6f} {who} {what}")

    def mark(self, thing: str) -> None:
        """Count that *thing* happened (coverage of a run)."""
        self.trace.marks[thing] += 1

    def chance(self, probability: float) -> bool:
        """Return True with *probability*; no randomness is drawn for 0."""
        return probability > 0.0 and self.random.random() < probability
