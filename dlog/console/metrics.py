"""The metrics of a console."""

from typing import Final

from ledger.metering.declaration import SECONDS, MetricRegistry

METRICS: Final[MetricRegistry[None]] = MetricRegistry()

REQUESTS: Final = METRICS.tally(
    "dlog_console_requests_total",
    "Requests of browsers, by status class of the response.",
    "status",
)
POLLS: Final = METRICS.tally(
    "dlog_console_polls_total", "Rounds in which the console polled the cluster."
)
POLL_S: Final = METRICS.spread("dlog_console_poll_seconds", "Duration of each round.", SECONDS)
