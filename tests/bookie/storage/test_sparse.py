"""Ids far apart: what a ledger costs is bounded by what is stored of it, whatever its ids are."""

from dataclasses import replace

import pytest

from bookie.index.format import PAGE_BYTES, PAGE_ENTRIES
from bookie.index.ledger_cache import LedgerCache
from bookie.storage import ledger_table
from bookie.storage.engine import BookieStorage
from ledger.entry import ENTRIES_AHEAD_MAX
from ledger.requests import AddRun, Status
from tests.bookie.promises import KEY, SMALL, Promises, frame_of, run_of
from tests.simulation.disk import Loss, SimDisk

APART = PAGE_ENTRIES * 50
CONFIG = replace(SMALL, memtable_bytes_max=1 << 20)


def one(entry_id: int, lac: int, *, recovery: bool = False) -> AddRun:
    frame = frame_of(1, entry_id, lac=lac)
    return AddRun(1, KEY, (entry_id,), (len(frame),), frame, recovery=recovery)


def opened() -> BookieStorage:
    return BookieStorage.open(SimDisk(0), SMALL)


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize(
    ("entry_id", "lac", "status"),
    [
        (0, -1, Status.OK),
        (10**9, 10**9 - 1, Status.OK),
        (ENTRIES_AHEAD_MAX, 0, Status.OK),
        (10**9, 10**9 - ENTRIES_AHEAD_MAX, Status.OK),
        (ENTRIES_AHEAD_MAX + 1, 0, Status.BAD_REQUEST),
        (10**9, -1, Status.BAD_REQUEST),
        (5, 5, Status.BAD_REQUEST),
        (5, 9, Status.BAD_REQUEST),
        (10**12, 10**12 - 1, Status.BAD_REQUEST),
    ],
)
def test_ids_that_no_writer_can_have_made_are_refused(
    entry_id: int, lac: int, status: Status, recovery: bool
) -> None:
    """A bookie may join a ledger anywhere, but a writer has so many entries in flight."""
    storage = opened()
    assert storage.add(one(entry_id, lac, recovery=recovery))[0] is status
    assert storage.ledger_ids() == ([1] if status is Status.OK else [])


def test_no_frame_carries_a_lac_of_its_own_id_or_beyond_whatever_comes_with_it() -> None:
    frames = frame_of(1, 5, lac=7), frame_of(1, 9, lac=4)
    lengths = [len(frame) for frame in frames]
    storage = opened()
    run = AddRun(1, KEY, (5, 9), lengths, b"".join(frames))
    assert storage.add(run)[0] is Status.BAD_REQUEST
    assert storage.ledger_ids() == []


def test_entries_far_apart_cost_a_page_each_in_memory_and_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promises = Promises(SimDisk(0), CONFIG)
    most = 0
    honest = LedgerCache.dirty

    def dirty(cache: LedgerCache, ledger_id: int, number: int, *, exists: bool) -> bytearray:
        nonlocal most
        page = honest(cache, ledger_id, number, exists=exists)
        most = max(most, len(cache.dirty_pages()))
        return page

    monkeypatch.setattr(LedgerCache, "dirty", dirty)
    promises.open()
    for entry_id in range(0, 150 * APART, APART):
        assert promises.add(1, entry_id) is Status.OK
    promises.commit()
    promises.checkpoint()
    assert most <= 5
    written = [promises.disk.content(path) for path in promises.disk.files() if "/01/" in path]
    pages = sum(
        any(content[at : at + PAGE_BYTES])
        for content in written
        for at in range(0, len(content), PAGE_BYTES)
    )
    assert pages < 200  # the header, a page for each, and those with more extents, which move
    promises.check()
    promises.add(1, 77 * APART + 3 * PAGE_ENTRIES, recovery=True)
    promises.commit()
    promises.disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def test_a_ledger_with_more_stretches_than_fragments_can_be_takes_no_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_table, "STRETCHES_MAX", 20)
    promises = Promises(SimDisk(0), CONFIG)
    promises.open()
    for number in range(20):
        assert promises.add(1, number * APART) is Status.OK
        promises.commit()
        if number % 7 == 0:
            promises.checkpoint()
    assert promises.storage.add(run_of(1, 20 * APART))[0] is Status.BAD_REQUEST
    assert promises.storage.add(run_of(1, 20 * APART, recovery=True))[0] is Status.BAD_REQUEST
    last = 19 * APART
    assert promises.add(1, *range(last + 1, last + 400)) is Status.OK
    assert promises.add(1, 5 * APART + 1, recovery=True) is Status.OK
    promises.commit()
    promises.checkpoint()
    assert promises.storage.add(run_of(1, 30 * APART))[0] is Status.BAD_REQUEST
    assert promises.add(1, last + 400) is Status.OK
    promises.commit()
    promises.check()


def test_a_journal_that_was_written_before_such_ids_were_refused_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was promised stays promised."""
    promises = Promises(SimDisk(0), CONFIG)
    promises.open()
    for entry_id in range(0, 300 * APART, APART):
        assert promises.add(1, entry_id) is Status.OK
    promises.commit()
    promises.disk.kill()
    monkeypatch.setattr(ledger_table, "STRETCHES_MAX", 20)
    promises.open()
    promises.check()
    assert promises.add(1, 299 * APART + 1) is Status.OK
    promises.commit()
    promises.checkpoint()
    promises.disk.crash(Loss.LOST)
    promises.open()
    promises.check()
