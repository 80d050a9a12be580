"""The first phase of a recovery: fence the last ensemble until every write set is covered."""

from ledger.ids import BookieId
from ledger.protocol.recovery_events import LacRead, Request, SendFence
from ledger.protocol.retries import Retries
from ledger.quorum import Quorum, all_covered
from ledger.requests import Status


class Fencing:
    def __init__(
        self,
        ensemble: tuple[BookieId, ...],
        quorum: Quorum,
        retries: Retries[Request],
        tries_max: int,
    ) -> None:
        self.gave_up: dict[int, None] = {}
        """Indexes of bookies that are not asked any more."""
        self.met_stranger = False
        """Iff a bookie has the ledger under another key. It says nothing about this one, now or
        later, so it counts as silent."""
        self.was_denied = False
        """Iff a bookie does not allow it; asked again soon, it says the same."""
        self._fenced: dict[int, int] = {}
        """index -> LAC it proved"""
        self._ensemble = ensemble
        self._quorum = quorum
        self._retries = retries
        self._tries_max = tries_max

    @property
    def is_covered(self) -> bool:
        """True iff no add that is not fenced can be confirmed any more (rule 39)."""
        return all_covered(self._fenced, self._quorum)

    @property
    def is_hopeless(self) -> bool:
        """True iff too few are left to cover every write set."""
        left = [index for index in range(self._quorum.ensemble) if index not in self.gave_up]
        return not all_covered(left, self._quorum)

    @property
    def last_add_confirmed(self) -> int:
        return max(self._fenced.values())

    @property
    def claimants(self) -> tuple[BookieId, ...]:
        """Who proved the highest last add confirmed."""
        highest = self.last_add_confirmed
        return tuple(self._ensemble[each] for each, lac in self._fenced.items() if lac == highest)

    def start(self) -> list[SendFence]:
        return [SendFence(index, bookie) for index, bookie in enumerate(self._ensemble)]

    def heard(self, event: LacRead, now: float) -> None:
        if event.fenced:
            self._fenced[event.index] = event.last_add_confirmed
            return
        if event.status in {Status.WRONG_KEY, Status.ACCESS_DENIED}:
            self.met_stranger |= event.status is Status.WRONG_KEY
            self.was_denied |= event.status is Status.ACCESS_DENIED
            self.gave_up[event.index] = None
            return
        again = SendFence(event.index, self._ensemble[event.index])
        if not self._retries.try_again(again, now, tries_max=self._tries_max):
            self.gave_up[event.index] = None
