"""One gateway: a broker of Kafka's protocol on the logs of a namespace.

It listens, is one of the gateways of the namespace, and leads its share of the logs
(`protocol.gateways`). Several of them are one Kafka cluster to a client.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode
from dlog.errors import NoSuchLog
from dlog.kafka import wire
from dlog.kafka.access import DocumentFollower, GatewayAccess
from dlog.kafka.authentication import Authenticator, InvalidSasl, SaslSettings
from dlog.kafka.coordinator import GroupCoordinator, offsets_log
from dlog.kafka.followed_partition import FollowedPartition, check_left, is_for_others
from dlog.kafka.group_requests import GroupRequests
from dlog.kafka.group_survey import GroupSurvey
from dlog.kafka.led_logs import LedLogs, LedPartition, PartitionOpener
from dlog.kafka.listener import ClientSession, KafkaListener, ListenerLimits
from dlog.kafka.log_requests import LogRequests
from dlog.kafka.membership import Membership
from dlog.kafka.partition import Partition
from dlog.kafka.protocol.sasl import SaslConnection
from dlog.kafka.protocol.topics import TopicRecord
from dlog.kafka.quotas import ClientThrottle
from dlog.kafka.topic_requests import TopicDefaults, TopicRequests
from dlog.kafka.topic_store import TopicStore
from dlog.kafka.wire import Values, VersionRange, WireRequest
from ledger.cluster import open_namespace
from ledger.errors import LogError
from ledger.feature_level import KAFKA_BATCHES
from ledger.log_events import get_logger
from ledger.process import this_process
from ledger.security.access import Permission
from ledger.security.certificates import Security
from ledger.security.quotas import QUOTAS, Quotas
from ledger.security.settings import TlsMode

if TYPE_CHECKING:
    import asyncio

PORT_DEFAULT: Final = 9092

_Handler = Callable[[WireRequest, ClientSession], Awaitable[Values]]
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    host: str = "127.0.0.1"
    """To listen on."""
    port: int = PORT_DEFAULT
    """To listen on; 0: any free one."""
    advertised_host: str | None = None
    """Where clients and other gateways reach it; None: *host*, or this machine's name if that
    stands for all addresses."""
    advertised_port: int | None = None
    """None: the port that it listens on."""
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    sasl: SaslSettings = field(default_factory=SaslSettings)
    limits: ListenerLimits = field(default_factory=ListenerLimits)


class Gateway:
    """Made by `gateway`. `host` and `port` are what clients are told."""

    def __init__(
        self,
        ledgers: Ledgers,
        options: GatewayOptions,
        *,
        security: Security | None = None,
        open_partition: PartitionOpener | None = None,
    ) -> None:
        """*open_partition* takes a log over; a test may have another one. Raises `InvalidSasl`."""
        self._ledgers, self._options, self._security = ledgers, options, security
        self._open = open_partition or self._open_partition
        self.authenticator = Authenticator(ledgers.store, options.sasl, self._users_changed)
        _check_sasl(options.sasl, security)
        authenticates = self.authenticator.is_on
        self.listener = KafkaListener(
            self,
            options.limits,
            security,
            tls_only=authenticates and not options.sasl.without_tls,
            certificates=not authenticates,
        )
        self.host, self.port = "", 0
        self._handlers: Mapping[int, _Handler] = {}
        self._parts = AsyncExitStack()
        """Closes what was started, the last first."""

    @property
    def ledgers(self) -> Ledgers:
        """Those of the namespace that it serves."""
        return self._ledgers

    @property
    def address(self) -> str:
        """What clients give as bootstrap server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def offered(self) -> dict[int, VersionRange]:
        return OFFERED | OFFERED_WITH_SASL if self.authenticator.is_on else OFFERED

    def sasl(self, identity: str) -> SaslConnection | None:
        return self.authenticator.connection(identity) if self.authenticator.is_on else None

    async def start(self) -> None:
        """Listen, register, serve. Raises `KafkaNotServed`, `LevelTooLow`, `KeysUnavailable`, and
        what the store does."""
        options = self._options
        port = self.listener.bind(options.host, options.port)
        self.host = options.advertised_host or _reachable(options.host)
        self.port = options.advertised_port or port
        try:
            await self._prepare()
            await self.membership.start()  # before: a client would be told that there is no broker
            await self.listener.start()
        except BaseException:
            await self.stop()
            raise
        _log.info("kafka_gateway_started", address=self.address, node_id=self.membership.node_id)

    async def _prepare(self) -> None:
        store, security = self._ledgers.store, self._security
        namespace = await open_namespace(store)
        namespace.held.check_brings(KAFKA_BATCHES, "a gateway for Kafka's clients")
        required = security is not None and security.mode is TlsMode.REQUIRED
        everybody_known = required or self.authenticator.is_on
        self.membership = Membership(
            store,
            host=self.host,
            port=self.port,
            listen=self._options.host,
            security=security,
            changed=self._view_changed,
        )
        self.topics = TopicStore(self._ledgers)
        self.led = LedLogs(self.membership, self._open)
        self.access = GatewayAccess(store, required=everybody_known)
        self.throttle = ClientThrottle()
        self._quotas = DocumentFollower(store, QUOTAS, Quotas, self._quotas_changed)
        self.records = LogRequests(self.topics, self.led, self.access, self.throttle)
        requests = TopicRequests(
            self.topics,
            self.led,
            self.membership,
            self.access,
            cluster_id=namespace.instance,
            defaults=self._options.topics,
            security_protocol=("SASL_" if self.authenticator.is_on else "")
            + ("SSL" if required else "PLAINTEXT"),
            offsets_log=offsets_log,
        )
        self.coordinator = GroupCoordinator(
            self._ledgers,
            leads=self.membership.leads,
            log_of=self._log_of,
            owner=_owner(),
        )
        self.survey = GroupSurvey(
            self._ledgers, self.coordinator, log_of=self._log_of, end_here=self._end_here
        )
        groups = GroupRequests(self.coordinator, _LogAccess(self.access, self._log_of))
        self._handlers = {
            wire.OFFSET_COMMIT: groups.offset_commit,
            wire.OFFSET_FETCH: groups.offset_fetch,
            wire.JOIN_GROUP: groups.join_group,
            wire.SYNC_GROUP: groups.sync_group,
            wire.HEARTBEAT: groups.heartbeat,
            wire.LEAVE_GROUP: groups.leave_group,
            wire.LIST_GROUPS: groups.list_groups,
            wire.DESCRIBE_GROUPS: groups.describe_groups,
            wire.DELETE_GROUPS: groups.delete_groups,
            wire.OFFSET_DELETE: groups.offset_delete,
            wire.FETCH: self.records.fetch,
            wire.LIST_OFFSETS: self.records.list_offsets,
            wire.OFFSET_FOR_LEADER_EPOCH: self.records.offset_for_leader_epoch,
            wire.DELETE_RECORDS: self.records.delete_records,
            wire.METADATA: requests.metadata,
            wire.DESCRIBE_CLUSTER: requests.describe_cluster,
            wire.FIND_COORDINATOR: requests.find_coordinator,
            wire.INIT_PRODUCER_ID: requests.init_producer_id,
            wire.CREATE_TOPICS: requests.create_topics,
            wire.DELETE_TOPICS: requests.delete_topics,
            wire.CREATE_PARTITIONS: requests.create_partitions,
            wire.DESCRIBE_CONFIGS: requests.describe_configs,
            wire.INCREMENTAL_ALTER_CONFIGS: requests.incremental_alter_configs,
        }
        for part in (
            self.authenticator,
            self.access,
            self._quotas,
            self.topics,
            self.membership,
            self.led,
            self.coordinator,
            self.survey,
        ):
            self._parts.push_async_callback(part.close)
        await self.authenticator.start()
        await self.access.start()
        await self._quotas.start()
        self.topics.start()
        await self.topics.table()
        await self.coordinator.start()
        await self.survey.start()

    async def stop(self) -> None:
        """Answer what was taken, confirm and close all logs, and leave. Idempotent."""
        await self.listener.stop()
        await self._parts.aclose()

    async def submit_produce(
        self, request: WireRequest, session: ClientSession
    ) -> "asyncio.Future[Values | None]":
        return await self.records.submit_produce(request, session)

    async def handle(self, request: WireRequest, session: ClientSession) -> Values | None:
        try:
            if session.sasl is not None and request.api in OFFERED_WITH_SASL:
                return await self._authenticate(request, session, session.sasl)
            return await self._handlers[request.api](request, session)
        except LogError as error:
            # The metadata store is unavailable, mostly: a client that is disconnected asks again,
            # here or elsewhere, as it does when a broker is gone.
            self.listener.tell(session.peer, f"API {request.api}: {error}")
            return None

    async def _authenticate(
        self, request: WireRequest, session: ClientSession, sasl: SaslConnection
    ) -> Values:
        if request.api == wire.SASL_HANDSHAKE:
            return await self.authenticator.handshake(request, sasl)
        values = await self.authenticator.authenticate(request, sasl)
        session.identity = sasl.identity
        return values

    def _users_changed(self) -> None:
        def is_over(session: ClientSession) -> bool:
            return session.sasl is not None and self.authenticator.is_withdrawn(session.sasl)

        self.listener.close_where(is_over, "its user was removed, or has another password")

    def _quotas_changed(self) -> None:
        self.throttle.learn(self._quotas.value)

    def _view_changed(self) -> None:
        self.led.view_changed()
        self.coordinator.view_changed()

    def _log_of(self, topic: str, partition: int) -> str | None:
        record = self.topics.known.find(topic)
        known = record is not None and 0 <= partition < len(record.logs)
        return record.logs[partition] if known and record is not None else None

    def _end_here(self, log: str) -> int | None:
        partition = self.led.opened(log)
        return None if partition is None else partition.high_watermark

    async def _open_partition(self, log: str, topic: TopicRecord, *, follow: bool) -> LedPartition:
        try:
            return await self._open_log(log, topic, follow=follow)
        except NoSuchLog:  # the creation of the topic was cut off
            await self.topics.create_logs(topic)
            return await self._open_log(log, topic, follow=follow)

    async def _open_log(self, log: str, topic: TopicRecord, *, follow: bool) -> LedPartition:
        epoch: int | None = None
        if follow or not topic.belongs_to_kafka:
            manifest, _ = await ManifestNode(self._ledgers.store, log).read()
            if is_for_others(manifest):
                if follow:
                    return await FollowedPartition.open(log, self._ledgers)
                await check_left(self._ledgers.store, log, manifest)
                epoch = manifest.epoch  # a program that opens it now is not disturbed
        return await Partition.open(log, self._ledgers, owner=_owner(), expected_epoch=epoch)


@asynccontextmanager
async def gateway(
    ledgers: Ledgers,
    options: GatewayOptions | None = None,
    *,
    security: Security | None = None,
    open_partition: PartitionOpener | None = None,
) -> AsyncIterator[Gateway]:
    """Serve Kafka's protocol on the namespace of *ledgers* while this lasts; yield the gateway.

    Raises `KafkaNotServed`, `MetadataUnavailable`, and `LevelTooLow` if older programs of the
    cluster could not read what clients produce."""
    served = Gateway(
        ledgers, options or GatewayOptions(), security=security, open_partition=open_partition
    )
    await served.start()
    try:
        yield served
    finally:
        await served.stop()


OFFERED: Final = {
    wire.PRODUCE: VersionRange(3, 11),
    wire.FETCH: VersionRange(4, 12),
    wire.LIST_OFFSETS: VersionRange(1, 8),
    wire.METADATA: VersionRange(0, 12),
    wire.OFFSET_COMMIT: VersionRange(2, 9),
    wire.OFFSET_FETCH: VersionRange(1, 9),
    wire.FIND_COORDINATOR: VersionRange(0, 4),
    wire.JOIN_GROUP: VersionRange(2, 9),
    wire.HEARTBEAT: VersionRange(0, 4),
    wire.LEAVE_GROUP: VersionRange(0, 5),
    wire.SYNC_GROUP: VersionRange(0, 5),
    wire.DESCRIBE_GROUPS: VersionRange(0, 6),
    wire.LIST_GROUPS: VersionRange(0, 5),
    wire.DELETE_GROUPS: VersionRange(0, 2),
    wire.OFFSET_DELETE: VersionRange(0, 0),
    wire.API_VERSIONS: VersionRange(0, 4),
    wire.CREATE_TOPICS: VersionRange(2, 7),
    wire.DELETE_TOPICS: VersionRange(1, 6),
    wire.DELETE_RECORDS: VersionRange(0, 2),
    wire.INIT_PRODUCER_ID: VersionRange(0, 4),
    wire.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
    wire.DESCRIBE_CONFIGS: VersionRange(1, 4),
    wire.CREATE_PARTITIONS: VersionRange(0, 3),
    wire.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    wire.DESCRIBE_CLUSTER: VersionRange(0, 1),
}
OFFERED_WITH_SASL: Final = {
    wire.SASL_HANDSHAKE: VersionRange(1, 1),
    wire.SASL_AUTHENTICATE: VersionRange(0, 2),
}
"""Also, where clients authenticate. A client of version 0 would send its messages without the
header of a request."""


class _LogAccess:
    """To groups there are no grants of their own: whoever may read some log may be in one, and
    commit offsets of the topics that it may read."""

    def __init__(self, access: GatewayAccess, log_of: Callable[[str, int], str | None]) -> None:
        self._access, self._log_of = access, log_of

    def may_join(self, identity: str) -> bool:
        return self._access.may_somewhere(identity, Permission.READ)

    def may_read(self, identity: str, topic: str, partition: int) -> bool:
        log = self._log_of(topic, partition) or topic
        return self._access.may(identity, Permission.READ, log)


def _owner() -> str:
    """Return what people see as the owner of a log that is led here; nothing is decided by it."""
    return f"kafka gateway {this_process()}"


def _check_sasl(sasl: SaslSettings, security: Security | None) -> None:
    """Raises `InvalidSasl`."""
    if sasl.without_tls and not sasl.mechanisms:
        raise InvalidSasl("clients without TLS are allowed to authenticate, but by no mechanism")
    if sasl.without_tls and security is not None and security.mode is TlsMode.REQUIRED:
        raise InvalidSasl("clients may authenticate without TLS, but DLOG_TLS=required refuses it")
    if sasl.mechanisms and security is None and not sasl.without_tls:
        raise InvalidSasl(
            "without TLS whoever is on the network takes over connections, and sees tokens: set "
            "DLOG_TLS, or allow it with --sasl-without-tls"
        )


def _reachable(host: str) -> str:
    """Return where others reach a gateway that listens on *host*."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        import socket

        return socket.gethostname()
    return host
