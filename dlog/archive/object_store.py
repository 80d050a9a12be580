"""Object storage: S3, Google Cloud Storage, Azure, a directory, or memory of this process. The
library is obstore.

An object is written once, under a name that no other attempt has, and never changed. All calls are
asynchronous: the library works in threads of its own. It repeats what may pass for `RETRY_S`; what
then fails is `ObjectStorageUnavailable`. Credentials and endpoints come from the environment, as
other programs for that storage read them.

A directory is on disk once an upload returns: file and folders are synced.
"""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import unquote, urlsplit

from dlog.errors import ArchiveMissing, ObjectStorageRefused, ObjectStorageUnavailable
from dlog.protocol.table import TABLE

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore

RETRY_S: Final = 30.0
RETRIES_MAX: Final = 5
REQUEST_S: Final = 60.0
"""How long one request may take, a part of an upload included."""
CONNECT_S: Final = 5.0
PART_BYTES: Final = 8 << 20
"""Objects are uploaded in parts of this size; S3 takes 10,000."""
PARTS_AT_ONCE: Final = 2
ABORT_S: Final = 5.0
"""How long an upload that is given up may take to say so."""
STORES_MAX: Final = 16
LOCK: Final = ".lock"
LOCKS_MAX: Final = 100
MARK: Final = ".owner"
"""Ends the name of the mark beside a log's folder."""
TABLE_MARK: Final = ".json"
"""Ends that of the mark beside a table's folder: its manifest."""
_swapping: Final = threading.Lock()
"""Locks of files keep out other processes only."""


class ObjectFolder(Protocol):
    """The objects of one log. Each call may raise `ObjectStorageUnavailable`,
    `ObjectStorageRefused`."""

    @property
    def storage(self) -> str:
        """The URI of the folder."""

    async def put(self, name: str, chunks: AsyncGenerator[bytes, None]) -> None:
        """Write the object *name*, which nobody wrote before; nobody sees a part of it.

        Raises what *chunks* raises, and then there is no object. After any other error there may
        be one, now or later."""

    async def read(self, name: str, bytes_range: range) -> bytes | None:
        """Return these bytes, or fewer if the object is shorter; None: there is no object."""

    def read_now(self, name: str, bytes_range: range) -> bytes | None:
        """Do `read` by a call that blocks."""

    async def size(self, name: str) -> int | None:
        """Return the bytes of the object; None: there is none."""

    async def delete(self, name: str) -> None:
        """Delete the object; no error if there is none."""

    async def names(self) -> list[str]:
        """Return the names of all objects, sorted, also of those in folders within: then with that
        folder's name. The storage may not list the newest yet."""

    async def read_mark(self) -> bytes | None:
        """Return the mark beside the folder, as it is now; None: there is none."""

    async def swap_mark(self, seen: bytes | None, mark: bytes) -> bytes | None:
        """Write *mark* if *seen* is there (None: no mark); return what is there then.

        After an error it was written, or not, or is written later if *seen* is there still."""

    async def delete_mark(self) -> None:
        """Delete the mark; no error if there is none."""


def open_folder(storage: str) -> ObjectFolder:
    """Return the folder at the URI *storage*. Raises `ArchiveMissing`, `ObjectStorageRefused`."""
    return _Folder(storage)


class _Folder:
    def __init__(self, storage: str) -> None:
        self.storage = storage
        root, _, self._folder = storage.rpartition("/")
        self._mark_name = self._folder + (TABLE_MARK if self._folder.endswith(TABLE) else MARK)
        self._store = _store_at(root)
        split = urlsplit(storage)
        self._directory = Path(unquote(split.path)) if split.scheme == "file" else None

    def read_now(self, name: str, bytes_range: range) -> bytes | None:
        from obstore import get_range

        start, stop = bytes_range.start, bytes_range.stop
        try:
            return bytes(get_range(self._store, self._path(name), start=start, end=stop))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure(f"reading {name}", error) from error

    async def put(self, name: str, chunks: AsyncGenerator[bytes, None]) -> None:
        from obstore import put_async

        feed = _Feed()
        upload = asyncio.ensure_future(
            put_async(
                self._store,
                self._path(name),
                feed,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        )
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if not await feed.push(chunk, upload):
                        break
                else:
                    await feed.push(None, upload)
        except BaseException as error:
            feed.fail(error)  # a task of the library would wait for more: cancelling it is no end
            await asyncio.wait([upload], timeout=ABORT_S)
            if upload.done() and not upload.cancelled():
                upload.exception()  # what made it fail is raised
            raise
        try:
            await upload
            if self._directory is not None:
                await asyncio.to_thread(_sync, self._directory, name)
        except Exception as error:
            raise self._failure(f"writing {name}", error) from error

    async def read(self, name: str, bytes_range: range) -> bytes | None:
        from obstore import get_range_async

        start, stop = bytes_range.start, bytes_range.stop
        if start == stop:
            return b""
        try:
            data = await get_range_async(self._store, self._path(name), start=start, end=stop)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure(f"reading {name}", error) from error
        return bytes(data)

    async def size(self, name: str) -> int | None:
        from obstore import head_async

        try:
            return int((await head_async(self._store, self._path(name)))["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure(f"looking for {name}", error) from error

    async def delete(self, name: str) -> None:
        from obstore import delete_async

        try:
            await delete_async(self._store, self._path(name))
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failure(f"deleting {name}", error) from error

    async def names(self) -> list[str]:
        import obstore

        names: list[str] = []
        try:
            async for batch in obstore.list(self._store, prefix=self._folder):
                names += [str(meta["path"])[len(self._folder) + 1 :] for meta in batch]
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._failure("listing", error) from error
        return sorted(names)

    async def read_mark(self) -> bytes | None:
        return (await self._mark())[0]

    async def _mark(self) -> tuple[bytes | None, "UpdateVersion"]:
        from obstore import get_async

        try:
            answer = await get_async(self._store, self._mark_name)
            data = bytes(await answer.bytes_async())
        except FileNotFoundError:
            return None, {}
        except Exception as error:
            raise self._failure("reading its owner", error) from error
        version: UpdateVersion = {"e_tag": answer.meta["e_tag"]}
        if answer.meta["version"] is not None:  # the library takes no None here
            version["version"] = answer.meta["version"]
        return data, version

    async def swap_mark(self, seen: bytes | None, mark: bytes) -> bytes | None:
        from obstore import exceptions, put_async

        if self._directory is not None:
            path = self._directory.with_name(self._mark_name)
            try:
                return await asyncio.to_thread(_swap_file, path, seen, mark)
            except OSError as error:
                raise self._failure("writing its owner", error) from error
        there, version = await self._mark()
        if there != seen:
            return there
        mode: Literal["create"] | UpdateVersion = "create" if there is None else version
        try:
            await put_async(self._store, self._mark_name, mark, mode=mode, use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            return await self.read_mark()
        except Exception as error:
            raise self._failure("writing its owner", error) from error
        return mark

    async def delete_mark(self) -> None:
        from obstore import delete_async

        if self._directory is not None:
            path = self._directory.with_name(self._mark_name)
            try:
                await asyncio.to_thread(_delete_file, path)
            except OSError as error:
                raise self._failure("deleting its owner", error) from error
            return
        try:
            await delete_async(self._store, self._mark_name)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failure("deleting its owner", error) from error

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _failure(self, operation: str, error: Exception) -> Exception:
        """Return what to raise in place of the library's *error*."""
        from obstore import exceptions

        refusals = (
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            exceptions.InvalidPathError,
            exceptions.NotSupportedError,
            exceptions.UnknownConfigurationKeyError,
            PermissionError,
            ValueError,
        )
        reason = str(error).partition("\n")[0]
        if isinstance(error, refusals):
            return ObjectStorageRefused(self.storage, operation, reason)
        if isinstance(error, exceptions.BaseError | OSError | TimeoutError):
            return ObjectStorageUnavailable(self.storage, operation, reason)
        return error


class _Feed:
    """Chunks on their way to the library, one at a time. It asks from the loop of `push`."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(maxsize=1)

    async def push(self, chunk: bytes | None, upload: "asyncio.Future[Any]") -> bool:
        """Hand on *chunk*, None for the end; return False if the upload is over."""
        pushing = asyncio.ensure_future(self._chunks.put(chunk))
        try:
            await asyncio.wait([pushing, upload], return_when=asyncio.FIRST_COMPLETED)
        finally:
            pushing.cancel()
        return not upload.done()

    def fail(self, error: BaseException) -> None:
        """Let the library hear of *error* in place of more chunks."""
        while not self._chunks.empty():
            self._chunks.get_nowait()
        self._chunks.put_nowait(error)

    def __aiter__(self) -> "_Feed":
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._chunks.get()
        if chunk is None:
            raise StopAsyncIteration
        if isinstance(chunk, bytes):
            return chunk
        raise RuntimeError("the upload was given up") from chunk


@lru_cache(maxsize=STORES_MAX)
def _store_at(root: str) -> "ObjectStore":
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ArchiveMissing(root) from None
    try:
        if root.startswith("memory:"):
            return from_url("memory:///")
        if root.startswith("file:"):
            return from_url(root, mkdir=True)
        return from_url(
            root,
            client_options={
                "timeout": timedelta(seconds=REQUEST_S),
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "allow_http": os.environ.get("AWS_ALLOW_HTTP", "") in {"true", "1"},
            },
            retry_config={
                "max_retries": RETRIES_MAX,
                "retry_timeout": timedelta(seconds=RETRY_S),
            },
        )
    except (BaseError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ObjectStorageRefused(root, "opening", reason) from error


def _sync(directory: Path, name: str) -> None:
    path = directory / name
    while path != directory.parent:
        _sync_path(path)
        path = path.parent
    _sync_path(path)


def _sync_path(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Lock the mark at *path*; yield the file that is locked, which whoever has it may delete."""
    lock_path = path.with_name(path.name + LOCK)
    with _swapping:
        for _ in range(LOCKS_MAX):
            with lock_path.open("a+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX)
                if _is_at(lock.fileno(), lock_path):
                    yield lock_path
                    return
    raise OSError(f"{lock_path} was deleted {LOCKS_MAX} times while it was waited for")


def _is_at(opened: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except FileNotFoundError:
        return False


def _delete_file(mark: Path) -> None:
    """Delete a mark in a directory, and its lock."""
    if mark.parent.is_dir():
        with _locked(mark) as lock:
            mark.unlink(missing_ok=True)
            mark.with_name(mark.name + ".new").unlink(missing_ok=True)
            lock.unlink()


def _swap_file(path: Path, seen: bytes | None, mark: bytes) -> bytes | None:
    """Do `swap_mark` in a directory: under a lock, which NFS has too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        there = path.read_bytes() if path.exists() else None
        if there != seen:
            return there
        written = path.with_name(path.name + ".new")
        written.write_bytes(mark)
        _sync_path(written)
        written.replace(path)
        _sync_path(path.parent)
    return mark
