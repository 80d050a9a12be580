"""One look over a whole namespace: all its ledgers, then all its logs, and what fits to nothing.

The metadata store is verified first, as far as it has checksums. Then the ledgers are listed, so
each of them was there before any manifest was read; why that order matters is said in
`dlog.protocol.orphans`. A list alone proves nothing gone: a log that no list names is read under
its own name and its newest one. Bounded: 16 bytes for each ledger, one name for each log;
manifests are looked at one after the other. Of one log, `is_leaderless` says whether its writer
left it, and nobody stands to take it over.
"""

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode, log_names
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, check_name, path_of
from dlog.protocol.manifest_steps import RENAMED_PATH
from dlog.protocol.orphans import AnyStamp, OrphanKind, stamp_of, standing
from leader import is_led
from ledger.errors import CallerError, DamagedMetadata, LogError, NoSuchLedger, StorageError
from ledger.ids import LedgerId
from ledger.metastore.ops import name_of
from ledger.metastore.port import MetadataStore, hidden_of

Visit = Callable[["Survey", ManifestNode, Manifest], Awaitable[None]]


def was_left_open(manifest: Manifest) -> bool:
    """Whether somebody writes the log, or ended without closing it.

    One that was closed in order is at rest: it needs no leader."""
    last = manifest.last
    living = not (manifest.sealed or manifest.dropped)
    return living and last is not None and last.sealed is None


async def is_leaderless(store: MetadataStore, log: str, manifest: Manifest) -> bool:
    """Whether *log* had leaders, was left open, and has none now. Logs that are written without an
    election never are. Raises `MetadataUnavailable`."""
    return was_left_open(manifest) and await is_led(store, log) is False


@dataclass(frozen=True, slots=True)
class Trouble:
    """What could not be looked at or done; *what* is a log or a ledger."""

    what: str
    error: LogError


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A ledger that no log lists."""

    ledger_id: LedgerId
    stamp: AnyStamp | None
    """None: it was not made for a log."""
    standing: OrphanKind | None
    """None: it was not made for a log, or it is not known now."""
    length: int | None
    """Payload bytes, if it is CLOSED."""
    created_ms: int = 0

    @property
    def is_orphan(self) -> bool:
        return self.standing is not None and self.standing.is_orphan


@dataclass(slots=True)
class Survey:
    """What was found. *whole*: all manifests that are listed were read."""

    ledgers: "array[int]" = field(default_factory=lambda: array("q"))
    """All ids, ascending."""
    listed: "array[int]" = field(default_factory=lambda: array("q"))
    """Those that manifests list as segments or for deletion, ascending."""
    names: dict[str, str] = field(default_factory=dict)
    """Of logs, by incarnation."""
    troubles: list[Trouble] = field(default_factory=list)
    renames: int | None = None
    """What `count_of_renames` said before any manifest was read."""
    whole: bool = False

    def exists(self, ledger_id: int) -> bool:
        """Return whether the ledger was there at the beginning."""
        return _holds(self.ledgers, ledger_id)

    def unlisted(self) -> list[LedgerId]:
        """Return the ledgers that no manifest listed when it was read."""
        return [LedgerId(each) for each in self.ledgers if not _holds(self.listed, each)]


async def survey(ledgers: Ledgers, visit: Visit) -> Survey:
    """Look at everything; await *visit* for each log with the manifest that was just read.

    Trouble with one log is noted and the others go on. Raises `DamagedMetadata` if the store is
    not whole, and what listing the ledgers or the logs raises."""
    await ledgers.store.verify()
    found = Survey()
    found.ledgers = array("q", sorted([each async for each in ledgers.list()]))
    listed: array[int] = array("q")
    found.renames = await count_of_renames(ledgers.store)
    readable = True
    missing: list[str] = []
    for name in await log_names(ledgers.store):
        try:
            node = ManifestNode(ledgers.store, check_name(name))
            manifest, _ = await node.read()
        except NoSuchLog:
            missing.append(path_of(name))
            continue
        except LogError as error:
            readable = False
            found.troubles.append(Trouble(name, error))
            continue
        found.names[manifest.incarnation] = name
        listed.extend(manifest.listed_ledgers)
        listed.extend(manifest.deleting)
        try:
            await visit(found, node, manifest)
        except NoSuchLog:
            continue  # deleted meanwhile: who did so does the rest
        except LogError as error:
            found.troubles.append(Trouble(name, error))
    found.listed = array("q", sorted(listed))
    for path in await hidden_of(ledgers.store, LOGS_PATH, missing):
        readable = False
        reason = "it is listed, and a read of it finds nothing"
        found.troubles.append(Trouble(name_of(path), DamagedMetadata(path, reason)))
    found.whole = readable
    return found


async def count_of_renames(store: MetadataStore) -> int | None:
    """Return a value that every rename changes."""
    await store.sync(RENAMED_PATH)
    return await store.exists(RENAMED_PATH)


async def unlisted(ledgers: Ledgers, found: Survey, *, skip: set[int]) -> AsyncIterator[Unlisted]:
    """Yield what is known of each ledger that no log lists, except those in *skip*.

    Ledgers that were not made for a log are added to *skip*: what they are never changes."""
    for ledger_id in found.unlisted():
        if ledger_id in skip:
            continue
        try:
            each = await look_at(ledgers, found, ledger_id)
        except (CallerError, StorageError) as error:
            found.troubles.append(Trouble(f"ledger {ledger_id}", error))
            continue
        if each is None:
            continue
        if each.stamp is None:
            skip.add(ledger_id)
        yield each


async def look_at(ledgers: Ledgers, found: Survey, ledger_id: LedgerId) -> Unlisted | None:
    """Return what *ledger_id* is now; None if it is gone."""
    try:
        metadata = await ledgers.describe(ledger_id)
    except NoSuchLedger:
        return None
    stamp = stamp_of(metadata.custom)
    length, created_ms = metadata.length, metadata.created_ms
    if stamp is None:
        return Unlisted(ledger_id, None, None, length, created_ms)
    name = found.names.get(stamp.incarnation)
    if name is None and not found.whole:
        return Unlisted(ledger_id, stamp, None, length, created_ms)
    node = ManifestNode(ledgers.store, stamp.log if name is None else name)
    node.follow(stamp.incarnation)
    try:
        manifest, _ = await node.read()
    except NoSuchLog:
        manifest = None
    if manifest is not None and manifest.incarnation != stamp.incarnation:
        manifest = None
    if manifest is not None:
        if name is None:
            await _note_hidden(node, found)
        kind = standing(ledger_id, stamp, manifest)
        return Unlisted(ledger_id, stamp, kind, length, created_ms)
    # Gone: nothing lists its log, and neither the name it had then nor its newest one has it.
    unmoved = name is None and await count_of_renames(ledgers.store) == found.renames
    gone = standing(ledger_id, stamp, None) if unmoved else None
    return Unlisted(ledger_id, stamp, gone, length, created_ms)  # None: the next survey decides


async def _note_hidden(node: ManifestNode, found: Survey) -> None:
    """Take note of a log that is there and was not listed: the list lacks others, maybe."""
    if await count_of_renames(node.store) == found.renames:
        found.whole = False
        reason = "it is there, and the list of logs lacks it; nothing counts as deleted"
        found.troubles.append(Trouble(node.log, DamagedMetadata(node.path, reason)))


def _holds(ascending: "array[int]", value: int) -> bool:
    at = bisect_left(ascending, value)
    return at < len(ascending) and ascending[at] == value
