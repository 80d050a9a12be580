"""Topics: their names, the logs that are their partitions, and settings by Kafka's names.

    /kafka/topics/<name>     the logs of a topic, in the order of its partitions

The record names the logs, so nothing rests on how they are called. A topic that is made with one
partition has a log of its own name; one with n has `name-0` to `name-(n-1)`. One that grows keeps
its first logs. Names of logs that begin with an underscore are dlog's own, so the logs of such a
topic begin with `kafka/` instead. A log that no record names is a topic of one partition, if its
name is one of a topic and not of dlog's own.

Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Self
from uuid import UUID

from dlog.names import is_own
from dlog.settings import RECORD_BYTES_LIMIT, LogSettings
from dlog.wire import gateway_pb2 as pb
from ledger.errors import CallerError, DamagedMetadata, RemoteError
from ledger.nodes import parse_node

FORMAT_VERSION: Final = 1
TOPICS_PATH: Final = "/kafka/topics"
PRODUCER_IDS_PATH: Final = "/kafka/producer-ids"
NAME_CHARACTERS_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000
PRODUCER_ID_BLOCK: Final = 1000
PRODUCER_IDS_END: Final = 2**62
NO_ID: Final = UUID(int=0)
"""Of a topic without a record."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_COPIES_MAX: Final = 16
_BESIDE_OWN: Final = "kafka/"
"""Before the name of a topic that would be one of dlog's own logs; no topic has a slash."""


class InvalidTopic(CallerError):
    """There can be no topic of this name, or not with these partitions."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic!r}: {reason}")
        self.topic, self.reason = topic, reason


class InvalidTopicConfig(CallerError):
    def __init__(self, name: str, value: str | None, reason: str) -> None:
        super().__init__(f"{name}={value}: {reason}")
        self.name, self.value, self.reason = name, value, reason


def why_no_topic(name: str) -> str | None:
    """Return why no topic can be called *name*; None: it can."""
    if not _LEGAL.fullmatch(name):
        return "use letters, digits, dots, underscores and hyphens"
    allowed = NAME_CHARACTERS_MAX - (len(_BESIDE_OWN) if is_own(name) else 0)
    if len(name) > allowed:
        return f"it has {len(name)} characters, {allowed} are allowed"
    if name.startswith("."):
        return "no log has a name that begins with a dot"
    return None


def new_log_of(name: str) -> str:
    """Return what the logs of a new topic *name* are called, or begin with: grants for creating it
    are grants for them."""
    return _BESIDE_OWN + name if is_own(name) else name


def check_topic(name: str) -> str:
    """Return *name* unchanged. Raises `InvalidTopic`."""
    reason = why_no_topic(name)
    if reason is not None:
        raise InvalidTopic(name, reason)
    return name


def check_partitions(name: str, partitions: int) -> int:
    """Return *partitions* unchanged. Raises `InvalidTopic`."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidTopic(name, f"{partitions} partitions; use 1 to {PARTITIONS_MAX}")
    return partitions


class TopicExists(RemoteError):
    def __init__(self, topic: str, log: str | None = None) -> None:
        reason = "exists" if log is None else f"would have the log {log!r}, which exists"
        super().__init__(f"topic {topic!r} {reason}; choose another name")
        self.topic, self.log = topic, log


class NoSuchTopic(RemoteError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic!r}; 'dlog kafka topic list' shows those there")
        self.topic = topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    name: str
    id: UUID
    logs: tuple[str, ...]
    """One for each partition."""
    created_ms: int = 0
    deleting: tuple[str, ...] = ()
    """While it is being deleted: the incarnation of each of its logs as that began, empty where
    there was none. A log that gets a name of them later is another one, and stays."""
    settings: Mapping[str, str]
    """Of logs that are still to be created, by the names of `dlog.settings`."""
    adopted: bool = False
    """Whether it was made of logs that programs write."""

    @property
    def dropped(self) -> bool:
        """Whether it is being deleted, and its logs with it."""
        return bool(self.deleting)

    @property
    def belongs_to_kafka(self) -> bool:
        """Whether its logs are those of Kafka's clients, by an explicit creation. Others are those
        of programs."""
        return self.id != NO_ID and not self.adopted

    @classmethod
    def new(
        cls, name: str, partitions: int, *, id_: UUID, now_ms: int, settings: Mapping[str, str]
    ) -> Self:
        """Raises `InvalidTopic`."""
        check_partitions(check_topic(name), partitions)
        log = new_log_of(name)
        logs = (log,) if partitions == 1 else tuple(f"{log}-{i}" for i in range(partitions))
        return cls(name=name, id=id_, logs=logs, created_ms=now_ms, settings=settings)

    def grown(self, partitions: int) -> Self:
        """Return the topic with *partitions*, the first of which are those that it has.

        Raises `InvalidTopic`."""
        check_partitions(self.name, partitions)
        if partitions <= len(self.logs):
            raise InvalidTopic(
                self.name, f"it has {len(self.logs)} partitions, which can only become more"
            )
        log = new_log_of(self.name)
        more = tuple(f"{log}-{index}" for index in range(len(self.logs), partitions))
        return replace(self, logs=self.logs + more)

    def encode(self) -> bytes:
        node = pb.TopicNode(
            version=FORMAT_VERSION,
            id=self.id.bytes,
            logs=self.logs,
            created_ms=self.created_ms,
            deleting=self.deleting,
            adopted=self.adopted,
        )
        for name, value in sorted(self.settings.items()):
            node.settings.add(name=name, value=value)
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, name: str, value: bytes) -> Self:
        """Return the topic *name* as *value* has it. Raises `DamagedMetadata`."""
        path = f"{TOPICS_PATH}/{name}"
        node = pb.TopicNode()
        parse_node(node, value, path, version=FORMAT_VERSION)
        if len(node.id) != len(NO_ID.bytes) or not node.logs:
            raise DamagedMetadata(path, "a topic has an id of 16 bytes and a log at least")
        if node.deleting and len(node.deleting) != len(node.logs):
            raise DamagedMetadata(path, "a topic that is deleted names a life of each log")
        return cls(
            name=name,
            id=UUID(bytes=node.id),
            logs=tuple(node.logs),
            created_ms=node.created_ms,
            deleting=tuple(node.deleting),
            adopted=node.adopted,
            settings={each.name: each.value for each in node.settings},
        )


class TopicTable:
    """All topics at one moment: those with a record, and logs that are topics without one."""

    def __init__(self, records: Iterable[TopicRecord] = (), logs: Iterable[str] = ()) -> None:
        self.records = {record.name: record for record in records}
        claimed = {log for record in self.records.values() for log in record.logs}
        self._loose = {
            log
            for log in logs
            if log not in claimed
            and log not in self.records
            and why_no_topic(log) is None
            and not is_own(log)
        }

    def find(self, name: str) -> TopicRecord | None:
        """Return the topic *name*; None if there is none, or it is being deleted."""
        record = self.records.get(name)
        if record is not None:
            return None if record.dropped else record
        if name not in self._loose:
            return None
        return TopicRecord(name=name, id=NO_ID, logs=(name,), settings={})

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        kept = [record.name for record in self.records.values() if not record.dropped]
        return sorted([*kept, *self._loose])

    def claims(self, log: str) -> str | None:
        """Return the topic whose record names *log*; None: no record does."""
        for record in self.records.values():
            if log in record.logs:
                return record.name
        return None


def next_producer_ids(value: bytes | None) -> tuple[int, bytes]:
    """Return the first id of a new block, and what the node says once it is taken.

    *value*: what it said before, None if it was not there. Raises `DamagedMetadata`."""
    first = 1
    if value is not None:
        node = pb.ProducerIdsNode()
        parse_node(node, value, PRODUCER_IDS_PATH, version=FORMAT_VERSION)
        first = node.next
        if not 0 < first < PRODUCER_IDS_END:
            raise DamagedMetadata(PRODUCER_IDS_PATH, f"there is no producer id {first}")
    after = pb.ProducerIdsNode(version=FORMAT_VERSION, next=first + PRODUCER_ID_BLOCK)
    return first, after.SerializeToString(deterministic=True)


# Settings, by Kafka's names.

_UNLIMITED: Final = -1
_MS: Final = 1000


class ConfigType(IntEnum):
    """What a setting's value is, as DescribeConfigs says it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


CONFIG_TYPES: Final[Mapping[str, ConfigType]] = {
    "advertised.listeners": ConfigType.STRING,
    "auto.create.topics.enable": ConfigType.BOOLEAN,
    "cleanup.policy": ConfigType.LIST,
    "compression.type": ConfigType.STRING,
    "max.message.bytes": ConfigType.INT,
    "message.timestamp.type": ConfigType.STRING,
    "min.insync.replicas": ConfigType.INT,
    "num.partitions": ConfigType.INT,
    "retention.bytes": ConfigType.LONG,
    "retention.ms": ConfigType.LONG,
    "segment.bytes": ConfigType.INT,
    "segment.ms": ConfigType.LONG,
}
"""Of all that DescribeConfigs returns, of topics and brokers."""


def log_settings_of(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return settings of a log, as `dlog.settings.parse_settings` takes them, from a topic's.

    None gives a setting its default. Raises `InvalidTopicConfig` for what no log has."""
    found: dict[str, str] = {}
    default = topic_configs_of(LogSettings())
    for name, given in configs.items():
        if name not in default:
            there = ", ".join(sorted(default))
            raise InvalidTopicConfig(name, given, f"logs have no such setting; there are {there}")
        value = default[name] if given is None else given.strip()
        found |= _parsed(name, value)
    return found


def _parsed(name: str, value: str) -> dict[str, str]:
    match name:
        case "retention.ms":
            return {"retention_age_s": _seconds(name, value)}
        case "retention.bytes":
            return {"retention_bytes": str(_limit(name, value))}
        case "segment.bytes":
            return {"roll_bytes": str(_limit(name, value))}
        case "segment.ms":
            return {"roll_age_s": _seconds(name, value)}
        case "max.message.bytes":
            count = _limit(name, value)
            if not 1 <= count <= RECORD_BYTES_LIMIT:
                raise InvalidTopicConfig(name, value, f"use 1 to {RECORD_BYTES_LIMIT}")
            return {"record_bytes_max": str(count)}
        case "min.insync.replicas":
            return {"ack_quorum": str(_limit(name, value))}
        case "cleanup.policy":
            if value != "delete":
                raise InvalidTopicConfig(
                    name, value, "logs are trimmed, never compacted; use cleanup.policy=delete"
                )
        case "compression.type":
            if value != "producer":
                reason = "batches stay as their producers made them; use compression.type=producer"
                raise InvalidTopicConfig(name, value, reason)
        case _:
            if value != "CreateTime":
                raise InvalidTopicConfig(name, value, "records keep their time; use CreateTime")
    return {}


def topic_configs_of(settings: LogSettings) -> dict[str, str]:
    """Return a log's settings by Kafka's names."""
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": str(settings.record_bytes_max),
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": str(settings.quorum.ack),
        "retention.bytes": str(settings.retention_bytes or _UNLIMITED),
        "retention.ms": str(round(settings.retention_age_s * _MS) or _UNLIMITED),
        "segment.bytes": str(settings.roll_bytes),
        "segment.ms": str(round(settings.roll_age_s * _MS)),
    }


def quorum_of(topic: str, copies: int) -> dict[str, str]:
    """Return the settings of a topic with *copies* replicas; -1: the default of logs.

    A majority acknowledges. Raises `InvalidTopic`."""
    if copies == _UNLIMITED:
        return {}
    if not 1 <= copies <= _COPIES_MAX:
        raise InvalidTopic(topic, f"{copies} replicas; use 1 to {_COPIES_MAX}, or -1")
    return {
        "ensemble": str(copies),
        "write_quorum": str(copies),
        "ack_quorum": str(copies // 2 + 1),
    }


def _limit(name: str, value: str) -> int:
    """Return the number in *value*; 0 for -1, which is no limit."""
    try:
        count = int(value)
    except ValueError:
        raise InvalidTopicConfig(name, value, "use a whole number") from None
    if count < _UNLIMITED:
        raise InvalidTopicConfig(name, value, "use -1 for no limit, or more")
    return 0 if count == _UNLIMITED else count


def _seconds(name: str, value: str) -> str:
    milliseconds = _limit(name, value)
    return str(milliseconds / _MS)
