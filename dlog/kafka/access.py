"""Which clients of a gateway may read and write which logs: those with grants, as everywhere.

Grants count where every client has an identity: where TLS is required, or clients authenticate
(SASL). Elsewhere everybody may do everything. The gateway itself reads and writes with its own
certificate, so it asks for each client what bookies would ask.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Generic

from kio.schema.errors import ErrorCode

from dlog.kafka.errors import KafkaRefusal
from ledger.errors import DamagedMetadata
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore
from ledger.security.access import ACCESS, ANYTHING, NEEDED, Permission, Role, Rules, allowed
from ledger.security.documents import D, follow, read_document

KNOWN_MAX: Final = 65_536
"""Answers that are remembered until the grants change."""
_log = get_logger(__name__)


class DocumentFollower(Generic[D]):
    """What operators set, as it is now: `start`, then `value`, then `close`. While the store is
    unavailable, or holds what this program does not understand, the last value stays in force."""

    def __init__(
        self, store: MetadataStore, path: str, kind: type[D], changed: Callable[[], None]
    ) -> None:
        self._store, self._path, self._kind, self._changed = store, path, kind, changed
        self.value: D = kind()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises `MetadataUnavailable`, `DamagedMetadata`."""
        self.value = await read_document(self._store, self._path, self._kind)
        self._changed()
        following = follow(self._store, (self._path,), self._read)
        self._following = asyncio.create_task(following, name=f"follow {self._path}")

    async def close(self) -> None:
        """Idempotent."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _read(self, _: Collection[str]) -> None:
        try:
            value = await read_document(self._store, self._path, self._kind)
        except DamagedMetadata as error:  # what was read last counts
            _log.error("document_not_read", path=self._path, reason=str(error))
            return
        if value != self.value:
            self.value = value
            self._changed()


class GatewayAccess:
    """`start`, then `close`. Without *required* all is allowed."""

    def __init__(self, store: MetadataStore, *, required: bool) -> None:
        self._required = required
        self._known: dict[tuple[str, str], int] = {}
        self._rules = DocumentFollower(store, ACCESS, Rules, self._known.clear)

    async def start(self) -> None:
        """Raises `MetadataUnavailable`, `DamagedMetadata`."""
        if self._required:
            await self._rules.start()

    async def close(self) -> None:
        """Idempotent."""
        await self._rules.close()

    @property
    def rules(self) -> Rules:
        """That are in force."""
        return self._rules.value

    def may(self, identity: str, action: Permission, log: str) -> bool:
        if not self._required:
            return True
        mask = self._known.get((identity, log))
        if mask is None:
            mask = allowed(self.rules.of(identity), log)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[identity, log] = mask
        return bool(mask & action)

    def check(self, identity: str, action: Permission, log: str) -> None:
        """Raises `KafkaRefusal`: TOPIC_AUTHORIZATION_FAILED."""
        if not self.may(identity, action, log):
            who = identity or "a client without a certificate"
            sentence = f"{who} is no {NEEDED[action]} of log {log!r}: 'dlog access grant'"
            raise KafkaRefusal(ErrorCode.topic_authorization_failed, sentence)

    def may_somewhere(self, identity: str, action: Permission) -> bool:
        """Return whether *identity* may do that to some log at least."""
        grants = self.rules.of(identity)
        return not self._required or any(each.somewhere & action for each in grants)

    def check_all(self, identity: str, action: Permission) -> None:
        """Check *action* on whatever log there is. Raises `KafkaRefusal`:
        CLUSTER_AUTHORIZATION_FAILED."""
        if not self._required:
            return
        grants = self.rules.of(identity)
        if not any(each.logs == ANYTHING and each.allows("any") & action for each in grants):
            who = identity or "a client without a certificate"
            sentence = f"{who} is no {Role.WRITER} of all logs: 'dlog access grant'"
            raise KafkaRefusal(ErrorCode.cluster_authorization_failed, sentence)
