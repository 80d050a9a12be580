"""An ordinary ledger is not looked at twice, and never longer than it is ordinary."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie.errors import StorageFailed
from bookie.loss.limbo import Limbo
from bookie.storage.engine import BookieStorage
from bookie.storage.ledger_table import LedgerTable
from ledger.requests import AddRun, Status
from tests.bookie.promises import KEY, SMALL, run_of
from tests.simulation.disk import SimDisk

LEDGER = 1
Answer = Status | type[Exception]


def written(disk: SimDisk | None = None) -> BookieStorage:
    """Return a storage that a writer has added to."""
    storage = BookieStorage.open(disk or SimDisk(0), replace(SMALL, memtable_bytes_max=1 << 20))
    assert storage.add(run_of(LEDGER, 0))[0] is Status.OK
    assert storage.is_ordinary(run_of(LEDGER, 1))
    storage.commit()
    return storage


def answer_of(storage: BookieStorage, run: AddRun) -> Answer:
    try:
        return storage.add(run)[0]
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error)


def test_a_writers_add_is_taken_without_a_look_at_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = written()
    monkeypatch.delattr(BookieStorage, "_add")
    for entry_id in range(1, 600):  # over the end of a page of the index, too
        assert storage.add(run_of(LEDGER, entry_id))[0] is Status.OK
    assert storage.commit() == 600


def test_what_an_ordinary_ledger_does_not_answer_is_looked_at() -> None:
    storage = written()
    assert storage.add(run_of(LEDGER, 0))[0] is Status.OK, "it is the same"
    assert storage.add(run_of(LEDGER, 0, salt=1))[0] is Status.CONFLICT
    assert storage.add(replace(run_of(LEDGER, 1), key=b"other"))[0] is Status.WRONG_KEY
    assert not storage.is_ordinary(run_of(LEDGER, 0))
    assert not storage.is_ordinary(run_of(LEDGER + 1, 1))
    assert not storage.is_ordinary(AddRun(LEDGER, KEY, (), (), b""))


def test_what_recovery_adds_makes_no_ledger_ordinary() -> None:
    storage = BookieStorage.open(SimDisk(0), SMALL)
    storage.set_read_only(read_only=True)
    assert storage.add(run_of(LEDGER, 0, recovery=True))[0] is Status.OK
    assert storage.add(run_of(LEDGER, 1))[0] is Status.READ_ONLY


def fence(storage: BookieStorage) -> None:
    storage.fence(LEDGER, KEY)


def say_read_only(storage: BookieStorage) -> None:
    storage.set_read_only(read_only=True)


def fill_the_disk(storage: BookieStorage) -> None:
    disk = storage.holdings.directories.main
    assert isinstance(disk, SimDisk)
    disk.capacity_bytes = disk.used_bytes()
    storage.add(run_of(LEDGER, *range(1, 5)))
    storage.commit()


def checkpoint_without_space(storage: BookieStorage) -> None:
    disk = storage.holdings.directories.main
    assert isinstance(disk, SimDisk)
    disk.capacity_bytes = disk.used_bytes()
    storage.checkpoint()


def delete(storage: BookieStorage) -> None:
    storage.delete([LEDGER])


def evict(storage: BookieStorage) -> None:
    storage.checkpoint()
    storage.evict([LEDGER], storage.offer([LEDGER]))


def fail_a_sync(storage: BookieStorage) -> None:
    disk = storage.holdings.directories.main
    assert isinstance(disk, SimDisk)
    disk.fail("sync", "journal/")
    storage.add(run_of(LEDGER, 1))
    with pytest.raises(StorageFailed):
        storage.commit()


def lose(storage: BookieStorage) -> None:
    """What an operator finds later may have been lost all along."""
    storage._accounts.lost(["a file is gone"])
    storage.judged(lambda limbo: replace(limbo, before=limbo.before))


def close(storage: BookieStorage) -> None:
    storage.close()


CHANGES: list[tuple[Callable[[BookieStorage], None], str]] = [
    (fence, "FENCED"),
    (say_read_only, "READ_ONLY"),
    (fill_the_disk, "READ_ONLY"),
    (checkpoint_without_space, "READ_ONLY"),
    (delete, "NO_SUCH_LEDGER"),
    (evict, "FENCED"),
    (fail_a_sync, "JournalFailed"),
    (lose, "READ_ONLY"),
    (close, "HandleClosed"),
]


@pytest.mark.parametrize(
    ("change", "expected"), CHANGES, ids=[change.__name__ for change, _ in CHANGES]
)
def test_a_ledger_is_not_ordinary_any_more(
    change: Callable[[BookieStorage], None], expected: str
) -> None:
    storage = written()
    change(storage)
    storage.check_ordinary()
    assert not storage.is_ordinary(run_of(LEDGER, 9))
    answer = answer_of(storage, run_of(LEDGER, 9))
    name = answer.name if isinstance(answer, Status) else answer.__name__
    assert name == expected


def test_what_is_offered_for_eviction_and_added_to_is_not_evicted() -> None:
    storage = written()
    storage.checkpoint()
    storage.add(run_of(LEDGER, 1))
    offer = storage.offer([LEDGER])
    assert storage.add(run_of(LEDGER, 2))[0] is Status.OK
    storage.commit()
    storage.checkpoint()
    storage.evict([LEDGER], offer)
    assert storage.ledger_ids() == [LEDGER]


def test_a_ledger_that_a_checkpoint_wrote_is_written_again_after_the_next_add() -> None:
    disk = SimDisk(0)
    storage = written(disk)
    storage.checkpoint()
    assert not storage.is_ordinary(run_of(LEDGER, 1))
    assert storage.add(run_of(LEDGER, 1))[0] is Status.OK
    assert storage.is_ordinary(run_of(LEDGER, 2))
    storage.commit()
    storage.checkpoint()
    storage.close()
    assert BookieStorage.open(disk, SMALL).lac(LEDGER, KEY).last_entry == 1


def test_a_full_disk_is_known_to_adds_before_the_commit_that_found_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would take the room that is kept for fences."""
    storage = written()
    disk = storage.holdings.directories.main
    assert isinstance(disk, SimDisk)
    disk.capacity_bytes = disk.used_bytes()
    (writer,) = storage.journal_writers
    assert storage.add(run_of(LEDGER, 1))[0] is Status.OK
    writing, may_end = threading.Event(), threading.Event()
    honest = writer._file.write

    def slow(buffers: list[bytes | memoryview], offset: int) -> None:
        writing.set()
        assert may_end.wait(60)
        honest(buffers, offset)

    monkeypatch.setattr(writer._file, "write", slow)
    commit = threading.Thread(target=storage.commit)
    commit.start()
    assert writing.wait(60)
    assert storage.add(run_of(LEDGER, 2))[0] is Status.READ_ONLY
    may_end.set()
    commit.join()


@pytest.mark.parametrize("forgotten", ["fence", "begin_flush", "remove"])
def test_an_ordinary_ledger_that_should_be_none_is_found(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(LedgerTable, forgotten)

    def forgetful(self: LedgerTable, *arguments: object) -> None:
        before = dict(self.ordinary)
        honest(self, *arguments)
        self.ordinary.update(before)

    monkeypatch.setattr(LedgerTable, forgotten, forgetful)
    storage = written()
    change = {"fence": fence, "begin_flush": BookieStorage.checkpoint, "remove": delete}
    change[forgotten](storage)
    with pytest.raises(AssertionError, match="an ordinary ledger"):
        storage.check_ordinary()


def test_a_limbo_that_is_over_leaves_older_ledgers_what_they_are() -> None:
    disk = SimDisk(0)
    written(disk).close()
    storage = BookieStorage.open(disk, SMALL, doubt="a file is gone")
    assert storage.add(run_of(LEDGER, 1))[0] is Status.READ_ONLY

    def settled(limbo: Limbo) -> Limbo:
        return limbo.known([LEDGER], [])

    storage.judged(settled)
    assert storage.add(run_of(LEDGER, 1))[0] is Status.READ_ONLY
    assert storage.add(run_of(LEDGER + 1, 0))[0] is Status.OK
    assert storage.is_ordinary(run_of(LEDGER + 1, 1))
    storage.check_ordinary()
