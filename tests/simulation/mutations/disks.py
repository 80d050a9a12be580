"""Bugs of checkpoint and index, and of a bookie's identity."""

from collections.abc import Iterable, Sequence

from bookie.entrylog.writer import EntryLogWriter
from bookie.index import redo
from bookie.index.ledger_index import LedgerIndex
from bookie.index.redo import Image, Redo
from bookie.storage.checkpoint import Checkpointer
from tests.simulation.mutations.journals import Unsynced
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("#2983, rule 65")
def moves_the_mark_before_the_flush(patch: Patch) -> None:
    honest = Checkpointer._checkpoint

    def checkpoint(self: Checkpointer) -> None:
        self._journals.advance(self._journals.positions())
        honest(self)

    patch.set(Checkpointer, "_checkpoint", checkpoint)


@mutation("rule 67")
def does_not_sync_entry_logs_before_the_index(patch: Patch) -> None:
    def sync(_self: EntryLogWriter) -> None:
        """The index points to what may not be there."""

    patch.set(EntryLogWriter, "sync", sync)


@mutation("rule 64")
def believes_a_redo_file_that_may_not_be_on_disk(patch: Patch) -> None:
    def confirm(*_arguments: object) -> None:
        """What can be read is there."""

    patch.set(redo, "confirm", confirm)


@mutation("BK-62, BK-166")
def does_not_sync_what_is_to_be_put_in_place(patch: Patch) -> None:
    """A crash may tear what was durable long ago, or lose what only the redo file had."""
    honest = Redo.append

    def append(self: Redo, images: Sequence[Image], gone: Iterable[int] = ()) -> None:
        if self._file is None:
            self.begin()
        file = self._file
        assert file is not None
        self._file = Unsynced(file, tries=False)
        try:
            honest(self, images, gone)
        finally:
            self._file = file

    patch.set(Redo, "append", append)


@mutation("rule 65")
def forgets_what_waits_before_it_is_in_place(patch: Patch) -> None:
    def write_in_place(_self: LedgerIndex, _ledger_ids: Sequence[int]) -> None:
        """There is time, but nobody remembers."""

    patch.set(LedgerIndex, "_write_in_place", write_in_place)
