"""The level of a cluster in its metadata store: who can read what, and the rise itself.

A rise has three steps, so that nobody slips in between. First `/instance` says where it is to go:
from then on no bookie registers that cannot read that (`ledger.registry` has the node checked in
the transaction that registers). Then those that are registered are looked at, ledgers get owner
nodes if the level demands them, and only then does the level rise; if somebody cannot read it, the
first step is taken back. Whoever does the same at the same time, or finds a rise that was not
finished, goes on from what stands there.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.cluster import decode_instance, encode_instance, open_namespace
from ledger.delays import Backoff
from ledger.errors import (
    BadVersion,
    CannotUpgrade,
    DamagedMetadata,
    LevelTooNew,
    MetadataError,
    NoNamespace,
    NoSuchNode,
)
from ledger.feature_level import LEVEL_MAX, LEVELS, OWNERS, BookieLevel, ClusterLevel, obstacles
from ledger.manager import LedgerStore
from ledger.membership import KnownBookie, Membership, attendance
from ledger.metastore.ops import INSTANCE
from ledger.metastore.port import MetadataStore

TRIES_MAX: Final = 10
_RETRY_S_MIN: Final = 0.5
_RETRY_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Survey:
    """Who can read what."""

    held: ClusterLevel
    standings: tuple[BookieLevel, ...]
    """Of all bookies that were not retired, by name."""
    left_out: int = 0
    """Bookies that were not looked at, as there are too many."""

    def obstacles(self, level: int) -> Sequence[str]:
        return list(obstacles(level, self.standings, left_out=self.left_out))


@dataclass(frozen=True, slots=True)
class Risen:
    before: int
    level: int
    late: tuple[str, ...] = ()
    """Bookies of a release before levels that had begun to start before: see that they end."""


async def read_held(store: MetadataStore) -> ClusterLevel:
    """Return what the store says of the level, also if this program cannot read it.

    Raises `NoNamespace`, `NamespaceMismatch`, `DamagedMetadata`, `MetadataUnavailable`."""
    return (await _read(store))[1]


async def until_level(store: MetadataStore, level: int, reached: Callable[[], None]) -> None:
    """Call *reached* once the cluster is at *level*, however long that takes."""
    watch = store.watch(INSTANCE)
    backoff = Backoff(_RETRY_S_MIN, _RETRY_S_MAX)
    try:
        while True:
            try:
                held = await read_held(store)
            except (MetadataError, NoNamespace, DamagedMetadata):
                await asyncio.sleep(backoff.next())
                continue
            if held.level >= level:
                reached()
                return
            backoff.reset()
            await watch.changed()
    finally:
        watch.close()


async def survey(store: MetadataStore) -> Survey:
    """Return who can read which level. Raises as `read_held`."""
    await store.sync(INSTANCE)
    return _survey(await read_held(store), await attendance(store))


async def raise_level(
    store: MetadataStore,
    level: int = LEVEL_MAX,
    *,
    progress: Callable[[int], None] = lambda _owned: None,
) -> Risen:
    """Raise the cluster to *level*, if everybody can read it; no error if it is there already.
    *progress* hears, now and then, how many ledgers have owner nodes.

    Raises `CannotUpgrade`: nothing has changed then; `LevelTooNew` if this program cannot read
    *level* itself; `BadVersion` if others were faster very many times; and as `read_held`."""
    if level > LEVEL_MAX:
        raise LevelTooNew(level, LEVEL_MAX)
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            return await _raise(store, level, progress)
        except BadVersion:
            if not tries_left:
                raise
    raise AssertionError


async def _raise(store: MetadataStore, level: int, progress: Callable[[int], None]) -> Risen:
    await store.sync(INSTANCE)
    instance, held, version = await _read(store)
    held.check_readable()
    if held.level >= level:
        return Risen(held.level, held.level)
    needs = LEVELS[level].release
    shut = held
    if held.raising_to < level:
        _check(_survey(held, await attendance(store)), level)  # or nobody is kept out for nothing
        shut = ClusterLevel(held.level, level, needs)
        version = await store.set(INSTANCE, encode_instance(instance, shut), version)
    try:
        _check(_survey(shut, await attendance(store)), level)
        if held.level < OWNERS <= level:
            await _write_owners(store, held, level, progress)
    except CannotUpgrade:
        opened = ClusterLevel(held.level, needs=held.needs)
        await store.set(INSTANCE, encode_instance(instance, opened), version)
        raise
    await store.set(INSTANCE, encode_instance(instance, ClusterLevel(level, needs=needs)), version)
    after = _survey(ClusterLevel(level), await attendance(store))
    late = tuple(
        each.bookie
        for each in after.standings
        if each.reads is not None and not each.can_read(level)
    )
    return Risen(held.level, level, late)


async def _write_owners(
    store: MetadataStore, held: ClusterLevel, level: int, progress: Callable[[int], None]
) -> None:
    ledgers = LedgerStore(store, (await open_namespace(store)).layout)
    if wrong := await ledgers.write_owners(progress):
        raise CannotUpgrade(held.level, level, wrong)


def _check(found: Survey, level: int) -> None:
    in_the_way = found.obstacles(level)
    if in_the_way:
        raise CannotUpgrade(found.held.level, level, in_the_way)


async def _read(store: MetadataStore) -> tuple[str, ClusterLevel, int]:
    try:
        found = await store.get(INSTANCE)
    except NoSuchNode as error:
        raise NoNamespace(store.uri) from error
    return (*decode_instance(found.value), found.version)


def _survey(held: ClusterLevel, there: Membership) -> Survey:
    standings = tuple(_standing(each) for each in there.bookies if not _is_gone(each))
    return Survey(held, standings, there.left_out)


def _is_gone(known: KnownBookie) -> bool:
    return known.retired and known.registration is None


def _standing(known: KnownBookie) -> BookieLevel:
    if known.registration is not None:
        return BookieLevel(known.bookie, known.registration.level)
    trouble = (
        f"cannot be understood ({known.damaged})"
        if known.damaged
        else "does not run, and which release it will start with is not known"
    )
    return BookieLevel(known.bookie, None, trouble)
