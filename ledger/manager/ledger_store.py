"""Ledger metadata in the metadata store: create, read, compare-and-swap, delete, list, watch."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from google.protobuf.message import DecodeError

from ledger.errors import (
    BadVersion,
    DamagedMetadata,
    MetadataUnavailable,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
)
from ledger.ids import LedgerId
from ledger.ledger_owner import (
    OWNERS_PATH,
    LedgerOwner,
    belonging,
    owner_in,
    owner_path,
    owner_value,
)
from ledger.manager.ids import BlockIds, SequentialIds
from ledger.manager.layout import INSTANCE, LAYOUTS, LEDGERS
from ledger.metadata import LedgerMetadata
from ledger.metastore.ops import parent_of
from ledger.metastore.port import (
    CheckOp,
    CreateOp,
    DeleteOp,
    MetadataStore,
    Session,
    SetOp,
    Watch,
    hidden_of,
)
from ledger.namespace_fingerprint import NamespaceFingerprint
from ledger.repair_marks import MARKS, is_under_repair
from ledger.tasks import for_each
from ledger.wire import metadata_pb2 as pb

CREATE_TRIES_MAX = 3
STRAYS_MAX: Final = 16
"""So many ids in a row may be taken by owner nodes without a ledger."""
OWNED_AT_ONCE: Final = 50
OWNERS_MADE: Final = 0
"""Version of `/owners` where there are no roles; `protect` raises it, and from then on owner nodes
stay when their ledgers are deleted."""
DELETIONS: Final = "/deletions"
"""Its version counts the ledgers that were deleted."""


class LedgerStore:
    """The ledgers of one namespace, in the layout that the namespace was made with."""

    def __init__(self, store: MetadataStore, layout: str) -> None:
        self._store = store
        self._owners_stay = False
        self._layout = LAYOUTS[layout]
        self._ids = SequentialIds(store) if self._layout.sequential_ids else BlockIds(store)

    @property
    def store(self) -> MetadataStore:
        """Where they are."""
        return self._store

    async def create(self, metadata: LedgerMetadata) -> LedgerId:
        """Store *metadata* under a new id, at version 0.

        Its owner node is made in the same transaction; an id whose owner node is there already is
        passed over. Requires a random `creation_token`: by it a create whose reply was lost is
        recognised as this process's own (rule 3). Raises `MetadataUnavailable`, and
        `DamagedMetadata` if `STRAYS_MAX` ids in a row had owner nodes."""
        assert metadata.creation_token, "a create without a token is not recognised as one's own"
        value, owner = metadata.encode(), owner_value(belonging(metadata.custom))
        unanswered: LedgerId | None = None
        strays = 0
        attempt = 1
        while True:
            try:
                if unanswered is not None and await self._is_own(unanswered, metadata):
                    return unanswered
                # Not under the same id again: it may have been made, and deleted since.
                unanswered = await self._ids.take()
                await self._make(unanswered, value, owner)
            except MetadataUnavailable:
                if attempt == CREATE_TRIES_MAX:
                    raise
                attempt += 1
            except NodeExists as error:
                if error.path.startswith(f"{OWNERS_PATH}/"):
                    strays += 1
                    if strays == STRAYS_MAX:
                        raise DamagedMetadata(
                            error.path, f"{strays} new ledgers in a row found owners made before"
                        ) from error
                    self._ids.leave()
                    unanswered = None
                    continue
                if unanswered is None or not await self._is_own(unanswered, metadata):
                    raise
                return unanswered
            else:
                return unanswered

    async def _make(self, ledger_id: LedgerId, value: bytes, owner: bytes) -> None:
        path = self._layout.path(ledger_id)
        both = (CreateOp(path, value), CreateOp(owner_path(ledger_id), owner))
        try:
            try:
                await self._store.multi(both)
            except NoSuchNode as error:
                if error.path != parent_of(path):
                    raise
                with suppress(NodeExists):  # of the first ledger below it
                    await self._store.create(error.path)
                await self._store.multi(both)
        except NoSuchNode as error:
            if error.path != OWNERS_PATH:
                raise
            await self._store.create(path, value)  # below level `OWNERS`

    def leave_ids(self) -> None:
        """Give new ledgers ids far from the last ones, which strangers seem to have guessed."""
        self._ids.leave()

    async def leave_ids_below(self, above: int) -> int:
        """Give new ledgers ids of at least *above*, if that is not far from now; return an id such
        that none below it is given out any more. Raises `MetadataUnavailable`."""
        return await self._ids.leave_below(above)

    async def _is_own(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Return whether what is stored under the id is what this process tried to create."""
        try:
            stored, _ = await self.read(ledger_id, fresh=True)
        except NoSuchLedger:
            return False
        return stored.creation_token == metadata.creation_token

    async def read(self, ledger_id: LedgerId, *, fresh: bool = False) -> tuple[LedgerMetadata, int]:
        """Return metadata and version. Raises `NoSuchLedger`, `DamagedMetadata`.

        *fresh*: see all writes that were finished before the call, for one more round trip."""
        path = self._path(ledger_id)
        if fresh:
            await self._store.sync(path)
        try:
            node = await self._store.get(path)
        except NoSuchNode as error:
            raise NoSuchLedger(ledger_id) from error
        return LedgerMetadata.decode(node.value, path=path), node.version

    async def write(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        *,
        only_if: CheckOp | None = None,
    ) -> int:
        """Compare and swap, in one transaction with *only_if*; return the new version.

        Raises `BadVersion`, also of the node that *only_if* names, and `NoSuchLedger`."""
        path = self._path(ledger_id)
        try:
            if only_if is None:
                return await self._store.set(path, metadata.encode(), version)
            await self._store.multi((SetOp(path, metadata.encode(), version), only_if))
        except NoSuchNode as error:
            if error.path != path:
                raise
            raise NoSuchLedger(ledger_id) from error
        return version + 1

    async def delete(self, ledger_id: LedgerId) -> None:
        """Delete whatever the state is (rule 6). No error if it is not there.

        The same transaction counts it: by that a bookie whose ledger is gone distinguishes a
        deletion from a loss of the metadata store. The owner node goes too, unless it decides
        rights: who could make it again might get what bookies still hold of the ledger."""
        path, owner = self._path(ledger_id), owner_path(ledger_id)
        counted = (DeleteOp(path), SetOp(DELETIONS, b""))
        wholly = (*counted, CheckOp(OWNERS_PATH, OWNERS_MADE), DeleteOp(owner))
        ops = counted if self._owners_stay else wholly
        for tries_left in reversed(range(3)):
            try:
                await self._store.multi(ops)
                return
            except BadVersion:
                if not tries_left:
                    raise
                self._owners_stay, ops = True, counted
            except NoSuchNode as error:
                if error.path == path:
                    return
                if not tries_left:  # nobody removes what counts them
                    raise
                if error.path in (OWNERS_PATH, owner):
                    ops = counted
                    continue
                with suppress(NodeExists):  # made by the first deletion that there is
                    await self._store.create(DELETIONS)

    async def write_owners(self, progress: Callable[[int], None]) -> list[str]:
        """Make the owner nodes that are missing, as the metadata of the ledgers say; tell
        *progress* how many ledgers have one. Return why some have none that is right, a sentence
        for each. May be repeated, also after it ended half-way.

        Raises `MetadataUnavailable`, `DamagedMetadata`."""
        wrong: list[str] = []
        owned = 0

        async def own(ledger_id: LedgerId) -> None:
            nonlocal owned
            if reason := await self._write_owner(ledger_id):
                wrong.append(reason)
            owned += 1

        with suppress(NodeExists):  # before the list: ledgers that are made from now on have one
            await self._store.create(OWNERS_PATH)
        batch: list[LedgerId] = []
        async for ledger_id in self.list():
            batch.append(ledger_id)
            if len(batch) == OWNED_AT_ONCE:
                await for_each(batch, own, at_once=OWNED_AT_ONCE)
                batch.clear()
                progress(owned)
        await for_each(batch, own, at_once=OWNED_AT_ONCE)
        progress(owned)
        return wrong

    async def _write_owner(self, ledger_id: LedgerId) -> str:
        """Return why its owner node is not right; empty: it is."""
        path = owner_path(ledger_id)
        try:
            metadata, _ = await self.read(ledger_id)
        except NoSuchLedger:
            return ""
        except DamagedMetadata as error:
            return f"ledger {ledger_id} does not say whose it is: {error}"
        label = belonging(metadata.custom)
        try:
            await self._store.create(path, owner_value(label))
        except NodeExists:
            owner = owner_in((await self._store.get(path)).value, path)
            if owner != label:
                return (
                    f"ledger {ledger_id} is of {_shown(label)} by its metadata, and of "
                    f"{_shown(owner)} by {path}: find out which of them was changed, and as an "
                    "operator delete the node if it is wrong, or mend the metadata"
                )
        return ""

    async def vitals(self) -> NamespaceFingerprint:
        """Return what all writes that were finished before the call have made of the namespace.

        Raises `MetadataUnavailable`, `DamagedMetadata`."""
        await self._store.sync()
        return NamespaceFingerprint(
            await self._instance(),
            await self._ids.peek(),
            await self._store.exists(DELETIONS) or 0,
        )

    async def _instance(self) -> str:
        try:
            value = (await self._store.get(INSTANCE)).value
            return pb.InstanceNode.FromString(value).instance
        except NoSuchNode:
            return ""
        except DecodeError as error:
            raise DamagedMetadata(INSTANCE, str(error)) from error

    @contextmanager
    def one_session(self) -> Iterator[None]:
        """Raise `MetadataUnavailable` at the end unless all of this was in one session."""
        session = self._store.session
        yield
        self._check_same(session, "a look at all ledgers")

    async def list(self) -> AsyncIterator[LedgerId]:
        """Yield all ids, ascending. Complete, or an error is raised: never a silent part.

        Sees every ledger whose creation ended before the call (rule 68). Who deletes what is
        not listed must take the whole list first. Raises `DamagedMetadata` if the tree is not
        one of this layout, or is not there at all."""
        session = self._store.session
        await self._store.sync(LEDGERS)
        async for names in self._walk((), LEDGERS):
            yield self._layout.ledger_id(names)
        self._check_same(session, "the list of ledgers")

    async def absent(self, ledger_ids: Iterable[LedgerId]) -> tuple[LedgerId, ...]:
        """Return those of *ledger_ids* that did not exist when this was called, or were deleted
        since. All answers are given, or an error is raised: also if the store is found damaged,
        which is verified before any of them counts as absent."""
        session = self._store.session
        await self._store.sync(LEDGERS)
        gone = [ledger_id for ledger_id in ledger_ids if not await self._exists(ledger_id)]
        if gone:
            await self._store.verify()
        self._check_same(session, "the reads of ledgers")
        return tuple(gone)

    async def hidden(self, ledger_ids: Iterable[LedgerId]) -> tuple[LedgerId, ...]:
        """Return those of *ledger_ids*, which were listed and then not found, that are listed
        still: the store hides them. The others were deleted."""
        hidden = []
        for ledger_id in ledger_ids:
            path = self._path(ledger_id)
            if await hidden_of(self._store, parent_of(path), [path]):
                hidden.append(ledger_id)
        return tuple(hidden)

    async def read_all(
        self, ledger_ids: Iterable[LedgerId]
    ) -> dict[LedgerId, LedgerMetadata | None]:
        """Return the metadata of those of *ledger_ids* that exist, as it was when this was called
        or later; None where it is damaged. All answers are given, or an error is raised."""
        session = self._store.session
        await self._store.sync(LEDGERS)
        found: dict[LedgerId, LedgerMetadata | None] = {}
        for ledger_id in ledger_ids:
            with suppress(NoSuchLedger):
                try:
                    found[ledger_id], _ = await self.read(ledger_id)
                except DamagedMetadata:
                    found[ledger_id] = None
        self._check_same(session, "the reads of ledgers")
        return found

    async def under_repair(self, ledger_ids: Iterable[LedgerId]) -> tuple[LedgerId, ...]:
        """Return those of *ledger_ids* that lack copies, as far as is known, or are being repaired.

        Raises `MetadataUnavailable`."""
        await self._store.sync(MARKS)
        return tuple([one for one in ledger_ids if await is_under_repair(self._store, one)])

    async def supersede(
        self, ledger_id: LedgerId, is_wanted: Callable[[LedgerMetadata], bool]
    ) -> bool:
        """Write the metadata again as they are, in a new version, if they are as *is_wanted* says;
        return whether that was done. False if they changed just then, or cannot be read.

        Whoever has read them before cannot change them any more without reading them again.
        Raises `MetadataUnavailable`: then it may be done or not."""
        path = self._path(ledger_id)
        try:
            node = await self._store.get(path)
            if not is_wanted(LedgerMetadata.decode(node.value, path=path)):
                return False
            await self._store.set(path, node.value, node.version)
        except (NoSuchNode, BadVersion, DamagedMetadata):
            return False
        return True

    def watch(self, ledger_id: LedgerId) -> Watch:
        """Watch the ledger's metadata."""
        return self._store.watch(self._path(ledger_id))

    def _path(self, ledger_id: LedgerId) -> str:
        if not 0 <= ledger_id <= self._layout.id_max:
            raise NoSuchLedger(ledger_id)
        return self._layout.path(ledger_id)

    async def _exists(self, ledger_id: LedgerId) -> bool:
        if not 0 <= ledger_id <= self._layout.id_max:
            return False
        return await self._store.exists(self._layout.path(ledger_id)) is not None

    def _check_same(self, session: Session, what: str) -> None:
        """Raise unless everything since *session* was taken came from it: another one may be with a
        server that lags behind what the `sync` of the first one saw."""
        if session is not self._store.session or session.lost.is_set():
            raise MetadataUnavailable(self._store.uri, what, 0, "the session changed meanwhile")

    async def _walk(self, above: tuple[str, ...], path: str) -> AsyncIterator[tuple[str, ...]]:
        level = len(above)
        try:
            children = await self._store.children(path)
        except NoSuchNode as error:
            # Inner nodes are never removed, and the root is made with the namespace.
            raise DamagedMetadata(path, "it is missing") from error
        for name in children:
            if not self._layout.is_name(name, level):
                raise DamagedMetadata(f"{path}/{name}", f"not of the layout {self._layout.name}")
            names = (*above, name)
            if level == self._layout.depth - 1:
                yield names
            else:
                async for found in self._walk(names, f"{path}/{name}"):
                    yield found


def _shown(found: LedgerOwner | None) -> str:
    return f"log {found.log!r}" if found else "no log"
