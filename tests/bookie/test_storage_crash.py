"""Power is lost before every single disk operation of a workload; no promise may be broken."""

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ledger.entry import encode_lac
from ledger.requests import AddRun, Status
from tests.bookie.promises import KEY, Promises
from tests.simulation.disk import Loss, PowerLost, SimDisk


def workload(promises: Promises) -> Iterator[None]:
    """Adds over several ledgers, fences, rolls of journal and logs, checkpoints, restarts."""
    promises.open()
    yield
    for turn in range(4):
        first = 40 * turn
        for ledger_id in (1, 2, 259):
            promises.add(ledger_id, *range(first, first + 25, 1 + ledger_id % 2))
        promises.commit()
        promises.add(10 + turn, 0, 1, 5)
        if turn == 1:
            promises.fence(2)
            promises.fence(77)  # a ledger that nothing was ever added to
        promises.commit()
        promises.add(1, *range(first + 25, first + 30))
        yield
        promises.storage.checkpoint()  # beside an add that is not committed yet
        promises.commit()
        promises.add(1, *range(first + 20, first + 34))  # partly there: disk, memory, new
        promises.add(2, 500 + turn, recovery=True)
        lac = encode_lac(ledger_id=1, last_add_confirmed=first + 30, length=1)
        promises.storage.set_lac(AddRun(1, KEY, (-1,), (len(lac),), lac, explicit_lac=True))
        promises.commit()
        if turn == 2:
            promises.fence(12)
            promises.storage.checkpoint()  # the fence is on disk before its journal record
            promises.storage.close()
            promises.open()
            promises.check()
        yield
    promises.commit()
    promises.storage.checkpoint()


def run_to_the_end(disk: SimDisk) -> Promises:
    promises = Promises(disk)
    for _ in workload(promises):
        pass
    return promises


def operations_of_the_workload() -> int:
    disk = SimDisk(0)
    promises = run_to_the_end(disk)
    promises.check()
    return disk.operations


def crash_at(operation: int, seed: int) -> Promises:
    """Run the workload until the power goes at that operation."""
    disk = SimDisk(seed)
    disk.crash_at = operation
    promises = Promises(disk)
    with pytest.raises(PowerLost):
        for _ in workload(promises):
            pass
    return promises


def works_on(promises: Promises) -> None:
    """The engine is not only readable, it goes on."""
    assert promises.add(1, 10_000) is Status.OK
    promises.fence(3)
    promises.commit()
    promises.storage.checkpoint()
    promises.check()
    promises.storage.close()


@pytest.mark.parametrize("loss", Loss)
def test_every_promise_survives_a_crash_at_every_disk_operation(loss: Loss) -> None:
    total = operations_of_the_workload()
    assert total > 150
    for operation in range(1, total + 1):
        promises = crash_at(operation, seed=operation)
        promises.disk.crash(loss)
        promises.open()
        promises.check()
        works_on(promises)
        promises.disk.crash(loss)
        promises.open()
        promises.check()
        promises.storage.close()


def test_every_promise_survives_a_crash_while_it_recovers_from_a_killed_process() -> None:
    """A killed process leaves behind what it wrote and did not sync; the recovery believes
    it, and then the power goes."""
    total = operations_of_the_workload()
    lot = random.Random(1)
    for operation in range(2, total + 1, 2):
        promises = crash_at(operation, seed=operation)
        promises.disk.kill()
        promises.disk.crash_at = promises.disk.operations + lot.randint(1, 40)
        try:
            promises.open()
            promises.check()
            works_on(promises)
        except PowerLost:
            pass
        promises.disk.crash(lot.choice(list(Loss)))
        promises.open()
        promises.check()
        works_on(promises)


def test_crashes_one_after_the_other_at_random_operations_break_no_promise() -> None:
    for seed in range(60):
        lot = random.Random(seed)
        promises = Promises(SimDisk(seed))
        for _ in range(6):
            promises.disk.crash_at = promises.disk.operations + lot.randint(1, 250)
            try:
                for _ in workload(promises):
                    pass
            except PowerLost:
                pass
            promises.disk.crash(lot.choice(list(Loss)))
        promises.open()
        promises.check()
        works_on(promises)


def test_what_a_killed_process_had_only_written_is_synced_before_it_is_believed() -> None:
    """Killed between write and sync; each operation of the recovery loses power in turn."""
    for operation in range(1, 60):
        promises = Promises(SimDisk(operation))
        promises.open()
        promises.add(1, 0, 1, 2)
        promises.disk.crash_at = promises.disk.operations + 2  # the journal's sync
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
