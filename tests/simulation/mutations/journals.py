"""Bugs of the journal: what was promised is not on disk, or not found there."""

from collections.abc import Sequence

from bookie.disk.port import Disk, DiskFile
from bookie.errors import JournalDamaged
from bookie.journal import recovery as replay_module
from bookie.journal import writer as writer_module
from bookie.journal.format import Record
from bookie.journal.recovery import Segment
from bookie.journal.writer import JournalWriter
from bookie.storage import replay
from tests.simulation.mutations.mutation import Patch, mutation


class Unsynced:
    """A file whose sync does nothing, or hides that it failed."""

    def __init__(self, file: DiskFile, *, tries: bool) -> None:
        self._file = file
        self._tries = tries

    @property
    def path(self) -> str:
        return self._file.path

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        self._file.write(buffers, offset)

    def read(self, length: int, offset: int) -> bytes:
        return self._file.read(length, offset)

    def size(self) -> int:
        return self._file.size()

    def identity(self) -> str:
        return self._file.identity()

    def preallocate(self, size_bytes: int) -> None:
        self._file.preallocate(size_bytes)

    def sync(self) -> None:
        if not self._tries:
            return
        try:
            self._file.sync()
        except OSError:
            self._file.sync()  # as if a second try could mend it

    def forget(self, start: int, end: int) -> None:
        self._file.forget(start, end)

    def close(self) -> None:
        self._file.close()


@mutation("#3830, rule 59")
def does_not_sync_the_end_of_a_file_that_is_full(patch: Patch) -> None:
    honest = JournalWriter._write

    def write(self: JournalWriter, queue: list[Record]) -> None:
        size_bytes = sum(len(record.frames) for record in queue)
        last = self._end < self._file_bytes_max <= self._end + size_bytes
        file = self._file
        if last:
            self._file = Unsynced(file, tries=False)
        honest(self, queue)
        if last:
            self._file = file

    patch.set(JournalWriter, "_write", write)


@mutation("#2879, rule 60")
def tries_a_failed_sync_again(patch: Patch) -> None:
    honest = JournalWriter._write

    def write(self: JournalWriter, queue: list[Record]) -> None:
        if not isinstance(self._file, Unsynced):
            self._file = Unsynced(self._file, tries=True)
        honest(self, queue)

    patch.set(JournalWriter, "_write", write)


@mutation("rule 61")
def refuses_to_start_after_a_torn_tail(patch: Patch) -> None:
    honest = replay_module._check_torn

    def check_torn(disk: Disk, file: DiskFile, segment: Segment, offset: int, reason: str) -> None:
        honest(disk, file, segment, offset, reason)
        if reason != "there is no record":
            raise JournalDamaged(disk.describe(file.path), offset, reason)

    patch.set(replay_module, "_check_torn", check_torn)


@mutation(
    "#3956, rule 61",
    test="tests/bookie/journal/test_journal.py::test_damage_in_an_older_file_refuses_up_to_its_last_byte",
)
def ends_the_replay_at_any_damage(patch: Patch) -> None:
    def check_torn(*_arguments: object) -> None:
        """Whatever cannot be read is taken for the end."""

    patch.set(replay_module, "_check_torn", check_torn)


@mutation("rule 64")
def believes_the_end_of_a_journal_whose_sync_failed(patch: Patch) -> None:
    def write_again(*_arguments: object) -> None:
        """Syncs it once more, as if that could mend what the system takes for clean."""

    patch.set(replay_module, "_write_again", write_again)


@mutation("rule 62")
def does_not_sync_the_directory_of_a_new_journal(patch: Patch) -> None:
    honest = writer_module.begin

    class Forgetful:
        def __init__(self, disk: Disk) -> None:
            self._disk = disk

        def __getattr__(self, name: str) -> object:
            return getattr(self._disk, name)

        def sync_directory(self, _path: str) -> None:
            """Names are durable sooner or later."""

    def begin(disk: Disk, *arguments: object, **options: object) -> object:
        return honest(Forgetful(disk), *arguments, **options)  # type: ignore[arg-type]

    patch.set(writer_module, "begin", begin)
    patch.set(replay, "begin", begin)
