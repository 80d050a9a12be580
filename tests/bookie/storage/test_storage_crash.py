"""Power is lost before and after every single disk operation; no promise may be broken.

Nothing but memory changes between two operations, so the place after one is the place before the
next. Each place is tried with un-synced data lost, kept and torn; then the storage must open,
have what it promised, have nothing else, work on, and survive that once more.

A run of the workload is copied at each place (`Machine.fork`), so that it runs only once.
With DLOG_TEST_CRASH_EVERY=1, as in `make chaos-bookie`, every place is tried. Else a sample is: one
place of each kind of operation, drawn from DLOG_TEST_CHAOS_SEED, which is 1 if not given, so that
the sample is the same in each run.
"""

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache

import pytest

from bookie.disk.port import DiskFull
from bookie.errors import StorageFailed
from ledger.requests import Status
from tests.bookie.machine import Machine
from tests.bookie.promises import Promises
from tests.bookie.tally import tally
from tests.bookie.workload import SETTINGS, Setting, workload
from tests.simulation.disk import Loss, PowerLost, SimDisk

EVERY = int(os.environ.get("DLOG_TEST_CRASH_EVERY", "75"))
SEED = int(os.environ.get("DLOG_TEST_CHAOS_SEED", "1"))
LOSSES = tuple(Loss)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 if EVERY > 1 else 3600)]


def run_to_the_end(setting: Setting, machine: Machine) -> Promises:
    promises = setting.promises(machine)
    for _ in workload(machine, promises):
        pass
    return promises


def kind_of(operation: str) -> str:
    return operation.partition("/")[0]


@cache
def kinds(setting: Setting) -> Mapping[str, list[int]]:
    """Return the numbers of the workload's operations, by kind."""
    machine = setting.machine(SEED)
    numbers: dict[str, list[int]] = defaultdict(list)
    machine.before_operation = lambda operation: numbers[kind_of(operation)].append(
        machine.operations
    )
    run_to_the_end(setting, machine)
    return numbers


def sample(setting: Setting, loss: Loss) -> frozenset[int]:
    """Return the numbers of drawn operations of the workload, one of each kind."""
    lot = random.Random(f"{SEED}/{setting}/{loss}")
    return frozenset(lot.choice(numbers) for numbers in kinds(setting).values())


def at_operations(
    machine: Machine,
    promises: Promises,
    chosen: Callable[[int], bool],
    act: Callable[[str, Machine, Promises], None],
) -> Callable[[], None]:
    """From now on, call *act* with a copy of everything before each operation that is *chosen*.

    Return what does the same once more: after the last operation."""

    def before(operation: str) -> None:
        number = machine.operations
        if chosen(number):
            copy = machine.fork(number)
            act(f"operation {number} ({operation})", copy, promises.fork(copy))

    machine.before_operation = before
    return lambda: before("the end")


@contextmanager
def telling(place: str) -> Iterator[None]:
    """Say where the power was lost when something goes wrong."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"power lost: {place}")
        raise


def open_again(machine: Machine, promises: Promises) -> None:
    """Open; on a full disk, that may have to wait for space."""
    try:
        promises.open()
    except StorageFailed as failure:
        if not machine.is_full or not isinstance(failure.__cause__, DiskFull):
            raise
        machine.kill()
        machine.make_space()
        promises.open()
    machine.make_space()


def works_on(promises: Promises) -> None:
    """The engine is not only readable, it goes on."""
    promises.commit()
    promises.checkpoint()
    assert promises.delete(*promises.deleting)
    promises.collect()
    assert promises.add(1, 10_000) is Status.OK
    promises.fence(3)
    promises.commit()
    promises.checkpoint()
    promises.check(bytes_max=1 << 20)
    promises.storage.close()


def recovers(machine: Machine, promises: Promises, loss: Loss) -> None:
    open_again(machine, promises)
    promises.check()
    works_on(promises)
    machine.crash(loss)
    promises.open()
    promises.check(bytes_max=1 << 20)
    promises.storage.close()


def test_the_workload_meets_every_kind_of_operation() -> None:
    seen: dict[str, None] = {}
    for setting in SETTINGS:
        machine = setting.machine()
        machine.before_operation = lambda operation: seen.update({kind_of(operation): None})
        run_to_the_end(setting, machine).check()
        tally[f"disk operations of the workload ({setting})"] = machine.operations
        assert machine.operations > 400
    assert seen.keys() >= {
        "create journal", "write journal", "preallocate journal", "sync journal",
        "rename journal", "remove journal", "sync_directory journal",
        "create entrylog", "write entrylog", "sync entrylog", "sync_directory entrylog",
        "remove entrylog", "rename entrylog",
        "create index", "write index", "sync index", "sync_directory index",
        "make_directory index", "remove index", "rename index",
    }  # fmt: skip


@pytest.mark.parametrize("loss", Loss, ids=str)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_promise_survives_a_crash_at_every_disk_operation(
    setting: Setting, loss: Loss
) -> None:
    machine = setting.machine(SEED)
    promises = setting.promises(machine)
    places = None if EVERY == 1 else sample(setting, loss)
    tried = 0

    def crash(place: str, copy: Machine, kept: Promises) -> None:
        nonlocal tried
        tried += 1
        tally["crash points of a storage at work"] += 1
        copy.crash(loss)
        with telling(f"{setting}, {place}, {loss}"):
            recovers(copy, kept, loss)

    finish = at_operations(machine, promises, lambda n: places is None or n in places, crash)
    for _ in workload(machine, promises):
        pass
    finish()
    assert places is None or tried >= len(places), "the workload was another one"


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_promise_survives_a_second_crash_while_it_recovers(setting: Setting) -> None:
    """From power loss, and from a killed process: that one leaves behind what it wrote and
    did not sync, the recovery believes it, and then the power goes."""
    machine = setting.machine(SEED)
    promises = setting.promises(machine)
    lot = random.Random(f"{SEED}/{setting}")
    share = (0.05 if setting.several else 0.15) / EVERY
    again = 0.3 if EVERY == 1 else 0.1

    def crash(place: str, copy: Machine, kept: Promises) -> None:
        first = lot.choice((*LOSSES, None))
        if first is None:
            copy.kill()
        else:
            copy.crash(first)

        def crash_again(second: str, copy: Machine, kept: Promises) -> None:
            tally["crash points of a storage that recovers"] += 1
            loss = lot.choice(LOSSES)
            copy.crash(loss)
            with telling(f"{setting}, {place}, {first}; then {second}, {loss}"):
                recovers(copy, kept, loss)

        finish = at_operations(copy, kept, lambda _: lot.random() < again, crash_again)
        with telling(f"{setting}, {place}, {first}"):
            open_again(copy, kept)
        finish()

    finish = at_operations(machine, promises, lambda _: lot.random() < share, crash)
    for _ in workload(machine, promises):
        pass
    finish()


@pytest.mark.parametrize("setting", SETTINGS[::3], ids=str)
def test_crashes_one_after_the_other_at_random_operations_break_no_promise(
    setting: Setting,
) -> None:
    for seed in range(160 // EVERY):
        lot = random.Random(f"{SEED}/{seed}")
        machine = setting.machine(seed)
        promises = setting.promises(machine)
        for life in range(6):
            tally["crashes one after the other"] += 1
            machine.crash_at = machine.operations + lot.randint(1, 900)
            with suppress(PowerLost):
                for _ in workload(machine, promises, life):
                    pass
            machine.crash(lot.choice(LOSSES))
            machine.heal()
        promises.open()
        promises.check()
        works_on(promises)


def test_what_a_killed_process_had_only_written_is_synced_before_it_is_believed() -> None:
    """Killed between write and sync; each operation of the recovery loses power in turn."""
    for operation in range(1, 60):
        promises = Promises(SimDisk(operation))
        promises.open()
        promises.add(1, 0, 1, 2)
        promises.disk.crash_before("sync", "journal/")
        with pytest.raises(PowerLost):
            promises.commit()
        promises.disk.kill()
        promises.disk.crash_at = promises.disk.operations + operation
        with suppress(PowerLost):
            promises.open()
        promises.disk.crash(Loss.LOST)
        promises.open()
        works_on(promises)


def test_a_commit_in_the_middle_of_a_checkpoint_stays_behind_the_mark() -> None:
    """The mark is taken before the memtable: what is added and committed later is kept."""

    class Interrupting(SimDisk):
        def step(self, operation: str, path: str, *, counts: bool = True) -> None:
            super().step(operation, path, counts=counts)
            if operation == "create" and path.startswith("entrylog") and not added:
                added.append(path)
                promises.add(1, 3, 4)
                promises.fence(2)
                promises.commit()

    added: list[str] = []
    promises = Promises(Interrupting(1))
    promises.open()
    promises.add(1, 0, 1, 2)
    promises.commit()
    promises.storage.checkpoint()
    assert added
    promises.check()
    promises.disk.crash(Loss.LOST)
    promises.open()
    assert sorted(promises.stored[1]) == [0, 1, 2, 3, 4]
    promises.check()


def test_what_a_crash_left_of_an_entry_log_is_removed_also_beside_other_directories() -> None:
    """The index of one directory knows nothing of the ledgers in others."""
    machine = Machine(several=True)
    promises = Promises(machine)
    promises.open()
    promises.add(1, 0)
    promises.add(3, 0)
    promises.checkpoint()
    promises.storage.close()
    machine.directories.ledgers[0].create("entrylog/00000007.log").close()
    promises.open()
    promises.add(3, 1)
    promises.checkpoint()
    promises.collect()
    assert "entrylog/00000007.log" not in machine.disks[2].files()


def test_what_a_crash_left_of_an_entry_log_is_removed_also_with_new_ledgers_in_memory() -> None:
    """Of those, the index knows nothing yet."""
    promises = Promises(SimDisk(0))
    promises.open()
    promises.add(1, 0)
    promises.checkpoint()
    promises.storage.close()
    promises.disk.create("entrylog/00000007.log").close()
    promises.open()
    promises.add(1, 1)
    promises.checkpoint()
    promises.add(2, 0)
    promises.collect()
    assert "entrylog/00000007.log" not in promises.disk.files()
