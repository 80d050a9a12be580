"""Committed offsets of groups, shown as consumers of dlog's logs: `dlog consumer list`, lag, and
retention that waits for the slowest.

The group `billing` is the consumer `kafka/billing` of each log of which it has committed an offset.
One task writes the newest commits every `MIRROR_S` seconds, `WRITES_MAX` of them, so the consumer
is behind the group for as long, or longer where more partitions are committed, and never ahead. It
goes one way: whoever resets the consumer does not reset the group.

A gateway that takes a group over resets each of its consumers once, which fences the gateway of
before as any handle of a consumer is fenced.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Final
from urllib.parse import quote

from dlog.aio.store import ConsumerNode, ManifestNode
from dlog.errors import ConsumerBusy, ConsumerFenced, NoSuchConsumer, NoSuchLog
from dlog.names import NAME_BYTES_MAX
from dlog.protocol.consumer_steps import ConsumerState
from ledger.errors import LogError
from ledger.log_events import get_logger, now_ms
from ledger.metastore.port import MetadataStore
from ledger.tasks import Background

MIRROR_S: Final = 2.0
NOTES_MAX: Final = 100_000
"""Commits that are not written yet; more are dropped until the partition's next commit, with a
warning."""
WRITES_MAX: Final = 200
"""How many are written each time, so that large groups do not keep the metadata store busy."""
PREFIX: Final = "kafka/"
_log = get_logger(__name__)

TopicPartition = tuple[str, int]
_Key = tuple[str, str, TopicPartition]


def consumer_name(group: str) -> str | None:
    """Return what the consumer of *group* is called; None if it would be too long for a name."""
    quoted = quote(group, safe=" :@+,=()")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    name = PREFIX + quoted
    return name if group and len(name.encode()) <= NAME_BYTES_MAX else None


class GroupMirror(Background):
    """Of all groups that this gateway coordinates."""

    def __init__(
        self,
        store: MetadataStore,
        log_of: Callable[[str, int], str | None],
        *,
        owner: str,
        every_s: float = MIRROR_S,
    ) -> None:
        self._store, self._log_of, self._owner, self._every_s = store, log_of, owner, every_s
        self._notes: dict[_Key, int | None] = {}
        """By offsets log, group and partition."""
        self._is_full = False
        """Since the last time that notes were written: told once."""
        self._handles: dict[_Key, ConsumerState] = {}
        """What was written last: a later state that it does not lead to is another gateway's."""

    def note(self, source: str, group: str, partition: TopicPartition, offset: int | None) -> None:
        """Record that *group*, of the offsets log *source*, has committed *offset*; None: it has
        no offset any more."""
        key = (source, group, partition)
        if key in self._notes or len(self._notes) < NOTES_MAX:
            self._notes[key] = offset
        elif not self._is_full:
            self._is_full = True
            _log.warning("group_mirror_full", notes=NOTES_MAX, group=group)

    def forget(self, source: str) -> None:
        """Another gateway has the offsets log *source*: write nothing more of it."""
        for table in (self._notes, self._handles):
            for key in [each for each in table if each[0] == source]:
                del table[key]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.write()

    async def write(self) -> None:
        """Write what is noted, the oldest first. What fails waits for the next commit, or for the
        next time if the metadata store is unavailable."""
        self._is_full = False
        for key in list(islice(self._notes, WRITES_MAX)):
            if key not in self._notes:  # forgotten meanwhile
                continue
            offset = self._notes.pop(key)
            log, name = self._log_of(*key[2]), consumer_name(key[1])
            if log is None or name is None:
                continue
            try:
                await self._write(key, log, name, offset)
            except (NoSuchLog, NoSuchConsumer, ConsumerFenced, ConsumerBusy):
                self._handles.pop(key, None)
            except LogError as error:
                if error.retryable:
                    self._notes.setdefault(key, offset)
                _log.info("group_not_mirrored", group=key[1], log=log, reason=str(error))
                return

    async def _write(self, key: _Key, log: str, name: str, offset: int | None) -> None:
        node = ConsumerNode(self._store, log, name)
        if offset is None:
            self._handles.pop(key, None)
            await node.delete()
            return
        try:
            known = await node.read_to_edit()
        except NoSuchConsumer:
            await self._create(node, log, offset)
            known = await node.read_to_edit()
        handle = self._handles.get(key)

        def change(state: ConsumerState) -> ConsumerState:
            if handle is None:
                return state.was_reset(offset, owner=self._owner, now_ms=now_ms())
            if offset >= state.position:
                return state.committed(offset, by=handle, name=name, now_ms=now_ms())
            if (state.incarnation, state.epoch) != (handle.incarnation, handle.epoch):
                raise ConsumerFenced(name, state.owner)
            return replace(state, position=offset, updated_ms=now_ms())

        stored, _ = await node.edit(change, known)
        self._handles[key] = stored

    async def _create(self, node: ConsumerNode, log: str, offset: int) -> None:
        manifest, _ = await ManifestNode(self._store, log).read()
        state = ConsumerState(
            incarnation=secrets.token_hex(8),
            log_incarnation=manifest.incarnation,
            position=offset,
            owner=self._owner,
            updated_ms=now_ms(),
        )
        await node.create(state)
