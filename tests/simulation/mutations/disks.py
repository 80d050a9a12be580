"""Bugs of checkpoint and index, and of a bookie's identity."""

from bookie.disk.port import Disk
from bookie.entrylog.writer import EntryLogWriter
from bookie.index import redo
from bookie.index.redo import Image
from bookie.storage.checkpoint import Keeper
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("#2983, rule 65")
def moves_the_mark_before_the_flush(patch: Patch) -> None:
    honest = Keeper._checkpoint

    def checkpoint(self: Keeper) -> None:
        self._journals.advance(self._journals.positions())
        honest(self)

    patch.set(Keeper, "_checkpoint", checkpoint)


@mutation("rule 67")
def does_not_sync_entry_logs_before_the_index(patch: Patch) -> None:
    def sync(_self: EntryLogWriter) -> None:
        """The index points to what may not be there."""

    patch.set(EntryLogWriter, "sync", sync)


@mutation("rule 64")
def believes_a_redo_file_that_may_not_be_on_disk(patch: Patch) -> None:
    def confirm(_disk: Disk, _images: list[Image]) -> None:
        """What can be read is there."""

    patch.set(redo, "confirm", confirm)


@mutation("BK-62, BK-166")
def writes_index_pages_in_place_without_redo(patch: Patch) -> None:
    def write(_disk: Disk, _images: list[Image]) -> None:
        """A crash may tear what was durable long ago."""

    patch.set(redo, "write", write)
