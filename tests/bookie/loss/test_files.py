"""Each file of a bookie lost, empty, cut, of an older checkpoint, or of another bookie.

Whatever it is, the start is refused, or the bookie is in limbo, or nothing is missing: it never
says "no such entry" of what it has promised, takes no writer's add to what it has fenced, and
brings nothing back that was deleted. Cookies, which decide whose the data are, are tried in
`tests/bookie/identity`.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from bookie.disk.directories import Directories
from bookie.errors import FileDamaged
from bookie.index.format import path_of
from bookie.index.tombstones import FENCES_PATH
from bookie.index.tombstones import PATH as TOMBSTONES_PATH
from bookie.loss.census import LOGS_PATH, ROLL_PATH
from bookie.loss.census import PATH as CENSUS_PATH
from bookie.storage.engine import BookieStorage
from ledger.requests import ReadQuery, Status
from tests.bookie.promises import KEY, SMALL, Promises, run_of
from tests.simulation.disk import SimDisk

OPEN: Final = 1
FENCED: Final = (2, 9)
EVICTED: Final = (6, 7)
DELETED: Final = (5, 8)


class Outcome(StrEnum):
    REFUSED = "refused"
    LIMBO = "limbo"
    HARMLESS = "harmless"


def used_bookie() -> tuple[Promises, SimDisk]:
    """Return a bookie that was stopped, and what its disk was at an earlier checkpoint."""
    promises = Promises(SimDisk(3))
    promises.open()
    for ledger_id in (OPEN, *FENCED[:1], *EVICTED, *DELETED):
        promises.add(ledger_id, *range(20))
    promises.fence(FENCED[0])
    promises.commit()
    promises.checkpoint()
    promises.evict(EVICTED[0])
    promises.delete(DELETED[0])
    promises.checkpoint()
    older = promises.disk.copy()
    promises.add(OPEN, *range(20, 60))
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
        promises.add(OPEN, step)
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
    wrong = []
    for ledger_id, promised in promises.stored.items():
        for entry in promised:
            answer = storage.read(ReadQuery(ledger_id, KEY, entry, entry))
            found = dict(answer.each())
            if entry in found:
                if bytes(found[entry]) != promises.sent[ledger_id][entry]:
                    wrong.append(f"other bytes of {ledger_id}/{entry}")
            elif answer.status in {Status.OK, Status.NO_SUCH_LEDGER}:
                wrong.append(f"denies {ledger_id}/{entry}")
    for ledger_id in (*FENCED, *EVICTED, *DELETED):
        status, _ = storage.add(run_of(ledger_id, 200))
        if status is Status.OK:
            wrong.append(f"takes an add to {ledger_id}")
    in_limbo = storage.limbo is not None
    storage.close()
    return Outcome.LIMBO if in_limbo else Outcome.HARMLESS, wrong


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
    # A single index file that somebody puts back is the hole that is left: docs/bookie.md says so.
    assert set(wrong) <= {(how, path_of(OPEN)) for how in ("older", "other")}
    assert set(outcomes.values()) == set(Outcome)
    for how in ("lost", "empty", "half", "older"):
        assert outcomes[how, TOMBSTONES_PATH] is Outcome.REFUSED
        for path in (FENCES_PATH, ROLL_PATH, LOGS_PATH):
            assert outcomes[how, path] is Outcome.LIMBO, (how, path)
    for path in (FENCES_PATH, ROLL_PATH, LOGS_PATH, CENSUS_PATH):
        assert outcomes["other", path] is Outcome.LIMBO, path
