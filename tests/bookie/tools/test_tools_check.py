"""The offline check: whole data are whole, and each damage to something promised is told."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from bookie.disk.port import Directories
from bookie.entrylog.writer import LogFile
from bookie.errors import FileDamaged
from bookie.index.format import PAGE_BYTES, decode_header, encode_header, path_of
from bookie.index.tombstones import FENCES_PATH, Tombstones
from bookie.pieces import whole
from bookie.storage.engine import BookieStorage
from bookie.tools.check import check
from bookie.tools.findings import Findings
from bookie.tools.offline import NotABookie
from ledger.entry import Checked, check_frames
from ledger.requests import ReadQuery, Status
from tests.bookie.promises import EVERYTHING, KEY, SMALL, Promises, frame_of
from tests.simulation.disk import Loss, PowerLost, SimDisk

LEDGERS = (1, 2, 259)


def used_bookie(*, close: bool = True) -> Promises:
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
    if close:
        promises.storage.close()
    return promises


def checked(disk: SimDisk) -> Findings:
    return check(Directories.single(disk))


def test_a_bookie_that_was_stopped_is_whole() -> None:
    promises = used_bookie()
    findings = checked(promises.disk)
    assert findings.damages == []
    counts = findings.counts
    assert (counts.ledgers, counts.index_entries) == (3, 15 + 30 + 15)
    assert counts.frames == counts.index_entries
    assert counts.orphans == 0
    assert counts.fenced == 1
    assert counts.journal_records >= 7
    assert [note.reason for note in findings.notes] == ["no cluster knows these data yet"]


def test_a_check_changes_nothing() -> None:
    promises = used_bookie()
    before = promises.disk.operations
    checked(promises.disk)
    assert promises.disk.operations == before


@pytest.mark.parametrize("loss", list(Loss))
def test_what_a_crash_leaves_is_whole(loss: Loss) -> None:
    """Also in the middle of a checkpoint, where the index lags behind the journal."""
    for operation in range(1, 60):
        promises = used_bookie(close=False)
        disk = promises.disk
        disk.crash_at = disk.operations + operation
        with suppress(PowerLost):
            promises.add(2, 100, recovery=True)
            promises.commit()
            promises.storage.checkpoint()
        disk.crash(loss)
        assert checked(disk).damages == []
        promises.open()
        promises.check()
        promises.storage.close()


def test_directories_that_no_bookie_used_are_refused() -> None:
    with pytest.raises(NotABookie, match="no data of a bookie"):
        checked(SimDisk(0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flipped", "zeroed", "cut"])
def test_damage_is_told_wherever_a_start_or_a_read_would_meet_it(kind: str) -> None:
    """Only the journal's very last commits may be taken for ones that were never finished: what
    is lost at the end of the newest file leaves no trace."""
    lot = random.Random(kind)
    promises = used_bookie()
    newest = max(path for path in promises.disk.files() if path.endswith(".journal"))
    told = 0
    for path in promises.disk.files():
        size_bytes = len(promises.disk.content(path))
        for offset in sorted(lot.sample(range(size_bytes), min(size_bytes, 40))):
            disk = promises.disk.copy()
            damage(disk, path, offset, kind)
            findings = checked(disk)
            told += not findings.is_whole
            if not can_serve(promises, disk, entries=path != newest):
                assert not findings.is_whole, f"{kind} at byte {offset} of {path}"
    assert told > 20


def test_a_damaged_entry_is_told_with_its_place_and_what_to_do() -> None:
    disk = used_bookie().disk
    [path] = [p for p in disk.files() if p == "entrylog/00000001.log"]
    damage(disk, path, 64 + 48, "flipped")
    findings = checked(disk)
    [first, second] = findings.damages
    assert first.path.endswith(path)
    assert first.offset == 64
    assert "entry 0 of ledger 1: payload checksum differs" in first.reason
    assert "other replicas" in first.advice
    assert second.reason == "payload checksum differs"


def test_an_entry_that_the_journal_still_has_is_not_lost() -> None:
    promises = used_bookie(close=False)
    disk = promises.disk
    disk.crash_before("rename", "journal/mark")
    with pytest.raises(PowerLost):
        promises.storage.checkpoint()
    disk.crash(Loss.KEPT)
    [log] = [p for p in disk.files() if p.startswith("entrylog/")][-1:]
    damage(disk, log, len(disk.content(log)) - 1, "flipped")
    findings = checked(disk)
    assert findings.damages == []
    assert findings.counts.healed == 1
    promises.open()
    promises.check()


def test_a_log_that_is_gone_is_told_once_for_entries_that_follow_each_other() -> None:
    disk = used_bookie().disk
    disk.remove("entrylog/00000001.log")
    findings = checked(disk)
    assert 1 <= findings.damage_count <= 3
    assert all("the file is gone" in one.reason for one in findings.damages)


def test_frames_that_no_index_names_are_counted_and_harmless() -> None:
    disk = used_bookie().disk
    log = LogFile(disk, 99)
    frames = [frame_of(ledger_id, 5) for ledger_id in (1, 77)]
    for ledger_id, frame in zip((1, 77), frames, strict=True):
        run = check_frames(ledger_id, (5,), (len(frame),), frame)
        assert isinstance(run, Checked)
        log.append(whole(run))
    log.finish()
    log.sync()
    log.close()
    findings = checked(disk)
    assert findings.is_whole
    assert findings.counts.orphans == 2
    assert findings.counts.orphan_bytes == sum(map(len, frames))
    [note] = [note for note in findings.notes if "no index of ledgers" in note.reason]
    assert "77" in note.reason
    Tombstones.load(disk).add([77])
    assert not [note for note in checked(disk).notes if "no index of ledgers" in note.reason]


def test_damaged_fences_of_evicted_ledgers_are_named() -> None:
    disk = used_bookie().disk
    Tombstones.load(disk, path=FENCES_PATH).add([5])
    assert checked(disk).is_whole
    damage(disk, FENCES_PATH, 3, "flipped")
    [one] = checked(disk).damages
    assert one.path.endswith(FENCES_PATH)
    assert "takes no normal add" in one.advice


def test_a_map_that_counts_less_than_there_is_is_damage() -> None:
    disk = used_bookie().disk
    log = LogFile(disk, 99)
    frame = frame_of(1, 5)
    run = check_frames(1, (5,), (len(frame),), frame)
    assert isinstance(run, Checked)
    log.append(whole(run))
    log._map = type(log._map)()
    log.finish()
    log.sync()
    log.close()
    [one] = checked(disk).damages
    assert "its map says less of ledger 1" in one.reason


def test_a_header_that_hides_entries_or_promises_more_is_damage() -> None:
    """Nothing behind the header's last entry is ever looked up."""
    for last_entry in (20, 40):
        disk = used_bookie().disk
        path = path_of(2)
        header = decode_header(disk.content(path)[:PAGE_BYTES], 2, path)
        disk.damage(path, 0, encode_header(replace(header, last_entry=last_entry)))
        [one] = checked(disk).damages
        assert f"entry {last_entry} is the last, pages say 29" in one.reason


def test_an_index_file_in_the_place_of_another_is_noted() -> None:
    disk = used_bookie().disk
    disk.make_directory("index/07")
    disk.create("index/07/0000000000000002.index").close()
    disk.create("index/07/something").close()
    reasons = [note.reason for note in checked(disk).notes]
    assert "the index file of another place: nobody looks for it here" in reasons
    assert "not an index file" in reasons


def test_a_foreign_file_among_the_journals_is_told() -> None:
    disk = used_bookie().disk
    disk.create("journal/copy of it.journal").close()
    [one] = checked(disk).damages
    assert "a name that no journal has" in one.reason


def damage(disk: SimDisk, path: str, offset: int, kind: str) -> None:
    content = disk.content(path)
    if kind == "flipped":
        disk.damage(path, offset, bytes([content[offset] ^ 0x10]))
    elif kind == "zeroed":
        disk.damage(path, offset, bytes(min(64, len(content) - offset)))
    else:
        disk.cut(path, offset)


def can_serve(promises: Promises, disk: SimDisk, *, entries: bool) -> bool:
    try:
        storage = BookieStorage.open(disk, SMALL)
    except FileDamaged:
        return False
    for ledger_id, stored in promises.stored.items():
        for entry_id in stored if entries else ():
            answer = storage.read(ReadQuery(ledger_id, KEY, entry_id, entry_id, EVERYTHING))
            if answer.status is not Status.OK or list(answer.entries) != [entry_id]:
                return False
    return True


def test_a_journal_file_that_is_gone_from_the_end_is_damage() -> None:
    promises = used_bookie(close=False)
    for first in range(0, 300, 10):
        promises.add(4, *range(first, first + 10))
        promises.commit()
    promises.disk.kill()
    journals = [path for path in promises.disk.files() if path.endswith(".journal")]
    assert len(journals) > 1
    assert checked(promises.disk).damages == []
    promises.disk.lose(journals[-1])
    [one] = checked(promises.disk).damages
    assert "the journal file after" in one.reason
