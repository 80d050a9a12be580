"""Reads blocks of index files, the redo file laid on top, and sees that both are the newest."""

from collections.abc import Callable
from functools import partial
from typing import Final

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Disk
from bookie.errors import IndexDamaged
from bookie.index.format import PAGE_BYTES, LedgerHeader, decode_header, path_of
from bookie.index.redo import Redo, is_all

_READS_MAX: Final = 1000
"""Of one header; each is undone only by a checkpoint that counts the ledger meanwhile."""


class Blocks:
    """See the module's docstring. Asked from any thread."""

    def __init__(
        self, disk: Disk, *, files_max: int, counted: Callable[[int], int] = lambda _ledger_id: 0
    ) -> None:
        """*counted* returns the edition that the roll has of a ledger's index; 0: none."""
        self.counted = counted
        self._disk = disk
        self.files = FileCache(disk, files_max)
        self.redo = Redo(disk)

    def read(self, ledger_id: int, offset: int) -> bytes:
        """Return the block at *offset*, shorter if the file ends there. Raises `IndexDamaged`."""
        try:
            waiting = self.redo.block(ledger_id, offset)
            if waiting is not None:
                return waiting
            with self.files.use(path_of(ledger_id)) as file:
                return file.read(PAGE_BYTES, offset)
        except FileNotFoundError:
            raise IndexDamaged(self.describe(ledger_id), 0, "the file is gone") from None
        except OSError as error:
            raise IndexDamaged(self.describe(ledger_id), offset, str(error)) from error

    def header(self, ledger_id: int) -> LedgerHeader:
        """Return what is on disk of a ledger. Raises `IndexDamaged`, also if it is not of the
        edition that was counted."""
        path = self.describe(ledger_id)
        read = partial(self.read, ledger_id)
        for _ in range(_READS_MAX):
            counted = self.counted(ledger_id)
            header = decode_header(read(0), ledger_id, path, read)
            if header.is_of(counted):
                return header
            if self.counted(ledger_id) == counted:
                break
        raise IndexDamaged(path, 0, "it is an older one, or another bookie's")

    def in_place(self, ledger_id: int) -> int:
        """Return which edition the index file itself is; 0 if it is not there, or does not say."""
        try:
            with self.files.use(path_of(ledger_id)) as file:
                return decode_header(file.read(PAGE_BYTES, 0), ledger_id, "").edition
        except (OSError, IndexDamaged):
            return 0

    def drop_lost(self) -> dict[int, int]:
        """Let nothing wait for an index file that is lost, nor for one in whose place is another:
        what is gone is missed, what is older is found to be so. Return what is in place of the
        others."""
        found: dict[int, int] = {}
        for ledger_id in list(self.redo):
            block = partial(self.redo.block, ledger_id)
            has_file = self.files_has(ledger_id)
            found[ledger_id] = in_place = self.in_place(ledger_id) if has_file else 0
            data = block(0)
            fits = not in_place or data is None or _may_lie_over(data, ledger_id, in_place)
            if not (fits and has_file) and not is_all(ledger_id, block):
                self.redo.drop((ledger_id,))
                del found[ledger_id]
        return found

    def has(self, ledger_id: int) -> bool:
        """Whether anything of a ledger was ever written, and is not gone."""
        return ledger_id in self.redo or self.files_has(ledger_id)

    def files_has(self, ledger_id: int) -> bool:
        """Whether the ledger has an index file."""
        return self.files.has(path_of(ledger_id))

    def describe(self, ledger_id: int) -> str:
        return self._disk.describe(path_of(ledger_id))

    def close(self) -> None:
        self.redo.close()
        self.files.close()


def _may_lie_over(data: bytes, ledger_id: int, in_place: int) -> bool:
    try:
        return decode_header(data, ledger_id, "").may_lie_over(in_place)
    except IndexDamaged:
        return True  # it is damage, and found when it is read
