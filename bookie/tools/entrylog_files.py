"""The contents of the entry logs of one ledger directory, without the index."""

from collections.abc import Iterator
from dataclasses import dataclass

from bookie.disk.port import Disk
from bookie.entrylog.catalog import Batch, scan
from bookie.entrylog.format import (
    DIRECTORY,
    HEADER_BYTES,
    UNFINISHED_SUFFIX,
    is_header_of,
    logs_of,
    path_of,
)
from bookie.entrylog.ledger_map import LedgerMap, read_map


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The header and the map of a log."""

    log_id: int
    path: str
    size_bytes: int
    ledger_map: LedgerMap | None
    """None: the log was not ended in order, as a crash leaves it; a scan shows what is in it."""
    damage: str = ""
    """Why it cannot be read as a log of this name and version."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where whole frames end, and why before the end, if so."""

    offset: int
    reason: str
    is_damage: bool
    """Whether frames that the map counts are missing. Without a map nobody knows: what a crash
    tore looks the same, and the index never names that."""


def log_ids(disk: Disk) -> list[int]:
    return logs_of(disk.list(DIRECTORY))


def unfinished(disk: Disk) -> list[str]:
    """Return the files that an interrupted compaction left; the next start removes them."""
    ids = logs_of(disk.list(DIRECTORY), UNFINISHED_SUFFIX)
    return [disk.describe(path_of(log_id, UNFINISHED_SUFFIX)) for log_id in ids]


def summary(disk: Disk, log_id: int) -> LogSummary:
    """Raises `FileNotFoundError`."""
    path = path_of(log_id)
    shown = disk.describe(path)
    file = disk.open(path)
    size_bytes = 0
    try:
        size_bytes = file.size()
        if not is_header_of(log_id, file.read(HEADER_BYTES, 0)):
            reason = "the header is not that of this log in a version known here"
            return LogSummary(log_id, shown, size_bytes, None, reason)
        return LogSummary(log_id, shown, size_bytes, read_map(file, log_id))
    except OSError as error:
        return LogSummary(log_id, shown, size_bytes, None, str(error))
    finally:
        file.close()


def frames(disk: Disk, log: LogSummary) -> Iterator[Batch | LogEnd]:
    """Yield all whole frames of a log, then how they end."""
    if log.damage:
        yield LogEnd(0, log.damage, is_damage=True)
        return
    end = None if log.ledger_map is None else log.ledger_map.frames_end
    batches = scan(disk, log.log_id, end=end)
    while True:
        try:
            yield next(batches)
        except StopIteration as stop:
            yield LogEnd(
                stop.value.offset,
                stop.value.reason,
                is_damage=bool(stop.value.reason) and end is not None,
            )
            return
