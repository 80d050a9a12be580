"""A scripted life of a bookie's storage that meets every kind of disk operation it has."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bookie.storage.config import StorageConfig
from ledger.requests import Status
from tests.bookie.machine import Machine
from tests.bookie.promises import DEFERRED, SMALL, Promises

TURNS = 4


@dataclass(frozen=True)
class Setting:
    """Where the workload runs, and how much stays in memory."""

    several: bool
    recent_bytes_max: int = 0
    is_deferred: bool = False
    """Whether most of the index is put in place later."""

    def __str__(self) -> str:
        where = "several directories" if self.several else "one directory"
        index = ", index put in place later" if self.is_deferred else ""
        return f"{where}, {self.recent_bytes_max} recent bytes{index}"

    def promises(self, machine: Machine) -> Promises:
        return Promises(machine, self.config)

    def machine(self, seed: int = 0) -> Machine:
        return Machine(seed, several=self.several)

    @property
    def config(self) -> StorageConfig:
        config = DEFERRED if self.is_deferred else SMALL
        return replace(config, recent_bytes_max=self.recent_bytes_max)


SETTINGS = (
    Setting(several=False),
    Setting(several=False, recent_bytes_max=6000, is_deferred=True),
    Setting(several=True, is_deferred=True),
    Setting(several=True, recent_bytes_max=1 << 20),
)


def workload(machine: Machine, promises: Promises, life: int = 0) -> Iterator[None]:
    """Adds over several ledgers, fences, explicit LACs, rolls of journals and logs, checkpoints,
    full disks, deleted ledgers, collections, restarts.

    Ledgers that it deletes are others in each *life*."""
    base = 1000 * life
    promises.open()
    yield
    for turn in range(TURNS):
        first = 40 * turn
        for ledger_id in (1, 2, 259):
            promises.add(ledger_id, *range(first, first + 25, 1 + ledger_id % 2))
        promises.commit()
        promises.add(base + 10 + turn, 0, 1, 5)
        if turn == 1:
            promises.fence(2)
            promises.fence(77)  # a ledger that nothing was ever added to
        promises.commit()
        promises.add(1, *range(first + 25, first + 30))
        yield
        promises.checkpoint()  # beside an add that is not committed yet
        promises.commit()
        promises.add(1, *range(first + 20, first + 34))  # partly there: disk, memory, new
        promises.add(2, 500 + turn, recovery=True)
        promises.set_lac(1, first + 30)
        promises.commit()
        yield
        collect_garbage(promises, base, turn)
        yield
        fill_up(machine, promises, base, turn)
        if turn == 2:
            promises.fence(60)
            promises.checkpoint()  # the fence is on disk before its journal record
            promises.storage.close()
            promises.open()
            promises.check()
        yield
    promises.commit()
    promises.checkpoint()


def collect_garbage(promises: Promises, base: int, turn: int) -> None:
    """Delete what lies between other entries, in memory and on disk, and compact."""
    surplus = range(base + 500 + 3 * turn, base + 503 + 3 * turn)  # no one's copies, later on
    for ledger_id in surplus:
        promises.add(ledger_id, *range(0, 400, 30))
    shorts = range(base + 100 + 3 * turn, base + 103 + 3 * turn)  # one for each ledger directory
    for ledger_id in shorts:
        promises.add(ledger_id, *range(12))
        promises.add(ledger_id + 100, *range(3))
        promises.commit()
    promises.checkpoint()
    promises.add(shorts[0], *range(12, 18))  # of these, some are in memory only
    promises.fence(shorts[1])
    promises.commit()
    assert promises.delete(shorts[0], shorts[1], base + 10 + turn)
    assert promises.evict(*surplus)
    promises.add(surplus[0], *range(0, 200, 30), recovery=True)  # by a repair
    promises.commit()
    promises.add(shorts[2], 12)
    promises.checkpoint()
    promises.collect(0.9 if turn % 2 else 0.6)
    promises.check(bytes_max=1 << 20)


def fill_up(machine: Machine, promises: Promises, base: int, turn: int) -> None:
    """One disk after the other is full for a while."""
    for at in range(len(machine.disks)) if turn % 2 else ():
        machine.fill_up(at, left_bytes=(0, 800, 2500)[(turn + at) % 3])
        ledgers = range(base + 20 + 3 * at, base + 23 + 3 * at)  # one for each ledger directory
        for entry in range(0, 30, 3):
            for ledger_id in ledgers:
                status = promises.add(ledger_id, entry, entry + 1, entry + 2)
                assert status in (Status.OK, Status.READ_ONLY)
            promises.commit()
        for ledger_id in ledgers:
            promises.add(ledger_id, 900 + turn, recovery=True)
        promises.fence(50 + at)
        promises.commit()
        promises.checkpoint()
        if turn == 3:
            promises.delete(ledgers[0])
            promises.collect()
        promises.check(bytes_max=1 << 20)
        machine.make_space()
        promises.commit()
        promises.checkpoint()
        promises.checkpoint()  # the first may have ended what was begun on the full disk
        assert not promises.storage.troubles
        assert promises.add(ledgers[2], 700 + turn) is Status.OK
        promises.commit()
