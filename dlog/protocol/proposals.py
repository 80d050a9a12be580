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

from dlog.protocol.command import Origin, RequestId, new_tuple

W = TypeVar("W")
"""What waits for the outcome."""


class Proposals(Generic[W]):
    def __init__(self, proposer: bytes) -> None:
        """*proposer*: of this replica in this life, and of no other."""
        self.proposer = proposer
        self._sequence = 0
        self._pending: dict[int, tuple[int, RequestId | None, W]] = {}
        """Epoch, request and what waits, by sequence."""
        self._requests: dict[RequestId, W] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def waiter_of(self, request: RequestId) -> W | None:
        """Return what waits for *request* already."""
        return self._requests.get(request)

    def propose(self, epoch: int, request: RequestId | None, waiter: W) -> Origin:
        """Count a command that is appended by *epoch*; *waiter* gets its outcome."""
        sequence = self._sequence = self._sequence + 1
        self._pending[sequence] = epoch, request, waiter
        if request is not None:
            known = self._requests.setdefault(request, waiter)
            assert known is waiter, "a request that is pending is waited for"
        return new_tuple(Origin, (self.proposer, sequence))

    def leave(self, origin: Origin) -> W | None:
        """Return what waits for *origin*, which was applied or refused; None: another replica's, or
        one of a life before."""
        proposer, sequence = origin
        pending = self._pending.pop(sequence, None) if proposer == self.proposer else None
        if pending is None:
            return None
        _, request, waiter = pending
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
