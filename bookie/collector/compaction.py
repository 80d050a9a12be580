"""Compaction of one ledger directory, in steps between which it may be stopped, or crash (71).

1. The live entries of some logs are copied to a new file `<id>.compacting`: live is what the
   index says lies exactly there. Its ledger map names the logs as its *sources*; it is synced.
2. It is renamed to `<id>.log`, and the name is synced. From here on it is finished, by
   `settle`, whatever happens: now, in the next run, or after the next start.
3. Under the directory's lock, a batch at a time, what still lies in a source is moved to the new
   log in the index; at the end the index is flushed.
4. Only then the sources are removed.

So an entry is in a log that the index names at every moment, and a log is removed only when no
index that a crash can bring back names it. A log that cannot be read wholly is left as it is,
with an alarm, unless the index names nothing in what cannot be read (72).

Everything that takes long is a generator of the bytes that a step has read and written.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from bookie.disk import DiskFull
from bookie.entrylog.catalog import LogCatalog, LogInfo
from bookie.entrylog.format import (
    DIRECTORY,
    UNFINISHED_SUFFIX,
    path_of,
)
from bookie.entrylog.log_file import LogFile
from bookie.entrylog.scan import Batch, LogScan
from bookie.errors import EntryLogDamaged, FileDamaged, IndexDamaged
from bookie.index.format import LedgerHeader
from bookie.ledger_directory import LedgerDirectory
from bookie.pieces import Piece

_STEP_BYTES: Final = 1024 * 1024
_LEDGERS_A_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of some logs that were to be put together."""

    removed: tuple[int, ...] = ()
    moved_bytes: int = 0
    damages: tuple[FileDamaged, ...] = ()
    """Why others are still there."""


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
        copied, damages = [], []
        with failing(self._directory):
            log = LogFile(self._disk, self._directory.logs.ids.take(), suffix=UNFINISHED_SUFFIX)
        try:
            for source in sources:
                damage = yield from self._copy(source, log)
                if damage is None:
                    copied.append(source.log_id)
                else:
                    damages.append(damage)
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
        yield 0
        yield from self.remove(sorted(sources))
        return Settled(tuple(sorted(sources)), moved_bytes)

    def remove(self, log_ids: Sequence[int]) -> Generator[int, None, None]:
        """Remove logs that the index on disk does not name. Raises `OSError`."""
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

    def names_beyond(
        self, log_id: int, offset: int, ledger_ids: Iterable[int]
    ) -> Generator[int, None, bool]:
        """Whether the index names anything in the log from *offset* on, or cannot tell;
        *ledger_ids* are all that may lie there. Of one that is in memory only, nothing does."""
        for count, ledger_id in enumerate(ledger_ids):
            if count % _LEDGERS_A_STEP == 0:
                yield 0
            if not self._is_here(ledger_id):
                continue
            try:
                if self._index.names(self._header(ledger_id), log_id, offset):
                    return True
            except IndexDamaged:
                if self._is_here(ledger_id) and self._index.has_file(ledger_id):
                    return True
        return False

    def _copy(self, source: LogInfo, log: LogFile) -> Generator[int, None, FileDamaged | None]:
        """Append what is live in *source* to *log*; return why that is not all."""
        batches = LogScan(self._disk, source.log_id, end=source.ledger_map.frames_end)
        header: LedgerHeader | None = None
        done_bytes = 0
        for batch in batches:
            done_bytes += len(batch.run.data)
            live: list[Piece] = []
            try:
                if self._is_here(batch.ledger_id):
                    if header is None or header.ledger_id != batch.ledger_id:
                        header = self._header(batch.ledger_id)
                    live = self._live(header, source.log_id, batch)
            except IndexDamaged as damage:
                if self._is_here(batch.ledger_id):
                    return damage  # else it was deleted just now
            with failing(self._directory):
                for piece in live:
                    log.append(piece)
                    done_bytes += piece.size_bytes
            if done_bytes >= _STEP_BYTES:
                yield done_bytes
                done_bytes = 0
        yield done_bytes
        if not batches.end.reason:
            return None
        path = self._disk.describe(path_of(source.log_id))
        named = yield from self.names_beyond(
            source.log_id, batches.end.offset, source.ledger_map.ledgers
        )
        return EntryLogDamaged(path, batches.end.offset, batches.end.reason) if named else None

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
                if self._is_here(batch.ledger_id):
                    header = self._index.newest(batch.ledger_id)
                    piece = Piece(batch.run, 0, len(batch.run.entries))
                    self._index.move(header, piece, (log.log_id, batch.offset), sources)
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

    def _drop(self, log: LogFile) -> None:
        with suppress(OSError):  # the next run removes it
            self._disk.remove(log.path)


@contextmanager
def failing(directory: LedgerDirectory) -> Iterator[None]:
    """While something is written to *directory*: an error is its end (60)."""
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
