"""Makes the directories of a bookie ready for a first start, or empties them for another one.

Order of a wipe: the cookies first, so that what a crash leaves is refused by every start; then
the data; last the name is retired in the metadata store. Only what bookies make is removed.
"""

import shutil
from dataclasses import dataclass
from typing import Final

from bookie.collector import store_memory
from bookie.disk.port import Directories, RealDisk
from bookie.errors import CookieDamaged, ForeignCluster
from bookie.identity import cookie
from bookie.identity.cookie import Cookie, read_cookie
from bookie.loss import census
from bookie.server import read_only
from bookie.storage.ledger_directory import DIRECTORIES
from bookie.storage.replay import initialise
from bookie.tools.offline import OWN_NAMES, BookieRegistered, DataThere
from ledger.cluster import open_namespace
from ledger.errors import DamagedMetadata, NoSuchNode
from ledger.log_events import now_ms
from ledger.metastore.port import MetadataStore
from ledger.registry import AVAILABLE, COOKIES, READ_ONLY, retired_cookie

_FILES: Final = (
    cookie.PATH,
    f"{cookie.PATH}.tmp",
    census.PATH,
    f"{census.PATH}.tmp",
    census.LIMBO_PATH,
    f"{census.LIMBO_PATH}.tmp",
    read_only.PATH,
    store_memory.PATH,
    store_memory.NEW_PATH,
)

_WIPED: Final = "its data were wiped, and an operator said that they are given up"


@dataclass(frozen=True, slots=True)
class Formatted:
    directories: tuple[str, ...]
    wiped: tuple[str, ...]
    """Files and directories that were removed."""
    cookie: Cookie | None
    """Whose data they were, as far as a cookie said so."""


def contents(directories: Directories) -> list[str]:
    """Return where there is something of a bookie."""
    return [
        disk.describe(name)
        for disk in directories.every()
        for name in disk.list("")
        if name in OWN_NAMES
    ]


def owner(directories: Directories) -> Cookie | None:
    """Return the first cookie that can be read."""
    for disk in directories.every():
        try:
            found = read_cookie(disk)
        except CookieDamaged:
            continue
        if found is not None:
            return found
    return None


def format_directories(directories: Directories, *, wipe: bool) -> Formatted:
    """Make empty directories ready; first empty them if *wipe*.

    Requires that the directories are locked. Raises `DataThere`; `OSError`, after which it may be
    done again."""
    there = contents(directories)
    if there and not wipe:
        raise DataThere(there[0], "data of a bookie")
    found = owner(directories)
    disks = directories.every()
    for disk in disks:
        for name in _FILES:
            if name in disk.list(""):
                disk.remove(name)
        disk.sync_directory("")
    for disk in disks:
        assert isinstance(disk, RealDisk), "directories can be removed from real disks only"
        for name in OWN_NAMES:
            if (disk.root / name).is_dir():
                shutil.rmtree(disk.root / name)
        disk.sync_directory("")
    for disk in directories.ledgers:
        for name in DIRECTORIES:
            disk.make_directory(name)
        disk.sync_directory("")
    initialise(directories)
    return Formatted(tuple(disk.describe("") for disk in disks), tuple(there), found)


async def check_forgettable(store: MetadataStore, bookie: str, known: Cookie | None) -> None:
    """Raise `ForeignCluster` if the data are of another cluster, `BookieRegistered` if a
    bookie of that name runs, wherever."""
    namespace = await open_namespace(store)
    if known is not None and known.instance != namespace.instance:
        raise ForeignCluster("the data", known.instance, namespace.instance)
    for parent in (AVAILABLE, READ_ONLY):
        if await store.exists(f"{parent}/{bookie}") is not None:
            raise BookieRegistered(bookie)


async def retire(
    store: MetadataStore, bookie: str, known: Cookie | None, *, why: str = _WIPED
) -> bool:
    """Let the name *bookie* be of data that were given up, for ever: ledgers may still count on
    what it had promised, and a bookie that came back under it would deny that. Return whether
    the cluster knows it.

    If the cluster's cookie is of other data than *known*, it stays. Raises `DamagedMetadata`,
    `BadVersion` if somebody changed the node meanwhile, and what the store raises."""
    path = f"{COOKIES}/{bookie}"
    await store.sync(path)
    try:
        found = await store.get(path)
        cookie = Cookie.decode(found.value)
    except NoSuchNode:
        return False
    except ValueError as error:
        raise DamagedMetadata(path, str(error)) from error
    if known is not None and cookie.cookie != known.cookie:
        return False
    if not cookie.is_retired:
        node = retired_cookie(found.value, path, why=why, now_ms=now_ms())
        await store.set(path, node, version=found.version)
    return True
