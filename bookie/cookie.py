"""The cookie: who the data in a directory belongs to, in a file of each directory of a bookie.

The metadata store holds the same message, apart from the place. What the two must say of each
other is the business of `bookie.identity`.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, Self

from google.protobuf.message import DecodeError
from google_crc32c import value as crc32c

from bookie.disk import Disk, DiskFull
from bookie.errors import CookieDamaged, StorageFailed
from ledger.wire import metadata_pb2 as pb

VERSION: Final = 1
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
    """Random, made once: tells this data from any other data of the same name."""
    address: str
    """host:port of the last start; not part of the identity."""
    directories: str
    """The places of all directories of the bookie, in order."""
    place: str = ""
    """Of the one directory that the file is in; empty in the store."""

    def encode(self) -> bytes:
        node = pb.CookieNode(
            version=VERSION,
            bookie=self.bookie,
            instance=self.instance,
            directories=self.directories,
            cookie=self.cookie,
            address=self.address,
            place=self.place,
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
            node.bookie, node.instance, node.cookie, node.address, node.directories, node.place
        )

    def at(self, place: str) -> Self:
        """Return the same identity for the directory at *place*; "" is the store."""
        return replace(self, place=place)

    def is_same(self, other: Self) -> bool:
        """Whether both say the same of the whole bookie's data."""
        return replace(self, address="", place="") == replace(other, address="", place="")


def read_cookie(disk: Disk) -> Cookie | None:
    """Return the cookie of the directory, None if there is none.

    Raises `CookieDamaged`, and `StorageFailed` if the disk cannot be read."""
    path = disk.describe(PATH)
    try:
        file = disk.open(PATH)
        try:
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
        return Cookie.decode(body)
    except ValueError as error:
        raise CookieDamaged(path, _HEAD.size, str(error)) from error


def write_cookie(disk: Disk, cookie: Cookie) -> None:
    """Put *cookie* into the directory, in place of one that is there, as one step."""
    body = cookie.encode()
    try:
        file = disk.create(_NEW_PATH)
        try:
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
