"""Object storage that all processes of a simulated world share, and what goes wrong in it.

Calls take time, are refused (503) without an effect, or have their effect and lose their answer. An
upload may be torn, vanish although it was confirmed, or arrive after it failed. Lists lack the
newest objects and name some that are deleted. An object may rot while its segment is on bookies.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dlog.archive import object_format, object_store, segment_index
from dlog.errors import ObjectStorageUnavailable
from dlog.manifest import Manifest, Segment, SegmentRun
from dlog.protocol import archive
from dlog.protocol import segment_index as segment_indexes
from dlog.protocol.table import TABLE
from ledger.metastore import uri
from tests.simulation.logs.tables import simulated_tables, wrong_table
from tests.simulation.process import STORE

if TYPE_CHECKING:
    from tests.simulation.logs.world import World

STORAGE: Final = "s3://simulated/logs"
BLOCK_BYTES: Final = 400
"""Small, so that segments have many blocks."""
LISTED_MAX: Final = 2
RUN_SEGMENTS: Final = 5
"""Small, so that logs have many runs."""
STALE_S: Final = 2.0
CALL_S: Final = 0.002, 0.03
SLOW_S: Final = 4.0
TABLE_RISKS: Final = 4
"""How many times more probably a commit of a table meets a fault than another call."""
Key = tuple[str, str]


class SimObjects:
    def __init__(self, world: "World", faults: float) -> None:
        """*faults*: how probably a call meets one."""
        self.faults = faults
        self.data: dict[Key, bytes] = {}
        self.marks: dict[str, bytes] = {}
        """Of owners, by folder."""
        self.indexes: dict[str, set[str]] = {}
        """Names of those that manifests list, by folder."""
        self.runs: dict[str, tuple[SegmentRun, ...]] = {}
        """Those that manifests list and that are not trimmed, by folder."""
        self.place = "here"
        """Where processes find the metadata store."""
        self.wrong_table: str | None = None
        """What broke `tables_have_each_record_once` first."""
        self.deleted: list[Key] = []
        self.rotten: set[Key] = set()
        self._world, self._scheduler = world, world.scheduler
        self._put_s: dict[Key, float] = {}
        self._deleted_s: dict[Key, float] = {}

    def expanded(self, manifest: Manifest) -> Manifest:
        """Return *manifest* with the segments of its runs listed, as their indexes say."""
        self.indexes[manifest.storage] = {run.index.name for run in manifest.runs}
        self.runs[manifest.storage] = tuple(manifest.living_runs)
        segments: list[Segment] = []
        last_txid = manifest.trimmed_txid
        for run in manifest.living_runs:
            data = self.data[run.index.storage, run.index.name]
            for segment in segment_index.parse_index(data, run.index.name).segments:
                if (segment.end_offset or 0) > manifest.trim_offset:
                    segments.append(segment)
                elif segment.sealed is not None:
                    last_txid = segment.sealed.last_txid
        listed = (*segments, *manifest.segments)
        return replace(manifest, runs=(), segments=listed, trimmed_txid=last_txid)

    def open(self, storage: str) -> "SimFolder":
        return SimFolder(self, storage)

    def is_bad(self) -> bool:
        return self.faults > 0 and self._scheduler.chance(self.faults)

    async def called(self, what: str) -> None:
        """Let time pass, and the process that calls stop here if that is its fate."""
        host = asyncio.get_running_loop().host  # type: ignore[attr-defined]
        process = next(each for each in self._world.processes if each.host is host)
        process.before_call(STORE, what)
        random = self._scheduler.random
        slow = self.is_bad() and self._scheduler.chance(0.2)
        await asyncio.sleep(SLOW_S if slow else random.uniform(*CALL_S))

    def put(self, key: Key, data: bytes) -> None:
        self.data[key] = data
        self._put_s[key] = self._scheduler.now
        self._touched(key)

    def put_late(self, key: Key, data: bytes) -> None:
        """Let an upload that failed arrive after all."""
        self._scheduler.mark("upload_arrived_late")
        late_s = self._scheduler.random.uniform(0.1, STALE_S)
        self._scheduler.after(late_s, lambda: self.put(key, data))

    def delete(self, key: Key) -> None:
        if self.data.pop(key, None) is not None:
            self._deleted_s[key] = self._scheduler.now
            self.deleted.append(key)
            self._touched(key)

    def check_table(self, storage: str, before: bytes | None, after: bytes) -> None:
        """Look at the manifest of a table that has changed; keep what is wrong first."""
        if storage.endswith(TABLE):
            self._scheduler.mark("table_extended")
            self.wrong_table = self.wrong_table or wrong_table(self._world, storage, before, after)

    def rot(self) -> None:
        """Damage or lose an object whose segment is on bookies, too."""
        held = [
            ((stored.storage, stored.name), segment.location.on_bookies)
            for history in self._world.logs.current.values()
            for segment in history.manifest.segments
            if (stored := segment.location.object)
        ]
        gone = {key for key, on_bookies in held if not on_bookies}  # also a part of the object
        keys = [key for key, _ in held if key not in gone]
        if keys:
            key = self._scheduler.random.choice(keys)
            self.rotten.add(key)
            self._scheduler.mark("object_rotted")
            if key in self.data and self._scheduler.chance(0.5):
                at = self._scheduler.random.randrange(len(self.data[key]))
                whole = self.data[key]
                self.data[key] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            else:
                self.data.pop(key, None)

    def names(self, storage: str) -> list[str]:
        """Return a list as the storage gives it: late by up to `STALE_S`."""
        now, stale = self._scheduler.now, self.is_bad()
        names = {name for folder, name in self.data if folder == storage}
        if stale:
            self._scheduler.mark("object_list_was_stale")
            names -= {key[1] for key, at_s in self._put_s.items() if now - at_s < STALE_S}
            names |= {
                key[1]
                for key, at_s in self._deleted_s.items()
                if key[0] == storage and now - at_s < STALE_S
            }
        return sorted(names)

    def _touched(self, key: Key) -> None:
        incarnation = key[0].rpartition("/")[2]
        if incarnation in self._world.logs.histories:
            self._world.logs.changed[incarnation] = None


class SimFolder:
    """One process's way to the objects of a log."""

    def __init__(self, objects: SimObjects, storage: str) -> None:
        self.storage = storage
        self._objects = objects
        self._chance = objects._scheduler.chance

    async def put(self, name: str, chunks: AsyncGenerator[bytes, None]) -> None:
        data = b"".join([chunk async for chunk in chunks])
        objects, key = self._objects, (self.storage, name)
        await objects.called(f"put {name}")
        if not objects.is_bad():
            objects.put(key, data)
            return
        match objects._scheduler.random.choice(("refused", "unanswered", "late", "torn", "lost")):
            case "unanswered":
                objects._scheduler.mark("upload_unanswered")
                objects.put(key, data)
            case "late":
                objects.put_late(key, data)
            case "torn":
                objects._scheduler.mark("upload_torn")
                objects.put(key, data[: objects._scheduler.random.randrange(len(data))])
                return
            case "lost":
                objects._scheduler.mark("upload_lost")
                return
            case _:
                pass
        raise ObjectStorageUnavailable(self.storage, f"writing {name}", "simulated")

    async def read(self, name: str, bytes_range: range) -> bytes | None:
        await self._asked(f"read {name}")
        data = self._objects.data.get((self.storage, name))
        return None if data is None else data[bytes_range.start : bytes_range.stop]

    def read_now(self, name: str, bytes_range: range) -> bytes | None:
        data = self._objects.data.get((self.storage, name))
        return None if data is None else data[bytes_range.start : bytes_range.stop]

    async def size(self, name: str) -> int | None:
        await self._asked(f"head {name}")
        data = self._objects.data.get((self.storage, name))
        return None if data is None else len(data)

    async def delete(self, name: str) -> None:
        objects = self._objects
        await objects.called(f"delete {name}")
        if not objects.is_bad():
            objects.delete((self.storage, name))
            return
        if self._chance(0.5):
            objects.delete((self.storage, name))
        raise ObjectStorageUnavailable(self.storage, f"deleting {name}", "simulated")

    async def names(self) -> list[str]:
        await self._asked("list")
        return self._objects.names(self.storage)

    async def read_mark(self) -> bytes | None:
        await self._asked("read owner")
        return self._objects.marks.get(self.storage)

    async def swap_mark(self, seen: bytes | None, mark: bytes) -> bytes | None:
        objects = self._objects
        await objects.called("swap owner")

        def swap() -> None:
            if objects.marks.get(self.storage) == seen:
                objects.marks[self.storage] = mark
                objects.check_table(self.storage, seen, mark)

        tries = TABLE_RISKS if self.storage.endswith(TABLE) else 1
        if not any(objects.is_bad() for _ in range(tries)):
            swap()
            return objects.marks.get(self.storage)
        fate = objects._scheduler.random.choice(("refused", "unanswered", "late"))
        objects._scheduler.mark(f"owner_{fate}")
        if fate == "unanswered":
            swap()
        elif fate == "late":
            objects._scheduler.after(objects._scheduler.random.uniform(0.1, STALE_S), swap)
        raise ObjectStorageUnavailable(self.storage, "writing its owner", "simulated")

    async def delete_mark(self) -> None:
        await self._asked("delete owner")
        self._objects.marks.pop(self.storage, None)

    async def _asked(self, what: str) -> None:
        await self._objects.called(what)
        if self._objects.is_bad():
            self._objects._scheduler.mark("object_storage_unavailable")
            raise ObjectStorageUnavailable(self.storage, what, "simulated")


@contextmanager
def simulated_storage(objects: SimObjects) -> Iterator[None]:
    """Let production code find *objects* within the block."""
    honest, blocks, places_of = object_store.open_folder, object_format.BLOCK_BYTES, uri.places_of

    def places(uri: str) -> tuple[str, ...]:
        return (f"{objects.place} {uri}",)

    object_store.open_folder = objects.open
    object_format.BLOCK_BYTES = BLOCK_BYTES  # type: ignore[misc]
    uri.places_of = places
    lines = segment_indexes.LISTED_MAX, segment_indexes.RUN_SEGMENTS
    segment_indexes.LISTED_MAX, segment_indexes.RUN_SEGMENTS = LISTED_MAX, RUN_SEGMENTS  # type: ignore[misc]
    merged, archive.MERGED_MAX = archive.MERGED_MAX, LISTED_MAX  # type: ignore[misc]
    segment_index.forget_indexes()
    try:
        with simulated_tables():
            yield
    finally:
        object_store.open_folder = honest
        object_format.BLOCK_BYTES = blocks  # type: ignore[misc]
        uri.places_of = places_of
        segment_indexes.LISTED_MAX, segment_indexes.RUN_SEGMENTS = lines  # type: ignore[misc]
        archive.MERGED_MAX = merged  # type: ignore[misc]
