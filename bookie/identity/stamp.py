"""The identity of a bookie's data: a cookie in each of its directories, and in the store.

A bookie that starts without data that it once acknowledged would say "no such entry" where it
has to say nothing; one such bookie is enough to lose entries (rules 74-76). So the cookie is
made once, when all directories and the store know nothing, and after that any difference
refuses the start. Each directory's cookie also says its place, as entries are found again only
where the numbers and the order of the directories stay. That they are the newest data is shown
by the life that the cookies and the store know (`bookie.identity.lives`), by the number of the last
checkpoint, and by the cookie's file being the one that was written, not a copy of it.

Order of the first stamp: cookies into the directories, journals begun, cookie into the store;
a crash in between leaves directories without a single entry, and is simply repeated.
Order of every start: all is checked, and nothing written; the token of this start into all
directories, with those of earlier ones that may or may not count; from the
token of the last life to this one in the store, by compare-and-swap; into the directories that
it counts. A crash anywhere leaves what the next start accepts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from os import urandom
from typing import Final

from bookie.disk.port import Directories, Disk, is_same_file
from bookie.errors import (
    BookieRetired,
    CensusDamaged,
    CookieMissing,
    DataCopied,
    DataMissing,
    DataOutdated,
    DirectoriesChanged,
    DirectoriesMixed,
    DirectoryMisplaced,
    ForeignBookie,
    ForeignCluster,
    InvalidBookieName,
    StorageFailed,
    StoreOutdated,
)
from bookie.identity.cookie import Cookie, read_cookie_file, write_cookie
from bookie.identity.lives import Claim
from bookie.identity.restore import Restore, read_restore
from bookie.journal.recovery import is_new
from bookie.loss.census import read_census
from bookie.storage.ledger_directory import DIRECTORIES
from bookie.storage.replay import initialise, is_blank
from ledger.errors import BadVersion, BookieForgotten, DamagedMetadata, NodeExists, NoSuchNode
from ledger.metastore.port import MetadataStore, Versioned
from ledger.registry import COOKIES

_NO_COOKIE: Final = "it has no cookie"
_OTHER_COOKIE: Final = "its cookie is another one"
_TRIES_MAX: Final = 16
"""Starts that ended before they knew whether they counted: so many of their tokens are kept, beside
that of the one that the store has counted."""


@dataclass(frozen=True, slots=True)
class Identity:
    cookie: Cookie
    """As it is in the main directory, of this life."""
    incarnation: str
    """Random, of this start (rule 75)."""
    claim: Claim
    """This life's node in the store."""
    doubt: str | None
    """Why something that was promised may be missing; None: these are the newest data. Asked of
    the directories at each start, until `settle_doubt`."""
    restored: Restore | None = None
    """The store is older than these data; set at each start until it is honoured."""


@dataclass(frozen=True, slots=True)
class _Stamped:
    """A directory, its place, and its cookie if it has one."""

    disk: Disk
    place: str
    cookie: Cookie | None
    file: str
    """The identity of the cookie's file."""

    @property
    def here(self) -> str:
        return self.disk.describe("")

    @property
    def is_original(self) -> bool:
        """Whether this is the file that was written, as far as that can be known."""
        written = "" if self.cookie is None else self.cookie.file
        return not written or is_same_file(self.file, written)


async def alone() -> None:
    """What `identify` waits for by default: nothing."""


async def identify(
    store: MetadataStore,
    directories: Directories,
    *,
    bookie: str,
    instance: str,
    address: str,
    entropy: Callable[[int], bytes] = urandom,
    until_alone: Callable[[], Awaitable[None]] = alone,
) -> Identity:
    """Check that *directories* hold the newest data of *bookie*, or make it so if nobody knows it;
    then count this start.

    Takes the directories' locks. Call it before the storage is opened. *until_alone* is waited
    for where the locks do not show that nobody else uses the same data: it returns when no
    bookie is registered under the name, or raises. Raises `DirectoryInUse`, a `WrongDirectory`,
    `InvalidBookieName`, a `FileDamaged`, `StorageFailed` if a disk fails, `BookieForgotten`, and
    what the store raises."""
    if not bookie or "/" in bookie or not bookie.isprintable():
        raise InvalidBookieName(bookie)
    directories.lock()
    try:
        stamped, node, restore = await _check(
            store, directories, bookie, instance, address, entropy
        )
        restored = restore if _is_news(stamped, node, restore) else None
        doubt = next((c.doubt for one in stamped if (c := one.cookie) and c.doubt), None)
        systems = {one.disk.where() for one in stamped}
        moved = systems != {c.system for one in stamped if (c := one.cookie)}
        if doubt is not None or restored is not None or moved:
            await until_alone()
        number = _checkpoint(directories)

        def counted(known: Cookie) -> Cookie:
            known = replace(known, address=address, life=_newest_life(stamped, known), tries=())
            return known if doubt is None else replace(known, checkpoint=number, census=b"")

        claim = await _count(store, stamped, node, counted, entropy(16).hex())
    except NoSuchNode as error:  # it was emptied before, and forgotten just now
        raise BookieForgotten(bookie) from error
    except OSError as error:
        raise StorageFailed("checking the identity of the data", str(error)) from error
    cookie = _of_life(claim.cookie, stamped[0])
    return Identity(cookie, entropy(8).hex(), claim, doubt, restored)


def settle_doubt(directories: Directories) -> None:
    """Let the next start not hear of the operator's doubt: it is kept elsewhere, durably.

    Raises `OSError`, a `FileDamaged`."""
    _doubt(directories, "")


def mark_clean(directories: Directories, claim: Claim) -> bool:
    """Write down that the life of *claim* has ended; return whether it is still the last one here.

    Requires the directories' locks, and that the storage is closed. Raises `OSError`, a
    `FileDamaged`, `StorageFailed`."""
    stamped = [_read(disk, "") for disk in directories.every()]
    for one in stamped:
        if one.cookie is None or one.cookie.token != claim.cookie.token or one.cookie.tries:
            return False
    for one in stamped:
        assert one.cookie is not None, "asked above"
        write_cookie(one.disk, replace(one.cookie, clean=True))
    return True


def accept_loss(directories: Directories, reason: str) -> Cookie:
    """Let the next start go on with data that may not be the newest, doubting them for *reason*.

    Requires the directories' locks. Returns the main directory's cookie. Raises `DataMissing` for a
    directory without one, `OSError`, a `FileDamaged`, `StorageFailed`."""
    return _doubt(directories, reason)


def _doubt(directories: Directories, reason: str) -> Cookie:
    stamped = [_read(disk, "") for disk in directories.every()]
    name = next((one.cookie.bookie for one in stamped if one.cookie is not None), "")
    cookies = []
    for one in stamped:
        if one.cookie is None:
            raise DataMissing(one.here, name, _NO_COOKIE)
        cookies.append(replace(one.cookie, doubt=reason))
    for one, cookie in zip(stamped, cookies, strict=True):
        write_cookie(one.disk, cookie)
    return cookies[0]


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


async def _check(
    store: MetadataStore,
    directories: Directories,
    bookie: str,
    instance: str,
    address: str,
    entropy: Callable[[int], bytes],
) -> tuple[list[_Stamped], Versioned, Restore | None]:
    """Return the directories with their cookies, the store's node, both made if nobody knew them,
    and the last restore of the store that was accepted."""
    wanted = places(directories)
    stamped = [_read(disk, place) for disk, place in zip(directories.every(), wanted, strict=True)]
    _check_owner(stamped, bookie, instance)
    node = await _get(store, bookie)
    restore = await read_restore(store)
    known = None if node is None else _decode(node.value, bookie)
    if known is not None and known.is_retired:
        raise BookieRetired(bookie, known.retired_why)
    _check_together(stamped, known, "; ".join(wanted))
    if node is None or known is None:
        found = [one.cookie for one in stamped if one.cookie is not None]
        new = Cookie(bookie, instance, entropy(16).hex(), address, "; ".join(wanted))
        first = found[0] if found else None
        if first and first.token and restore is not None and first.restore != restore.token:
            cookie = replace(new, cookie=first.cookie)  # it joined after the backup was made
            _check_together(stamped, cookie, "; ".join(wanted))
        elif any(cookie.token for cookie in found) or not is_blank(directories):
            raise CookieMissing(", ".join(one.here for one in stamped), bookie)
        else:
            if restore is not None:
                new = replace(new, restore=restore.token)
            cookie = replace(new, cookie=found[0].cookie) if found else new
            stamped = _stamp(directories, stamped, cookie, entropy)
        node = await _create(store, cookie)
        known = _decode(node.value, bookie)
        if known.is_retired:
            raise BookieRetired(bookie, known.retired_why)
        if not cookie.is_same(known):
            raise DataMissing(stamped[0].here, bookie, _OTHER_COOKIE)
    _check_begun(directories, bookie)
    if not any(one.cookie and one.cookie.doubt for one in stamped):
        is_restored = _is_news(stamped, node, restore)
        _check_newest(stamped, known, directories, is_restored=is_restored)
    return stamped, node, restore


def _is_news(stamped: list[_Stamped], node: Versioned, restore: Restore | None) -> bool:
    """Whether an operator accepted a restore of the store that these data have not honoured."""
    if restore is None:
        return False
    cookies = [one.cookie for one in stamped if one.cookie is not None]
    is_ended = _decode(node.value, "").token == restore.token
    return any(c.token for c in cookies) and (
        is_ended or any(c.restore != restore.token for c in cookies)
    )


def _newest_life(stamped: list[_Stamped], known: Cookie) -> int:
    """Return the last life that directories or store know: beside a restored store, the former."""
    return max(known.life, *(one.cookie.life for one in stamped if one.cookie is not None))


def _check_not_older(stamped: list[_Stamped], known: Cookie) -> None:
    """Check that the directories are of one life, and of none before those that a restored store
    has seen."""
    cookies = [one.cookie for one in stamped if one.cookie is not None]
    newest = max(cookies, key=lambda cookie: cookie.life)
    for one, cookie in zip(stamped, cookies, strict=True):
        if newest.token != cookie.token and newest.token not in cookie.tries:
            story = f"of its start {cookie.life}, and others of its start {newest.life}"
            raise DataOutdated(one.here, known.bookie, story)
        seen = {known.token, *known.tries}
        is_seen = newest.life > known.life or not seen.isdisjoint((cookie.token, *cookie.tries))
        if not is_seen and known.token:
            story = f"of its start {cookie.life}, and the cluster has seen start {known.life}"
            raise DataOutdated(one.here, known.bookie, story)


def _check_newest(
    stamped: list[_Stamped], known: Cookie, directories: Directories, *, is_restored: bool = False
) -> None:
    """Check that nothing was promised after what is in the directories, as far as a store knows
    that may be restored, and that they are no copy."""
    if is_restored:
        _check_not_older(stamped, known)
    else:
        _check_lives(stamped, known)
    number = _checkpoint(directories)
    if number < known.checkpoint:
        story = f"of its checkpoint {number}, and the cluster has seen {known.checkpoint}"
        raise DataOutdated(directories.main.describe(""), known.bookie, story)
    for one in stamped:
        assert one.cookie is not None, "every directory is stamped"
        untouched = known.clean and one.cookie.clean and number == known.checkpoint
        if not one.is_original and not untouched:
            raise DataCopied(one.here, known.bookie)


def _check_lives(stamped: list[_Stamped], known: Cookie) -> None:
    """Check that no start was counted after those that the directories know."""
    for one in stamped:
        assert one.cookie is not None, "every directory is stamped"
        if known.token == one.cookie.token or known.token in one.cookie.tries:
            continue
        if one.cookie.life > known.life:
            raise StoreOutdated(one.here, known.bookie, one.cookie.life, known.life)
        story = f"of its start {one.cookie.life}, and the cluster has seen start {known.life}"
        raise DataOutdated(one.here, known.bookie, story)


async def _count(
    store: MetadataStore,
    stamped: list[_Stamped],
    node: Versioned,
    change: Callable[[Cookie], Cookie],
    token: str,
) -> Claim:
    """Count the start with *token*, in the directories and, with *change*, in the store."""
    known = _decode(node.value, "")
    tried: set[str] = set()
    for one in stamped:
        assert one.cookie is not None, "every directory is stamped"
        tried.update(one.cookie.tries)
        begun = (*one.cookie.tries, token)
        # The one that the store has counted is never dropped: these data are known by it.
        dropped = {t for t in begun[:-_TRIES_MAX] if t != known.token}
        tries = tuple(t for t in begun if t not in dropped)
        write_cookie(one.disk, replace(one.cookie, tries=tries))
    claim: Claim | None = None
    while claim is None:  # others that write have but a few requests that may be late
        life = change(known)
        life = replace(life, life=life.life + 1, token=token, clean=False)
        path = f"{COOKIES}/{known.bookie}"
        try:
            claim = Claim(life, await store.set(path, life.encode(), version=node.version))
        except BadVersion:
            # By this very start, by an earlier one whose request was late, or by that of a copy.
            await store.sync(path)
            node = await store.get(path)
            before, known = known, _decode(node.value, known.bookie)
            if known.is_retired:
                raise BookieRetired(known.bookie, known.retired_why) from None
            if known.token == token:  # our own request, which was sent twice
                claim = Claim(known, node.version)
            elif known.token not in {before.token, *tried}:
                story = f"they have just been used at {known.address}"
                raise DataOutdated(stamped[0].here, known.bookie, story) from None
    for one in stamped:
        write_cookie(one.disk, _of_life(claim.cookie, one))
    return claim


def _of_life(life: Cookie, one: _Stamped) -> Cookie:
    """Return the cookie of a directory in the life that the store's node names."""
    assert one.cookie is not None, "every directory is stamped"
    return replace(
        one.cookie,
        address=life.address,
        life=life.life,
        token=life.token,
        clean=False,
        tries=(),
        system=one.disk.where(),
    )


def _checkpoint(directories: Directories) -> int:
    """Return the number of the last census in the directories; 0 if it is gone or damaged: then
    nothing shows that they are the newest, and an operator may accept that."""
    try:
        census = read_census(directories.main)
    except CensusDamaged:
        return 0
    return 0 if census is None else census.number


def _read(disk: Disk, place: str) -> _Stamped:
    found = read_cookie_file(disk)
    cookie, file = (None, "") if found is None else found
    return _Stamped(disk, place, cookie, file)


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
        if known is not None and not cookie.is_same(known):
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


def _stamp(
    directories: Directories,
    stamped: list[_Stamped],
    cookie: Cookie,
    entropy: Callable[[int], bytes],
) -> list[_Stamped]:
    for one in stamped:
        if one.cookie is None:
            here = replace(cookie, place=one.place, system=one.disk.where())
            write_cookie(one.disk, here)
    for disk in directories.ledgers:
        for name in DIRECTORIES:
            disk.make_directory(name)
        disk.sync_directory("")
    initialise(directories, entropy=entropy)
    return [_read(one.disk, one.place) for one in stamped]


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
