"""Requests about topics and gateways: Metadata, DescribeCluster, creation, deletion, settings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from dlog.kafka.access import GatewayAccess
from dlog.kafka.errors import KafkaRefusal, refusal_of
from dlog.kafka.led_logs import LedLogs
from dlog.kafka.listener import ClientSession
from dlog.kafka.log_requests import NO_TRANSACTIONS
from dlog.kafka.membership import Membership
from dlog.kafka.protocol.gateways import GatewayView
from dlog.kafka.protocol.topics import (
    CONFIG_TYPES,
    NO_ID,
    InvalidTopic,
    NoSuchTopic,
    TopicExists,
    TopicRecord,
    TopicTable,
    log_settings_of,
    new_log_of,
    quorum_of,
    topic_configs_of,
)
from dlog.kafka.topic_store import TopicStore
from dlog.kafka.wire import Entity, Values, WireRequest
from dlog.protocol.gateway_record import GatewayRecord
from ledger.errors import LogError
from ledger.security.access import Permission

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
_DEFAULT: Final = -1
_NOBODY: Final = -1
_SET, _DELETE = 0, 1
_CONFIG_OF_TOPIC, _CONFIG_DEFAULT, _CONFIG_OF_BROKER = 1, 5, 4
_ALL_TOPICS_VERSION: Final = 1
"""From here on an empty list of topics is none, and null is all."""
_COORDINATOR_LISTS_VERSION: Final = 4
_GROUP_COORDINATOR: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    partitions: int = 1
    """Of a topic whose creation names no number."""
    auto_create: bool = True
    """Create a topic that a client names and that does not exist."""


class TopicRequests:
    def __init__(
        self,
        topics: TopicStore,
        led: LedLogs,
        membership: Membership,
        access: GatewayAccess,
        *,
        cluster_id: str,
        defaults: TopicDefaults,
        security_protocol: str,
        offsets_log: Callable[[str], str],
    ) -> None:
        """*security_protocol*: what clients set to connect. *offsets_log*: the log whose leader
        coordinates a group."""
        self._topics, self._led, self._membership = topics, led, membership
        self._access, self._cluster_id, self._defaults = access, cluster_id, defaults
        self._security_protocol = security_protocol
        self._offsets_log = offsets_log
        self._producer_ids: list[int] = []

    # Metadata.

    async def metadata(self, request: WireRequest, session: ClientSession) -> Values:
        body = request.body
        table = await self._topics.table()
        view = await self._membership.settled()
        named = body.topics
        if named is None or (not named and request.version < _ALL_TOPICS_VERSION):
            described = [
                self._described(topic, view)
                for topic in map(table.find, table.names())
                if topic is not None and self._may_read(topic, session)
            ]
        else:
            may_create = getattr(body, "allow_auto_topic_creation", True)
            described = [
                await self._named(each, view, session, may_create=may_create) for each in named
            ]
        return {
            "brokers": self._brokers(),
            "cluster_id": self._cluster_id,
            "controller_id": _id_of(view.controller),
            "topics": described,
        }

    async def _named(
        self, wanted: Entity, view: GatewayView, session: ClientSession, *, may_create: bool
    ) -> Values:
        name = wanted.name
        topic_id = getattr(wanted, "topic_id", None)
        try:
            if name is None:
                topic = _with_id(await self._topics.table(), topic_id)
            else:
                topic = await self._found(name, session, may_create=may_create)
            self._check_read(topic, session)
        except (KafkaRefusal, LogError) as error:
            refusal = _refusal(error)
            return {"error_code": refusal.code, "name": name, "topic_id": topic_id}
        return self._described(topic, view)

    async def _found(self, name: str, session: ClientSession, *, may_create: bool) -> TopicRecord:
        try:
            return await self._topics.find(name)
        except NoSuchTopic:
            if not (may_create and self._defaults.auto_create):
                raise
        self._access.check(session.identity, Permission.ADD, new_log_of(name))
        try:
            return await self._topics.create(name, self._defaults.partitions, {})
        except TopicExists:  # another gateway was faster
            return await self._topics.find(name)

    def _described(self, topic: TopicRecord, view: GatewayView) -> Values:
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": _shown_id(topic),
            "partitions": [
                self._partition(index, log, view) for index, log in enumerate(topic.logs)
            ],
        }

    def _partition(self, index: int, log: str, view: GatewayView) -> Values:
        leader = view.leader_of(log)
        if leader is None:
            return {
                "error_code": ErrorCode.leader_not_available,
                "partition_index": index,
                "leader_id": _NOBODY,
            }
        opened = self._led.opened(log)
        nodes = (leader.node_id,)
        values = {
            "error_code": ErrorCode.none,
            "partition_index": index,
            "leader_id": leader.node_id,
            "replica_nodes": nodes,
            "isr_nodes": nodes,
        }
        if opened is not None:
            values["leader_epoch"] = opened.epoch
        return values

    def _brokers(self) -> list[Values]:
        return [
            {"node_id": each.node_id, "host": each.host, "port": each.port}
            for each in self._membership.listed
        ]

    async def describe_cluster(self, _request: WireRequest, _session: ClientSession) -> Values:
        view = self._membership.last_view
        return {
            "error_code": ErrorCode.none,
            "cluster_id": self._cluster_id,
            "controller_id": _id_of(view.controller),
            "brokers": [
                {"broker_id": each.node_id, "host": each.host, "port": each.port}
                for each in view.gateways
            ],
        }

    async def find_coordinator(self, request: WireRequest, _session: ClientSession) -> Values:
        body = request.body
        key_type = int(getattr(body, "key_type", _GROUP_COORDINATOR))
        await self._membership.settled()
        if request.version < _COORDINATOR_LISTS_VERSION:
            return self._coordinator(body.key, key_type)
        found = [{"key": key, **self._coordinator(key, key_type)} for key in body.coordinator_keys]
        return {"coordinators": found}

    def _coordinator(self, key: str, key_type: int) -> Values:
        nowhere = {"node_id": _NOBODY, "host": "", "port": _NOBODY}
        if key_type != _GROUP_COORDINATOR:
            code = ErrorCode.invalid_request
            return {"error_code": code, "error_message": NO_TRANSACTIONS, **nowhere}
        leader = self._membership.view.leader_of(self._offsets_log(key))
        if leader is None:
            sentence = "no gateway can coordinate the group now; try again"
            code = ErrorCode.coordinator_not_available
            return {"error_code": code, "error_message": sentence, **nowhere}
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": leader.node_id,
            "host": leader.host,
            "port": leader.port,
        }

    async def init_producer_id(self, request: WireRequest, _session: ClientSession) -> Values:
        if request.body.transactional_id is not None:
            return {"error_code": ErrorCode.invalid_request, "producer_id": -1}
        if not self._producer_ids:
            try:
                ids = await self._topics.producer_ids()
            except LogError as error:
                return {"error_code": ErrorCode.coordinator_load_in_progress, "producer_id": -1} | (
                    {} if error.retryable else {"error_code": refusal_of(error).code}
                )
            self._producer_ids.extend(reversed(ids))
        producer_id = self._producer_ids.pop()
        return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}

    # Creation and deletion.

    async def create_topics(self, request: WireRequest, session: ClientSession) -> Values:
        body = request.body
        results = []
        for topic in body.topics:
            try:
                record, settings = await self._create(topic, session, dry=body.validate_only)
            except (KafkaRefusal, LogError) as error:
                results.append({"name": topic.name, **_failed(error)})
                continue
            configs = [
                {"name": name, "value": value, "config_source": _CONFIG_OF_TOPIC}
                for name, value in settings.items()
            ]
            copies = topic.replication_factor
            results.append(
                {
                    "name": topic.name,
                    "topic_id": _shown_id(record),
                    "error_code": ErrorCode.none,
                    "error_message": None,
                    "num_partitions": len(record.logs),
                    "replication_factor": copies if copies > 0 else 1,
                    "configs": configs,
                }
            )
        return {"topics": results}

    async def _create(
        self, topic: Entity, session: ClientSession, *, dry: bool
    ) -> tuple[TopicRecord, Mapping[str, str]]:
        if topic.assignments:
            sentence = "gateways lead by a rule; create the topic without an assignment of replicas"
            raise KafkaRefusal(ErrorCode.invalid_replica_assignment, sentence)
        self._access.check(session.identity, Permission.ADD, new_log_of(topic.name))
        configs = {each.name: each.value for each in topic.configs}
        settings = {
            **quorum_of(topic.name, topic.replication_factor),
            **log_settings_of(configs),
        }
        partitions = topic.num_partitions
        if partitions == _DEFAULT:
            partitions = self._defaults.partitions
        record = await self._topics.create(topic.name, partitions, settings, dry=dry)
        return record, {name: value for name, value in configs.items() if value is not None}

    async def delete_topics(self, request: WireRequest, session: ClientSession) -> Values:
        body = request.body
        if request.version >= 6:
            wanted = [(each.name, each.topic_id) for each in body.topics]
        else:
            wanted = [(name, None) for name in body.topic_names]
        results: list[Values] = []
        for name, topic_id in wanted:
            shown: dict[str, Any] = {"name": name, "topic_id": topic_id}
            try:
                shown["name"] = await self._delete(name, topic_id, session)
            except (KafkaRefusal, LogError) as error:
                results.append({**shown, **_failed(error)})
            else:
                results.append({**shown, "error_code": ErrorCode.none, "error_message": None})
        return {"responses": results}

    async def _delete(self, name: str | None, topic_id: Any, session: ClientSession) -> str:
        table = await self._topics.table(fresh=True)
        topic = _with_id(table, topic_id) if name is None else table.find(name)
        if topic is None:
            raise NoSuchTopic(name or "")
        for log in topic.logs:
            self._access.check(session.identity, Permission.ADD, log)
        await self._topics.delete(topic.name)
        for log in topic.logs:
            self._led.release(log)
        return topic.name

    async def create_partitions(self, request: WireRequest, session: ClientSession) -> Values:
        results: list[Values] = []
        for topic in request.body.topics:
            try:
                self._access.check(session.identity, Permission.ADD, new_log_of(topic.name))
                await self._topics.grow(topic.name, topic.count, dry=request.body.validate_only)
            except InvalidTopic as error:
                refusal = KafkaRefusal(ErrorCode.invalid_partitions, str(error))
                results.append({"name": topic.name, **_failed(refusal)})
            except (KafkaRefusal, LogError) as error:
                results.append({"name": topic.name, **_failed(error)})
            else:
                done = {"error_code": ErrorCode.none, "error_message": None}
                results.append({"name": topic.name, **done})
        return {"results": results}

    # Settings.

    async def describe_configs(self, request: WireRequest, session: ClientSession) -> Values:
        results = []
        for resource in request.body.resources:
            shown = _resource(resource)
            try:
                configs = await self._configs(resource, session)
            except (KafkaRefusal, LogError) as error:
                results.append({**shown, **_failed(error), "configs": ()})
            else:
                done = {"error_code": ErrorCode.none, "error_message": None}
                results.append({**shown, **done, "configs": configs})
        return {"results": results}

    async def _configs(self, resource: Entity, session: ClientSession) -> list[Values]:
        wanted = resource.configuration_keys
        if resource.resource_type == BROKER_RESOURCE:
            default = {
                "auto.create.topics.enable": str(self._defaults.auto_create).lower(),
                "num.partitions": str(self._defaults.partitions),
            }
            values = {**self._addresses(resource.resource_name), **default}
            source, read_only = _CONFIG_OF_BROKER, True
        elif resource.resource_type == TOPIC_RESOURCE:
            topic = await self._topics.find(resource.resource_name)
            self._check_read(topic, session)
            settings = await self._topics.settings_of(topic)
            values = topic_configs_of(settings)
            source, read_only = _CONFIG_OF_TOPIC, False
            default = topic_configs_of(type(settings)())
        else:
            raise _no_such_resource(resource)
        return [
            {
                "name": name,
                "value": value,
                "read_only": read_only,
                "config_source": _CONFIG_DEFAULT if value == default.get(name) else source,
                "config_type": CONFIG_TYPES[name],
                "documentation": None,
            }
            for name, value in values.items()
            if wanted is None or name in wanted
        ]

    def _addresses(self, broker: str) -> dict[str, str]:
        """Return the settings that say where *broker* listens; none of one that is not there."""
        found = [each for each in self._membership.listed if str(each.node_id) == broker]
        if not found:
            return {}
        return {"advertised.listeners": f"{self._security_protocol}://{found[0].address}"}

    async def incremental_alter_configs(
        self, request: WireRequest, session: ClientSession
    ) -> Values:
        results = []
        for resource in request.body.resources:
            shown = _resource(resource)
            try:
                await self._alter(resource, session, dry=request.body.validate_only)
            except (KafkaRefusal, LogError) as error:
                results.append({**shown, **_failed(error)})
            else:
                results.append({**shown, "error_code": ErrorCode.none, "error_message": None})
        return {"responses": results}

    async def _alter(self, resource: Entity, session: ClientSession, *, dry: bool) -> None:
        if resource.resource_type != TOPIC_RESOURCE:
            raise _no_such_resource(resource)
        topic = await self._topics.find(resource.resource_name)
        for log in topic.logs:
            self._access.check(session.identity, Permission.ADD, log)
        changes = log_settings_of(dict(_changes(resource.configs)))
        if not dry:
            await self._topics.change_settings(topic, changes)

    def _may_read(self, topic: TopicRecord, session: ClientSession) -> bool:
        return all(self._access.may(session.identity, Permission.READ, log) for log in topic.logs)

    def _check_read(self, topic: TopicRecord, session: ClientSession) -> None:
        for log in topic.logs:
            self._access.check(session.identity, Permission.READ, log)


def _changes(configs: Iterable[Entity]) -> Iterable[tuple[str, str | None]]:
    for config in configs:
        if config.config_operation == _SET:
            yield config.name, config.value
        elif config.config_operation == _DELETE:
            yield config.name, None
        else:
            sentence = f"{config.name} is no list, so nothing can be appended or subtracted"
            raise KafkaRefusal(ErrorCode.invalid_config, sentence)


def _with_id(table: TopicTable, topic_id: Any) -> TopicRecord:
    for record in table.records.values():
        if record.id == topic_id and not record.dropped:
            return record
    raise KafkaRefusal(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")


def _shown_id(topic: TopicRecord) -> Any:
    return None if topic.id == NO_ID else topic.id


def _id_of(gateway: GatewayRecord | None) -> int:
    return _NOBODY if gateway is None else gateway.node_id


def _resource(resource: Entity) -> dict[str, Any]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _no_such_resource(resource: Entity) -> KafkaRefusal:
    sentence = f"resources of type {resource.resource_type} have no settings here; topics have"
    return KafkaRefusal(ErrorCode.invalid_request, sentence)


def _refusal(error: KafkaRefusal | LogError) -> KafkaRefusal:
    return error if isinstance(error, KafkaRefusal) else refusal_of(error)


def _failed(error: KafkaRefusal | LogError) -> Values:
    refusal = _refusal(error)
    return {"error_code": refusal.code, "error_message": str(refusal)}
