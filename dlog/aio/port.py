"""What the log layer needs from the floors below: ledgers, and an election's verdict.

`ledger.LedgerClient` and `leader.Term` are these; tests use simpler ones.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from ledger.entry import Digest
from ledger.errors import LogError
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import MetadataStore
from ledger.protocol.answers import Found
from ledger.quorum import Quorum
from ledger.security.certificates import Security


class LedgerEntry(Protocol):
    @property
    def entry_id(self) -> int: ...
    @property
    def payload(self) -> bytes | memoryview: ...
    @property
    def length(self) -> int:
        """Payload bytes of this entry and all before it in its ledger."""

    @property
    def frame(self) -> memoryview:
        """The entry as bookies store it: header, payload, authentication code."""


class LedgerAppender(Protocol):
    """The one writer of a ledger."""

    @property
    def ledger_id(self) -> LedgerId: ...
    @property
    def metadata(self) -> LedgerMetadata: ...
    @property
    def error(self) -> LogError | None: ...
    def add(self, payload: bytes) -> asyncio.Future[EntryId]: ...
    def add_all(
        self, entries: Sequence[tuple[bytes, Callable[[EntryId | LogError], None]]]
    ) -> None:
        """See `ledger.LedgerWriter.add_all`."""

    def publish(self) -> None:
        """See `ledger.LedgerWriter.publish`."""

    async def close(self) -> LedgerMetadata: ...
    async def abandon(self) -> None: ...


class LedgerTail(Protocol):
    """A reader of a ledger, which may still be written."""

    @property
    def ledger_id(self) -> LedgerId: ...
    @property
    def custom(self) -> Mapping[str, bytes]:
        """Custom metadata of the ledger."""

    @property
    def closed(self) -> bool: ...
    @property
    def last_entry(self) -> EntryId | None: ...
    @property
    def last_add_confirmed(self) -> EntryId: ...
    async def read_last_add_confirmed(self) -> EntryId: ...
    async def read_last_stored(self) -> EntryId: ...
    def learn_confirmed(self, entry_id: int) -> None: ...
    async def read(self, first: int, last: int) -> Sequence[LedgerEntry]: ...
    async def read_some(
        self, first: int, *, last: int | None = None, bytes_max: int = ..., wait_s: float = ...
    ) -> Sequence[LedgerEntry]: ...
    async def close(self) -> None: ...


class Ledgers(Protocol):
    """All ledgers of a namespace, and its metadata store."""

    @property
    def store(self) -> MetadataStore: ...
    @property
    def security(self) -> Security | None:
        """What connections of this process are secured with; None: nothing."""

    @property
    def level(self) -> int:
        """The feature level of the cluster (`ledger.feature_level`), as last read."""

    async def create(
        self,
        quorum: Quorum | None = None,
        *,
        digest: Digest = ...,
        custom: Mapping[str, bytes] | None = None,
        degraded_writes: bool = ...,
    ) -> LedgerAppender: ...
    async def open_no_recovery(self, ledger_id: LedgerId) -> LedgerTail: ...
    async def recover(self, ledger_id: LedgerId) -> LedgerMetadata: ...
    async def delete(self, ledger_id: LedgerId) -> None: ...
    async def read_replica(
        self,
        ledger_id: LedgerId,
        bookie: BookieId,
        first: int,
        last: int,
        *,
        metadata: LedgerMetadata | None = None,
    ) -> Found: ...
    async def describe(self, ledger_id: LedgerId) -> LedgerMetadata: ...
    def list(self) -> AsyncIterator[LedgerId]: ...
    async def close(self) -> None: ...


class Leadership(Protocol):
    """A term of an election, as `leader.Term`. It only suggests; fencing decides."""

    def is_current(self) -> bool:
        """Return the local view, at once."""

    async def verify(self) -> bool:
        """Ask the election."""
