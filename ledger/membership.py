"""Who is known, and who is there: cookies beside registrations, read at one moment.

`ledger.registry.BookieDirectory` keeps the bookies that can be used; this names the others too: a
bookie that died, or was never started again, is known by its cookie alone.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from ledger.errors import DamagedMetadata, NoSuchNode
from ledger.metastore.port import MetadataStore, children_of
from ledger.registry import (
    AVAILABLE,
    COOKIES,
    DECOMMISSIONING,
    READ_ONLY,
    BookieRegistration,
    find_registration,
)
from ledger.tasks import for_each
from ledger.wire import metadata_pb2 as pb

BOOKIES_MAX: Final = 10_000
"""So many are looked at, the first by name."""
READS_MAX: Final = 50
"""At once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBookie:
    """A name with a cookie, or a registration, or both."""

    bookie: str
    registration: BookieRegistration | None = None
    """None: it is not there, or what it registered cannot be read."""
    address: str = ""
    """Where clients last found it."""
    leaving: bool = False
    """It is to be emptied."""
    retired: bool = False
    """No bookie ever has its name again."""
    limbo: str = ""
    """Why it serves in limbo."""
    damaged: str = ""
    """Why what stands of it in the metadata store cannot be read."""

    @property
    def is_missed(self) -> bool:
        """Whether it is not there, though nobody gave it up."""
        return self.registration is None and not self.retired


@dataclass(frozen=True, slots=True)
class Membership:
    bookies: tuple[KnownBookie, ...]
    """By name."""
    left_out: int
    """Names beyond `BOOKIES_MAX`."""


@dataclass(frozen=True, slots=True)
class RetiredName:
    bookie: str
    retired_ms: int
    reason: str
    emptied: bool
    """No ledger named it when its bookie left."""


async def retired_names(store: MetadataStore) -> tuple[RetiredName, ...]:
    """Return the names that no bookie ever has again, sorted; a cookie that cannot be read is left
    out. Raises `MetadataUnavailable`."""
    await store.sync(COOKIES)
    cookies: list[pb.CookieNode] = []

    async def look(bookie: str) -> None:
        with suppress(NoSuchNode, DecodeError):
            value = (await store.get(f"{COOKIES}/{bookie}")).value
            cookies.append(pb.CookieNode.FromString(value))

    await for_each(await children_of(store, COOKIES), look, at_once=READS_MAX)
    retired = sorted((node for node in cookies if node.retired_ms), key=lambda node: node.bookie)
    return tuple(
        RetiredName(node.bookie, node.retired_ms, node.retired_why, node.emptied_ms > 0)
        for node in retired
    )


async def attendance(store: MetadataStore) -> Membership:
    """Return who is known and who is there. Raises `MetadataUnavailable`.

    Names that are retired and emptied are left out. What one bookie left in the store and cannot
    be read is said of it alone."""
    await store.sync(AVAILABLE)
    registered = {*await children_of(store, AVAILABLE), *await children_of(store, READ_ONLY)}
    leaving = frozenset(await children_of(store, DECOMMISSIONING))
    names = sorted(registered.union(await children_of(store, COOKIES)))
    found: dict[str, KnownBookie] = {}

    async def look(bookie: str) -> None:
        damaged, registration = "", None
        cookie = pb.CookieNode()
        try:
            if bookie in registered:
                registration = await find_registration(store, bookie)
                # It may just have changed from one list to the other.
                registration = registration or await find_registration(store, bookie)
            cookie = pb.CookieNode.FromString((await store.get(f"{COOKIES}/{bookie}")).value)
        except NoSuchNode:
            pass  # of a program that made none, or forgotten since it was listed
        except (DamagedMetadata, DecodeError) as error:
            damaged = str(error)
        if bookie not in registered and not damaged and (cookie.emptied_ms or not cookie.bookie):
            return
        found[bookie] = KnownBookie(
            bookie=bookie,
            registration=registration,
            address=cookie.address if registration is None else registration.address,
            leaving=bookie in leaving,
            retired=cookie.retired_ms > 0,
            limbo=cookie.limbo,
            damaged=damaged,
        )

    looked_at = names[:BOOKIES_MAX]
    await for_each(looked_at, look, at_once=READS_MAX)
    return Membership(
        tuple(found[name] for name in looked_at if name in found), len(names) - len(looked_at)
    )
