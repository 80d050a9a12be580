"""Compaction of one ledger directory, in steps between which it may stop or crash (rule 71).

1. The live entries of some logs are copied to a new file `<id>.compacting`: live is what the
   index says lies exactly there. Its ledger map names the logs as its *sources*; it is synced.
2. It is renamed to `<id>.log`, and the name is synced. From here on it is finished, by
   `settle`, whatever happens: now, in the next run, or after the next start.
3. Under the directory's lock, a batch at a time, what still lies in a source is moved to the new
   log in the index; at the end the index is flushed.
4. Only then the sources are removed.

So an entry is in a log that the index names at every moment, and a log is removed only when no
index that a crash can bring back names it. Of a log that is damaged, what the index names behind
the damage is read entry by entry; a damaged one gets a damage marker (`bookie.entrylog.format`) in
the new log, with an alarm. A log that cannot be read, or only in small part, is left as it is
(rule 72).

Everything that takes long is a generator of the bytes that a step has read and written.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from bookie.disk.port import DiskFile, DiskFull
from bookie.entrylog.catalog import Batch, LogCatalog, LogInfo, LogScan
from bookie.entrylog.format import (
    DIRECTORY,
    UNFINISHED_SUFFIX,
    damage_marker_of,
    is_damage_marker,
    owner_of,
    path_of,
)
from bookie.entrylog.writer import LogFile
from bookie.errors import EntryLogDamaged, FileDamaged, IndexDamaged
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import Location
from bookie.pieces import Piece, whole
from bookie.storage.ledger_directory import LedgerDirectory
from ledger.entry import Checked, check_frames

_STEP_BYTES: Final = 1024 * 1024
_LEDGERS_A_STEP: Final = 64
_MARKERS_MIN: Final = 16
"""So many damaged entries of one log are given markers, even if nothing else in it is whole."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of some logs that were to be put together."""

    removed: tuple[int, ...] = ()
    moved_bytes: int = 0
    damages: tuple[FileDamaged, ...] = ()
    """Why others are still there, and what was found damaged."""


class Compactor:
    """See the module's docstring. Used by one thread at a time."""

    def __init__(
        self,
        directory: LedgerDirectory,
        catalog: LogCatalog,
        *,
        is_here: Callable[[int], bool],
    ) -> None:
        """*is_here* says whether a ledger is here and not deleted, at any time."""
        self._directory = directory
        self._disk = directory.disk
        self._index = directory.index
        self._catalog = catalog
        self._is_here = is_here

    def compact(self, sources: Sequence[LogInfo]) -> Generator[int, None, Settled]:
        """Put what is live in *sources* together into one new log. Raises `OSError`."""
        copied: list[int] = []
        damages: list[FileDamaged] = []
        with failing(self._directory):
            log = LogFile(self._disk, self._directory.logs.ids.take(), suffix=UNFINISHED_SUFFIX)
        try:
            for source in sources:
                try:
                    markers = yield from self._copy(source, log)
                except FileDamaged as damage:
                    damages.append(damage)
                else:
                    copied.append(source.log_id)
                    damages += [] if markers is None else [markers]
            if copied:
                with failing(self._directory):
                    log.finish(copied)
                    log.sync()
        except BaseException:
            log.close()
            self._drop(log)
            raise
        log.close()
        if not copied:
            self._drop(log)
            return Settled(damages=tuple(damages))
        with failing(self._directory):
            self._disk.rename(log.path, path_of(log.log_id))
            self._disk.sync_directory(DIRECTORY)
        yield 0
        settled = yield from self.settle(self._catalog.info(log.log_id))
        return Settled(settled.removed, settled.moved_bytes, (*damages, *settled.damages))

    def settle(self, log: LogInfo) -> Generator[int, None, Settled]:
        """Move to *log* what still lies in its sources, and remove them; it is fine if a part of
        that was done before. Raises `OSError`."""
        here = frozenset(self._catalog.log_ids())
        sources = frozenset(log.ledger_map.sources) & here
        if not sources:
            return Settled()
        try:
            moved_bytes = yield from self._move(log, sources)
        except FileDamaged as damage:
            return Settled(damages=(damage,))
        with locked(self._directory):
            self._index.flush()
            self._directory.count_logs({log.log_id: log.ledger_map.frames_end})
        yield 0
        yield from self.remove(sorted(sources))
        return Settled(tuple(sorted(sources)), moved_bytes)

    def remove(self, log_ids: Sequence[int]) -> Generator[int, None, None]:
        """Remove logs that the index on disk does not name; the roll names none of them any more
        before. Raises `OSError`."""
        if log_ids:
            with locked(self._directory):
                self._directory.count_logs(dict.fromkeys(log_ids, 0))
        for log_id in log_ids:
            with locked(self._directory), suppress(FileNotFoundError):
                self._disk.remove(path_of(log_id))
            self._directory.reader.forget(log_id)
            self._catalog.forget(log_id)
            yield 0
        if log_ids:
            with locked(self._directory):
                self._disk.sync_directory(DIRECTORY)

    def seal(self, log: LogInfo) -> None:
        """See `LogCatalog.seal`."""
        with failing(self._directory):
            self._catalog.seal(log)

    def named_bytes(
        self, log_id: int, offset: int, ledger_ids: Iterable[int]
    ) -> Generator[int, None, int | None]:
        """Return how many bytes the index names in the log from *offset* on, None if that is
        unknown; *ledger_ids* are all that may lie there. Of those in memory only, nothing does."""
        size_bytes = 0
        for count, ledger_id in enumerate(ledger_ids):
            if count % _LEDGERS_A_STEP == 0:
                yield 0
            if not self._is_here(ledger_id):
                continue
            try:
                for locations in self._index.named(self._header(ledger_id), log_id, offset):
                    size_bytes += sum(location.length for location in locations)
            except IndexDamaged:
                if self._is_needed(ledger_id):
                    return None
        return size_bytes

    def _copy(self, source: LogInfo, log: LogFile) -> Generator[int, None, EntryLogDamaged | None]:
        """Append what is live in *source* to *log*, markers for what is damaged; return what that
        was, if anything. Raises `FileDamaged` if it cannot be done, and `OSError`."""
        batches = LogScan(self._disk, source.log_id, end=source.ledger_map.frames_end)
        header: LedgerHeader | None = None
        done_bytes = copied = 0
        for batch in batches:
            done_bytes += len(batch.run.data)
            owner = owner_of(batch.ledger_id)
            live: list[Piece] = []
            try:
                if self._is_here(owner):
                    if header is None or header.ledger_id != owner:
                        header = self._header(owner)
                    live = self._live(header, source.log_id, batch)
            except IndexDamaged:
                if self._is_here(owner):  # else it was deleted just now
                    raise
            with failing(self._directory):
                for piece in live:
                    log.append(piece)
                    done_bytes += piece.size_bytes
                    copied += piece.end - piece.begin
            if done_bytes >= _STEP_BYTES:
                yield done_bytes
                done_bytes = 0
        yield done_bytes
        damage = source.damage
        if batches.end.reason:
            path = self._disk.describe(path_of(source.log_id))
            damage = EntryLogDamaged(path, batches.end.offset, batches.end.reason)
        if damage is None:
            return None
        return (yield from self._rescue(source, damage, copied, log))

    def _rescue(
        self, source: LogInfo, damage: EntryLogDamaged, good: int, log: LogFile
    ) -> Generator[int, None, EntryLogDamaged | None]:
        """Do the same for what the index names behind *damage*, where nothing can be scanned.

        What cannot be read at all is not given up, nor is more than *good*, the number of entries
        that were copied: then it is rather the reading that is to be doubted."""
        ledgers = (one for one in source.ledger_map.ledgers if self._is_here(one))
        markers, first = 0, damage
        for count, ledger_id in enumerate(ledgers):
            if count % _LEDGERS_A_STEP == 0:
                yield 0
            try:
                header = self._header(ledger_id)
                for locations in self._index.named(header, source.log_id, damage.offset):
                    for location, piece in self._read_each(ledger_id, source.log_id, locations):
                        good += piece is not None
                        if piece is None and not markers:
                            first = EntryLogDamaged(damage.path, location.offset, damage.reason)
                        markers += piece is None
                        if markers > max(good, _MARKERS_MIN):
                            raise EntryLogDamaged(
                                damage.path, first.offset, "most of what is needed is damaged"
                            )
                        with failing(self._directory):
                            log.append(piece or damage_marker_of(ledger_id, location.entry_id))
                    yield 2 * sum(location.length for location in locations)
            except IndexDamaged:
                if self._is_needed(ledger_id):
                    raise
        return first if markers else None

    def _read_each(
        self, ledger_id: int, log_id: int, locations: Iterable[Location]
    ) -> Iterator[tuple[Location, Piece | None]]:
        """Yield each entry with its frame, None if that is damaged. Raises `EntryLogDamaged` if it
        cannot be read."""
        path = path_of(log_id)
        file = self._disk.open(path)
        try:
            for location in locations:
                yield location, _read_frame(file, ledger_id, location)
        except OSError as error:
            raise EntryLogDamaged(self._disk.describe(path), 0, str(error)) from error
        finally:
            file.close()

    def _live(self, header: LedgerHeader, log_id: int, batch: Batch) -> list[Piece]:
        """Return the stretches of *batch* that the index says lie where they were read."""
        offsets = [batch.offset + start for start in batch.run.starts]
        live = self._index.still_at(header, log_id, batch.run.entries, offsets)
        stretches = groupby(enumerate(live), key=lambda pair: pair[1] - pair[0])
        indexes = ([at for _, at in group] for _, group in stretches)
        return [Piece(batch.run, some[0], some[-1] + 1) for some in indexes]

    def _move(self, log: LogInfo, sources: frozenset[int]) -> Generator[int, None, int]:
        """Let the index say that what it says is in *sources* is in *log*; return how many bytes
        are. Raises `FileDamaged`."""
        batches = LogScan(self._disk, log.log_id, end=log.ledger_map.frames_end)
        done_bytes = moved_bytes = 0
        for batch in batches:
            with locked(self._directory):
                owner = owner_of(batch.ledger_id)
                if self._is_here(owner):
                    header = self._index.newest(owner)
                    place = (log.log_id, batch.offset)
                    markers = is_damage_marker(batch.ledger_id)
                    self._index.move(header, whole(batch.run), place, sources, markers=markers)
            done_bytes += len(batch.run.data)
            moved_bytes += len(batch.run.data)
            if done_bytes >= _STEP_BYTES:
                yield done_bytes
                done_bytes = 0
        yield done_bytes
        if batches.end.reason:
            path = self._disk.describe(path_of(log.log_id))
            raise EntryLogDamaged(path, batches.end.offset, batches.end.reason)
        return moved_bytes

    def _header(self, ledger_id: int) -> LedgerHeader:
        """Return what the index says of a ledger. Raises `IndexDamaged`."""
        try:
            return self._index.newest(ledger_id)
        except IndexDamaged:
            with self._directory.lock:  # a flush may have been writing it just now
                return self._index.newest(ledger_id)

    def _is_needed(self, ledger_id: int) -> bool:
        """Whether an index that cannot be read is a loss: its ledger was not deleted just now."""
        return self._is_here(ledger_id) and self._index.has_file(ledger_id)

    def _drop(self, log: LogFile) -> None:
        with suppress(OSError):  # the next run removes it
            self._disk.remove(log.path)


def _read_frame(file: DiskFile, ledger_id: int, location: Location) -> Piece | None:
    """Return what lies there, None if it is not the entry, even when it is read from the disk
    again. Raises `OSError`."""
    end = location.offset + location.length
    for _ in range(2):
        data = file.read(location.length, location.offset)
        checked = check_frames(ledger_id, (location.entry_id,), (location.length,), data)
        if isinstance(checked, Checked):
            return whole(checked)
        file.forget(location.offset, end)
    return None


@contextmanager
def failing(directory: LedgerDirectory) -> Iterator[None]:
    """While something is written to *directory*: an error is its end (rule 60)."""
    if directory.failure is not None:
        raise directory.failure
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        directory.failure = error
        raise


@contextmanager
def locked(directory: LedgerDirectory) -> Iterator[None]:
    """The same, as the only one who writes to its index."""
    with directory.lock, failing(directory):
        yield
