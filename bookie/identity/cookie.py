"""The cookie: who the data in a directory belongs to, in a file of each directory of a bookie.

The metadata store holds the same message, with what is known of the bookie's lives. What the
two must say of each other is the business of `bookie.identity.stamp`.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Final, Self

from google.protobuf.message import DecodeError
from google_crc32c import value as crc32c

from bookie.disk.port import Disk, DiskFull
from bookie.errors import CookieDamaged, StorageFailed
from ledger.wire import metadata_pb2 as pb

VERSION: Final = 2
PATH: Final = "cookie"
_NEW_PATH: Final = "cookie.tmp"
_MAGIC: Final = b"DLOGCOOK"
_HEAD: Final = Struct("<8sI")  # magic, CRC32C of the message behind


@dataclass(frozen=True, slots=True)
class Cookie:
    bookie: str
    instance: str
    """Of the namespace."""
    cookie: str
    """Random, made once: distinguishes this data from any other data of the same name."""
    address: str
    """host:port of the last start; not part of the identity."""
    directories: str
    """The places of all directories of the bookie, in order."""
    place: str = ""
    """Of the one directory that the file is in; empty in the store."""
    life: int = 0
    """How many starts were counted."""
    token: str = ""
    """Random, of the last start that was counted; empty as long as none was."""
    clean: bool = False
    """Whether that life has ended, having promised nothing that is not in the directories."""
    tries: tuple[str, ...] = ()
    """In a directory: tokens of starts since; it is not known whether they count."""
    file: str = field(default="", compare=False)
    """In a directory: the identity of this file, which shows a copy; see `DiskFile.identity`.
    Empty if a version wrote it that did not know it."""
    system: str = ""
    """In a directory: where it was used last; see `Disk.where`."""
    doubt: str = ""
    """In a directory: why something may be missing here, accepted by an operator."""
    checkpoint: int = 0
    """In the store: the number of the census that this life reported last."""
    census: bytes = b""
    """In the store: that census."""
    limbo: str = ""
    """In the store: why the bookie is in limbo; empty if it is not."""
    retired_ms: int = 0
    """In the store: when the data of this name were given up, since 1970; 0: they were not."""
    retired_why: str = ""
    restore: str = ""
    """In a directory: token of the last restore of the store that these data have honoured."""

    def encode(self) -> bytes:
        node = pb.CookieNode(
            version=VERSION,
            bookie=self.bookie,
            instance=self.instance,
            directories=self.directories,
            cookie=self.cookie,
            address=self.address,
            place=self.place,
            life=self.life,
            life_token=self.token,
            clean=self.clean,
            tries=self.tries,
            file=self.file,
            system=self.system,
            doubt=self.doubt,
            checkpoint=self.checkpoint,
            census=self.census,
            limbo=self.limbo,
            retired_ms=self.retired_ms,
            retired_why=self.retired_why,
            restore=self.restore,
        )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises `ValueError`."""
        try:
            node = pb.CookieNode.FromString(value)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        if node.version != VERSION or not node.cookie:
            raise ValueError(f"not a cookie of version {VERSION}")
        return cls(
            bookie=node.bookie,
            instance=node.instance,
            cookie=node.cookie,
            address=node.address,
            directories=node.directories,
            place=node.place,
            life=node.life,
            token=node.life_token,
            clean=node.clean,
            tries=tuple(node.tries),
            file=node.file,
            system=node.system,
            doubt=node.doubt,
            checkpoint=node.checkpoint,
            census=node.census,
            limbo=node.limbo,
            retired_ms=node.retired_ms,
            retired_why=node.retired_why,
            restore=node.restore,
        )

    @property
    def is_retired(self) -> bool:
        return self.retired_ms > 0

    def is_same(self, other: Self) -> bool:
        """Whether both mean the same data, of whichever life."""
        return self._whose == other._whose

    @property
    def _whose(self) -> tuple[str, ...]:
        return self.bookie, self.instance, self.cookie, self.directories


def read_cookie(disk: Disk) -> Cookie | None:
    """Return the cookie of the directory, None if there is none.

    Raises `CookieDamaged`, and `StorageFailed` if the disk cannot be read."""
    found = read_cookie_file(disk)
    return None if found is None else found[0]


def read_cookie_file(disk: Disk) -> tuple[Cookie, str] | None:
    """Return the directory's cookie, and the identity of its file; None if there is none.

    Raises as `read_cookie`."""
    path = disk.describe(PATH)
    try:
        file = disk.open(PATH)
        try:
            identity = file.identity()
            data = file.read(file.size(), 0)
        finally:
            file.close()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(f"reading {path}", str(error)) from error
    if len(data) < _HEAD.size:
        raise CookieDamaged(path, len(data), "the file ends within its header")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or crc32c(body) != crc:
        raise CookieDamaged(path, 0, "not a cookie, or its checksum differs")
    try:
        return Cookie.decode(body), identity
    except ValueError as error:
        raise CookieDamaged(path, _HEAD.size, str(error)) from error


def write_cookie(disk: Disk, cookie: Cookie) -> None:
    """Put *cookie* into the directory, in place of one that is there, as one step.

    The file says which file it is, so that a copy of it does not pass for it."""
    try:
        file = disk.create(_NEW_PATH)
        try:
            body = replace(cookie, file=file.identity()).encode()
            file.write([_HEAD.pack(_MAGIC, crc32c(body)), body], 0)
            file.sync()
        finally:
            file.close()
        disk.rename(_NEW_PATH, PATH)
    except DiskFull:
        with suppress(OSError):
            disk.remove(_NEW_PATH)
        raise
    disk.sync_directory("")
