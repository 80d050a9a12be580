"""Commands that a replica appended and that it has not applied yet: what becomes of each.

    proposed    it is appended, or will be
    unknown     the append ended without an outcome; the log decides
    applied     it came back from the log, or its append was confirmed
    withdrawn   it is certainly not in the log

An unknown one is applied when the log shows it. It is withdrawn when the mark of a later epoch is
applied first: a takeover fences all earlier epochs, so what they appended is below the mark or
nowhere. Neither rests on a clock.

Invariant: each proposal leaves once, applied or withdrawn.
"""

from typing import Generic, TypeVar

from dlog.protocol.command import Origin

W = TypeVar("W")
"""What waits for the outcome."""
RequestKey = tuple[str, int]
"""Client and number of a request: made once, as each use of it would cost as much."""


class Proposals(Generic[W]):
    def __init__(self, proposer: bytes) -> None:
        """*proposer*: of this replica in this life, and of no other."""
        self.proposer = proposer
        self._sequence = 0
        self._pending: dict[int, tuple[int, RequestKey | None, W]] = {}
        """Epoch, request and what waits, by sequence."""
        self._requests: dict[RequestKey, W] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def waiter_of(self, request: RequestKey) -> W | None:
        """Return what waits for *request* already."""
        return self._requests.get(request)

    def propose(self, epoch: int, request: RequestKey | None, waiter: W) -> Origin:
        """Count a command that is appended by *epoch*; *waiter* gets its outcome."""
        self._sequence += 1
        self._pending[self._sequence] = epoch, request, waiter
        if request is not None:
            assert request not in self._requests, "a request that is pending is waited for"
            self._requests[request] = waiter
        return Origin(self.proposer, self._sequence)

    def leave(self, origin: Origin) -> W | None:
        """Return what waits for *origin*, which was applied or refused; None: another replica's, or
        one of a life before."""
        proposer, sequence = origin
        if proposer != self.proposer or sequence not in self._pending:
            return None
        _, request, waiter = self._pending.pop(sequence)
        if request is not None:
            del self._requests[request]
        return waiter

    def withdraw_before(self, epoch: int) -> list[W]:
        """Return what waits for proposals of epochs before *epoch*, whose mark was applied."""
        gone = [sequence for sequence, (of, _, _) in self._pending.items() if of < epoch]
        origins = [Origin(self.proposer, sequence) for sequence in gone]
        return [waiter for origin in origins if (waiter := self.leave(origin)) is not None]

    def give_up(self) -> list[W]:
        """Return what waits for any of them: nothing is applied here any more."""
        waiters = [waiter for _, _, waiter in self._pending.values()]
        self._pending.clear()
        self._requests.clear()
        return waiters
