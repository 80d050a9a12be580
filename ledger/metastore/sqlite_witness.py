"""The witness of the embedded store: a small file that knows the newest commit, by checksums.

SQLite takes what it finds for whole up to the first frame of its write-ahead log that is not,
so a log that was damaged, shortened or taken away is an older database to it. The witness says
the difference. It holds a mark, the generation and chain of the newest commit:

    1. the lock on this file is taken; the database must be where the mark is
    2. SQLite commits generation g + 1, and syncs its log
    3. the mark g + 1 is written over that of g - 1, and synced
    4. the lock is given back; only then is the commit reported to anybody

So after a crash the database is at the mark, or one commit further with a chain that fits;
anything else is damage or an older copy. There are two slots: a mark that was torn by a crash, or
damaged, leaves the one before. The file is written in place and never replaced.

The checksums are over each row, over all together and over every commit:

    total   sum of the digests of all rows modulo 2^128: a commit adds and takes away what it
            changed, a look at everything adds up again
    chain   digest over the chain of the commit before, the generation and the total: who
            knows the chain of a generation knows all that was ever committed up to it
    names   of a node: sum of the digests of its children's names modulo 2^128. With their number
            it proves what an index says of them, and what no index finds

Against accidents, not against malice: who may write the files may also write fitting checksums.
"""

import fcntl
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from ledger.delays import Backoff

DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * DIGEST_BYTES)
_GENERATION_BYTES: Final = 8
WITNESS: Final = "metadata.witness"
SLOT_BYTES: Final = 4096
"""Apart, so that no sector holds two slots."""
WITNESS_BYTES: Final = 2 * SLOT_BYTES
_MAGIC: Final = b"dlogwit1"
_MARK: Final = Struct(f"<8sQ{DIGEST_BYTES}s")
_POLL_S_MIN: Final = 0.0005
_POLL_S_MAX: Final = 0.01


def digest_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def row_digest(table: str, row: tuple[object, ...]) -> bytes:
    """Return the digest of a row; of values of other types, too, as damage may bring."""
    # repr distinguishes types and is the same for ever for str, int, float, bytes and None.
    return digest_of(repr((table, row)).encode("utf-8", "backslashreplace"))


def node_digest(row: tuple[object, ...], value: object) -> bytes:
    """Return the digest of a node: *row* is all of it but its value."""
    said = value if isinstance(value, bytes) else repr(value).encode("utf-8", "backslashreplace")
    return digest_of(row_digest("node", (*row, type(value).__name__)) + said)


def name_digest(name: object) -> bytes:
    """Return the digest of a child's name; of another type, too, as damage may bring."""
    return digest_of(repr(name).encode("utf-8", "backslashreplace"))


def names_total(names: Iterable[object]) -> bytes:
    """Return the sum of the digests of *names*."""
    return _bytes(sum(_int(name_digest(name)) for name in names))


def added(total: bytes, digest: bytes) -> bytes:
    return _bytes(_int(total) + _int(digest))


def taken(total: bytes, digest: bytes) -> bytes:
    return _bytes(_int(total) - _int(digest))


def next_chain(before: bytes, generation: int, total: bytes) -> bytes:
    return digest_of(before + generation.to_bytes(_GENERATION_BYTES, "little") + total)


EMPTY_TOTAL: Final = bytes(DIGEST_BYTES)


def _int(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def _bytes(total: int) -> bytes:
    return (total % _MODULUS).to_bytes(DIGEST_BYTES, "little")


class CommitMarker(NamedTuple):
    """A commit. Generation 0: none yet, and its chain is what distinguishes this store."""

    generation: int
    chain: bytes


class Witness:
    """The file, open. Used by one thread; the lock is between all that have opened it."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make an empty one. Raises `OSError`."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _open_files.add(self)

    def close(self) -> None:
        """Close the file, which gives its lock back. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Keep every other writer out for the time of the block.

        Raises `TimeoutError` if another one is at work for *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(_POLL_S_MIN, _POLL_S_MAX)
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    reason = f"{self.path} is locked by another process that writes"
                    raise TimeoutError(reason) from None
            time.sleep(backoff.next())
        try:
            yield
        finally:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def begin(self, mark: CommitMarker) -> None:
        """Rewrite the whole file, durably. Requires the lock."""
        os.pwrite(self._fd, 2 * _encode(mark).ljust(SLOT_BYTES, b"\0"), 0)
        os.ftruncate(self._fd, WITNESS_BYTES)
        os.fsync(self._fd)

    def read(self) -> CommitMarker | None:
        """Return the newest mark; None if no slot holds one, or the file has another size."""
        if os.fstat(self._fd).st_size != WITNESS_BYTES:
            return None
        marks = [self._read_slot(slot) for slot in range(2)]
        return max((mark for mark in marks if mark is not None), default=None)

    def write(self, mark: CommitMarker) -> None:
        """Write *mark*, durably, and keep the one before. Requires the lock."""
        os.pwrite(self._fd, _encode(mark), mark.generation % 2 * SLOT_BYTES)
        os.fdatasync(self._fd)

    def _read_slot(self, slot: int) -> CommitMarker | None:
        stored = os.pread(self._fd, _MARK.size + DIGEST_BYTES, slot * SLOT_BYTES)
        body, digest = stored[: _MARK.size], stored[_MARK.size :]
        if digest != digest_of(body):
            return None
        magic, generation, chain = _MARK.unpack(body)
        return CommitMarker(generation, chain) if magic == _MAGIC else None


def _encode(mark: CommitMarker) -> bytes:
    body = _MARK.pack(_MAGIC, mark.generation, mark.chain)
    return body + digest_of(body)


_open_files: Final[weakref.WeakSet[Witness]] = weakref.WeakSet()


def _close_after_fork() -> None:
    # A child's copy of the open file would keep the parent's lock alive.
    for witness in list(_open_files):
        witness.close()


os.register_at_fork(after_in_child=_close_after_fork)
