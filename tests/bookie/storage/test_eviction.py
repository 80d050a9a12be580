"""What is evicted is gone, and may come back: by a repair as if it was never here, not by writers.

That nothing is lost or half there whenever the power fails is in `test_storage_crash` and
`test_storage_model`.
"""

import pytest

from bookie.disk.port import DiskFull
from bookie.index.format import LedgerHeader, path_of
from bookie.index.ledger_cache import LedgerCache
from bookie.index.ledger_index import LedgerIndex
from bookie.index.tombstones import FENCES_PATH
from bookie.storage.engine import BookieStorage
from ledger.requests import HeldQuery, ReadQuery, Status
from tests.bookie.promises import KEY, Promises, entries_of, run_of
from tests.simulation.disk import Loss, SimDisk


def kept(disk: SimDisk, *ledger_ids: int) -> Promises:
    """Return a storage with entries of these ledgers on disk."""
    promises = Promises(disk)
    promises.open()
    for ledger_id in ledger_ids:
        promises.add(ledger_id, *range(5))
    promises.commit()
    promises.checkpoint()
    return promises


def evict(storage: BookieStorage, *ledger_ids: int) -> None:
    storage.evict(ledger_ids, storage.offer(ledger_ids))


def test_what_is_evicted_is_not_here_and_nothing_else_changes() -> None:
    promises = kept(SimDisk(0), 1, 2, 3)
    promises.evict(2)
    assert promises.storage.ledger_ids() == [1, 3]
    query = ReadQuery(2, KEY, 0, 9)
    assert promises.storage.read(query).status is Status.NO_SUCH_LEDGER
    assert promises.storage.held(HeldQuery(2, KEY, 0, 9)).status is Status.NO_SUCH_LEDGER
    assert promises.storage.lac(2, KEY).status is Status.NO_SUCH_LEDGER
    promises.check()


def test_a_start_after_an_eviction_misses_nothing() -> None:
    promises = kept(SimDisk(0), 1, 2, 3)
    promises.evict(2)
    promises.disk.crash(Loss.LOST)
    promises.open()
    assert promises.storage.limbo is None
    assert promises.storage.ledger_ids() == [1, 3]
    promises.check()


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_evicted_can_be_moved_back(restarts: bool) -> None:
    promises = kept(SimDisk(0), 1, 2)
    promises.evict(2)
    promises.collect()
    if restarts:
        promises.storage.close()
        promises.open()
    assert promises.add(2, 0, 1, 2, recovery=True) is Status.OK
    assert promises.add(2, 3, 4, recovery=True) is Status.OK
    promises.commit()
    promises.check()
    promises.checkpoint()
    promises.storage.close()
    promises.open()
    assert sorted(entries_of(promises.storage, 2)) == [0, 1, 2, 3, 4]
    promises.check()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("came_back", [False, True])
def test_no_writer_adds_to_what_was_evicted(restarts: bool, came_back: bool) -> None:
    """A deposed one may wake up when each bookie that was fenced has evicted the ledger."""
    promises = kept(SimDisk(0), 1, 2)
    promises.evict(2)
    if came_back:
        promises.add(2, 0, recovery=True)
        promises.commit()
    if restarts:
        promises.disk.crash(Loss.LOST)
        promises.open()
    assert promises.storage.add(run_of(2, 7)) == (Status.FENCED, 0)


def test_the_power_may_fail_before_what_came_back_is_in_an_index_and_it_is_fenced_still() -> None:
    promises = kept(SimDisk(0), 2)
    promises.evict(2)
    for _ in range(3):  # replayed, flushed by that, loaded from the index
        promises.add(2, 0, recovery=True)
        promises.commit()
        promises.disk.crash(Loss.LOST)
        promises.open()
        assert promises.storage.lac(2, KEY).fenced


def test_what_was_promised_since_the_offer_keeps_a_ledger() -> None:
    promises = kept(SimDisk(0), 1, 2, 3, 4)
    storage = promises.storage
    offer = storage.offer([1, 2, 3, 4])
    assert promises.add(1, 0, 1, recovery=True) is Status.OK  # here already: no bytes are stored
    assert promises.add(2, 7, recovery=True) is Status.OK
    promises.fence(3)
    promises.commit()
    promises.checkpoint()
    storage.evict([1, 2, 3, 4], offer)
    assert storage.ledger_ids() == [1, 2, 3]


def test_what_is_on_its_way_to_the_disk_stays() -> None:
    promises = kept(SimDisk(0), 1, 2)
    promises.add(1, 9, recovery=True)
    offer = promises.storage.offer([1, 2])
    promises.storage.evict([1, 2], offer)
    assert promises.storage.ledger_ids() == [1]
    promises.commit()
    assert sorted(entries_of(promises.storage, 1)) == [0, 1, 2, 3, 4, 9]


def test_an_offer_that_is_over_evicts_nothing() -> None:
    storage = kept(SimDisk(0), 1, 2).storage
    first = storage.offer([1])
    storage.offer([2])
    storage.evict([1, 2], first)
    assert storage.ledger_ids() == [1, 2]


def test_an_entry_that_arrives_between_the_roll_and_the_removal_keeps_the_ledger() -> None:
    """And the next start would miss it again."""

    class Interrupting(SimDisk):
        def step(self, operation: str, path: str, *, counts: bool = True) -> None:
            super().step(operation, path, counts=counts)
            if armed and operation == "sync" and path == "index/roll":
                armed.clear()
                promises.add(2, 9, recovery=True)

    armed: list[bool] = []
    promises = kept(Interrupting(0), 1, 2)
    armed.append(True)
    evict(promises.storage, 1, 2)
    assert not armed
    assert promises.storage.ledger_ids() == [2]
    promises.commit()
    promises.checkpoint()
    promises.add(3, 0)
    promises.commit()
    promises.checkpoint()  # by now the redo file has nothing of ledger 2
    promises.storage.close()
    promises.disk.lose(path_of(2))
    promises.open()
    assert promises.storage.limbo is not None


def test_a_read_under_way_finds_the_ledger_or_not_but_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = LedgerCache.page

    def page(self: LedgerCache, ledger_id: int, number: int, *, keep: bool = True) -> bytes:
        if armed:
            armed.clear()
            evict(promises.storage, 2)
        return bytes(honest(self, ledger_id, number, keep=keep))

    monkeypatch.setattr(LedgerCache, "page", page)
    for held in (False, True):
        armed: list[bool] = []
        promises = kept(SimDisk(0), 1, 2)
        promises.storage.close()
        promises.open()
        armed.append(True)
        if held:
            status = promises.storage.held(HeldQuery(2, KEY, 0, 9)).status
        else:
            status = promises.storage.read(ReadQuery(2, KEY, 0, 9)).status
        assert status is Status.NO_SUCH_LEDGER
        assert not armed


def test_on_a_full_disk_nothing_is_evicted_and_nothing_is_lost() -> None:
    promises = kept(SimDisk(0), 1, 2)
    promises.disk.capacity_bytes = promises.disk.used_bytes()
    with pytest.raises(DiskFull):
        evict(promises.storage, 2)
    promises.check()
    promises.disk.capacity_bytes = None
    evict(promises.storage, 2)
    assert promises.storage.ledger_ids() == [1]


def test_a_damaged_file_of_fences_is_a_loss_after_which_no_writer_adds_to_what_was_there() -> None:
    promises = kept(SimDisk(0), 1, 2)
    promises.evict(2)
    promises.storage.close()
    promises.disk.damage(FENCES_PATH, 30, b"\xff")
    promises.open()
    limbo = promises.storage.limbo
    assert limbo is not None
    assert FENCES_PATH in limbo.reason
    promises.storage.judged(lambda now: now.known([1, 2], []))
    assert promises.storage.add(run_of(2, 7))[0] is Status.READ_ONLY
    promises.storage.close()
    promises.open()
    assert promises.storage.limbo is not None
    assert not promises.storage.doubts, "that was found once"


def test_a_header_that_was_read_before_an_eviction_is_not_taken_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = LedgerIndex.load

    def load(self: LedgerIndex, ledger_id: int) -> LedgerHeader:
        stored = honest(self, ledger_id)
        if armed:
            armed.clear()
            evict(promises.storage, 2)
        return stored

    monkeypatch.setattr(LedgerIndex, "load", load)
    armed: list[bool] = []
    promises = kept(SimDisk(0), 1, 2)
    promises.storage.close()
    promises.open()
    armed.append(True)
    assert promises.storage.lac(2, KEY).status is Status.NO_SUCH_LEDGER
    assert not armed
