"""The directories of one bookie: journals, and ledger directories with entry logs and index.

All records of a ledger go to one journal, and all its entries to one ledger directory, both
chosen by its id (rule 63). The choice is never written down, so the numbers of directories and
their order are fixed for the life of the data; the cookies hold them (`bookie.identity.cookie`).
"""

from dataclasses import dataclass
from typing import Self

from bookie.disk.port import Disk


@dataclass(frozen=True, slots=True)
class Directories:
    """By default one directory is all of them; the same object then stands in each place."""

    main: Disk
    """Where the bookie is configured to live."""
    journals: tuple[Disk, ...]
    ledgers: tuple[Disk, ...]

    def __post_init__(self) -> None:
        assert self.journals, "a bookie has a journal"
        assert self.ledgers, "a bookie has a ledger directory"

    @classmethod
    def single(cls, disk: Disk) -> Self:
        return cls(disk, (disk,), (disk,))

    def every(self) -> tuple[Disk, ...]:
        """Return each directory once, the main one first."""
        disks = (self.main, *self.journals, *self.ledgers)
        return tuple({id(disk): disk for disk in disks}.values())

    def journal_of(self, ledger_id: int) -> int:
        return ledger_id % len(self.journals)

    def ledger_directory_of(self, ledger_id: int) -> int:
        return ledger_id % len(self.ledgers)

    def lock(self) -> None:
        """Take all directories, or none. Raises `DirectoryInUse`, `DirectoryUnusable`."""
        try:
            for disk in self.every():
                disk.lock()
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        for disk in self.every():
            disk.unlock()
