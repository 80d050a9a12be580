"""The metrics of a console."""

from typing import Final

from ledger.metering.declaration import SECONDS, Declarations

METRICS: Final[Declarations[None]] = Declarations()

REQUESTS: Final = METRICS.tally(
    "dlog_console_requests_total", "Requests of browsers, by the class of the answer.", "status"
)
POLLS: Final = METRICS.tally(
    "dlog_console_polls_total", "Rounds in which the console asked the cluster."
)
POLL_S: Final = METRICS.spread("dlog_console_poll_seconds", "How long each round took.", SECONDS)
