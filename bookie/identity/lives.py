"""The lives of a bookie's data: each start is counted in its directories and in the store.

A bookie that starts on data older than what it once promised, or on a copy of data that are used
elsewhere, would say "no such entry" where it has to say nothing. So each start draws a token,
leaves it in all its directories, and then lets the store's node go from the token of the life
before to its own, by compare-and-swap. Data are the newest iff the store's token is one that
their own cookies have: the last that was counted, or one of the starts since (`Cookie.tries`)
that ended before they knew. Within a life the number of the last checkpoint is reported, so that
data older than that checkpoint are found too.

Invariants:
    a token is in every directory, durably, before the store hears of it
    nothing is promised before the store has the token of this life, and the directories know that
    a number of a census is in the directory, durably, before the store hears of it
    once the store has the token of another life, this one never writes there again
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bookie.errors import BookieSuperseded
from bookie.identity.cookie import Cookie
from bookie.loss.census import Census
from ledger.cluster import decode_instance
from ledger.delays import Backoff
from ledger.errors import BadVersion, DamagedMetadata, MetadataError, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.ops import INSTANCE
from ledger.metastore.port import MetadataStore
from ledger.registry import COOKIES

_REPORT_S_MIN: Final = 1.0
"""Checkpoints that follow each other faster are reported together."""
_RETRY_S_MIN: Final = 0.2
_RETRY_S_MAX: Final = 5.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a life knows of its node in the store."""

    cookie: Cookie
    """As the node was last written, or read, by this life."""
    version: int

    @property
    def path(self) -> str:
        return f"{COOKIES}/{self.cookie.bookie}"


async def report(store: MetadataStore, claim: Claim, change: Callable[[Cookie], Cookie]) -> Claim:
    """Write what *change* makes of the node; return the claim as it is then.

    Raises `BookieSuperseded` if the node is not this life's any more, `DamagedMetadata`, and
    what the store raises; then the outcome may be unknown, and it can be repeated."""
    while True:
        changed = change(claim.cookie)
        if changed == claim.cookie:
            return claim
        try:
            version = await store.set(claim.path, changed.encode(), version=claim.version)
        except BadVersion:
            claim = await look(store, claim)  # our own write, whose reply was lost, or another life
        else:
            return Claim(changed, version)


async def look(store: MetadataStore, claim: Claim) -> Claim:
    """Read the node. Raises `BookieSuperseded`, also if the node is gone from the namespace that
    the data are of; `DamagedMetadata`, and what the store raises."""
    name = claim.cookie.bookie
    await store.sync(claim.path)  # else a server that lags may show the life before
    try:
        found = await store.get(claim.path)
    except NoSuchNode:
        if await _instance(store) != claim.cookie.instance:
            raise  # this is no namespace, or another one: what it lacks says nothing of this bookie
        raise BookieSuperseded(
            name, "the cluster has forgotten it, its cookie is gone", BookieSuperseded.GONE
        ) from None
    try:
        cookie = Cookie.decode(found.value)
    except ValueError as error:
        raise DamagedMetadata(claim.path, str(error)) from error
    if cookie.is_retired:
        reason = f"its name was retired: {cookie.retired_why}"
        raise BookieSuperseded(name, reason, BookieSuperseded.GONE)
    if cookie.token != claim.cookie.token:
        raise BookieSuperseded(name, f"another process has started under it at {cookie.address}")
    return Claim(cookie, found.version)


async def _instance(store: MetadataStore) -> str:
    """Return the instance of the namespace; empty if there is none."""
    try:
        return decode_instance((await store.get(INSTANCE)).value)[0]
    except NoSuchNode:
        return ""


def with_census(cookie: Cookie, census: Census | None) -> Cookie:
    """Return the node with *census*, unless it has a later one already."""
    if census is None or census.number <= cookie.checkpoint:
        return cookie
    return replace(cookie, checkpoint=census.number, census=census.encode())


class LifeKeeper:
    """Reports checkpoints to the store, and ends the process whose identity somebody else took.

    The store may be unreachable for any time, or be another one than the bookie's: it continues,
    and what is newest is reported when the store is back. Belongs to the running event loop."""

    def __init__(self, store: MetadataStore, claim: Claim) -> None:
        self._store = store
        self.claim = claim
        """As it is now."""
        self._loop = asyncio.get_running_loop()
        self._census: Census | None = None
        self._limbo = claim.cookie.limbo
        self._to_report = asyncio.Event()

    def checkpointed(self, census: Census) -> None:
        """Let the store know of *census*, which is durable; from any thread."""
        self._loop.call_soon_threadsafe(self._take, census)

    def set_limbo(self, reason: str) -> None:
        """Show in the store why the bookie is in limbo; empty: it is not."""
        self._limbo = reason
        self._to_report.set()

    def look_soon(self) -> None:
        """Read the node again: the process may have stood still, and its session is another one."""
        self._to_report.set()

    async def run(self) -> None:
        """Report and watch until cancelled. Raises `BookieSuperseded`."""
        backoff = Backoff(_RETRY_S_MIN, _RETRY_S_MAX)
        watch = self._store.watch(self.claim.path)
        try:
            self._to_report.set()  # who took over before the watch was there is found as well
            while True:
                waits = [
                    asyncio.ensure_future(w) for w in (watch.changed(), self._to_report.wait())
                ]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                self._to_report.clear()
                try:
                    before = self.claim = await look(self._store, self.claim)
                    self.claim = await report(self._store, self.claim, self._newest)
                    if self.claim.version != before.version:
                        await asyncio.sleep(_REPORT_S_MIN)
                except (MetadataError, DamagedMetadata) as error:
                    name = self.claim.cookie.bookie
                    _log.warning("life_not_reported", bookie=name, reason=str(error))
                    await asyncio.sleep(backoff.next())
                    self._to_report.set()
                else:
                    backoff.reset()
        finally:
            watch.close()

    async def stopped(self, census: Census) -> None:
        """Report that this life has ended with *census*, and that the directories say so.

        Requires that `run` has ended. Raises `BookieSuperseded`, and what the store raises."""
        self._census = census
        self.claim = await report(
            self._store, self.claim, lambda cookie: replace(self._newest(cookie), clean=True)
        )

    def _take(self, census: Census) -> None:
        self._census = census
        self._to_report.set()

    def _newest(self, cookie: Cookie) -> Cookie:
        return replace(with_census(cookie, self._census), limbo=self._limbo)
