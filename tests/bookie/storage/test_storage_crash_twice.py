"""Two crashes in a row: a process ends in the middle of something, and the power fails while the
next one starts, or soon after.

What the second process has found, it has told others: that must stay, as if it had been promised.
A small life, so that every operation of it can be the last of the first process, by power loss,
by a kill, by a sync that fails, and every operation of the second process the last of that. With
DLOG_TEST_CRASH_EVERY=1, as in `make chaos-bookie`, all of that is tried. Else a part is, which is
the same in each run: DLOG_TEST_CHAOS_SEED, 1 if not given, says which.
"""

import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from bookie.errors import StorageFailed
from ledger.requests import Status
from tests.bookie.machine import Machine
from tests.bookie.promises import DEFERRED, SMALL, Promises, entries_of
from tests.bookie.tally import tally
from tests.simulation.disk import Loss, PowerLost, SimDisk

EVERY = int(os.environ.get("DLOG_TEST_CRASH_EVERY", "75"))
SEED = int(os.environ.get("DLOG_TEST_CHAOS_SEED", "1"))
LOSSES = ((Loss.LOST, False), (Loss.LOST, True), (Loss.TORN, False))
"""Of what was not synced, and whether half of each write is kept."""
ENDS = ("power lost", "power torn", "killed", "a sync failed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 if EVERY > 1 else 3600)]


def first_life(promises: Promises) -> None:
    """Everything that a start reads and acts upon is written here, and is old at its end."""
    promises.open()
    promises.add(1, *range(20))
    promises.add(2, *range(10))
    promises.commit()
    promises.checkpoint()
    stop_if_frozen(promises)
    promises.add(1, *range(20, 24))  # on pages that are there already
    promises.add(3, *range(12))
    promises.fence(2)
    promises.commit()
    promises.checkpoint()
    stop_if_frozen(promises)
    promises.delete(3)
    promises.add(1, 24)
    promises.commit()
    promises.collect()
    promises.add(4, 0, 1)
    promises.commit()


def stop_if_frozen(promises: Promises) -> None:
    """One of several ledger directories has failed: nothing is kept or deleted any more."""
    if promises.storage.troubles:
        raise StorageFailed("this life", "; ".join(promises.storage.troubles))


def second_life(promises: Promises) -> None:
    promises.open()
    believe(promises)
    promises.collect()
    assert promises.add(5, 0) is Status.OK
    promises.commit()
    promises.checkpoint()


def believe(promises: Promises) -> None:
    """Take for promised whatever is there now: somebody may have been told."""
    storage = promises.storage
    for ledger_id in storage.ledger_ids():
        if ledger_id not in promises.deleting:
            found = entries_of(storage, ledger_id)
            promises.stored.setdefault(ledger_id, {}).update(dict.fromkeys(found))
    for ledger_id in promises.deleting:
        if storage._holdings.is_deleted(ledger_id):
            promises.deleted[ledger_id] = None


def whole_again(promises: Promises) -> None:
    promises.open()
    promises.check(bytes_max=1 << 20)
    promises.delete(*promises.deleting)
    promises.collect()
    promises.add(1, 30)
    promises.commit()
    promises.checkpoint()
    promises.check(bytes_max=1 << 20)
    promises.storage.close()


def ended(several: bool, operation: int, end: str) -> tuple[Machine, Promises] | None:
    """Return what a first process leaves behind whose end is at *operation*; None if it does not
    come that far, or there is nothing to fail."""
    machine = Machine(SEED, several=several)
    promises = Promises(machine, DEFERRED if ENDS.index(end) % 2 == several else SMALL)
    if end == "a sync failed":
        for disk in machine.disks:
            disk.kept_by_failed_syncs = (Loss.LOST, Loss.TORN)[operation % 2]
        machine.fail_sync_at = operation
    else:
        machine.crash_at = operation
    try:
        first_life(promises)
    except (PowerLost, StorageFailed, OSError):
        pass
    else:
        return None
    if end.startswith("power"):
        machine.crash(Loss.LOST if end == "power lost" else Loss.TORN)
    else:
        machine.kill()
    return machine, promises


def operations(several: bool) -> int:
    machine = Machine(SEED, several=several)
    first_life(Promises(machine))
    return machine.operations


@pytest.mark.parametrize("several", [False, True], ids=["one directory", "several directories"])
@pytest.mark.parametrize("end", ENDS)
def test_what_a_second_process_has_found_survives_that_the_power_fails_while_it_finds_it(
    end: str, several: bool
) -> None:
    every = max(1, EVERY * (4 if several else 1) // 2)
    for first in range(1 + (SEED + ENDS.index(end)) % every, operations(several) + 1, every):
        left = ended(several, first, end)
        if left is None:
            continue
        machine, promises = left
        crash_everywhere(machine, promises, f"{end} at operation {first}", first)


def crash_everywhere(machine: Machine, promises: Promises, how: str, first: int) -> None:
    stride = 1 if EVERY == 1 else 3

    def crash_again(operation: str) -> None:
        number = machine.operations
        if (number + first) % stride:
            return
        for loss, halves in LOSSES:
            copy = machine.fork(number)
            kept = promises.fork(copy)
            copy.crash(loss, halves=halves)
            tally["crashes of a second process"] += 1
            try:
                whole_again(kept)
            except BaseException as error:
                error.add_note(f"{how}; then power {loss.value} before {number}: {operation}")
                raise

    machine.before_operation = crash_again
    second_life(promises)
    crash_again("the end")


def each_start(prepare: Callable[[], Promises], act: Callable[[Promises], None]) -> None:
    """The power fails at each operation of *act*, after what *prepare* has left behind."""
    for loss, halves in LOSSES:
        for operation in range(1, 100):
            promises = prepare()
            promises.disk.crash_at = promises.disk.operations + operation
            try:
                act(promises)
            except PowerLost:
                over = False
            else:
                over = True
            promises.disk.crash(loss, halves=halves)
            whole_again(promises)
            if over:
                break
        else:
            pytest.fail("it never ended")


def new_disk() -> SimDisk:
    """Return one on which nothing of a failed sync is written, and all of it can be read."""
    disk = SimDisk(SEED)
    disk.kept_by_failed_syncs = Loss.LOST
    disk.forgotten_after_failed_syncs = 0.0
    return disk


def open_and_believe(promises: Promises) -> None:
    promises.open()
    believe(promises)


@pytest.mark.parametrize("how", ["killed", "the sync failed"])
def test_a_redo_file_that_was_not_synced_is_not_believed(how: str) -> None:
    def prepare() -> Promises:
        promises = Promises(new_disk())
        promises.open()
        promises.add(1, *range(40))
        promises.commit()
        promises.checkpoint()
        promises.add(1, *range(40, 45))
        promises.commit()
        if how == "killed":
            promises.disk.crash_before("sync", "index/redo")
        else:
            promises.disk.fail("sync", "index/redo")
        with suppress(PowerLost, StorageFailed):
            promises.checkpoint()
        promises.disk.kill()
        return promises

    each_start(prepare, open_and_believe)


def test_a_journal_whose_sync_failed_is_not_believed() -> None:
    def prepare() -> Promises:
        promises = Promises(new_disk())
        promises.open()
        promises.add(1, 0)
        promises.commit()
        promises.add(1, 1, 2)
        promises.disk.fail("sync", "journal/")
        with pytest.raises(StorageFailed):
            promises.commit()
        promises.disk.kill()
        return promises

    each_start(prepare, open_and_believe)


def test_a_compacted_log_whose_name_was_not_synced_is_not_believed() -> None:
    def prepare() -> Promises:
        promises = Promises(new_disk())
        promises.open()
        for turn in range(4):
            for ledger_id in (1, 2):
                promises.add(ledger_id, *range(10 * turn, 10 * turn + 10))
            promises.commit()
            promises.checkpoint()
        promises.delete(2)
        promises.storage.close()
        promises.open()
        promises.disk.crash_before("sync_directory", "entrylog")
        with pytest.raises(PowerLost):
            promises.collect()
        promises.disk.kill()
        return promises

    def act(promises: Promises) -> None:
        promises.open()
        promises.collect()

    each_start(prepare, act)


def test_a_deletion_whose_name_was_not_synced_is_not_believed() -> None:
    def prepare() -> Promises:
        promises = Promises(new_disk())
        promises.open()
        promises.add(1, 0)
        promises.add(2, *range(10))
        promises.commit()
        promises.disk.crash_before("sync_directory", "index")
        with pytest.raises(PowerLost):
            promises.delete(2)
        promises.disk.kill()
        return promises

    each_start(prepare, open_and_believe)
