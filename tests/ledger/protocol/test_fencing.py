"""When fencing is over: every write set is covered by fences that are certain."""

from ledger.ids import BookieId
from ledger.protocol.common import Retries
from ledger.protocol.recovery_events import LacRead, Request
from ledger.protocol.recovery_phases import Fencing
from ledger.quorum import Quorum
from ledger.requests import Status

BOOKIES = tuple(BookieId(name) for name in ("b1", "b2", "b3"))


def fencing(tries_max: int = 2) -> Fencing:
    return Fencing(BOOKIES, Quorum(3, 3, 2), Retries[Request](0.1), tries_max)


def test_a_last_add_confirmed_without_a_fence_covers_nothing() -> None:
    machine = fencing()
    for index in (0, 1, 2):
        machine.heard(LacRead(index, fenced=False, last_add_confirmed=7, status=Status.OK), now=0.0)
    assert not machine.is_covered
    machine.heard(LacRead(0, fenced=True, last_add_confirmed=3, status=Status.OK), now=0.0)
    assert not machine.is_covered
    machine.heard(LacRead(1, fenced=True, last_add_confirmed=4, status=Status.OK), now=0.0)
    assert machine.is_covered
    assert machine.last_add_confirmed == 4


def test_fencing_is_hopeless_once_too_few_are_left_to_answer() -> None:
    machine = fencing(tries_max=1)
    machine.heard(
        LacRead(0, fenced=False, last_add_confirmed=-1, status=Status.UNREACHABLE), now=0.0
    )
    assert not machine.is_hopeless
    machine.heard(
        LacRead(1, fenced=False, last_add_confirmed=-1, status=Status.UNREACHABLE), now=0.0
    )
    assert machine.is_hopeless
