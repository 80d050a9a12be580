"""The identity of a bookie's data: a cookie in each of its directories, and in the store.

A bookie that starts without data that it once acknowledged would say "no such entry" where it
has to say nothing; one such bookie is enough to lose entries (rules 74-76). So the cookie is
made once, when all directories and the store know nothing, and after that any difference
refuses the start. Each directory's cookie also says its place, as entries are found again only
where the numbers and the order of the directories stay.

Order of the first stamp: cookies into the directories, journals begun, cookie into the store;
a crash in between leaves directories without a single entry, and is simply repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import urandom
from typing import Final

from bookie.cookie import Cookie, read_cookie, write_cookie
from bookie.directories import Directories
from bookie.disk import Disk, DiskFull
from bookie.errors import (
    CookieMissing,
    DataMissing,
    DirectoriesChanged,
    DirectoriesMixed,
    DirectoryMisplaced,
    ForeignBookie,
    ForeignCluster,
    InvalidBookieName,
    StorageFailed,
)
from bookie.journal.recovery import is_new
from bookie.ledger_directory import DIRECTORIES
from bookie.recovery import initialise, is_blank
from ledger.errors import DamagedMetadata, NodeExists, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore, Versioned
from ledger.registry import COOKIES

_NO_COOKIE: Final = "it has no cookie"
_OTHER_COOKIE: Final = "its cookie is another one"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    cookie: Cookie
    """As it is in the main directory."""
    incarnation: str
    """Random, of this start (rule 75)."""


@dataclass(frozen=True, slots=True)
class _Stamped:
    """A directory, its place, and its cookie if it has one."""

    disk: Disk
    place: str
    cookie: Cookie | None

    @property
    def here(self) -> str:
        return self.disk.describe("")


async def identify(
    store: MetadataStore,
    directories: Directories,
    *,
    bookie: str,
    instance: str,
    address: str,
    entropy: Callable[[int], bytes] = urandom,
) -> Identity:
    """Check that *directories* hold the data of *bookie*, or make it so if nobody knows it.

    Takes the directories' locks. Call it before the storage is opened. Raises
    `DirectoryInUse`, a `WrongDirectory`, `InvalidBookieName`, a `FileDamaged`,
    `StorageFailed` if a disk fails, and what the store raises."""
    if not bookie or "/" in bookie or not bookie.isprintable():
        raise InvalidBookieName(bookie)
    directories.lock()
    try:
        return await _identify(store, directories, bookie, instance, address, entropy)
    except OSError as error:
        raise StorageFailed("checking the identity of the data", str(error)) from error


def places(directories: Directories) -> list[str]:
    """Return what each of `directories.every()` is to the bookie, in words that stay the same."""
    found = []
    for disk in directories.every():
        roles = ["main"] if disk is directories.main else []
        for role, disks in (("journal", directories.journals), ("ledger", directories.ledgers)):
            count = len(disks)
            roles += [f"{role} {at} of {count}" for at, d in enumerate(disks) if d is disk]
        found.append(", ".join(roles))
    return found


async def _identify(
    store: MetadataStore,
    directories: Directories,
    bookie: str,
    instance: str,
    address: str,
    entropy: Callable[[int], bytes],
) -> Identity:
    wanted = places(directories)
    stamped = [
        _Stamped(disk, place, read_cookie(disk))
        for disk, place in zip(directories.every(), wanted, strict=True)
    ]
    _check_owner(stamped, bookie, instance)
    stored = await _get(store, bookie)
    known = None if stored is None else _decode(stored.value, bookie)
    _check_together(stamped, known, "; ".join(wanted))
    if known is not None:
        cookie = known
    else:
        if not is_blank(directories):
            raise CookieMissing(", ".join(one.here for one in stamped), bookie)
        found = [one.cookie for one in stamped if one.cookie is not None]
        new = Cookie(bookie, instance, entropy(16).hex(), address, "; ".join(wanted))
        cookie = replace(found[0].at(""), address=address) if found else new
        _stamp(directories, stamped, cookie, entropy)
        known = _decode((await _create(store, cookie)).value, bookie)
        if not cookie.is_same(known):
            raise DataMissing(stamped[0].here, bookie, _OTHER_COOKIE)
    _check_begun(directories, bookie)
    if known.address != address:
        await store.set(f"{COOKIES}/{bookie}", replace(known, address=address).encode())
    cookie = replace(cookie, address=address)
    _tell_address(stamped, cookie)
    return Identity(cookie.at(wanted[0]), entropy(8).hex())


def _check_owner(stamped: list[_Stamped], bookie: str, instance: str) -> None:
    for one in stamped:
        if one.cookie is not None and one.cookie.instance != instance:
            raise ForeignCluster(one.here, one.cookie.instance, instance)
        if one.cookie is not None and one.cookie.bookie != bookie:
            raise ForeignBookie(one.here, one.cookie.bookie, bookie)


def _check_together(stamped: list[_Stamped], known: Cookie | None, wanted: str) -> None:
    """Check the directories' cookies against the store's, if it has one, and each other."""
    found = [(one, one.cookie) for one in stamped if one.cookie is not None]
    for one, cookie in found:
        if known is not None and cookie.cookie != known.cookie:
            raise DataMissing(one.here, known.bookie, _OTHER_COOKIE)
        first, first_cookie = found[0]
        if cookie.cookie != first_cookie.cookie:
            raise DirectoriesMixed(one.here, first.here)
        if cookie.directories != wanted:
            raise DirectoriesChanged(one.here, cookie.directories, wanted)
        if cookie.place != one.place:
            raise DirectoryMisplaced(one.here, cookie.place, one.place)
    if known is not None:
        for one in stamped:
            if one.cookie is None:
                raise DataMissing(one.here, known.bookie, _NO_COOKIE)
            if not one.cookie.is_same(known):
                raise DataMissing(one.here, known.bookie, _OTHER_COOKIE)


def _stamp(
    directories: Directories,
    stamped: list[_Stamped],
    cookie: Cookie,
    entropy: Callable[[int], bytes],
) -> None:
    for one in stamped:
        if one.cookie is None:
            write_cookie(one.disk, cookie.at(one.place))
    for disk in directories.ledgers:
        for name in DIRECTORIES:
            disk.make_directory(name)
        disk.sync_directory("")
    initialise(directories, entropy=entropy)


def _check_begun(directories: Directories, bookie: str) -> None:
    """What the first start made is there: a directory that was emptied is not a new one."""
    for disk in directories.journals:
        if is_new(disk):
            raise DataMissing(disk.describe(""), bookie, "it has no journal")
    for disk in directories.ledgers:
        here = disk.list("")
        for name in DIRECTORIES:
            if name not in here:
                raise DataMissing(disk.describe(""), bookie, f"it has no directory {name!r}")


def _tell_address(stamped: list[_Stamped], cookie: Cookie) -> None:
    """Write the address down, so that the next start chooses the same port."""
    for one in stamped:
        if one.cookie is None or one.cookie.address == cookie.address:
            continue
        try:
            write_cookie(one.disk, cookie.at(one.place))
        except DiskFull as error:  # a full disk can still be read from
            _log.warning("address_not_kept", directory=one.here, reason=str(error))


async def _get(store: MetadataStore, bookie: str) -> Versioned | None:
    path = f"{COOKIES}/{bookie}"
    await store.sync(path)  # a server that lags may not have heard of the start before
    try:
        return await store.get(path)
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
