"""The table of a log: its archived records once more, as files that other programs read.

    extend    write the rows behind the table's end to files that no other attempt has, read them
              back, put a manifest with them in place of the one that was read: one compare-and-swap
    reset     put a manifest without files in its place; the next extensions write all rows again
    collect   delete files that no manifest lists, nor ever will

The manifest is one object beside the files. It says which files belong to the table, and that these
have each record from `first` up to `end` exactly once. No reader of the log depends on it.

Story of exactly once: (A) an extension begins at the end of the manifest that it read, and replaces
that very one, so of two attempts at once the second fails. (B) The number of a manifest is one more
than that of the one it replaced, and its token is random, so no manifest comes back. (C) An attempt
without an answer has replaced the manifest or not; the next one reads which, and begins there.

Story of why a file that no manifest lists can be judged: its name has the number of the only
manifest that can ever list it first. Once a manifest of that number or a higher one was seen, this
file is in it or in none. A manifest that is read late only judges fewer files.

Story of copies: a namespace that was copied or put back may archive other records at the offsets
that the table has. So the manifest names the object that its last record came from. An extension
and a reader demand that the log says the same, as far as it still knows that segment.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from dlog.errors import (
    InvalidSettings,
    MalformedObject,
    NoSuchLog,
    NoSuchTable,
    TableBehind,
    TableDiverged,
    TableFull,
)
from dlog.manifest import Manifest, Segment
from dlog.protocol.actions import DeleteObject, ListObjects
from dlog.protocol.edits import check_incarnation, check_living
from dlog.protocol.manifest_steps import ManifestSteps
from dlog.protocol.object_owner import DeleteOwner, hold_objects
from dlog.protocol.segment_index import ReadIndex
from ledger.protocol.procedure import Action, Steps

FORMAT: Final = "dlog-table"
FORMAT_VERSION: Final = 1
TABLE: Final = ".table"
"""Ends the name of the folder with the files, beside that with the log's objects."""
TOKEN_BYTES: Final = 4
"""Random, in the names of each attempt's files."""
FILES_MAX: Final = 20_000
"""In one manifest, which then has some 4 MB."""
DUE_BYTES: Final = 64 << 20
"""Archived payload bytes that are not in the table, from which on it is extended."""
DUE_MS: Final = 3_600_000
"""After so long it is extended by less."""
REPLACED_KEEP_MS: Final = 24 * 3_600_000
"""Files of a table that was reset stay so long, for readers that are at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    path: str
    """Relative to the table's folder."""
    rows: int
    bytes: int
    first: int
    """The lowest offset in it; rows of other days lie in between, in other files."""
    last: int
    first_us: int | None = None
    """The earliest timestamp, in microseconds since 1970; None: no row has one."""
    last_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a manifest says."""

    incarnation: str
    number: int = 0
    """Of manifests that there were, this one among them."""
    token: str = ""
    first: int = 0
    end: int = 0
    """The files have each record from *first* up to *end* exactly once."""
    segment: int = 0
    """That the last record came from; 0: there is none."""
    object: str = ""
    """The object that this segment was in."""
    committed_ms: int = 0
    files: tuple[TableFile, ...] = ()
    replaced: tuple[str, ...] = ()
    """Files of the manifests before the last reset."""
    replaced_ms: int = 0

    def __post_init__(self) -> None:
        assert self.first <= self.end
        rows = sum(file.rows for file in self.files)
        assert rows == self.end - self.first, "the files have each record exactly once"
        paths = {file.path for file in self.files}
        assert len(paths) == len(self.files), "a file is listed twice"

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def extended(self, files: Sequence[TableFile], source: Segment, **changes: Any) -> Self:
        """Return the table with the rows of *files*, the last of which came from *source*."""
        assert source.location.object is not None, "rows come from objects"
        return replace(
            self,
            number=self.number + 1,
            segment=source.number,
            object=source.location.object.name,
            files=(*self.files, *files),
            **changes,
        )

    def reset(self, first: int, token: str, now_ms: int) -> Self:
        """Return the table without rows, to begin at *first*."""
        return replace(
            self,
            number=self.number + 1,
            token=token,
            first=first,
            end=first,
            segment=0,
            object="",
            committed_ms=0,
            files=(),
            replaced=tuple(file.path for file in self.files),
            replaced_ms=now_ms,
        )


def encode_table(table: Table) -> bytes:
    """Return the bytes of a manifest; the same ones for the same table."""
    node = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(table)}
    return json.dumps(node, sort_keys=True, separators=(",", ":")).encode()


def parse_table(data: bytes) -> Table:
    """Return what a manifest says. Raises `MalformedObject`."""
    try:
        node = json.loads(data)
        kind, version = node.pop("format"), node.pop("version")
        if kind != FORMAT or version != FORMAT_VERSION:
            reason = f"it has version {version}; this dlog reads {FORMAT_VERSION}"
            raise MalformedObject(f"the manifest of its table: {reason}")
        files = tuple(TableFile(**file) for file in node.pop("files"))
        return Table(files=files, replaced=tuple(node.pop("replaced")), **node)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise MalformedObject(f"the manifest of its table: {error}") from error


def table_storage(manifest: Manifest) -> str:
    """Return the URI of the folder with the files."""
    return manifest.storage + TABLE


def incarnation_of(storage: str) -> str:
    """Return the incarnation of the log whose table is in the folder *storage*."""
    return storage.removesuffix(TABLE).rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ReadTable(Action[Table | None]):
    """Answer: the manifest of the table; None: there is none. Raises `MalformedObject`, and what
    the storage raises."""

    storage: str


@dataclass(frozen=True, slots=True)
class SwapTable(Action[Table | None]):
    """Replace the manifest if it is *seen*. Answer: the one that is there then. Raises what the
    storage raises: then it was replaced, or not, or will be."""

    storage: str
    seen: Table | None
    table: Table


@dataclass(frozen=True, slots=True)
class WriteRows(Action[tuple[tuple[TableFile, ...], int]]):
    """Write rows from *first* on, up to *end* at most, to new files whose names begin with *name*,
    and read these back. Answer: the files, and where their rows end. Raises what reading the log
    and the storage raise, and `InvalidSettings` if records are encrypted: some files may be there.
    """

    incarnation: str
    storage: str
    name: str
    first: int
    end: int
    by_day: bool


@dataclass(frozen=True, slots=True)
class TableExtension:
    """What was added to a table."""

    rows: int
    files: int
    bytes: int
    end: int


def archived_end(manifest: Manifest) -> int:
    """Return the offset after the last record of the archived segments in a row."""
    end = manifest.runs[-1].end_offset if manifest.runs else manifest.trim_offset
    for segment in manifest.segments:
        if segment.location.object is None:
            break
        end = segment.end_offset or end
    return max(end, manifest.trim_offset)


def is_due(manifest: Manifest, table: Table, now_ms: int) -> bool:
    """Whether there is enough behind the table's end, or it has waited for long enough."""
    if now_ms - table.committed_ms >= DUE_MS:
        return True
    parts = [(run.end_offset, run.bytes) for run in manifest.runs]
    parts += [
        (segment.end_offset or 0, segment.sealed.bytes)
        for segment in manifest.segments
        if segment.location.object is not None and segment.sealed is not None
    ]
    return sum(size for end, size in parts if end > table.end) >= DUE_BYTES


def extend_table(
    node: ManifestSteps, *, incarnation: str, token: str, now_ms: int, at_once: bool = False
) -> Steps[TableExtension | None]:
    """Add rows to the table of the log; return None if there is nothing to do, or another attempt
    was faster. *at_once*: however few there are. *token*: random, of this attempt.

    Raises `NoSuchLog`, `TableBehind`, `TableDiverged`, `TableFull`, `MalformedObject`,
    `ObjectsOwnedElsewhere`, and what bookies and storage raise: it may be tried again then."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    if not manifest.settings.archive_table:
        return None
    storage = table_storage(manifest)
    seen = yield from ReadTable(storage)
    manifest, _ = yield from node.read()  # it has all segments that the table was made of
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    first = manifest.trim_offset
    table = seen or Table(incarnation=incarnation, first=first, end=first)
    yield from check_table(node, manifest, table)
    if first > table.end:
        raise TableBehind(node.log, table.end, first)
    end = archived_end(manifest)
    if table.end >= end or not (at_once or is_due(manifest, table, now_ms)):
        return None
    if len(table.files) >= FILES_MAX:
        raise TableFull(node.log, len(table.files))
    yield from hold_objects(node, incarnation)
    name = f"{table.number + 1}-{token}"
    by_day = not manifest.settings.archive_table.endswith(":none")
    files, end = yield from WriteRows(incarnation, storage, name, table.end, end, by_day)
    source = yield from _segment_at(node, manifest, end - 1)
    assert source is not None, "what was read is in a segment"
    after = table.extended(files, source, token=token, end=end, committed_ms=now_ms)
    there = yield from SwapTable(storage, seen, after)
    if there != after:
        for file in files:
            yield from DeleteObject(storage, file.path)
        return None
    yield from _check_living_still(node, incarnation, storage)
    size = sum(file.bytes for file in files)
    return TableExtension(end - table.end, len(files), size, end)


def read_table(node: ManifestSteps) -> Steps[tuple[Manifest, Table]]:
    """Return the manifests of the log and of its table, once they are sure to be of one log.

    Raises `NoSuchLog`, `NoSuchTable`, `TableDiverged`, `MalformedObject`, and what the storage
    raises."""
    manifest, _ = yield from node.read()
    check_living(manifest, node.log)
    table = None
    if manifest.storage:
        table = yield from ReadTable(table_storage(manifest))
    if table is None:
        raise NoSuchTable(node.log)
    now, _ = yield from node.read()  # it has all segments that the table was made of
    check_incarnation(now, node.log, manifest.incarnation)
    yield from check_table(node, now, table)
    return now, table


def reset_table(node: ManifestSteps, *, incarnation: str, token: str, now_ms: int) -> Steps[bool]:
    """Let the table begin again at the log's first record, without rows; return False if another
    attempt was faster. Readers that are at work find the old files for `REPLACED_KEEP_MS`.

    Raises as `extend_table`; a table of another copy of the namespace is replaced."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    if not manifest.settings.archive_table:
        reason = f"log {node.log!r} has no table: set archive_table to parquet"
        raise InvalidSettings("archive_table", "", reason)
    yield from hold_objects(node, incarnation)
    storage = table_storage(manifest)
    seen = yield from ReadTable(storage)
    table = replace(seen or Table(incarnation=incarnation), incarnation=incarnation)
    after = table.reset(manifest.trim_offset, token, now_ms)
    if (yield from SwapTable(storage, seen, after)) != after:
        return False
    yield from _check_living_still(node, incarnation, storage)
    return True


def collect_table(node: ManifestSteps, *, incarnation: str, now_ms: int) -> Steps[list[str]]:
    """Delete files of attempts that failed, and of tables before a reset; return their names.

    Raises `NoSuchLog`, `MalformedObject`, `ObjectsOwnedElsewhere`, and what the storage raises."""
    manifest, _ = yield from node.read()
    check_incarnation(manifest, node.log, incarnation)
    check_living(manifest, node.log)
    storage = table_storage(manifest)
    names = yield from ListObjects(storage)
    table = yield from ReadTable(storage)
    if table is None:
        return []
    orphans = [name for name in names if is_orphan_file(table, name, now_ms)]
    if orphans:
        yield from hold_objects(node, incarnation)
    for name in orphans:
        yield from DeleteObject(storage, name)
    return orphans


def is_orphan_file(table: Table, path: str, now_ms: int) -> bool:
    """Whether the file is, for certain, of no use to *table* or a later one."""
    number = number_of(path)
    if number is None or number > table.number or any(f.path == path for f in table.files):
        return False
    return path not in table.replaced or now_ms - table.replaced_ms >= REPLACED_KEEP_MS


def number_of(path: str) -> int | None:
    """Return which manifest lists the file first; None: it is no file of a table."""
    first, dash, _ = path.rpartition("/")[2].partition("-")
    return int(first) if dash and first.isdecimal() and path.endswith(".parquet") else None


def times_overlap(
    first_us: int | None, last_us: int | None, wanted_first: int | None, wanted_last: int | None
) -> bool:
    """Whether a row whose time is between the first two may be between the other two; None of the
    first: no row has a time; of the others: there is no bound."""
    if wanted_first is None and wanted_last is None:
        return True
    if first_us is None or last_us is None:
        return False
    return (wanted_first is None or last_us >= wanted_first) and (
        wanted_last is None or first_us <= wanted_last
    )


def delete_table(storage: str) -> Steps[None]:
    """Delete the table of a log that is being deleted; its manifest goes last."""
    for name in (yield from ListObjects(storage)):
        yield from DeleteObject(storage, name)
    yield from DeleteOwner(storage)


def check_table(node: ManifestSteps, manifest: Manifest, table: Table) -> Steps[None]:
    """Raise `TableDiverged` unless the rows of *table* are records of this log."""
    if table.incarnation != manifest.incarnation:
        raise TableDiverged(node.log, f"its manifest is of {table.incarnation}")
    if table.segment >= manifest.next_segment:
        raise TableDiverged(node.log, f"it has segment {table.segment}, and the log has not")
    if not table.segment or table.end <= manifest.trim_offset:
        return
    source = yield from _segment_at(node, manifest, table.end - 1)
    stored = source.location.object if source else None
    if source is None or (source.number, stored and stored.name) != (table.segment, table.object):
        raise TableDiverged(node.log, f"offset {table.end - 1} came from {table.object}")


def _segment_at(node: ManifestSteps, manifest: Manifest, offset: int) -> Steps[Segment | None]:
    """Return the sealed segment that has *offset*, also from a run."""
    segments: Sequence[Segment] = manifest.segments
    runs = manifest.living_runs
    if runs and offset < runs[-1].end_offset:
        at = bisect_right([run.first_offset for run in runs], offset) - 1
        segments = yield from ReadIndex(node.log, runs[max(at, 0)])
    return next(_with_offset(segments, offset), None)


def _with_offset(segments: Sequence[Segment], offset: int) -> Iterator[Segment]:
    for segment in segments:
        end = segment.end_offset
        if end is not None and (segment.first_offset or 0) <= offset < end:
            yield segment


def _check_living_still(node: ManifestSteps, incarnation: str, storage: str) -> Steps[None]:
    """Raise `NoSuchLog` if the log was deleted meanwhile, after its table was deleted with it."""
    try:
        manifest, _ = yield from node.read()
        check_incarnation(manifest, node.log, incarnation)
        check_living(manifest, node.log)
    except NoSuchLog:
        yield from delete_table(storage)
        raise
