"""Which marked ledger comes next."""

from random import Random

from bookie.autorecovery.protocol import repair_queue
from bookie.autorecovery.protocol.repair_queue import BUSY_MS, Queue
from ledger.ids import LedgerId

NOW_MS = 1_000_000


def ids(*numbers: int) -> tuple[LedgerId, ...]:
    return tuple(LedgerId(number) for number in numbers)


def queue(*listed: int, seed: int = 1) -> Queue:
    made = Queue(Random(seed))
    made.begin()
    made.listed(ids(*listed))
    return made


def taken(of: Queue) -> list[int]:
    found = []
    while (ledger_id := of.take(now_ms=NOW_MS)) is not None:
        found.append(int(ledger_id))
    return found


def test_all_that_is_listed_is_taken_once() -> None:
    assert sorted(taken(queue(1, 2, 3))) == [1, 2, 3]


def test_what_is_urgent_comes_first_and_is_not_taken_again_when_it_is_listed() -> None:
    waiting = queue(1, 2, 3, 4)
    waiting.saw(ids(3, 9), frozenset())
    found = taken(waiting)
    assert set(found[:2]) == {3, 9}
    assert sorted(found) == [1, 2, 3, 4, 9]


def test_what_becomes_urgent_in_the_middle_comes_next() -> None:
    waiting = queue(*range(100))
    waiting.take(now_ms=NOW_MS)
    waiting.saw(ids(500), frozenset())
    assert waiting.take(now_ms=NOW_MS) == 500
    waiting.saw(ids(500), frozenset())
    assert waiting.take(now_ms=NOW_MS) != 500
    waiting.saw(ids(), frozenset())
    waiting.saw(ids(500), frozenset())
    assert waiting.take(now_ms=NOW_MS) == 500, "it has become urgent once more"


def test_a_scan_begins_with_nothing_of_the_one_before() -> None:
    waiting = queue(1, 2)
    waiting.saw(ids(8, 9), frozenset())
    assert waiting.take(now_ms=NOW_MS) in {8, 9}
    waiting.begin()
    assert taken(waiting) == []
    waiting.saw(ids(8, 9), frozenset())
    assert sorted(taken(waiting)) == [8, 9]


def test_what_another_worker_is_at_is_passed_over_and_looked_at_soon() -> None:
    waiting = queue(1, 2, 3)
    waiting.saw(ids(7, 8), frozenset(ids(2, 7)))
    assert sorted(taken(waiting)) == [1, 3, 8]
    assert waiting.next_ms == NOW_MS + BUSY_MS


def test_two_workers_that_begin_together_do_not_go_the_same_way() -> None:
    assert taken(queue(*range(20), seed=1)) != taken(queue(*range(20), seed=2))


def test_what_was_put_off_is_remembered_until_its_time_also_in_the_next_scan() -> None:
    waiting = queue(1, 2)
    waiting.put_off(LedgerId(1), NOW_MS + 500)
    waiting.put_off(LedgerId(2), NOW_MS + 300)
    assert (waiting.deferred, waiting.next_ms) == (2, NOW_MS + 300)
    waiting.begin()
    assert (waiting.deferred, waiting.next_ms) == (0, None)
    assert waiting.is_put_off(LedgerId(1), now_ms=NOW_MS + 499)
    assert not waiting.is_put_off(LedgerId(1), now_ms=NOW_MS + 500)
    assert not waiting.is_put_off(LedgerId(1), now_ms=NOW_MS)
    waiting.ended(LedgerId(2))
    assert not waiting.is_put_off(LedgerId(2), now_ms=NOW_MS)


def test_of_more_than_can_be_remembered_the_oldest_is_forgotten() -> None:
    waiting = queue()
    for number in range(repair_queue.PUT_OFF_MAX + 1):
        waiting.put_off(LedgerId(number), NOW_MS + 1)
    assert not waiting.is_put_off(LedgerId(0), now_ms=NOW_MS)
    assert waiting.is_put_off(LedgerId(1), now_ms=NOW_MS)
    waiting.put_off(LedgerId(2), NOW_MS + 2)
    assert waiting.is_put_off(LedgerId(1), now_ms=NOW_MS), "no other one needed its place"
    waiting.put_off(LedgerId(0), NOW_MS + 1)
    assert not waiting.is_put_off(LedgerId(1), now_ms=NOW_MS)
