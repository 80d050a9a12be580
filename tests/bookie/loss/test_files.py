"""Each file of a bookie lost, empty, cut, of an older checkpoint, or of another bookie.

Whatever it is, the start is refused, or the bookie is in limbo, or it answers of the ledger with an
error, or nothing is missing: it never says "no such entry" of what it has promised, takes no
writer's add to what it has fenced, and brings nothing back that was deleted. Cookies, which decide
whose the data are, are tried in `tests/bookie/identity`.
"""

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Final

import pytest

from bookie.disk.port import Directories, DiskFull
from bookie.errors import FileDamaged
from bookie.index.format import PAGE_ENTRIES, path_of
from bookie.index.tombstones import FENCES_PATH
from bookie.index.tombstones import PATH as TOMBSTONES_PATH
from bookie.loss.census import LOGS_PATH, ROLL_PATH
from bookie.loss.census import PATH as CENSUS_PATH
from bookie.storage.engine import BookieStorage
from bookie.tools.check import check
from bookie.tools.rebuild import rebuild
from bookie.tools.rebuild_plan import StoreLedgers
from ledger.requests import ReadQuery, Status
from tests.bookie.promises import KEY, SMALL, Promises, run_of
from tests.simulation.disk import SimDisk

OPEN: Final = 1
CLEAN: Final = 3
"""Nothing of it is in the journal."""
FENCED: Final = (2, 9)
EVICTED: Final = (6, 7)
DELETED: Final = (5, 8)


class Outcome(StrEnum):
    REFUSED = "refused"
    LIMBO = "limbo"
    DAMAGED = "damaged"
    HARMLESS = "harmless"


def used_bookie() -> tuple[Promises, SimDisk]:
    """Return a bookie that was stopped, and what its disk was at an earlier checkpoint."""
    promises = Promises(SimDisk(3))
    promises.open()
    for ledger_id in (OPEN, CLEAN, *FENCED[:1], *EVICTED, *DELETED):
        promises.add(ledger_id, *range(20))
    promises.fence(FENCED[0])
    promises.commit()
    promises.checkpoint()
    promises.evict(EVICTED[0])
    promises.delete(DELETED[0])
    promises.checkpoint()
    older = promises.disk.copy()
    for ledger_id in (OPEN, CLEAN):
        promises.add(ledger_id, *range(20, 60))
    promises.add(FENCED[1], *range(20))
    promises.fence(FENCED[1])
    promises.commit()
    promises.checkpoint()
    promises.evict(EVICTED[1])
    promises.delete(DELETED[1])
    promises.add(OPEN, *range(60, 70))
    promises.commit()
    promises.checkpoint()
    promises.add(OPEN, *range(70, 75))
    promises.commit()
    promises.storage.close()
    return promises, older


def another_bookie() -> SimDisk:
    """Return the disk of a bookie of the same ledgers that has less of them, and as many files."""
    promises = Promises(SimDisk(4))
    promises.open()
    for step in range(5):
        for ledger_id in (OPEN, CLEAN):
            promises.add(ledger_id, step)
        promises.add(30 + step, 0)
        promises.commit()
        promises.checkpoint()
        promises.evict(30 + step)
        promises.delete(40 + step)
    promises.storage.close()
    return promises.disk


def put(disk: SimDisk, path: str, data: bytes) -> None:
    disk.cut(path, 0)
    disk.damage(path, 0, data)


def changes(disk: SimDisk, older: SimDisk, other: SimDisk) -> Iterator[tuple[str, str]]:
    for path in disk.files():
        yield "lost", path
        yield "empty", path
        yield "half", path
        for name, source in (("older", older), ("other", other)):
            if path in source.files() and source.content(path) != disk.content(path):
                yield name, path


def outcome_of(promises: Promises, disk: SimDisk) -> tuple[Outcome, list[str]]:
    """Start on *disk*; return what became of it, and what it says that it must not."""
    try:
        storage = BookieStorage.open(Directories.single(disk), SMALL)
    except FileDamaged:
        return Outcome.REFUSED, []
    wrong, is_damaged = [], False
    for ledger_id, promised in promises.stored.items():
        for entry in promised:
            answer = storage.read(ReadQuery(ledger_id, KEY, entry, entry))
            found = dict(answer.each())
            is_damaged = is_damaged or answer.status is Status.IO_ERROR
            if entry in found:
                if bytes(found[entry]) != promises.sent[ledger_id][entry]:
                    wrong.append(f"other bytes of {ledger_id}/{entry}")
            elif answer.status in {Status.OK, Status.NO_SUCH_LEDGER}:
                wrong.append(f"denies {ledger_id}/{entry}")
    for ledger_id in (*promises.fenced, *promises.evicted, *promises.deleted):
        status, _ = storage.add(run_of(ledger_id, 200))
        if status is Status.OK:
            wrong.append(f"takes an add to {ledger_id}")
    in_limbo = storage.limbo is not None
    storage.close()
    if in_limbo:
        return Outcome.LIMBO, wrong
    return Outcome.DAMAGED if is_damaged else Outcome.HARMLESS, wrong


def changed(disk: SimDisk, how: str, path: str, older: SimDisk, other: SimDisk) -> SimDisk:
    changes_of: dict[str, Callable[[SimDisk], None]] = {
        "lost": lambda disk: disk.lose(path),
        "empty": lambda disk: disk.cut(path, 0),
        "half": lambda disk: disk.cut(path, len(disk.content(path)) // 2),
        "older": lambda disk: put(disk, path, older.content(path)),
        "other": lambda disk: put(disk, path, other.content(path)),
    }
    copy = disk.copy()
    changes_of[how](copy)
    return copy


def test_no_file_that_is_lost_cut_older_or_anothers_makes_a_bookie_say_a_wrong_no() -> None:
    promises, older = used_bookie()
    other = another_bookie()
    outcomes: dict[tuple[str, str], Outcome] = {}
    wrong: dict[tuple[str, str], list[str]] = {}
    for how, path in changes(promises.disk, older, other):
        disk = changed(promises.disk, how, path, older, other)
        outcome, said = outcome_of(promises, disk)
        outcomes[how, path] = outcome
        if said:
            wrong[how, path] = said
    assert not wrong
    assert set(outcomes.values()) == set(Outcome)
    for how in ("older", "other"):
        assert outcomes[how, path_of(OPEN)] is Outcome.REFUSED, "a replay needs it"
        assert outcomes[how, path_of(CLEAN)] is Outcome.DAMAGED
    for how in ("lost", "empty", "half", "older"):
        assert outcomes[how, TOMBSTONES_PATH] is Outcome.REFUSED
        for path in (FENCES_PATH, ROLL_PATH, LOGS_PATH):
            assert outcomes[how, path] is Outcome.LIMBO, (how, path)
    for path in (FENCES_PATH, ROLL_PATH, LOGS_PATH, CENSUS_PATH):
        assert outcomes["other", path] is Outcome.LIMBO, path


def test_an_older_index_file_is_noticed_although_the_redo_file_lies_over_it() -> None:
    """Its header is in the redo file, and right; what it lacks is on a page that is not there."""
    promises = Promises(SimDisk(3))
    promises.open()
    promises.add(CLEAN, *range(20))
    promises.commit()
    promises.checkpoint()
    older = promises.disk.copy()
    promises.add(CLEAN, *range(20, 40))
    promises.commit()
    promises.checkpoint()
    promises.storage.close()
    promises.config = replace(SMALL, index_in_place_ledgers=0)
    for entry in (2 * PAGE_ENTRIES, 2 * PAGE_ENTRIES + 1, 4 * PAGE_ENTRIES):
        promises.open()
        promises.check()
        promises.add(CLEAN, entry)
        promises.commit()
        promises.checkpoint()
        assert CLEAN in promises.storage.ledger_directories[0].index.redo
        promises.storage.close()
    disk = promises.disk.copy()
    assert outcome_of(promises, disk.copy()) == (Outcome.HARMLESS, [])
    put(disk, path_of(CLEAN), older.content(path_of(CLEAN)))
    for _ in range(3):
        assert outcome_of(promises, disk) == (Outcome.DAMAGED, [])
        storage = BookieStorage.open(Directories.single(disk), SMALL)
        storage.add(run_of(OPEN, 0))
        storage.commit()
        storage.checkpoint()
        storage.checkpoint()
        storage.close()


def test_a_rebuild_of_the_index_ends_that_an_older_file_is_there() -> None:
    promises, older = used_bookie()
    promises.open()
    promises.checkpoint()
    promises.storage.close()
    disk = promises.disk.copy()
    put(disk, path_of(CLEAN), older.content(path_of(CLEAN)))
    directories = Directories.single(disk)
    assert [damage.path for damage in check(directories).damages] == [disk.describe(path_of(CLEAN))]
    directories.lock()
    stored = StoreLedgers(dict.fromkeys((OPEN, CLEAN, *FENCED), KEY))
    assert rebuild(directories, stored).damaged_before == 1
    directories.unlock()
    assert check(directories).is_whole
    assert outcome_of(promises, disk.copy()) == (Outcome.HARMLESS, [])
    put(disk, path_of(CLEAN), older.content(path_of(CLEAN)))
    assert outcome_of(promises, disk)[0] is Outcome.DAMAGED


def test_an_index_file_that_a_full_disk_left_half_in_place_is_no_older_one() -> None:
    promises = Promises(SimDisk(3))
    promises.open()
    for ledger_id in (OPEN, CLEAN):
        promises.add(ledger_id, 0)
    promises.commit()
    promises.checkpoint()
    promises.storage.close()
    promises.config = replace(SMALL, index_in_place_ledgers=0)
    promises.open()
    for entry in (2 * PAGE_ENTRIES, 4 * PAGE_ENTRIES):
        for ledger_id in (OPEN, CLEAN):
            promises.add(ledger_id, entry)
        promises.commit()
        promises.checkpoint()
        if entry == 2 * PAGE_ENTRIES:
            promises.disk.fail("write", path_of(CLEAN), errno.ENOSPC)
            with pytest.raises(DiskFull):
                promises.storage.ledger_directories[0].index.put_in_place()
    promises.disk.kill()
    promises.open()
    promises.check()
    assert len(promises.storage.ledger_directories[0].index.redo) == 2


def test_ledgers_that_an_eviction_left_are_counted_with_their_edition() -> None:
    promises = Promises(SimDisk(3))
    promises.open()
    for ledger_id in (OPEN, CLEAN):
        promises.add(ledger_id, 0)
    promises.commit()
    promises.checkpoint()
    (directory,) = promises.storage.ledger_directories
    editions = dict(directory.roll.editions)
    assert len(set(editions.values())) == 1, "one flush, one edition"
    directory.evict([OPEN, CLEAN], lambda _ids: [OPEN])  # something is promised of the other
    assert directory.roll.editions == {}
    promises.add(FENCED[0], 0)
    promises.commit()
    promises.checkpoint()
    assert directory.roll.editions[CLEAN] == editions[CLEAN] != directory.roll.editions[FENCED[0]]
    promises.storage.close()


def test_the_edition_of_an_index_that_a_crash_kept_from_the_roll_is_learned() -> None:
    promises = Promises(SimDisk(3))
    promises.open()
    promises.add(OPEN, 0)
    promises.add(CLEAN, 0)
    promises.commit()
    promises.checkpoint()
    (directory,) = promises.storage.ledger_directories
    edition = directory.roll.editions[CLEAN]
    directory.evict([CLEAN], lambda _ids: [])
    promises.disk.kill()
    promises.open()
    (directory,) = promises.storage.ledger_directories
    assert directory.roll.editions[CLEAN] == edition != 0
    promises.storage.close()
