"""Simulated disks on one power plug: they lose power together, and all operations are counted.

`fork` copies everything to the bit, with what is not synced yet. So one run of a workload serves
for a crash before each of its operations: the copy loses power, the run goes on.
"""

import errno
import random
from collections.abc import Callable

from bookie.disk.port import Directories, disk_error
from tests.simulation.disk import Loss, PowerLost, SimDisk, _Content, _Directory

JOURNALS = 2
LEDGER_DIRECTORIES = 3


class PluggedDisk(SimDisk):
    def __init__(self, machine: "Machine", lot: random.Random) -> None:
        super().__init__(lot)
        self._machine = machine

    def step(self, operation: str, path: str, *, counts: bool = True) -> None:
        self._machine.step(f"{operation} {path}", counts=counts)
        super().step(operation, path, counts=counts)


class Machine:
    """Where one bookie's directories are: all on one disk, or each on a disk of its own."""

    def __init__(self, seed: int = 0, *, several: bool = False) -> None:
        self.lot = random.Random(seed)
        self.several = several
        self.operations = 0
        self.crash_at: int | None = None
        """The operation before which the power goes."""
        self.fail_sync_at: int | None = None
        """The operation that fails, if it is a sync."""
        self.before_operation: Callable[[str], None] | None = None
        self._off = False
        count = JOURNALS + LEDGER_DIRECTORIES if several else 1
        self.disks = [PluggedDisk(self, self.lot) for _ in range(count)]
        self.directories = (
            Directories(self.disks[0], tuple(self.disks[:JOURNALS]), tuple(self.disks[JOURNALS:]))
            if several
            else Directories.single(self.disks[0])
        )

    def step(self, operation: str, *, counts: bool) -> None:
        if self._off:
            raise PowerLost(operation)
        if not counts:
            return
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            self._off = True
            raise PowerLost(f"operation {self.operations}: {operation}")
        if self.operations == self.fail_sync_at and operation.startswith("sync"):
            raise disk_error(errno.EIO, operation, sync=True)
        if self.before_operation is not None:
            self.before_operation(operation)

    def crash(self, loss: Loss, *, halves: bool = False) -> None:
        for disk in self.disks:
            disk.crash(loss, halves=halves)
        self._come_back()

    def kill(self) -> None:
        """End the process; nothing that it wrote is lost yet."""
        for disk in self.disks:
            disk.kill()
        self._come_back()

    def fill_up(self, at: int, *, left_bytes: int = 0) -> None:
        disk = self.disks[at % len(self.disks)]
        disk.capacity_bytes = disk.used_bytes() + left_bytes

    def make_space(self) -> None:
        for disk in self.disks:
            disk.capacity_bytes = None

    @property
    def is_full(self) -> bool:
        return any(disk.capacity_bytes is not None for disk in self.disks)

    def heal(self) -> None:
        """Forget all trouble that was ordered, and give space."""
        self.crash_at = None
        for disk in self.disks:
            disk.heal()

    def fork(self, seed: int) -> "Machine":
        other = Machine(seed, several=self.several)
        for disk, copy in zip(self.disks, other.disks, strict=True):
            _copy(disk, copy)
        return other

    def _come_back(self) -> None:
        self._off = False
        self.crash_at = self.fail_sync_at = None


def _copy(source: SimDisk, target: SimDisk) -> None:
    copies: dict[int, _Content] = {}

    def copy(content: _Content) -> _Content:
        if id(content) not in copies:
            copies[id(content)] = _Content(
                bytearray(content.durable),
                bytearray(content.now),
                list(content.unsynced),
                is_false=content.is_false,
            )
        return copies[id(content)]

    for path, directory in source._directories.items():
        target._directories[path] = _Directory(
            {name: copy(content) for name, content in directory.durable.items()},
            {name: copy(content) for name, content in directory.now.items()},
            [
                {name: content and copy(content) for name, content in names.items()}
                for names in directory.unsynced
            ],
        )
    target._durable_directories = dict(source._durable_directories)
    target.capacity_bytes = source.capacity_bytes
