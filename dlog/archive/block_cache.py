"""Blocks of objects on the disk of this machine: history that is read again is fetched once.

Off unless the setting `object_cache` of the process says how large it may be. A file is a block,
and its name is a hash of object and range: objects never change. Nothing here is trusted: a reader
checks each block by the footer of its object, which it reads from the storage, and reads a block
from there that is not right here.

Processes of a user share the directory. A file appears whole, by a rename, and a process that finds
more than `bytes_max` deletes what was used longest ago. So there is no more than that, and a
sixteenth of it for each process. A disk that fails or is full makes reading no worse.
"""

import asyncio
import os
import secrets
import time
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from dlog.config import load

LEAST_BYTES: Final = 64 * 1024
"""Smaller blocks are not kept: of these there would be very many files."""
_SHARE: Final = 16
_KEPT: Final = 0.9
_DRAFT: Final = ".draft"
_DRAFT_S_MAX: Final = 3600.0
"""What a process that died has left is as old."""


class BlockCache:
    """Safe to use for several calls at once, and beside other processes."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory, self._bytes_max = directory, bytes_max
        self._unseen_bytes = bytes_max
        """Written since the directory was looked through: at first anything may be there."""

    async def get(self, key: str) -> bytes | None:
        """Return the block *key*, as it is here; None: it is not."""
        return await asyncio.to_thread(self._get, key)

    async def put(self, key: str, block: bytes) -> None:
        """Keep a block that was checked."""
        if len(block) >= LEAST_BYTES:
            await asyncio.to_thread(self._put, key, block)

    async def drop(self, key: str) -> None:
        """Delete a block that is not right."""
        await asyncio.to_thread(self._drop, key)

    def _get(self, key: str) -> bytes | None:
        path = self._directory / key
        with suppress(OSError):
            block = path.read_bytes()
            with suppress(OSError):
                os.utime(path)  # it was used now
            return block
        return None

    def _put(self, key: str, block: bytes) -> None:
        draft = self._directory / f"{key}-{secrets.token_hex(4)}{_DRAFT}"
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(block)
            draft.replace(self._directory / key)
            self._unseen_bytes += len(block)
            if self._unseen_bytes > self._bytes_max // _SHARE:
                self._unseen_bytes = 0
                self._evict()
        except OSError:
            with suppress(OSError):
                draft.unlink()

    def _drop(self, key: str) -> None:
        with suppress(OSError):
            (self._directory / key).unlink()

    def _evict(self) -> None:
        """Delete what was used longest ago, if there is more than may be."""
        blocks: list[tuple[float, int, str]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    if not entry.name.endswith(_DRAFT):
                        blocks.append((found.st_mtime, found.st_size, entry.path))
                    elif time.time() - found.st_mtime > _DRAFT_S_MAX:
                        Path(entry.path).unlink()
        total = sum(size for _, size, _ in blocks)
        if total <= self._bytes_max:
            return
        for _, size, path in sorted(blocks):
            if total <= _KEPT * self._bytes_max:
                break
            with suppress(FileNotFoundError):
                Path(path).unlink()
            total -= size


def key_of(storage: str, name: str, within: range) -> str:
    """Return what a block is kept as."""
    return sha256(f"{storage}/{name} {within.start} {within.stop}".encode()).hexdigest()


def configured() -> BlockCache | None:
    """Return the cache of this process; None: it is off. Raises `InvalidConfig`."""
    bytes_max = load().object_cache
    if not bytes_max:
        return None
    place = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _cache_at(Path(place).expanduser() / "dlog" / "objects", bytes_max)


@lru_cache(maxsize=4)
def _cache_at(directory: Path, bytes_max: int) -> BlockCache:
    return BlockCache(directory, bytes_max)
