"""The index of a run of archived segments: an object with a manifest of these segments alone.

    magic      8 bytes
    manifest   a `ManifestNode`: incarnation, setting `archive`, the segments
    trailer    CRC32C of the manifest, magic: 12 bytes

Indexes are read whole, and the last ones that were read are kept: a seek through a log of a million
segments reads one of 180 KB, and no more.
"""

import struct
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from google_crc32c import value

from dlog.archive import object_store
from dlog.errors import DamagedObject, MalformedObject, ObjectLost
from dlog.manifest import Manifest, Segment, SegmentRun, StoredObject
from dlog.protocol.segment_index import WriteIndex
from dlog.settings import LogSettings
from ledger.errors import DamagedMetadata

MAGIC: Final = b"dlogidx1"
_TRAILER: Final = struct.Struct("<I8s")
INDEX_BYTES_MAX: Final = 16 << 20
KEPT_MAX: Final = 4
"""Indexes that a process keeps, of some 2 MB each."""
_kept: OrderedDict[StoredObject, tuple[Segment, ...]] = OrderedDict()


def encode_index(manifest: Manifest, log: str, segments: tuple[Segment, ...]) -> bytes:
    """Return the object with *segments* of *manifest*'s log, which are in objects alone."""
    assert all(each.sealed and not each.location.on_bookies for each in segments), "they are"
    alone = Manifest(  # without local copies, which come and go
        incarnation=manifest.incarnation,
        settings=LogSettings(archive=manifest.settings.archive),
        segments=segments,
        next_segment=segments[-1].number + 1,
    )
    body = alone.encode(log)
    return MAGIC + body + _TRAILER.pack(value(body), MAGIC)


def parse_index(data: bytes, manifest_path: str) -> Manifest:
    """Return the manifest of the segments alone. Raises `MalformedObject`."""
    body = data[len(MAGIC) : -_TRAILER.size]
    if len(data) < len(MAGIC) + _TRAILER.size or data[: len(MAGIC)] != MAGIC:
        raise MalformedObject("it does not begin as an index does")
    if _TRAILER.unpack(data[-_TRAILER.size :]) != (value(body), MAGIC):
        raise MalformedObject("its checksum differs")
    try:
        return Manifest.decode(body, path=manifest_path)
    except DamagedMetadata as error:
        raise MalformedObject(str(error)) from error


async def write_index(action: WriteIndex) -> StoredObject:
    """Write an index, read it back and compare; return the object."""
    data = encode_index(action.manifest, action.log, action.segments)
    if len(data) > INDEX_BYTES_MAX:
        raise MalformedObject(f"an index of {len(data)} bytes is over {INDEX_BYTES_MAX}")
    folder = object_store.open_folder(action.manifest.storage)

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield data

    await folder.put(action.name, chunks())
    stored = StoredObject(action.name, len(data), action.manifest.storage)
    there = await folder.read(action.name, range(len(data)))
    if there is None:
        raise ObjectLost(action.log, _offsets(action.segments), f"{stored.storage}/{stored.name}")
    if there != data or await folder.size(action.name) != len(data):
        raise DamagedObject(
            action.log,
            _offsets(action.segments),
            f"{stored.storage}/{stored.name}",
            "it is not what was written",
        )
    return stored


async def read_run(log: str, run: SegmentRun) -> tuple[Segment, ...]:
    """Return the segments of *run*, from memory if they were read lately.

    Raises `ObjectLost`, `DamagedObject`, and what the storage raises."""
    segments = _kept.get(run.index)
    if segments is None:
        segments = await _read(log, run)
        _kept[run.index] = segments
    _kept.move_to_end(run.index)
    while len(_kept) > KEPT_MAX:
        _kept.popitem(last=False)
    return segments


def forget_indexes() -> None:
    """Read each index anew when it is needed next."""
    _kept.clear()


async def _read(log: str, run: SegmentRun) -> tuple[Segment, ...]:
    stored = run.index
    where, offsets = f"{stored.storage}/{stored.name}", f"{run.first_offset}..{run.end_offset - 1}"
    data = None
    if stored.bytes <= INDEX_BYTES_MAX:
        data = await object_store.open_folder(stored.storage).read(stored.name, range(stored.bytes))
    if data is None:
        raise ObjectLost(log, offsets, where)
    try:
        segments = parse_index(data, where).segments
        _check_is(run, segments)
    except MalformedObject as error:
        raise DamagedObject(log, offsets, where, error.reason) from error
    return segments


def _check_is(run: SegmentRun, segments: tuple[Segment, ...]) -> None:
    if not segments:
        raise MalformedObject("it lists no segments")
    for what, here, listed in (
        ("number of segments", len(segments), run.segments),
        ("first segment", segments[0].number, run.first_number),
        ("last segment", segments[-1].number, run.last_number),
        ("first offset", segments[0].first_offset, run.first_offset),
        ("end", segments[-1].end_offset, run.end_offset),
    ):
        if here != listed:
            raise MalformedObject(f"its {what} is {here}, not {listed}")


def _offsets(segments: tuple[Segment, ...]) -> str:
    return f"{segments[0].first_offset}..{(segments[-1].end_offset or 1) - 1}"


# Views: what readers of segments see of a log whose oldest segments are in runs.


async def view_at(log: str, manifest: Manifest, offset: int) -> Manifest:
    """Return *manifest* as far as it concerns *offset*: the segments of its run are listed, and
    what is listed behind may be missing. Whoever comes to the end takes the next view. Raises as
    `read_run`."""
    runs = manifest.living_runs
    if not runs or offset >= runs[-1].end_offset or offset < manifest.trim_offset:
        return manifest
    at = max(i for i, run in enumerate(runs) if run.first_offset <= offset)
    return await _view(log, manifest, runs, at)


async def view_with(log: str, manifest: Manifest, number: int) -> Manifest:
    """As `view_at`, for the segment *number*, if there is one."""
    runs = manifest.living_runs
    for at, run in enumerate(runs):
        if run.first_number <= number <= run.last_number:
            return await _view(log, manifest, runs, at)
    return manifest


async def _view(log: str, manifest: Manifest, runs: tuple[SegmentRun, ...], at: int) -> Manifest:
    segments = await read_run(log, runs[at])
    segments = tuple(s for s in segments if (s.end_offset or 0) > manifest.trim_offset)
    later = manifest.segments[:1] if at + 1 == len(runs) else ()
    return replace(manifest, runs=(), segments=(*segments, *later), sealed=False)


async def all_segments(
    log: str,
    manifest: Manifest,
    *,
    wanted: Callable[[SegmentRun], bool] = lambda _: True,
    newest_first: bool = False,
) -> AsyncIterator[Segment]:
    """Yield all segments that can be read, but those of runs that are not *wanted*. Each index is
    read when it is its turn. Raises as `read_run`."""
    if newest_first:
        for segment in reversed(manifest.segments):
            yield segment
    for run in reversed(manifest.living_runs) if newest_first else manifest.living_runs:
        if not wanted(run):
            continue
        segments = manifest.located(await read_run(log, run))
        for segment in reversed(segments) if newest_first else segments:
            if (segment.end_offset or 0) > manifest.trim_offset:
                yield segment
    if not newest_first:
        for segment in manifest.segments:
            yield segment
