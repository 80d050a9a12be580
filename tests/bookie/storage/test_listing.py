"""Which entries a bookie says it holds: from memory and index pages, and never a wrong "no"."""

import pytest

from bookie.index.format import PAGE_BYTES, PAGE_ENTRIES, LedgerHeader, page_offset, path_of
from bookie.index.ledger_index import LedgerIndex
from bookie.storage import entry_list
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.requests import HeldAnswer, HeldQuery, Status
from tests.bookie.promises import EVERYTHING, KEY, SMALL, run_of
from tests.simulation.disk import SimDisk


def new_storage(disk: SimDisk | None = None, config: StorageConfig = SMALL) -> BookieStorage:
    return BookieStorage.open(disk or SimDisk(0), config)


def held(
    storage: BookieStorage, first: int = 0, last: int = EVERYTHING, ranges_max: int = 4096
) -> HeldAnswer:
    return storage.held(HeldQuery(1, KEY, first, last, ranges_max))


def ranges(answer: HeldAnswer) -> list[tuple[int, int]]:
    assert answer.status is Status.OK
    assert answer.considered == answer.listed
    return list(answer.ranges())


def damage(disk: SimDisk, at: int) -> None:
    """Damage the index of ledger 1, so that the next start does not mend it."""
    disk.damage(path_of(1), at, b"\xff\xff")


def test_what_is_held_is_listed_from_memory_and_from_disk_alike() -> None:
    storage = new_storage()
    storage.add(run_of(1, *range(10), *range(20, 300), 1000))
    for _ in range(2):
        assert ranges(held(storage)) == [(0, 9), (20, 299), (1000, 1000)]
        assert ranges(held(storage, 5, 200)) == [(5, 9), (20, 200)]
        assert ranges(held(storage, 10, 19)) == []
        assert held(storage, 10, 19).considered == 19
        storage.checkpoint()


def test_a_striped_share_is_listed_entry_by_entry() -> None:
    storage = new_storage()
    storage.add(run_of(1, *range(0, 300, 3)))
    storage.add(run_of(1, *range(300, 600, 3)))
    for _ in range(2):
        assert ranges(held(storage, 4, 500)) == [(e, e) for e in range(6, 500, 3)]
        storage.checkpoint()


def test_what_came_late_closes_the_gap_that_it_fills() -> None:
    """A repair: the entries around it are on disk, or in other runs."""
    storage = new_storage()
    storage.add(run_of(1, 0, 1, 4, 5))
    storage.checkpoint()
    storage.add(run_of(1, 6, 7, 10))
    storage.add(run_of(1, 3, recovery=True))
    assert ranges(held(storage)) == [(0, 1), (3, 7), (10, 10)]
    storage.add(run_of(1, 2, 8, 9, recovery=True))
    assert ranges(held(storage)) == [(0, 10)]


def test_an_answer_has_no_more_ranges_than_asked_for_and_says_where_to_go_on() -> None:
    storage = new_storage()
    storage.add(run_of(1, *range(0, 600, 2)))
    for _ in range(2):
        found, first, answers = list[tuple[int, int]](), 0, 0
        while first <= 700:
            answer = held(storage, first, 700, ranges_max=70)
            assert len(answer.firsts) <= 70
            found += ranges(answer)
            first, answers = answer.listed + 1, answers + 1
        assert found == [(e, e) for e in range(0, 600, 2)]
        assert answers == 5
        storage.checkpoint()


def test_one_request_looks_at_so_many_pages_and_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_list, "PAGES_MAX", 2)
    monkeypatch.setattr(entry_list, "RUNS_MAX", 3)
    storage = new_storage()
    storage.add(run_of(1, *range(600)))
    storage.checkpoint()
    for entry_id in range(600, 610):
        storage.add(run_of(1, entry_id))
    storage.checkpoint()
    for entry_id in range(610, 620):
        storage.add(run_of(1, entry_id))
    ends, first = list[int](), 0
    while first < 620:
        answer = held(storage, first, 1000)
        assert ranges(answer)[0][0] == first
        assert len(ranges(answer)) == 1
        first = answer.listed + 1
        ends.append(answer.listed)
    assert ends == [253, 507, 612, 615, 618, 1000]


def test_a_ledger_that_is_not_here_denies_everything() -> None:
    answer = held(new_storage(), 3, 99)
    assert answer == HeldAnswer(Status.NO_SUCH_LEDGER, considered=99, listed=99)


def test_nothing_is_listed_without_the_key_or_out_of_order() -> None:
    storage = new_storage()
    storage.add(run_of(1, 0))
    assert storage.held(HeldQuery(1, b"guess", 0, 9)).status is Status.WRONG_KEY
    assert held(storage, 3, 2).status is Status.BAD_REQUEST
    assert held(storage, -1, 2).status is Status.BAD_REQUEST


@pytest.mark.parametrize("first", [0, PAGE_ENTRIES, PAGE_ENTRIES + 5])
def test_a_damaged_index_page_ends_what_is_denied_and_not_what_is_listed(first: int) -> None:
    """It goes on behind that page, so that one page costs the knowledge of its own entries only."""
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, *range(0, 600, 2)))
    storage.checkpoint()
    storage.close()
    damage(disk, page_offset(1) + 100)
    storage = new_storage(disk)
    answer = held(storage, first)
    assert answer.considered == max(first, PAGE_ENTRIES) - 1
    assert answer.listed == 2 * PAGE_ENTRIES - 1
    assert list(answer.ranges()) == [(e, e) for e in range(first, PAGE_ENTRIES, 2)]
    assert (answer.status is Status.OK) == (first == 0), "not even the first one can be denied"
    behind = held(storage, answer.listed + 1)
    assert ranges(behind) == [(e, e) for e in range(2 * PAGE_ENTRIES, 600, 2)]


def test_entries_in_memory_are_listed_although_their_index_page_is_damaged() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0, 1))
    storage.checkpoint()
    storage.close()
    damage(disk, page_offset(0) + 100)
    storage = new_storage(disk)
    storage.add(run_of(1, 4, 5))
    answer = held(storage)
    assert (answer.status, answer.considered) == (Status.IO_ERROR, -1)
    assert list(answer.ranges()) == [(4, 5)]


def test_a_ledger_whose_header_is_damaged_denies_nothing() -> None:
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, 0, 1))
    storage.checkpoint()
    storage.close()
    damage(disk, 20)
    answer = held(new_storage(disk), 1)
    assert answer == HeldAnswer(Status.IO_ERROR, considered=0, listed=0)


def test_no_entry_is_read_and_no_page_stays_in_memory() -> None:
    """A check goes through all ledgers: it must not drive out what readers need."""
    disk = SimDisk(0)
    storage = new_storage(disk)
    storage.add(run_of(1, *range(600)))
    storage.checkpoint()
    storage.close()
    for path in disk.files():
        if path.startswith("entrylog/"):
            disk.go_bad("read", path)
    storage = new_storage(disk)
    cache = storage.ledger_directories[0].index.cache
    before = len(cache)
    assert ranges(held(storage)) == [(0, 599)]
    assert len(cache) == before
    assert len(disk.content(path_of(1))) == 6 * PAGE_BYTES


def test_what_a_checkpoint_moves_meanwhile_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is out of memory before the next page is looked at, or was not on disk yet."""
    storage = new_storage()
    storage.add(run_of(1, *range(10)))
    storage.checkpoint()
    storage.add(run_of(1, *range(10, 300)))
    pages = LedgerIndex.held

    def moving(index: LedgerIndex, header: LedgerHeader, number: int) -> list[tuple[int, int]]:
        named = pages(index, header, number)
        storage.checkpoint()
        return named

    monkeypatch.setattr(LedgerIndex, "held", moving)
    assert ranges(held(storage)) == [(0, 299)]


def test_a_ledger_that_is_deleted_meanwhile_is_gone_and_not_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = new_storage()
    storage.add(run_of(1, *range(10)))
    storage.checkpoint()
    pages = LedgerIndex.held

    def deleting(index: LedgerIndex, header: LedgerHeader, number: int) -> list[tuple[int, int]]:
        storage.delete([1])
        return pages(index, header, number)

    monkeypatch.setattr(LedgerIndex, "held", deleting)
    assert held(storage, 0, 9).status is Status.NO_SUCH_LEDGER
