"""Damage to any byte of any file: whole, less with an error, or a refusal; never a false "no"."""

import random
from collections.abc import Iterator

import pytest

from bookie.errors import FileDamaged
from bookie.storage import BookieStorage
from ledger.requests import ReadQuery, Status
from tests.bookie.promises import EVERYTHING, KEY, SMALL, Promises
from tests.simulation.disk import SimDisk

LEDGERS = (1, 2, 259)


def bookie_with_everything() -> Promises:
    """Entries on disk, and entries in the journal only; fences in both."""
    promises = Promises(SimDisk(0))
    promises.open()
    for ledger_id in LEDGERS:
        promises.add(ledger_id, *range(0, 30, 1 + ledger_id % 2))
    promises.fence(2)
    promises.commit()
    promises.storage.checkpoint()
    for entry in range(30, 36):
        promises.add(1, entry)
        promises.commit()
    promises.fence(259)
    promises.commit()
    promises.storage.close()
    return promises


def files_of(disk: SimDisk, directory: str = "") -> Iterator[str]:
    for name in disk.list(directory):
        path = f"{directory}/{name}" if directory else name
        if disk.list(path):
            yield from files_of(disk, path)
        else:
            yield path


def answers(promises: Promises, storage: BookieStorage, *, but_not_fenced: int = -1) -> None:
    """Each entry that was promised is there, or an error is; nothing else is there."""
    for ledger_id in LEDGERS:
        for first in range(0, 36, 5):
            answer = storage.read(ReadQuery(ledger_id, KEY, first, EVERYTHING, 400))
            if answer.status is Status.IO_ERROR:
                continue
            assert answer.status is Status.OK
            assert answer.considered >= first
            promised = [e for e in promises.stored[ledger_id] if first <= e <= answer.considered]
            assert list(answer.entries) == promised
            for entry_id, frame in answer.each():
                assert frame == promises.sent[ledger_id][entry_id]
        lac = storage.lac(ledger_id, KEY)
        if ledger_id in promises.fenced and lac.status is Status.OK:
            assert lac.fenced or ledger_id == but_not_fenced


def check_damaged(promises: Promises, disk: SimDisk, *, last_commit_may_be_lost: bool) -> str:
    try:
        storage = BookieStorage.open(disk, SMALL)
    except FileDamaged:
        return "refused"
    answers(promises, storage, but_not_fenced=259 if last_commit_may_be_lost else -1)
    return "answered"


@pytest.mark.parametrize("kind", ["flipped", "zeroed", "cut"])
def test_damage_at_any_place_of_any_file_is_told(kind: str) -> None:
    """Only the journal's very last commit may be taken for a torn one. What is cut off the
    newest journal leaves no trace: see test_journal."""
    outcomes = set()
    lot = random.Random(kind)
    promises = bookie_with_everything()
    files = list(files_of(promises.disk))
    assert {path.split("/")[0] for path in files} == {"journal", "entrylog", "index"}
    for path in files:
        content = promises.disk.content(path)
        journal = path.endswith(".journal")
        for _ in range(40):
            disk = promises.disk.copy()
            at = lot.randrange(len(content))
            if journal and kind != "flipped":
                continue
            if path.endswith(".index"):
                disk.remove("index/redo")  # it would heal what the last flush wrote
            if kind == "cut":
                disk.cut(path, at)
            elif kind == "zeroed":
                disk.damage(path, at - at % 512, bytes(min(512, len(content) - at + at % 512)))
            else:
                disk.damage(path, at, bytes([content[at] ^ (1 << lot.randrange(8))]))
            outcomes.add(check_damaged(promises, disk, last_commit_may_be_lost=journal))
    assert outcomes == {"refused", "answered"}


def test_random_damage_in_several_files_gives_answers_or_typed_errors_only() -> None:
    lot = random.Random(5)
    whole = bookie_with_everything()
    files = [path for path in files_of(whole.disk) if not path.endswith(".journal")]
    for _ in range(150):
        disk = whole.disk.copy()
        for path in lot.sample(files, 3):
            at = lot.randrange(len(disk.content(path)))
            size = min(lot.randint(1, 4000), len(disk.content(path)) - at)
            disk.damage(path, at, lot.randbytes(size))
        check_damaged(whole, disk, last_commit_may_be_lost=False)


def test_an_entry_that_is_damaged_does_not_hide_the_ones_around_it() -> None:
    promises = Promises(SimDisk(0))
    promises.open()
    promises.add(1, *range(10))
    promises.commit()
    promises.storage.checkpoint()
    log = "entrylog/00000001.log"
    at = promises.disk.content(log).index(promises.sent[1][4])
    promises.disk.damage(log, at + 50, b"\xff")
    storage = promises.storage
    before = storage.read(ReadQuery(1, KEY, 2, 9))
    assert (list(before.entries), before.considered) == ([2, 3], 3)
    assert storage.read(ReadQuery(1, KEY, 4, 9)).status is Status.IO_ERROR
    assert list(storage.read(ReadQuery(1, KEY, 5, 9)).entries) == [5, 6, 7, 8, 9]


def test_a_lost_entry_log_is_an_error_and_not_an_empty_ledger() -> None:
    promises = bookie_with_everything()
    log = next(path for path in files_of(promises.disk) if path.startswith("entrylog"))
    promises.disk.remove(log)
    storage = BookieStorage.open(promises.disk, SMALL)
    assert storage.read(ReadQuery(2, KEY, 0, 9)).status is Status.IO_ERROR
    assert storage.read(ReadQuery(2, KEY, 40, 50)).status is Status.OK
    answers(promises, storage)


def test_an_add_to_a_ledger_whose_index_is_damaged_is_refused_as_an_error() -> None:
    promises = bookie_with_everything()
    path = next(p for p in files_of(promises.disk) if p.endswith(f"{2:016x}.index"))
    promises.disk.remove("index/redo")  # else the start would write the page again
    promises.disk.damage(path, 100, b"\xff")
    storage = BookieStorage.open(promises.disk, SMALL)
    run = promises.sent[2]
    assert run
    assert storage.fence(2, KEY) == (Status.IO_ERROR, 0)
    assert storage.lac(2, KEY).status is Status.IO_ERROR
    assert storage.read(ReadQuery(2, KEY, 0, 1)).status is Status.IO_ERROR
    assert storage.read(ReadQuery(1, KEY, 0, 1)).status is Status.OK
