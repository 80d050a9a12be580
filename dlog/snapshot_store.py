"""Snapshots of replicated states, in a directory or in object storage, which replicas may share.

    DIRECTORY/<incarnation of the log>/<offset>.snapshot
    URI/<incarnation of the log>.snapshots/snapshot-<offset>-<token of an attempt>

A snapshot is written, read back as a whole, and only then counts. In a directory it has a temporary
name until then. An object has a name that no other attempt has, and is never written again: an
upload that failed may arrive late, and then it is another snapshot, whole or not.

A name proves nothing: a snapshot is read as a whole before it is used, and a damaged one is passed
over for the one before. A list proves nothing either: it may lack the newest objects, and name some
that are deleted. So callers of `files` add the names that they know of otherwise
(`dlog.aio.snapshot_keeper` notes those that are kept in the metadata store). A log keeps its
incarnation when it is renamed, and one that is created again has another.

Object storage needs as much room as a snapshot takes in the directory for temporary files: what is
uploaded, read back or restored lies there meanwhile, so that no state waits for the network.
"""

import asyncio
import os
import re
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, Protocol, Self
from urllib.parse import unquote, urlsplit

from dlog.archive import object_store
from dlog.errors import DamagedSnapshot, SnapshotsUnusable, SnapshotTooNew
from dlog.protocol.snapshot import (
    GLANCE_BYTES,
    PIECE_BYTES,
    OnProgress,
    SnapshotHeader,
    WriteState,
    check_snapshot,
    glance_at_snapshot,
    no_progress,
    write_snapshot,
)
from dlog.settings import STORAGE_CHARS_MAX, STORAGE_URI
from ledger.log_events import get_logger
from ledger.tasks import for_each

_SUFFIX: Final = ".snapshot"
_TEMPORARY: Final = ".partial"
_IDENTITY: Final = "identity"
_PARTIAL_S: Final = 3600.0
"""A file that was not written to for so long is what a crash left."""
_OBJECT: Final = re.compile(r"snapshot-([0-9]{20})-[0-9a-f]{16}")
_MEMORY: Final = re.compile(r"memory://[A-Za-z0-9._-]+")
_READ_BYTES: Final = 8 << 20
_READS_AT_ONCE: Final = 4
"""Requests of so many bytes each, while an object is read as a whole."""
_PROCESS: Final = secrets.token_hex(8)
"""What is in the memory of another process is in another store."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    name: str
    offset: int


class SnapshotFolder(Protocol):
    """Where the snapshots of one life of one log are. Calls raise `OSError`, and object storage
    `ObjectStorageUnavailable` and `ObjectStorageRefused`."""

    uri: str

    async def identity(self) -> str:
        """Return what this is known by, wherever it is mounted."""

    async def files(self, also: Iterable[str]) -> list[SnapshotFile]:
        """Return what has a name of a snapshot, and those of the names *also* that are one."""

    async def size_bytes(self, name: str) -> int | None:
        """Return its size; None: there is none."""

    async def open(self, name: str, on_progress: OnProgress) -> tuple[SnapshotHeader, BinaryIO]:
        """Read it as a whole; return its header, and itself, to be read though it is removed.

        Raises `DamagedSnapshot`, `SnapshotTooNew`, `FileNotFoundError`."""

    async def glance(self, name: str) -> SnapshotHeader:
        """Return its header; read its beginning and its end. Raises as `open`."""

    async def write(
        self,
        header: SnapshotHeader,
        table: Iterable[bytes],
        write_state: WriteState,
        on_progress: OnProgress,
    ) -> str:
        """Write a snapshot and read it back; return its name."""

    async def delete(self, names: Sequence[str]) -> None:
        """Delete these; no error if one is not there."""

    def place(self, name: str) -> str:
        """Return where it is, for people."""


class SnapshotStore:
    """Of one life of one log. Calls raise what those of its `SnapshotFolder` raise."""

    def __init__(self, folder: SnapshotFolder, log: str, incarnation: str) -> None:
        self.log, self.incarnation = log, incarnation
        self._folder = folder

    @classmethod
    async def open(cls, uri: str, log: str, incarnation: str, *, create: bool = True) -> Self:
        """*uri*: ``file:///directory``, or its path; ``s3://BUCKET/PREFIX``, ``gs://``, ``az://``;
        ``memory://NAME``, which this process has for itself. *create* False: to look, a directory
        must be there. Raises `SnapshotsUnusable`, `ArchiveMissing`, `ObjectStorageRefused`."""
        parts = urlsplit(uri)
        if parts.scheme in ("", "file"):
            folder = await asyncio.to_thread(partial(_Directory, uri, incarnation, create=create))
            return cls(folder, log, incarnation)
        uri = uri.rstrip("/")
        if not (_MEMORY.fullmatch(uri) or STORAGE_URI.fullmatch(uri)) or (
            len(uri) > STORAGE_CHARS_MAX
        ):
            raise SnapshotsUnusable(
                f"{parts.scheme}://...",  # it may have a password
                "use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX, "
                f"memory://NAME, file:///DIRECTORY or a path, with {STORAGE_CHARS_MAX} characters "
                "at most and no credentials",
            )
        return cls(_Objects(uri, incarnation), log, incarnation)

    @property
    def uri(self) -> str:
        return self._folder.uri

    async def identity(self) -> str:
        """Return what this store is known by: two that have one identity are one consumer of the
        log, and what only one of them needs is truncated.

        Whoever copies a directory removes the file ``identity`` from the copy. Object storage is
        known by its URI."""
        return await self._folder.identity()

    def place(self, file: SnapshotFile) -> str:
        """Return where *file* is, for people."""
        return self._folder.place(file.name)

    async def files(self, noted: Iterable[str] = ()) -> list[SnapshotFile]:
        """Return those that are listed, and *noted* ones, newest first. Any may be gone."""
        return sorted(await self._folder.files(noted), key=lambda file: (-file.offset, file.name))

    async def newest_whole(self, above: int) -> SnapshotFile | None:
        """Return the newest one above offset *above* that is whole; None: there is none.

        Warns of those that are damaged. Raises `SnapshotTooNew`."""
        opened = await self.open_newest(above)
        if opened is None:
            return None
        file, _, source = opened
        source.close()
        return file

    async def open_newest(
        self, above: int, noted: Iterable[str] = (), on_progress: OnProgress = no_progress
    ) -> tuple[SnapshotFile, SnapshotHeader, BinaryIO] | None:
        """Return `newest_whole`, of *noted* ones too, with its header, and open: to be read though
        it is removed."""
        for file in await self.files(noted):
            if file.offset <= above:
                break
            try:
                header, source = await self._open(file, on_progress)
            except FileNotFoundError:
                continue  # a newer one took its place
            except DamagedSnapshot as error:
                self._warn(file, error)
            else:
                return file, header, source
        return None

    async def check(
        self, file: SnapshotFile, on_progress: OnProgress = no_progress
    ) -> SnapshotHeader:
        """Read *file* as a whole; return its header. Raises as `SnapshotFolder.open`."""
        header, source = await self._open(file, on_progress)
        source.close()
        return header

    async def glance(self, file: SnapshotFile) -> SnapshotHeader:
        """As `check`, of its beginning and its end."""
        header = await self._folder.glance(file.name)
        self._check_place(file, header)
        return header

    async def size_bytes(self, file: SnapshotFile) -> int | None:
        """Return its size; None: there is no such snapshot."""
        return await self._folder.size_bytes(file.name)

    async def _open(
        self, file: SnapshotFile, on_progress: OnProgress
    ) -> tuple[SnapshotHeader, BinaryIO]:
        header, source = await self._folder.open(file.name, on_progress)
        try:
            self._check_place(file, header)
        except DamagedSnapshot:
            source.close()
            raise
        return header, source

    def _check_place(self, file: SnapshotFile, header: SnapshotHeader) -> None:
        """Raise `DamagedSnapshot` if *file*, which has *header*, has the name of another one."""
        if (header.incarnation, header.offset) != (self.incarnation, file.offset):
            raise DamagedSnapshot(f"it is one of log {header.log!r} at offset {header.offset}")

    async def write(
        self,
        header: SnapshotHeader,
        table: Iterable[bytes],
        write_state: WriteState,
        on_progress: OnProgress = no_progress,
    ) -> SnapshotFile:
        """Write a snapshot; it is durable and was read back when this returns. Raises
        `DamagedSnapshot`, what *write_state* raises; then there is none. After
        `ObjectStorageUnavailable` there may be one, now or later."""
        name = await self._folder.write(header, table, write_state, on_progress)
        return SnapshotFile(name, header.offset)

    async def sort_out(
        self, count: int, whole: SnapshotFile | None = None
    ) -> tuple[list[SnapshotFile], list[SnapshotFile]]:
        """Return the newest *count* that are whole, newest first, and what can be deleted once
        these are noted: those that are damaged, and those that are older than all of these.

        Each but *whole* is read for that: one that was damaged meanwhile must not be what is left
        when those before it have gone. Of those at one offset one is read."""
        kept: list[SnapshotFile] = []
        surplus: list[SnapshotFile] = []
        for file in await self.files(() if whole is None else (whole.name,)):
            if kept and file.offset == kept[-1].offset:
                continue
            if len(kept) == count:
                surplus.append(file)
                continue
            try:
                if whole is None or file.offset != whole.offset:
                    await self.check(file)
                elif file != whole:
                    continue
            except (FileNotFoundError, SnapshotTooNew):
                continue
            except DamagedSnapshot as error:
                self._warn(file, error)
                surplus.append(file)
            else:
                kept.append(file)
        return kept, surplus

    async def delete(self, files: Iterable[SnapshotFile]) -> None:
        await self._folder.delete([file.name for file in files])

    def _warn(self, file: SnapshotFile, error: DamagedSnapshot) -> None:
        _log.warning("snapshot_damaged", log=self.log, path=self.place(file), error=str(error))


class _Directory:
    """Work is done on threads."""

    def __init__(self, uri: str, incarnation: str, *, create: bool) -> None:
        parts = urlsplit(uri)
        root = Path(unquote(parts.path) if parts.scheme else uri)
        if parts.netloc or not root.is_absolute():
            reason = "it names another machine" if parts.netloc else "the path is not absolute"
            raise SnapshotsUnusable(uri, reason)
        self.uri = root.as_uri()
        self.directory = root / incarnation
        if not create:
            if not root.is_dir():
                raise SnapshotsUnusable(uri, "there is no such directory on this machine")
            return
        try:
            _make_directory(self.directory)
        except OSError as error:
            raise SnapshotsUnusable(uri, str(error)) from error

    def place(self, name: str) -> str:
        return str(self.directory / name)

    async def identity(self) -> str:
        return await asyncio.to_thread(self._identity)

    def _identity(self) -> str:
        path = self.directory / _IDENTITY
        with suppress(FileNotFoundError):
            identity = path.read_bytes()
            if re.fullmatch(rb"[0-9a-f]{16}", identity):
                return identity.decode()
            path.unlink()  # a crash of the machine left no more of it
        partial_path = self.directory / f"{_IDENTITY}.{secrets.token_hex(8)}{_TEMPORARY}"
        with partial_path.open("x") as out:
            out.write(secrets.token_hex(8))
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(partial_path)  # whoever is first decides
        partial_path.unlink()
        _sync(self.directory)
        return path.read_text()

    async def files(self, also: Iterable[str]) -> list[SnapshotFile]:
        return await asyncio.to_thread(self._files, frozenset(also))

    def _files(self, also: frozenset[str]) -> list[SnapshotFile]:
        names = {path.name for path in self.directory.glob(f"*{_SUFFIX}")} | also
        paths = [Path(name) for name in names]
        return [
            SnapshotFile(path.name, int(path.stem))
            for path in paths
            if path.suffix == _SUFFIX
            and path.stem.isascii()
            and path.stem.isdigit()
            and (self.directory / path).is_file()
        ]

    async def size_bytes(self, name: str) -> int | None:
        try:
            return (await asyncio.to_thread((self.directory / name).stat)).st_size
        except FileNotFoundError:
            return None

    async def open(self, name: str, on_progress: OnProgress) -> tuple[SnapshotHeader, BinaryIO]:
        return await asyncio.to_thread(self._open, name, on_progress)

    def _open(self, name: str, on_progress: OnProgress) -> tuple[SnapshotHeader, BinaryIO]:
        source = (self.directory / name).open("rb")
        try:
            return check_snapshot(source, os.fstat(source.fileno()).st_size, on_progress), source
        except BaseException:
            source.close()
            raise

    async def glance(self, name: str) -> SnapshotHeader:
        return await asyncio.to_thread(self._glance, name)

    def _glance(self, name: str) -> SnapshotHeader:
        with (self.directory / name).open("rb") as source:
            return glance_at_snapshot(source, os.fstat(source.fileno()).st_size)

    async def write(
        self,
        header: SnapshotHeader,
        table: Iterable[bytes],
        write_state: WriteState,
        on_progress: OnProgress,
    ) -> str:
        return await asyncio.to_thread(self._write, header, table, write_state, on_progress)

    def _write(
        self,
        header: SnapshotHeader,
        table: Iterable[bytes],
        write_state: WriteState,
        on_progress: OnProgress,
    ) -> str:
        """Write to a temporary name, sync, read back; give it its name, and sync that."""
        self._remove_abandoned()
        name = f"{header.offset:020d}"
        partial_path = self.directory / f"{name}.{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            with partial_path.open("xb") as out:
                write_snapshot(out, header, table, write_state, on_progress)
                out.flush()
                os.fsync(out.fileno())
            with partial_path.open("rb") as source:
                check_snapshot(source, partial_path.stat().st_size, on_progress)
            partial_path.replace(self.directory / f"{name}{_SUFFIX}")
        except BaseException:
            partial_path.unlink(missing_ok=True)
            raise
        _sync(self.directory)
        return f"{name}{_SUFFIX}"

    async def delete(self, names: Sequence[str]) -> None:
        await asyncio.to_thread(self._delete, names)

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            (self.directory / name).unlink(missing_ok=True)
        _sync(self.directory)

    def _remove_abandoned(self) -> None:
        limit = time.time() - _PARTIAL_S
        for path in self.directory.glob(f"*{_TEMPORARY}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < limit:
                    path.unlink()


class _Objects:
    """The folder is not the one of the log's segments, and no name is one of a segment's object:
    both may be below one URI."""

    def __init__(self, uri: str, incarnation: str) -> None:
        self.uri = uri
        self._folder = object_store.open_folder(f"{uri}/{incarnation}{_SUFFIX}s")

    def place(self, name: str) -> str:
        return f"{self._folder.storage}/{name}"

    async def identity(self) -> str:
        process = _PROCESS if _MEMORY.fullmatch(self.uri) else ""
        return sha256(f"{self.uri}{process}".encode()).hexdigest()[:16]

    async def files(self, also: Iterable[str]) -> list[SnapshotFile]:
        names = {*await self._folder.names(), *also}
        return [
            SnapshotFile(name, int(match[1]))
            for name in names
            if (match := _OBJECT.fullmatch(name))
        ]

    async def size_bytes(self, name: str) -> int | None:
        return await self._folder.size(name)

    async def open(self, name: str, on_progress: OnProgress) -> tuple[SnapshotHeader, BinaryIO]:
        size = await self._size(name)
        spool: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
        try:
            for begin in range(0, size, _READS_AT_ONCE * _READ_BYTES):
                end = min(begin + _READS_AT_ONCE * _READ_BYTES, size)
                pieces = await self._read(name, range(begin, end))
                await asyncio.to_thread(spool.writelines, pieces)
                on_progress("checking", end, size)
            spool.seek(0)
            return await asyncio.to_thread(check_snapshot, spool, size), spool
        except BaseException:
            spool.close()
            raise

    async def _size(self, name: str) -> int:
        size = await self._folder.size(name)
        if size is None:
            raise FileNotFoundError(self.place(name))
        return size

    async def _read(self, name: str, wanted: range) -> list[bytes]:
        begins = range(wanted.start, wanted.stop, _READ_BYTES)
        pieces: dict[int, bytes] = {}

        async def read(begin: int) -> None:
            span = range(begin, min(begin + _READ_BYTES, wanted.stop))
            piece = await self._folder.read(name, span)
            if piece is None:
                raise FileNotFoundError(self.place(name))
            if len(piece) != len(span):
                raise DamagedSnapshot("it is cut off")
            pieces[begin] = piece

        await for_each(begins, read, at_once=_READS_AT_ONCE)
        return [pieces[begin] for begin in begins]

    async def glance(self, name: str) -> SnapshotHeader:
        size = await self._size(name)
        head = await self._read(name, range(min(size, GLANCE_BYTES)))
        tail = await self._read(name, range(max(0, size - GLANCE_BYTES), size))
        with tempfile.TemporaryFile() as spool:  # what is between is a hole
            spool.writelines(head)
            spool.seek(max(0, size - GLANCE_BYTES))
            spool.writelines(tail)
            spool.seek(0)
            return glance_at_snapshot(spool, size)

    async def write(
        self,
        header: SnapshotHeader,
        table: Iterable[bytes],
        write_state: WriteState,
        on_progress: OnProgress,
    ) -> str:
        name = f"snapshot-{header.offset:020d}-{secrets.token_hex(8)}"
        with tempfile.TemporaryFile() as spool:
            await asyncio.to_thread(write_snapshot, spool, header, table, write_state)
            await self._folder.put(name, _pieces(spool, on_progress))
        try:
            _, source = await self.open(name, on_progress)
        except FileNotFoundError:
            raise DamagedSnapshot("it is not there, though its upload was confirmed") from None
        except DamagedSnapshot:
            await self._folder.delete(name)
            raise
        source.close()
        return name

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            await self._folder.delete(name)


async def _pieces(spool: BinaryIO, on_progress: OnProgress) -> AsyncGenerator[bytes, None]:
    """Yield what was written to *spool*."""
    size, done = spool.tell(), 0
    spool.seek(0)
    while piece := await asyncio.to_thread(spool.read, PIECE_BYTES):
        yield piece
        done += len(piece)
        on_progress("writing", done, size)


def _make_directory(directory: Path) -> None:
    """Make *directory* and those above it, durably."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync(directory.parent)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
