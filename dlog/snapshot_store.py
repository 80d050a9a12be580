"""Snapshots of replicated states in a directory, which replicas may share.

    DIRECTORY/<incarnation of the log>/<offset>.snapshot

A snapshot is written to a temporary name, synced, read back and checked; then it gets its name, and
the directory is synced. So a name means that it was whole once. It is checked again before it is
used, and one that is damaged by then is passed over for the one before. A log keeps its incarnation
when it is renamed, and one that is created again has another.

All calls block: `dlog.aio.replica` makes them on threads.
"""

import os
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

from dlog.errors import DamagedSnapshot, SnapshotsUnusable, SnapshotTooNew
from dlog.protocol.snapshot import (
    OnProgress,
    SnapshotHeader,
    WriteState,
    check_snapshot,
    no_progress,
    write_snapshot,
)
from ledger.log_events import get_logger

_SUFFIX: Final = ".snapshot"
_TEMPORARY: Final = ".partial"
_IDENTITY: Final = "identity"
_PARTIAL_S: Final = 3600.0
"""A file that was not written to for so long is what a crash left."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    path: Path
    offset: int


class SnapshotStore:
    """Of one life of one log."""

    def __init__(self, uri: str, log: str, incarnation: str, *, create: bool = True) -> None:
        """*uri*: ``file:///directory``, or its path. *create* False: to look, it must be there.
        Raises `SnapshotsUnusable`."""
        self.log, self.incarnation = log, incarnation
        parts = urlsplit(uri)
        if parts.scheme not in ("", "file") or parts.netloc:
            raise SnapshotsUnusable(uri, "use file:///directory, or a path")
        root = unquote(parts.path) if parts.scheme else uri
        if not Path(root).is_absolute():
            raise SnapshotsUnusable(uri, "the path is not absolute")
        self.uri = Path(root).as_uri()
        self.directory = Path(root) / incarnation
        if not create:
            if not Path(root).is_dir():
                raise SnapshotsUnusable(uri, "there is no such directory on this machine")
            return
        try:
            _make_directory(self.directory)
        except OSError as error:
            raise SnapshotsUnusable(uri, str(error)) from error

    def identity(self) -> str:
        """Return what this directory is known by, wherever it is mounted. Raises `OSError`.

        Whoever copies the directory removes the file from the copy: two that have one identity are
        one consumer of the log, and what only one of them needs is truncated."""
        path = self.directory / _IDENTITY
        with suppress(FileNotFoundError):
            identity = path.read_bytes()
            if re.fullmatch(rb"[0-9a-f]{16}", identity):
                return identity.decode()
            path.unlink()  # a crash of the machine left no more of it
        partial = self.directory / f"{_IDENTITY}.{secrets.token_hex(8)}{_TEMPORARY}"
        with partial.open("x") as out:
            out.write(secrets.token_hex(8))
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(partial)  # whoever is first decides
        partial.unlink()
        _sync(self.directory)
        return path.read_text()

    def files(self) -> list[SnapshotFile]:
        """Return those of this life of the log, newest first. Raises `OSError`."""
        found = [
            SnapshotFile(path, int(path.stem))
            for path in self.directory.glob(f"*{_SUFFIX}")
            if path.stem.isascii() and path.stem.isdigit() and path.is_file()
        ]
        return sorted(found, key=lambda file: -file.offset)

    def newest_whole(self, above: int) -> SnapshotFile | None:
        """Return the newest one above offset *above* that is whole; None: there is none.

        Warns of those that are damaged. Raises `SnapshotTooNew`, `OSError`."""
        opened = self.open_newest(above)
        if opened is None:
            return None
        file, _, source = opened
        source.close()
        return file

    def open_newest(
        self, above: int, on_progress: OnProgress = no_progress
    ) -> tuple[SnapshotFile, SnapshotHeader, BinaryIO] | None:
        """Return `newest_whole` with its header, and open: to be read when it was removed, too."""
        for file in self.files():
            if file.offset <= above:
                break
            with ExitStack() as stack:
                try:
                    source = stack.enter_context(file.path.open("rb"))
                    header = self._check(file, source, on_progress)
                except FileNotFoundError:
                    continue  # a newer one took its place
                except DamagedSnapshot as error:
                    self._warn(file, error)
                    continue
                stack.pop_all()
                return file, header, source
        return None

    def check(self, file: SnapshotFile, on_progress: OnProgress = no_progress) -> SnapshotHeader:
        """Read *file* as a whole; return its header. Raises `DamagedSnapshot`, `SnapshotTooNew`,
        `OSError`."""
        with file.path.open("rb") as source:
            return self._check(file, source, on_progress)

    def _check(
        self, file: SnapshotFile, source: BinaryIO, on_progress: OnProgress
    ) -> SnapshotHeader:
        header = check_snapshot(source, os.fstat(source.fileno()).st_size, on_progress)
        self.check_place(file, header)
        return header

    def check_place(self, file: SnapshotFile, header: SnapshotHeader) -> None:
        """Raise `DamagedSnapshot` if *file*, which has *header*, has the name of another one."""
        if (header.incarnation, header.offset) != (self.incarnation, file.offset):
            raise DamagedSnapshot(f"it is one of log {header.log!r} at offset {header.offset}")

    def write(
        self,
        header: SnapshotHeader,
        table: Iterable[bytes],
        write_state: WriteState,
        on_progress: OnProgress = no_progress,
    ) -> SnapshotFile:
        """Write a snapshot; it is durable and was read back when this returns. Raises `OSError`,
        `DamagedSnapshot`, what *write_state* raises; then there is none."""
        self._remove_abandoned()
        name = f"{header.offset:020d}"
        partial = self.directory / f"{name}.{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            with partial.open("xb") as out:
                write_snapshot(out, header, table, write_state, on_progress)
                out.flush()
                os.fsync(out.fileno())
            with partial.open("rb") as source:
                check_snapshot(source, partial.stat().st_size, on_progress)
            file = SnapshotFile(self.directory / f"{name}{_SUFFIX}", header.offset)
            partial.replace(file.path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync(self.directory)
        return file

    def keep_newest(self, count: int, whole: SnapshotFile | None = None) -> list[SnapshotFile]:
        """Remove all but the newest *count* that are whole; return those, newest first.

        Each but *whole* is read for that: one that was damaged meanwhile must not be what is left
        when those before it have gone. Raises `OSError`."""
        kept: list[SnapshotFile] = []
        for file in self.files():
            if len(kept) == count:
                file.path.unlink(missing_ok=True)
                continue
            try:
                if file != whole:
                    self.check(file)
            except (FileNotFoundError, SnapshotTooNew):
                continue
            except DamagedSnapshot as error:
                self._warn(file, error)
                file.path.unlink(missing_ok=True)
            else:
                kept.append(file)
        _sync(self.directory)
        return kept

    def _warn(self, file: SnapshotFile, error: DamagedSnapshot) -> None:
        _log.warning("snapshot_damaged", log=self.log, path=file.path, error=str(error))

    def _remove_abandoned(self) -> None:
        limit = time.time() - _PARTIAL_S
        for path in self.directory.glob(f"*{_TEMPORARY}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < limit:
                    path.unlink()


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
