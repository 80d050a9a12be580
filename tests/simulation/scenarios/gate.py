"""Threads in the hand of a test: one waits inside a disk operation while the test goes on.

    disk = GatedDisk()
    with disk.held(storage.checkpoint, at=fits("sync", "entrylog")) as held:
        ...                       the checkpoint stands before that sync; do what you like
    held.result                   it went on, and ended with this

The operation `HAS_READ` is the moment behind a read: its bytes are in hand already. Only one
of the two threads runs at a time, so what happens is the same in every run.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from bookie.disk.port import DiskFile
from tests.simulation.disk import PowerLost, SimDisk, SimFile

Result = TypeVar("Result")
Fits = Callable[[str, str], bool]
"""Whether an operation on a path is meant."""

DEADLINE_S: Final = 20.0
HAS_READ: Final = "has read"


def fits(operation: str, path: str = "") -> Fits:
    """Mean *operation* on paths that begin with *path*."""
    return lambda done, at: done == operation and at.startswith(path)


def change_number(wanted: int) -> Fits:
    """Mean the operation number *wanted*, from 0 on, of those that change the disk."""
    seen = 0

    def meant(operation: str, _path: str) -> bool:
        nonlocal seen
        if operation in {"read", HAS_READ, "size", "open", "list"}:
            return False
        seen += 1
        return seen == wanted + 1

    return meant


class Held(Generic[Result]):
    """A call on its way on a thread of its own."""

    def __init__(self) -> None:
        self.arrived = False
        """Whether it came to the operation that was meant; else it ended before."""
        self.power_lost = False
        """Set it to let the call find the power gone when it goes on."""
        self.result: Result | None = None


class GatedDisk(SimDisk):
    def __init__(self) -> None:
        super().__init__(0)
        self._fits: Fits | None = None
        self._thread: int | None = None
        self._came = threading.Event()
        self._go_on = threading.Event()
        self._without_power = False

    @contextmanager
    def held(self, call: Callable[[], Result], *, at: Fits) -> Iterator[Held[Result]]:
        """Run *call* until its first operation that *at* means, then the block, then the rest."""
        held = Held[Result]()
        self._came.clear()
        self._go_on.clear()
        self._fits, self._without_power = at, False

        def work() -> Result | None:
            self._thread = threading.get_ident()
            try:
                return call()
            except PowerLost:
                return None
            finally:
                self._came.set()

        with ThreadPoolExecutor(1, "held") as pool:
            running = pool.submit(work)
            try:
                assert self._came.wait(DEADLINE_S), "it neither came there nor ended"
                held.arrived = self._fits is None
                yield held
            finally:
                self._fits = None
                self._without_power = held.power_lost
                self._go_on.set()
            held.result = running.result(DEADLINE_S)

    def open(self, path: str) -> DiskFile:
        file = super().open(path)
        assert isinstance(file, SimFile)
        return _GatedFile(self, file)

    def step(self, operation: str, path: str, *, counts: bool = True) -> None:
        self.pass_gate(operation, path)
        super().step(operation, path, counts=counts)

    def pass_gate(self, operation: str, path: str) -> None:
        """Wait here if the test holds this thread at this operation."""
        if (
            self._fits is not None
            and threading.get_ident() == self._thread
            and self._fits(operation, path)
        ):
            self._fits = None
            self._came.set()
            assert self._go_on.wait(DEADLINE_S), f"{operation} {path} was never let go on"
        if self._without_power and threading.get_ident() == self._thread:
            raise PowerLost(f"{operation} {path}")


class _GatedFile(SimFile):
    def __init__(self, disk: GatedDisk, opened: SimFile) -> None:
        super().__init__(disk, opened.path, opened._content)
        self._gates = disk

    def read(self, length: int, offset: int) -> bytes:
        data = super().read(length, offset)
        self._gates.pass_gate(HAS_READ, self.path)
        return data
