"""What a named consumer's state may become: its position never moves back in silence.

Every change is a compare-and-swap of the whole state, so these functions decide alone.

Invariants:
    a commit moves the position forward or nowhere; only a reset moves it back
    the epoch grows with each exclusive open, with each end of exclusiveness and with each
        reset; a handle commits only in the epoch it was opened with

So at most one handle of an exclusive consumer moves its position, whatever became of its lock
(which only spares others the wait), and no handle undoes a reset that it does not know of.
"""

from dataclasses import dataclass, replace
from typing import Self

from dlog.errors import ConsumerFenced


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    incarnation: str
    """Random: a consumer that was deleted and re-created is another one."""
    log_incarnation: str
    """Of the log: one that was deleted and re-created has other records."""
    position: int
    """Every record below this offset was processed."""
    epoch: int = 1
    exclusive: bool = False
    owner: str = ""
    """Who opened or reset it last; for people."""
    updated_ms: int = 0
    """When it changed last; for people."""

    def opened(self, *, exclusive: bool, owner: str, now_ms: int) -> Self:
        """Return the state once a process opened it; the same one if nothing changes.

        Requires that nobody else holds the lock if either is *exclusive*."""
        if not exclusive and not self.exclusive:
            return self
        return replace(
            self, epoch=self.epoch + 1, exclusive=exclusive, owner=owner, updated_ms=now_ms
        )

    def committed(self, offset: int, *, by: Self, name: str, now_ms: int) -> Self:
        """Return the state with everything below *offset* processed, as a handle reports it.

        *by* is the state it was opened with. Raises `ConsumerFenced`."""
        if (by.incarnation, by.epoch) != (self.incarnation, self.epoch):
            raise ConsumerFenced(name, self.owner)
        if offset <= self.position:
            return self
        return replace(self, position=offset, updated_ms=now_ms)

    def was_reset(self, offset: int, *, owner: str, now_ms: int) -> Self:
        """Return the state that begins again at *offset*; no open handle may commit any more."""
        return replace(self, position=offset, epoch=self.epoch + 1, owner=owner, updated_ms=now_ms)
