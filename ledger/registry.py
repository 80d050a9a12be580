"""Which bookies there are: their registrations, and a directory that is kept fresh.

A registration is an ephemeral node: a hint for placement, never a proof of life. One that cannot
be read hides its own bookie alone: it is logged and left out.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Self

from google.protobuf.message import DecodeError

from ledger.cluster import decode_instance
from ledger.errors import (
    BadVersion,
    BookieForgotten,
    DamagedMetadata,
    MetadataError,
    NamespaceMismatch,
    NodeExists,
    NoSuchNode,
    NotEnoughBookies,
)
from ledger.feature_level import FIRST, IDENTITIES, LEVEL_MAX
from ledger.ids import NOBODY, BookieIdentity
from ledger.log_events import get_logger
from ledger.metastore.ops import INSTANCE, name_of
from ledger.metastore.port import CheckOp, CreateOp, MetadataStore, Watch, children_of, create_node
from ledger.security.settings import Takes
from ledger.wire import metadata_pb2 as pb

AVAILABLE: Final = "/bookies/available"
READ_ONLY: Final = "/bookies/readonly"
COOKIES: Final = "/cookies"
DECOMMISSIONING: Final = "/bookies/decommissioning"
"""Has a node for each bookie that is to be emptied."""
FORMAT_VERSION: Final = 1
REFRESH_RETRY_S: Final = 0.5
REGISTER_TRIES_MAX: Final = 10
REASON_CHARACTERS_MAX: Final = 200
_PORT_MAX: Final = 65535
_WATCHED: Final = (AVAILABLE, READ_ONLY, COOKIES, DECOMMISSIONING, INSTANCE)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BookieRegistration:
    bookie: str
    address: str
    """host:port"""
    incarnation: str
    """Random, of one start of the process (rule 75)."""
    rack: str = ""
    read_only: bool = False
    operator_address: str = ""
    """host:port of its service for operators; empty: it has none."""
    takes: Takes = Takes.PLAIN
    """What connections its addresses take."""
    read_only_reason: str = ""
    """Why it is read-only, for people, up to `REASON_CHARACTERS_MAX`; empty: it does not say."""
    level: int = LEVEL_MAX
    """The highest level of the cluster that it reads."""
    identity: str = ""
    """The random identity of its data, as in its cookie; empty: it does not say."""
    life: int = 0
    """Which start of its data it is, as its cookie counts them; 0: it does not say."""
    instance: str = ""
    """Of the namespace, as in its cookie; empty: it does not say."""

    @property
    def path(self) -> str:
        return f"{READ_ONLY if self.read_only else AVAILABLE}/{self.bookie}"

    def encode(self) -> bytes:
        """Return the value of its node."""
        node = pb.BookieNode(
            version=FORMAT_VERSION,
            address=self.address,
            incarnation=self.incarnation,
            rack=self.rack,
            operator_address=self.operator_address,
            takes=self.takes,
            read_only_reason=self.read_only_reason[:REASON_CHARACTERS_MAX],
            level=self.level,
            identity=self.identity,
            life=self.life,
            instance=self.instance,
        )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, path: str, *, read_only: bool) -> Self:
        """Return what *value*, found at *path*, says. Raises `DamagedMetadata`."""
        try:
            node = pb.BookieNode.FromString(value)
        except DecodeError as error:
            raise DamagedMetadata(path, str(error)) from error
        if node.version != FORMAT_VERSION:
            raise DamagedMetadata(path, f"format version {node.version}")
        for address in (node.address, *filter(None, [node.operator_address])):
            host, _, port = address.rpartition(":")
            if not (host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
                raise DamagedMetadata(
                    path, f"{address[:100]!r} is no address of the form host:port"
                )
        return cls(
            name_of(path),
            node.address,
            node.incarnation,
            node.rack,
            read_only,
            node.operator_address,
            Takes(min(node.takes, Takes.TLS)),  # what came later is no less strict
            node.read_only_reason,
            node.level or FIRST,
            node.identity,
            node.life,
            node.instance,
        )

    @property
    def meant(self) -> BookieIdentity | None:
        """Who has to answer at its addresses; None: it does not say."""
        if not self.identity:
            return None
        return BookieIdentity(self.instance, self.identity, self.life)


async def register(store: MetadataStore, registration: BookieRegistration) -> None:
    """Announce the bookie as long as the store's present session lives.

    Requires that the caller owns the bookie's directories, so that a node that is still there
    was made by a process that is dead, or by this one in a session that was lost. It would
    vanish with its session later on (rule 79): it is replaced, not waited for.
    Raises `BookieForgotten` if the bookie has no cookie, or a retired one, or one of another
    identity than the registration's: in the same transaction. Raises `LevelTooNew` if it cannot
    read what the cluster may write, or is about to: in the same transaction too, so that no rise of
    the level misses it. Raises `DamagedMetadata`, `MetadataUnavailable`, `NodeExists`."""
    value = registration.encode()
    node_of_it = CreateOp(registration.path, value, ephemeral=True)
    for _ in range(REGISTER_TRIES_MAX):
        cookie = await _check_known(store, registration)
        gate = await _gate(store, registration.level)
        try:
            await store.multi((cookie, *gate, node_of_it))
        except BadVersion:
            continue  # the level, or the cookie, was changed meanwhile
        except NodeExists:
            await unregister(store, registration)
        except NoSuchNode as error:
            if error.path == cookie.path:
                raise BookieForgotten(registration.bookie) from error
            await create_node(store, READ_ONLY if registration.read_only else AVAILABLE)
        else:
            # What is announced now is the other way round from before, if there was a before.
            await unregister(store, replace(registration, read_only=not registration.read_only))
            return
    raise NodeExists(registration.path)


async def _check_known(store: MetadataStore, registration: BookieRegistration) -> CheckOp:
    """Return what holds as long as the bookie's cookie is as it is now, and the bookie's own.

    Raises `BookieForgotten`, `DamagedMetadata`, and what the store raises."""
    path = f"{COOKIES}/{registration.bookie}"
    await store.sync(path)  # a server that lags may show the cookie from before
    try:
        found = await store.get(path)
    except NoSuchNode as error:
        raise BookieForgotten(registration.bookie) from error
    node = _parsed_cookie(found.value, path)
    if node.retired_ms or registration.identity not in ("", node.cookie):
        raise BookieForgotten(registration.bookie)
    return CheckOp(path, found.version)


async def _gate(store: MetadataStore, reads: int) -> tuple[CheckOp, ...]:
    """Return what holds as long as the level is as it is now. Raises `LevelTooNew`."""
    try:
        found = await store.get(INSTANCE)
    except NoSuchNode:
        return ()  # lost: whoever opens the namespace says so
    decode_instance(found.value)[1].check_readable(reads)
    return (CheckOp(INSTANCE, found.version),)


async def find_registration(store: MetadataStore, bookie: str) -> BookieRegistration | None:
    """Return the registration that stands under the name of *bookie*, in either list.

    Raises `DamagedMetadata`, and what the store raises."""
    for root, read_only in ((AVAILABLE, False), (READ_ONLY, True)):
        path = f"{root}/{bookie}"
        try:
            value = (await store.get(path)).value
        except NoSuchNode:
            continue
        return BookieRegistration.decode(value, path, read_only=read_only)
    return None


async def unregister(store: MetadataStore, registration: BookieRegistration) -> None:
    """Take the announcement back, at once."""
    try:
        await store.delete(registration.path)
    except NoSuchNode:
        return


class BookieDirectory:
    """The bookies of the namespace, kept fresh by watches."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._registered: dict[str, BookieRegistration] = {}
        self._addresses: dict[str, str] = {}
        self.address: Callable[[str], str | None] = self._addresses.get
        """Returns where a bookie was last known to listen, or None; asked for each add."""
        self._takes: dict[str, Takes] = {}
        self._racks: dict[str, str] = {}
        """Last known, also of bookies that are gone: they may still answer."""
        self._identities: dict[str, BookieIdentity | None] = {}
        """Of those that are known now. None: of a release that does not say."""
        self._level = 0
        self._away: tuple[str, ...] = ()
        self._damaged: dict[str, DamagedMetadata] = {}
        self._reading = asyncio.Lock()
        """So that of two readings the later one counts."""
        self._changed = asyncio.Event()
        self._listeners: dict[Callable[[], None], None] = {}
        self.revision = 0
        """How often the list was read."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the list once, then keep it fresh. Raises `MetadataUnavailable`."""
        # Watched before it is read: what changes in between is read again.
        watches = [self._store.watch(path) for path in _WATCHED]
        started = False
        try:
            await self._refresh()
            started = True
        finally:
            if not started:
                for watch in watches:
                    watch.close()
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh(watches))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def available(self) -> tuple[BookieRegistration, ...]:
        """Return all registered bookies, read-only ones too, sorted by name."""
        return tuple(self._registered[name] for name in sorted(self._registered))

    def writable(self) -> tuple[str, ...]:
        """Return the names of the registered bookies that are not read-only, sorted."""
        return tuple(r.bookie for r in self.available() if not r.read_only)

    def shortage(self, needed: int, *, failed: Iterable[str] = ()) -> NotEnoughBookies:
        """Return the error of who needs *needed* bookies: what there is, and what is wrong with
        the others. *failed*: see `NotEnoughBookies`."""
        lacking = tuple(failed)
        return NotEnoughBookies(
            needed,
            [bookie for bookie in self.writable() if bookie not in lacking],
            failed=lacking,
            read_only={r.bookie: r.read_only_reason for r in self.available() if r.read_only},
            lost=[bookie for bookie in self._away if bookie not in self._registered],
        )

    def away(self) -> tuple[str, ...]:
        """Return the names of the bookies that may take entries again, sorted: known by a cookie,
        and not registered or read-only, and neither retired nor to be emptied."""
        return self._away

    def damaged(self) -> tuple[DamagedMetadata, ...]:
        """Return why registrations were left out, which cannot be read, sorted by path."""
        return tuple(self._damaged[path] for path in sorted(self._damaged))

    def takes(self, bookie: str) -> Takes | None:
        """Return what *bookie* last said that its addresses take; None: nothing is known of it."""
        return self._takes.get(bookie)

    def identity(self, bookie: str) -> BookieIdentity | None:
        """Return which bookie of the name is meant: whoever else answers is not believed.

        None: one of a release that does not say who it is, in a cluster that may have such. Of a
        bookie that is not registered the cookie says it."""
        if bookie in self._identities:
            return self._identities[bookie]
        return self._meant(None)

    def racks(self) -> Mapping[str, str]:
        """Return the rack that each bookie last registered with, also of those gone since."""
        return self._racks

    def on_change(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call *call* after each time that the list was read; return what ends that."""
        self._listeners[call] = None

        def end() -> None:
            self._listeners.pop(call, None)

        return end

    @property
    def level(self) -> int:
        """The feature level of the cluster (`ledger.feature_level`), as last read."""
        return self._level

    async def look_again(self) -> None:
        """Read the list as it is now. Raises `MetadataUnavailable`."""
        await self._store.sync(AVAILABLE)
        await self._refresh()

    async def wait_for(self, count: int, timeout_s: float) -> tuple[BookieRegistration, ...]:
        """Wait until *count* writable bookies are registered; return all.

        Raises `NotEnoughBookies` when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.writable()) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise self.shortage(count) from None
        return self.available()

    async def after(self, revision: int) -> None:
        """Return once the list was read again since it was at *revision*: it may have changed."""
        while self.revision <= revision:
            self._changed.clear()
            await self._changed.wait()

    async def _keep_fresh(self, watches: list[Watch]) -> None:
        changes = {watch: asyncio.ensure_future(watch.changed()) for watch in watches}
        try:
            while True:
                await asyncio.wait(changes.values(), return_when=asyncio.FIRST_COMPLETED)
                for watch, change in changes.items():
                    if change.done():
                        change.result()
                        changes[watch] = asyncio.ensure_future(watch.changed())
                await self._refresh_until_done()
        finally:
            for change in changes.values():
                change.cancel()
            for watch in watches:
                watch.close()

    async def _refresh_until_done(self) -> None:
        while True:
            try:
                await self._refresh()
            except (MetadataError, DamagedMetadata):
                await asyncio.sleep(REFRESH_RETRY_S)  # the last list stays; it is only a hint
            else:
                return

    async def _refresh(self) -> None:
        async with self._reading:
            await self._read()

    async def _read(self) -> None:
        await self._read_level()
        registered: dict[str, BookieRegistration] = {}
        damaged: dict[str, DamagedMetadata] = {}
        for root, read_only in ((READ_ONLY, True), (AVAILABLE, False)):
            for bookie in await children_of(self._store, root):
                try:
                    value = (await self._store.get(f"{root}/{bookie}")).value
                except NoSuchNode:
                    continue  # gone since it was listed
                try:
                    registered[bookie] = BookieRegistration.decode(
                        value, f"{root}/{bookie}", read_only=read_only
                    )
                except DamagedMetadata as error:
                    damaged[error.path] = error
        identities = {name: self._meant(r.meant) for name, r in registered.items()}
        away = await self._read_cookies(registered, identities)
        away += [name for name, found in registered.items() if found.read_only]
        leaving = await children_of(self._store, DECOMMISSIONING)
        for path, damage in damaged.items():
            if path not in self._damaged:
                _log.warning("registration_left_out", path=path, reason=damage.reason)
        self._registered, self._damaged = registered, damaged
        self._away = tuple(sorted(bookie for bookie in away if bookie not in leaving))
        self._addresses.update({name: r.address for name, r in registered.items()})
        self._racks.update({name: r.rack for name, r in registered.items()})
        self._takes.update({name: r.takes for name, r in registered.items()})
        self._identities = identities
        self.revision += 1
        self._changed.set()
        for call in list(self._listeners):
            call()

    async def _read_level(self) -> None:
        """Learn what the programs of the cluster can read; a level never falls."""
        if self._level < LEVEL_MAX:
            # An open of the namespace reports both; the directory goes by the last level.
            with suppress(NoSuchNode, NamespaceMismatch):
                held = decode_instance((await self._store.get(INSTANCE)).value)[1]
                self._level = held.level

    def _meant(self, said: BookieIdentity | None) -> BookieIdentity | None:
        """Return who is meant if *said* is what stands in the store: nobody, if every bookie has to
        say it and this one does not."""
        return NOBODY if said is None and self._level >= IDENTITIES else said

    async def _read_cookies(
        self,
        registered: Mapping[str, BookieRegistration],
        identities: dict[str, BookieIdentity | None],
    ) -> list[str]:
        """Return the bookies with a cookie that are not registered now, retired ones left out;
        learn their addresses, and put who they are into *identities*."""
        away: list[str] = []
        for bookie in await children_of(self._store, COOKIES):
            if bookie in registered:
                continue
            try:
                value = (await self._store.get(f"{COOKIES}/{bookie}")).value
                cookie = pb.CookieNode.FromString(value)
            except (NoSuchNode, DecodeError):
                continue
            if cookie.retired_ms:
                self._addresses.pop(bookie, None)
                continue
            said = BookieIdentity(cookie.instance, cookie.cookie, cookie.life)
            identities[bookie] = self._meant(said if cookie.cookie else None)
            if cookie.address:
                self._addresses[bookie] = cookie.address
            away.append(bookie)
        return away


class Retirement(Enum):
    """How far a name is given up."""

    NONE = "not retired"
    RETIRED = "retired"
    """No bookie ever has the name again; ledgers may name it."""
    EMPTIED = "retired and emptied"
    """As above, and no ledger named it when that was written."""


async def retirement_of(store: MetadataStore, bookie: str) -> Retirement:
    """Return what the cookie of *bookie* says; one that cannot be read retires nobody.

    Raises `MetadataUnavailable`."""
    try:
        value = (await store.get(f"{COOKIES}/{bookie}")).value
        node = pb.CookieNode.FromString(value)
    except (NoSuchNode, DecodeError):
        return Retirement.NONE
    if not node.retired_ms:
        return Retirement.NONE
    return Retirement.EMPTIED if node.emptied_ms else Retirement.RETIRED


def retired_cookie(
    value: bytes, path: str, *, why: str, now_ms: int, emptied: bool = False
) -> bytes:
    """Return the cookie *value* of a name that no bookie ever has again: small, and with the
    identity that the name had. *emptied*: no ledger names it. Raises `DamagedMetadata`."""
    node = _parsed_cookie(value, path)
    if not node.retired_ms:
        node.retired_ms, node.retired_why = now_ms, why
        for field in ("address", "census", "limbo"):
            node.ClearField(field)
    if emptied and not node.emptied_ms:
        node.emptied_ms = now_ms
    return node.SerializeToString(deterministic=True)


def _parsed_cookie(value: bytes, path: str) -> pb.CookieNode:
    try:
        return pb.CookieNode.FromString(value)
    except DecodeError as error:
        raise DamagedMetadata(path, str(error)) from error


async def limbo_of(store: MetadataStore, bookies: Iterable[str]) -> dict[str, str]:
    """Return the reason of each of *bookies* that is in limbo.

    Raises `MetadataUnavailable`; a cookie that cannot be read says nothing."""
    reasons: dict[str, str] = {}
    for bookie in bookies:
        try:
            limbo = pb.CookieNode.FromString((await store.get(f"{COOKIES}/{bookie}")).value).limbo
        except (NoSuchNode, DecodeError):
            continue
        if limbo:
            reasons[bookie] = limbo
    return reasons
