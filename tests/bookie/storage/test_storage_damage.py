"""Damage at every byte of every file: whole, a prefix, or a refusal; never a false "no".

For each byte: flipped, zeroed to the end of its sector, and the file cut there. Then the storage
either refuses to start with a typed error, or opens; and then it answers what was promised, or
says of an entry or a ledger that it cannot be read, or is in limbo and denies nothing. One may
be taken for something that was never promised: the end of the newest journal, which looks like a
commit that a crash tore.
There, what is left must be all that was promised up to some commit: a *prefix*.

DLOG_TEST_DAMAGE_EVERY=1, as in `make chaos-bookie`, tries every byte; else one out of 97 is, the
same ones in each run.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

import pytest

from bookie.collector.collection import DirectoryCollection
from bookie.errors import FileDamaged
from bookie.journal.format import JournalMark, decode_file_header, path_of
from bookie.storage.engine import BookieStorage
from ledger.entry import TRAILER_BYTES, encode_frame
from ledger.requests import AddRun, ReadQuery, Status
from tests.bookie.promises import COLLECTOR, EVERYTHING, KEY, SMALL, Promises, run_of
from tests.bookie.tally import tally
from tests.simulation.disk import SECTOR_BYTES, SimDisk

EVERY = int(os.environ.get("DLOG_TEST_DAMAGE_EVERY", "97"))
Damage = Callable[[SimDisk, str, int], None]
LEDGERS = (1, 2, 3, 4)
DELETED = 5
CONFIG = replace(SMALL, entry_log_bytes_max=1200, journal_file_bytes_max=1500, journal_spares_max=9)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 if EVERY > 1 else 3600)]


@dataclass(frozen=True)
class State:
    """What was promised at some moment."""

    stored: dict[int, frozenset[int]]
    fenced: frozenset[int]

    @classmethod
    def of(cls, promises: Promises) -> "State":
        stored = {ledger_id: frozenset(promises.stored.get(ledger_id, {})) for ledger_id in LEDGERS}
        return cls(stored, frozenset(promises.fenced))


@dataclass(frozen=True)
class Life:
    promises: Promises
    states: list[State]
    """After the last checkpoint and each commit since; the last one is all that was promised."""
    ends: list[JournalMark]
    """Where the journal ended then."""

    @property
    def disk(self) -> SimDisk:
        return self.promises.disk


def life() -> Life:
    """Entries on disk, in full logs and in one that goes on, and entries in journals only; fences
    in both; a deleted ledger; a last journal file with several commits."""
    promises = Promises(SimDisk(0), CONFIG)
    promises.open()
    for first in range(100, 1000, 30):  # journal files to be written again
        promises.add(DELETED, *range(first, first + 10))
        promises.commit()
    for first in (0, 8):
        for ledger_id in LEDGERS[:3]:
            promises.add(ledger_id, *range(first, first + 8, 1 + ledger_id % 2))
        promises.add(DELETED, first)
        promises.commit()
        promises.checkpoint()
    promises.fence(2)
    promises.commit()
    promises.checkpoint()
    assert promises.delete(DELETED)
    states, ends = [State.of(promises)], [end_of_journal(promises)]
    for entry in range(8, 25):
        if entry == 21:
            promises.fence(3)
        else:
            promises.add(4 - entry % 2 * 3, entry + 20)  # a commit of one record
        promises.commit()
        states.append(State.of(promises))
        ends.append(end_of_journal(promises))
    promises.storage.close()
    assert ends[0].journal_id < ends[-1].journal_id == ends[-3].journal_id
    newest = promises.disk.content(newest_journal(promises.disk))
    assert decode_file_header(newest, "the newest").is_recycled
    return Life(promises, states, ends)


def end_of_journal(promises: Promises) -> JournalMark:
    return promises.storage._journals.positions()[0]


def files_of(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path != "LOCK"]


def newest_journal(disk: SimDisk) -> str:
    return max(path for path in disk.files() if path.endswith(".journal"))


def outcome_of(life: Life, disk: SimDisk) -> tuple[str, int]:
    """Open the damaged *disk* and compare, before and after a collection.

    Return "refuse", "whole", "error", "limbo" or "prefix", and how many commits are there."""
    commits = len(life.states)
    try:
        storage = BookieStorage.open(disk, CONFIG)
    except FileDamaged:
        return "refuse", commits
    errors, seen, fenced = _answers(life, storage)
    for directory in storage.ledger_directories:
        collection = DirectoryCollection(directory, COLLECTOR, storage.ledger_ids)
        for _ in collection.run(0.95):
            pass
    assert _answers(life, storage) == (errors, seen, fenced), "a collection changed what is there"
    storage.close()
    last = life.states[-1]
    stored = {
        ledger_id: frozenset(seen[ledger_id] | (errors[ledger_id] & last.stored[ledger_id]))
        for ledger_id in LEDGERS
    }
    state = State(stored, frozenset(fenced))
    if storage.limbo is not None:
        assert state == last, "what may be lost was denied"
        return "limbo", commits
    if state == last:
        return ("error" if any(errors.values()) else "whole"), commits
    assert state in life.states, f"neither all nor a prefix: {state}"
    return "prefix", life.states.index(state) + 1


def _answers(
    life: Life, storage: BookieStorage
) -> tuple[dict[int, set[int]], dict[int, set[int]], set[int]]:
    """Return, by ledger, the entries that are errors and those that are there; and the fences,
    where an error counts for what was promised."""
    errors: dict[int, set[int]] = {ledger_id: set() for ledger_id in LEDGERS}
    seen: dict[int, set[int]] = {ledger_id: set() for ledger_id in LEDGERS}
    fenced: set[int] = set()
    for ledger_id in LEDGERS:
        first = 0
        while first < 50:
            answer = storage.read(ReadQuery(ledger_id, KEY, first, 49, 300))
            if answer.status is Status.NO_SUCH_LEDGER:
                break
            if answer.status in {Status.IO_ERROR, Status.UNKNOWN}:
                errors[ledger_id].add(first)
                first += 1
                continue
            assert answer.status is Status.OK
            assert answer.considered >= first
            for entry, frame in answer.each():
                assert frame == life.promises.sent[ledger_id][entry]
                seen[ledger_id].add(entry)
            first = answer.considered + 1
        lac = storage.lac(ledger_id, KEY)
        keeps = lac.status is Status.IO_ERROR or not _takes_adds(storage, ledger_id)
        if lac.fenced or (keeps and ledger_id in life.promises.fenced):
            fenced.add(ledger_id)
    gone = Status.NO_SUCH_LEDGER if storage.limbo is None else Status.UNKNOWN
    assert storage.read(ReadQuery(DELETED, KEY, 0, EVERYTHING)).status is gone
    return errors, seen, fenced


def _takes_adds(storage: BookieStorage, ledger_id: int) -> bool:
    return storage.limbo is None or storage.limbo.takes_adds_to(ledger_id)


def flip(disk: SimDisk, path: str, at: int) -> None:
    byte = disk.content(path)[at]
    disk.damage(path, at, bytes([byte ^ 1 << at % 8]))


def zero(disk: SimDisk, path: str, at: int) -> None:
    size = min(SECTOR_BYTES - at % SECTOR_BYTES, len(disk.content(path)) - at)
    disk.damage(path, at, bytes(size))


def cut(disk: SimDisk, path: str, at: int) -> None:
    disk.cut(path, at)


end_of: dict[Damage, Callable[[int], float]] = {
    flip: lambda at: at + 1,
    zero: lambda at: at + SECTOR_BYTES - at % SECTOR_BYTES,
    cut: lambda _at: inf,
}
"""Where the damage ends."""


def damaged(life: Life, path: str, damage: Damage, *, offset: int) -> Iterator[tuple[int, SimDisk]]:
    """Yield copies, damaged at each byte in turn, or at one out of `EVERY`."""
    for at in range(offset % EVERY, len(life.disk.content(path)), EVERY):
        disk = life.disk.copy()
        damage(disk, path, at)
        if disk.content(path) != life.disk.content(path):
            yield at, disk


KINDS = {
    "journal": {"refuse", "whole", "prefix", "limbo"},
    "spare": {"whole"},
    "mark": {"refuse"},
    "log": {"whole", "error"},
    "index": {"whole", "error", "refuse"},
    "redo": {"whole"},
    "tombstones": {"refuse"},
    "roll": {"limbo", "whole"},
    "census": {"limbo"},
}
"""Kinds of files, and what their damage may lead to."""


@pytest.mark.parametrize("damage", [flip, zero, cut], ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", [*KINDS])
def test_damage_at_any_byte_is_told_or_does_no_harm(kind: str, damage: Damage) -> None:
    before = life()
    outcomes = dict.fromkeys(("refuse", "whole", "error", "limbo", "prefix"), 0)
    paths = [p for p in files_of(before.disk) if f"/{p}".endswith((f".{kind}", f"/{kind}"))]
    assert paths, f"there is no {kind}"
    for number, path in enumerate(paths):
        for at, disk in damaged(before, path, damage, offset=number):
            try:
                outcome, commits = outcome_of(before, disk)
                if outcome == "prefix":
                    check_prefix(before, path, at, end_of[damage](at), commits)
            except BaseException as error:
                error.add_note(f"{damage.__name__} at byte {at} of {path}")
                raise
            outcomes[outcome] += 1
            tally[f"damaged bytes of a {kind}: {outcome}"] += 1
    assert {outcome for outcome, count in outcomes.items() if count} <= KINDS[kind], outcomes


def check_prefix(before: Life, path: str, at: int, end: float, commits: int) -> None:
    """Only what the damage touched of the newest journal may be missing, up to its end: it looks
    like a commit that a crash tore. A commit that is whole proves that all before it were."""
    assert path == newest_journal(before.disk), "less than was acknowledged"
    lost = before.ends[commits]
    assert path == path_of(lost.journal_id)
    assert at < lost.offset, f"the commit that ended at {lost.offset} is lost"
    assert before.ends[-2].offset < end, "a later commit was whole, and is lost, too"


def test_random_damage_in_several_files_gives_answers_or_typed_errors_only() -> None:
    lot = random.Random(5)
    before = life()
    files = [path for path in files_of(before.disk) if not path.endswith(".journal")]
    for _ in range(60 if EVERY > 1 else 5000):
        disk = before.disk.copy()
        for path in lot.sample(files, 3):
            at = lot.randrange(len(disk.content(path)))
            size = min(lot.randint(1, 4000), len(disk.content(path)) - at)
            disk.damage(path, at, lot.randbytes(size))
        tally["disks with random damage"] += 1
        assert outcome_of(before, disk)[0] != "prefix"


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
    assert storage.holdings.damaged_reads == 2


def test_a_damaged_code_is_found_on_arrival_and_on_the_disk_without_its_key() -> None:
    """Rule 87: the code at the end of a frame, which only readers can verify, has a checksum."""
    frame = encode_frame(
        ledger_id=1, entry_id=0, last_add_confirmed=-1, length=7, payload=b"payload", mac=b"m" * 32
    )
    run = AddRun(1, KEY, (0,), (len(frame),), frame)
    promises = Promises(SimDisk(0))
    promises.open()
    for position in range(len(frame) - TRAILER_BYTES, len(frame)):
        damaged = bytearray(frame)
        damaged[position] ^= 1
        refused = replace(run, frames=bytes(damaged))
        assert promises.storage.add(refused) == (Status.DAMAGED, 0)
        assert promises.storage.add(replace(refused, recovery=True)) == (Status.DAMAGED, 0)
    assert promises.storage.add(run)[0] is Status.OK
    promises.storage.commit()
    promises.storage.checkpoint()
    promises.storage.close()
    (log,) = (path for path in promises.disk.files() if path.startswith("entrylog/"))
    at = promises.disk.open(log).read(10_000, 0).index(frame) + len(frame) - 1
    promises.disk.damage(log, at, bytes([frame[-1] ^ 1]))
    promises.open()
    assert promises.storage.read(ReadQuery(1, KEY, 0, 9)).status is Status.IO_ERROR


def test_a_damaged_entry_is_repaired_by_recovery_and_by_nobody_else() -> None:
    """A writer's bytes are not taken as its replacement: nobody can say that they are the same."""
    promises = Promises(SimDisk(0))
    promises.open()
    promises.add(1, *range(10))
    promises.commit()
    promises.storage.checkpoint()
    log = "entrylog/00000001.log"
    at = promises.disk.content(log).index(promises.sent[1][4])
    promises.disk.damage(log, at + 50, b"\xff")
    storage = promises.storage
    assert storage.add(run_of(1, 4)) == (Status.IO_ERROR, 0)
    assert storage.add(run_of(1, 4, recovery=True))[0] is Status.OK
    assert list(storage.read(ReadQuery(1, KEY, 2, 9)).entries) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_lost_entry_log_is_an_error_and_not_an_empty_ledger() -> None:
    before = life()
    promises = before.promises
    log = next(path for path in files_of(promises.disk) if path.startswith("entrylog"))
    promises.disk.remove(log)
    storage = BookieStorage.open(promises.disk, CONFIG)
    assert storage.read(ReadQuery(2, KEY, 0, 9)).status is Status.IO_ERROR
    assert storage.read(ReadQuery(2, KEY, 40, 50)).status is Status.OK
    assert outcome_of(before, before.disk)[0] == "error"


def test_an_add_to_a_ledger_whose_index_is_damaged_is_refused_as_an_error() -> None:
    promises = life().promises
    path = next(p for p in files_of(promises.disk) if p.endswith(f"{2:016x}.index"))
    promises.disk.damage(path, 100, b"\xff")
    storage = BookieStorage.open(promises.disk, CONFIG)
    run = promises.sent[2]
    assert run
    assert storage.fence(2, KEY) == (Status.IO_ERROR, 0)
    assert storage.lac(2, KEY).status is Status.IO_ERROR
    assert storage.read(ReadQuery(2, KEY, 0, 1)).status is Status.IO_ERROR
    assert storage.read(ReadQuery(1, KEY, 0, 1)).status is Status.OK
