"""A named consumer: a reader whose position the metadata store remembers.

A consumer reads from where it committed last, so each record is processed at least once, and
exactly once if the application stores `position` with its own results and starts from there.
"""

import secrets
from contextlib import suppress
from typing import Final, Literal, Self, assert_never

from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import PATIENCE_S
from dlog.aio.read.places import start_offset, stop_offset
from dlog.aio.read.reader import Reader
from dlog.aio.read.tails import tail_of
from dlog.aio.store import ConsumerNode, ManifestNode
from dlog.errors import InvalidPosition, LogClosed, NoSuchConsumer, NoSuchLog, Trimmed
from dlog.names import check_name
from dlog.position import Start
from dlog.protocol.consumer_steps import Change, ConsumerState, Stored
from ledger.errors import LogError
from ledger.log_events import now_ms
from ledger.process import this_process

OnTrimmed = Literal["raise", "skip"]

OPENS_MAX: Final = 8
"""How often a consumer may be deleted by others while it is opened."""


class Consumer(Reader):
    """Made by `Log.consumer`. A `Reader` with `commit`; used by one task at a time; close it."""

    def __init__(
        self,
        ledgers: Ledgers,
        manifest: ManifestNode,
        node: ConsumerNode,
        stored: Stored,
        *,
        locked: bool,
        first: int,
        stop: int | None,
        follow: bool,
        owns_client: bool,
    ) -> None:
        super().__init__(
            ledgers,
            manifest,
            first,
            stop=stop,
            incarnation=stored[0].log_incarnation,
            patience_s=None if follow else PATIENCE_S,
        )
        self.name = node.name
        self.skipped = first - stored[0].position
        """How many records had been trimmed before they were processed (with "skip")."""
        self._consumer = node
        self._locked = locked
        self._opened = stored[0]
        self._stored = stored
        self._client: Ledgers | None = ledgers if owns_client else None
        """To be closed with this consumer, as it may commit after the last record was read."""
        self._let_go = False

    @classmethod
    async def open(
        cls,
        ledgers: Ledgers,
        name: str,
        log: str,
        *,
        start: Start,
        exclusive: bool,
        wait_s: float,
        follow: bool,
        on_trimmed: OnTrimmed,
        owns_client: bool,
    ) -> Self:
        """See `dlog.aio.Log.consumer`."""
        check_name(log)
        manifests = ManifestNode(ledgers.store, log)
        node = ConsumerNode(ledgers.store, log, name)
        owner = this_process()
        try:
            stored = await open_state(
                ledgers, manifests, node, start, exclusive=exclusive, wait_s=wait_s, owner=owner
            )
            first = await _first_offset(manifests, stored[0].position, on_trimmed)
            stop = await stop_offset(ledgers, manifests, None, follow=follow)
        except BaseException:
            if exclusive:
                with suppress(LogError):
                    await node.unlock()
            raise
        return cls(
            ledgers,
            manifests,
            node,
            stored,
            locked=exclusive,
            first=first,
            stop=stop,
            follow=follow,
            owns_client=owns_client,
        )

    @property
    def committed(self) -> int:
        """Every record below this offset was processed, as far as this handle knows."""
        return self._stored[0].position

    @property
    def epoch(self) -> int:
        """Grows with each exclusive open and each reset; usable as a fencing token."""
        return self._opened.epoch

    async def commit(self, offset: int | None = None) -> int:
        """Remember that every record below *offset* (None: all that were read) was processed.

        The next open goes on there. Never moves back: if another process of this consumer
        committed more, that stays. Returns the position that is stored. Safe to repeat
        after any retryable error. Raises `InvalidPosition` for a record that was not read
        yet, `ConsumerFenced` if another process opened it exclusively or reset it,
        `NoSuchConsumer`, `MetadataUnavailable`, `LogClosed`."""
        if self._let_go:
            raise LogClosed(self.log)
        wanted = self.position if offset is None else offset
        if not 0 <= wanted <= self.position:
            reason = f"this consumer has read up to {self.position}"
            raise InvalidPosition(self.log, wanted, reason)
        now = now_ms()
        self._stored = await self._consumer.edit(
            lambda state: state.committed(wanted, by=self._opened, name=self.name, now_ms=now),
            self._stored,
        )
        return self.committed

    async def lag(self) -> int:
        """Return how many readable records were not committed yet."""
        end = (await tail_of(self._ledgers, self.log)).next_offset
        return max(0, end - self.committed)

    async def close(self) -> None:
        """Stop reading and let the lock go; commits nothing by itself. Idempotent."""
        self._let_go = True
        await super().close()
        client, self._client = self._client, None
        locked, self._locked = self._locked, False
        try:
            if locked:
                with suppress(LogError):  # the end of the session lets it go, too
                    await self._consumer.unlock()
        finally:
            if client is not None:
                await client.close()


async def open_state(
    ledgers: Ledgers,
    manifests: ManifestNode,
    node: ConsumerNode,
    start: Start,
    *,
    exclusive: bool,
    wait_s: float,
    owner: str,
) -> Stored:
    """Create the consumer if need be, lock it if *exclusive*; return what is stored.

    *node* may `edit` it then. Raises `ConsumerBusy` if another process has it for itself for
    *wait_s* more, and what finding *start* raises."""
    for attempt in range(1, OPENS_MAX + 1):
        try:
            await _ensure(ledgers, manifests, node, start, owner=owner)
            if exclusive:
                await node.lock(owner, wait_s=wait_s)
            stored = await node.read_to_edit()
            if exclusive or not stored[0].exclusive:
                return await node.edit(_open(exclusive=exclusive, owner=owner), stored)
            try:
                await node.lock(owner, wait_s=wait_s)  # until nobody has it for itself
                known = await node.read_to_edit()
                return await node.edit(_open(exclusive=False, owner=owner), known)
            finally:
                await node.unlock()
        except NoSuchConsumer:  # deleted meanwhile
            if attempt == OPENS_MAX:
                raise
    raise AssertionError("unreachable")


async def _first_offset(manifests: ManifestNode, position: int, on_trimmed: OnTrimmed) -> int:
    manifest, _ = await manifests.read()
    if position >= manifest.trim_offset:
        return position
    match on_trimmed:
        case "raise":
            raise Trimmed(manifests.log, position, manifest.trim_offset)
        case "skip":
            return manifest.trim_offset
        case _:
            assert_never(on_trimmed)


def _open(*, exclusive: bool, owner: str) -> Change:
    now = now_ms()
    return lambda state: state.opened(exclusive=exclusive, owner=owner, now_ms=now)


async def _ensure(
    ledgers: Ledgers, manifests: ManifestNode, node: ConsumerNode, start: Start, *, owner: str
) -> None:
    manifest, _ = await manifests.read()
    if manifest.dropped:
        raise NoSuchLog(manifests.log, "it is being deleted")
    stored: Stored | None = None
    with suppress(NoSuchConsumer):
        stored = await node.read_to_edit()
    if stored is not None and stored[0].log_incarnation == manifest.incarnation:
        return
    state = ConsumerState(
        incarnation=secrets.token_hex(8),
        log_incarnation=manifest.incarnation,
        position=await start_offset(ledgers, manifests, start, beyond_end="raise"),
        owner=owner,
        updated_ms=now_ms(),
    )
    if stored is None:
        await node.create(state)
        return

    def replaced(found: ConsumerState) -> ConsumerState:
        """Of an earlier log of this name, whose deletion was cut off."""
        return found if found.log_incarnation == state.log_incarnation else state

    await node.edit(replaced, stored)
