"""The metrics of a gateway for Kafka's clients."""

from typing import TYPE_CHECKING, Final

from dlog.kafka.wire import API_NAMES
from ledger.metering.declaration import MetricRegistry
from ledger.security.quotas import NS

if TYPE_CHECKING:
    from dlog.kafka.gateway import Gateway

METRICS: "Final[MetricRegistry[Gateway]]" = MetricRegistry()

METRICS.gauge(
    "dlog_kafka_connections",
    "Connections of Kafka clients.",
    lambda gateway: len(gateway.listener.connections),
)
METRICS.counter(
    "dlog_kafka_requests_total",
    "Requests of Kafka clients that were begun, by API.",
    lambda gateway: {
        API_NAMES[api]: count for api, count in tuple(gateway.listener.requests.items())
    },
    "api",
)
METRICS.counter(
    "dlog_kafka_refused_connections_total",
    "Connections that were refused, or closed for what they sent or did not take.",
    lambda gateway: gateway.listener.refusals,
)
METRICS.gauge(
    "dlog_kafka_unauthenticated_connections",
    "Connections of clients that have not authenticated yet; 0 where none has to.",
    lambda gateway: len(gateway.listener.unauthenticated),
)
METRICS.counter(
    "dlog_kafka_authentications_total",
    "Authentications by SASL that came to an end, by mechanism and by outcome: done or failed.",
    lambda gateway: dict[tuple[str, ...], int | float](gateway.authenticator.outcomes),
    "mechanism",
    "outcome",
)
METRICS.counter(
    "dlog_kafka_token_key_failures_total",
    "How often the public keys of the OpenID provider could not be read.",
    lambda gateway: gateway.authenticator.key_failures,
)
METRICS.counter(
    "dlog_kafka_errors_total",
    "Partitions of Produce, Fetch and other requests for records that were answered with an "
    "error, by Kafka's name of it.",
    lambda gateway: dict(gateway.records.errors),
    "code",
)
METRICS.gauge(
    "dlog_kafka_request_bytes",
    "Bytes of requests that are in memory until they are answered.",
    lambda gateway: gateway.listener.budget.held_bytes,
)
METRICS.counter(
    "dlog_kafka_produced_bytes_total",
    "Bytes of batches that clients sent, also of those that were refused.",
    lambda gateway: gateway.records.produced_bytes,
)
METRICS.counter(
    "dlog_kafka_fetched_bytes_total",
    "Bytes of batches that clients were sent.",
    lambda gateway: gateway.records.fetched_bytes,
)
METRICS.counter(
    "dlog_kafka_throttled_seconds_total",
    "Time for which clients were throttled, by the quota that caused it.",
    lambda gateway: {
        quota: ns / NS for quota, ns in tuple(gateway.throttle.table.delayed_ns.items())
    },
    "quota",
)
METRICS.gauge(
    "dlog_kafka_led_logs",
    "Logs that this gateway leads and has open.",
    lambda gateway: len(gateway.led),
)
METRICS.counter(
    "dlog_kafka_takeovers_total",
    "Logs that this gateway has taken over.",
    lambda gateway: gateway.led.takeovers,
)
METRICS.gauge(
    "dlog_kafka_groups",
    "Consumer groups that this gateway coordinates, by their state as Kafka's tools name it.",
    lambda gateway: gateway.survey.states,
    "state",
)
METRICS.gauge(
    "dlog_kafka_group_members",
    "Members of the consumer groups that this gateway coordinates; of the 256 largest.",
    lambda gateway: gateway.survey.members,
    "group",
)
METRICS.gauge(
    "dlog_kafka_group_lag_records",
    "Records between what a consumer group has committed and the ends of these logs, as of the "
    "last 15 s, by the gateway that coordinates it; of the 256 groups that are furthest behind.",
    lambda gateway: gateway.survey.lags,
    "group",
)
METRICS.counter(
    "dlog_kafka_group_rebalances_total",
    "Generations of consumer groups that were formed by this gateway.",
    lambda gateway: gateway.coordinator.rebalances,
)
METRICS.counter(
    "dlog_kafka_coordinator_takeovers_total",
    "Offsets logs, and with them the groups in them, that this gateway has taken over.",
    lambda gateway: gateway.coordinator.takeovers,
)
METRICS.gauge(
    "dlog_kafka_gateways",
    "Gateways that live, by the view of this one; 0 while it has no session of the metadata store.",
    lambda gateway: len(gateway.membership.view.gateways),
)
METRICS.counter(
    "dlog_kafka_gateway_deaths_total",
    "Deaths of other gateways that this one noticed by their lifelines.",
    lambda gateway: gateway.membership.deaths,
)
