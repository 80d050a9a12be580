"""Disks that are not what they were: backups brought back, copies used elsewhere, names given up.

Production code decides about each of them; what it has to decide is known here from what was
done to the disk, and from what the metadata store truly holds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bookie.disk.port import Directories
from bookie.errors import (
    BookieRunning,
    BookieSuperseded,
    FileDamaged,
    StorageFailed,
    WrongDirectory,
)
from bookie.identity import stamp
from bookie.identity.cookie import Cookie, read_cookie
from bookie.identity.lives import Claim, report, with_census
from bookie.loss.census import read_census
from bookie.tools.format import retire
from ledger.errors import MetadataError, MetadataUnavailable, NoSuchNode
from ledger.registry import COOKIES
from tests.simulation.disk import SimDisk
from tests.simulation.kernel.host import Host
from tests.simulation.store import SimStore, drive

if TYPE_CHECKING:
    from bookie.loss.census import Census
    from tests.simulation.bookie import SimBookie
    from tests.simulation.cluster import Cluster

REFUSALS: Final = (BookieRunning, FileDamaged, WrongDirectory)


class TwoOfOneIdentity(Exception):
    """Two processes answer for the same data."""


def known(cluster: "Cluster", name: str) -> Cookie | None:
    """Return what the store holds of a bookie, asked of nobody."""
    path = f"{COOKIES}/{name}"
    if cluster.metadata.tree.exists(path) is None:
        return None
    return Cookie.decode(cluster.metadata.tree.get(path).value)


def in_window(cluster: "Cluster", name: str, backup: SimDisk) -> bool:
    """Whether *backup* is a snapshot of this life, younger than the last checkpoint that was
    reported: nothing but its files being others distinguishes it from the newest data
    (docs/bookie.md)."""
    stored, here, number = known(cluster, name), cookie_of(backup), _checkpoint(backup)
    if stored is None or here is None:
        return True
    return stored.token in (here.token, *here.tries) and stored.checkpoint <= number


def cookie_of(disk: SimDisk) -> Cookie | None:
    """Return the cookie of a disk, None if there is none that is whole."""
    try:
        return read_cookie(disk)
    except FileDamaged:
        return None


def _checkpoint(disk: SimDisk) -> int:
    try:
        census = read_census(disk)
    except FileDamaged:
        return 0
    return 0 if census is None else census.number


async def told(store: SimStore, claim: Claim, census: "Census", *, clean: bool = False) -> Claim:
    """Report *census* to the store, as `LifeKeeper` does; return the claim as it is then."""

    def change(cookie: Cookie) -> Cookie:
        newest = with_census(cookie, census)
        return replace(newest, clean=True) if clean else newest

    try:
        return await report(store, claim, change)
    except (MetadataUnavailable, NoSuchNode):  # the latter: it was forgotten, and goes on
        return claim  # reported with the next one


def start_copy(bookie: "SimBookie", cluster: "Cluster", copy: SimDisk) -> None:
    """Let a process elsewhere start on a copy of what *bookie* has; it must be refused."""
    if cluster.scheduler.chance(0.5):
        copy.system = "elsewhere"
    host = Host(cluster.scheduler, f"{bookie.name}'")
    store = SimStore(cluster.metadata, host)

    async def until_alone() -> None:
        for path in ("/bookies/available", "/bookies/readonly"):
            if await store.exists(f"{path}/{bookie.name}") is not None:
                raise BookieRunning(bookie.name, "", 0.0)

    async def start() -> str:
        try:
            await stamp.identify(
                store,
                Directories.single(copy),
                bookie=bookie.name,
                instance="simulated",
                address=f"{host.name}:3181",
                entropy=cluster.scheduler.random.randbytes,
                until_alone=until_alone,
            )
        except REFUSALS as refusal:
            return type(refusal).__name__
        except MetadataError:
            return "could not ask"
        return ""

    def done(refusal: str) -> None:
        if not refusal:
            raise TwoOfOneIdentity(bookie.name)
        cluster.scheduler.note(host.name, f"is not started: {refusal}")
        if refusal != "could not ask":
            cluster.scheduler.mark("copy_refused")

    drive(start(), done)


def start_anew(cluster: "Cluster", name: str) -> None:
    """Let somebody start an empty bookie under the *name* of one that left; it must be refused."""
    host = Host(cluster.scheduler, f"new {name}")

    async def start() -> str:
        try:
            await stamp.identify(
                SimStore(cluster.metadata, host),
                Directories.single(SimDisk(cluster.scheduler.random)),
                bookie=name,
                instance="simulated",
                address=f"{host.name}:3181",
                entropy=cluster.scheduler.random.randbytes,
            )
        except REFUSALS as refusal:
            return type(refusal).__name__
        except MetadataError:
            return "could not ask"
        return ""

    def done(refusal: str) -> None:
        if not refusal:
            raise TwoOfOneIdentity(name)
        cluster.scheduler.note(host.name, f"is not started: {refusal}")
        if refusal != "could not ask":
            cluster.scheduler.mark("used_name_refused")

    drive(start(), done)


def retire_name(cluster: "Cluster", name: str, on_done: Callable[[], None]) -> None:
    """Let an operator say that the data of *name* are given up; he may not reach the store."""

    async def retired() -> bool:
        try:
            return await retire(SimStore(cluster.metadata, cluster.operator), name, None)
        except MetadataError:
            return False

    def done(was_known: bool) -> None:
        if was_known:
            cluster.scheduler.mark("name_retired")
        on_done()

    drive(retired(), done)


def stop_cleanly(bookie: "SimBookie", cluster: "Cluster", on_done: Callable[[bool], None]) -> None:
    """End *bookie* as SIGTERM does; *on_done* hears whether all know that it was clean."""
    bookie.storage.checkpoint()
    bookie.storage.close()
    try:
        marked = stamp.mark_clean(Directories.single(bookie.disk), bookie.claim)
        assert marked, "nobody else uses its disk"
    except (OSError, StorageFailed, FileDamaged):
        marked = False  # it ends without a word
    census, claim = bookie.storage.census, bookie.claim
    bookie.crash()  # nothing of it runs any more, and all of it was synced
    if not marked:
        on_done(False)
        return

    async def is_told() -> bool:
        store = SimStore(cluster.metadata, cluster.operator)  # in its place
        try:
            return (await told(store, claim, census, clean=True)).cookie.clean
        except BookieSuperseded:
            return False  # it was started again meanwhile

    drive(is_told(), on_done)
