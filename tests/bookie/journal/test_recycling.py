"""Journal files that are written again: what is left in them of an earlier life is nothing."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.port import Directories
from bookie.errors import FileDamaged, JournalDamaged, JournalMissing
from bookie.journal import format as fmt
from bookie.journal.format import FILE_HEADER_BYTES, FileHeader, JournalMark, Record, RecordKind
from bookie.journal.journals import Journals
from bookie.journal.recovery import is_new, plan, replay
from bookie.journal.writer import USED_SHARE_MAX, begin, journal_ids
from bookie.tools.journal_walk import TORN, JournalEnd, walk
from tests.bookie.promises import KEY, Promises
from tests.simulation.disk import Loss, PowerLost, SimDisk

FILE_BYTES_MAX = 500
PREALLOCATE_BYTES = 600
RECORD_BYTES = fmt.size_of(Record(RecordKind.FENCE, 0, KEY))
SPARES_MAX = 2


class Rig:
    """A journal of fences, whose records are all of one size: each begins where one of the file's
    earlier life began. What is durable is told by `promised`."""

    def __init__(
        self, disk: SimDisk, *, block_bytes: int = 1, spares_max: int = SPARES_MAX
    ) -> None:
        self.disk = disk
        self.promised: list[int] = []
        self.sent = 0
        """The last fence that was sent; they ascend."""
        self.marked = 0
        """Up to here they need not be there any more."""
        lot = random.Random(7)
        disk.make_directory(fmt.DIRECTORY)
        disk.sync_directory("")
        header = begin(
            disk, 1, previous=None, preallocate_bytes=PREALLOCATE_BYTES, entropy=lot.randbytes
        )
        self.journals = Journals(
            Directories.single(disk),
            [header],
            file_bytes_max=FILE_BYTES_MAX,
            preallocate_bytes=PREALLOCATE_BYTES,
            block_bytes=block_bytes,
            spares_max=spares_max,
            entropy=lot.randbytes,
        )
        self.journals.advance(self.journals.positions())

    def commit(self, *group_sizes: int) -> None:
        for size in group_sizes:
            first = self.sent + 1
            for fence in range(first, first + size):
                self.sent = fence
                self.journals.add(Record(RecordKind.FENCE, fence, KEY))
            self.journals.commit(0)
            self.promised += range(first, first + size)

    def checkpoint(self) -> None:
        self.marked = self.sent
        self.journals.advance(self.journals.positions())

    def fill(self, files: int) -> None:
        """Go on until so many files more are full."""
        last = journal_ids(self.disk)[-1] + files
        while journal_ids(self.disk)[-1] < last:
            self.commit(2)

    def recycle(self) -> None:
        """Go on until the newest file is one that is written again, and nothing is in it."""
        while not self.newest().is_recycled:
            self.fill(1)
            self.checkpoint()

    def newest(self) -> FileHeader:
        path = fmt.path_of(journal_ids(self.disk)[-1])
        return fmt.decode_file_header(self.disk.content(path), path)

    def spares(self) -> list[str]:
        return [path for path in self.disk.files() if path.endswith(fmt.SPARE_SUFFIX)]


@dataclass(frozen=True)
class Recycled:
    """A disk whose journal is one file, which was another one before."""

    disk: SimDisk
    path: str
    ends: Sequence[int]
    """Where the groups end that are in it."""
    fences: Sequence[int]
    """All that are in it."""


def recycled(*group_sizes: int, block_bytes: int = 1) -> Recycled:
    rig = Rig(SimDisk(0), block_bytes=block_bytes)
    rig.recycle()
    newest = journal_ids(rig.disk)[-1]
    rig.journals.advance([JournalMark(newest, FILE_HEADER_BYTES)])
    there = (rig.journals.positions()[0].offset - FILE_HEADER_BYTES) // RECORD_BYTES
    first, ends = rig.sent - there + 1, []
    for size in group_sizes:
        rig.commit(size)
        ends.append(rig.journals.positions()[0].offset)
    assert journal_ids(rig.disk) == [newest]
    return Recycled(rig.disk, fmt.path_of(newest), ends, range(first, rig.sent + 1))


def found(disk: SimDisk, losses: list[str] | None = None) -> list[int]:
    return [
        record.ledger_id
        for segment in plan(disk)
        for record in replay(disk, segment, losses=losses, looks_only=True)
    ]


def test_a_file_that_the_mark_has_left_behind_is_the_next_one_with_an_epoch_of_its_own() -> None:
    rig = Rig(SimDisk(0))
    rig.fill(1)
    before = rig.disk.content(fmt.path_of(1))
    rig.checkpoint()
    assert rig.spares() == [fmt.spare_of(1)]
    rig.fill(1)
    assert rig.spares() == []
    newest = rig.newest()
    assert (newest.journal_id, newest.previous_id, newest.is_recycled) == (3, 2, True)
    assert newest.epoch != fmt.decode_file_header(before, "1").epoch
    assert newest.allocated_bytes == len(before) - FILE_HEADER_BYTES
    stale = before[FILE_HEADER_BYTES + 3 * RECORD_BYTES : FILE_BYTES_MAX]
    assert stale in rig.disk.content(fmt.path_of(3)), "the old bytes are still there"
    assert found(rig.disk)[-1] == rig.sent


@pytest.mark.parametrize("block_bytes", [1, 64, 4096])
@pytest.mark.parametrize("records", range(7))
def test_records_of_an_earlier_life_never_replay_and_show_no_damage(
    records: int, block_bytes: int
) -> None:
    """Wherever the new ones end, an old one follows, whole."""
    life = recycled(*[1] * records, block_bytes=block_bytes)
    losses: list[str] = []
    assert found(life.disk, losses) == list(life.fences)
    assert losses == []


def test_what_is_written_to_such_a_file_fills_its_last_block_and_no_new_space() -> None:
    rig = Rig(SimDisk(0), block_bytes=64)
    rig.recycle()
    rig.commit(1)
    end = rig.journals.positions()[0].offset
    content = rig.disk.content(fmt.path_of(journal_ids(rig.disk)[-1]))
    assert not any(content[end : end + -end % 64])
    assert any(content[end + -end % 64 :]), "behind it are the old bytes"
    rig = Rig(SimDisk(0), block_bytes=1 << 20)
    rig.recycle()
    path = fmt.path_of(journal_ids(rig.disk)[-1])
    size_bytes = len(rig.disk.content(path))
    rig.commit(1)
    assert len(rig.disk.content(path)) == size_bytes


GROUPS = st.lists(st.integers(1, 2), min_size=2, max_size=3)


@given(GROUPS, st.sampled_from([1, 64, 4096]), st.data())
def test_damage_to_a_recycled_file_is_found_or_was_never_needed(
    groups: list[int], block_bytes: int, data: st.DataObject
) -> None:
    """As in a file that was never another: before the last commit it refuses; in the last commit
    it looks like a write that was torn; behind it, it harms nothing."""
    life = recycled(*groups, block_bytes=block_bytes)
    disk, path, ends, before = life.disk, life.path, life.ends, list(life.fences)
    whole = disk.content(path)
    at = data.draw(st.integers(0, len(whole) - 1), "at")
    size = data.draw(st.integers(1, min(80, len(whole) - at)), "size")
    older = data.draw(st.booleans(), "with the bytes of another life")
    stale = recycled().disk.content(path) if older else bytes(len(whole))
    bad = stale[at : at + size].ljust(size, b"\0")
    if data.draw(st.booleans(), "flipped"):
        bad = bytes(byte ^ 0x55 for byte in whole[at : at + size])
    if bad == whole[at : at + size]:
        return
    changed = [at + i for i in range(size) if bad[i] != whole[at + i]]
    disk.damage(path, at, bad)
    if changed[-1] < ends[-2] or changed[0] < FILE_HEADER_BYTES:
        with pytest.raises(JournalDamaged):
            found(disk)
    elif changed[0] < ends[-2]:  # and the last commit, which would show it
        with suppress(JournalDamaged):
            left = found(disk)
            assert left == before[: len(left)]
    elif changed[0] < ends[-1]:
        left = found(disk)
        assert left == before[: len(left)]
        assert len(left) >= len(before) - groups[-1]
    else:
        assert found(disk) == before


def test_every_byte_of_a_recycled_file_flipped_is_found_or_was_never_needed() -> None:
    life = recycled(2, 1, 2)
    disk, path, ends, before = life.disk, life.path, life.ends, list(life.fences)
    whole = disk.content(path)
    for at in range(len(whole)):
        damaged = disk.copy()
        damaged.damage(path, at, bytes([whole[at] ^ 0x55]))
        if at < ends[-2]:
            with pytest.raises(JournalDamaged):
                found(damaged)
        elif at < ends[-1]:
            assert before[:-2] == found(damaged)[: len(before) - 2]
        else:
            assert found(damaged) == before


def test_a_recycled_file_cut_at_every_byte_is_known_to_have_been_longer() -> None:
    life = recycled(2, 1, 2)
    disk, path, before = life.disk, life.path, list(life.fences)
    for size_bytes in range(len(disk.content(path))):
        damaged = disk.copy()
        damaged.cut(path, size_bytes)
        if size_bytes < FILE_HEADER_BYTES:
            with pytest.raises(JournalDamaged):
                found(damaged)
            continue
        losses: list[str] = []
        there = found(damaged, losses)
        assert there == before[: len(there)]
        assert losses, f"cut to {size_bytes} bytes, and nothing shows it"


@pytest.mark.parametrize("loss", Loss, ids=str)
@pytest.mark.parametrize("block_bytes", [1, 64])
def test_nothing_is_lost_and_nothing_old_comes_back_after_a_crash_at_any_operation(
    loss: Loss, block_bytes: int
) -> None:
    """Of a journal that recycles all the time: while a file is left behind, taken, begun again."""
    for crash_at in range(1, 400):
        disk = SimDisk(crash_at)
        rig = Rig(disk, block_bytes=block_bytes)
        disk.crash_at = disk.operations + crash_at
        with suppress(PowerLost):
            for turn in range(9):
                rig.commit(1 + turn % 3, 2)
                rig.fill(turn % 2)
                rig.checkpoint()
            return
        disk.crash(loss)
        try:
            there = found(disk)
        except FileDamaged as damaged:
            damaged.add_note(f"power lost at operation {crash_at}")
            raise
        needed = [fence for fence in rig.promised if fence > rig.marked]
        assert set(needed) <= set(there) <= set(range(1, rig.sent + 1))
        assert not there or there == list(range(there[0], there[-1] + 1))
    pytest.fail("it never ended")


def test_a_bounded_number_of_files_is_kept() -> None:
    rig = Rig(SimDisk(0))
    rig.fill(6)
    rig.checkpoint()
    assert len(rig.spares()) == SPARES_MAX
    rig.fill(4)
    rig.checkpoint()
    rig.fill(1)
    rig.checkpoint()
    assert len(rig.spares()) == SPARES_MAX
    assert (len(rig.journals.files(0)), len(rig.journals.spares(0))) == (1, SPARES_MAX)


def test_a_full_disk_gets_the_space_of_the_spares_before_anybody_waits_for_it() -> None:
    disk = SimDisk(0)
    rig = Rig(disk)
    rig.fill(2)
    rig.checkpoint()
    assert rig.spares()
    disk.capacity_bytes = disk.used_bytes()
    rig.commit(3, 3)
    assert rig.spares() == []
    assert rig.journals.full == ()
    assert not rig.journals.has_pending(0)


def test_no_file_is_kept_on_a_disk_that_is_well_filled() -> None:
    disk = SimDisk(0)
    rig = Rig(disk)
    rig.fill(3)
    rig.checkpoint()
    assert rig.spares()
    disk.capacity_bytes = int(disk.used_bytes() / USED_SHARE_MAX)
    rig.journals.trim_spares()
    assert rig.spares() == []
    disk.capacity_bytes = None
    rig.fill(2)
    disk.capacity_bytes = int(disk.used_bytes() / USED_SHARE_MAX)
    rig.checkpoint()
    assert rig.spares() == []


def test_a_spare_that_somebody_removed_is_not_missed() -> None:
    rig = Rig(SimDisk(0))
    rig.fill(2)
    rig.checkpoint()
    for path in rig.spares():
        rig.disk.remove(path)
    rig.fill(2)
    assert not rig.newest().is_recycled
    rig.journals.give_up_spares()
    assert found(rig.disk)[-1] == rig.sent


def test_spares_without_a_journal_are_those_of_a_lost_one() -> None:
    rig = Rig(SimDisk(0))
    rig.fill(2)
    rig.checkpoint()
    for path in rig.disk.files():
        if not path.endswith(fmt.SPARE_SUFFIX):
            rig.disk.lose(path)
    assert not is_new(rig.disk)
    with pytest.raises(JournalMissing, match="neither a mark nor a journal file"):
        plan(rig.disk)


@pytest.mark.parametrize("content", [b"", bytes(3000), b"\xff" * 3000, b"DLOGJRNL"])
def test_a_start_writes_a_spare_again_whatever_is_in_it(content: bytes) -> None:
    """As one whose header was half written when the power failed."""
    promises = Promises(SimDisk(0))
    promises.open()
    for entry in range(60):
        promises.add(1, entry)
        promises.commit()
    promises.checkpoint()
    promises.storage.close()
    spare = next(path for path in promises.disk.files() if path.endswith(fmt.SPARE_SUFFIX))
    promises.disk.cut(spare, 0)
    promises.disk.damage(spare, 0, content)
    for path in promises.disk.files():
        if path.endswith(fmt.SPARE_SUFFIX) and path != spare:
            promises.disk.remove(path)
    promises.open()
    newest = fmt.path_of(journal_ids(promises.disk)[-1])
    assert fmt.decode_file_header(promises.disk.content(newest), newest).is_recycled
    promises.add(2, 1)
    promises.commit()
    promises.disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def test_the_size_of_a_spare_is_on_the_disk_though_a_sync_of_it_once_failed() -> None:
    """Else the file would seem to have been shortened, and its bookie would deny nothing more."""
    rig = Rig(SimDisk(0))
    disk = rig.disk
    disk.kept_by_failed_syncs, disk.forgotten_after_failed_syncs = Loss.LOST, 0.0
    rig.fill(1)
    rig.checkpoint()
    spare = rig.spares()[0]
    file = disk.open(spare)
    file.preallocate(len(disk.content(spare)) + 1000)
    disk.fail("sync", spare)
    with pytest.raises(OSError, match="journal"):
        file.sync()
    disk.kill()
    header = begin(
        disk,
        50,
        previous=None,
        preallocate_bytes=PREALLOCATE_BYTES,
        entropy=random.Random(7).randbytes,
        spare=spare,
    )
    disk.crash(Loss.LOST)
    size_bytes = len(disk.content(fmt.path_of(50)))
    assert size_bytes == FILE_HEADER_BYTES + header.allocated_bytes


def test_operators_are_told_what_follows_the_records_of_a_recycled_file() -> None:
    life = recycled(1)
    *_, end = walk(life.disk)
    assert isinstance(end, JournalEnd)
    assert (end.offset, end.is_damage) == (life.ends[-1], False)
    assert end.reason == "what follows is of an earlier life of the file"
    life.disk.damage(life.path, life.ends[-1] - 1, b"\xff")
    *_, end = walk(life.disk)
    assert isinstance(end, JournalEnd)
    assert end.reason == TORN
