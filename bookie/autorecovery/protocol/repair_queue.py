"""Which of the marked ledgers a worker takes next. Pure.

Urgent ones first, whenever they become so; then the others as they are listed. Those that another
worker is at are passed over, and so are those whose time has not come, as far as is remembered.

Invariants:
    in one scan a ledger is taken at most once in its turn, and once more if it becomes urgent
    what is kept is bounded: one part of the list, the urgent ones, `PUT_OFF_MAX` times
"""

from collections import deque
from collections.abc import Collection, Iterable
from random import Random
from typing import Final

from ledger.ids import LedgerId

PUT_OFF_MAX: Final = 10_000
"""So many ledgers' times are remembered; of the others the mark is read again."""
BUSY_MS: Final = 5_000
"""After how long to look again at what another worker was at: it may have ended."""


class Queue:
    """Of one worker, for all of its scans."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._put_off: dict[LedgerId, int] = {}
        """Not to be taken before, by the wall clock."""
        self._locked: Collection[LedgerId] = frozenset()
        self._urgent: deque[LedgerId] = deque()
        self._listed: deque[LedgerId] = deque()
        self._taken: set[LedgerId] = set()
        """Of the urgent ones, in this scan."""
        self.next_ms: int | None = None
        """When to look again, by the wall clock, as far as this scan has found a reason."""
        self.deferred = 0
        """Ledgers of this scan whose time has not come."""

    def begin(self) -> None:
        """Begin a scan."""
        self._urgent.clear()
        self._listed.clear()
        self._taken.clear()
        self.next_ms, self.deferred = None, 0

    def saw(self, urgent: Iterable[LedgerId], locked: Collection[LedgerId]) -> None:
        """Record which ledgers are urgent, and which are being repaired, now."""
        found = list(urgent)
        self._locked = locked
        self._taken.intersection_update(found)
        fresh = [ledger_id for ledger_id in found if ledger_id not in self._taken]
        self._urgent = deque(self._shuffled(fresh))

    def listed(self, ledgers: Iterable[LedgerId]) -> None:
        """Record the next part of the list."""
        # Workers that began together would otherwise meet at each of them.
        self._listed.extend(self._shuffled(ledgers))

    def take(self, *, now_ms: int) -> LedgerId | None:
        """Return the ledger to take now, None if the part of the list is at its end."""
        while self._urgent:
            ledger_id = self._urgent.popleft()
            self._taken.add(ledger_id)
            if not self._is_busy(ledger_id, now_ms):
                return ledger_id
        while self._listed:
            ledger_id = self._listed.popleft()
            if ledger_id not in self._taken and not self._is_busy(ledger_id, now_ms):
                return ledger_id
        return None

    def is_put_off(self, ledger_id: LedgerId, *, now_ms: int) -> bool:
        """Return whether, by what is remembered, its time has not come: worth a look at its mark,
        and not a lock."""
        until_ms = self._put_off.get(ledger_id)
        if until_ms is not None and until_ms <= now_ms:
            del self._put_off[ledger_id]
            return False
        return until_ms is not None

    def put_off(self, ledger_id: LedgerId, until_ms: int) -> None:
        """Remember that nothing is to be done about the ledger before *until_ms*."""
        self._put_off.pop(ledger_id, None)
        if len(self._put_off) >= PUT_OFF_MAX:
            del self._put_off[next(iter(self._put_off))]
        self._put_off[ledger_id] = until_ms
        self.deferred += 1
        self._look_again(until_ms)

    def ended(self, ledger_id: LedgerId) -> None:
        """Forget the ledger's time."""
        self._put_off.pop(ledger_id, None)

    def was_busy(self, *, now_ms: int) -> None:
        """Another worker had what was taken."""
        self._look_again(now_ms + BUSY_MS)

    def _is_busy(self, ledger_id: LedgerId, now_ms: int) -> bool:
        if ledger_id not in self._locked:
            return False
        self.was_busy(now_ms=now_ms)
        return True

    def _look_again(self, at_ms: int) -> None:
        self.next_ms = at_ms if self.next_ms is None else min(self.next_ms, at_ms)

    def _shuffled(self, ledgers: Iterable[LedgerId]) -> list[LedgerId]:
        found = list(ledgers)
        self._random.shuffle(found)
        return found
