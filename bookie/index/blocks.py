"""Reads blocks of index files, the redo file laid on top."""

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Disk
from bookie.errors import IndexDamaged
from bookie.index.format import PAGE_BYTES, path_of
from bookie.index.redo import Redo


class Blocks:
    """See the module's docstring. Asked from any thread."""

    def __init__(self, disk: Disk, *, files_max: int) -> None:
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
