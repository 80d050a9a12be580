"""The identity of a bookie's data: one cookie in its directory, the same in the metadata store.

A bookie that starts without data that it once acknowledged would say "no such entry" where it
has to say nothing; one such bookie is enough to lose entries (rules 74-76). So the cookie is
made once, when directory and store both know nothing, and after that any difference refuses
the start. Order of the first stamp: cookie into the directory, journal begun, cookie into the
store; a crash in between leaves a directory without a single entry, and is simply repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import urandom
from struct import Struct
from typing import Final, Self

from google.protobuf.message import DecodeError
from google_crc32c import value as crc32c

from bookie.disk import Disk
from bookie.errors import (
    CookieDamaged,
    CookieMissing,
    DataMissing,
    ForeignBookie,
    ForeignCluster,
    InvalidBookieName,
)
from bookie.journal.recovery import is_new
from bookie.recovery import initialise, is_blank
from ledger.errors import DamagedMetadata, NodeExists, NoSuchNode
from ledger.metastore.port import MetadataStore, Versioned
from ledger.registry import COOKIES
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
    directories: str = "."
    """What belongs together, relative to the bookie's directory."""

    def encode(self) -> bytes:
        node = pb.CookieNode(
            version=VERSION,
            bookie=self.bookie,
            instance=self.instance,
            directories=self.directories,
            cookie=self.cookie,
            address=self.address,
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
        return cls(node.bookie, node.instance, node.cookie, node.address, node.directories)

    def is_same(self, other: Self) -> bool:
        return replace(self, address="") == replace(other, address="")


@dataclass(frozen=True, slots=True)
class Identity:
    cookie: Cookie
    incarnation: str
    """Random, of this start (rule 75)."""


async def identify(
    store: MetadataStore,
    disk: Disk,
    *,
    bookie: str,
    instance: str,
    address: str,
    entropy: Callable[[int], bytes] = urandom,
) -> Identity:
    """Check that *disk* holds the data of *bookie*, or make it so if both know nothing.

    Takes the directory's lock. Call it before the storage is opened. Raises `DirectoryInUse`,
    a `WrongDirectory`, `InvalidBookieName`, a `FileDamaged`, and what the store raises."""
    if not bookie or "/" in bookie or not bookie.isprintable():
        raise InvalidBookieName(bookie)
    disk.lock()
    here = disk.describe("")
    local = read_cookie(disk)
    if local is not None and local.instance != instance:
        raise ForeignCluster(here, local.instance, instance)
    if local is not None and local.bookie != bookie:
        raise ForeignBookie(here, local.bookie, bookie)
    stored = await _get(store, bookie)
    if stored is None:
        if not is_blank(disk):
            raise CookieMissing(here, bookie)
        if local is None:
            local = Cookie(bookie, instance, entropy(16).hex(), address)
            _write(disk, local)
        initialise(disk, entropy=entropy)
        stored = await _create(store, local)
    remote = _decode(stored.value, bookie)
    if local is None:
        raise DataMissing(here, bookie, "it has no cookie")
    if not local.is_same(remote):
        raise DataMissing(here, bookie, "its cookie is another one")
    if is_new(disk):
        raise DataMissing(here, bookie, "it has no journal")
    if remote.address != address:
        await store.set(f"{COOKIES}/{bookie}", replace(remote, address=address).encode())
    if local.address != address:
        local = replace(local, address=address)
        _write(disk, local)
    return Identity(local, entropy(8).hex())


def read_cookie(disk: Disk) -> Cookie | None:
    """Return the cookie of the directory, None if there is none. Raises `CookieDamaged`."""
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return None
    try:
        data = file.read(file.size(), 0)
    finally:
        file.close()
    path = disk.describe(PATH)
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


def _write(disk: Disk, cookie: Cookie) -> None:
    body = cookie.encode()
    file = disk.create(_NEW_PATH)
    try:
        file.write([_HEAD.pack(_MAGIC, crc32c(body)), body], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(_NEW_PATH, PATH)
    disk.sync_directory("")


async def _get(store: MetadataStore, bookie: str) -> Versioned | None:
    try:
        return await store.get(f"{COOKIES}/{bookie}")
    except NoSuchNode:
        return None


async def _create(store: MetadataStore, cookie: Cookie) -> Versioned:
    """Create the node; if somebody was first, possibly this call itself, return theirs."""
    try:
        await store.create(f"{COOKIES}/{cookie.bookie}", cookie.encode())
    except NodeExists:
        return await store.get(f"{COOKIES}/{cookie.bookie}")
    return Versioned(cookie.encode(), 0)


def _decode(value: bytes, bookie: str) -> Cookie:
    try:
        return Cookie.decode(value)
    except ValueError as error:
        raise DamagedMetadata(f"{COOKIES}/{bookie}", str(error)) from error
