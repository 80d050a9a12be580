"""Topics in the metadata store: which there are, and how they are created, grown and deleted.

`protocol.topics` has what a topic is. A record is written before its logs are created and deleted
after them: a crash between leaves a topic whose logs are created when they are first used, or one
that is being deleted, which the next creation or deletion of that name finishes.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final
from uuid import uuid4

from dlog.aio.admin import update_settings
from dlog.aio.maintain.lifecycle import create, drop
from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode, listed_names
from dlog.errors import LogExists, NoSuchLog
from dlog.kafka.protocol.topics import (
    NO_ID,
    PRODUCER_ID_BLOCK,
    PRODUCER_IDS_PATH,
    TOPICS_PATH,
    InvalidTopic,
    NoSuchTopic,
    TopicExists,
    TopicRecord,
    TopicTable,
    check_partitions,
    check_topic,
    next_producer_ids,
)
from dlog.names import LOGS_PATH, check_name, is_own
from dlog.settings import LogSettings, parse_settings
from ledger.errors import BadVersion, LogError, NodeExists, NoSuchNode
from ledger.log_events import get_logger, now_ms
from ledger.metastore.port import MetadataStore, Watch, children_of, create_node
from ledger.tasks import for_each, is_cancelled

AT_ONCE: Final = 50
TRIES_MAX: Final = 20
AGE_S_MAX: Final = 30.0
"""All records are read again this often, whatever was watched."""
_log = get_logger(__name__)


class TopicStore:
    """The topics of a namespace. `start`, then `close`; a command may use it without `start`, and
    then reads them each time."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._store: MetadataStore = ledgers.store
        self._table = TopicTable()
        self._version: int | None = None
        """Of the node above all records, which is written when a record changes or goes."""
        self._read_at: float | None = None
        self._stale = True
        self._reading: asyncio.Task[None] | None = None
        self._followers: list[asyncio.Task[None]] = []

    @property
    def known(self) -> TopicTable:
        """The topics as last read."""
        return self._table

    def start(self) -> None:
        for path in (TOPICS_PATH, LOGS_PATH):
            self._followers.append(asyncio.create_task(self._follow(path), name=f"topics: {path}"))

    async def close(self) -> None:
        """Idempotent."""
        tasks = [*self._followers, *([self._reading] if self._reading else [])]
        self._followers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def table(self, *, fresh: bool = False) -> TopicTable:
        """Return all topics; *fresh*: with every change that was finished before the call.

        Raises `MetadataUnavailable`."""
        if fresh or not self._followers or self._is_old():
            self._stale = True
        while self._stale:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(), name="topics")
            await asyncio.shield(self._reading)
        return self._table

    async def find(self, name: str) -> TopicRecord:
        """Return the topic. Raises `NoSuchTopic`, `MetadataUnavailable`."""
        topic = (await self.table()).find(name)
        if topic is None:
            topic = (await self.table(fresh=True)).find(name)
        if topic is None:
            raise NoSuchTopic(name)
        return topic

    async def create(
        self, name: str, partitions: int, settings: Mapping[str, str], *, dry: bool = False
    ) -> TopicRecord:
        """Create a topic and its logs; *dry*: only check that it could be.

        Raises `InvalidTopic`, `InvalidSettings`, `InvalidQuorum`, `TopicExists`, what creating logs
        raises."""
        record = TopicRecord.new(
            name, partitions, id_=uuid4(), now_ms=now_ms(), settings=dict(settings)
        )
        parse_settings(dict(settings))
        table = await self._without_dropped(name)
        if table.find(name) is not None:
            raise TopicExists(name)
        await self._check_new_logs(table, name, record.logs)
        if dry:
            return record
        await self._write_new(record)
        await self.create_logs(record)
        return record

    async def adopt(self, name: str, logs: Sequence[str]) -> TopicRecord:
        """Make a topic of *logs* that exist. They stay those of the programs that write them, but
        for the log *name* alone, which is given to Kafka's clients by it.

        Raises `InvalidTopic`, `TopicExists`, `NoSuchLog`."""
        check_partitions(check_topic(name), len(logs))
        table = await self._without_dropped(name)
        present = table.find(name)
        if present is not None and not (name in logs and name not in table.records):
            raise TopicExists(name)
        if len(set(logs)) != len(logs):
            raise InvalidTopic(name, "a log cannot be two of its partitions")
        if is_own(name) and name in logs:
            raise InvalidTopic(name, "the log of this name is dlog's own; choose another name")
        for log in logs:
            check_name(log)
            claimed = table.claims(log)
            if claimed is not None:
                raise InvalidTopic(name, f"log {log!r} is a partition of topic {claimed!r}")
            manifest, _ = await ManifestNode(self._store, log).read()
            if manifest.dropped:
                raise NoSuchLog(log)
        record = TopicRecord(
            name=name,
            id=uuid4(),
            logs=tuple(logs),
            created_ms=now_ms(),
            settings={},
            adopted=list(logs) != [name],
        )
        await self._write_new(record)
        return record

    async def grow(self, name: str, partitions: int, *, dry: bool = False) -> TopicRecord:
        """Let the topic have *partitions*. Raises `NoSuchTopic`, `InvalidTopic`, `TopicExists`."""
        for _ in range(TRIES_MAX):
            table = await self.table(fresh=True)
            topic = table.find(name)
            if topic is None:
                raise NoSuchTopic(name)
            grown = topic.grown(partitions)
            await self._check_new_logs(table, name, grown.logs[len(topic.logs) :])
            if dry:
                return grown
            if name not in table.records:
                await self._write_new(
                    TopicRecord(
                        name=name,
                        id=uuid4(),
                        logs=topic.logs,
                        created_ms=now_ms(),
                        settings=topic.settings,
                        adopted=True,
                    )
                )
                continue
            with suppress(BadVersion, NoSuchNode):
                node = await self._store.get(_path(name))
                if TopicRecord.decode(name, node.value) == topic:
                    await self._store.set(_path(name), grown.encode(), node.version)
                    await self._announce()
                    await self.create_logs(grown)
                    return grown
        raise BadVersion(_path(name), -1)

    async def delete(self, name: str) -> TopicRecord:
        """Delete the topic and its logs, with all of their records. Raises `NoSuchTopic`."""
        table = await self.table(fresh=True)
        topic = table.find(name) or table.records.get(name)
        if topic is None:
            raise NoSuchTopic(name)
        recorded = name in table.records
        if recorded:
            topic = await self._mark_dropped(topic)
        else:
            topic = replace(topic, deleting=await self._incarnations(topic.logs))
        await self._finish_drop(topic, recorded=recorded)
        return topic

    async def create_logs(self, topic: TopicRecord) -> None:
        """Create those logs of *topic* that do not exist. Those of a topic without a record are
        not dlog's to create. Raises `NoSuchTopic` if it was deleted meanwhile, without its logs."""
        settings = parse_settings(dict(topic.settings)) if topic.settings else None
        created = dict[str, str]()

        async def make(log: str) -> None:
            with suppress(LogExists):
                manifest = await create(self._ledgers, ManifestNode(self._store, log), settings)
                created[log] = manifest.incarnation

        if topic.id == NO_ID:
            return
        await for_each(topic.logs, make, at_once=AT_ONCE)
        self._stale = True
        if created and not await self._confirm(topic):
            await self._drop_logs(created.items())
            raise NoSuchTopic(topic.name)

    async def _confirm(self, topic: TopicRecord) -> bool:
        """Write the record of *topic* once more, as it is. A deletion that has looked for logs
        before they were there looks again; return False if it was faster."""
        path = _path(topic.name)
        for _ in range(TRIES_MAX):
            with suppress(BadVersion):
                try:
                    node = await self._store.get(path)
                    record = TopicRecord.decode(topic.name, node.value)
                    if record.id != topic.id or record.dropped:
                        return False
                    await self._store.set(path, node.value, node.version)
                except NoSuchNode:
                    return False
                return True
        raise BadVersion(path, -1)

    async def settings_of(self, topic: TopicRecord) -> LogSettings:
        """Return the settings of the first log of *topic*; all of them have the same, unless
        somebody changed them one by one. Raises `NoSuchLog`."""
        manifest, _ = await ManifestNode(self._store, topic.logs[0]).read(fresh=False)
        return manifest.settings

    async def change_settings(self, topic: TopicRecord, changes: Mapping[str, str]) -> None:
        """Change settings of all logs of *topic*, and of those it will have.

        Raises as `dlog.aio.admin.update_settings`."""
        for log in topic.logs:
            await update_settings(log, dict(changes), client=self._ledgers)
        for _ in range(TRIES_MAX):
            try:
                node = await self._store.get(_path(topic.name))
                record = TopicRecord.decode(topic.name, node.value)
                changed = replace(record, settings={**record.settings, **changes})
                await self._store.set(_path(topic.name), changed.encode(), node.version)
                await self._announce()
            except BadVersion:
                continue
            except NoSuchNode:  # a log without a record
                return
            return

    async def producer_ids(self) -> range:
        """Return ids that nobody else ever gets. Raises `MetadataUnavailable`, `BadVersion`."""
        for _ in range(TRIES_MAX):
            with suppress(BadVersion, NodeExists):
                try:
                    node = await self._store.get(PRODUCER_IDS_PATH)
                except NoSuchNode:
                    first, value = next_producer_ids(None)
                    await self._store.create(PRODUCER_IDS_PATH, value)
                else:
                    first, value = next_producer_ids(node.value)
                    await self._store.set(PRODUCER_IDS_PATH, value, node.version)
                return range(first, first + PRODUCER_ID_BLOCK)
        raise BadVersion(PRODUCER_IDS_PATH, -1)

    def _is_old(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._read_at is None or now - self._read_at > AGE_S_MAX

    async def _without_dropped(self, name: str) -> TopicTable:
        """Return all topics, once the deletion of an earlier topic *name* is finished."""
        table = await self.table(fresh=True)
        before = table.records.get(name)
        if before is None or not before.dropped:
            return table
        await self._finish_drop(before, recorded=True)
        return await self.table(fresh=True)

    async def _check_new_logs(self, table: TopicTable, name: str, logs: Sequence[str]) -> None:
        for log in logs:
            claimed = table.claims(log)
            if claimed is not None:
                raise TopicExists(name, log)
        there = set(await listed_names(self._store))
        for log in logs:
            if log in there:
                raise TopicExists(name, log)

    async def _write_new(self, record: TopicRecord) -> None:
        try:
            await self._store.create(_path(record.name), record.encode())
        except NodeExists:
            node = await self._store.get(_path(record.name))
            if TopicRecord.decode(record.name, node.value) != record:  # else its reply was lost
                raise TopicExists(record.name) from None
        self._stale = True

    async def _mark_dropped(self, topic: TopicRecord) -> TopicRecord:
        """Record that *topic* is being deleted, and which logs those are; return the record."""
        path = _path(topic.name)
        for _ in range(TRIES_MAX):
            try:
                node = await self._store.get(path)
                record = TopicRecord.decode(topic.name, node.value)
                if record.id != topic.id:
                    raise NoSuchTopic(topic.name)  # this is another one by now
                if record.dropped:
                    return record
                dropped = replace(record, deleting=await self._incarnations(record.logs))
                await self._store.set(path, dropped.encode(), node.version)
                await self._announce()
            except BadVersion:
                continue
            except NoSuchNode:
                raise NoSuchTopic(topic.name) from None
            return dropped
        raise BadVersion(path, -1)

    async def _incarnations(self, logs: Sequence[str]) -> tuple[str, ...]:
        incarnations = dict.fromkeys(logs, "")

        async def read(log: str) -> None:
            with suppress(NoSuchLog):
                manifest, _ = await ManifestNode(self._store, log).read()
                incarnations[log] = manifest.incarnation

        await for_each(logs, read, at_once=AT_ONCE)
        return tuple(incarnations.values())

    async def _finish_drop(self, topic: TopicRecord, *, recorded: bool) -> None:
        lives = zip(topic.logs, topic.deleting, strict=True)
        await self._drop_logs([life for life in lives if life[1]])
        if recorded:
            with suppress(NoSuchNode):
                await self._store.delete(_path(topic.name))
            await self._announce()
        self._stale = True

    async def _drop_logs(self, lives: Iterable[tuple[str, str]]) -> None:
        """Delete each log of that name and incarnation."""

        async def delete(life: tuple[str, str]) -> None:
            log, incarnation = life
            with suppress(NoSuchLog):  # another log may have its name since
                await drop(self._ledgers, ManifestNode(self._store, log), incarnation=incarnation)

        await for_each(list(lives), delete, at_once=AT_ONCE)

    async def _announce(self) -> None:
        """Let all gateways read the records again: a watch of their parent sees its value alone."""
        await create_node(self._store, TOPICS_PATH)
        await self._store.set(TOPICS_PATH, b"")
        self._stale = True

    async def _read(self) -> None:
        self._stale = False
        try:
            await self._store.sync(TOPICS_PATH)
            version = await self._store.exists(TOPICS_PATH)
            names = await children_of(self._store, TOPICS_PATH)
            known = self._table.records
            if version != self._version or self._is_old():
                known = {}
            records = {name: known[name] for name in names if name in known}

            async def read(name: str) -> None:
                with suppress(NoSuchNode):
                    value = (await self._store.get(_path(name))).value
                    try:
                        records[name] = TopicRecord.decode(name, value)
                    except LogError as error:  # the others are there all the same
                        _log.warning("topic_not_read", topic=name, reason=str(error))

            missing = [name for name in names if name not in records]
            await for_each(missing, read, at_once=AT_ONCE)
            logs = await listed_names(self._store)
        except BaseException:
            self._stale = True
            raise
        self._table = TopicTable(records.values(), logs)
        self._version, self._read_at = version, asyncio.get_running_loop().time()

    async def _follow(self, path: str) -> None:
        with closing(self._store.watch(path)) as watch:
            while await _changed(watch):
                self._stale = True


async def _changed(watch: Watch) -> bool:
    """Wait for a change; return False if the store was closed."""
    try:
        await watch.changed()
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return False
    return True


def _path(topic: str) -> str:
    return f"{TOPICS_PATH}/{topic}"
